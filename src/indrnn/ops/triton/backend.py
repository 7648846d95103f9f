"""The recurrence by Triton kernels, for GPU tensors, alone and with batch norm.

Inputs are prepared here, and sums finished. Kernels: recurrence_kernels.py, norm_kernels.py. Those that are parallel in
time are launched by scan.py.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from typing import Any

import torch
from torch import Tensor

from ..calls import Backward, Forward, NormBackward, NormForward, NormResult
from ..layout import with_contiguous_rows
from . import launch
from .launch import Shape, strided


@functools.cache
def _import_error() -> str | None:
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    return None


@functools.cache
def _driver_error() -> str | None:
    """Triton builds its link to the GPU's driver when first asked for it, for which it needs a C compiler."""
    try:
        importlib.import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:
        return f"Triton cannot reach a GPU: {error}"
    return None


def why_not(x: Tensor, activation: str) -> str | None:
    """Why the kernels cannot be used for this tensor, or None if they can."""
    if x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "it supports GPU tensors, and CPU tensors only in Triton's interpreter (TRITON_INTERPRET=1), to test it"
    if x.device.type not in ("cuda", "cpu"):
        return f"it supports CUDA and ROCm tensors only, not {x.device.type}"
    return _import_error() or (_driver_error() if x.device.type == "cuda" else None)


# ---- the recurrence


NO_NORM = {"offset": None, "slope": None, "center": None, "mask": None}


def forward(call: Forward) -> tuple[Tensor, Tensor]:
    """As `reference.forward`."""
    x, u, bias, h_0, lengths, resets, activation, reverse = call
    shape = Shape(with_contiguous_rows(x), lengths, resets)
    return launch_forward(shape, u, bias, h_0, activation, reverse, y=None, mean=None, square=None, **NO_NORM)


def launch_forward(
    shape: Shape,
    u: Tensor,
    bias: Tensor | None,
    h_0: Tensor | None,
    activation: str,
    reverse: bool,
    chunk: int | None = None,
    **norm: Any,
) -> tuple[Tensor, Tensor]:
    """With a length of chunks, they run side by side, and h_0 has the start of each."""
    x = shape.x
    numbers = 1 if norm["slope"] is None and shape.resets is None else 2  # a norm's and the resets take registers too
    at_once, parts, span = launch.chunks(shape, launch.steps(numbers, x.dtype, activation), chunk)
    h, h_last = shape.new(*x.shape, dtype=x.dtype), shape.new(*x.shape[1:], dtype=x.dtype)
    shape.run(
        "forward",
        at_once,
        parts,
        **strided("x", "x", x),
        u=shape.vector(u),
        bias=None if bias is None else shape.vector(bias),
        h_0=None if h_0 is None else h_0.contiguous(),
        resets=shape.resets,
        h=h,
        h_last=h_last,
        B=shape.B,
        span=span,
        ACTIVATION=activation,
        REVERSE=reverse,
        **norm,
    )
    return h, h_last


def backward(call: Backward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse = call
    shape = Shape(h.contiguous(), lengths, resets)
    grad_x, grad_h_0, sum_u, sum_bias, _ = launch_backward(
        shape, grad_h, grad_h_last, None, u, h_0, activation, reverse, gain=None, **NO_NORM
    )
    return grad_x, sum_u.to(u.dtype), sum_bias.to(u.dtype), grad_h_0


def launch_backward(
    shape: Shape,
    grad_h: Tensor | None,
    grad_h_last: Tensor | None,
    x: Tensor | None,
    u: Tensor,
    h_0: Tensor | None,
    activation: str,
    reverse: bool,
    chunk: int | None = None,
    **norm: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of x, h_0, and, in float64, u and bias, and the sum of x's gradient times x less its center.

    With a length of chunks, they run side by side, and grad_h_last has what comes to each.
    """
    h = shape.x
    numbers = 3 if x is not None or norm["gain"] is not None or shape.resets is not None else 2
    at_once, parts, span = launch.chunks(shape, launch.steps(numbers, h.dtype), chunk)
    grad_x = shape.new(*h.shape, dtype=h.dtype)
    grad_h_0 = shape.new(*h.shape[1:], dtype=h.dtype if h_0 is None else h_0.dtype)
    sum_u, sum_bias = (shape.new(parts, shape.chains, dtype=torch.float64) for _ in range(2))
    sum_x = None if x is None else shape.new(parts, shape.chains, dtype=torch.float64)
    shape.run(
        "backward",
        at_once,
        parts,
        **strided("grad_h", "g", None if grad_h is None else with_contiguous_rows(grad_h)),
        **strided("x", "x", x),
        h=h,
        u=shape.vector(u),
        h_0=None if h_0 is None else h_0.contiguous(),
        grad_h_last=None if grad_h_last is None else grad_h_last.contiguous(),
        resets=shape.resets,
        grad_x=grad_x,
        grad_h_0=grad_h_0,
        sum_u=sum_u,
        sum_bias=sum_bias,
        sum_x=sum_x,
        B=shape.B,
        span=span,
        ACTIVATION=activation,
        REVERSE=reverse,
        **norm,
    )
    of_x = None if sum_x is None else shape.add_up(sum_x)
    return grad_x, grad_h_0, shape.add_up(sum_u), shape.add_up(sum_bias), of_x


# ---- with batch norm


def norm_forward(call: NormForward) -> NormResult:
    """As `reference_norm.forward`."""
    x, u, bias, h_0, weight, shift, mask, lengths, resets, eps, activation, place = call
    x = with_contiguous_rows(x)
    shape = Shape(x, lengths, resets)
    mask = shape.mask(mask)

    def normalise(mean: Tensor, var: Tensor) -> dict[str, Any]:
        """Constants of weight * (v - mean) / deviation + shift; what rounding takes from the mean, the shift gets."""
        scale, center = weight.double() / (var + eps).sqrt(), mean.to(shape.dtype)
        offset = shift.double() + scale * (center.double() - mean)
        return {"offset": shape.vector(offset), "slope": shape.vector(scale), "center": center}

    if place == "after":
        means, squares = shape.new(1, shape.chains, dtype=torch.float64), shape.new(1, shape.chains)
        statistics: dict[str, Any] = {"mean": means, "square": squares, "y": None}
        h, h_last = launch_forward(shape, u, bias, h_0, activation, False, **statistics, **NO_NORM)
        mean, var = shape.moments(means, squares, shape.T)
        y = shape.new(*x.shape, dtype=x.dtype)
        _combine(shape, h, y, mask=mask, gain=None, **normalise(mean, var))
    else:  # the norm takes any bias away again
        at_once = launch.steps(1, x.dtype)
        parts, span = launch.parts(shape.T, max(1, shape.chains), at_once)
        means, squares = shape.new(parts, shape.chains, dtype=torch.float64), shape.new(parts, shape.chains)
        shape.run("moments", at_once, parts, **strided("v", "v", x), mean=means, square=squares, span=span)
        mean, var = shape.moments(means, squares, span)
        y = x.new_empty(0) if mask is None else shape.new(*x.shape, dtype=x.dtype)
        places: dict[str, Any] = {"mask": mask, "y": None if mask is None else y, "mean": None, "square": None}
        h, h_last = launch_forward(shape, u, None, h_0, activation, False, **places, **normalise(mean, var))
        if mask is None:
            y, h = h, y
    return NormResult(y, h_last, h, mean.to(shape.dtype), var.to(shape.dtype))


def norm_backward(call: NormBackward) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference_norm.backward`."""
    grad_y, grad_h_last, h, x, u, h_0, weight, mean, var, mask, lengths, resets, eps, activation = call
    grad_y = with_contiguous_rows(grad_y)
    shape = Shape(h.contiguous(), lengths, resets)
    center, mask = shape.vector(mean), shape.mask(mask)
    rstd = (var.double() + eps).rsqrt()

    def correct(S1: Tensor, S2: Tensor) -> dict[str, Any]:
        """Constants of scale * g - scale * (S1 + (v - mean) / deviation^2 * S2) / count, S2 of g * (v - mean)."""
        scale, n = weight.double() * rstd, shape.count()
        affine = {"gain": scale, "offset": -scale * S1 / n, "slope": -scale * rstd.square() * S2 / n}
        return {"center": center, **{name: shape.vector(values) for name, values in affine.items()}}

    recurrence = (u, h_0, activation, False)
    if x is None:
        at_once = launch.steps(2, h.dtype)
        parts, span = launch.parts(shape.T, max(1, shape.chains), at_once)
        first, second = shape.new(parts, shape.chains), shape.new(parts, shape.chains)
        sums = {"first": first, "second": second, "center": center, "mask": mask}
        shape.run("products", at_once, parts, **strided("g", "g", grad_y), h=shape.x, span=span, **sums)
        S1, S2 = shape.add_up(first), shape.add_up(second)
        grad_x, grad_h_0, grad_u, grad_bias, _ = launch_backward(
            shape, grad_y, grad_h_last, None, *recurrence, mask=mask, **correct(S1, S2)
        )
    else:
        x = with_contiguous_rows(x)
        constants: dict[str, Any] = {"gain": None, "offset": None, "slope": None, "center": center, "mask": mask}
        grad_x, grad_h_0, grad_u, S1, of_x = launch_backward(shape, grad_y, grad_h_last, x, *recurrence, **constants)
        assert of_x is not None
        S2 = of_x
        _combine(shape, x, grad_x, mask=None, **correct(S1, S2))
        grad_bias = torch.zeros_like(grad_u)
    return (
        grad_x,
        grad_u.to(u.dtype),
        grad_bias.to(u.dtype),
        grad_h_0,
        (S2 * rstd).to(weight.dtype),
        S1.to(weight.dtype),
    )


def _combine(shape: Shape, v: Tensor, to: Tensor, **constants: Tensor | None) -> None:
    at_once = launch.steps(1 if constants["gain"] is None else 2, v.dtype)
    shape.run("combine", at_once, math.ceil(shape.T / at_once), **strided("v", "v", v), to=to, **constants)
