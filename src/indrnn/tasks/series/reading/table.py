"""Reader of series in tables, CSV or Parquet: a row per step in long form, a row per series in wide form."""

from __future__ import annotations

import csv
import gzip
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..collection import Array
from . import Reading
from .values import SeriesFile, is_number, need, parsed, pick

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
_MISSING = ["", "?", "NA", "N/A", "NaN", "nan", "null", "None", "-nan"]
_UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)*")
"""Names that pandas gives to columns without one, such as the index that it writes."""


def read_table(path: Path, reading: Reading, *, target_needed: bool, ignore_needed: bool) -> SeriesFile:
    """Read a table. Messages name a row by its line in the file; `ignore_needed`: the ignored columns must be there."""
    kind = _Table if path.suffix.lower() in (".parquet", ".pq") else _CSV
    table = kind(path, reading, target_needed, ignore_needed)
    repeated = reading.id is not None and not table.frame[reading.id].is_unique  # else each row is a series
    if reading.layout == "long" or (reading.layout == "auto" and (repeated or reading.time is not None)):
        return _long(table)
    for name in ("time", "per_step", "time_differences"):
        if getattr(reading, name):
            raise ValueError(f"{name} is for tables in long form; layout (--layout long) says that this is one")
    return _wide(table)


class _Table:
    """A table, and the roles of its columns; its own methods read Parquet."""

    header = True
    index: Sequence[str] = ()  # columns that are values only if they are named

    def __init__(self, path: Path, reading: Reading, target_needed: bool, ignore_needed: bool) -> None:
        self.path, self.reading = path, reading
        self.pandas = need("pandas", f"{path.name}, a table,")
        self.frame = self.read()
        self.columns = [str(name) for name in self.frame.columns]
        self.frame.columns = self.columns
        _check_once(self.columns, path)
        if not len(self.frame):
            raise ValueError(f"{path} must have at least one row below its header, got none")
        if target_needed and reading.target is None:
            some = ", ".join(self.columns[:20])
            raise ValueError(f"target: name the column of the labels (--target). {path} has {some}")
        self.target, group = (reading.target, reading.group) if target_needed else (None, None)
        named = [("id", reading.id), ("time", reading.time), ("group", group), ("target", self.target)]
        for option, name in named + [("ignore", name) for name in reading.ignore if ignore_needed]:
            if name is not None:
                pick(name, option, self.columns, path)
        described = dict.fromkeys((reading.group, reading.tested_column))
        self.described = [name for name in described if name in self.columns]
        roles = {reading.target, reading.id, reading.time, *self.described, *reading.ignore, *self.index}
        others = [name for name in self.columns if name not in roles]
        self.others = [name for name in others if not _UNNAMED.fullmatch(name)]
        self.unnamed = [name for name in others if _UNNAMED.fullmatch(name) and self.frame[name].notna().any()]

    def read(self) -> Any:
        """Read the file as a data frame; named index levels become columns, used as values only if requested."""
        need("pyarrow", f"{self.path.name}, a Parquet file,")
        try:
            frame = self.pandas.read_parquet(self.path, engine="pyarrow")
            levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
            self.index = [str(name) for name in levels]
            return (frame.reset_index(levels) if levels else frame).reset_index(drop=True)
        except (ValueError, OSError) as error:  # pyarrow's own are among these
            raise ValueError(f"{self.path} cannot be read as Parquet: {' '.join(str(error).split())}") from None

    def place(self, row: int) -> str:
        return f"row {row}"

    def refuse(self, row: int, message: str) -> NoReturn:
        raise ValueError(f"{self.path}: {self.place(row)}: {message}")

    def numbers(self, name: str) -> Array:
        """Return a column as numbers, NaN where a value is missing; raise for text, with its row."""
        column = self.frame[name]
        if column.dtype.kind == "M":
            raise ValueError(f"{self.path}: {name} must hold numbers, got dates; time (--time {name}) is for those")
        numbers = column if column.dtype.kind in "fiub" else self.pandas.to_numeric(column, errors="coerce")
        values = np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
        if numbers is column:
            return values
        wrong = np.flatnonzero(np.isnan(values) & ~column.isna().to_numpy())
        rows = [row for row in wrong.tolist() if str(column.iloc[row]).strip() not in _MISSING]
        if rows:
            value = str(column.iloc[rows[0]])
            hint = "; write 1.5 and not 1,5" if re.fullmatch(r"-?\d+,\d+", value) else ""
            more = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
            where = "Where the column holds no values, name those that do (features, --features)"
            self.refuse(rows[0], f"{name} must be a number, got {value[:40]!r}{more}{hint}. {where}")
        return values

    def texts(self, name: str, option: str) -> Array:
        """Return a column of numbers or text without missing entries; raise for an empty one, with its row."""
        column = self.frame[name]
        empty = column.isna().to_numpy() | np.array([str(value).strip() == "" for value in column], dtype=bool)
        if empty.any():
            self.refuse(int(np.argmax(empty)), f"{name} ({option}) must not be empty; leave the row out")
        if column.dtype.kind in "iubf":
            return np.asarray(column.to_numpy(dtype=np.float64 if column.dtype.kind == "f" else None))
        try:
            return np.array([(value.decode() if isinstance(value, bytes) else str(value)).strip() for value in column])
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: {name} ({option}) must be UTF-8, got {error.object[:40]!r}") from None

    def features(self) -> list[str]:
        """Names of the columns of values: those named, or all that have no other role."""
        if self.reading.features:
            return [pick(name, "features", self.columns, self.path) for name in self.reading.features]
        if self.unnamed:
            ignored = " ".join(map(repr, self.unnamed))
            what = "a column without a name, such as the index that to_csv() of pandas writes"
            hint = f"leave it out (--ignore {ignored}, or index=False in to_csv), or give it a name"
            raise ValueError(f"{self.path}: {self.unnamed[0]} is {what}; {hint}")
        if not self.others:
            raise ValueError(f"features: {self.path} has no column of values beside {', '.join(self.columns)}")
        return self.others


class _CSV(_Table):
    single = False  # column

    def read(self) -> Any:
        """Read the file; in a table of a single column, a blank line is a missing value, except at the end."""
        errors, reading = self.pandas.errors, self.reading
        with self._open() as file:
            first = next((line for line in file if line.strip()), "")
        self.sign = max("\t;,", key=first.count) if self.path.suffix.lower() != ".tsv" else "\t"
        begin, cells = next(self._rows(), (1, []))
        if not cells:
            raise ValueError(f"{self.path} is empty; it must have a header and a row for each step or series")
        self.header, names = _header(cells, reading.header)
        _check_once(names, self.path)
        text = [name for name in (reading.target, reading.id, reading.group) if name is not None]
        self.single = len(names) == 1
        try:
            # A warning is of rows that would be cut short
            with warnings.catch_warnings(action="error", category=errors.ParserWarning):
                frame = self.pandas.read_csv(
                    self.path,
                    sep=self.sign,
                    skiprows=begin - 1,
                    header=0 if self.header else None,
                    names=names,
                    dtype=dict.fromkeys(text, str),
                    keep_default_na=False,
                    na_values={name: _MISSING for name in names if name not in text},
                    skip_blank_lines=not self.single,
                    skipinitialspace=True,
                    encoding="utf-8-sig",
                    low_memory=False,
                    index_col=False,
                )
        except UnicodeError as error:
            raise ValueError(f"{self.path} must be UTF-8; save it as that: {error}") from None
        except (errors.ParserWarning, errors.ParserError) as error:
            longer = isinstance(error, errors.ParserWarning)
            what = "a row has more cells than the first" if longer else " ".join(str(error).split())
            raise ValueError(f"{self.path} cannot be read as a table: {what}") from None
        if self.single:
            last = max(i for i, (_, cells) in enumerate(self._rows()) if any(cells))
            return frame[: last + 1 - self.header]
        if self.sign == "\t" and (frame.isna() | (frame == "")).all(axis=1).any():  # perhaps of tabs alone: blank
            filled = [any(cells) for _, cells in self._rows()]
            return frame[filled[self.header :]].reset_index(drop=True)
        return frame

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield first line and cells of each row that is read, from the first with a value; a cell may span lines."""
        with self._open() as file:
            rows, line, begun = csv.reader(file, delimiter=self.sign, skipinitialspace=True), 1, False
            try:
                for row in rows:
                    cells = [cell.strip() for cell in row]
                    begun = begun or any(cells)
                    if begun and (self.single or len(cells) > 1 or any(cells)):
                        yield line, cells
                    line = rows.line_num + 1
            except csv.Error as error:
                raise ValueError(f"{self.path}: line {line} cannot be read as a row of a table: {error}") from None

    def _open(self) -> Any:
        opened: Any = gzip.open if self.path.name.lower().endswith(".gz") else open
        return opened(self.path, "rt", encoding="utf-8-sig", errors="replace")

    def place(self, row: int) -> str:
        blank = self.sign == "\t" and not self.single
        lines = [line for line, cells in self._rows() if any(cells) or not blank]
        return f"line {lines[row + self.header]}"


def _check_once(names: list[str], path: Path) -> None:
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise ValueError(f"{path} must have each column once, and {name!r} is there {count} times")


def _header(cells: list[str], header: bool | None) -> tuple[bool, list[str]]:
    """Whether the first row names the columns, rather than holding values, and the names, pandas' if there are none."""
    counted = [str(i) for i in range(len(cells))]
    if header is None:
        numbers = any(map(is_number, cells)) and all(is_number(cell) or cell in _MISSING for cell in cells)
        header = not numbers or cells == counted
    if not header:
        return False, counted
    names = [cell or f"Unnamed: {i}" for i, cell in enumerate(cells)]
    return True, [name if cell or name not in cells else f"{name}.1" for name, cell in zip(names, cells, strict=True)]


# ---- a row per series


def _wide(table: _Table) -> SeriesFile:
    columns = _wide_channels(table)
    values = np.stack([np.stack([table.numbers(name) for name in names], 1) for names in columns.values()], 1)
    present = ~np.isnan(values).all(1)  # (n, time)
    lengths = present.shape[1] - np.argmax(present[:, ::-1], axis=1)  # empty cells at the end: a shorter series
    x = [one[:, :length] for one, length in zip(values, lengths.tolist(), strict=True)]
    y = None if table.target is None else table.texts(table.target, "target")
    names = None if table.reading.id is None else tuple(map(str, table.texts(table.reading.id, "id")))
    fields = {name: table.texts(name, "group, test_where") for name in table.described}
    reading = replace(table.reading, layout="wide", header=table.header)
    if table.header and list(columns) == ["0"]:
        reading = replace(reading, features=tuple(columns["0"]))  # by name in other files too
    return SeriesFile(table.path, reading, x, y, tuple(columns), names, fields)


def _wide_channels(table: _Table) -> dict[str, list[str]]:
    """Columns of each channel, in time order."""
    if all(name in table.columns for name in table.reading.features):
        return {"0": table.features()}
    channels: dict[str, list[str]] = {}
    for name in table.reading.features:
        ends = {column: re.fullmatch(rf"{re.escape(name)}[_.\- ]?(\d+)", column) for column in table.others}
        numbered = [(int(match[1]), column) for column, match in ends.items() if match]
        if not numbered:
            pick(name, "features", table.columns, table.path)
        channels[name] = [column for _, column in sorted(numbered)]
    if len({len(columns) for columns in channels.values()}) > 1:
        counts = ", ".join(f"{name} has {len(columns)}" for name, columns in channels.items())
        raise ValueError(f"features: each channel of {table.path} must have as many columns: {counts}")
    return channels


# ---- a row per step


def _long(table: _Table) -> SeriesFile:
    reading, names = table.reading, table.features()
    values = [table.numbers(name) for name in names]
    order, codes, times, second, series = _by_series(table)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    matrix = np.stack(values)[:, order]  # (channels, rows)
    if reading.time_differences:
        if reading.time is None:
            raise ValueError("time_differences needs the column of the time: time (--time)")
        times = times if times.dtype.kind == "f" else times.view(np.uint64)  # no difference overflows
        since = np.diff(times, prepend=times[:1]).astype(np.float64) / second
        since[starts] = 0
        matrix, names = np.concatenate([matrix, since[None]]), [*names, "dt"]

    def constant(name: str, option: str) -> Array:  # of each series
        column = table.texts(name, option)[order]
        values = column[starts]
        wrong = np.flatnonzero(column != values[codes])
        if len(wrong):
            at = wrong[0]
            of = "the series" if series is None else series[codes[at]]
            hint = "; a target at every step is per_step (--per-step)" if option == "target" else ""
            what = f"must be the same in all of {of}, got {values[codes[at]]} and {column[at]}{hint}"
            table.refuse(int(order[at]), f"{name} ({option}) {what}")
        return np.asarray(values)

    y = None
    if table.target is not None and reading.per_step:
        column = parsed(table.texts(table.target, "target"))[order]
        y = np.fromiter(np.split(column, starts[1:]), dtype=object)
    elif table.target is not None:
        y = constant(table.target, "target")
    fields = {name: constant(name, "group, test_where") for name in table.described}
    reading = replace(reading, layout="long", header=table.header)
    return SeriesFile(table.path, reading, np.split(matrix, starts[1:], axis=1), y, tuple(names), series, fields)


def _by_series(table: _Table) -> tuple[Array, Array, Array, float, tuple[str, ...] | None]:
    """Order of rows by series and time; in it, series and time of each; units of a second; names of the series."""
    rows, by, time = np.arange(len(table.frame)), table.reading.id, table.reading.time
    codes, series = table.pandas.factorize(rows * 0 if by is None else table.texts(by, "id"))
    times, second = (rows, 1.0) if time is None else _times(table, time)
    order = np.lexsort((times, codes))  # stable: rows of one time stay as they are, and are refused below
    codes, times = codes[order], times[order]
    same = np.flatnonzero((np.diff(codes) == 0) & (times[1:] == times[:-1]))
    if len(same):
        at = same[0]
        first, next_one = order[at : at + 2].tolist()
        of, hint = f" of {by} {series[codes[at]]}", ""
        if by is None:
            of, hint = "", ". Where there are several series, id (--id) names their column"
        both, many = f"{table.place(first)} and {table.place(next_one)}{of}", f"{len(same)} are too many"
        message = f"{both} have the same {time}, {table.frame[time].iloc[first]}; keep one row for each time"
        raise ValueError(f"{table.path}: {message} ({many}){hint}")
    return order, codes, times, second, None if by is None else tuple(map(str, series))


def _times(table: _Table, name: str) -> tuple[Array, float]:
    """Sortable times, as integers if they are such, and how many of their units make a second."""
    column = table.frame[name]
    empty = column.isna().to_numpy()
    if empty.any():
        table.refuse(int(np.argmax(empty)), f"{name} (time) must not be empty")
    if column.dtype.kind in "iufb":
        exact = {"f": np.float64, "u": np.uint64}.get(column.dtype.kind, np.int64)
        return np.asarray(column.to_numpy(dtype=exact)), 1.0
    try:
        dates = table.pandas.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{table.path}: {name} (time) must hold numbers or dates: {error}") from None
    wrong = dates.isna().to_numpy()
    if wrong.any():
        row = int(np.argmax(wrong))
        value = str(column.iloc[row])[:40]
        hint = "; in nanoseconds, dates go from 1678 to 2261" if re.match(r"\d{4}-", value) else ""
        table.refuse(row, f"{name} (time) must be a number or a date such as 2024-01-31 12:00, got {value!r}{hint}")
    times = dates.dt.tz_convert(None).to_numpy()  # in the unit that pandas chose: nanoseconds span only 584 years
    timedelta = table.pandas.Timedelta
    return times.astype(np.int64), timedelta(1, "s") / timedelta(1, dates.dt.unit)
