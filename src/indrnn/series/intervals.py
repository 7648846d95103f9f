"""How wide the intervals of forecasts are: ranks of residuals that were not trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np

from .collection import Array

RECENT = 256
"""Forecasts since the fit whose residuals count, of each series: the last ones."""
KEPT = 1000
"""Held-back windows whose residuals are kept with a forecaster; of more, some are drawn evenly."""


def half_widths(residuals: Array, coverage: float) -> Array:
    """How far an interval of this coverage reaches to each side, (horizon, channels), from absolute residuals.

    At each step ahead it is the residual that ⌈(n + 1) · coverage⌉ of n do not exceed: the largest, where n is small.
    It never shrinks with the steps ahead.

    Args:
        residuals: (windows, horizon, channels), of forecasts that were not trained on; NaN where there is none yet,
            with one at least at each step ahead.
        coverage: share of values that should lie within.
    """
    count = np.isfinite(residuals).sum(0)  # (horizon, channels)
    rank = np.minimum(count, np.ceil((count + 1) * coverage)).astype(np.int64)
    found = np.take_along_axis(np.sort(residuals, 0), rank[None] - 1, 0)[0]  # NaN is sorted to the end
    return np.maximum.accumulate(found, 0)


def checksum(series: Array) -> tuple[int, str]:
    """The steps of a series (channels, time), and a checksum of their values: by it the series is known again."""
    return series.shape[1], hashlib.blake2b(_bytes(series), digest_size=16).hexdigest()


def end_of(known: Collection[tuple[int, str]], series: Array) -> int | None:
    """How many of the first steps of a series (channels, time) are one of those with these checksums; the most."""
    lengths = sorted({length for length, _ in known if length <= series.shape[1]})
    content, before, found = hashlib.blake2b(digest_size=16), 0, None
    for length in lengths:
        content.update(_bytes(series[:, before:length]))
        before = length
        found = length if (length, content.hexdigest()) in known else found
    return found


def _bytes(series: Array) -> bytes:
    return np.ascontiguousarray(series.T, dtype=np.float64).tobytes()  # step after step, so that more can follow
