"""Reader of series in tables, CSV or Parquet: a row per step in long form, a row per series in wide form."""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .reading import Array, Found, Reading, is_number, need, pick, tested_column

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
_MISSING = ["", "?", "NA", "N/A", "NaN", "nan", "null", "None", "-nan"]
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)*")
"""What pandas calls a column without a name, such as the index that it writes."""


def read_table(path: Path, reading: Reading, *, target_needed: bool = True, ignore_needed: bool = True) -> Found:
    """Read a table. Messages refer to rows by line number of the file, or by row number in a Parquet file."""
    table = _Table(path, reading, target_needed=target_needed, ignore_needed=ignore_needed)
    long = reading.layout == "long" or (reading.layout == "auto" and (reading.id or reading.time) is not None)
    if reading.layout == "auto" and reading.id is not None and reading.time is None and table.unique(reading.id):
        long = False  # an identifier for each row: these are series, one a row
    if not long:
        for name in ("time", "per_step", "time_differences"):
            if getattr(reading, name):
                raise ValueError(f"{name} is for tables in long form; layout (--layout long) says that this is one")
        return _wide(table, reading)
    return _long(table, reading)


class _Table:
    """A table whose column names have been checked.

    Args:
        path: the file.
        reading: the role of each column.
        target_needed: whether the target column is required.
        ignore_needed: whether the ignored columns must exist.
    """

    def __init__(self, path: Path, reading: Reading, *, target_needed: bool, ignore_needed: bool) -> None:
        self.path = path
        self.pandas = need("pandas", f"{path.name}, a table,")
        self.parquet = path.suffix.lower() in (".parquet", ".pq")
        self.header = True
        self.index: list[str] = []
        self.frame = self._parquet() if self.parquet else self._csv(reading)
        self.columns = [str(name) for name in self.frame.columns]
        self.frame.columns = self.columns
        _check_once(self.columns, path)
        if not len(self.frame):
            raise ValueError(f"{path} must have at least one row below its header, got none")
        for option in ("id", "time", "group"):
            name = getattr(reading, option)
            if name is not None and not (option == "group" and not target_needed):
                pick(name, option, self.columns, path)
        for name in reading.ignore if ignore_needed else ():
            pick(name, "ignore", self.columns, path)
        self.target = reading.target
        if target_needed and self.target is None:
            raise ValueError(
                f"target: name the column of the labels (--target). {path} has {', '.join(self.columns[:20])}"
            )
        if self.target is not None and target_needed:
            pick(self.target, "target", self.columns, path)
        else:
            self.target = None
        described = (reading.group, tested_column(reading.test_where))
        self.described = [name for name in dict.fromkeys(described) if name is not None and name in self.columns]
        taken = {reading.target, reading.id, reading.time, *self.described, *reading.ignore, *self.index}
        others = [name for name in self.columns if name not in taken]
        self.others = [name for name in others if not _UNNAMED.fullmatch(name)]
        self.unnamed = [name for name in others if _UNNAMED.fullmatch(name) and self.frame[name].notna().any()]

    def _parquet(self) -> Any:
        """Read a Parquet file; named index levels become columns, used as values only if requested."""
        need("pyarrow", f"{self.path.name}, a Parquet file,")
        try:
            frame = self.pandas.read_parquet(self.path, engine="pyarrow")
            levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
            self.index = [str(name) for name in levels]
            return (frame.reset_index(levels) if levels else frame).reset_index(drop=True)
        except (ValueError, OSError) as error:  # pyarrow's own are among these
            raise ValueError(f"{self.path} cannot be read as Parquet: {' '.join(str(error).split())}") from None

    def _csv(self, reading: Reading) -> Any:
        """Read a CSV with its blank lines, which are then dropped, so that the index counts the rows of the file."""
        try:
            with self._open() as file:
                first = next((line for line in file if line.strip()), "")
            self.sign = sign = max("\t;,", key=first.count) if self.path.suffix.lower() != ".tsv" else "\t"
            above, cells = next(
                ((i, cells) for i, (_, cells) in enumerate(self._rows()) if not self._empty(cells)), (0, [])
            )
            if not cells:
                raise ValueError(f"{self.path} is empty; it must have a header and a row for each step or series")
            headless = any(map(is_number, cells)) and all(is_number(cell) or cell in _MISSING for cell in cells)
            headless = headless and cells != [str(i) for i in range(len(cells))]  # names that pandas gives
            if reading.header is not None:
                headless = not reading.header
            text = [name for name in (reading.target, reading.id, reading.group) if name is not None]
            names = [str(i) for i in range(len(cells))] if headless else _named(cells)
            _check_once(names, self.path)
            plain = [name for name in names if name not in text]
            with warnings.catch_warnings():
                warnings.simplefilter("error", self.pandas.errors.ParserWarning)  # of rows that would be cut short
                frame = self.pandas.read_csv(
                    self.path,
                    sep=sign,
                    skiprows=above,
                    header=None if headless else 0,
                    names=names,
                    dtype=dict.fromkeys(text, str),
                    keep_default_na=False,
                    na_values=dict.fromkeys(plain, _MISSING),
                    skip_blank_lines=False,
                    skipinitialspace=True,
                    encoding="utf-8-sig",
                    low_memory=False,
                    index_col=False,
                )
        except self.pandas.errors.EmptyDataError:
            raise ValueError(f"{self.path} is empty; it must have a header and a row for each step or series") from None
        except self.pandas.errors.ParserWarning:
            raise ValueError(f"{self.path} cannot be read as a table: a row has more cells than the first") from None
        except UnicodeError as error:
            raise ValueError(f"{self.path} must be UTF-8; save it as that: {error}") from None
        except self.pandas.errors.ParserError as error:
            raise ValueError(f"{self.path} cannot be read as a table: {' '.join(str(error).split())}") from None
        self.first_row = above if headless else above + 1
        self.header = not headless
        missing = (frame.isna() | (frame == "")).all(axis=1).to_numpy()
        return frame[~self._blank(missing, len(names))] if missing.any() else frame

    def _blank(self, missing: Array, columns: int) -> Array:
        """Which of the rows with only missing values are blank lines of the file.

        In a table of a single column, a blank line is a missing value, except at the end.
        """
        empty = np.array([self._empty(cells) for _, cells in self._rows()][self.first_row :] + [True] * len(missing))
        blank = missing & empty[: len(missing)]
        if columns == 1:
            blank[: np.flatnonzero(~blank)[-1] + 1 if not blank.all() else 0] = False
        return np.asarray(blank)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield first line number and cells of each CSV row, blank lines included; a cell may span several lines."""
        with self._open() as file:
            rows, line = csv.reader(file, delimiter=self.sign, skipinitialspace=True), 1
            try:
                for cells in rows:
                    yield line, [cell.strip() for cell in cells]
                    line = rows.line_num + 1
            except csv.Error as error:
                raise ValueError(f"{self.path}: line {line} cannot be read as a row of a table: {error}") from None

    def _empty(self, cells: list[str]) -> bool:
        """Whether a row is a blank line rather than a row of missing values."""
        return not any(cells) and (len(cells) < 2 or self.sign == "\t")

    def _open(self) -> Any:
        if self.path.name.lower().endswith(".gz"):
            import gzip

            return gzip.open(self.path, "rt", encoding="utf-8-sig", errors="replace")
        return self.path.open(encoding="utf-8-sig", errors="replace")

    def place(self, row: int) -> str:
        """Describe the position of a row for a message."""
        if self.parquet:
            return f"row {row}"
        line, _ = next(itertools.islice(self._rows(), int(self.frame.index[row]) + self.first_row, None))
        return f"line {line}"

    def unique(self, name: str) -> bool:
        """Whether a column exists and its values are unique."""
        return name in self.columns and bool(self.frame[name].is_unique)

    def numbers(self, name: str) -> Array:
        """Return a column as numbers, NaN where a value is missing; raise for text, with its row."""
        column = self.frame[name]
        if column.dtype.kind in "fiub":
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if column.dtype.kind == "M":
            raise ValueError(f"{self.path}: {name} must hold numbers, got dates; time (--time {name}) is for those")
        numbers = self.pandas.to_numeric(column, errors="coerce")
        found = np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
        wrong = np.flatnonzero(np.isnan(found) & ~column.isna().to_numpy())
        rows = [row for row in wrong.tolist() if str(column.iloc[row]).strip() not in _MISSING]
        if rows:
            value = str(column.iloc[rows[0]])
            hint = "; write 1.5 and not 1,5" if re.fullmatch(r"-?\d+,\d+", value) else ""
            more = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
            raise ValueError(
                f"{self.path}: {self.place(rows[0])}: {name} must be a number, got {value[:40]!r}{more}{hint}. Where "
                "the column holds no values, name those that do (features, --features)"
            )
        return found

    def texts(self, name: str, option: str) -> Array:
        """Return a column of numbers or text without missing entries; raise for an empty one, with its row."""
        column = self.frame[name]
        empty = column.isna().to_numpy() | np.array([str(value).strip() == "" for value in column], dtype=bool)
        if empty.any():
            where = self.place(int(np.argmax(empty)))
            raise ValueError(f"{self.path}: {where}: {name} ({option}) must not be empty; leave the row out")
        if column.dtype.kind in "iub":
            return np.asarray(column.to_numpy())
        if column.dtype.kind == "f":
            return np.asarray(column.to_numpy(dtype=np.float64))
        try:
            return np.array([_text(value) for value in column])
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: {name} ({option}) must be UTF-8, got {error.object[:40]!r}") from None

    def features(self, given: Sequence[str]) -> list[str]:
        """Names of the columns of values."""
        if given:
            return [pick(name, "features", self.columns, self.path) for name in given]
        if self.unnamed:
            ignored = " ".join(repr(name) for name in self.unnamed)
            raise ValueError(
                f"{self.path}: {self.unnamed[0]} is a column without a name, such as the index that to_csv() of pandas "
                f"writes; leave it out (--ignore {ignored}, or index=False in to_csv), or give it a name"
            )
        if not self.others:
            raise ValueError(f"features: {self.path} has no column of values beside {', '.join(self.columns)}")
        return self.others


def _check_once(names: list[str], path: Path) -> None:
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise ValueError(f"{path} must have each column once, and {twice!r} is there {names.count(twice)} times")


def _named(cells: list[str]) -> list[str]:
    """Names of the columns in a header, with pandas' names for those without one."""
    names = [cell or f"Unnamed: {i}" for i, cell in enumerate(cells)]
    return [name if cell or name not in cells else f"{name}.1" for name, cell in zip(names, cells, strict=True)]


def _text(value: Any) -> str:
    return (value.decode() if isinstance(value, bytes) else str(value)).strip()


def _wide(table: _Table, reading: Reading) -> Found:
    columns = _wide_channels(table, reading.features)
    values = np.stack([np.stack([table.numbers(name) for name in names], 1) for names in columns.values()], 1)
    present = ~np.isnan(values).all(1)  # (n, time)
    lengths = present.shape[1] - np.argmax(present[:, ::-1], axis=1)  # empty cells at the end: a shorter series
    lengths[~present.any(1)] = present.shape[1]
    x = [one[:, :length] for one, length in zip(values, lengths.tolist(), strict=True)]
    y = None if table.target is None else table.texts(table.target, "target")
    names = _names(table, reading)
    fields = {name: table.texts(name, "group, test_where") for name in table.described}
    steps = tuple(columns["0"]) if table.header and list(columns) == ["0"] else ()
    return Found(table.path, x, y, tuple(columns), names, fields, layout="wide", header=table.header, columns=steps)


def _names(table: _Table, reading: Reading) -> tuple[str, ...] | None:
    return None if reading.id is None else tuple(str(name) for name in table.texts(reading.id, "id"))


def _wide_channels(table: _Table, given: Sequence[str]) -> dict[str, list[str]]:
    """Columns of each channel, in time order."""
    if not given:
        return {"0": table.features(())}
    if all(name in table.columns for name in given):
        return {"0": list(given)}
    channels: dict[str, list[str]] = {}
    for name in given:
        ends = {column: re.fullmatch(rf"{re.escape(name)}[_.\- ]?(\d+)", column) for column in table.others}
        found = [(int(match[1]), column) for column, match in ends.items() if match]
        if not found:
            pick(name, "features", table.columns, table.path)
        channels[name] = [column for _, column in sorted(found)]
    counts = {len(columns) for columns in channels.values()}
    if len(counts) > 1:
        told = ", ".join(f"{name} has {len(columns)}" for name, columns in channels.items())
        raise ValueError(f"features: each channel of {table.path} must have as many columns: {told}")
    return channels


def _long(table: _Table, reading: Reading) -> Found:
    frame, path = table.frame, table.path
    names = table.features(reading.features)
    values = [table.numbers(name) for name in names]
    ids = np.zeros(len(frame), dtype=np.int64) if reading.id is None else table.texts(reading.id, "id")
    codes, known = table.pandas.factorize(ids)
    times, units = (np.arange(len(frame)), 1.0) if reading.time is None else _times(table, reading.time)
    order = np.lexsort((times, codes))  # stable: rows of one time stay as they are, and are refused below
    codes, times = codes[order], times[order]
    same = (codes[1:] == codes[:-1]) & (times[1:] == times[:-1])
    if same.any():
        at = int(np.argmax(same))
        first, second = order[at], order[at + 1]
        of = "" if reading.id is None else f" of {reading.id} {known[codes[at]]}"
        hint = "" if reading.id is not None else ". Where there are several series, id (--id) names their column"
        raise ValueError(
            f"{path}: {table.place(first)} and {table.place(second)}{of} have the same {reading.time}, "
            f"{frame[reading.time].iloc[first]}; keep one row for each time ({int(same.sum())} are too many){hint}"
        )
    matrix = np.stack(values)[:, order]  # (channels, rows)
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    if reading.time_differences:
        if reading.time is None:
            raise ValueError("time_differences needs the column of the time: time (--time)")
        exact = times if times.dtype.kind == "f" else times.view(np.uint64)  # they ascend: no difference overflows
        since = np.diff(exact, prepend=exact[:1]).astype(np.float64) / units
        since[starts] = 0
        matrix, names = np.concatenate([matrix, since[None]]), [*names, "dt"]
    ends = np.r_[starts[1:], len(codes)]
    x = [matrix[:, start:end] for start, end in zip(starts, ends, strict=True)]
    called = None if reading.id is None else tuple(str(name) for name in known)
    y = None
    if table.target is not None:
        y = _long_target(table, reading, order, list(zip(starts, ends, strict=True)), called)
    fields = {
        name: _constant(table, name, "group, test_where", order, starts, ends, called) for name in table.described
    }
    return Found(path, x, y, tuple(names), called, fields, layout="long", header=table.header)


def _times(table: _Table, name: str) -> tuple[Array, float]:
    """Sortable times, as integers if they are such, and how many of their units make a second."""
    column = table.frame[name]
    empty = column.isna().to_numpy()
    if empty.any():
        raise ValueError(f"{table.path}: {table.place(int(np.argmax(empty)))}: {name} (time) must not be empty")
    if column.dtype.kind in "iufb":
        exact = {"f": np.float64, "u": np.uint64}.get(column.dtype.kind, np.int64)
        return np.asarray(column.to_numpy(dtype=exact)), 1.0
    pandas = table.pandas
    try:
        dates = (
            column
            if column.dtype.kind == "M"
            else pandas.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{table.path}: {name} (time) must hold numbers or dates: {error}") from None
    wrong = dates.isna().to_numpy()
    if wrong.any():
        row = int(np.argmax(wrong))
        value = str(column.iloc[row])[:40]
        hint = "; in nanoseconds, dates go from 1678 to 2261" if re.match(r"\d{4}-", value) else ""
        raise ValueError(
            f"{table.path}: {table.place(row)}: {name} (time) must be a number or a date such as 2024-01-31 12:00, got "
            f"{value!r}{hint}"
        )
    naive = dates.dt.tz_convert(None) if dates.dt.tz is not None else dates
    found = naive.to_numpy()  # in the unit that pandas chose: nanoseconds span no more than 584 years
    unit, _ = np.datetime_data(found.dtype)
    return found.astype(np.int64), _UNITS[unit]


def _constant(
    table: _Table,
    name: str,
    option: str,
    order: Array,
    starts: Array,
    ends: Array,
    called: tuple[str, ...] | None,
) -> Array:
    """Value of a column for each series; raise if it is not constant within a series."""
    column = table.texts(name, option)[order]
    changes = np.flatnonzero(column[1:] != column[:-1]) + 1
    wrong = np.setdiff1d(changes, starts)
    if len(wrong):
        number = int(np.searchsorted(starts, wrong[0], side="right")) - 1
        of = "the series" if called is None else f"{called[number]}"
        hint = "; a target at every step is per_step (--per-step)" if option == "target" else ""
        raise ValueError(
            f"{table.path}: {table.place(int(order[wrong[0]]))}: {name} ({option}) must be the same in all of {of}, "
            f"got {column[starts[number]]} and {column[wrong[0]]}{hint}"
        )
    return column[starts]


def _long_target(
    table: _Table, reading: Reading, order: Array, spans: list[tuple[Any, Any]], called: tuple[str, ...] | None
) -> Array:
    assert table.target is not None
    starts, ends = (np.array(each) for each in zip(*spans, strict=True))
    if not reading.per_step:
        return _constant(table, table.target, "target", order, starts, ends, called)
    from .reading import parsed

    column = parsed(table.texts(table.target, "target"))[order]
    found = np.empty(len(spans), dtype=object)
    for i, (start, end) in enumerate(spans):
        found[i] = column[start:end]
    return found
