"""How series become a network's input: standardised by training statistics, with a mask beside what can be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .collection import Array


@dataclass(frozen=True)
class Preparation:
    """Statistics of the training series, and what is made of any series with them. `fitted` takes them."""

    mean: tuple[float, ...]
    """Of each channel, over the values that are there."""
    scale: tuple[float, ...]
    """Its deviation; 1 for a channel that is constant."""
    masked: tuple[int, ...] = ()
    """Channels that had missing values in training: each gets a further channel, 1 where the value is there."""
    time_channel: int | None = None
    """A channel of times, which is replaced by the differences to the step before."""

    @classmethod
    def fitted(cls, series: Sequence[Array], time_channel: int | None = None) -> Preparation:
        """Take the statistics of series (channels, time).

        Args:
            series: of training.
            time_channel: number of the channel that holds times, if one does; it must not fall within a series.
        """
        channels = len(series[0])
        if time_channel is not None:
            if not -channels <= time_channel < channels:
                raise ValueError(f"time_channel must be a channel from 0 to {channels - 1}, got {time_channel!r}")
            time_channel %= channels
            for i, one in enumerate(series):
                steps = np.diff(one[time_channel])
                if not np.isfinite(one[time_channel]).all() or (steps < 0).any():
                    raise ValueError(f"time_channel must hold times that never fall, and those of series {i} do")
        count, total = np.zeros(channels), np.zeros(channels)
        changed = [_with_differences(one, time_channel) for one in series]
        for one in changed:
            count += np.isfinite(one).sum(1)
            total += np.nansum(one, 1, dtype=np.float64)
        mean = total / np.maximum(count, 1)
        squares = np.zeros(channels)
        for one in changed:
            squares += np.nansum((one - mean[:, None]) ** 2, 1, dtype=np.float64)
        deviation = np.sqrt(squares / np.maximum(count, 1))
        # A constant channel's deviation is rounding
        scale = np.where(deviation > 1e-6 * np.maximum(1e-30, np.abs(mean)), deviation, 1.0)
        missing = np.zeros(channels, dtype=bool)
        for one in series:
            missing |= np.isnan(one).any(1)
        masked = tuple(int(i) for i in np.flatnonzero(missing))
        return cls(tuple(mean.tolist()), tuple(scale.tolist()), masked, time_channel)

    @property
    def channels(self) -> int:
        """Of a series."""
        return len(self.mean)

    @property
    def input_size(self) -> int:
        """Features of the network's input: the channels, and a mask for each that can be missing."""
        return self.channels + len(self.masked)

    def names(self, channels: Sequence[str]) -> list[str]:
        """The features of the network's input, from the names of the channels."""
        return [*channels, *(f"{channels[i]} is there" for i in self.masked)]

    def __call__(self, series: Array) -> Tensor:
        """A series (channels, time) as the network reads it, (time, input_size); missing values are at the mean."""
        mean, scale = (np.asarray(each, dtype=np.float64)[:, None] for each in (self.mean, self.scale))
        values = (_with_differences(series, self.time_channel) - mean) / scale
        there = np.isfinite(values)
        values = np.where(there, values, 0.0)
        return torch.from_numpy(np.concatenate([values, there[list(self.masked)]]).T.astype(np.float32))

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Preparation:
        """From what `to_plain` gave."""
        mean, scale, masked = (tuple(plain[name]) for name in ("mean", "scale", "masked"))
        return cls(mean, scale, masked, plain["time_channel"])


def from_first_time(series: Array, channel: int, first: Any = None) -> tuple[Array, Any]:
    """The same with times that count from the first, as those of a clock do not survive float32; and that time.

    Args:
        series: (channels, time).
        channel: the one that holds times.
        first: the first time, where the series goes on from an earlier piece; None to take it from this one.
    """
    times, moved = series[channel], series.astype(np.float64)
    if times.dtype.kind in "iu":  # whole numbers of nanoseconds do not survive float64 either
        first = int(times[0]) if first is None else int(first)
        moved[channel] = [int(each) - first for each in times.tolist()]
        return moved, first
    known = moved[channel][np.isfinite(moved[channel])]
    if first is None and len(known):
        first = float(known[0])
    moved[channel] -= first or 0.0
    return moved, first


def _with_differences(series: Array, time_channel: int | None) -> Array:
    """A channel of times as differences, 0 at the first step."""
    if time_channel is None:
        return series
    changed = series.astype(np.float64)
    changed[time_channel] = np.diff(changed[time_channel], prepend=changed[time_channel][:1])
    return changed
