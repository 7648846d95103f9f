"""The scan in Triton (scan_kernels.py): where each chunk of time starts, then all chunks side by side."""

from __future__ import annotations

from torch import Tensor

from ..calls import Backward, Forward
from ..layout import with_contiguous_rows
from ..reference import accumulation_dtype
from . import backend, launch


def forward(call: Forward, chunk: int) -> tuple[Tensor, Tensor]:
    """As `reference.forward`, in chunks of so many steps."""
    shape = _shape(with_contiguous_rows(call.x), call)
    at_once, parts, _ = launch.chunks(shape, launch.steps(1, call.x.dtype), chunk)
    a, b, lo, hi, starts = (shape.new(parts, shape.chains) for _ in range(5))
    bounds = {"lo": lo, "hi": hi} if call.activation == "relu" else {"lo": None, "hi": None}
    series = {**launch.strided("x", "x", shape.x), "bias": shape.vector(call.bias)}
    arguments = {**shape.recurrence(call), **series, **bounds, "a": a, "b": b, "span": chunk}
    shape.run("forward_maps", at_once, parts, **arguments)
    start = launch.contiguous(call.h_0)
    shape.run("forward_starts", _maps_at_once(call.x), h_0=start, starts=starts, count=parts, **arguments)
    return backend.launch_forward(shape, call._replace(h_0=starts), chunk)


def backward(call: Backward, chunk: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`, in chunks of so many steps."""
    grad_h, h, u = call.grad_h, call.h, call.u
    shape = _shape(h.contiguous(), call)
    at_once, parts, _ = launch.chunks(shape, launch.steps(2, h.dtype), chunk)
    a, b, starts = (shape.new(parts, shape.chains) for _ in range(3))
    series = launch.strided("grad_h", "g", None if grad_h is None else with_contiguous_rows(grad_h))
    arguments = {**shape.recurrence(call), **series, "h": shape.x, "a": a, "b": b, "span": chunk}
    shape.run("backward_maps", at_once, parts, **arguments)
    last = launch.contiguous(call.grad_h_last)
    shape.run("backward_starts", _maps_at_once(h), grad_h_last=last, starts=starts, count=parts, **arguments)
    grad_x, grad_h_0, sum_u, sum_bias, _ = backend.launch_backward(shape, call._replace(grad_h_last=starts), chunk)
    return grad_x, sum_u.to(u.dtype), sum_bias.to(u.dtype), grad_h_0


def _shape(x: Tensor, call: Forward | Backward) -> launch.Shape:
    shape = launch.Shape(x, call.lengths, call.resets)
    shape.block, shape.warps = launch.LANES, 1  # warps have nothing to tell each other
    return shape


def _maps_at_once(x: Tensor) -> int:
    """How many chunks' maps are loaded together: four numbers each."""
    return launch.steps(3, accumulation_dtype(x.dtype))
