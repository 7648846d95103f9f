"""The recurrence parallel in time, for relu and identity: in Triton on GPUs, in plain PyTorch on any device.

A step of the recurrence is a clamped affine map of the state, h → clamp(a + b·h, lo, hi), and such maps compose to such
maps: maps.py. The length of a chunk of time, and when it pays: cost.py. The passes: plain.py, and triton/scan.py.
"""

from __future__ import annotations

from torch import Tensor

from ..calls import Backward, Forward
from ..triton import backend as triton_backend
from ..triton import scan as triton_scan
from . import cost, plain
from .maps import Map

INTERPRET = False
"""Whether CPU tensors too take the Triton kernels, in Triton's interpreter, to test them."""


def why_not(x: Tensor, activation: str) -> str | None:
    """Why the scan cannot be used: other activations do not compose."""
    if activation in ("relu", "identity"):
        return None
    return f"it serves relu and identity, whose steps compose in closed form, not {activation}"


def pays(x: Tensor, activation: str) -> bool:
    """Whether the scan is estimated to be faster than the sequential order for this tensor; never on a CPU."""
    if not x.is_cuda or x.numel() == 0 or why_not(x, activation) is not None or not _in_triton(x, activation):
        return False
    sequential, in_chunks = cost.estimate(x.shape[0], x.numel() // x.shape[0], x.element_size())
    return in_chunks < sequential


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
    chunk = cost.gpu_chunk_length(T, x[0].numel() if T else 0)
    return None if chunk >= T else chunk


__all__ = ["Map", "backward", "forward", "pays", "why_not"]
