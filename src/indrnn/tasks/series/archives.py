"""Reader of series in .npz files: one array, padded or concatenated, with lengths and further fields of each series."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.npyio import NpzFile

from .reading import Array, Found, Reading, pick, tested_column

_X, _Y, _LENGTHS = ("x", "X", "data"), ("y", "Y", "labels", "label", "target"), ("lengths", "length")


def read_npz(path: Path, reading: Reading, *, target_needed: bool = True) -> Found:
    """Read an .npz file.

    x is (n, channels, time) or (n, time), truncated to `lengths` if there are any; or all series concatenated along
    time, the first dimension, (sum of lengths, ...).
    """
    arrays = _arrays(path)
    x_name = _named(reading.x, "x", _X, arrays, path)
    assert x_name is not None or reading.x is None
    if x_name is None:
        raise ValueError(f"x: {path} has no field {', '.join(_X)}; name that of the series. It has {_list(arrays)}")
    lengths_name = _named(reading.lengths, "lengths", _LENGTHS, arrays, path)
    values = arrays[x_name]
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{path}: {x_name} must hold numbers, got {values.dtype}")
    x = _series(values, arrays.get(lengths_name or ""), reading, f"{path}: {x_name}")
    y = _target(reading, arrays, path, len(x), needed=target_needed)
    described = (reading.group, tested_column(reading.test_where))
    known = {
        name: _text(array, f"{path}: {name}", needed=name in described)
        for name, array in arrays.items()
        if name not in (x_name, lengths_name) and array.ndim == 1 and len(array) == len(x)
    }
    return Found(path, x, y, tuple(str(i) for i in range(len(x[0]))), None, known)


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as raw, _opened(raw) as file:  # NumPy leaves a broken one open
            found: dict[str, Any] = {}
            for name in file.files:
                try:
                    found[name] = file[name]
                except ValueError as error:
                    if "pickle" not in str(error).lower():
                        raise
                    raise ValueError(
                        f"{path}: {name} is an array of objects, which could run code when read; write the series "
                        "one after the other in one array, and their lengths"
                    ) from None
    except (OSError, EOFError, zipfile.BadZipFile, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as .npz: {error}; np.savez(path, x=..., y=...) writes one") from None
    return found


def _opened(raw: IO[bytes]) -> NpzFile:
    try:
        file = np.load(raw, allow_pickle=False)
    except ValueError:  # NumPy takes what it does not know for a pickle
        raise OSError("it is no archive of arrays") from None
    if not isinstance(file, NpzFile):
        raise OSError("it is a single array, as np.save writes")
    return file


def _list(arrays: dict[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"


def _named(given: str | None, option: str, usual: tuple[str, ...], arrays: dict[str, Array], path: Path) -> str | None:
    if given is not None:
        return pick(given, option, arrays, path)
    return next((name for name in usual if name in arrays), None)


def _target(reading: Reading, arrays: dict[str, Array], path: Path, count: int, *, needed: bool) -> Array | None:
    if reading.target is not None and reading.target not in arrays and not needed:
        return None
    name = _named(reading.target, "target", _Y, arrays, path)
    if name is None:
        if needed:
            raise ValueError(
                f"target: {path} has no field {', '.join(_Y)}; name that of the labels. It has {_list(arrays)}"
            )
        return None
    y = arrays[name]
    if y.ndim == 0 or len(y) != count:
        if not needed:
            return None
        raise ValueError(f"{path}: {name} must have one entry for each of the {count} series, got {y.shape}")
    return _text(y, f"{path}: {name}", needed=needed)


def _text(array: Array, where: str, *, needed: bool) -> Array:
    """Decode bytes as text, which must be UTF-8 if it is `needed`; other types are returned unchanged."""
    if array.dtype.kind != "S":
        return array
    try:
        return np.char.decode(array, "utf-8", "strict" if needed else "replace")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} must hold text in UTF-8, got the bytes {error.object[:40]!r}") from None


def _series(values: Array, lengths: Array | None, reading: Reading, where: str) -> list[Array]:
    if lengths is None:
        return list(_padded(values, reading, where))
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (len(lengths) and lengths.min() < 1):
        raise ValueError(f"{where}: lengths must be whole numbers of at least 1, in one dimension")
    if values.ndim >= 2 and len(values) == len(lengths):
        padded = _padded(values, reading, where)
        if lengths.max(initial=1) > padded.shape[2]:
            raise ValueError(f"{where} has {padded.shape[2]} steps, and lengths go up to {lengths.max()}")
        return [one[:, :length] for one, length in zip(padded, lengths.tolist(), strict=True)]
    if values.ndim and len(values) == int(lengths.sum()):
        flat = values.reshape(len(values), -1)  # (sum of lengths, channels)
        ends = np.cumsum(lengths).tolist()
        return [flat[end - n : end].T for end, n in zip(ends, lengths.tolist(), strict=True)]
    raise ValueError(
        f"{where} must have one entry for each of the {len(lengths)} lengths, or their sum, {int(lengths.sum())}, in "
        f"its first dimension, got {values.shape}"
    )


def _padded(values: Array, reading: Reading, where: str) -> Array:
    """Return values as (n, channels, time)."""
    if values.ndim not in (2, 3):
        raise ValueError(
            f"{where} must have the shape (n, channels, time) or (n, time), or all series one after the other and a "
            f"field of lengths, got {values.shape}"
        )
    if 0 in values.shape:
        raise ValueError(f"{where} must hold at least one series of one step, got {values.shape}")
    if values.ndim == 2:
        return values[:, None]
    return values.transpose(0, 2, 1) if reading.time_first else values
