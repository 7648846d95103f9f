"""`Collection`: series of any length with their labels, validated once, whatever their source."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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
    """Each (channels, time), float32; NaN where a value is missing."""
    y: Array | None = None
    """The target of each series: (n,) classes or numbers, (n, outputs) several at once, or an object array of one
    array for each series, (time,) or (outputs, time), with a target at every step."""
    channels: tuple[str, ...] = ()
    """Their names."""
    names: tuple[str, ...] | None = None
    """A name for each series, such as an identifier or a file."""
    groups: Array | None = None
    """(n,): what a series belongs to, such as a subject; a group is never divided between training and validation."""
    test: Array | None = None
    """(n,), bool: which series are the given test split."""

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

        Raises:
            TypeError: X is sparse or holds objects that are not numbers.
            ValueError: X has another shape, text or complex values, a series without a value, or an infinite value or
                one too large for float32; or another argument has the wrong length.
        """
        x = _series_of(X)
        width = len(x[0])
        named = tuple(str(each) for each in (channels if channels is not None else range(width)))
        if len(named) != width:
            raise ValueError(f"channels must name {width} channels, got {len(named)} names")
        found = cls(x, channels=named)
        return replace(
            found,
            y=None if y is None else target_of(y, found),
            names=None if names is None else tuple(str(each) for each in _as_many("names", list(names), len(x))),
            groups=None if groups is None else _as_many("groups", as_array(groups), len(x)),
            test=None if test is None else _as_many("test", as_array(test), len(x)).astype(bool),
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
        count = sum(series.size for series in self.x)
        return sum(int(np.isnan(series).sum()) for series in self.x) / count

    def take(self, items: Any) -> Collection:
        """Select series by index, in the order given, or by boolean mask."""
        items = np.asarray(items)
        items = np.flatnonzero(items) if items.dtype == bool else items.astype(np.int64)

        def of(values: Array | None) -> Array | None:
            return None if values is None else values[items]

        names = None if self.names is None else tuple(self.names[i] for i in items)
        return Collection([self.x[i] for i in items], of(self.y), self.channels, names, of(self.groups), of(self.test))


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
        numbers = value.data.astype(np.result_type(value.dtype, np.float32))
        return np.where(np.ma.getmaskarray(value), np.nan, numbers)
    if hasattr(value, "to_numpy"):
        return np.asarray(value.to_numpy())
    return np.asarray(value)


def numbers_of(value: Any) -> Array:
    """Convert like `as_array`, with pandas' NA as NaN; the data type is otherwise kept."""
    array = as_array(value)
    if array.dtype == object and hasattr(value, "to_numpy"):
        with contextlib.suppress(TypeError, ValueError):
            return np.asarray(value.to_numpy(dtype=np.float64, na_value=np.nan))
    return array


def target_of(y: Any, series: Collection) -> Array:
    """Convert targets to an array with a row per series, or an object array if their lengths differ."""
    if isinstance(y, (list, tuple)) and any(isinstance(one, (torch.Tensor, np.ma.MaskedArray)) for one in y):
        y = [as_array(one) for one in y]
    if isinstance(y, (list, tuple)) and len(y) and np.ndim(y[0]) >= 1:
        each = [as_array(one) for one in y]
        if len({one.shape for one in each}) > 1:
            found = np.empty(len(each), dtype=object)
            for i, one in enumerate(each):
                found[i] = one
            _as_many("y", found, len(series))
            return found
    found = as_array(y)
    if found.ndim == 0 or found.ndim > 3:
        raise ValueError(f"y must hold one target for each series, got an array of {found.ndim} dimensions")
    _as_many("y", found, len(series))
    return found


def _plain(value: Any) -> Any:
    return as_array(value) if isinstance(value, torch.Tensor) else value


def _as_many(name: str, values: Any, count: int) -> Any:
    if len(values) != count:
        raise ValueError(f"{name} must have as many entries as there are series, {count}, got {len(values)}")
    return values


def _series_of(X: Any) -> list[Array]:
    if hasattr(X, "tocsr") or hasattr(X, "toarray"):
        raise TypeError(
            f"X must be a dense array, got a sparse {type(X).__name__}: sparse data is not supported; use X.toarray()"
        )
    if is_list_of_series(X):
        rows = [_numbers(_plain(one), f"X[{i}]") for i, one in enumerate(X)]
        found = [row[None] if row.ndim == 1 else row for row in rows]
        for i, row in enumerate(found):
            if row.ndim != 2:
                raise ValueError(f"X[{i}] must have the shape (channels, time), got {row.shape}")
            if len(row) != len(found[0]):
                raise ValueError(
                    f"X must have the same channels in each series: X[0] has {len(found[0])} and X[{i}] has "
                    f"{len(row)}; a series has the shape (channels, time)"
                )
    else:
        array = _numbers(_plain(X), "X")
        if array.ndim not in (2, 3):
            hint = " Reshape your data: X.reshape(1, -1) is one series." if array.ndim == 1 else ""
            raise ValueError(
                "X must have the shape (n, channels, time) or (n, time), or be a list of (channels, time) arrays, got "
                f"an array of {array.ndim} dimensions, {array.shape}.{hint}"
            )
        if len(array) and 0 in array.shape[1:]:
            raise ValueError(
                f"X must have at least one channel and one step, got {array.shape}: 0 feature(s) "
                f"(shape={array.shape}) while a minimum of 1 is required."
            )
        found = list(array[:, None] if array.ndim == 2 else array)
    if not found:
        raise ValueError("X must hold at least one series, got none: 0 sample(s) while a minimum of 1 is required.")
    _check_values(found)
    return found


def is_list_of_series(X: Any) -> bool:
    """Whether X is a list of series: of arrays, or of nested lists that do not form a single array."""
    if not isinstance(X, (list, tuple)) or not len(X):
        return False
    if all(isinstance(one, (np.ndarray, torch.Tensor)) or hasattr(one, "to_numpy") for one in X):
        return all(np.ndim(_plain(one)) >= 1 for one in X)
    try:
        np.asarray(X)
    except ValueError:
        return True
    return False


def _numbers(value: Any, name: str) -> Array:
    """Convert to a float32 array."""
    array = numbers_of(value)
    if np.iscomplexobj(array):
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}. Complex data not supported")
    if array.dtype == object and array.ndim == 1 and len(array) and np.ndim(array[0]) >= 1:
        raise ValueError(f"{name} must be a list of arrays, or one array of numbers, got an array of arrays")
    try:
        found = array.astype(np.float32, copy=False)
    except TypeError as error:
        raise TypeError(f"{name}: an argument must be a string or a number ({error})") from None
    except ValueError as error:
        raise ValueError(f"{name} must hold numbers: {error}") from None
    infinite = np.isinf(found) & ~np.isinf(array) if array.dtype == np.float64 else None
    if infinite is not None and infinite.any():
        at = tuple(int(i) for i in np.argwhere(infinite)[0])
        raise ValueError(f"{name} must fit into float32, got {array[at]} at {list(at)}; scale it")
    return np.ascontiguousarray(found)


def _check_values(series: list[Array]) -> None:
    """Raise for a series without steps or with missing values only, and for the first infinite value."""
    for i, one in enumerate(series):
        if one.shape[1] == 0:
            raise ValueError(f"X[{i}] must have at least one step, got {one.shape}")
        total = one.sum()
        if np.isfinite(total):
            continue
        infinite = np.argwhere(np.isinf(one))
        if len(infinite):
            channel, step = infinite[0]
            raise ValueError(
                f"X must be finite, or NaN where a value is missing, got infinity in series {i}, channel {channel}, "
                f"step {step}"
            )
        if np.isnan(one).all():
            raise ValueError(f"X must have a value in each series, and series {i} is NaN throughout; leave it out")
