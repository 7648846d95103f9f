"""Forecasts without a network, the period of a season, and the error of forecasts that roll on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .collection import Array


def naive(past: Array, horizon: int) -> Array:
    """The last value again: of (time, ...), (horizon, ...)."""
    return np.repeat(past[-1:], horizon, 0)


def seasonal_naive(past: Array, horizon: int, period: int) -> Array:
    """The last period again: of (time, ...), (horizon, ...)."""
    return past[len(past) - period + np.arange(horizon) % period]  # type: ignore[no-any-return]


def find_period(series: Sequence[Array], longest: int = 400) -> int:
    """The lag, from 2 on, of the highest peak of the autocorrelation of the differences; 1 where none is above 0.3.

    Args:
        series: each (channels, time).
        longest: lag that is looked at; no more than a third of a series.
    """
    most = min(longest, min(one.shape[1] for one in series) // 3)
    total, counted = np.zeros(most + 2), 0
    for one in series:
        for channel in one:
            steps = np.diff(np.nan_to_num(channel.astype(np.float64), nan=float(np.nanmean(channel))))
            size = float((steps**2).sum())
            steps = steps - steps.mean()
            power = float((steps**2).sum())
            if power > 1e-20 * size:  # what never changes, or evenly, says nothing of a season
                counted += 1
                total[1:] += [
                    float((steps[lag:] * steps[: len(steps) - lag]).sum()) / power for lag in range(1, most + 2)
                ]
    total /= max(1, counted)
    peaks = [lag for lag in range(2, most + 1) if total[lag] > max(total[lag - 1], total[lag + 1], 0.3)]
    return max(peaks, key=lambda lag: total[lag]) if peaks else 1


def rolling_error(forecast: Callable[[Array], Array], y: Array, horizon: int, tested: int) -> float:
    """The mean absolute error of forecasts from each step of the last `tested` on that has `horizon` steps after it.

    Args:
        forecast: of the values before, (time,), the next (horizon,).
        y: (time,).
        horizon: steps of a forecast.
        tested: steps at the end, all of which are forecast at least once.
    """
    starts = range(len(y) - tested, len(y) - horizon + 1)
    return float(np.mean([np.abs(forecast(y[:start]) - y[start : start + horizon]).mean() for start in starts]))
