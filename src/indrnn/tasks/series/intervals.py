"""Widths of prediction intervals, from ranked residuals of held-out forecasts."""

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
    """Half-widths of intervals of this coverage, (horizon, channels), from absolute residuals.

    At each step ahead, the half-width is the ⌈(n + 1) · coverage⌉-th smallest of n residuals, or the largest if n
    is too small for that. It never decreases with the steps ahead.

    Args:
        residuals: (windows, horizon, channels), of held-out forecasts; NaN where there is none yet, with at least one
            at each step ahead.
        coverage: fraction of the values that should lie within.
    """
    count = np.isfinite(residuals).sum(0)  # (horizon, channels)
    rank = np.minimum(count, np.ceil((count + 1) * coverage)).astype(np.int64)
    found = np.take_along_axis(np.sort(residuals, 0), rank[None] - 1, 0)[0]  # NaN is sorted to the end
    return np.maximum.accumulate(found, 0)


def checksum(series: Array) -> tuple[int, str]:
    """Number of steps of a series (channels, time) and a checksum of their values, to recognise the series."""
    return series.shape[1], hashlib.blake2b(_bytes(series), digest_size=16).hexdigest()


def end_of(known: Collection[tuple[int, str]], series: Array) -> int | None:
    """Length of the longest prefix of a series (channels, time) whose checksum is in `known`; None if none is."""
    lengths = sorted({length for length, _ in known if length <= series.shape[1]})
    content, before, found = hashlib.blake2b(digest_size=16), 0, None
    for length in lengths:
        content.update(_bytes(series[:, before:length]))
        before = length
        found = length if (length, content.hexdigest()) in known else found
    return found


def _bytes(series: Array) -> bytes:
    return np.ascontiguousarray(series.T, dtype=np.float64).tobytes()  # step after step, so that more can follow
