"""Readers of series in .npz files, and in the .ts format of the UCR and UEA archives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...npz import decoded, read_arrays
from ..collection import Array
from . import Reading
from .values import SeriesFile, is_number, number, pick

_USUAL = {
    "x": ("x", "X", "data"),
    "lengths": ("lengths", "length"),
    "target": ("y", "Y", "labels", "label", "target"),
}
_MISSING = ("?", "")
_Header = dict[str, list[str]]


# ---- .npz: one array, padded or concatenated, with lengths and further fields of each series


def read_npz(path: Path, reading: Reading, *, target_needed: bool) -> SeriesFile:
    """Read an .npz file.

    x is (n, channels, time) or (n, time), truncated to `lengths` if there are any; or all series concatenated along
    time, the first dimension, (sum of lengths, ...).
    """
    arrays = read_arrays(path)
    x_name = _field("x", reading, arrays, path, "the series")
    lengths_name = _field("lengths", reading, arrays, path)
    x = _npz_series(arrays[x_name], arrays.get(lengths_name), reading, f"{path}: {x_name}")
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
    return SeriesFile(path, reading, x, y, fields={name: array for name, array in fields.items() if array.ndim == 1})


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


def _npz_series(values: Array, lengths: Array | None, reading: Reading, name: str) -> list[Array]:
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold numbers, got {values.dtype}")
    if lengths is not None:
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (len(lengths) and lengths.min() < 1):
            raise ValueError(f"{name}: lengths must be whole numbers of at least 1, in one dimension")
        if values.ndim < 2 or len(values) != len(lengths):
            total = int(lengths.sum())
            if not values.ndim or len(values) != total:
                what = f"one entry for each of the {len(lengths)} lengths, or their sum, {total}, in its first"
                raise ValueError(f"{name} must have {what} dimension, got {values.shape}")
            flat = values.reshape(total, -1)  # (sum of lengths, channels)
            return [one.T for one in np.split(flat, np.cumsum(lengths)[:-1])]
    if values.ndim not in (2, 3):
        what = "shape (n, channels, time) or (n, time), or all series one after the other and a field of lengths"
        raise ValueError(f"{name} must have the {what}, got {values.shape}")
    if 0 in values.shape:
        raise ValueError(f"{name} must hold at least one series of one step, got {values.shape}")
    padded = values[:, None] if values.ndim == 2 else values.transpose(0, 2, 1) if reading.time_first else values
    if lengths is None:
        return list(padded)
    if lengths.max() > padded.shape[2]:
        raise ValueError(f"{name} has {padded.shape[2]} steps, and lengths go up to {lengths.max()}")
    return [one[:, :length] for one, length in zip(padded, lengths.tolist(), strict=True)]


# ---- .ts: a line per series, channels separated by colons


def read_ts(path: Path, reading: Reading, *, target_needed: bool) -> SeriesFile:
    """Read a .ts file: one or more channels, equal or different lengths; `?` and NaN are missing values.

    A label may be missing only if labels are not needed; the result then has none.
    """
    x: list[Array] = []
    labels: list[str | None] = []
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        numbered = ((f"{path}: line {number}", line.strip()) for number, line in enumerate(file, 1))
        lines = ((where, text) for where, text in numbered if text and not text.startswith(("#", "%")))
        header = _header(lines, path)
        labelled = _flag(header, "classlabel") or _flag(header, "targetlabel")
        if target_needed and not labelled:
            raise ValueError(f"{path} has no labels: neither @classLabel true nor @targetLabel true")
        for where, text in lines:
            channels = text.split(":")
            if labelled and len(channels) < 2:
                raise ValueError(f"{where} must have values, a colon and a label, got {text[:40]!r}")
            labels.append(_label(channels.pop().strip(), header, where) if labelled else None)
            if labels[-1] is None and target_needed:
                what = "no target after its last colon, but ?, NaN or nothing"
                raise ValueError(f"{where} has {what}; leave the line out")
            x.append(_series(channels, header, where))
            if len(x[-1]) != len(x[0]):
                raise ValueError(f"{where} must have {len(x[0])} channels as those before, got {len(x[-1])}")
    if not x:
        raise ValueError(f"{path} must have at least one series after @data, got none")
    return SeriesFile(path, reading, x, None if None in labels else np.array(labels))


def _header(lines: Iterable[tuple[str, str]], path: Path) -> _Header:
    """Values by name of the lines up to @data, such as `@dimensions 2`."""
    header: _Header = {}
    for where, text in lines:
        if not text.startswith("@"):
            raise ValueError(f"{where} must start with @, or # for a comment, before @data")
        name, *values = text[1:].split() or [""]
        if not name:
            raise ValueError(f"{where} must have a name after @, such as @data")
        if name.lower() == "data":
            return header
        header[name.lower()] = values
        if _flag(header, "timestamps"):
            what = "@timeStamps true is not supported; a CSV in long form with a column of times is"
            raise ValueError(f"{where}: {what}")
    raise ValueError(f"{path} must have a line @data: it is no .ts file, or an empty one")


def _flag(header: _Header, name: str) -> bool:
    return header.get(name, [""])[:1] in (["true"], ["True"], ["TRUE"])


def _series(parts: list[str], header: _Header, where: str) -> Array:
    """Values (channels, time)."""
    dimensions = header.get("dimensions", header.get("dimension"))
    if dimensions and dimensions[0].isdigit() and int(dimensions[0]) != len(parts):
        raise ValueError(f"{where} must have {dimensions[0]} channels, as @dimensions says, got {len(parts)}")
    channels = [_values(part, f"{where}, channel {i}") for i, part in enumerate(parts)]
    longest = max(map(len, channels))  # a channel that ends early is missing from there on
    return np.array([values + [np.nan] * (longest - len(values)) for values in channels])


def _label(text: str, header: _Header, where: str) -> str | None:
    known = header.get("classlabel", [])[1:]
    if text in _MISSING and text not in known:
        return None
    if known and text not in known:
        classes = " ".join(known)
        hint = "; divide those by white space, without quotes or commas" if re.search("[\"',;]", classes) else ""
        raise ValueError(f"{where} has the label {text!r}, which is not among those of @classLabel, {classes}{hint}")
    if _flag(header, "classlabel"):
        return text
    if not is_number(text):
        raise ValueError(f"{where} must have a number as its target, as @targetLabel says, got {text[:40]!r}")
    return None if math.isnan(number(text)) else text


def _values(text: str, where: str) -> list[float]:
    words = [word.strip() for word in text.split(",")]
    try:
        return [number(word) if word not in _MISSING else np.nan for word in words]
    except ValueError:
        wrong = next(i for i, word in enumerate(words) if word not in _MISSING and not is_number(word))
        raise ValueError(f"{where}: value {wrong} must be a number or ?, got {words[wrong][:40]!r}") from None
