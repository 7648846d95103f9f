"""The Triton kernels (triton_kernels.py, triton_norm.py) for GPU tensors. Inputs are prepared here, sums finished.

Those that are parallel in time (triton_scan.py) are launched by scan.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
from typing import Any

import torch
from torch import Tensor

from .native import _with_contiguous_rows
from .reference import accumulation_dtype


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
    """Why the kernels cannot serve this tensor, or None if they can."""
    if x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "it serves GPU tensors, and CPU tensors only in Triton's interpreter (TRITON_INTERPRET=1), to test it"
    if x.device.type not in ("cuda", "cpu"):
        return f"it serves CUDA and ROCm tensors only, not {x.device.type}"
    return _import_error() or (_driver_error() if x.device.type == "cuda" else None)


# ---- settings of the launches


LANES = 64 if torch.version.hip else 32
"""Threads in a warp."""


def blocks(chains: int, N: int, dtype: torch.dtype) -> tuple[int, int]:
    """How many chains a program owns, and its warps.

    A chain is a thread's, and threads are what a recurrence has few of: a small problem is spread over programs of one
    warp, so that every multiprocessor has its share. Neither N nor the type matters: two chains of a half type to a
    thread would be read at once, but two of everything else do not fit in the registers.
    """
    warps = 1 if chains < 2**16 else 4
    return warps * LANES, warps


def steps(loads: int, dtype: torch.dtype, activation: str = "identity") -> int:
    """How many steps' loads go out together: some 32 numbers of each thread, which its registers hold with ease.

    Where arithmetic takes longer than memory, that is for nothing, and the code would only be long. AMD keeps a mask of
    64 lanes for each step in scalar registers, and those are few.
    """
    if LANES == 64:
        return 8 if loads == 1 else 4
    if activation in ("tanh", "sigmoid"):
        return 8
    return {1: 32, 2: 16, 3: 8}[loads] // (2 if dtype == torch.float64 else 1)


def _parts(T: int, chains: int, at_once: int) -> tuple[int, int]:
    """Into how many parts time is divided where it can be, and their steps: threads enough, and few sums to add up."""
    wanted = max(1, min(math.ceil(T / 64), 2**18 // chains))
    span = max(1, math.ceil(T / wanted / at_once)) * at_once
    return max(1, math.ceil(T / span)), span


MODULES = {
    "forward": "triton_kernels",
    "backward": "triton_kernels",
    "moments": "triton_norm",
    "products": "triton_norm",
    "combine": "triton_norm",
    "forward_maps": "triton_scan",
    "forward_starts": "triton_scan",
    "backward_maps": "triton_scan",
    "backward_starts": "triton_scan",
}
"""Where each kernel is."""


def chunks(shape: Shape, at_once: int, chunk: int | None) -> tuple[int, int, int]:
    """The steps at once, the parts of time and their steps; chunks are of whole numbers of steps at once.

    Chunks make for many programs: while some wait for memory others compute, so fewer steps at once will do.
    """
    if chunk is None:
        return at_once, 1, shape.T
    return math.gcd(at_once, chunk, 8), math.ceil(shape.T / chunk), chunk


def _launch(kernel: str, programs: int, like: Tensor, settings: dict[str, Any], **arguments: Any) -> None:
    """Run a kernel; `like` tells the device. The tests replace this to see what is launched."""
    kernels: Any = importlib.import_module(f".{MODULES[kernel]}", __package__)
    with torch.cuda.device(like.device) if like.is_cuda else contextlib.nullcontext():
        getattr(kernels, kernel)[(programs,)](**arguments, **settings)


class Shape:
    """The sizes of a (T, B, ..., N) tensor, and what the kernels are told of them and of its padding and resets."""

    def __init__(self, x: Tensor, lengths: Tensor | None, resets: Tensor | None = None) -> None:
        self.x, self.dtype, self.device = x, accumulation_dtype(x.dtype), x.device
        self.T, self.B, *between, self.N = x.shape
        self.M = math.prod(between)
        self.R = self.M * self.N
        self.chains = self.B * self.R
        self.block, self.warps = blocks(self.chains, self.N, x.dtype)
        if lengths is not None:
            message = f"lengths must lie between 0 and T = {self.T}"
            torch._assert_async(((lengths >= 0) & (lengths <= self.T)).all(), message)  # on a GPU, no waiting
            lengths = lengths.contiguous()
        self.lengths = lengths
        self.resets = None if resets is None else resets.contiguous().view(torch.uint8)

    def run(self, kernel: str, at_once: int, parts: int = 1, **arguments: Any) -> None:
        """Launch a kernel for all chains, and for `parts` of time where it divides that."""
        programs = math.ceil(self.chains / self.block) * parts
        if programs:
            sizes = {"T": self.T, "chains": self.chains, "R": self.R, "N": self.N, "lengths": self.lengths}
            settings = {"BLOCK": self.block, "STEPS": at_once, "num_warps": self.warps}
            _launch(kernel, programs, self.x, settings, **sizes, **arguments)

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor for results, in the accumulation type unless another is asked for."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def vector(self, values: Tensor) -> Tensor:
        """A vector (N,) as the kernels take it."""
        return values.to(self.dtype).contiguous()

    def mask(self, mask: Tensor | None) -> Tensor | None:
        """A mask of dropout, shared over time, as the kernels take it."""
        return None if mask is None else mask.to(self.dtype).expand(1, *self.x.shape[1:]).contiguous()

    def add_up(self, sums: Tensor) -> Tensor:
        """The chains' sums to those of the neurons, (N,), in float64 and always in the same order."""
        return sums.view(sums.numel() // max(1, self.N), self.N).sum(0, dtype=torch.float64)

    def count(self) -> Tensor | int:
        """How many numbers a neuron's statistics are of; 1 for none, whose sums are 0."""
        if self.lengths is None:
            return max(1, self.T * self.B * self.M)
        return (self.lengths.sum() * self.M).clamp_min(1)

    def moments(self, mean: Tensor, square: Tensor, span: int) -> tuple[Tensor, Tensor]:
        """Mean and biased variance (N,), in float64, from those of each part of each chain; without a cancellation."""
        parts = mean.shape[0]
        begin = torch.arange(parts, device=self.device).view(-1, 1) * span
        end = torch.full((self.B,), self.T, device=self.device) if self.lengths is None else self.lengths
        each = (end - begin).clamp(0, span).view(parts, self.B, 1, 1).double()
        means, squares = (t.view(parts, self.B, self.M, self.N).double() for t in (mean, square))
        over, n = (0, 1, 2), self.count()
        total = (each * means).sum(over) / n
        var = (squares + each * (means - total).square()).sum(over) / n
        return total, var


def strided(name: str, prefix: str, x: Tensor | None) -> dict[str, Any]:
    """A tensor over time as the kernels take it: with its strides over time and batch."""
    strides = (0, 0) if x is None else x.stride()[:2]
    return {name: x, f"{prefix}_t": strides[0], f"{prefix}_b": strides[1]}


# ---- the recurrence

NO_NORM = {"offset": None, "slope": None, "center": None, "mask": None}


def forward(
    x: Tensor,
    u: Tensor,
    bias: Tensor | None,
    h_0: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    activation: str,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """As `reference.forward`."""
    shape = Shape(_with_contiguous_rows(x), lengths, resets)
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
    at_once, parts, span = chunks(shape, steps(numbers, x.dtype, activation), chunk)
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


def backward(
    grad_h: Tensor | None,
    grad_h_last: Tensor | None,
    h: Tensor,
    u: Tensor,
    h_0: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    activation: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
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
    at_once, parts, span = chunks(shape, steps(numbers, h.dtype), chunk)
    grad_x = shape.new(*h.shape, dtype=h.dtype)
    grad_h_0 = shape.new(*h.shape[1:], dtype=h.dtype if h_0 is None else h_0.dtype)
    sum_u, sum_bias = (shape.new(parts, shape.chains, dtype=torch.float64) for _ in range(2))
    sum_x = None if x is None else shape.new(parts, shape.chains, dtype=torch.float64)
    shape.run(
        "backward",
        at_once,
        parts,
        **strided("grad_h", "g", None if grad_h is None else _with_contiguous_rows(grad_h)),
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


def norm_forward(
    x: Tensor,
    u: Tensor,
    bias: Tensor | None,
    h_0: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    eps: float,
    activation: str,
    place: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `fused.norm_forward`."""
    x = _with_contiguous_rows(x)
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
        at_once = steps(1, x.dtype)
        parts, span = _parts(shape.T, max(1, shape.chains), at_once)
        means, squares = shape.new(parts, shape.chains, dtype=torch.float64), shape.new(parts, shape.chains)
        shape.run("moments", at_once, parts, **strided("v", "v", x), mean=means, square=squares, span=span)
        mean, var = shape.moments(means, squares, span)
        y = x.new_empty(0) if mask is None else shape.new(*x.shape, dtype=x.dtype)
        places: dict[str, Any] = {"mask": mask, "y": None if mask is None else y, "mean": None, "square": None}
        h, h_last = launch_forward(shape, u, None, h_0, activation, False, **places, **normalise(mean, var))
        if mask is None:
            y, h = h, y
    return y, h_last, h, mean.to(shape.dtype), var.to(shape.dtype)


def norm_backward(
    grad_y: Tensor,
    grad_h_last: Tensor | None,
    h: Tensor,
    x: Tensor | None,
    u: Tensor,
    h_0: Tensor | None,
    weight: Tensor,
    mean: Tensor,
    var: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    eps: float,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `fused.norm_backward`; x is there for a norm before the recurrence alone."""
    grad_y = _with_contiguous_rows(grad_y)
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
        at_once = steps(2, h.dtype)
        parts, span = _parts(shape.T, max(1, shape.chains), at_once)
        first, second = shape.new(parts, shape.chains), shape.new(parts, shape.chains)
        sums = {"first": first, "second": second, "center": center, "mask": mask}
        shape.run("products", at_once, parts, **strided("g", "g", grad_y), h=shape.x, span=span, **sums)
        S1, S2 = shape.add_up(first), shape.add_up(second)
        grad_x, grad_h_0, grad_u, grad_bias, _ = launch_backward(
            shape, grad_y, grad_h_last, None, *recurrence, mask=mask, **correct(S1, S2)
        )
    else:
        x = _with_contiguous_rows(x)
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
    at_once = steps(1 if constants["gain"] is None else 2, v.dtype)
    shape.run("combine", at_once, math.ceil(shape.T / at_once), **strided("v", "v", v), to=to, **constants)
