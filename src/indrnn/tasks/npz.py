"""Arrays of .npz files: what is wrong with a file is said in one line that names it."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .._lazy import Lazy

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazy("numpy")

Array: TypeAlias = "np.ndarray[Any, Any]"
_TROUBLES = (OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error, RuntimeError)


def read_arrays(path: Path, needed: Collection[str] | None = None) -> dict[str, Array]:
    """Read the arrays of an .npz file.

    Those of Python objects are left out, but raise ValueError if they are `needed`, as all are for None.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    arrays: dict[str, Array] = {}
    try:
        with path.open("rb") as opened:  # which NumPy would leave open for a damaged file
            try:
                content = np.load(opened, allow_pickle=False)
            except ValueError:  # NumPy takes what it does not know for a pickle
                raise OSError("it is no archive of arrays") from None
            if not hasattr(content, "files"):
                raise OSError("it is one array, as np.save writes")
            for name in content.files:
                try:
                    arrays[name] = content[name]
                except ValueError as error:
                    if "pickle" not in str(error).lower():
                        raise
                    if needed is None or name in needed:
                        what = "which could run code when it is read; write numbers or words"
                        raise ValueError(f"{name} is an array of Python objects, {what}") from None
    except _TROUBLES as error:
        raise ValueError(f"{path}: it cannot be read as .npz: {error}; np.savez(path, NAME=ARRAY) writes one") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return arrays


def decoded(array: Array, errors: str = "strict") -> Array:
    """Words of bytes as text in UTF-8; other arrays are returned as they are."""
    return np.char.decode(array, "utf-8", errors) if array.dtype.kind == "S" else array
