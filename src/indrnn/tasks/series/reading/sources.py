"""`read`: a collection of series from a file or a folder of any supported kind."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..collection import Collection, checked_series, target_of
from . import Reading
from .formats import SOUNDS, read_folder, read_npz, read_ts
from .table import TABLES, read_table
from .values import SeriesFile, parsed, pick, where

KINDS = ".npz, .ts, .csv, .tsv, .parquet, or a folder of WAV files by class"
_READERS: dict[str, Callable[..., SeriesFile]]
_READERS = {".npz": read_npz, ".ts": read_ts, "a folder": read_folder, "table": read_table}


def read(
    path: str | Path, *, test: str | Path | None = None, target_needed: bool = True, **options: object
) -> Collection:
    """Read series from a file: .npz, .ts of UCR and UEA, CSV or Parquet, or a folder of WAV files by class.

    Args:
        path: the file or folder. For NAME_TRAIN.ts, NAME_TEST.ts in the same folder is read as the test split.
        test: a file of the same kind with the test split.
        target_needed: whether labels are required.
        options: fields of `Reading`.

    Example:
        >>> read("sensors.csv", id="run", time="t", target="label", group="subject")  # doctest: +SKIP
    """
    return read_with(Path(path), Reading(**options), test=test, target_needed=target_needed).collection  # type: ignore[arg-type]


class Read(NamedTuple):
    """A collection, and the options to read others like it."""

    collection: Collection
    reading: Reading  # with what follows from the file
    test: Path | None = None  # file of the test split


def read_with(
    path: Path, reading: Reading, *, test: str | Path | None = None, target_needed: bool = True, alone: bool = False
) -> Read:
    """Read a file with the given options; see `read`. `alone`: do not search for a matching test file."""
    # One that came out of another file has a header, or no layout, and may ignore columns that this file lacks
    own = not alone or (reading.header is None and reading.layout != "auto")
    files = [_read_file(path, reading, target_needed=target_needed, ignore_needed=own)]
    reading = files[0].reading
    if test is None and not alone and path.suffix.lower() == ".ts" and path.stem.upper().endswith("_TRAIN"):
        names = (path.stem[: -len("_TRAIN")] + word + path.suffix for word in ("_TEST", "_test", "_Test"))
        test = next(filter(Path.is_file, map(path.with_name, names)), None)
    if test is not None:
        test = Path(test)
        files.append(_read_file(test, reading, target_needed=target_needed, ignore_needed=False))
        one, two = (len(file.x[0]) for file in files)
        if one != two:
            raise ValueError(f"{test} has {two} channels, and {path} has {one}; they must be of one kind")
    return Read(_joined(files, reading), reading, test)


def kind_of(path: Path) -> str:
    """Reader for a path: "a folder", "table", or the suffix of the file's name."""
    if path.is_dir():
        return "a folder"
    suffix = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    return "table" if suffix in TABLES else suffix


def _read_file(path: Path, reading: Reading, *, target_needed: bool, ignore_needed: bool) -> SeriesFile:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; DATA is {KINDS}")
    kind = kind_of(path)
    if kind in SOUNDS:
        raise ValueError(f"{path} is one sound; DATA is the folder of the folders of all classes")
    if kind not in _READERS:
        raise ValueError(f"{path} must be {KINDS}, got {path.suffix or 'a name without an ending'}")
    if kind != "a folder" and not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    for name, used in vars(reading.only_for(kind)).items():
        if getattr(reading, name) != used:
            raise ValueError(f"{name} is not for {path.name}: {'tables' if kind == 'table' else kind} do not take it")
    options = {"ignore_needed": ignore_needed} if kind == "table" else {}
    return _READERS[kind](path, reading, target_needed=target_needed, **options)


def _joined(files: list[SeriesFile], reading: Reading) -> Collection:
    """Join one or two files into one collection; the series of the second are the test split."""
    first = files[0]
    x = [series for file in files for series in checked_series(file.x, file.describe, first.channels)]
    labels = [file.y for file in files if file.y is not None]
    y = target_of(parsed(*labels), len(x)) if len(labels) == len(files) else None
    if y is not None and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    named = [file.names for file in files if file.names is not None]
    names = tuple(chain(*named)) if len(named) == len(files) else None
    shared = [name for name in first.fields if all(name in file.fields for file in files)]
    fields = {name: parsed(*(file.fields[name] for file in files)) for name in shared}
    groups = fields.get(reading.group or "")
    if reading.group is not None and groups is None and y is not None:
        pick(reading.group, "group", fields, first.path)
    test = None
    if len(files) > 1:
        test = np.arange(len(x)) >= len(first.x)
        if reading.test_where is not None:
            raise ValueError("test_where and a test file are two ways to say which series are for test; give one")
    elif reading.test_where is not None and y is not None:
        test = where(reading.test_where, fields, first.path)
        if test.all() or not test.any():
            which = f"{'all' if test.all() else 'none'} of the {len(x)} series of {first.path}"
            raise ValueError(f"test_where: {reading.test_where} holds for {which}")
    channels = first.channels or tuple(map(str, range(len(x[0]))))
    return Collection(x, y, channels, names, groups, test)
