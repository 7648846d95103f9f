"""Targets: encoding for the network, and decoding of its outputs."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .collection import Array
from .task import Kind


@dataclass(frozen=True)
class Target:
    """What is learnt: classes, labels or numbers; for a series or at every step."""

    kind: Kind
    outputs: int
    """Outputs of the network."""
    per_step: bool = False
    names: tuple[Any, ...] = ()
    """Classes, sorted; numbers of the labels."""
    dtype: str = ""
    """Data type of the classes or labels, as NumPy writes it."""
    mean: tuple[float, ...] = ()
    """Mean of each number, in training."""
    scale: tuple[float, ...] = ()
    """Standard deviation of each number, in training; 1 for one that is constant."""
    flat: bool = True
    """Whether there was one number for each series (or step), without a dimension of its own."""

    def __post_init__(self) -> None:
        for name in ("names", "mean", "scale"):  # lists, in a file
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def of_classes(cls, y: Array, per_step: bool) -> Target:
        """Create from the classes or labels of the training series."""
        y = _fixed(y)
        if per_step:
            values = np.concatenate([_fixed(np.ravel(one)) for one in y])
        else:
            y = _one_column(y)
            if y.ndim == 2:
                return cls("labels", _checked_labels(y, y.shape[1]).shape[1], False, tuple(range(y.shape[1])), "<i8")
            values = y
        _check_classes(values)
        try:
            classes, counts = np.unique(values, return_counts=True)
        except TypeError:
            kinds = ", ".join(sorted({type(_python(value)).__name__ for value in values}))
            raise ValueError(f"y must hold classes of one kind, that can be sorted, got {kinds} together") from None
        if len(classes) < 2:
            raise ValueError(
                f"y must have at least two classes, got one class, {_python(classes[0])!r}: there is nothing to tell "
                "apart"
            )
        if not per_step and counts.min() == 1:
            alone = ", ".join(repr(_python(name)) for name in classes[counts == 1][:5])
            warnings.warn(
                f"y has classes with one series each: {alone}; nothing can be said of how well they are recognised, so "
                "add series to them or leave them out",
                UserWarning,
                stacklevel=4,
            )
        return cls("classes", len(classes), per_step, tuple(classes.tolist()), classes.dtype.str)

    @classmethod
    def of_numbers(cls, y: Array, per_step: bool) -> Target:
        """Create from the numerical targets of the training series."""
        rows = _rows(y, per_step)
        every = np.concatenate(rows)
        if not np.isfinite(every).all():
            raise ValueError("y must be finite. Input y contains NaN or infinity or a value too large")
        deviation = every.std(0)
        scale = np.where(deviation > 0, deviation, 1.0)
        flat = (np.ndim(y[0]) == 1) if per_step else y.ndim == 1
        mean = tuple(every.mean(0).tolist())
        return cls("numbers", every.shape[1], per_step, mean=mean, scale=tuple(scale.tolist()), flat=flat)

    @cached_property
    def classes(self) -> Array | None:
        """Classes, sorted, or numbers of the labels, (outputs,); None for numbers."""
        return np.array(self.names, dtype=np.dtype(self.dtype)) if self.dtype else None

    def name(self, output: int) -> Any:
        """Class of an output; of labels and numbers, its index."""
        return self.names[output] if self.kind == "classes" else output

    def encode(self, y: Array, lengths: Array) -> list[Tensor]:
        """Encode as tensors: a class (), labels or numbers (outputs,); with a leading dimension of time at every step.

        Raises:
            ValueError: a class did not occur in training, or the number of targets is not the series' number of steps.
        """
        if self.kind == "numbers":
            rows = [(row - np.array(self.mean)) / np.array(self.scale) for row in _rows(y, self.per_step)]
            encoded = [torch.from_numpy((row if self.per_step else row[0]).astype(np.float32)) for row in rows]
        elif self.kind == "labels":
            encoded = list(torch.from_numpy(np.asarray(_checked_labels(y, self.outputs), dtype=np.float32)))
        elif self.per_step:
            encoded = [torch.from_numpy(self._numbers(np.ravel(one))) for one in y]
        else:
            encoded = list(torch.from_numpy(self._numbers(_one_column(y))))
        if self.per_step:
            for i, (one, steps) in enumerate(zip(encoded, lengths, strict=True)):
                if len(one) != steps:
                    raise ValueError(f"y must have a target for every step: series {i} has {steps}, got {len(one)}")
        return encoded

    def _numbers(self, y: Array) -> Array:
        """Number of each class."""
        assert self.classes is not None
        y = _fixed(y)
        at = np.searchsorted(self.classes, y).clip(0, len(self.classes) - 1)
        unknown = self.classes[at] != y
        if unknown.any():
            raise ValueError(f"y must be of the classes of training, got {y[unknown][0]!r}")
        return at.astype(np.int64)

    def decode(self, outputs: Array) -> Array:
        """Convert outputs (..., outputs) to what `y` held: classes or labels of probabilities, or numbers.

        With a target at every step, the outputs are those of one series, (time, outputs).
        """
        if self.kind == "labels":
            return (outputs > 0.5).astype(np.int64)
        if self.kind == "classes":
            assert self.classes is not None
            return np.asarray(self.classes[outputs.argmax(-1)])
        numbers = self.in_units(outputs)
        if self.flat:
            return numbers[..., 0]
        return np.moveaxis(numbers, -1, -2) if self.per_step else numbers

    def in_units(self, outputs: Array) -> Array:
        """Outputs (..., outputs) of a network in the units of the data; probabilities as they are."""
        return outputs * np.array(self.scale) + np.array(self.mean) if self.kind == "numbers" else outputs


def _fixed(y: Array) -> Array:
    """Convert NumPy's variable-length text to fixed-length text, whose type can be named in files."""
    return np.array(y.tolist()) if y.dtype.kind == "T" else y


def _one_column(y: Array) -> Array:
    """Reshape (n, 1) to (n,), with scikit-learn's warning, and its warning class if it is installed."""
    if y.ndim != 2 or y.shape[1] != 1:
        return y
    kind: type[Warning] = UserWarning
    with contextlib.suppress(ImportError):
        from sklearn.exceptions import DataConversionWarning

        kind = DataConversionWarning
    warnings.warn("A column-vector y was passed when a 1d array was expected; (n,) is expected", kind, stacklevel=4)
    return y[:, 0]


def _checked_labels(y: Array, count: int) -> Array:
    if y.ndim != 2 or y.shape[1] != count or not np.isin(y, (0, 1)).all():
        raise ValueError(
            f"y of several labels must have the shape (n, {count}) and hold 0 and 1, got {y.shape} of {y.dtype}; "
            "classes at every step need per_step=True"
        )
    return y


def _check_classes(values: Array) -> None:
    if values.ndim != 1 or values.dtype.kind not in "biufOUT":
        raise ValueError(f"y must hold a class for each series, as numbers or text, got {values.dtype} {values.shape}")
    if values.dtype == object and any(value is None for value in values):
        at = next(i for i, value in enumerate(values) if value is None)
        raise ValueError(f"y must name a class for each series, and entry {at} is None; leave that series out")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError("y must name a class for each series. Input y contains NaN or infinity")
        if (values != np.floor(values)).any():
            raise ValueError("Unknown label type: continuous. y must hold classes; IndRNNRegressor is for numbers")


def _rows(y: Array, per_step: bool) -> list[Array]:
    """Numbers of each series as (1, outputs); at every step as (time, outputs), from (time,) or (outputs, time)."""
    try:
        if per_step:
            series = [np.asarray(one, dtype=np.float64) for one in y]
            return [one[:, None] if one.ndim == 1 else one.T for one in series]
        numbers = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("y must hold numbers, as many for each series; or give per_step=True") from None
    if numbers.ndim > 2:
        raise ValueError(f"y must have the shape (n,) or (n, outputs), got {numbers.shape}; or give per_step=True")
    return list((numbers[:, None] if numbers.ndim == 1 else numbers)[:, None])


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
