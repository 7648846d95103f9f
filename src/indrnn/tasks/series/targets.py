"""Targets: encoding for the network, and decoding of its outputs."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .collection import Array
from .task import Kind


@dataclass(frozen=True, eq=False)
class Target:
    """What is learnt: classes, labels or numbers; for a series or at every step."""

    kind: Kind
    outputs: int
    """Outputs of the network."""
    per_step: bool = False
    classes: Array | None = None
    """Of kind classes: sorted; of kind labels: their numbers."""
    mean: tuple[float, ...] = ()
    """Of numbers, in training."""
    scale: tuple[float, ...] = ()
    flat: bool = True
    """Of numbers: whether there was one for each series (or step), without a dimension of its own."""

    @classmethod
    def of_classes(cls, y: Array, per_step: bool) -> Target:
        """Create from the classes or labels of the training series."""
        y = _fixed(y)
        if per_step:
            values = np.concatenate([_fixed(np.ravel(one)) for one in y])
        else:
            y = _one_column(y)
            if y.ndim == 2:
                return cls("labels", y.shape[1], classes=_labels(y))
            values = y
        _check_classes(values)
        try:
            classes, counts = np.unique(values, return_counts=True)
        except TypeError:
            kinds = ", ".join(sorted({type(_python(each)).__name__ for each in values}))
            raise ValueError(f"y must hold classes of one kind, that can be sorted, got {kinds} together") from None
        if len(classes) < 2:
            raise ValueError(
                f"y must have at least two classes, got one class, {_python(classes[0])!r}: there is nothing to tell "
                "apart"
            )
        if not per_step and counts.min() == 1:
            alone = ", ".join(repr(_python(each)) for each in classes[counts == 1][:5])
            warnings.warn(
                f"y has classes with one series each: {alone}; nothing can be said of how well they are recognised, so "
                "add series to them or leave them out",
                UserWarning,
                stacklevel=4,
            )
        return cls("classes", len(classes), per_step, classes)

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
        return cls("numbers", every.shape[1], per_step, None, tuple(every.mean(0)), tuple(scale), flat)

    def encode(self, y: Array, lengths: Array) -> list[Tensor]:
        """Encode as tensors: a class (), labels or numbers (outputs,); with a leading dimension of time at every step.

        Raises:
            ValueError: a class did not occur in training, or the number of targets is not the series' number of steps.
        """
        if self.kind == "numbers":
            rows = [(row - np.array(self.mean)) / np.array(self.scale) for row in _rows(y, self.per_step)]
            found = [torch.from_numpy(row.astype(np.float32)) for row in rows]
            found = found if self.per_step else [row[0] for row in found]
        elif self.kind == "labels":
            found = list(torch.from_numpy(np.asarray(_labels_checked(y, self.outputs), dtype=np.float32)))
        elif self.per_step:
            found = [torch.from_numpy(self._numbers(np.ravel(one))) for one in y]
        else:
            found = list(torch.from_numpy(self._numbers(_one_column(y))))
        if self.per_step:
            for i, (one, steps) in enumerate(zip(found, lengths, strict=True)):
                if len(one) != steps:
                    raise ValueError(f"y must have a target for every step: series {i} has {steps}, got {len(one)}")
        return found

    def _numbers(self, y: Array) -> Array:
        assert self.classes is not None
        y = _fixed(y)
        at = np.searchsorted(self.classes, y).clip(0, len(self.classes) - 1)
        unknown = self.classes[at] != y
        if unknown.any():
            raise ValueError(f"y must be of the classes of training, got {y[unknown][0]!r}")
        return at.astype(np.int64)

    def numbers(self, answers: Array) -> Array:
        """Convert standardised outputs (..., outputs) to numbers, in the layout of the training targets."""
        found = answers * np.array(self.scale) + np.array(self.mean)
        if self.flat:
            return found[..., 0]  # type: ignore[no-any-return]
        return np.moveaxis(found, -1, -2) if self.per_step else found

    def to_plain(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary."""
        found: dict[str, Any] = {name: getattr(self, name) for name in ("kind", "outputs", "per_step", "flat")}
        found |= {"mean": [float(each) for each in self.mean], "scale": [float(each) for each in self.scale]}
        if self.classes is not None:
            found["classes"] = {"dtype": self.classes.dtype.str, "values": self.classes.tolist()}
        return found

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Target:
        """Restore from the result of `to_plain`."""
        classes = plain.get("classes")
        if classes is not None:
            kind = object if classes["dtype"] == "|O" else np.dtype(classes["dtype"])
            classes = np.array(classes["values"], dtype=kind)
        rest = {name: plain[name] for name in ("kind", "outputs", "per_step", "flat")}
        return cls(**rest, classes=classes, mean=tuple(plain["mean"]), scale=tuple(plain["scale"]))


def _fixed(y: Array) -> Array:
    """Convert NumPy's variable-length text to fixed-length text, whose type can be named in files."""
    return np.array(y.tolist()) if y.dtype.kind == "T" else y


def _one_column(y: Array) -> Array:
    """Reshape (n, 1) to (n,), with scikit-learn's warning."""
    if y.ndim == 2 and y.shape[1] == 1:
        warn_of_column()
        return y[:, 0]
    return y


def warn_of_column() -> None:
    """Warn as scikit-learn's estimators do, with its warning class if it is installed."""
    kind: type[Warning] = UserWarning
    with contextlib.suppress(ImportError):
        from sklearn.exceptions import DataConversionWarning

        kind = DataConversionWarning
    warnings.warn("A column-vector y was passed when a 1d array was expected; (n,) is expected", kind, stacklevel=5)


def _labels(y: Array) -> Array:
    return np.arange(_labels_checked(y, y.shape[1]).shape[1])


def _labels_checked(y: Array, count: int) -> Array:
    if y.ndim != 2 or y.shape[1] != count or not np.isin(y, (0, 1)).all():
        raise ValueError(
            f"y of several labels must have the shape (n, {count}) and hold 0 and 1, got {y.shape} of {y.dtype}; "
            "classes at every step need per_step=True"
        )
    return y


def _check_classes(values: Array) -> None:
    if values.ndim != 1 or values.dtype.kind not in "biufOUT":
        raise ValueError(f"y must hold a class for each series, as numbers or text, got {values.dtype} {values.shape}")
    if values.dtype == object and any(each is None for each in values):
        at = next(i for i, each in enumerate(values) if each is None)
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
            each = [np.asarray(one, dtype=np.float64) for one in y]
            return [one[:, None] if one.ndim == 1 else one.T for one in each]
        numbers = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("y must hold numbers, as many for each series; or give per_step=True") from None
    if numbers.ndim > 2:
        raise ValueError(f"y must have the shape (n,) or (n, outputs), got {numbers.shape}; or give per_step=True")
    return list((numbers[:, None] if numbers.ndim == 1 else numbers)[:, None])


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
