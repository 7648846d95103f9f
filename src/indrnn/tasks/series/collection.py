"""`Collection`: series of any length with their labels, validated once, whatever their source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Collection:
    """Series of equal or different lengths with the same channels, with their targets, names, groups and test split.

    `from_arrays` builds one from arrays and checks them; the constructor checks nothing.
    """

    x: list[Array]
    """Series, each (channels, time), float32; NaN where a value is missing."""
    y: Array | None = None
    """Target of each series: (n,) classes or numbers, (n, outputs) several at once, or an object array of one
    array for each series, (time,) or (outputs, time), with a target at every step."""
    channels: tuple[str, ...] = ()
    """Names of the channels."""
    names: tuple[str, ...] | None = None
    """Name of each series, such as an identifier or a file."""
    groups: Array | None = None
    """Group of each series, (n,), such as a subject; a group is never divided between training and validation."""
    test: Array | None = None
    """Mask of the given test split, (n,), bool."""

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any = None,
        *,
        channels: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        groups: Any = None,
        test: Any = None,
    ) -> Collection:
        """Build a collection from arrays and check them.

        Args:
            X: (n, channels, time), (n, time) for one channel, or a sequence of (channels, time) or (time,) arrays of
                any length; as NumPy arrays, tensors or nested lists. NaN marks a missing value.
            y: one target for each series; see `y`. None if there are none.
            channels: names of the channels; "0", "1", ... if None.
            names: names of the series.
            groups: groups of the series.
            test: which series belong to the test split.
        """
        x = _series_of(X)
        width, count = len(x[0]), len(x)
        channels = tuple(map(str, range(width) if channels is None else channels))
        if len(channels) != width:
            raise ValueError(f"channels must name {width} channels, got {len(channels)} names")
        return cls(
            x,
            None if y is None else target_of(y, count),
            channels,
            None if names is None else tuple(map(str, _as_many("names", list(names), count))),
            None if groups is None else _as_many("groups", as_array(groups), count),
            None if test is None else _as_many("test", as_array(test), count).astype(bool),
        )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def lengths(self) -> Array:
        """Number of steps of each series, (n,), int64."""
        return np.array([series.shape[1] for series in self.x], dtype=np.int64)

    @property
    def missing(self) -> float:
        """Fraction of values that are missing."""
        return sum(int(np.isnan(series).sum()) for series in self.x) / sum(series.size for series in self.x)

    def select(self, items: Any) -> Collection:
        """Select series by index, in the order given, or by boolean mask."""
        items = np.asarray(items)
        items = np.flatnonzero(items) if items.dtype == bool else items.astype(np.int64)
        y, groups, test = (None if array is None else array[items] for array in (self.y, self.groups, self.test))
        names = None if self.names is None else tuple(self.names[i] for i in items)
        return replace(self, x=[self.x[i] for i in items], y=y, names=names, groups=groups, test=test)


def as_array(value: Any) -> Array:
    """Convert to a NumPy array, also from a tensor; masked values become NaN."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # type: ignore[no-any-return]
    if isinstance(value, np.ma.MaskedArray):
        if not np.ma.is_masked(value):
            return np.asarray(value.data)
        if value.dtype.kind not in "biuf":
            raise ValueError(f"masked values must be of numbers, got {value.dtype}; leave what is masked out")
        return np.ma.filled(value.astype(np.result_type(value.dtype, np.float32)), np.nan)
    return np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)


def as_numbers(value: Any) -> Array:
    """Convert like `as_array`, with pandas' NA as NaN; the data type is otherwise kept."""
    array = as_array(value)
    if array.dtype == object and hasattr(value, "to_numpy"):
        with contextlib.suppress(TypeError, ValueError):
            return np.asarray(value.to_numpy(dtype=np.float64, na_value=np.nan))
    return array


def target_of(y: Any, count: int) -> Array:
    """Convert the targets of `count` series to an array with a row per series, or an object array of arrays."""
    if isinstance(y, (list, tuple)) and len(y):
        if any(isinstance(one, (torch.Tensor, np.ma.MaskedArray)) for one in y):
            y = [as_array(one) for one in y]
        if np.ndim(y[0]) >= 1 and len(set(map(np.shape, y))) > 1:
            y = np.fromiter(map(as_array, y), dtype=object)
    array = as_array(y)
    if not 1 <= array.ndim <= 3:
        raise ValueError(f"y must hold one target for each series, got an array of {array.ndim} dimensions")
    return _as_many("y", array, count)  # type: ignore[no-any-return]


def _as_many(name: str, values: Any, count: int) -> Any:
    if len(values) != count:
        raise ValueError(f"{name} must have as many entries as there are series, {count}, got {len(values)}")
    return values


def _series_of(X: Any) -> list[Array]:
    if hasattr(X, "tocsr") or hasattr(X, "toarray"):
        kind = type(X).__name__
        raise TypeError(f"X must be a dense array, got a sparse {kind}: sparse data is not supported; use X.toarray()")
    if is_list_of_series(X):
        rows = [_numbers(row, f"X[{i}]") for i, row in enumerate(X)]
        series = [row[None] if row.ndim == 1 else row for row in rows]
        for i, row in enumerate(series):
            if row.ndim != 2:
                raise ValueError(f"X[{i}] must have the shape (channels, time), got {row.shape}")
            if len(row) != len(series[0]):
                both = f"X[0] has {len(series[0])} and X[{i}] has {len(row)}; a series has the shape (channels, time)"
                raise ValueError(f"X must have the same channels in each series: {both}")
        return checked_series(series, "X: series {}".format)
    array = _numbers(X, "X")
    if array.ndim not in (2, 3):
        hint = " Reshape your data: X.reshape(1, -1) is one series." if array.ndim == 1 else ""
        what = "the shape (n, channels, time) or (n, time), or be a list of (channels, time) arrays"
        raise ValueError(f"X must have {what}, got an array of {array.ndim} dimensions, {array.shape}.{hint}")
    if not len(array):
        raise ValueError("X must hold at least one series, got none: 0 sample(s) while a minimum of 1 is required.")
    if 0 in array.shape:
        none = f"0 feature(s) (shape={array.shape}) while a minimum of 1 is required."
        raise ValueError(f"X must have at least one channel and one step, got {array.shape}: {none}")
    return checked_series(list(array[:, None] if array.ndim == 2 else array), "X: series {}".format)


def is_list_of_series(X: Any) -> bool:
    """Whether X is a list of series: of arrays, or of nested lists that do not form a single array."""
    if not isinstance(X, (list, tuple)) or not len(X):
        return False
    if all(isinstance(one, (np.ndarray, torch.Tensor)) or hasattr(one, "to_numpy") for one in X):
        return all(np.ndim(as_array(one)) >= 1 for one in X)
    try:
        np.asarray(X)
    except ValueError:
        return True
    return False


def _numbers(value: Any, name: str) -> Array:
    array = as_numbers(value)
    if array.dtype.kind in "biuf":
        return array
    if np.iscomplexobj(array):
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}. Complex data not supported")
    if array.dtype == object and array.ndim == 1 and len(array) and np.ndim(array[0]) >= 1:
        raise ValueError(f"{name} must be a list of arrays, or one array of numbers, got an array of arrays")
    try:
        return array.astype(np.float32)
    except TypeError as error:
        raise TypeError(f"{name}: an argument must be a string or a number ({error})") from None
    except ValueError as error:
        raise ValueError(f"{name} must hold numbers: {error}") from None


def checked_series(values: list[Array], name: Callable[[int], str], channels: Sequence[str] = ()) -> list[Array]:
    """Convert series (channels, time) of numbers to float32, and check that each has steps and values, all finite.

    For messages, `name` names the series of an index, and `channels` the channels.
    """
    result = []
    for i, series in enumerate(values):
        if series.shape[1] == 0:
            raise ValueError(f"{name(i)} must have at least one step, got none, {series.shape}")
        with np.errstate(over="ignore"):
            narrow = np.ascontiguousarray(series, dtype=np.float32)
            total = narrow.sum()
        if not np.isfinite(total):
            infinite = np.argwhere(np.isinf(narrow))
            if len(infinite):
                channel, step = infinite[0].tolist()
                value = series[channel, step]
                where = f"{name(i)}, channel {channels[channel] if channels else channel}, step {step}"
                what = "infinite" if np.isinf(value) else f"too large for float32, {value}"
                hint = "leave the value empty (NaN) where it is not known, or scale the channel"
                raise ValueError(f"{where} is {what}; {hint}")
            if np.isnan(narrow).all():
                raise ValueError(f"{name(i)} has no value at all; leave it out")
        result.append(narrow)
    return result


def hold_out(
    count: int,
    share: float,
    *,
    classes: Array | None = None,
    groups: Array | None = None,
    seed: int = 0,
    expected: bool = False,
) -> Array:
    """Mask of the series to hold out, (n,): whole groups if there are any, else a share of each class.

    One series or group is left at least, of each class. With `expected`, the share of a class is held out on average,
    rounded up or down at random, instead of the nearest number of series, at least one.
    """
    held = np.zeros(count, dtype=bool)
    if not share:
        return held
    if groups is not None:
        names = np.unique(groups)
        if len(names) < 2:
            raise ValueError(f"group must have at least two values to hold one of them out, got one, {names[0]!r}")
        return np.asarray(np.isin(groups, names[hold_out(len(names), share, seed=seed)]), dtype=bool)
    draw = np.random.default_rng(seed % 2**63)
    classes = np.zeros(count) if classes is None else classes
    for name in np.unique(classes):
        members = np.flatnonzero(classes == name)
        number = max(1, round(share * len(members)))
        if expected:
            whole, rest = divmod(share * len(members), 1)
            number = int(whole) + int(draw.random() < rest)
        held[draw.permutation(members)[: min(number, len(members) - 1)]] = True
    return held
