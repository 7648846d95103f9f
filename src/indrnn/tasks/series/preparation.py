"""Preparation for the network: series standardised by training's statistics, targets encoded and outputs decoded."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .collection import Array
from .task import Kind

EXPLAINED = 0.25  # share of the variance of power that classes explain, from which on the power is left as it is
_PRIOR_STEPS = 5.0  # steps of the training deviation that count in the running power of a series


@dataclass(frozen=True)
class Preparation:
    """Preprocessing by the statistics of the training series, computed by `fitted`; call it on a series.

    Raw signals whose power does not depend on the class are also brought to one power, by the steps so far.
    """

    mean: Sequence[float]  # of each channel, over the values that are there
    scale: Sequence[float]  # standard deviation of each channel; 1 for one that is constant
    masked: Sequence[int] = ()  # channels with missing values in training: each gets another, 1 where it has a value
    time_channel: int | None = None  # of times, which are replaced by the differences to the step before
    normalise_rms: bool = False
    """Division of each channel but that of times, at each step, by its root mean square over the steps until then, to
    which `_PRIOR_STEPS` steps of training's deviation are counted: a recording may be louder than another."""

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


# ---- targets


@dataclass(frozen=True)
class Target:
    """What is learnt from training's targets: classes, labels or numbers; for a series or at every step."""

    kind: Kind
    outputs: int  # of the network
    per_step: bool = False
    names: Sequence[Any] = ()  # classes, sorted; numbers of the labels
    dtype: str = ""  # of the classes or labels, as NumPy writes it
    mean: Sequence[float] = ()  # of each number, in training
    scale: Sequence[float] = ()  # standard deviation of each number, in training; 1 for one that is constant
    flat: bool = True  # one number for each series (or step), without a dimension of its own

    @classmethod
    def of_classes(cls, y: Array, per_step: bool) -> Target:
        """The target of these classes or, with two dimensions, labels."""
        values = np.concatenate([_fixed(np.ravel(steps)) for steps in y]) if per_step else _fixed(y)
        if values.ndim == 2 and values.shape[1] == 1:
            kind = getattr(sys.modules.get("sklearn.exceptions"), "DataConversionWarning", UserWarning)
            what = "A column-vector y was passed when a 1d array was expected; (n,) is expected"
            warnings.warn(what, kind, stacklevel=3)
            values = values[:, 0]
        if values.ndim == 2:
            outputs = values.shape[1]
            if not np.isin(values, (0, 1)).all():
                what = f"the shape (n, {outputs}) and hold 0 and 1, got {values.shape} of {values.dtype}"
                raise ValueError(f"y of several labels must have {what}; classes at every step need per_step=True")
            return cls("labels", outputs, False, list(range(outputs)), "<i8")
        if values.ndim != 1 or values.dtype.kind not in "biufOUT":
            got = f"{values.dtype} {values.shape}"
            raise ValueError(f"y must hold a class for each series, as numbers or text, got {got}")
        if values.dtype == object and (missing := [i for i, value in enumerate(values) if value is None]):
            which = f"entry {missing[0]} is None; leave that series out"
            raise ValueError(f"y must name a class for each series, and {which}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError("y must name a class for each series. Input y contains NaN or infinity")
        if values.dtype.kind == "f" and (values != np.floor(values)).any():
            raise ValueError("Unknown label type: continuous. y must hold classes; IndRNNRegressor is for numbers")
        try:
            classes, counts = np.unique(values, return_counts=True)
        except TypeError:
            kinds = ", ".join(sorted({type(value).__name__ for value in values.tolist()}))
            raise ValueError(f"y must hold classes of one kind, that can be sorted, got {kinds} together") from None
        if len(classes) < 2:
            only = f"one class, {classes.tolist()[0]!r}"
            raise ValueError(f"y must have at least two classes, got {only}: there is nothing to tell apart")
        if not per_step and counts.min() == 1:
            alone = ", ".join(map(repr, classes[counts == 1][:5].tolist()))
            why = "nothing can be said of how well they are recognised, so add series to them or leave them out"
            warnings.warn(f"y has classes with one series each: {alone}; {why}", UserWarning, stacklevel=4)
        return cls("classes", len(classes), per_step, classes.tolist(), classes.dtype.str)

    @classmethod
    def of_numbers(cls, y: Array, per_step: bool) -> Target:
        """The target of these numbers, which are standardised."""
        values = np.concatenate(_rows(y, per_step))
        if not np.isfinite(values).all():
            raise ValueError("y must be finite. Input y contains NaN or infinity or a value too large")
        deviation = values.std(0)
        mean, scale = values.mean(0).tolist(), np.where(deviation > 0, deviation, 1.0).tolist()
        flat = (y[0] if per_step else y).ndim == 1
        return cls("numbers", values.shape[1], per_step, mean=mean, scale=scale, flat=flat)

    @cached_property
    def classes(self) -> Array:
        """Classes, sorted, or numbers of the labels, (outputs,); empty for numbers."""
        return np.array(self.names, dtype=self.dtype or None)

    def encode(self, y: Array, lengths: Array) -> list[Tensor]:
        """Encode those of training: a class (), labels or numbers (outputs,); at every step with time before them."""
        rows: list[Array]
        if self.kind == "numbers":
            rows = [((row - self.mean) / self.scale).astype(np.float32) for row in _rows(y, self.per_step)]
        elif self.kind == "labels":
            rows = [np.asarray(y, dtype=np.float32)]
        else:
            classes = [_fixed(np.ravel(values)) for values in (y if self.per_step else [y])]
            rows = [np.searchsorted(self.classes, values) for values in classes]
        encoded = [torch.from_numpy(row) for row in rows]
        if not self.per_step:
            return list(encoded[0])
        for i, (values, steps) in enumerate(zip(encoded, lengths, strict=True)):
            if len(values) != steps:
                raise ValueError(f"y must have a target for every step: series {i} has {steps}, got {len(values)}")
        return encoded

    def decode(self, outputs: Array) -> Array:
        """Convert outputs (..., outputs), at every step those of one series, to classes, labels or numbers like `y`."""
        if self.kind == "labels":
            return (outputs > 0.5).astype(np.int64)
        if self.kind == "classes":
            return np.asarray(self.classes[outputs.argmax(-1)])
        numbers = self.in_units(outputs)
        if self.flat:
            return numbers[..., 0]
        return np.moveaxis(numbers, -1, -2) if self.per_step else numbers

    def in_units(self, outputs: Array) -> Array:
        """Outputs (..., outputs) of a network in the units of the data; probabilities as they are."""
        return outputs * np.array(self.scale) + np.array(self.mean) if self.kind == "numbers" else outputs

    def model_in_units(self, model: nn.Module) -> nn.Module:
        """A copy of a regressor whose outputs are in the units of the data."""
        model = copy.deepcopy(model)
        output: Any = model.output
        scale, mean = (torch.tensor(values, dtype=output.weight.dtype) for values in (self.scale, self.mean))
        with torch.no_grad():
            output.weight.mul_(scale.unsqueeze(1))
            output.bias.mul_(scale).add_(mean)
        return model


def _fixed(y: Array) -> Array:
    """Text of variable length as one of fixed length, whose type can be named in files."""
    return np.array(y.tolist()) if y.dtype.kind == "T" else y


def _rows(y: Array, per_step: bool) -> list[Array]:
    """Numbers of all series, (n, outputs); at every step, of each, (time, outputs) from (time,) or (outputs, time)."""
    try:
        rows = [np.asarray(values, np.float64) for values in y] if per_step else [np.array(y, np.float64, order="C")]
    except (TypeError, ValueError):
        raise ValueError("y must hold numbers, as many for each series; or give per_step=True") from None
    if not per_step and rows[0].ndim > 2:
        raise ValueError(f"y must have the shape (n,) or (n, outputs), got {rows[0].shape}; or give per_step=True")
    return [values[:, None] if values.ndim == 1 else values.T if per_step else values for values in rows]
