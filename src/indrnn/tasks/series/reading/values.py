"""What all readers share: the content of a file, values in text, and conditions on the fields of a series."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..collection import Array
from . import CONDITION, MissingPackageError, Reading


@dataclass
class SeriesFile:
    """Series of a file, with their labels and fields, as a reader returns them."""

    path: Path
    reading: Reading  # with what follows from the file: the rate of the sounds, the form and columns of the table
    x: list[Array]  # (channels, time) each
    y: Array | None = None  # as text where the file has text: `parsed` makes numbers of it once all files are read
    channels: tuple[str, ...] = ()  # names; none: their numbers
    names: tuple[str, ...] | None = None
    fields: dict[str, Array] = field(default_factory=dict)  # further values of each series

    def describe(self, number: int) -> str:
        """Name a series in a message."""
        return f"{self.path}: series {number}" + ("" if self.names is None else f" ({self.names[number]})")


def need(package: str, what: str) -> Any:
    """Import a package of the extra `data`; if it is missing, the error says that `what` needs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingPackageError(f"{what} needs {package}: pip install 'indrnn[data]'") from None


def pick(name: str, option: str, names: Iterable[str], path: Path) -> str:
    """Return `name` if it is among these names; otherwise raise, with the closest match."""
    if name in (names := list(names)):
        return name
    close = difflib.get_close_matches(name, names, n=1)
    some = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    hint = f"; did you mean {close[0]}?" if close else ";"
    raise ValueError(f"{option}: {path} has no {name!r}{hint} it has {some or 'none'}")


def number(text: str) -> float:
    """Parse a number in a file; unlike `float`, raise ValueError for 1_1, which Python reads as 11."""
    if "_" in text:
        raise ValueError(f"{text!r} is no number")
    return float(text)


def is_number(text: str) -> bool:
    """Whether `number` can parse the text."""
    try:
        number(text)
    except ValueError:
        return False
    return True


_TRUE = ("1", "true", "test", "yes")
_COMPARE = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


def where(condition: str, fields: dict[str, Array], path: Path) -> Array:
    """Boolean mask of the series for which a condition such as `index<5` holds, (n,)."""
    match = CONDITION.fullmatch(condition)
    if match is None:
        what = "a name, or a name, ==, !=, <, <=, > or >=, and a value"
        raise ValueError(f"test_where must be {what}, got {condition!r}")
    name, operator, value = match.groups()
    values = fields[pick(name, "test_where", fields, path)]
    if operator is None:
        return np.array([_normalised(str(entry)).lower() in _TRUE for entry in values], dtype=bool)
    if operator in ("=", "==", "!="):
        wanted = set(map(_normalised, value.split(",")))
        return np.array([(_normalised(str(entry)) in wanted) == (operator != "!=") for entry in values], dtype=bool)
    try:
        limit = number(value)
        numeric = values.dtype.kind in "biuf"
        numbers = values.astype(np.float64) if numeric else np.array([number(str(entry)) for entry in values])
    except ValueError:
        what = f"{name} or {value!r} is none; == is for text"
        raise ValueError(f"test_where: {operator} is for numbers; {what}") from None
    return np.asarray(_COMPARE[operator](numbers, limit))


def _normalised(text: str) -> str:
    """Text of a value for comparison: 5, 5.0 and "5" are equal."""
    text = text.strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return str(int(text))
    if not is_number(text):
        return text
    value = number(text)
    return str(int(value)) if value.is_integer() else str(value)


def parsed(*parts: Array) -> Array:
    """Join labels of all files, those read as text as integers or floats if all of them are such."""
    if len({part.dtype.kind in "OUS" for part in parts}) > 1:
        parts = tuple(part.astype(str) for part in parts)
    labels = np.concatenate(parts)
    if labels.dtype.kind not in "OUS" or (len(labels) and isinstance(labels[0], np.ndarray)):
        return labels
    texts = [(label.decode() if isinstance(label, bytes) else str(label)).strip() for label in labels]
    with contextlib.suppress(ValueError, OverflowError):  # too large a number: as float64, neighbours would be one
        if all(re.fullmatch(r"\+?0|[+-]?[1-9][0-9]*", text) for text in texts):
            return np.array([int(text) for text in texts], dtype=np.int64)
        if not any(re.fullmatch(r"0[0-9]+", text) for text in texts):  # 007 is a name
            return np.array([number(text) for text in texts])
    return np.array(texts)
