"""How wide the intervals of forecasts are: ranks of residuals that were not trained on."""

from __future__ import annotations

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


def end_of(last: Array, series: Array) -> int | None:
    """The step after the last place at which these steps (channels, n) stand in a series (channels, time), or None."""
    size = last.shape[1]
    if series.shape[1] < size or len(series) != len(last):
        return None
    pieces = np.lib.stride_tricks.sliding_window_view(series, size, axis=1)  # (channels, places, n)
    places = np.flatnonzero((pieces == last[:, None]).all((0, 2)))
    return int(places[-1]) + size if len(places) else None
