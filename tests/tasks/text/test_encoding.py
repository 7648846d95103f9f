"""Files as token ids: in pieces as at once, kept once, and what is wrong with a file said before any work."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from indrnn.networks.tokeniser import Tokeniser, Unit
from indrnn.tasks.text import corpus as module
from indrnn.tasks.text.corpus import Encoded, encode_file

TEXT = "To be, or not\nto be:\r\n\n  that is \tthe quéstion 🙂\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "indrnn" / "text"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.txt"
    path.write_bytes(TEXT.encode())
    return path


def encoded(path: Path, unit: Unit = "char", **options: object) -> Encoded:
    return encode_file("text", path, unit=unit, **options)  # type: ignore[arg-type]


units = pytest.mark.parametrize("unit", ["char", "word", "byte"])


# ---- what the ids are


def test_characters(file: Path) -> None:
    found = encoded(file)
    assert found.tokeniser.tokens == tuple(sorted(set(TEXT)))
    assert "".join(found.tokeniser.tokens[i] for i in found.ids) == TEXT
    assert found.ids.dtype == np.uint8


def test_words(file: Path) -> None:
    found = encoded(file, "word")
    words = [word for line in TEXT.split("\n")[:-1] for word in [*line.split(), "<eos>"]]
    assert [found.tokeniser.tokens[i] for i in found.ids] == words
    counts = Counter(words)
    assert [counts[token] for token in found.tokeniser.tokens] == sorted(counts.values(), reverse=True)


def test_bytes(file: Path) -> None:
    found = encoded(file, "byte")
    assert found.ids.tobytes() == TEXT.encode()
    assert found.tokeniser.classes == 256


def test_rare_words_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a a a b b b c c d\n")
    found = encoded(path, "word", words=4)
    assert found.tokeniser.tokens == ("<eos>", "<unk>", "a", "b")
    assert found.ids.tolist() == [2, 2, 2, 3, 3, 3, 1, 1, 1, 0]
    assert encoded(path, "word", words=5).tokeniser.classes == 5
    assert "<unk>" not in encoded(path, "word", words=5).tokeniser.tokens  # all five fit


def test_a_text_that_has_unk_keeps_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a <unk> a b c\n<unk> d e")
    found = encoded(path, "word", words=3)
    assert sorted(found.tokeniser.tokens) == ["<eos>", "<unk>", "a"]
    assert found.tokeniser.decode(found.ids) == "a <unk> a <unk> <unk>\n<unk> <unk> <unk>"


@pytest.mark.parametrize(
    ("classes", "dtype"), [(256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.int32)]
)
def test_the_smallest_type_that_holds_them(classes: int, dtype: type, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(" ".join(map(str, range(classes))))
    found = encoded(path, "word")
    assert found.ids.dtype == dtype
    assert [found.tokeniser.tokens[i] for i in found.ids] == [str(i) for i in range(classes)]


@units
@pytest.mark.parametrize("piece", [1, 2, 3, 7])
def test_pieces_make_no_difference(
    unit: Unit, piece: int, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a byte, even: characters of four, words and line ends are cut by them."""
    whole = encoded(file, unit)
    for path in cache.rglob("*"):
        path.unlink() if path.is_file() else None
    monkeypatch.setattr(module, "_PIECE", piece)
    again = encoded(file, unit)
    assert again.tokeniser == whole.tokeniser
    assert np.array_equal(again.ids, whole.ids)


def test_stripped_lines_with_another_space_in_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 3)
    found = encoded(file, rules={"space": "_", "strip_lines": True})
    expected = "\n".join(line.strip().replace(" ", "_") for line in TEXT.split("\n"))
    assert "".join(found.tokeniser.tokens[i] for i in found.ids) == expected


def test_a_mark_of_byte_order_is_no_character(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfab")
    assert encoded(path).tokeniser.tokens == ("a", "b")


# ---- another file's vocabulary


def test_the_vocabulary_of_another_file(file: Path, tmp_path: Path) -> None:
    first = encoded(file)
    other = tmp_path / "other"
    other.write_text("to be")
    found = encoded(other, tokeniser=first.tokeniser)
    assert found.tokeniser is first.tokeniser
    assert first.tokeniser.decode(found.ids) == "to be"


@pytest.mark.parametrize("piece", [2, 1 << 20])
def test_unknown_characters_are_named_and_counted(
    piece: int, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE", piece)
    first = encoded(file)
    other = tmp_path / "other"
    other.write_text("to\nbe Xor\nXY")
    with pytest.raises(ValueError, match="the vocabulary does not have") as error:
        encode_file("valid", other, unit="char", tokeniser=first.tokeniser)
    for part in ("valid: ", str(other), "'X' at line 2, column 4 (2 times)", "'Y' at line 3, column 2", "3 in all"):
        assert part in str(error.value)


def test_an_unknown_character_is_where_it_is_in_the_file_whose_lines_are_stripped(tmp_path: Path) -> None:
    train, other, rules = tmp_path / "train", tmp_path / "other", {"space": "_", "strip_lines": True}
    train.write_text(" aer bank \n no er \n")
    other.write_text(" aer \n  aer bXnk Y\t\n")
    with pytest.raises(ValueError, match=r"'X' at line 2, column 8, 'Y' at line 2, column 12; 2 in all"):
        encoded(other, tokeniser=encoded(train, rules=rules).tokeniser)


def test_a_single_long_word_is_not_shown_whole(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_text("a" * 90_000)
    with pytest.raises(ValueError, match="at least 2 different words") as error:
        encoded(path, "word")
    assert len(str(error.value)) < 1000


def test_unknown_words_are_unk_where_there_is_one(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("to be\nor or not")
    closed, open_ = Tokeniser("word", ("<eos>", "to")), Tokeniser("word", ("<eos>", "to", "<unk>"))
    with pytest.raises(ValueError, match=r"'be' at line 1, column 4, 'or' at line 2, column 1 \(2 times\).*4 in all"):
        encoded(other, "word", tokeniser=closed)
    for _ in range(2):  # the second time from the cache
        found = encoded(other, "word", tokeniser=open_)
        assert found.ids.tolist() == [1, 2, 0, 2, 2, 2]
        assert "4 in all" in found.unknown


# ---- the cache


@units
def test_it_is_encoded_once(unit: Unit, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = encoded(file, unit)
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".npy"]
    monkeypatch.setattr(module, "_encode", None)
    again = encoded(file, unit)
    assert again.tokeniser == first.tokeniser
    assert np.array_equal(again.ids, first.ids)
    moved = file.rename(file.with_name("moved"))  # the content counts
    assert np.array_equal(encoded(moved, unit).ids, first.ids)


def test_a_file_that_changed_is_encoded_anew(file: Path) -> None:
    first = encoded(file)
    stat = file.stat()
    file.write_bytes(TEXT.replace("be", "eb").encode())  # of the same size
    assert file.stat().st_size == stat.st_size
    second = encoded(file)
    assert second.tokeniser.decode(second.ids) == TEXT.replace("be", "eb")
    assert first.tokeniser.decode(first.ids) == TEXT


def test_other_options_are_kept_beside_it(file: Path, cache: Path) -> None:
    for options in ({}, {"words": 5}, {"words": 6}):
        encoded(file, "word", **options)
    assert len(list(cache.glob("*.npy"))) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "no ids", "empty", "no json", "bad json", "other json"])
def test_a_damaged_cache_is_made_anew(damage: str, file: Path, cache: Path) -> None:
    first = encoded(file)
    ids, about = next(cache.glob("*.npy")), next(cache.glob("*.json"))
    content = ids.read_bytes()
    if damage == "cut":
        ids.write_bytes(content[:-1])
    elif damage == "flipped":
        ids.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "no ids":
        ids.unlink()
    elif damage == "empty":
        ids.write_bytes(b"")
    elif damage == "no json":
        about.unlink()
    elif damage == "bad json":
        about.write_text("{")
    else:
        about.write_text(json.dumps(json.loads(about.read_text()) | {"checksum": "0"}))
    again = encoded(file)
    assert again.tokeniser == first.tokeniser
    assert again.tokeniser.decode(again.ids) == TEXT
    assert ids.read_bytes() == content


def test_what_a_killed_process_left_is_not_read(file: Path, cache: Path) -> None:
    encoded(file)
    ids = next(cache.glob("*.npy"))
    ids.rename(ids.with_name(f".{ids.name}.12345.tmp")).write_bytes(b"half")
    again = encoded(file)
    assert again.tokeniser.decode(again.ids) == TEXT
    assert ids.exists()


def test_without_a_cache_it_is_encoded_in_memory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closed").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "closed"))
    found = encoded(file)
    assert found.tokeniser.decode(found.ids) == TEXT
    assert found.ids.flags.writeable  # as torch wants it
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is encoded in memory" in said


def test_processes_may_encode_it_at_the_same_time(file: Path, cache: Path) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        texts = list(pool.map(text_of, 4 * [file]))
    assert texts == 4 * [TEXT]
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".npy"]


def text_of(path: Path) -> str:
    content = encoded(path)
    return content.tokeniser.decode(content.ids)


# ---- files that cannot be


@pytest.mark.parametrize(
    ("content", "unit", "parts"),
    [
        (b"ab\nc\xff", "char", ["not UTF-8 text", "byte 0xff at line 2, column 2", "text-byte"]),
        (b"ab \xe2\x82", "word", ["not UTF-8 text", "byte 0xe2 at line 1, column 4"]),
        (b"ab\0c", "word", ["not UTF-8 text", "a zero byte at line 1, column 3"]),
        (b"aaaa", "char", ["at least 2 different characters", "got 1, 'a'"]),
        (b"\n\n\n", "word", ["at least 2 different words", "got 1, '<eos>'"]),
    ],
    ids=["no utf-8", "cut", "zero byte", "one character", "one word"],
)
@pytest.mark.parametrize("piece", [2, 1 << 20])
def test_what_is_no_text(
    content: bytes,
    unit: Unit,
    parts: list[str],
    piece: int,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PIECE", piece)
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^text: ") as error:
        encoded(path, unit)
    assert "\n" not in str(error.value)
    for part in (str(path), *parts):
        assert part in str(error.value)
    assert not cache.exists()


def test_a_file_that_changes_while_it_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "checksum", lambda path: "0" * 64)
    with pytest.raises(ValueError, match="changed while it was read"):
        encoded(file)
