"""`Tokeniser`: text to token ids and back, by character, word or byte; saved as JSON."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from .._lazy import Lazy
from ..checks import check_choice

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
else:  # options name units
    np, torch = Lazy("numpy"), Lazy("torch")

Unit = Literal["char", "word", "byte"]
END, UNKNOWN = "<eos>", "<unk>"
"""Words that stand at the end of a line, and for words that the vocabulary does not have."""
NAMES = {"char": "character", "word": "word", "byte": "byte"}
_NAMED = 5  # unknown tokens that an error names
SHOWN = 40  # characters of each

Ids: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Tokeniser:
    """Text to token ids and back.

    - `char`: a token for each character, including newlines.
    - `word`: a token for each word between white space; a newline is the token `<eos>`. A word that is not in the
      vocabulary becomes `<unk>`, if there is such a token.
    - `byte`: the bytes of UTF-8, all 256.

    Example:
        tokeniser = indrnn.load("runs/text-char").tokeniser
        tokeniser.decode(tokeniser.encode("To be"))
    """

    unit: Unit
    """Type of token: char, word or byte."""
    tokens: tuple[str, ...] = ()
    """Vocabulary: token i stands for number i; empty for bytes."""
    space: str | None = None
    """Character that stands for a space, as `_` in the Penn Treebank; None for a space itself. For unit char."""
    strip_lines: bool = False
    """Stripping of white space at both ends of a file's lines, for unit char. `encode` keeps it, for a prompt."""

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, get_args(Unit))
        object.__setattr__(self, "tokens", tuple(self.tokens))
        if not all(isinstance(token, str) and token for token in self.tokens):
            raise ValueError("tokens must be texts that are not empty")
        if len(set(self.tokens)) < len(self.tokens):
            raise ValueError("tokens must differ from each other")
        if (self.unit == "byte") == bool(self.tokens):
            raise ValueError(f"tokens must be given, unless unit is byte, got {len(self.tokens)} for unit {self.unit}")
        if self.unit == "char" and any(len(token) != 1 for token in self.tokens):
            raise ValueError("tokens must be single characters for unit char")
        if self.unit != "char" and (self.space is not None or self.strip_lines):
            raise ValueError(f"space and strip_lines are for unit char, got unit {self.unit}")
        if self.space is not None and (not isinstance(self.space, str) or len(self.space) != 1):
            raise ValueError(f"space must be a single character or None, got {self.space!r}")

    @property
    def line_end(self) -> int:
        """Number of the token that ends a line; the first token if none does."""
        if self.unit == "byte":
            return ord("\n")
        return self._index.get(END if self.unit == "word" else "\n", 0)

    @property
    def classes(self) -> int:
        """Number of tokens in the vocabulary."""
        return 256 if self.unit == "byte" else len(self.tokens)

    @property
    def checksum(self) -> str:
        """Checksum of vocabulary and rules: tokenisers with the same checksum give the same ids."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=8).hexdigest()

    def encode(self, text: str) -> Tensor:
        """The token ids of a text, (length,), int64.

        Raises:
            ValueError: if tokens are not in the vocabulary, and it has no `<unk>`; the message names line and column.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        ids = self.lookup(text)
        if (ids < 0).any():
            if self.unknown_id is None:
                unknown = Unknown(self)
                unknown.add(text, ids)
                raise ValueError(f"text: {unknown}")
            ids = np.where(ids < 0, self.unknown_id, ids)
        return torch.from_numpy(ids.astype(np.int64))

    def decode(self, ids: Tensor | Sequence[int] | Ids) -> str:
        """The text of token ids; words are separated by spaces, and bytes that are not valid UTF-8 become �."""
        numbers = torch.as_tensor(ids)
        if numbers.numel() and (numbers.is_floating_point() or numbers.dtype == torch.bool):
            raise TypeError(f"ids must be whole numbers, got {numbers.dtype}")
        return "".join(self.decode_each(numbers.reshape(-1).tolist()))

    def decode_each(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of `decode` in pieces, each as soon as its token arrives.

        A word comes with the space before it, a character of several bytes with the last of them.

        Example:
            for piece in tokeniser.decode_each(map(int, model.stream(prompt, 200))):
                print(piece, end="", flush=True)
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        before = "\n"
        for number in ids:
            if not 0 <= number < self.classes:
                raise ValueError(f"ids must lie in 0 to {self.classes - 1}, got {number}")
            if self.unit == "byte":
                yield decoder.decode(bytes([number]))
            elif self.unit == "char":
                yield " " if self.tokens[number] == self.space else self.tokens[number]
            else:
                word = "\n" if self.tokens[number] == END else self.tokens[number]
                yield word if "\n" in (before, word) else f" {word}"
                before = word
        yield decoder.decode(b"", final=True)

    @property
    def unknown_id(self) -> int | None:
        """The id of `<unk>`; None if there is none."""
        return self._index.get(UNKNOWN) if self.unit == "word" else None

    def lookup(self, text: str) -> Ids:
        """The ids of a text's tokens; −1 for those that are not in the vocabulary."""
        if self.unit == "byte":
            return np.frombuffer(text.encode(), np.uint8)
        if self.unit == "char":
            return self._table[code_points(text if self.space is None else text.replace(" ", self.space))]
        words = split_words(text)
        get = self._index.get
        return np.fromiter((get(word, -1) for word in words), np.int32, len(words))

    @cached_property
    def _index(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _table(self) -> Ids:
        table = np.full(0x110000, -1, np.int32)  # of all code points
        table[[ord(token) for token in self.tokens]] = np.arange(len(self.tokens))
        return table

    def to_json(self) -> str:
        """The tokeniser as JSON, for `from_json`."""
        content = {"unit": self.unit, "tokens": list(self.tokens)}
        rules = {"space": self.space, "strip_lines": self.strip_lines} if self.unit == "char" else {}
        return json.dumps(content | rules, ensure_ascii=False)

    @classmethod
    def from_json(cls, content: str) -> Tokeniser:
        """Create a tokeniser from the output of `to_json`."""
        try:
            return cls(**json.loads(content))
        except (TypeError, ValueError) as error:
            raise ValueError(f"a tokeniser must be JSON with unit and tokens: {error}") from None


class Unknown:
    """Tokens that are not in the vocabulary of a tokeniser: the count and the first position of each."""

    def __init__(self, tokeniser: Tokeniser) -> None:
        self.tokeniser = tokeniser
        self.seen: dict[str, list[int]] = {}  # count, line, column

    def add(self, text: str, ids: Ids, line: int = 1, column: int = 1) -> None:
        """Register the unknown tokens of a piece of text, given its ids from `lookup` and its position."""
        if self.tokeniser.unit == "char":
            where = np.flatnonzero(ids < 0)
            codes, first, counts = np.unique(code_points(text)[where], return_index=True, return_counts=True)
            unknown = [*zip(map(chr, codes.tolist()), where[first].tolist(), counts.tolist(), strict=True)]
        else:
            words = ((END if word[0] == "\n" else word[0], word.start()) for word in re.finditer(r"\S+|\n", text))
            unknown = [(word, place, 1) for word, place in words if word not in self.tokeniser._index]
        for token, place, count in unknown:
            if token not in self.seen:
                self.seen[token] = [0, *advanced(text[:place], line, column)]
            self.seen[token][0] += count

    def __str__(self) -> str:
        name = NAMES[self.tokeniser.unit]
        by_place = sorted(self.seen.items(), key=lambda item: item[1][1:])
        named = [
            f"{token[:SHOWN]!r} at line {line}, column {column}" + (f" ({count} times)" if count > 1 else "")
            for token, (count, line, column) in by_place[:_NAMED]
        ]
        rest = f" and {len(by_place) - _NAMED} more" if len(by_place) > _NAMED else ""
        total = sum(count for count, _, _ in self.seen.values())
        what = f"{name}s" if total > 1 else f"a {name}"
        return f"holds {what} that the vocabulary does not have: {', '.join(named)}{rest}; {total} in all"


def code_points(text: str) -> Ids:
    """The Unicode code points of a text's characters."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def split_words(text: str) -> list[str]:
    """The words of a text, with `<eos>` for each newline."""
    return text.replace("\n", f" {END} ").split()


def advanced(text: str, line: int, column: int) -> tuple[int, int]:
    """Line and column after a text that begins at `line` and `column`, both counted from 1."""
    newlines = text.count("\n")
    return line + newlines, (len(text) - text.rfind("\n") if newlines else column + len(text))
