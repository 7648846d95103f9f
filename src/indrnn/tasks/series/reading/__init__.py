"""Readers of users' series: tables, .npz and .ts files, and folders of sounds; `Reading` has their options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...._lazy import lazy_names
from ....checks import MissingPackageError as MissingPackageError
from ....checks import check_choice, check_count

if TYPE_CHECKING:
    from .sources import read as read
    from .sources import read_with as read_with

__getattr__, __dir__ = lazy_names(__name__, {"sources": ("read", "read_with")})

CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(?:(==|=|!=|<=|>=|<|>)\s*(.+?)\s*)?")
"""Condition on a field: name, and perhaps operator and value."""


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
        for name in ("features", "ignore"):  # lists, in a run's config.json
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.rate is not None:
            check_count("rate", self.rate)
        check_choice("layout", self.layout, ("auto", "long", "wide"))
        if self.resample and self.rate is None:
            raise ValueError("resample needs a rate to change to: rate (--rate 8000)")

    @property
    def tested_column(self) -> str | None:
        """Column or field that `test_where` refers to."""
        match = CONDITION.fullmatch(self.test_where or "")
        return match[1] if match else None

    def only_for(self, kind: str) -> Reading:
        """The options without those that this kind of file does not use."""
        return Reading(**{name: getattr(self, name) for name in _USED.get(kind, "").split()})


_USED = {
    ".npz": "target group test_where x lengths time_first",
    "table": "target id time features group test_where ignore layout header per_step time_differences",
    "a folder": "group rate resample mono",
}
"""Options that each kind of file takes."""
