"""Reader of the .ts format of the UCR and UEA archives: a line per series, channels separated by colons."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..collection import Array
from .options import Reading
from .values import SeriesFile, is_number, number

_MISSING = ("?", "")
_Header = dict[str, list[str]]


def read_ts(path: Path, reading: Reading, *, target_needed: bool = True) -> SeriesFile:
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
    y = np.array(labels) if None not in labels else None
    return SeriesFile(path, reading, x, y)


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
    series = np.full((len(channels), max(map(len, channels))), np.nan, dtype=np.float64)
    for row, values in zip(series, channels, strict=True):  # a channel that ends early is missing from there on
        row[: len(values)] = values
    return series


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


def _values(text: str, where: str) -> Array:
    words = [word.strip() for word in text.split(",")]
    try:
        return np.array([number(word) if word not in _MISSING else np.nan for word in words])
    except ValueError:
        wrong = next(i for i, word in enumerate(words) if word not in _MISSING and not is_number(word))
        raise ValueError(f"{where}: value {wrong} must be a number or ?, got {words[wrong][:40]!r}") from None
