"""Targets: encoding for the network, and decoding of its outputs."""

from __future__ import annotations

import contextlib
import copy
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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
    """Flag of one number for each series (or step), without a dimension of its own."""

    def __post_init__(self) -> None:
        for name in ("names", "mean", "scale"):  # lists, in a file
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def of_classes(cls, y: Array, per_step: bool) -> Target:
        """Create from the classes or labels of the training series."""
        values = np.concatenate([_fixed(np.ravel(steps)) for steps in y]) if per_step else _one_column(_fixed(y))
        if values.ndim == 2:
            outputs = values.shape[1]
            if not np.isin(values, (0, 1)).all():
                raise ValueError(
                    f"y of several labels must have the shape (n, {outputs}) and hold 0 and 1, got {values.shape} of "
                    f"{values.dtype}; classes at every step need per_step=True"
                )
            return cls("labels", outputs, False, tuple(range(outputs)), "<i8")
        _check_classes(values)
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
            warnings.warn(
                f"y has classes with one series each: {alone}; nothing can be said of how well they are recognised, so "
                "add series to them or leave them out",
                UserWarning,
                stacklevel=4,
            )
        return cls("classes", len(classes), per_step, classes.tolist(), classes.dtype.str)

    @classmethod
    def of_numbers(cls, y: Array, per_step: bool) -> Target:
        """Create from the numerical targets of the training series."""
        values = np.concatenate(_rows(y, per_step))
        if not np.isfinite(values).all():
            raise ValueError("y must be finite. Input y contains NaN or infinity or a value too large")
        deviation = values.std(0)
        mean, scale = values.mean(0).tolist(), np.where(deviation > 0, deviation, 1.0).tolist()
        flat = (y[0] if per_step else y).ndim == 1
        return cls("numbers", values.shape[1], per_step, mean=mean, scale=scale, flat=flat)

    @cached_property
    def classes(self) -> Array | None:
        """Classes, sorted, or numbers of the labels, (outputs,); None for numbers."""
        return np.array(self.names, dtype=np.dtype(self.dtype)) if self.dtype else None

    def name(self, output: int) -> Any:
        """Class of an output; of labels and numbers, its index."""
        return self.names[output] if self.kind == "classes" else output

    def encode(self, y: Array, lengths: Array) -> list[Tensor]:
        """Encode those of training: a class (), labels or numbers (outputs,); at every step with time before them."""
        if self.kind == "numbers":
            rows = [((row - self.mean) / self.scale).astype(np.float32) for row in _rows(y, self.per_step)]
            encoded = [torch.from_numpy(row if self.per_step else row[0]) for row in rows]
        elif self.kind == "labels":
            encoded = list(torch.from_numpy(np.asarray(y, dtype=np.float32)))
        else:
            assert self.classes is not None
            classes = [_fixed(np.ravel(values)) for values in (y if self.per_step else [y])]
            indices = [torch.from_numpy(np.searchsorted(self.classes, values)) for values in classes]
            encoded = indices if self.per_step else list(indices[0])
        if self.per_step:
            for i, (values, steps) in enumerate(zip(encoded, lengths, strict=True)):
                if len(values) != steps:
                    raise ValueError(f"y must have a target for every step: series {i} has {steps}, got {len(values)}")
        return encoded

    def decode(self, outputs: Array) -> Array:
        """Convert outputs (..., outputs), at every step those of one series, to classes, labels or numbers like `y`."""
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
        series = [np.asarray(values, dtype=np.float64) for values in (y if per_step else [y])]
    except (TypeError, ValueError):
        raise ValueError("y must hold numbers, as many for each series; or give per_step=True") from None
    rows = [values[:, None] if values.ndim == 1 else values.T if per_step else values for values in series]
    if per_step:
        return rows
    if rows[0].ndim > 2:
        raise ValueError(f"y must have the shape (n,) or (n, outputs), got {rows[0].shape}; or give per_step=True")
    return list(rows[0][:, None])
