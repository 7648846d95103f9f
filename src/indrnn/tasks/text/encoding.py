"""Text files as arrays of token ids: encoded in pieces, and cached as one array beside its checksum."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
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
from ...system import note

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazy("numpy")

_PIECE = 1 << 22  # bytes that are decoded at once, at least
_FORMAT = 2  # of the cached files
_AT_LINE_ENDS = re.compile(r"^[^\S\n]+|[^\S\n]+$", re.MULTILINE)

Piece = tuple[str, int, int]
"""Piece of a text, and the line and column at which it begins."""


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

    Without a `tokeniser` one is made from the file, with these `rules` and at most so many `words`. `name` is the
    option that named the file, for messages.
    """
    try:
        identity = checksum(path)
        vocabulary = None if tokeniser is None else tokeniser.checksum
        key = json.dumps([_FORMAT, identity, unit, words, rules or {}, vocabulary])
        target = cache_folder() / "text" / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.npy"
        cached = _read_cache(target, tokeniser)
        if cached is not None:
            return cached
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ValueError(f"{name}: {path} cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(content.data).hexdigest() != identity:
        raise ValueError(f"{name}: {path} changed while it was read")
    encoded = _encode(f"{name}: {path}", content, unit, words, rules or {}, tokeniser)
    description: dict[str, Any] = {"tokeniser": encoded.tokeniser.to_json(), "unknown": encoded.unknown}
    description["checksum"] = checksum_of(encoded.ids)
    try:  # processes that do so at the same time write the same
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, lambda file: np.save(file, encoded.ids))
        write_atomically(target.with_suffix(".json"), json.dumps(description).encode())
    except OSError as error:
        note(f"{target.parent} cannot be written to ({error.strerror or error}): {path} is encoded in memory")
    return encoded


def _read_cache(target: Path, tokeniser: Tokeniser | None) -> Encoded | None:
    """Read what was encoded before; None if there is nothing, or it is damaged."""
    try:
        description = json.loads(target.with_suffix(".json").read_text())
        ids = np.load(target, mmap_mode="c")  # copy-on-write, as torch expects writable arrays
        if checksum_of(ids) != description["checksum"]:
            return None
        return Encoded(ids, tokeniser or Tokeniser.from_json(description["tokeniser"]), description["unknown"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


def _encode(
    where: str, content: Ids, unit: Unit, words: int | None, rules: dict[str, Any], vocabulary: Tokeniser | None
) -> Encoded:
    """The bytes of a file as ids, by the given vocabulary or its own; `where` begins messages."""
    if unit == "byte":
        return Encoded(content, vocabulary or Tokeniser("byte"))
    strips = bool(rules.get("strip_lines")) if vocabulary is None else vocabulary.strip_lines
    with progress(len(content) * (2 if vocabulary is None else 1)) as advance:
        pieces = partial(_pieces, where, content, strips, advance)
        tokeniser = vocabulary or _tokeniser(where, pieces(), unit, words, rules)
        classes = tokeniser.classes
        dtype = np.dtype(np.uint8 if classes <= 1 << 8 else np.uint16 if classes <= 1 << 16 else np.int32)
        encoded, unknown = bytearray(), Unknown(tokeniser)
        for text, line, column in pieces():
            ids = tokeniser.lookup(_stripped(text) if strips else text)
            if ids.min(initial=0) < 0:
                if vocabulary is not None:  # of the file's own words, rare ones are unknown by intent
                    in_place = tokeniser.lookup(text)
                    for blank in _AT_LINE_ENDS.finditer(text) if strips else ():
                        in_place[slice(*blank.span())] = 0
                    unknown.add(text, in_place, line, column)
                ids = np.where(ids < 0, tokeniser.unknown_id or 0, ids)
            encoded += ids.astype(dtype).tobytes()
    if unknown.seen and tokeniser.unknown_id is None:
        raise ValueError(f"{where} {unknown}")
    return Encoded(np.frombuffer(encoded, dtype), tokeniser, str(unknown) if unknown.seen else "")


def _tokeniser(where: str, pieces: Iterable[Piece], unit: Unit, words: int | None, rules: dict[str, Any]) -> Tokeniser:
    """The tokeniser with a file's own vocabulary."""
    if unit == "char":
        seen, space = np.zeros(0x110000, bool), rules.get("space") or " "
        for piece, _, _ in pieces:
            text = _stripped(piece) if rules.get("strip_lines") else piece
            seen[code_points(text.replace(" ", space))] = True
        tokens = [chr(code) for code in np.flatnonzero(seen)]
    else:
        counts: Counter[str] = Counter()
        for text, _, _ in pieces:
            counts.update(split_words(text))
        tokens = sorted(counts, key=lambda word: (-counts[word], word))
        if words is not None and len(tokens) > words:
            tokens = [END, UNKNOWN, *[word for word in tokens if word not in (END, UNKNOWN)][: words - 2]]
    if len(tokens) < 2:
        counted = f"{len(tokens)}, {tokens[0][:SHOWN]!r}" if tokens else "0"
        raise ValueError(f"{where} must have at least 2 different {NAMES[unit]}s to learn from, got {counted}")
    return Tokeniser(unit, tuple(tokens), **rules)


def _pieces(where: str, content: Ids, lines: bool, advance: Callable[[int], None]) -> Iterator[Piece]:
    """Pieces of a file of UTF-8 that end at white space, or at the end of a line."""
    separator = re.compile(rb"\n" if lines else rb"\s")
    start, line, column = 0, 1, 1
    while start < len(content):
        match = separator.search(content.data, start + _PIECE)
        end = match.end() if match else len(content)
        piece = content[start:end].tobytes()
        piece = piece if start else piece.removeprefix(codecs.BOM_UTF8)
        problem, at = "a zero byte", piece.find(b"\0")
        try:
            text = piece.decode()
        except UnicodeDecodeError as error:
            problem, at = f"byte {piece[error.start]:#04x}", error.start
        if at >= 0:
            line, column = advanced(piece[:at].decode("utf-8", "replace"), line, column)
            place = f"line {line}, column {column}"
            raise ValueError(f"{where} is not UTF-8 text: {problem} at {place}; text-byte reads any file")
        yield text, line, column
        advance(end - start)
        start, (line, column) = end, advanced(text, line, column)


def _stripped(text: str) -> str:
    """A text without white space at both ends of its lines."""
    return "\n".join(line.strip() for line in text.split("\n"))
