"""Reader of the .ts format of the UCR and UEA archives: a line per series, channels separated by colons."""

from __future__ import annotations

import math
import re
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
    header: _Header = {}
    x: list[Array] = []
    labels: list[str | None] = []
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for line_number, line in enumerate(lines, 1):
            text, where = line.strip(), f"{path}: line {line_number}"
            if not text or text.startswith(("#", "%")):
                continue
            if "data" not in header:
                _read_header(text, header, where)
                continue
            series, label = _series(text, header, where)
            if label is None and target_needed and _has_target(header):
                what = "no target after its last colon, but ?, NaN or nothing"
                raise ValueError(f"{where} has {what}; leave the line out")
            if x and len(series) != len(x[0]):
                raise ValueError(f"{where} must have {len(x[0])} channels as those before, got {len(series)}")
            x.append(series)
            labels.append(label)
    if "data" not in header:
        raise ValueError(f"{path} must have a line @data: it is no .ts file, or an empty one")
    if not x:
        raise ValueError(f"{path} must have at least one series after @data, got none")
    if target_needed and not _has_target(header):
        raise ValueError(f"{path} has no labels: neither @classLabel true nor @targetLabel true")
    y = np.array(labels) if None not in labels else None
    return SeriesFile(path, x, y, tuple(str(i) for i in range(len(x[0]))))


def _read_header(text: str, header: _Header, where: str) -> None:
    """Add a line such as `@dimensions 2` to the header."""
    if not text.startswith("@"):
        raise ValueError(f"{where} must start with @, or # for a comment, before @data")
    name, *values = text[1:].split() or [""]
    if not name:
        raise ValueError(f"{where} must have a name after @, such as @data")
    header[name.lower()] = values
    if _flag(header, "timestamps"):
        raise ValueError(f"{where}: @timeStamps true is not supported; a CSV in long form with a column of times is")


def _flag(header: _Header, name: str) -> bool:
    return header.get(name, [""])[:1] in (["true"], ["True"], ["TRUE"])


def _has_target(header: _Header) -> bool:
    return _flag(header, "classlabel") or _flag(header, "targetlabel")


def _series(text: str, header: _Header, where: str) -> tuple[Array, str | None]:
    """Parse a line: values (channels, time), and the label, None if there is none."""
    parts = text.split(":")
    label = None
    if _has_target(header):
        if len(parts) < 2:
            raise ValueError(f"{where} must have values, a colon and a label, got {text[:40]!r}")
        label = _label(parts.pop().strip(), header, where)
    dimensions = header.get("dimensions", header.get("dimension"))
    if dimensions and dimensions[0].isdigit() and int(dimensions[0]) != len(parts):
        raise ValueError(f"{where} must have {dimensions[0]} channels, as @dimensions says, got {len(parts)}")
    channels = [_values(part, f"{where}, channel {i}") for i, part in enumerate(parts)]
    series = np.full((len(channels), max(map(len, channels))), np.nan, dtype=np.float64)
    for row, values in zip(series, channels, strict=True):  # a channel that ends early is missing from there on
        row[: len(values)] = values
    return series, label


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
