"""Text files as arrays of token ids: encoded in pieces, and cached as one array beside its checksum."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._lazy import Lazy
from ...files import cache_folder, checksum, progress, write_atomically
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

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazy("numpy")

_PIECE = 1 << 22  # bytes that are read at once
_LONGEST = 1 << 20  # characters of a word; a file with longer ones is no text of words
_FORMAT = 2  # of the cached files
_AT_LINE_ENDS = re.compile(r"^[^\S\n]+|[^\S\n]+$", re.MULTILINE)

Advance = Callable[[int], None]


def say(text: str) -> None:
    """Print to standard error; only in one of the processes that torchrun started on this machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(text, file=sys.stderr)


@dataclass(frozen=True)
class Encoded:
    """An encoded file."""

    ids: Ids
    """Token ids, (tokens,), of the smallest type that holds the vocabulary; may be a view of a cached file."""
    tokeniser: Tokeniser
    """Tokeniser with the vocabulary of the file, or the one that was given."""
    unknown: str = ""
    """Description of the words that are not in the given vocabulary."""


def checksum_of(ids: Ids) -> str:
    """Checksum of ids and their type."""
    digest = hashlib.blake2b(ids.dtype.name.encode(), digest_size=16)
    digest.update(ids.data)
    return digest.hexdigest()


def encode_file(
    name: str,
    path: Path,
    *,
    unit: Unit,
    words: int | None = None,
    rules: dict[str, Any] | None = None,
    tokeniser: Tokeniser | None = None,
) -> Encoded:
    """Encode a file as ids, or read them from the cache if the same content was encoded by the same rules before.

    Args:
        name: option that named the file, for messages.
        path: file.
        unit: char, word or byte.
        words: for unit word: vocabulary size; None for all words.
        rules: options of the tokeniser that is made from the file.
        tokeniser: tokeniser to encode with; None to make one from the file.
    """
    try:
        content = checksum(path)
        vocabulary = None if tokeniser is None else tokeniser.checksum
        key = json.dumps([_FORMAT, content, unit, words, rules or {}, vocabulary]).encode()
        target = cache_folder() / "text" / f"{hashlib.blake2b(key, digest_size=12).hexdigest()}.npy"
        cached = _read_cache(target, tokeniser)
        if cached is not None:
            return cached
        with progress(2 * path.stat().st_size) as advance:
            encoded = _Source(name, path, unit, words, rules or {}, tokeniser).encode(content, advance)
    except OSError as error:
        raise ValueError(f"{name}: {path} cannot be read: {error.strerror or error}") from None
    try:
        _write_cache(target, encoded)
    except OSError as error:
        say(f"{target.parent} cannot be written to ({error.strerror or error}): {path} is encoded in memory")
    return encoded


def _write_cache(target: Path, encoded: Encoded) -> None:
    """Write the ids, then their description; processes that do so at the same time write the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, lambda file: np.save(file, encoded.ids))
    about = {
        "checksum": checksum_of(encoded.ids),
        "tokeniser": encoded.tokeniser.to_json(),
        "unknown": encoded.unknown,
    }
    write_atomically(target.with_suffix(".json"), json.dumps(about).encode())


def _read_cache(target: Path, tokeniser: Tokeniser | None) -> Encoded | None:
    """Read what was encoded before; None if there is nothing, or it is damaged."""
    try:
        about = json.loads(target.with_suffix(".json").read_text())
        ids = np.load(target, mmap_mode="c")  # copy-on-write, as torch expects writable arrays
        if checksum_of(ids) != about["checksum"]:
            return None
        return Encoded(ids, tokeniser or Tokeniser.from_json(about["tokeniser"]), about["unknown"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class _Source:
    """A text file, and how it is to be encoded."""

    name: str
    path: Path
    unit: Unit
    words: int | None
    rules: dict[str, Any]
    tokeniser: Tokeniser | None

    def encode(self, checksum: str, advance: Advance) -> Encoded:
        """Encode the file in pieces; raises if its content is no longer that of the checksum."""
        tokeniser = self.tokeniser or self._vocabulary(advance)
        classes = tokeniser.classes
        dtype = np.dtype(np.uint8 if classes <= 1 << 8 else np.uint16 if classes <= 1 << 16 else np.int32)
        digest, content, unknown = hashlib.sha256(), bytearray(), Unknown(tokeniser)
        if self.unit == "byte":
            for piece in self._bytes(advance, digest):
                content += piece
        else:
            for text, line, column in self._texts(advance, digest):
                ids = tokeniser.lookup(self._strip(text))
                if ids.min(initial=0) < 0:
                    if self.tokeniser is not None:  # of the file's own words, rare ones are unknown by intent
                        unknown.add(text, self._ids_in_place(text), line, column)
                    ids = np.where(ids < 0, tokeniser.unknown_id or 0, ids)
                content += ids.astype(dtype).tobytes()
        if digest.hexdigest() != checksum:
            raise ValueError(f"{self.name}: {self.path} changed while it was read")
        if unknown.seen and tokeniser.unknown_id is None:
            raise ValueError(f"{self.name}: {self.path} {unknown}")
        return Encoded(np.frombuffer(content, dtype), tokeniser, str(unknown) if unknown.seen else "")

    def _ids_in_place(self, text: str) -> Ids:
        """The ids of a text whose lines are not stripped, where white space at their ends counts as known."""
        assert self.tokeniser is not None
        ids = self.tokeniser.lookup(text)
        if self._strips:
            for blank in _AT_LINE_ENDS.finditer(text):
                ids[slice(*blank.span())] = 0
        return ids

    def _vocabulary(self, advance: Advance) -> Tokeniser:
        """Make the tokeniser from the file."""
        if self.unit == "byte":
            return Tokeniser("byte")
        if self.unit == "char":
            seen, space = np.zeros(0x110000, bool), self.rules.get("space")
            for piece, _, _ in self._texts(advance):
                text = self._strip(piece)
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
        frequent = [word for word in by_count if word not in (END, UNKNOWN)][: self.words - 2]
        return [END, UNKNOWN, *frequent]

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
        rest = ""
        for piece in itertools.chain(self._bytes(advance, digest), [b""]):
            try:
                text = decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                before = rest + error.object[: error.start].decode("utf-8", "replace")
                raise self._not_text(f"byte {error.object[error.start]:#04x}", before, line, column) from None
            if "\0" in text:
                raise self._not_text("a zero byte", rest + text[: text.index("\0")], line, column)
            text = rest + text
            cut = self._cut(text) if piece else len(text)
            text, rest = text[:cut], text[cut:]
            if len(rest) > _LONGEST and self.unit != "char":
                raise ValueError(
                    f"{self.name}: {self.path} is no text of words: line {line} has {len(rest)} characters without a "
                    "space; text-byte reads any file"
                )
            if text:
                yield text, line, column
                line, column = advanced(text, line, column)

    def _cut(self, text: str) -> int:
        """Where a piece may end."""
        if self._strips:
            return text.rfind("\n") + 1
        if self.unit == "char" or not text or text[-1].isspace():
            return len(text)
        return len(text) - len(text.rsplit(None, 1)[-1])

    @property
    def _strips(self) -> bool:
        return bool(self.rules.get("strip_lines")) if self.tokeniser is None else self.tokeniser.strip_lines

    def _strip(self, text: str) -> str:
        """Strip white space at both ends of each line of a piece, if the rules ask for it."""
        return "\n".join(line.strip() for line in text.split("\n")) if self._strips else text

    def _not_text(self, what: str, before: str, line: int, column: int) -> ValueError:
        line, column = advanced(before, line, column)
        return ValueError(
            f"{self.name}: {self.path} is not UTF-8 text: {what} at line {line}, column {column}; text-byte reads any "
            "file"
        )
