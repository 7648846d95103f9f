"""Encoding of text files as arrays of token ids: read in pieces, encoded once, and kept in the user's cache."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...files import cache_folder, locked, progress, write_atomically
from ...networks.tokeniser import (
    END,
    NAMES,
    SHOWN,
    UNKNOWN,
    Ids,
    Tokeniser,
    Unit,
    Unknown,
    advanced,
    code_points,
    split_words,
)

_PIECE = 1 << 22  # bytes that are read at once
_LONGEST = 1 << 20  # characters of a word; what has longer ones is no text of words
_TYPES = ((np.uint8, 1 << 8), (np.uint16, 1 << 16), (np.int32, 1 << 31))  # and the classes that each holds
_FORMAT = 1

Advance = Callable[[int], None]


def say(text: str) -> None:
    """Print to standard error; only in one of the processes that torchrun started on this machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(text, file=sys.stderr)


@dataclass(frozen=True)
class Encoded:
    """An encoded file."""

    ids: Ids
    tokeniser: Tokeniser
    unknown: str = ""
    """What is said of words that another file's vocabulary does not have."""


def _new_checksum(dtype: Any) -> Any:
    return hashlib.blake2b(np.dtype(dtype).name.encode(), digest_size=16)


def checksum_of(ids: Ids) -> str:
    """Checksum of ids and their type."""
    found = _new_checksum(ids.dtype)
    for start in range(0, len(ids), _PIECE):
        found.update(ids[start : start + _PIECE].tobytes())
    return str(found.hexdigest())


def encode_file(
    name: str,
    path: Path,
    *,
    unit: Unit,
    words: int | None = None,
    rules: dict[str, Any] | None = None,
    tokeniser: Tokeniser | None = None,
) -> Encoded:
    """Encode a file as ids, or read them from the cache if the same content was encoded by the same rules before."""
    try:
        source = _Source(name, path, unit, words, rules or {}, tokeniser)
        target = cache_folder() / "text" / f"{source.key}.ids"
        if (found := _kept(source, target)) is not None:
            return found
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(target.with_suffix(".lock")):  # another process finds it when its turn comes
                return _kept(source, target) or source.write(target)
        except OSError as error:
            if error.filename is not None and Path(error.filename) == path:
                raise
            say(f"{target.parent} cannot be written to ({error.strerror or error}): {path} is encoded in memory")
            return source.in_memory()
    except OSError as error:
        raise ValueError(f"{name}: {path} cannot be read: {error.strerror or error}") from None


def _kept(source: _Source, target: Path) -> Encoded | None:
    """Read what was encoded before; None if there is nothing, or it is damaged."""
    try:
        about = json.loads(target.with_suffix(".json").read_text())
        same = all(about[name] == value for name, value in source.about.items())
        if not same or target.stat().st_size != about["count"] * np.dtype(about["dtype"]).itemsize:
            return None
        ids = _mapped(target, about["dtype"])
        if checksum_of(ids) != about["checksum"]:
            return None
        tokeniser = source.tokeniser or Tokeniser.from_json(about["tokeniser"])
        return Encoded(ids, tokeniser, about["unknown"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mapped(path: Path, dtype: Any) -> Ids:
    """Memory-map a file as an array; copy-on-write, as torch expects writable arrays."""
    return np.memmap(path, dtype, mode="c") if path.stat().st_size else np.empty(0, dtype)


class _Source:
    """A file of text, and how it is to be encoded."""

    def __init__(
        self,
        name: str,
        path: Path,
        unit: Unit,
        words: int | None,
        rules: dict[str, Any],
        tokeniser: Tokeniser | None,
    ) -> None:
        self.name, self.path, self.unit, self.words, self.rules = name, path, unit, words, rules
        self.tokeniser = tokeniser
        self.stripped = tokeniser.strip_lines if tokeniser is not None else rules.get("strip_lines", False)
        self.size = path.stat().st_size
        digest = hashlib.sha256()
        with progress(self.size) as advance:
            for _ in self._bytes(advance, digest):
                pass
        self.sha256 = digest.hexdigest()
        self.about = {
            "format": _FORMAT,
            "size": self.size,
            "sha256": self.sha256,
            "unit": unit,
            "words": words,
            "rules": rules,
            "vocabulary": None if tokeniser is None else tokeniser.checksum,
        }
        self.key = hashlib.blake2b(json.dumps(self.about).encode(), digest_size=12).hexdigest()

    # ---- reading

    def _bytes(self, advance: Advance, digest: Any = None) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(_PIECE):
                if digest is not None:
                    digest.update(piece)
                yield piece
                advance(len(piece))

    def _texts(self, advance: Advance, digest: Any = None) -> Iterator[tuple[str, int, int]]:
        """Pieces of the file, each with the line and column it begins at; no word, or line to strip, is cut."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        line = column = 1
        held = ""
        for piece in itertools.chain(self._bytes(advance, digest), [b""]):
            try:
                text = decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                before = held + error.object[: error.start].decode("utf-8", "replace")
                raise self._binary(f"byte {error.object[error.start]:#04x}", before, line, column) from None
            if "\0" in text:
                raise self._binary("a zero byte", held + text[: text.index("\0")], line, column)
            text = held + text
            cut = self._cut(text) if piece else len(text)
            text, held = text[:cut], text[cut:]
            if len(held) > _LONGEST and self.unit != "char":
                raise ValueError(
                    f"{self.name}: {self.path} is no text of words: line {line} has {len(held)} characters without a "
                    "space; text-byte reads any file"
                )
            if text:
                yield text, line, column
                line, column = advanced(text, line, column)

    def strip(self, text: str) -> str:
        """Strip white space at both ends of each line of a piece, if the rules ask for it."""
        return "\n".join(line.strip() for line in text.split("\n")) if self.stripped else text

    def _cut(self, text: str) -> int:
        """Where a piece may end."""
        if self.stripped:
            return text.rfind("\n") + 1
        if self.unit == "char" or not text or text[-1].isspace():
            return len(text)
        return len(text) - len(text.rsplit(None, 1)[-1])

    def _binary(self, what: str, before: str, line: int, column: int) -> ValueError:
        line, column = advanced(before, line, column)
        return ValueError(
            f"{self.name}: {self.path} is not UTF-8 text: {what} at line {line}, column {column}; text-byte reads any "
            "file"
        )

    # ---- encoding

    def write(self, target: Path) -> Encoded:
        """Encode into a file of the cache, with its description in a second one; both are written atomically."""
        for left in target.parent.glob(f".{target.name}.*.tmp"):  # of a process that was killed: we hold the lock
            left.unlink(missing_ok=True)
        with progress(2 * self.size) as advance:
            plan = self._plan(advance)
            temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            checksum = _new_checksum(plan.dtype)
            count = 0
            try:
                with temporary.open("wb") as file:
                    for ids in plan.ids(advance):
                        file.write(ids.tobytes())
                        checksum.update(ids.tobytes())
                        count += len(ids)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        about = {"dtype": plan.dtype.name, "count": count, "checksum": checksum.hexdigest(), "unknown": plan.unknown}
        own = {"tokeniser": plan.tokeniser.to_json()} if self.tokeniser is None else {}
        write_atomically(target.with_suffix(".json"), json.dumps(self.about | about | own).encode())
        return Encoded(_mapped(target, plan.dtype), plan.tokeniser, plan.unknown)

    def in_memory(self) -> Encoded:
        """Encode in memory, if the cache is not writable."""
        with progress(2 * self.size) as advance:
            plan, content = self._plan(advance), bytearray()
            for ids in plan.ids(advance):
                content += ids.tobytes()
        return Encoded(np.frombuffer(content, plan.dtype), plan.tokeniser, plan.unknown)

    def _plan(self, advance: Advance) -> _Plan:
        return _Plan(self, self.tokeniser or self._vocabulary(advance))

    def _vocabulary(self, advance: Advance) -> Tokeniser:
        """Build the tokeniser from the file itself."""
        if self.unit == "byte":
            return Tokeniser("byte")
        if self.unit == "char":
            seen, space = np.zeros(0x110000, bool), self.rules.get("space")
            for piece, _, _ in self._texts(advance):
                text = self.strip(piece)
                seen[code_points(text if space is None else text.replace(" ", space))] = True
            tokens = [chr(code) for code in np.flatnonzero(seen)]
        else:
            counts: Counter[str] = Counter()
            for text, _, _ in self._texts(advance):
                counts.update(split_words(text))
            tokens = self._most_frequent(counts)
        if len(tokens) < 2:
            only = f", {tokens[0][:SHOWN]!r}" if tokens else ""
            raise ValueError(
                f"{self.name}: {self.path} must have at least 2 different {NAMES[self.unit]}s to learn from, got "
                f"{len(tokens)}{only}"
            )
        return Tokeniser(self.unit, tuple(tokens), **self.rules)

    def _most_frequent(self, counts: Counter[str]) -> list[str]:
        by_count = sorted(counts, key=lambda word: (-counts[word], word))
        if self.words is None or len(by_count) <= self.words:
            return by_count
        kept = [word for word in by_count if word not in (END, UNKNOWN)][: self.words - 2]
        return [END, UNKNOWN, *kept]


class _Plan:
    """How a file is encoded: the tokeniser, the type of the ids, and the tokens missing from the vocabulary."""

    def __init__(self, source: _Source, tokeniser: Tokeniser) -> None:
        self.source, self.tokeniser = source, tokeniser
        self.dtype = np.dtype(next(t for t, most in _TYPES if tokeniser.classes <= most))
        self.unknown = ""

    def ids(self, advance: Advance) -> Iterator[Ids]:
        """The ids, piece by piece; raises if the file has changed since its checksum was computed."""
        source, tokeniser = self.source, self.tokeniser
        digest = hashlib.sha256()
        unknown = Unknown(tokeniser)
        if source.unit == "byte":
            for piece in source._bytes(advance, digest):
                yield np.frombuffer(piece, np.uint8)
        else:
            for text, line, column in source._texts(advance, digest):
                ids = tokeniser.lookup(source.strip(text))
                if ids.min(initial=0) < 0:
                    if source.tokeniser is not None:  # of its own words, the rare ones are none by intent
                        whole = np.where(_at_line_ends(text), 0, tokeniser.lookup(text)) if source.stripped else ids
                        unknown.take(text, whole, line, column)
                    ids = np.where(ids < 0, tokeniser.unknown_id or 0, ids)
                yield ids.astype(self.dtype)
        if digest.hexdigest() != source.sha256:
            raise ValueError(f"{source.name}: {source.path} changed while it was read")
        if unknown.seen and tokeniser.unknown_id is None:
            raise ValueError(f"{source.name}: {source.path} {unknown}")
        self.unknown = str(unknown) if unknown.seen else ""


def _at_line_ends(text: str) -> Any:
    """Whether each character is white space at an end of its line: (characters,), bool."""
    found, at = np.zeros(len(text), bool), 0
    for line in text.split("\n"):
        found[at : at + len(line) - len(line.lstrip())] = True
        found[at + len(line.rstrip()) : at + len(line)] = True
        at += len(line) + 1
    return found
