"""`read`: a collection of series from a file or a folder of any supported kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from . import archives, sounds, tables, ts
from .collection import Collection
from .reading import Array, Found, MissingPackageError, Reading, check_used, parsed, where

__all__ = ["MissingPackageError", "Read", "Reading", "kind_of", "read", "read_with"]

KINDS = ".npz, .ts, .csv, .tsv, .parquet, or a folder of WAV files by class"


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


@dataclass(frozen=True)
class Read:
    """A collection, and the options to read others like it."""

    collection: Collection
    reading: Reading
    """With what follows from this file: the rate of the sounds, the form and the columns of the table."""
    test: Path | None = None
    """The file of the test split."""


def read_with(
    path: Path, reading: Reading, *, test: str | Path | None = None, target_needed: bool = True, alone: bool = False
) -> Read:
    """Read a file with the given options; see `read`. `alone`: do not search for a matching test file."""
    # One that came out of another file has a header, or no layout, and may ignore columns that this file lacks
    own = not alone or (reading.header is None and reading.layout != "auto")
    found = [_found(path, reading, target_needed=target_needed, ignore_needed=own)]
    first = found[0]
    reading = replace(reading, rate=first.rate, layout=first.layout, header=first.header)
    if first.columns:
        reading = replace(reading, features=first.columns)  # by name in other files too
    beside = None if alone else _beside(path)
    if test is not None:
        beside = Path(test)
    if beside is not None:
        found.append(_found(beside, reading, target_needed=target_needed, ignore_needed=False))
        if found[1].x[0].shape[0] != found[0].x[0].shape[0]:
            one, two = (each.x[0].shape[0] for each in found)
            raise ValueError(f"{beside} has {two} channels, and {path} has {one}; they must be of one kind")
    for each in found:
        _check_values(each)
    return Read(_joined(found, reading), reading, beside)


def _beside(path: Path) -> Path | None:
    """Path of NAME_TEST.ts for NAME_TRAIN.ts, if it exists."""
    if path.suffix.lower() != ".ts" or not path.stem.upper().endswith("_TRAIN"):
        return None
    stem = path.stem[: -len("_TRAIN")]
    beside = [path.with_name(f"{stem}{word}{path.suffix}") for word in ("_TEST", "_test", "_Test")]
    return next((each for each in beside if each.is_file()), None)


def kind_of(path: Path) -> str:
    """Reader for a path: "a folder", "table", or the suffix of the file's name."""
    if path.is_dir():
        return "a folder"
    suffixes = [suffix.lower() for suffix in path.suffixes] or [""]
    suffix = suffixes[-2] if suffixes[-1] == ".gz" and len(suffixes) > 1 else suffixes[-1]
    return "table" if suffix in tables.SUFFIXES else suffix


def _found(path: Path, reading: Reading, *, target_needed: bool, ignore_needed: bool) -> Found:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; DATA is {KINDS}")
    kind = kind_of(path)
    if kind == "a folder":
        check_used(reading, kind, path)
        return sounds.read_folder(path, reading, target_needed=target_needed)
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    if kind == "table":
        check_used(reading, kind, path)
        return tables.read_table(path, reading, target_needed=target_needed, ignore_needed=ignore_needed)
    if kind == ".npz":
        check_used(reading, kind, path)
        return archives.read_npz(path, reading, target_needed=target_needed)
    if kind == ".ts":
        check_used(reading, kind, path)
        found = ts.read_ts(path, target_needed=target_needed)
        if found.y is None and target_needed:
            raise ValueError(f"{path} has no labels: neither @classLabel true nor @targetLabel true")
        return found
    if kind in sounds.SUFFIXES:
        raise ValueError(f"{path} is one sound; DATA is the folder of the folders of all classes")
    raise ValueError(f"{path} must be {KINDS}, got {path.suffix or 'a name without an ending'}")


def _joined(found: list[Found], reading: Reading) -> Collection:
    """Join one or two files into one collection; the series of the second are the test split."""
    count = len(found[0].x)
    x = [np.ascontiguousarray(one, dtype=np.float32) for each in found for one in each.x]
    y = None
    if all(each.y is not None for each in found):
        y = _together([each.y for each in found if each.y is not None])
    names = None
    if all(each.names is not None for each in found):
        names = tuple(name for each in found for name in each.names or ())
    fields = {
        name: _together([each.fields[name] for each in found])
        for name in found[0].fields
        if all(name in each.fields for each in found)
    }
    groups = fields.get(reading.group or "")
    if reading.group is not None and groups is None and y is not None:
        from .reading import pick

        pick(reading.group, "group", fields, found[0].path)
    test: Array | None = None
    if len(found) > 1:
        test = np.arange(len(x)) >= count
        if reading.test_where is not None:
            raise ValueError("test_where and a test file are two ways to say which series are for test; give one")
    elif reading.test_where is not None and y is not None:
        test = where(reading.test_where, fields, found[0].path)
        if test.all() or not test.any():
            which = "all" if test.all() else "none"
            raise ValueError(
                f"test_where: {reading.test_where} holds for {which} of the {len(x)} series of {found[0].path}"
            )
    return Collection.from_arrays(x, y, channels=found[0].channels, names=names, groups=groups, test=test)


def _together(parts: list[Array]) -> Array:
    if len({part.dtype.kind in "OUS" for part in parts}) > 1:
        parts = [part.astype(str) for part in parts]
    return parsed(np.concatenate(parts))


def _check_values(found: Found) -> None:
    """Raise for invalid values, and say where they are."""
    for number, series in enumerate(found.x):
        if series.shape[1] == 0:
            raise ValueError(f"{found.path}: {found.called(number)} must have at least one step, got none")
        if series.dtype.kind != "f":
            continue
        with np.errstate(over="ignore"):
            narrow = series.astype(np.float32, copy=False)
        if np.isfinite(narrow.sum(dtype=np.float64)):
            continue
        if np.isinf(narrow).any():
            channel, step = (int(i) for i in np.argwhere(np.isinf(narrow))[0])
            value = series[channel, step]
            raise ValueError(
                f"{found.path}: {found.called(number)}, channel {found.channels[channel]}, step {step} is "
                f"{'infinite' if np.isinf(value) else f'too large for float32, {value}'}; leave the value empty (NaN) "
                "where it is not known, or scale the channel"
            )
        if np.isnan(narrow).all():
            raise ValueError(f"{found.path}: {found.called(number)} has no value at all; leave it out")
