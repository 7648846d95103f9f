"""`keep_memory`: glibc keeps freed memory in the process instead of giving it back."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Keep freed memory in this process instead of giving it back to the system.

    A training step on the CPU frees hundreds of megabytes of activations and asks for the same again. By default glibc
    gives them back in between, and the system hands them out again page by page, filled with zeros: a tenth of the time
    of a step of the networks of this package, and half of it where tensors are larger than 32 MB. For programs that
    train; the process stays as large as it ever was.

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
