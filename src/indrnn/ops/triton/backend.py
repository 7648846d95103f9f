"""The recurrence by Triton kernels, for GPU tensors: alone, parallel in time, and with batch norm.

Inputs are prepared here, and sums finished. Kernels: recurrence_kernels.py, scan_kernels.py.
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

from ..calls import Backward, Call, Forward, NormBackward, NormForward, NormResult, with_contiguous_rows
from ..reference import accumulation_dtype


@functools.cache
def _problem(device: str) -> str | None:
    """Why Triton does not run there; it needs a C compiler for its link to a GPU's driver, built when asked for it."""
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    try:
        if device == "cuda":
            importlib.import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:
        return f"Triton cannot reach a GPU: {error}"
    return None


def why_not(x: Tensor, activation: str) -> str | None:
    """Why the kernels cannot be used for this tensor, or None if they can."""
    device = x.device.type
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "it supports GPU tensors, and CPU tensors only in Triton's interpreter (TRITON_INTERPRET=1), to test it"
    if device not in ("cuda", "cpu"):
        return f"it supports CUDA and ROCm tensors only, not {device}"
    return _problem(device)


# ---- launches: blocks, warps, steps at once, and what every kernel is told of a tensor's shape

LANES = 64 if torch.version.hip else 32
"""Threads in a warp."""


def blocks(chains: int) -> tuple[int, int]:
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


def time_parts(T: int, chains: int, at_once: int) -> tuple[int, int]:
    """Into how many parts time is divided where it can be, and their steps: threads enough, and few sums to add up."""
    wanted = max(1, min(math.ceil(T / 64), 2**18 // max(1, chains)))
    span = max(1, math.ceil(T / wanted / at_once)) * at_once
    return max(1, math.ceil(T / span)), span


MODULES = {
    **dict.fromkeys(("forward", "backward", "moments", "products", "combine"), "recurrence_kernels"),
    **dict.fromkeys(("forward_maps", "forward_starts", "backward_maps", "backward_starts"), "scan_kernels"),
}
"""Module of each kernel."""


def chunks(shape: Shape, at_once: int, chunk: int | None) -> tuple[int, int, int]:
    """The steps at once, the parts of time and their steps; chunks are of whole numbers of steps at once.

    Chunks make for many programs: while some wait for memory others compute, so fewer steps at once will do.
    """
    if chunk is None:
        return at_once, 1, shape.T
    return math.gcd(at_once, chunk, 8), math.ceil(shape.T / chunk), chunk


def launch(kernel: str, programs: int, like: Tensor, settings: dict[str, Any], **arguments: Any) -> None:
    """Run a kernel; `like` tells the device. The tests replace this to see what is launched."""
    kernels: Any = importlib.import_module(f".{MODULES[kernel]}", __package__)
    with torch.cuda.device(like.device) if like.is_cuda else contextlib.nullcontext():
        getattr(kernels, kernel)[(programs,)](**arguments, **settings)


class Shape:
    """The sizes of a (T, B, ..., N) tensor, and what the kernels are told of them and of its padding and resets."""

    def __init__(self, x: Tensor, call: Call, *, scans: bool = False) -> None:
        self.x, self.dtype = x, accumulation_dtype(x.dtype)
        self.T, self.B, *between, self.N = x.shape
        self.M = math.prod(between)
        self.R = self.M * self.N
        self.chains = self.B * self.R
        # The warps of a scan have nothing to tell each other
        self.block, self.warps = (LANES, 1) if scans else blocks(self.chains)
        self.lengths = contiguous(call.lengths)
        if self.lengths is not None:
            within = (self.lengths >= 0) & (self.lengths <= self.T)
            torch._assert_async(within.all(), f"lengths must lie between 0 and T = {self.T}")  # on a GPU, no waiting
        self.resets = None if call.resets is None else call.resets.contiguous().view(torch.uint8)

    def run(self, kernel: str, at_once: int, parts: int = 1, **arguments: Any) -> None:
        """Launch a kernel for all chains, and for `parts` of time where it divides that."""
        programs = math.ceil(self.chains / self.block) * parts
        if programs:
            sizes = {"T": self.T, "chains": self.chains, "R": self.R, "N": self.N, "lengths": self.lengths}
            settings = {"BLOCK": self.block, "STEPS": at_once, "num_warps": self.warps}
            launch(kernel, programs, self.x, settings, **sizes, **arguments)

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor for results, in the accumulation type unless another is asked for."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.x.device)

    def vector(self, values: Tensor | None) -> Tensor | None:
        """A vector (N,) as the kernels take it."""
        return None if values is None else values.to(self.dtype).contiguous()

    def recurrence(self, call: Forward | Backward) -> dict[str, Any]:
        """The kernels' arguments that are the same in both directions."""
        options = {"ACTIVATION": call.activation, "REVERSE": call.reverse}
        return {"u": self.vector(call.u), "resets": self.resets, "B": self.B, **options}

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
        begin = torch.arange(parts, device=self.x.device).view(-1, 1) * span
        end = torch.full((self.B,), self.T, device=self.x.device) if self.lengths is None else self.lengths
        sizes = (end - begin).clamp(0, span).view(parts, self.B, 1, 1).double()
        means, squares = (t.view(parts, self.B, self.M, self.N).double() for t in (mean, square))
        over, n = (0, 1, 2), self.count()
        total = (sizes * means).sum(over) / n
        var = (squares + sizes * (means - total).square()).sum(over) / n
        return total, var


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """A state as the kernels take it."""
    return None if tensor is None else tensor.contiguous()


def strided(name: str, prefix: str, x: Tensor | None) -> dict[str, Any]:
    """A tensor over time as the kernels take it: with contiguous rows, and its strides over time and batch."""
    x = None if x is None else with_contiguous_rows(x)
    strides = (0, 0) if x is None else x.stride()[:2]
    return {name: x, f"{prefix}_t": strides[0], f"{prefix}_b": strides[1]}


# ---- the recurrence

_NO_NORM = dict.fromkeys(("offset", "slope", "center", "mask"))
_FORWARD = {**_NO_NORM, **dict.fromkeys(("y", "mean", "square"))}
_BACKWARD = {**_NO_NORM, "gain": None}


def forward(call: Forward, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """As `reference.forward`; with a length of chunks, by the scan, in chunks of so many steps."""
    shape = Shape(with_contiguous_rows(call.x), call, scans=chunk is not None)
    if chunk is not None:
        inputs = {**strided("x", "x", shape.x), "bias": shape.vector(call.bias), "lo": None, "hi": None}
        starts = _starts("forward", shape, call, chunk, inputs, h_0=contiguous(call.h_0))
        call = call._replace(h_0=starts)
    return _launch_forward(shape, call, chunk)


def _starts(
    way: str, shape: Shape, call: Forward | Backward, chunk: int, inputs: dict[str, Any], **first: Any
) -> Tensor:
    """What each chunk of a scan starts from: one kernel composes the chunks' maps, one goes through them."""
    at_once, parts, _ = chunks(shape, steps(1 if way == "forward" else 2, shape.x.dtype), chunk)
    arguments = {**shape.recurrence(call), **inputs, "span": chunk}
    bounds = ("lo", "hi") if way == "forward" and call.activation == "relu" else ()
    arguments |= {name: shape.new(parts, shape.chains) for name in ("a", "b", *bounds)}
    shape.run(f"{way}_maps", at_once, parts, **arguments)
    starts = shape.new(parts, shape.chains)
    shape.run(f"{way}_starts", steps(3, shape.dtype), starts=starts, count=parts, **first, **arguments)
    return starts


def _launch_forward(shape: Shape, call: Forward, chunk: int | None = None, **norm: Any) -> tuple[Tensor, Tensor]:
    """Run over the x of `shape`, with what a norm adds to the kernel's arguments.

    With a length of chunks, they run side by side, and h_0 has the start of each.
    """
    x = shape.x
    numbers = 1 if "slope" not in norm and shape.resets is None else 2  # a norm's and the resets take registers too
    at_once, parts, span = chunks(shape, steps(numbers, x.dtype, call.activation), chunk)
    h, h_last = shape.new(*x.shape, dtype=x.dtype), shape.new(*x.shape[1:], dtype=x.dtype)
    arguments = {**shape.recurrence(call), **_FORWARD, **norm, "bias": shape.vector(call.bias), "span": span}
    h_0 = contiguous(call.h_0)
    shape.run("forward", at_once, parts, **strided("x", "x", x), h_0=h_0, h=h, h_last=h_last, **arguments)
    return h, h_last


def backward(call: Backward, chunk: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`; with a length of chunks, by the scan, in chunks of so many steps."""
    shape = Shape(call.h.contiguous(), call, scans=chunk is not None)
    if chunk is not None:
        inputs = {**strided("grad_h", "g", call.grad_h), "h": shape.x}
        last = contiguous(call.grad_h_last)
        call = call._replace(grad_h_last=_starts("backward", shape, call, chunk, inputs, grad_h_last=last))
    grad_x, grad_h_0, sum_u, sum_bias, _ = _launch_backward(shape, call, chunk)
    return grad_x, sum_u.to(call.u.dtype), sum_bias.to(call.u.dtype), grad_h_0


def _launch_backward(
    shape: Shape, call: Backward, chunk: int | None = None, x: Tensor | None = None, **norm: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
    """The gradients of x, h_0, and, in float64, u and bias, and the sum of x's gradient times x less its center.

    Arguments are those of `_launch_forward`; with a length of chunks, grad_h_last has what comes to each.
    """
    h = shape.x
    numbers = 3 if x is not None or "gain" in norm or shape.resets is not None else 2
    at_once, parts, span = chunks(shape, steps(numbers, h.dtype), chunk)
    grad_x = shape.new(*h.shape, dtype=h.dtype)
    grad_h_0 = shape.new(*h.shape[1:], dtype=h.dtype if call.h_0 is None else call.h_0.dtype)
    sum_u, sum_bias = (shape.new(parts, shape.chains, dtype=torch.float64) for _ in range(2))
    sum_x = None if x is None else shape.new(parts, shape.chains, dtype=torch.float64)
    series = {**strided("grad_h", "g", call.grad_h), **strided("x", "x", x), "h": h}
    arguments = {**shape.recurrence(call), **_BACKWARD, **norm, **series, "span": span}
    arguments |= {"h_0": contiguous(call.h_0), "grad_h_last": contiguous(call.grad_h_last)}
    arguments |= {"grad_x": grad_x, "grad_h_0": grad_h_0, "sum_u": sum_u, "sum_bias": sum_bias, "sum_x": sum_x}
    shape.run("backward", at_once, parts, **arguments)
    of_x = None if sum_x is None else shape.add_up(sum_x)
    return grad_x, grad_h_0, shape.add_up(sum_u), shape.add_up(sum_bias), of_x


# ---- with batch norm


def norm_forward(call: NormForward) -> NormResult:
    """As `reference.norm_forward`."""
    x = with_contiguous_rows(call.x)
    shape = Shape(x, call)
    mask = shape.mask(call.mask)

    def normalise(mean: Tensor, var: Tensor) -> dict[str, Any]:
        """Constants of weight * (v - mean) / deviation + shift; what rounding takes from the mean, the shift gets."""
        scale, center = call.weight.double() / (var + call.eps).sqrt(), mean.to(shape.dtype)
        offset = call.shift.double() + scale * (center.double() - mean)
        return {"offset": shape.vector(offset), "slope": shape.vector(scale), "center": center}

    if call.place == "after":
        means, squares = shape.new(1, shape.chains, dtype=torch.float64), shape.new(1, shape.chains)
        h, h_last = _launch_forward(shape, call.recurrence, mean=means, square=squares)
        mean, var = shape.moments(means, squares, shape.T)
        y = shape.new(*x.shape, dtype=x.dtype)
        _combine(shape, h, y, mask=mask, gain=None, **normalise(mean, var))
    else:  # the norm takes any bias away again
        at_once = steps(1, x.dtype)
        parts, span = time_parts(shape.T, shape.chains, at_once)
        means, squares = shape.new(parts, shape.chains, dtype=torch.float64), shape.new(parts, shape.chains)
        shape.run("moments", at_once, parts, **strided("v", "v", x), mean=means, square=squares, span=span)
        mean, var = shape.moments(means, squares, span)
        masked = None if mask is None else shape.new(*x.shape, dtype=x.dtype)
        inner = call.recurrence._replace(bias=None)
        h, h_last = _launch_forward(shape, inner, mask=mask, y=masked, **normalise(mean, var))
        y, h = (h, x.new_empty(0)) if masked is None else (masked, h)
    return NormResult(y, h_last, h, mean.to(shape.dtype), var.to(shape.dtype))


def norm_backward(call: NormBackward) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.norm_backward`."""
    x, u, weight, grad_y = call.x, call.u, call.weight, with_contiguous_rows(call.grad_y)
    shape = Shape(call.h.contiguous(), call)
    center, mask = shape.vector(call.mean), shape.mask(call.mask)
    rstd = (call.var.double() + call.eps).rsqrt()

    def correct(S1: Tensor, S2: Tensor) -> dict[str, Any]:
        """Constants of scale * g - scale * (S1 + (v - mean) / deviation^2 * S2) / count, S2 of g * (v - mean)."""
        scale, n = weight.double() * rstd, shape.count()
        affine = {"gain": scale, "offset": -scale * S1 / n, "slope": -scale * rstd.square() * S2 / n}
        return {"center": center, **{name: shape.vector(values) for name, values in affine.items()}}

    recurrence = call.recurrence(grad_y)
    if x is None:
        at_once = steps(2, shape.x.dtype)
        parts, span = time_parts(shape.T, shape.chains, at_once)
        first, second = shape.new(parts, shape.chains), shape.new(parts, shape.chains)
        sums = {"first": first, "second": second, "center": center, "mask": mask}
        shape.run("products", at_once, parts, **strided("g", "g", grad_y), h=shape.x, span=span, **sums)
        S1, S2 = shape.add_up(first), shape.add_up(second)
        grad_x, grad_h_0, grad_u, grad_bias, _ = _launch_backward(shape, recurrence, mask=mask, **correct(S1, S2))
    else:
        x = with_contiguous_rows(x)
        grad_x, grad_h_0, grad_u, S1, S2 = _launch_backward(shape, recurrence, x=x, center=center, mask=mask)
        _combine(shape, x, grad_x, mask=None, **correct(S1, S2))
        grad_bias = torch.zeros_like(grad_u)
    grad_weight, grad_shift = (S2 * rstd).to(weight.dtype), S1.to(weight.dtype)
    return grad_x, grad_u.to(u.dtype), grad_bias.to(u.dtype), grad_h_0, grad_weight, grad_shift


def _combine(shape: Shape, v: Tensor, to: Tensor, **constants: Tensor | None) -> None:
    at_once = steps(1 if constants["gain"] is None else 2, v.dtype)
    shape.run("combine", at_once, math.ceil(shape.T / at_once), **strided("v", "v", v), to=to, **constants)
