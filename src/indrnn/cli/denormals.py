"""`denormals_are_zero`: for programs that train or measure networks whose gradients may vanish."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def denormals_are_zero() -> Iterator[None]:
    """Take numbers below 1.2e-38 as 0 meanwhile: gradients that vanish pass through them, many times as slowly.

    That is for the program alone, which has no threads yet: torch sets it for the thread that calls, others have it
    from the one that starts them, and a run whose threads differ in it would not be the same when it is resumed.
    """
    before = not torch.tensor([1e-40]).mul(1).count_nonzero()
    torch.set_flush_denormal(True)
    try:
        with warnings.catch_warnings():  # NumPy finds it odd when something asks it for the limits of a type
            warnings.filterwarnings("ignore", message="The value of the smallest subnormal")
            yield
    finally:
        torch.set_flush_denormal(before)
