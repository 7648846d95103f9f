"""Reader of series in .npz files: one array, padded or concatenated, with lengths and further fields of each series."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...npz import decoded, read_arrays
from ..collection import Array
from .options import Reading
from .values import SeriesFile, pick

_USUAL = {
    "x": ("x", "X", "data"),
    "lengths": ("lengths", "length"),
    "target": ("y", "Y", "labels", "label", "target"),
}


def read_npz(path: Path, reading: Reading, *, target_needed: bool = True) -> SeriesFile:
    """Read an .npz file.

    x is (n, channels, time) or (n, time), truncated to `lengths` if there are any; or all series concatenated along
    time, the first dimension, (sum of lengths, ...).
    """
    arrays = read_arrays(path)
    x_name = _field("x", reading, arrays, path, "the series")
    lengths_name = _field("lengths", reading, arrays, path)
    values, lengths = arrays[x_name], arrays.get(lengths_name)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{path}: {x_name} must hold numbers, got {values.dtype}")
    x = _series(values, lengths, reading, f"{path}: {x_name}")
    y_name = ""
    if target_needed or reading.target in (None, *arrays):
        y_name = _field("target", reading, arrays, path, "the labels" if target_needed else "")
    if y_name and arrays[y_name].shape[:1] != (len(x),):
        if target_needed:
            what = f"one entry for each of the {len(x)} series, got {arrays[y_name].shape}"
            raise ValueError(f"{path}: {y_name} must have {what}")
        y_name = ""
    used = (y_name if target_needed else None, reading.group, reading.tested_column)
    fields = {}
    for name, array in arrays.items():
        if name == y_name or (name not in (x_name, lengths_name) and array.shape == (len(x),)):
            try:
                fields[name] = decoded(array, "strict" if name in used else "replace")
            except UnicodeDecodeError as error:
                what = f"text in UTF-8, got the bytes {error.object[:40]!r}"
                raise ValueError(f"{path}: {name} must hold {what}") from None
    y = fields.get(y_name)
    fields = {name: array for name, array in fields.items() if array.ndim == 1}
    return SeriesFile(path, reading, x, y, fields=fields)


def _field(option: str, reading: Reading, arrays: dict[str, Array], path: Path, needed: str = "") -> str:
    """Field that an option names, or the first of the usual names; "" if there is none and nothing is `needed`."""
    name, usual = getattr(reading, option), _USUAL[option]
    if name is not None:
        return pick(name, option, arrays, path)
    field = next((name for name in usual if name in arrays), "")
    if needed and not field:
        listed = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"
        raise ValueError(f"{option}: {path} has no field {', '.join(usual)}; name that of {needed}. It has {listed}")
    return field


def _series(values: Array, lengths: Array | None, reading: Reading, name: str) -> list[Array]:
    if lengths is None:
        return list(_padded(values, reading, name))
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (len(lengths) and lengths.min() < 1):
        raise ValueError(f"{name}: lengths must be whole numbers of at least 1, in one dimension")
    if values.ndim >= 2 and len(values) == len(lengths):
        padded = _padded(values, reading, name)
        if lengths.max(initial=1) > padded.shape[2]:
            raise ValueError(f"{name} has {padded.shape[2]} steps, and lengths go up to {lengths.max()}")
        return [one[:, :length] for one, length in zip(padded, lengths.tolist(), strict=True)]
    total = int(lengths.sum())
    if values.ndim and len(values) == total:
        flat = values.reshape(len(values), -1)  # (sum of lengths, channels)
        return [one.T for one in np.split(flat, np.cumsum(lengths)[:-1])]
    what = f"one entry for each of the {len(lengths)} lengths, or their sum, {total}, in its first dimension"
    raise ValueError(f"{name} must have {what}, got {values.shape}")


def _padded(values: Array, reading: Reading, name: str) -> Array:
    """Return values as (n, channels, time)."""
    if values.ndim not in (2, 3):
        what = "shape (n, channels, time) or (n, time), or all series one after the other and a field of lengths"
        raise ValueError(f"{name} must have the {what}, got {values.shape}")
    if 0 in values.shape:
        raise ValueError(f"{name} must hold at least one series of one step, got {values.shape}")
    if values.ndim == 2:
        return values[:, None]
    return values.transpose(0, 2, 1) if reading.time_first else values
