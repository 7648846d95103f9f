"""The recurrence parallel in time, for relu and identity: in Triton on GPUs, in plain PyTorch on any device.

A step of the recurrence is a clamped affine map of the state, h → clamp(a + b·h, lo, hi), and such maps compose to such
maps (docs/scan.md has the proof). Time is cut into chunks: all chunks' maps are composed side by side, the state goes
through one map after the other, and then all chunks run side by side from where they truly start. The backward pass
does the same with affine maps. Shapes as in `reference`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference, triton_backend
from .native import _with_contiguous_rows
from .reference import accumulation_dtype

INTERPRET = False
"""Whether CPU tensors too take the Triton kernels, in Triton's interpreter, to test them."""

_LONGEST_CHUNK = 512


class Map(NamedTuple):
    """h → clamp(a + b·h, lo, hi), elementwise, with lo <= hi."""

    a: Tensor
    b: Tensor
    lo: Tensor
    hi: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        """Apply it."""
        return torch.clamp(self.a + self.b * h, self.lo, self.hi)

    def after(self, first: Map) -> Map:
        """The map that applies `first` and then this one."""
        ends = self.a + self.b * first.lo, self.a + self.b * first.hi
        low, high = torch.minimum(*ends), torch.maximum(*ends)  # a negative slope swaps them
        return Map(
            self.a + self.b * first.a,
            self.b * first.b,
            torch.clamp(low, self.lo, self.hi),
            torch.clamp(high, self.lo, self.hi),
        )


def why_not(x: Tensor, activation: str) -> str | None:
    """Steps of other activations do not compose."""
    if activation in ("relu", "identity"):
        return None
    return f"it serves relu and identity, whose steps compose in closed form, not {activation}"


def chunk_length(T: int) -> int:
    """The length of a chunk for which 2·C + T/C, the steps that follow each other, are fewest."""
    return max(1, min(_LONGEST_CHUNK, round(math.sqrt(T / 2))))


def gpu_chunk_length(T: int, chains: int) -> int:
    """The length of a chunk for the Triton kernels, a multiple of 16, so of the steps whose loads go out together.

    As short as gives 2^17 threads, which fill a GPU, but not shorter than the one for which the fewest steps follow
    each other.
    """
    return 16 * max(1, math.ceil(max(T * chains / 2**17, math.sqrt(T / 2)) / 16))


@dataclass(frozen=True)
class Device:
    """What the cost model knows of a GPU. These are estimates; nothing was measured on one."""

    step: float
    """Seconds of a step of one chain: its part of a wait for memory, and arithmetic that waits for the step before."""
    bandwidth: float
    """Bytes a second."""
    launch: float = 5e-6
    """Seconds of a kernel's start."""


A100, H100 = Device(40e-9, 1.5e12), Device(30e-9, 3.0e12)


def estimate(T: int, chains: int, itemsize: int, device: Device = A100) -> tuple[float, float]:
    """Seconds of a forward and a backward pass on a GPU, sequential and parallel in time: docs/scan.md has the formula.

    These are estimates from the number of steps that follow each other and of bytes that are moved, not measurements.
    """
    C, size = gpu_chunk_length(T, chains), T * chains * itemsize
    sequential = max(2 * T * device.step, 5 * size / device.bandwidth)
    in_chunks = max(2 * (2 * C + T / C) * device.step, 8 * size / device.bandwidth) + 4 * device.launch
    return sequential, in_chunks


def pays(x: Tensor, activation: str) -> bool:
    """Whether the scan is estimated to be faster than the sequential order for this tensor; never on a CPU."""
    if not x.is_cuda or x.numel() == 0 or why_not(x, activation) is not None or not _in_triton(x, activation):
        return False
    sequential, in_chunks = estimate(x.shape[0], x.numel() // x.shape[0], x.element_size())
    return in_chunks < sequential


def _in_triton(x: Tensor, activation: str) -> bool:
    return (x.is_cuda or INTERPRET) and triton_backend.why_not(x, activation) is None


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
    if _in_triton(x, activation):
        return _triton_forward(x, u, bias, h_0, lengths, resets, activation, reverse)
    T, dtype = x.shape[0], accumulation_dtype(x.dtype)
    if x.numel() == 0:
        return reference.forward(x, u, bias, h_0, lengths, resets, activation, reverse)
    inputs = x.to(dtype) if bias is None else x.to(dtype) + bias.to(dtype)
    valid, kept = _flags(x, lengths, resets)
    steps = _Steps(T, reverse)
    a = steps.cut(inputs if valid is None else torch.where(valid, inputs, 0.0), 0.0)
    b = steps.cut(_slopes(u.to(dtype), kept, valid, inputs), 1.0)
    largest = torch.finfo(dtype).max
    low = torch.full((), 0.0 if activation == "relu" else -largest, dtype=dtype, device=x.device)
    high = torch.full((), largest, dtype=dtype, device=x.device)
    within = steps.cut(
        torch.ones(T, *[1] * (x.dim() - 1), dtype=torch.bool, device=x.device) if valid is None else valid, False
    )

    def step(i: int) -> Map:
        """Step i of every chunk; the identity past the end of a sequence."""
        return Map(a[i], b[i], torch.where(within[i], low, -largest), torch.where(within[i], high, largest))

    whole = step(0)
    whole = Map(whole.a, whole.b.expand_as(whole.a), whole.lo.expand_as(whole.a), whole.hi.expand_as(whole.a))
    for i in range(1, steps.length):
        whole = step(i).after(whole)
    state = x.new_zeros(x.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)
    if not _finite(whole.a, whole.b, state):
        return reference.forward(x, u, bias, h_0, lengths, resets, activation, reverse)
    starts = []
    for k in range(steps.chunks):
        starts.append(state)
        state = Map(*(part[k] for part in whole))(state)
    begin = states = torch.stack(starts)
    rows = []
    for i in range(steps.length):
        states = step(i)(states)
        rows.append(states)
    h = steps.join(torch.stack(rows))
    h_last = states[-1]
    if not _finite(2 * h, 2 * begin):  # at the number that stands for infinity, or near it
        return reference.forward(x, u, bias, h_0, lengths, resets, activation, reverse)
    if valid is not None:
        h = torch.where(valid, h, 0.0)
    return h.to(x.dtype).contiguous(), h_last.to(x.dtype).clone()


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
    if _in_triton(h, activation):
        return _triton_backward(grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse)
    T, dtype = h.shape[0], accumulation_dtype(h.dtype)
    if h.numel() == 0:
        return reference.backward(grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse)
    valid, kept = _flags(h, lengths, resets)
    steps = _Steps(T, not reverse)  # backward
    u_ = u.to(dtype)
    active = torch.ones((), dtype=dtype, device=h.device) if activation == "identity" else (~(h <= 0)).to(dtype)
    if valid is not None:
        active = torch.where(valid, active, 0.0)
    active = active.expand(h.shape)
    incoming = torch.zeros_like(active) if grad_h is None else grad_h.to(dtype)
    if valid is not None:
        incoming = torch.where(valid, incoming, 0.0)
    # delta_t = active_t · (incoming_t + carry); the carry before it: kept_t · u · delta_t, or unchanged in the padding
    slope = u_ * active if kept is None else torch.where(kept, u_ * active, 0.0)
    slope = slope if valid is None else torch.where(valid, slope, 1.0)
    offset = slope * incoming if valid is None else torch.where(valid, slope * incoming, 0.0)
    g, m, A, B = (steps.cut(part, fill) for part, fill in ((incoming, 0.0), (active, 0.0), (offset, 0.0), (slope, 1.0)))
    whole_a, whole_b = A[0], B[0]
    for i in range(1, steps.length):
        whole_a, whole_b = A[i] + B[i] * whole_a, B[i] * whole_b
    start = h.new_zeros(h.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)
    carry = torch.zeros_like(start) if grad_h_last is None else grad_h_last.to(dtype)
    if not _finite(whole_a, whole_b, carry, h, start):
        return reference.backward(grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse)
    carries = []
    for k in range(steps.chunks):
        carries.append(carry)
        carry = whole_a[k] + whole_b[k] * carry
    carry = torch.stack(carries)
    entering = steps.cut(_entering(h.to(dtype), start, lengths, kept, reverse), 0.0)
    sum_u, sum_bias, rows = torch.zeros_like(carry), torch.zeros_like(carry), []
    for i in range(steps.length):
        delta = m[i] * (g[i] + carry)
        sum_u, sum_bias = sum_u + delta * entering[i], sum_bias + delta
        rows.append(delta)
        carry = A[i] + B[i] * carry
    all_but_last = tuple(range(start.dim()))
    grad_u, grad_bias = (_in_order(sums).sum(dim=all_but_last[:-1]).to(u.dtype) for sums in (sum_u, sum_bias))
    start_dtype = h.dtype if h_0 is None else h_0.dtype
    return steps.join(torch.stack(rows)).to(h.dtype).contiguous(), grad_u, grad_bias, carry[-1].to(start_dtype).clone()


def _finite(*tensors: Tensor) -> bool:
    """Whether every number is; where not, the sequential order puts NaN and Inf where the equation does."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


class _Steps:
    """T steps, in the order of processing, cut into chunks of one length; the last is filled up."""

    def __init__(self, T: int, reverse: bool) -> None:
        self.T, self.reverse = T, reverse
        self.length = chunk_length(T)
        self.chunks = -(-T // self.length)

    def cut(self, series: Tensor, fill: float | bool) -> Tensor:
        """(T, ...) to (length, chunks, ...)."""
        series = series.flip(0) if self.reverse else series
        missing = self.length * self.chunks - self.T
        if missing:
            series = torch.cat([series, series.new_full((missing, *series.shape[1:]), fill)])
        return series.view(self.chunks, self.length, *series.shape[1:]).transpose(0, 1)

    def join(self, pieces: Tensor) -> Tensor:
        """(length, chunks, ...) to (T, ...)."""
        series = pieces.transpose(0, 1).flatten(0, 1)[: self.T]
        return series.flip(0) if self.reverse else series


def _flags(x: Tensor, lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """(T, B, 1, ..., 1) each: whether a step is within its sequence, and whether the state before it is kept."""
    ones = [1] * (x.dim() - 2)
    valid = None
    if lengths is not None:
        valid = (torch.arange(x.shape[0], device=x.device).unsqueeze(1) < lengths).view(*x.shape[:2], *ones)
    return valid, None if resets is None else ~resets.view(*x.shape[:2], *ones)


def _slopes(u: Tensor, kept: Tensor | None, valid: Tensor | None, like: Tensor) -> Tensor:
    slopes = u.expand(like.shape) if kept is None else torch.where(kept, u, 0.0)
    return slopes if valid is None else torch.where(valid, slopes, 1.0)


def _entering(h: Tensor, start: Tensor, lengths: Tensor | None, kept: Tensor | None, reverse: bool) -> Tensor:
    """The state that entered each step."""
    first = start.unsqueeze(0)
    if reverse:
        entering = torch.cat([h[1:], first])
        if lengths is not None:  # a sequence starts at its true end
            before = torch.arange(1, h.shape[0] + 1, device=h.device).unsqueeze(1) < lengths
            entering = torch.where(before.view(*h.shape[:2], *[1] * (h.dim() - 2)), entering, first)
    else:
        entering = torch.cat([first, h[:-1]])
    return entering if kept is None else torch.where(kept, entering, 0.0)


def _in_order(sums: Tensor) -> Tensor:
    """The sum over the first dimension, one after the other: the same bits for any number of threads."""
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return total


# ---- in Triton


def _triton_forward(
    x: Tensor,
    u: Tensor,
    bias: Tensor | None,
    h_0: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    activation: str,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    shape = _shape(_with_contiguous_rows(x), lengths, resets)
    C = gpu_chunk_length(shape.T, shape.chains)
    if C >= shape.T:
        return triton_backend.forward(x, u, bias, h_0, lengths, resets, activation, reverse)
    at_once, parts, _ = triton_backend.chunks(shape, triton_backend.steps(1, x.dtype), C)
    a, b, lo, hi, starts = (shape.new(parts, shape.chains) for _ in range(5))
    arguments: dict[str, Any] = {
        **triton_backend.strided("x", "x", shape.x),
        "u": shape.vector(u),
        "bias": None if bias is None else shape.vector(bias),
        "resets": shape.resets,
        **({"a": a, "b": b, "lo": lo, "hi": hi} if activation == "relu" else {"a": a, "b": b, "lo": None, "hi": None}),
        "B": shape.B,
        "span": C,
        "ACTIVATION": activation,
        "REVERSE": reverse,
    }
    shape.run("forward_maps", at_once, parts, **arguments)
    start = None if h_0 is None else h_0.contiguous()
    shape.run("forward_starts", _maps_at_once(x), h_0=start, starts=starts, count=parts, **arguments)
    no_norm: dict[str, Any] = {"y": None, "mean": None, "square": None, **triton_backend.NO_NORM}
    return triton_backend.launch_forward(shape, u, bias, starts, activation, reverse, C, **no_norm)


def _triton_backward(
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
    shape = _shape(h.contiguous(), lengths, resets)
    C = gpu_chunk_length(shape.T, shape.chains)
    if C >= shape.T:
        return triton_backend.backward(grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse)
    at_once, parts, _ = triton_backend.chunks(shape, triton_backend.steps(2, h.dtype), C)
    a, b, starts = (shape.new(parts, shape.chains) for _ in range(3))
    arguments: dict[str, Any] = {
        **triton_backend.strided("grad_h", "g", None if grad_h is None else _with_contiguous_rows(grad_h)),
        "h": shape.x,
        "u": shape.vector(u),
        "resets": shape.resets,
        "a": a,
        "b": b,
        "B": shape.B,
        "span": C,
        "ACTIVATION": activation,
        "REVERSE": reverse,
    }
    shape.run("backward_maps", at_once, parts, **arguments)
    last = None if grad_h_last is None else grad_h_last.contiguous()
    shape.run("backward_starts", _maps_at_once(h), grad_h_last=last, starts=starts, count=parts, **arguments)
    grad_x, grad_h_0, sum_u, sum_bias, _ = triton_backend.launch_backward(
        shape, grad_h, starts, None, u, h_0, activation, reverse, C, gain=None, **triton_backend.NO_NORM
    )
    return grad_x, sum_u.to(u.dtype), sum_bias.to(u.dtype), grad_h_0


def _shape(x: Tensor, lengths: Tensor | None, resets: Tensor | None) -> triton_backend.Shape:
    shape = triton_backend.Shape(x, lengths, resets)
    shape.block, shape.warps = triton_backend.LANES, 1  # warps have nothing to tell each other
    return shape


def _maps_at_once(x: Tensor) -> int:
    """How many chunks' maps are loaded together: four numbers each."""
    return triton_backend.steps(3, accumulation_dtype(x.dtype))
