"""Preprocessing of series: standardised by training statistics, with a mask for channels that can have missing values.

Raw signals whose power does not depend on the class are also normalised to one power, by the steps so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .collection import Array

EXPLAINED = 0.25  # share of the variance of power that classes explain, from which on the power is left as it is
_PRIOR_STEPS = 5.0  # steps of the training deviation that count in the running power of a series


@dataclass(frozen=True)
class Preparation:
    """Preprocessing by the statistics of the training series, computed by `fitted`; call it on a series."""

    mean: tuple[float, ...]
    """Mean of each channel, over the values that are there."""
    scale: tuple[float, ...]
    """Standard deviation of each channel; 1 for a channel that is constant."""
    masked: tuple[int, ...] = ()
    """Channels that had missing values in training: each gets a further channel, 1 where the value is there."""
    time_channel: int | None = None
    """Channel of times, which is replaced by the differences to the step before."""
    normalise_rms: bool = False
    """Division of each channel but that of times, at each step, by its root mean square over the steps until then, to
    which `_PRIOR_STEPS` steps of training's deviation are counted: a recording may be louder than another."""

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "masked"):  # lists, in a file
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def fitted(cls, series: Sequence[Array], time_channel: int | None = None) -> Preparation:
        """Compute the statistics of training series (channels, time); times must not decrease within one."""
        channels = len(series[0])
        if time_channel is not None:
            if not -channels <= time_channel < channels:
                raise ValueError(f"time_channel must be a channel from 0 to {channels - 1}, got {time_channel!r}")
            time_channel %= channels
            for i, values in enumerate(series):
                times = values[time_channel]
                if not np.isfinite(times).all() or (np.diff(times) < 0).any():
                    raise ValueError(f"time_channel must hold times that never fall, and those of series {i} do")
        changed = [_with_differences(values, time_channel) for values in series]
        count = np.maximum(np.sum([np.isfinite(values).sum(1) for values in changed], 0), 1)
        mean = _total(changed) / count
        deviation = np.sqrt(_total((values - mean[:, None]) ** 2 for values in changed) / count)
        # A constant channel's deviation is rounding
        scale = np.where(deviation > 1e-6 * np.maximum(1e-30, np.abs(mean)), deviation, 1.0)
        missing = np.any([np.isnan(values).any(1) for values in series], 0)
        return cls(mean.tolist(), scale.tolist(), np.flatnonzero(missing).tolist(), time_channel)

    @property
    def channels(self) -> int:
        """Number of channels of a series."""
        return len(self.mean)

    @property
    def input_size(self) -> int:
        """Number of input features of the network: the channels, and a mask for each that can be missing."""
        return self.channels + len(self.masked)

    def names(self, channels: Sequence[str]) -> list[str]:
        """Names of the network's input features, from the names of the channels."""
        return [*channels, *(f"{channels[i]} is there" for i in self.masked)]

    def __call__(self, series: Array, power: Array | None = None) -> Tensor:
        """Convert a series (channels, time) to network input (time, input_size); missing values are set to the mean.

        If it continues an earlier piece, `power` is the result of `running_power` for the steps before.
        """
        values, there = self._standardised(series)
        if self.normalise_rms:
            squares, count = (np.zeros((2, self.channels)) if power is None else power)[:, :, None]
            squares, count = squares + np.square(values).cumsum(1), count + there.cumsum(1)
            rms = np.sqrt((squares + _PRIOR_STEPS) / (count + _PRIOR_STEPS))
            if self.time_channel is not None:
                rms[self.time_channel] = 1.0
            values = values / rms
        return torch.from_numpy(np.concatenate([values, there[list(self.masked)]]).T.astype(np.float32))

    def running_power(self, series: Array, before: Array | None = None) -> Array:
        """Sum of squares and number of values of each channel, (2, channels), including the steps `before`."""
        values, there = self._standardised(series)
        power = np.stack([np.square(values).sum(1), there.sum(1)])
        return power if before is None else power + before

    def _standardised(self, series: Array) -> tuple[Array, Array]:
        """Standardised values (channels, time), 0 where missing, and a mask of those present."""
        mean, scale = np.array([self.mean, self.scale])[:, :, None]
        values = (_with_differences(series, self.time_channel) - mean) / scale
        there = np.isfinite(values)
        return np.where(there, values, 0.0), there


def _total(series: Iterable[Array]) -> Array:
    return np.asarray(sum(np.nansum(values, 1, dtype=np.float64) for values in series))


def rms_depends_on_class(series: Sequence[Array], classes: Array, time_channel: int | None = None) -> bool:
    """Whether the power of a series depends on its class: classes explain a quarter of its variance in some channel."""
    loudness = np.log(np.stack([moments(values)[1] for values in series]).clip(1e-12))
    if time_channel is not None:
        loudness = np.delete(loudness, time_channel, 1)
    loudness -= loudness.mean(0)
    of_class = [loudness[classes == name] for name in np.unique(classes)]
    explained = sum(len(rows) * np.square(rows.mean(0)) for rows in of_class)
    total = np.square(loudness).sum(0)
    return bool(((explained > EXPLAINED * total) & (total > 1e-6 * len(loudness))).any())  # or they are equally loud


def moments(series: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each channel, (channels,), over the values present; 0 if there are none."""
    there = np.isfinite(series)
    count = there.sum(1).clip(1)
    values = np.where(there, series, 0.0).astype(np.float64)
    mean = values.sum(1) / count
    rest = np.where(there, values - mean[:, None], 0.0)
    return mean, np.sqrt(np.square(rest).sum(1) / count)


def from_first_time(series: Array, channel: int, first: Any = None) -> tuple[Array, Any]:
    """Make times relative to the first, as Unix times lose precision in float32; return series and first time.

    If the series (channels, time) continues an earlier piece, `first` is the first time of that.
    """
    times, moved = series[channel], series.astype(np.float64)
    # Whole numbers of nanoseconds do not survive float64 either
    if times.dtype.kind in "iu" and (first is None or isinstance(first, int)):
        first = int(times[0]) if first is None else first
        moved[channel] = [int(time) - first for time in times.tolist()]
        return moved, first
    finite = moved[channel][np.isfinite(moved[channel])]
    if first is None and len(finite):
        first = float(finite[0])
    moved[channel] -= first or 0.0
    return moved, first


def _with_differences(series: Array, time_channel: int | None) -> Array:
    """Replace a channel of times by its differences, 0 at the first step."""
    if time_channel is None:
        return series
    changed = series.astype(np.float64)
    changed[time_channel] = np.diff(changed[time_channel], prepend=changed[time_channel][:1])
    return changed
