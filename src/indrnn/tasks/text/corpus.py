"""Corpora: text files or the Penn Treebank as token ids, encoded in pieces and cached, with their tokeniser."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._lazy import Lazy
from ...checks import check_count
from ...files import VARIABLE, cache_folder, checksum, data_folder, progress, write_atomically
from ...networks import tokeniser as tokenisers
from ...networks.tokeniser import END, NAMES, UNKNOWN, Ids, Tokeniser, Unit
from ...system import note

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazy("numpy")

_PIECE = 1 << 22  # bytes that are decoded at once, at least
_FORMAT = 2  # of the cached files
_AT_LINE_ENDS = re.compile(r"^[^\S\n]+|[^\S\n]+$", re.MULTILINE)

Place = str | Path
Piece = tuple[str, str, int, int]
"""Piece of a text, perhaps with stripped lines; as it is in the file; and the line and column at which it begins."""


@dataclass(frozen=True)
class Split:
    """One of the three parts of a corpus."""

    ids: Ids
    """Token ids, (tokens,), of the smallest type that holds the vocabulary; may be a view of a file."""

    @cached_property
    def checksum(self) -> str:
        """Checksum of the ids."""
        return checksum_of(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Corpus:
    """Token ids for training, validation and test, and their tokeniser."""

    train: Split
    validation: Split
    test: Split
    tokeniser: Tokeniser


def read_text(
    text: Place, valid: Place | None = None, test: Place | None = None, *, unit: Unit = "char", words: int | None = None
) -> Corpus:
    """Read a corpus from files of UTF-8 text, or of any bytes for unit byte.

    A part without a file of its own is held out from the end of `text`: a tenth for each. The vocabulary is that of
    `text`, including held-out parts. Tokens of other files not in it are an error, or read as `<unk>` if it has that.
    `words` is the size of a vocabulary of words, with `<unk>` for all but the most frequent ones; None for all words.
    """
    if words is not None:
        check_count("words", words, 3)
    files = {name: Path(path) for name, path in (("text", text), ("valid", valid), ("test", test)) if path is not None}
    for name, path in files.items():
        try:
            if not path.exists():
                raise FileNotFoundError(f"{name} must be a file, and there is none at {path}")
            if path.is_file():
                problem = None if path.stat().st_size else "is empty"
            else:
                problem = "is a folder" if path.is_dir() else "is a pipe or a device"
        except PermissionError as error:
            raise ValueError(f"{name}: {path} cannot be read: {error.strerror or error}") from None
        if problem:
            raise ValueError(f"{name} must be a file that holds a text, and {path} {problem}")
    main = encode_file("text", files.pop("text"), unit=unit, words=words)
    held_out = [name for name in ("valid", "test") if name not in files]
    tenth = len(main.ids) // 10
    if held_out and tenth < 2:
        size = f"{len(main.ids)} {NAMES[unit]}s"
        raise ValueError(f"text: {text} is too short to hold out tenths of it: it has {size}, and 20 are the least")
    rest = len(main.ids) - tenth * len(held_out)
    parts = {name: main.ids[rest + number * tenth :][:tenth] for number, name in enumerate(held_out)}
    for name, path in files.items():
        other = encode_file(name, path, unit=unit, tokeniser=main.tokeniser)
        parts[name] = other.ids
        if other.unknown:
            note(f"{path} {other.unknown}; they are read as {UNKNOWN}")
    return Corpus(Split(main.ids[:rest]), Split(parts["valid"]), Split(parts["test"]), main.tokeniser)


PENN_FILES = {"train": "ptb.train.txt", "validation": "ptb.valid.txt", "test": "ptb.test.txt"}
PENN_COUNTS = {"char": (5_017_482, 393_042, 442_423), "word": (929_589, 73_760, 82_430)}
"""Number of tokens in each of the three parts, newlines or `<eos>` included."""
PENN_CLASSES = {"char": 50, "word": 10_000}
"""Size of the vocabulary."""


def read_penn_treebank(unit: Unit = "char", data_dir: Place | None = None) -> Corpus:
    """Read the Penn Treebank with Mikolov's preprocessing, by word or by character, and check its known counts.

    It is licensed by the Linguistic Data Consortium and never downloaded: users provide their copy. Words have `<eos>`
    at line ends. Characters are as in the published character files: lines are stripped, spaces are `_`, and newlines
    are characters. `data_dir` holds the three files, directly or in a subfolder `ptb`; None for INDRNN_DATA or, without
    that, the user's cache.
    """
    if unit not in PENN_COUNTS:
        raise ValueError(f"unit must be char or word for the Penn Treebank, got {unit!r}")
    paths = penn_paths(data_dir)
    rules: dict[str, Any] = {"space": "_", "strip_lines": True} if unit == "char" else {}
    train = encode_file("data_dir", paths["train"], unit=unit, rules=rules)
    parts = {}
    for (part, path), expected in zip(paths.items(), PENN_COUNTS[unit], strict=True):
        published = f"{path} is not the Penn Treebank as published (Mikolov's preprocessing): it"
        classes, name = train.tokeniser.classes, NAMES[unit]
        if classes != PENN_CLASSES[unit]:
            raise ValueError(f"{published} must have {PENN_CLASSES[unit]:,} different {name}s, got {classes:,}")
        encoded = train if part == "train" else encode_file("data_dir", path, unit=unit, tokeniser=train.tokeniser)
        if encoded.unknown:
            raise ValueError(f"{published} {encoded.unknown}")
        if len(encoded.ids) != expected:
            raise ValueError(f"{published} must have {expected:,} {name}s, got {len(encoded.ids):,}")
        parts[part] = Split(encoded.ids)
    return Corpus(**parts, tokeniser=train.tokeniser)


def penn_paths(data_dir: Place | None) -> dict[str, Path]:
    """The file of each part of the Penn Treebank; raises if one is missing."""
    folder, paths = data_folder(None if data_dir is None else Path(data_dir)), {}
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"data_dir must be a folder, and {folder} is a file")
        for part, name in PENN_FILES.items():
            place = next((place for place in (folder / "ptb", folder) if (place / name).is_file()), None)
            if place is None:
                raise FileNotFoundError(
                    f"Penn Treebank: {name} is neither in {folder / 'ptb'} nor in {folder}. It is licensed (LDC) and "
                    f"never downloaded: put your copy of {', '.join(PENN_FILES.values())} (Mikolov's preprocessing) "
                    f"there, or point --data-dir or {VARIABLE} at a folder that holds them"
                )
            paths[part] = place / name
    except PermissionError as error:
        raise ValueError(f"data_dir: cannot look into {folder} ({error.strerror or error})") from None
    return paths


class Encoded(NamedTuple):
    """An encoded file: ids as of a `Split`, their tokeniser, and a description of what a given vocabulary lacks."""

    ids: Ids
    tokeniser: Tokeniser
    unknown: str = ""


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
        if (cached := _read_cache(target, tokeniser)) is not None:
            return cached
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ValueError(f"{name}: {path} cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(content.data).hexdigest() != identity:
        raise ValueError(f"{name}: {path} changed while it was read")
    encoded = _encode(f"{name}: {path}", content, unit, words, rules or {}, tokeniser)
    description = {"tokeniser": encoded.tokeniser.to_json(), "unknown": encoded.unknown}
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
        encoded, unknown = bytearray(), tokenisers.Unknown(tokeniser)
        for text, in_file, line, column in pieces():
            ids = tokeniser.lookup(text)
            if ids.min(initial=0) < 0:
                if vocabulary is not None:  # of the file's own words, rare ones are unknown by intent
                    in_place = tokeniser.lookup(in_file)
                    for blank in _AT_LINE_ENDS.finditer(in_file) if strips else ():
                        in_place[slice(*blank.span())] = 0
                    unknown.add(in_file, in_place, line, column)
                ids = np.where(ids < 0, tokeniser.unknown_id or 0, ids)
            encoded += ids.astype(dtype).tobytes()
    if unknown.seen and tokeniser.unknown_id is None:
        raise ValueError(f"{where} {unknown}")
    return Encoded(np.frombuffer(encoded, dtype), tokeniser, str(unknown) if unknown.seen else "")


def _tokeniser(where: str, pieces: Iterable[Piece], unit: Unit, words: int | None, rules: dict[str, Any]) -> Tokeniser:
    if unit == "char":
        seen, space = np.zeros(0x110000, bool), rules.get("space") or " "
        for text, *_ in pieces:
            seen[tokenisers.code_points(text.replace(" ", space))] = True
        tokens = [chr(code) for code in np.flatnonzero(seen)]
    else:
        counts: Counter[str] = Counter()
        for text, *_ in pieces:
            counts.update(tokenisers.split_words(text))
        tokens = sorted(counts, key=lambda word: (-counts[word], word))
        if words is not None and len(tokens) > words:
            tokens = [END, UNKNOWN, *[word for word in tokens if word not in (END, UNKNOWN)][: words - 2]]
    if len(tokens) < 2:
        counted = f"{len(tokens)}, {tokens[0][: tokenisers.SHOWN]!r}" if tokens else "0"
        raise ValueError(f"{where} must have at least 2 different {NAMES[unit]}s to learn from, got {counted}")
    return Tokeniser(unit, tuple(tokens), **rules)


def _pieces(where: str, content: Ids, strips: bool, advance: Callable[[int], None]) -> Iterator[Piece]:
    """Pieces of a file of UTF-8 that end at white space; at the end of a line if lines are stripped."""
    separator = re.compile(rb"\n" if strips else rb"\s")
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
            line, column = tokenisers.advanced(piece[:at].decode("utf-8", "replace"), line, column)
            place = f"line {line}, column {column}"
            raise ValueError(f"{where} is not UTF-8 text: {problem} at {place}; text-byte reads any file")
        yield "\n".join(map(str.strip, text.split("\n"))) if strips else text, text, line, column
        advance(end - start)
        start, (line, column) = end, tokenisers.advanced(text, line, column)
