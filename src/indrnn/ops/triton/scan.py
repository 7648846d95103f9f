"""The scan in Triton (scan_kernels.py): where each chunk of time starts, then all chunks side by side."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..calls import Backward, Forward
from ..layout import with_contiguous_rows
from ..reference import accumulation_dtype
from . import backend, launch


def forward(call: Forward, chunk: int) -> tuple[Tensor, Tensor]:
    """As `reference.forward`, in chunks of so many steps."""
    x, u, bias, h_0, lengths, resets, activation, reverse = call
    shape = _shape(with_contiguous_rows(x), lengths, resets)
    at_once, parts, _ = launch.chunks(shape, launch.steps(1, x.dtype), chunk)
    a, b, lo, hi, starts = (shape.new(parts, shape.chains) for _ in range(5))
    arguments: dict[str, Any] = {
        **launch.strided("x", "x", shape.x),
        "u": shape.vector(u),
        "bias": None if bias is None else shape.vector(bias),
        "resets": shape.resets,
        **({"a": a, "b": b, "lo": lo, "hi": hi} if activation == "relu" else {"a": a, "b": b, "lo": None, "hi": None}),
        "B": shape.B,
        "span": chunk,
        "ACTIVATION": activation,
        "REVERSE": reverse,
    }
    shape.run("forward_maps", at_once, parts, **arguments)
    start = None if h_0 is None else h_0.contiguous()
    shape.run("forward_starts", _maps_at_once(x), h_0=start, starts=starts, count=parts, **arguments)
    no_norm: dict[str, Any] = {"y": None, "mean": None, "square": None, **backend.NO_NORM}
    return backend.launch_forward(shape, u, bias, starts, activation, reverse, chunk, **no_norm)


def backward(call: Backward, chunk: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`, in chunks of so many steps."""
    grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse = call
    shape = _shape(h.contiguous(), lengths, resets)
    at_once, parts, _ = launch.chunks(shape, launch.steps(2, h.dtype), chunk)
    a, b, starts = (shape.new(parts, shape.chains) for _ in range(3))
    arguments: dict[str, Any] = {
        **launch.strided("grad_h", "g", None if grad_h is None else with_contiguous_rows(grad_h)),
        "h": shape.x,
        "u": shape.vector(u),
        "resets": shape.resets,
        "a": a,
        "b": b,
        "B": shape.B,
        "span": chunk,
        "ACTIVATION": activation,
        "REVERSE": reverse,
    }
    shape.run("backward_maps", at_once, parts, **arguments)
    last = None if grad_h_last is None else grad_h_last.contiguous()
    shape.run("backward_starts", _maps_at_once(h), grad_h_last=last, starts=starts, count=parts, **arguments)
    grad_x, grad_h_0, sum_u, sum_bias, _ = backend.launch_backward(
        shape, grad_h, starts, None, u, h_0, activation, reverse, chunk, gain=None, **backend.NO_NORM
    )
    return grad_x, sum_u.to(u.dtype), sum_bias.to(u.dtype), grad_h_0


def _shape(x: Tensor, lengths: Tensor | None, resets: Tensor | None) -> launch.Shape:
    shape = launch.Shape(x, lengths, resets)
    shape.block, shape.warps = launch.LANES, 1  # warps have nothing to tell each other
    return shape


def _maps_at_once(x: Tensor) -> int:
    """How many chunks' maps are loaded together: four numbers each."""
    return launch.steps(3, accumulation_dtype(x.dtype))
