"""Corpora: one's own text, divided, and the Penn Treebank as published."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from indrnn.networks.tokeniser import Unit
from indrnn.tasks.text import corpus as module
from indrnn.tasks.text.corpus import PENN_FILES, read_penn_treebank, read_text


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- one's own


@pytest.mark.parametrize(
    ("given", "sizes"),
    [((), (81, 10, 10)), (("valid",), (91, 7, 10)), (("test",), (91, 10, 7)), (("valid", "test"), (101, 7, 7))],
    ids=["one file", "valid", "test", "three files"],
)
def test_a_tenth_is_kept_back_for_each_part_without_a_file(
    given: tuple[str, ...], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    letters = "".join(chr(97 + i % 26) for i in range(101))
    text = written(tmp_path / "text", letters)
    others = {name: written(tmp_path / name, "bcdefgh") for name in given}
    corpus = read_text(text, others.get("valid"), others.get("test"))
    parts = {"train": corpus.train, "valid": corpus.validation, "test": corpus.test}
    assert tuple(len(part) for part in parts.values()) == sizes
    found = {name: corpus.tokeniser.decode(part.ids) for name, part in parts.items()}
    assert "".join(found[name] for name in ("train", "valid", "test") if name not in given) == letters
    assert all(found[name] == "bcdefgh" for name in given)
    assert len({part.checksum for part in parts.values()}) == (3 if len(given) < 2 else 2)


def test_unknown_words_of_validation_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, valid = written(tmp_path / "text", "a b a b c d\n" * 9), written(tmp_path / "valid", "a x\nb")
    with pytest.raises(ValueError, match=r"valid: .*'x' at line 1, column 3"):
        read_text(text, valid, valid, unit="word")
    corpus = read_text(text, valid, valid, unit="word", words=4)
    assert corpus.tokeniser.decode(corpus.validation.ids) == "a <unk>\nb"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("'x' at line 1, column 3; 1 in all; they are read as <unk>" in line for line in said)


def test_names_of_files_may_be_texts_and_pipes_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ab" * 50)
    assert len(read_text(str(tmp_path / "text"), str(tmp_path / "text")).validation) == 100
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"valid must be a file that holds a text, and .*pipe is a pipe"):
        read_text(tmp_path / "text", tmp_path / "pipe")


@pytest.mark.parametrize("name", ["text", "valid", "test"])
@pytest.mark.parametrize("case", ["missing", "folder", "empty"])
def test_what_is_no_file_is_named(name: str, case: str, tmp_path: Path) -> None:
    files = {each: written(tmp_path / each, "ab" * 20) for each in ("text", "valid", "test")}
    files[name].unlink()
    if case == "folder":
        files[name].mkdir()
    elif case == "empty":
        files[name].touch()
    what = {"missing": "there is none", "folder": "is a folder", "empty": "is empty"}[case]
    with pytest.raises((ValueError, FileNotFoundError), match=f"{name} must be .*{what}") as error:
        read_text(files["text"], files["valid"], files["test"])
    assert str(files[name]) in str(error.value)


def test_a_text_too_short_to_divide(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too short to hold out tenths of it: it has 19 characters"):
        read_text(written(tmp_path / "text", "a" * 18 + "b"))


# ---- the Penn Treebank, made up


WORDS = " the cat <unk> N \n sat on a mat \n"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three files in its place, with their counts."""
    for name, times in zip(PENN_FILES.values(), (3, 2, 1), strict=True):
        written(tmp_path / "data" / "ptb" / name, WORDS * times)
    monkeypatch.setattr(module, "PENN_COUNTS", {"char": (87, 58, 29), "word": (30, 20, 10)})
    monkeypatch.setattr(module, "PENN_CLASSES", {"char": 16, "word": 9})
    return tmp_path / "data"


def test_words_of_the_penn_treebank(small: Path) -> None:
    corpus = read_penn_treebank("word", small)
    assert corpus.tokeniser.decode(corpus.test.ids) == "the cat <unk> N\nsat on a mat\n"
    assert corpus.tokeniser.classes == 9


def test_characters_of_the_penn_treebank(small: Path) -> None:
    corpus = read_penn_treebank("char", small)
    characters = "".join(corpus.tokeniser.tokens[i] for i in corpus.test.ids)
    assert characters == "the_cat_<unk>_N\nsat_on_a_mat\n"


@pytest.mark.parametrize("way", ["variable", "the folder itself"])
def test_where_it_is_looked_for(way: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "variable":
        monkeypatch.setenv("INDRNN_DATA", str(small))
        assert len(read_penn_treebank("word").train) == 30
    else:
        assert len(read_penn_treebank("word", small / "ptb").train) == 30


def test_what_is_missing_is_said_with_what_to_get_and_where_to_put_it(small: Path) -> None:
    (small / "ptb" / "ptb.test.txt").unlink()
    with pytest.raises(FileNotFoundError) as error:
        read_penn_treebank("word", small)
    said = str(error.value)
    for part in (*PENN_FILES.values(), str(small / "ptb"), "LDC", "never downloaded", "--data-dir", "INDRNN_DATA"):
        assert part in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ptb.train.txt", WORDS * 4, r"it must have 30 words, got 40"),
        ("ptb.valid.txt", WORDS, r"it must have 20 words, got 10"),
        ("ptb.test.txt", WORDS.replace("cat", "dog"), r"'dog' at line 1, column 6"),
        ("ptb.train.txt", WORDS.replace("cat", "dog") + WORDS * 2, r"it must have 9 different words, got 10"),
    ],
    ids=["too long", "too short", "another word", "more words"],
)
def test_what_is_not_as_published_is_refused(name: str, text: str, message: str, small: Path) -> None:
    written(small / "ptb" / name, text)
    with pytest.raises(ValueError, match="is not the Penn Treebank as published.*" + message) as error:
        read_penn_treebank("word", small)
    assert name in str(error.value)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data_dir must be a folder"):
        read_penn_treebank("char", written(tmp_path / "file", "x"))


def test_it_has_no_bytes(small: Path) -> None:
    with pytest.raises(ValueError, match="unit must be char or word"):
        read_penn_treebank("byte", small)


# ---- the real one


def real() -> Path | None:
    folder = Path(os.environ.get("INDRNN_DATA") or "nowhere")
    return folder if any((place / "ptb.train.txt").is_file() for place in (folder / "ptb", folder)) else None


@pytest.mark.skipif(real() is None, reason="INDRNN_DATA names no folder with the Penn Treebank in it")
@pytest.mark.parametrize(
    ("unit", "counts", "classes"),
    [("word", (929_589, 73_760, 82_430), 10_000), ("char", (5_017_482, 393_042, 442_423), 50)],
)
def test_the_penn_treebank(unit: Unit, counts: tuple[int, ...], classes: int) -> None:
    folder = real()
    assert folder is not None
    corpus = read_penn_treebank(unit, folder)
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == counts
    assert corpus.tokeniser.classes == classes
    assert corpus.train.ids.dtype == (np.uint16 if unit == "word" else np.uint8)
    place = folder / "ptb" if (folder / "ptb").is_dir() else folder
    lines = (place / "ptb.test.txt").read_text().splitlines()
    expected = "".join(" ".join(line.split()) + "\n" for line in lines)
    assert corpus.tokeniser.decode(corpus.test.ids) == expected


@pytest.mark.skipif(
    not (Path(os.environ.get("INDRNN_DATA") or "nowhere") / "text" / "tinyshakespeare.txt").is_file(),
    reason="INDRNN_DATA names no folder with text/tinyshakespeare.txt in it",
)
def test_tinyshakespeare() -> None:
    path = Path(os.environ["INDRNN_DATA"]) / "text" / "tinyshakespeare.txt"
    corpus = read_text(path)
    assert corpus.tokeniser.classes == 65
    assert len(corpus.train) + len(corpus.validation) + len(corpus.test) == 1_115_394
    whole = "".join(corpus.tokeniser.decode(part.ids) for part in (corpus.train, corpus.validation, corpus.test))
    assert whole == path.read_text()
