"""The recurrence parallel in time, for relu and identity: in Triton on GPUs, in plain PyTorch on any device.

A step of the recurrence is a clamped affine map of the state, h → clamp(a + b·h, lo, hi), and such maps compose to such
maps: maps.py. The passes: plain.py, and triton/scan.py.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..calls import Backward, Forward
from ..triton import backend as triton_backend
from ..triton import scan as triton_scan
from . import plain
from .maps import Map

INTERPRET = False
"""Use of the Triton kernels for CPU tensors too, in Triton's interpreter, to test them."""


def why_not(x: Tensor, activation: str) -> str | None:
    """Why the scan cannot be used: other activations do not compose."""
    if activation in ("relu", "identity"):
        return None
    return f"it supports relu and identity, whose steps compose in closed form, not {activation}"


def _in_triton(x: Tensor, activation: str) -> bool:
    return (x.is_cuda or INTERPRET) and triton_backend.why_not(x, activation) is None


def forward(call: Forward) -> tuple[Tensor, Tensor]:
    """As `reference.forward`."""
    if not _in_triton(call.x, call.activation):
        return plain.forward(call)
    chunk = _chunk(call.x)
    return triton_backend.forward(call) if chunk is None else triton_scan.forward(call, chunk)


def backward(call: Backward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    if not _in_triton(call.h, call.activation):
        return plain.backward(call)
    chunk = _chunk(call.h)
    return triton_backend.backward(call) if chunk is None else triton_scan.backward(call, chunk)


def _chunk(x: Tensor) -> int | None:
    """The steps of a chunk on a GPU; None if one chunk would be all of time."""
    T = x.shape[0]
    chunk = gpu_chunk_length(T, x[0].numel() if T else 0)
    return None if chunk >= T else chunk


def gpu_chunk_length(T: int, chains: int) -> int:
    """The length of a chunk for the Triton kernels, a multiple of 16, so of the steps whose loads go out together.

    As short as gives 2^17 threads, which fill a GPU, but not shorter than the one for which the fewest steps follow
    each other.
    """
    return 16 * max(1, math.ceil(max(T * chains / 2**17, math.sqrt(T / 2)) / 16))


__all__ = ["Map", "backward", "forward", "why_not"]
