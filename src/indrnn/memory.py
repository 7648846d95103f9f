"""`keep_memory`: glibc keeps freed memory in the process instead of giving it back."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Keep freed memory in this process instead of giving it back to the system.

    A training step on the CPU frees hundreds of megabytes of activations and allocates as much again. By default glibc
    returns them to the system in between, which provides them again page by page, filled with zeros. This takes a tenth
    of the time of a step of this package's networks, and half of it if tensors are larger than 32 MB. Intended for
    programs that train; the process stays at its peak size.

    Returns:
        Whether it took effect: with glibc, on Linux.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # No piece of memory of its own for a large tensor, which would go back when it is freed; and nothing trimmed.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
