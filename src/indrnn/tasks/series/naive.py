"""Naive forecasts, detection of the seasonal period, and the error of rolling forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .collection import Array


def naive(past: Array, horizon: int) -> Array:
    """Repeat the last value: (time, ...) to (horizon, ...)."""
    return np.repeat(past[-1:], horizon, 0)


def seasonal_naive(past: Array, horizon: int, period: int) -> Array:
    """Repeat the last period: (time, ...) to (horizon, ...)."""
    return past[len(past) - period + np.arange(horizon) % period]  # type: ignore[no-any-return]


def find_period(series: Sequence[Array], longest: int = 400) -> int:
    """Seasonal period: lag (at least 2) of the highest autocorrelation peak of the differences; 1 if none is above 0.3.

    Args:
        series: each (channels, time).
        longest: largest lag considered, and at most a third of the shortest series.
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
    """Mean absolute error of forecasts from each of the last `tested` steps that has `horizon` values to compare with.

    Args:
        forecast: function from the past values, (time,), to the next ones, (horizon,).
        y: (time,).
        horizon: steps per forecast.
        tested: number of steps at the end, each of which is forecast at least once.
    """
    starts = range(len(y) - tested, len(y) - horizon + 1)
    return float(np.mean([np.abs(forecast(y[:start]) - y[start : start + horizon]).mean() for start in starts]))
