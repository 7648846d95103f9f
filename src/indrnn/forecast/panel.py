"""Series of a CSV file as neuralforecast reads them: one row for each series and time, at equal distances."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset
from utilsforecast.preprocessing import fill_gaps

from ..checks import check_count

KEYS = ["unique_id", "ds"]
SEASONS = {"h": 24, "D": 7, "B": 5, "W": 52, "M": 12, "Q": 4}
"""Steps of a day, week or year, by the first letter of pandas' name of a distance."""


@dataclass(frozen=True)
class Panel:
    """Series at equal distances in time."""

    frame: Any
    """Table of unique_id, ds, y and available_mask, which is 0 where y repeats the value before a gap."""
    freq: str | int
    """Distance of the times, as pandas names it, or a whole number."""
    season: int
    """Steps of a season; 1 for none."""
    names: dict[str, str]
    """Names of the columns in the file; without unique_id if it holds one series."""

    @property
    def known(self) -> Any:
        """The rows whose values are not missing: unique_id, ds and y."""
        return self.frame.loc[self.frame["available_mask"] == 1, [*KEYS, "y"]]

    def describe(self) -> str:
        """How the file was read, in a line."""
        sizes, missing = self.frame.groupby("unique_id").size(), len(self.frame) - len(self.known)
        steps = " to ".join(f"{size:,}" for size in sorted({sizes.min(), sizes.max()}))
        read = f"every {self.freq}, season {self.season}, until {self.frame['ds'].max()}"
        return f"{len(sizes):,} series of {steps} steps, {missing:,} missing, {read}"

    def named(self, table: Any) -> Any:
        """A table with the names of the file; forecasts and the ends of their intervals have the target's."""
        ends = {name: f"{self.names['y']}-{name}" for name in table if name.startswith(("lo-", "hi-"))}
        table = table if "unique_id" in self.names else table.drop(columns="unique_id")
        return table.rename(columns={**self.names, **ends, "forecast": self.names["y"]})

    def check_length(self, horizon: int, windows: int, input_steps: int) -> None:
        """Raise unless each series has what the network reads, a horizon to learn, and these windows."""
        sizes = self.frame.groupby("unique_id").size()
        least = max(input_steps, self.season) + horizon * (windows + 1)
        if sizes.min() < least:
            before = f"after {input_steps} to read and {horizon} to learn from, {least} in all"
            got = f"{windows} windows of {horizon} steps {before}, and {sizes.min()} in {sizes.idxmin()!r}"
            raise ValueError(f"horizon, windows and input_steps must fit into each series, got {got}")


def read_panel(
    path: Path, *, time: str, target: str, id: str | None = None, freq: str | None = None, season: int | None = None
) -> Panel:
    """Read series from a CSV file with a row for each series and time; where the target is empty, the step is missing.

    The columns are those of the times (dates or whole numbers), of the values and, unless there is one series, of the
    series' names. `freq` is the distance of the times, such as D, h, W-SUN or MS, inferred if None; `season` the number
    of steps in one, None for a day, a week or a year, by the distance.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data must be a CSV file or a folder of forecasts, and {path} is neither")
    try:
        table = pd.read_csv(path, dtype=None if id is None else {id: str})
    except ValueError as error:
        what = " ".join(str(error).split())
        raise ValueError(f"data must be a CSV file, and {path} cannot be read: {what}") from None
    for option, column in (("time", time), ("target", target), ("id", id)):
        if column is not None and column not in table:
            raise ValueError(f"{option} must be a column of {path} ({', '.join(map(str, table))}), got {column!r}")
    frame = pd.DataFrame({"unique_id": target if id is None else table[id], "ds": _times(table[time])})
    frame["y"] = pd.to_numeric(table[target], errors="coerce").astype(float)
    _refuse(~np.isfinite(frame["y"]) & table[target].notna(), "target must be a number", table[target])
    _refuse(frame["unique_id"].isna(), "id must be the name of a series", frame["unique_id"])
    hint = "" if id else " (id names the column that tells series apart)"
    _refuse(frame.duplicated(KEYS), f"time must be another in every line of a series{hint}", table[time])
    distance, usual = _distance(frame["ds"], freq)
    season = usual if season is None else season
    check_count("season", season)
    frame = frame.dropna(subset="y")
    if frame.empty:
        raise ValueError(f"target must have values, and {target!r} of {path} has none")
    names = {"unique_id": id, "ds": time, "y": target} if id else {"ds": time, "y": target}
    return Panel(_without_gaps(frame, distance), distance, season, names)


def _refuse(wrong: Any, rule: str, values: Any) -> None:
    """Raise if a line of the file is wrong, and name the first."""
    if wrong.any():
        raise ValueError(f"{rule}, got {values[wrong.idxmax()]!s} in line {wrong.idxmax() + 2}")


def _times(column: Any) -> Any:
    if pd.api.types.is_integer_dtype(column):
        return column
    with warnings.catch_warnings(action="ignore"):  # that the first one is not known
        dates = column.astype(str)
        times = pd.to_datetime(dates, errors="coerce", format="ISO8601")
        if times.isna().any():
            times = pd.to_datetime(dates, errors="coerce")  # all as the first one is written
    _refuse(times.isna(), "time must be a date or a whole number", column)
    return times


def _distance(times: Any, freq: str | None) -> tuple[str | int, int]:
    """The distance of the times, as it was given or inferred, and the steps of its usual season."""
    unique = np.sort(times.unique())
    if pd.api.types.is_integer_dtype(times):
        if freq is not None and not (freq.isdecimal() and int(freq)):
            raise ValueError(f"freq must be a whole number, as the times are, got {freq!r}")
        return int(freq or min(np.diff(unique), default=1)), 1
    try:
        offset = to_offset(freq or pd.infer_freq(unique))
    except ValueError:  # also of fewer than three times
        offset = None
    if offset is None:
        got = freq or "none to infer"
        raise ValueError(f"freq must be the distance of the times (D, h, W-SUN, MS, ...), got {got}")
    return str(offset.freqstr), max(SEASONS.get(offset.name[0], 1) // int(offset.n), 1)


def _without_gaps(frame: Any, freq: str | int) -> Any:
    """The table with a row for each time; missing values repeat the one before and are marked."""
    with warnings.catch_warnings(action="ignore"):  # of rows that are lost, which are refused below
        try:
            full = fill_gaps(frame, freq, end="per_serie").sort_values(KEYS, ignore_index=True)
        except TypeError:
            raise ValueError(f"freq must be a distance that neuralforecast knows, got {freq}") from None
    lost = ~pd.MultiIndex.from_frame(frame[KEYS]).isin(pd.MultiIndex.from_frame(full[KEYS]))
    _refuse(pd.Series(lost, frame.index), f"freq must be the distance of all times, and {freq} is not", frame["ds"])
    full["available_mask"] = full["y"].notna().astype(float)
    full["y"] = full.groupby("unique_id")["y"].ffill()
    return full
