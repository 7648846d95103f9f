"""Corpora: text files or the Penn Treebank, as token ids for training, validation and test, with their tokeniser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...checks import check_count
from ...files import VARIABLE, data_folder
from ...networks.tokeniser import NAMES, UNKNOWN, Ids, Tokeniser, Unit
from ...system import note
from .encoding import checksum_of, encode_file


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


# ---- one's own text


def read_text(
    text: str | Path,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    *,
    unit: Unit = "char",
    words: int | None = None,
) -> Corpus:
    """Read a corpus from files of UTF-8 text, or of any bytes for unit byte.

    A part without a file of its own is held out from the end of `text`: a tenth for each. The vocabulary is that of
    `text`, including held-out parts. Tokens of other files not in it are an error, or read as `<unk>` if it has that.

    Args:
        text: training file.
        valid: validation file.
        test: test file.
        unit: char, word or byte.
        words: for unit word: vocabulary size, with `<unk>` for all but the most frequent words; None for all words.
    """
    if words is not None:
        check_count("words", words, 3)
    files = {name: Path(path) for name, path in (("text", text), ("valid", valid), ("test", test)) if path is not None}
    for name, path in files.items():
        _check_file(name, path)
    main = encode_file("text", files.pop("text"), unit=unit, words=words)
    held_out = [name for name in ("valid", "test") if name not in files]
    tenth = len(main.ids) // 10
    if held_out and tenth < 2:
        raise ValueError(
            f"text: {text} is too short to hold out tenths of it: it has {len(main.ids)} {NAMES[unit]}s, and 20 are "
            "the least"
        )
    rest = len(main.ids) - tenth * len(held_out)
    parts = {name: main.ids[rest + number * tenth :][:tenth] for number, name in enumerate(held_out)}
    for name, path in files.items():
        other = encode_file(name, path, unit=unit, tokeniser=main.tokeniser)
        parts[name] = other.ids
        if other.unknown:
            note(f"{path} {other.unknown}; they are read as {UNKNOWN}")
    return Corpus(Split(main.ids[:rest]), Split(parts["valid"]), Split(parts["test"]), main.tokeniser)


def _check_file(name: str, path: Path) -> None:
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


# ---- Penn Treebank

PENN_FILES = {"train": "ptb.train.txt", "validation": "ptb.valid.txt", "test": "ptb.test.txt"}
PENN_COUNTS = {"char": (5_017_482, 393_042, 442_423), "word": (929_589, 73_760, 82_430)}
"""Number of tokens in each of the three parts, newlines or `<eos>` included."""
PENN_CLASSES = {"char": 50, "word": 10_000}
"""Size of the vocabulary."""


def read_penn_treebank(unit: Unit = "char", data_dir: str | Path | None = None) -> Corpus:
    """Read the Penn Treebank with Mikolov's preprocessing, by word or by character, and check its known counts.

    It is licensed by the Linguistic Data Consortium and never downloaded: users provide their copy. Words have `<eos>`
    at line ends. Characters are as in the published character files: lines are stripped, spaces are `_`, and newlines
    are characters.

    Args:
        unit: char or word.
        data_dir: the folder that holds the three files, directly or in a subfolder `ptb`; None for INDRNN_DATA or,
            without that, the user's cache.
    """
    if unit not in PENN_COUNTS:
        raise ValueError(f"unit must be char or word for the Penn Treebank, got {unit!r}")
    paths = _penn_paths(data_dir)
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


def penn_is_here(data_dir: str | Path | None = None) -> bool:
    """Whether the three files of the Penn Treebank are there."""
    try:
        return bool(_penn_paths(data_dir))
    except (ValueError, FileNotFoundError):
        return False


def _penn_paths(data_dir: str | Path | None) -> dict[str, Path]:
    """The file of each part; raises if one is missing."""
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
