"""Shared parts of the file readers: options, the result of a reader, and conditions on the fields of a series."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]


class MissingPackageError(ImportError, ValueError):
    """A file needs a package that is not installed."""


@dataclass(frozen=True)
class Reading:
    """Options for reading a file. Each names the kinds of files that it is for; other kinds refuse it."""

    target: str | None = None
    """Column or field of the labels; None for y, labels, label or target in .npz.
    Not for .ts and WAV files: there, labels are the last entry of a line and the folder of a file."""
    id: str | None = None
    """Long tables: column that identifies the series of a row. Wide tables: column of the series' names."""
    time: str | None = None
    """Long tables: column that orders the rows of a series, numbers or dates."""
    features: tuple[str, ...] = ()
    """Tables: value columns; all remaining columns if none are given.
    Wide tables: also prefixes of numbered columns, one per channel: acc for acc_0, acc_1, ..."""
    group: str | None = None
    """Column or field of the group of a series, such as a subject; a group is never split between training and test.
    WAV files: a regular expression with one capture group, searched in the path below the folder."""
    test_where: str | None = None
    """Test series: a condition on a column or field, such as index<5 or speaker==theo,lucas;
    or the name of one that is 1, true or test for them."""
    ignore: tuple[str, ...] = ()
    """Tables: columns to ignore. A column without a name is called by its position, Unnamed: 0 for the first."""
    layout: Literal["auto", "long", "wide"] = "auto"
    """Table layout. long: a row per step; wide: a row per series; auto: long if id or time is given."""
    header: bool | None = None
    """CSV tables: whether the first line names the columns; None to detect it."""
    per_step: bool = False
    """Long tables: one target per step."""
    time_differences: bool = False
    """Long tables: add the time since the previous step as a channel, dt; in seconds for dates."""
    x: str | None = None
    """.npz: field of the series; None for x, X or data."""
    lengths: str | None = None
    """.npz: field of the series' lengths; None for lengths or length, if there is one."""
    time_first: bool = False
    """.npz: x is (n, time, channels) instead of (n, channels, time)."""
    rate: int | None = None
    """WAV files: required sampling rate in Hz; None for that of the first file."""
    resample: bool = False
    """WAV files: resample files of another rate to --rate."""
    mono: bool = False
    """WAV files: average the channels of a file."""

    def __post_init__(self) -> None:
        if self.rate is not None and self.rate < 1:
            raise ValueError(f"rate must be samples in a second, at least 1, got {self.rate}")
        if self.layout not in ("auto", "long", "wide"):
            raise ValueError(f"layout must be auto, long or wide, got {self.layout!r}")
        if self.resample and self.rate is None:
            raise ValueError("resample needs a rate to change to: rate (--rate 8000)")

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Reading:
        """Restore from a JSON dictionary; raise for unknown fields, such as those of a later version."""
        unknown = [name for name in plain if name not in cls.__dataclass_fields__]
        if unknown:
            raise ValueError(f"reading has no option {unknown[0]!r}; the file is of a later version of indrnn")
        options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        return cls(**options)


def tested_column(test_where: str | None) -> str | None:
    """Column or field that a condition refers to."""
    found = re.match(r"\s*([^<>=!]+?)\s*(?:[<>=!]|$)", test_where or "")
    return found[1] if found else None


USED: dict[str, tuple[str, ...]] = {
    ".npz": ("target", "group", "test_where", "x", "lengths", "time_first"),
    ".ts": (),
    "table": (
        *("target", "id", "time", "features", "group", "test_where", "ignore"),
        *("layout", "header", "per_step", "time_differences"),
    ),
    "a folder": ("group", "rate", "resample", "mono"),
}
"""The options that each kind of file takes."""


def check_used(reading: Reading, kind: str, path: Path) -> None:
    """Raise for an option that this kind of file does not use: it would have no effect."""
    usual = Reading()
    for name in Reading.__dataclass_fields__:
        if getattr(reading, name) != getattr(usual, name) and name not in USED[kind]:
            raise ValueError(f"{name} is not for {path.name}: {'tables' if kind == 'table' else kind} do not take it")


@dataclass
class Found:
    """Result of a reader: the series of a file, with their labels and fields."""

    path: Path
    x: list[Array]
    """Each (channels, time)."""
    y: Array | None = None
    """Labels as text where the file has them as text: `parsed` makes numbers of them once all files are read."""
    channels: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    fields: dict[str, Array] = field(default_factory=dict)
    """What else is known of each series, by name."""
    rate: int | None = None
    """Samples in a second, of WAV files."""
    layout: Literal["auto", "long", "wide"] = "auto"
    """Which form a table was read in."""
    header: bool | None = None
    """Whether its first line named the columns."""
    columns: tuple[str, ...] = ()
    """Of a table in wide form with one channel: the columns of its steps, where they are named."""

    def called(self, number: int) -> str:
        """Describe a series for a message."""
        return f"series {number}" + (f" ({self.names[number]})" if self.names is not None else "")


def need(package: str, what: str) -> Any:
    """Import a package of the extra `data`; if it is missing, the error says that `what` needs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingPackageError(f"{what} needs {package}: pip install 'indrnn[data]'") from None


def pick(name: str, option: str, known: Iterable[str], path: Path) -> str:
    """Return `name` if it is among the known names; otherwise raise, with the closest match."""
    known = list(known)
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    some = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
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


_CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(?:(==|=|!=|<=|>=|<|>)\s*(.+?)\s*)?")
_TRUE = ("1", "true", "test", "yes")


def where(condition: str, fields: dict[str, Array], path: Path) -> Array:
    """Boolean mask of the series for which a condition such as `index<5` holds, (n,)."""
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ValueError(
            f"test_where must be a name, or a name, ==, !=, <, <=, > or >=, and a value, got {condition!r}"
        )
    name, operator, value = match[1], match[2], match[3]
    found = fields[pick(name, "test_where", fields, path)]
    if operator is None:
        return np.array([_same(str(each)).lower() in _TRUE for each in found], dtype=bool)
    if operator in ("=", "==", "!="):
        wanted = {_same(part) for part in value.split(",")}
        equal = np.array([_same(str(each)) in wanted for each in found], dtype=bool)
        return ~equal if operator == "!=" else equal
    try:
        limit = number(value)
        plain = found.dtype.kind in "biuf"
        numbers = found.astype(np.float64) if plain else np.array([number(str(each)) for each in found])
    except ValueError:
        raise ValueError(
            f"test_where: {operator} is for numbers; {name} or {value!r} is none; == is for text"
        ) from None
    holds: Array = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}[operator](
        numbers, limit
    )
    return holds


def _same(text: str) -> str:
    """Normalise a value for comparison: 5, 5.0 and "5" are equal."""
    text = text.strip()
    try:
        if re.fullmatch(r"[+-]?\d+", text):
            return str(int(text))
        value = number(text)
    except ValueError:
        return text
    return str(int(value)) if value.is_integer() else str(value)


def parsed(labels: Array) -> Array:
    """Convert labels read as text to integers or floats if all of them are such; otherwise keep them as text."""
    if labels.dtype.kind not in "OUS" or (len(labels) and isinstance(labels[0], np.ndarray)):
        return labels
    texts = [(label.decode() if isinstance(label, bytes) else str(label)).strip() for label in labels]
    try:
        whole = [int(text) for text in texts]
        if all(str(value) == text.removeprefix("+") for value, text in zip(whole, texts, strict=True)):
            return np.array(whole, dtype=np.int64)
    except OverflowError:
        return np.array(texts)  # as float64, neighbours would be one
    except ValueError:
        pass
    try:
        if not any(text.startswith("0") and text.isdigit() and len(text) > 1 for text in texts):  # 007 is a name
            return np.array([number(text) for text in texts])
    except ValueError:
        pass
    return np.array(texts)
