"""Text to token ids and back, and what is said of tokens that are unknown."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from indrnn.networks.tokeniser import Tokeniser

CHARS = Tokeniser("char", ("\n", " ", "T", "b", "e", "o", "é", "🙂"))
WORDS = Tokeniser("word", ("<eos>", "be", "not", "to"))
OPEN = Tokeniser("word", ("<eos>", "<unk>", "be"))
PENN = Tokeniser("char", ("\n", "_", "a", "b"), space="_", strip_lines=True)
BYTES = Tokeniser("byte")

all_of_them = pytest.mark.parametrize(
    "tokeniser", [CHARS, WORDS, OPEN, PENN, BYTES], ids=["char", "word", "unk", "penn", "byte"]
)


@pytest.mark.parametrize(
    ("tokeniser", "text", "ids"),
    [
        (CHARS, "To be\né🙂", [2, 5, 1, 3, 4, 0, 6, 7]),
        (CHARS, "", []),
        (WORDS, "to be\n\nnot  to\tbe", [3, 1, 0, 0, 2, 3, 1]),
        (WORDS, "\n", [0]),
        (OPEN, "be or\n", [2, 1, 0]),
        (PENN, " a b\n", [1, 2, 1, 3, 0]),
        (BYTES, "a\né", [97, 10, 195, 169]),
    ],
    ids=["characters", "nothing", "words", "a newline", "an unknown word", "penn", "bytes"],
)
def test_encode(tokeniser: Tokeniser, text: str, ids: list[int]) -> None:
    found = tokeniser.encode(text)
    assert found.dtype == torch.int64
    assert found.tolist() == ids


@pytest.mark.parametrize(
    ("tokeniser", "text"),
    [(CHARS, "To be\né🙂\n"), (WORDS, "to be\n\nnot to\n"), (WORDS, "\nto"), (PENN, "a b\n"), (BYTES, "naïve 🙂\0")],
    ids=["characters", "words", "a line first", "penn", "bytes"],
)
def test_decode_gives_back_what_was_encoded(tokeniser: Tokeniser, text: str) -> None:
    ids = tokeniser.encode(text)
    assert tokeniser.decode(ids) == text
    assert tokeniser.decode(ids.tolist()) == text
    assert tokeniser.decode(ids.numpy()) == text


def test_bytes_that_are_no_text() -> None:
    assert BYTES.decode([97, 255, 98]) == "a�b"


@all_of_them
def test_json_holds_all_of_it(tokeniser: Tokeniser) -> None:
    again = Tokeniser.from_json(tokeniser.to_json())
    assert again == tokeniser
    assert again.checksum == tokeniser.checksum
    assert again.classes == tokeniser.classes


def test_checksums_tell_vocabularies_and_rules_apart() -> None:
    others = [CHARS, WORDS, OPEN, PENN, BYTES, Tokeniser("char", ("<",)), Tokeniser("char", PENN.tokens)]
    assert len({each.checksum for each in others}) == len(others)


# ---- unknown tokens


@pytest.mark.parametrize(
    ("tokeniser", "text", "parts"),
    [
        (CHARS, "To\nbe x", ["a character", "'x' at line 2, column 4", "1 in all"]),
        (CHARS, "xTx\nyx", ["'x' at line 1, column 1 (3 times)", "'y' at line 2, column 1", "4 in all"]),
        (WORDS, "to be\n\n or not or\n", ["'or' at line 3, column 2 (2 times)", "2 in all"]),
        (Tokeniser("word", ("to", "be")), "to\nbe\n", ["'<eos>' at line 1, column 3 (2 times)"]),
        (CHARS, "qwrtzuio", ["'q' at line 1, column 1", "'z'", "and 2 more", "7 in all"]),
    ],
    ids=["one", "several", "words", "no end of lines", "many"],
)
def test_an_unknown_token_is_named_with_its_place(tokeniser: Tokeniser, text: str, parts: list[str]) -> None:
    with pytest.raises(ValueError, match="that the vocabulary does not have") as error:
        tokeniser.encode(text)
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("ids", [[4], [-1], [0, 99]], ids=str)
def test_ids_that_are_none(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="ids must lie in 0 to 3, got"):
        WORDS.decode(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "letter", "tokens": ("a",)}, "unit must be one of 'char', 'word', 'byte', got 'letter'"),
        ({"unit": "char"}, "tokens must be given"),
        ({"unit": "byte", "tokens": ("a",)}, "tokens must be given, unless unit is byte, got 1"),
        ({"unit": "char", "tokens": ("ab",)}, "single characters"),
        ({"unit": "word", "tokens": ("a", "a")}, "differ from each other"),
        ({"unit": "word", "tokens": ("a", "")}, "not empty"),
        ({"unit": "word", "tokens": ("a",), "space": "_"}, "for unit char, got unit word"),
        ({"unit": "char", "tokens": ("a",), "space": "__"}, "space must be a single character"),
    ],
    ids=["unit", "no tokens", "bytes with tokens", "long", "twice", "empty", "space of words", "two spaces"],
)
def test_what_is_no_tokeniser(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokeniser(**options)


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"unit": "char"}', '{"unit": "byte", "code": "1"}'],
    ids=["empty", "list", "no tokens", "more"],
)
def test_json_that_holds_none(content: str) -> None:
    with pytest.raises(ValueError, match="a tokeniser must be JSON with unit and tokens"):
        Tokeniser.from_json(content)


def test_only_text_is_encoded() -> None:
    with pytest.raises(TypeError, match="text must be a str, got bytes"):
        CHARS.encode(b"To")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokeniser", "text"),
    [
        (Tokeniser("char", ("a", "_", "\n"), space="_"), "a a\n\na"),
        (Tokeniser("word", ("a", "b", "<eos>")), "a b\n\nb a\nb"),
        (Tokeniser("byte"), "aé€😀\n"),
    ],
    ids=["char", "word", "byte"],
)
def test_pieces_come_with_their_tokens(tokeniser: Tokeniser, text: str) -> None:
    ids = tokeniser.encode(text).tolist()
    pieces = list(tokeniser.decode_each(iter(ids)))
    assert "".join(pieces) == text
    assert len(pieces) == len(ids) + 1
    shown = ["".join(pieces[: count + 1]) for count in range(len(ids))]
    assert shown == [tokeniser.decode(ids[: count + 1]).rstrip("�") for count in range(len(ids))]


def test_the_last_bytes_of_a_character_that_is_cut_off() -> None:
    assert list(Tokeniser("byte").decode_each("€".encode()[:2])) == ["", "", "�"]
