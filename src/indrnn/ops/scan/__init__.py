"""The recurrence parallel in time, for relu and identity: in Triton on GPUs, in plain PyTorch on any device.

A step of the recurrence is a clamped affine map of the state, h → clamp(a + b·h, lo, hi), and such maps compose to such
maps; docs/scan.md has the proof. In plain PyTorch time is cut into chunks: all chunks' maps are composed side by side,
the state goes through one map after the other, and then all chunks run side by side from their true initial states. The
backward pass does the same with affine maps.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..calls import Backward, Forward
from ..reference import accumulation_dtype
from ..triton import backend as triton_backend

INTERPRET = False
"""Use of the Triton kernels for CPU tensors too, in Triton's interpreter, to test them."""
_LONGEST_CHUNK = 512


def why_not(x: Tensor, activation: str) -> str | None:
    """Why the scan cannot be used: other activations do not compose."""
    if activation in ("relu", "identity"):
        return None
    return f"it supports relu and identity, whose steps compose in closed form, not {activation}"


def _in_triton(x: Tensor, activation: str) -> bool:
    return (x.is_cuda or INTERPRET) and triton_backend.why_not(x, activation) is None


def forward(call: Forward) -> tuple[Tensor, Tensor]:
    """As `reference.forward`."""
    return triton_backend.forward(call, _chunk(call.x)) if _in_triton(call.x, call.activation) else _forward(call)


def backward(call: Backward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    return triton_backend.backward(call, _chunk(call.h)) if _in_triton(call.h, call.activation) else _backward(call)


norm_forward = partial(reference.norm_forward, run=forward)
norm_backward = partial(reference.norm_backward, through=backward)


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


# ---- the algebra: clamped affine maps of a state, and their composition


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
        ordered = torch.minimum(*ends), torch.maximum(*ends)  # a negative slope swaps them
        bounds = (torch.clamp(end, self.lo, self.hi) for end in ordered)
        return Map(self.a + self.b * first.a, self.b * first.b, *bounds)


def finite(*tensors: Tensor) -> bool:
    """Whether every number is finite; if not, the sequential order puts NaN and Inf where the equation does."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


# ---- in plain PyTorch


def chunk_length(T: int) -> int:
    """The length of a chunk for which 2·C + T/C, the steps that follow each other, are fewest."""
    return max(1, min(_LONGEST_CHUNK, round(math.sqrt(T / 2))))


def _forward(call: Forward) -> tuple[Tensor, Tensor]:
    x, u, bias, h_0, lengths, resets, activation, reverse = call
    if x.numel() == 0:
        return reference.forward(call)
    dtype = accumulation_dtype(x.dtype)
    inputs = x.to(dtype) if bias is None else x.to(dtype) + bias.to(dtype)
    valid, kept = _flags(x, lengths, resets)
    steps = _Steps(x.shape[0], reverse)
    a = steps.cut(inputs if valid is None else torch.where(valid, inputs, 0.0), 0.0)
    b = steps.cut(_slopes(u.to(dtype).expand(x.shape), kept, valid), 1.0)
    largest = torch.finfo(dtype).max
    low = torch.full((), 0.0 if activation == "relu" else -largest, dtype=dtype, device=x.device)
    high = torch.full((), largest, dtype=dtype, device=x.device)
    within = steps.cut(reference.valid_steps(x, lengths), False)

    def step(i: int) -> Map:
        """Step i of every chunk; the identity past the end of a sequence."""
        return Map(a[i], b[i], torch.where(within[i], low, -largest), torch.where(within[i], high, largest))

    whole = step(0)
    for i in range(1, steps.length):
        whole = step(i).after(whole)
    state = x.new_zeros(x.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)
    if not finite(whole.a, whole.b, state):
        return reference.forward(call)
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
    if not finite(2 * h, 2 * begin):  # at the number that stands for infinity, or near it
        return reference.forward(call)
    if valid is not None:
        h = torch.where(valid, h, 0.0)
    return h.to(x.dtype).contiguous(), h_last.to(x.dtype).clone(memory_format=torch.contiguous_format)


def _backward(call: Backward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse = call
    if h.numel() == 0:
        return reference.backward(call)
    dtype = accumulation_dtype(h.dtype)
    valid, kept = _flags(h, lengths, resets)
    steps = _Steps(h.shape[0], not reverse)
    u_ = u.to(dtype)
    active = torch.ones((), dtype=dtype, device=h.device) if activation == "identity" else (~(h <= 0)).to(dtype)
    if valid is not None:
        active = torch.where(valid, active, 0.0)
    active = active.expand(h.shape)
    incoming = torch.zeros_like(active) if grad_h is None else grad_h.to(dtype)
    if valid is not None:
        incoming = torch.where(valid, incoming, 0.0)
    # delta_t = active_t · (incoming_t + carry); the carry before it: kept_t · u · delta_t, or unchanged in the padding
    slope = _slopes(u_ * active, kept, valid)
    offset = slope * incoming if valid is None else torch.where(valid, slope * incoming, 0.0)
    g, m, A, B = (steps.cut(part, fill) for part, fill in ((incoming, 0.0), (active, 0.0), (offset, 0.0), (slope, 1.0)))
    whole_a, whole_b = A[0], B[0]
    for i in range(1, steps.length):
        whole_a, whole_b = A[i] + B[i] * whole_a, B[i] * whole_b
    start = h.new_zeros(h.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)
    carry = torch.zeros_like(start) if grad_h_last is None else grad_h_last.to(dtype)
    if not finite(whole_a, whole_b, carry, h, start):
        return reference.backward(call)
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
    grad_u, grad_bias = (reference.sum_to_neurons(sums).to(u.dtype) for sums in (sum_u, sum_bias))
    start_dtype = h.dtype if h_0 is None else h_0.dtype
    grad_h_0 = carry[-1].to(start_dtype).clone(memory_format=torch.contiguous_format)
    return steps.join(torch.stack(rows)).to(h.dtype).contiguous(), grad_u, grad_bias, grad_h_0


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
    valid = None if lengths is None else reference.valid_steps(x, lengths)
    return valid, None if resets is None else ~resets.view(*x.shape[:2], *[1] * (x.dim() - 2))


def _slopes(slopes: Tensor, kept: Tensor | None, valid: Tensor | None) -> Tensor:
    """0 where the state is forgotten, and 1 past the end of a sequence."""
    slopes = slopes if kept is None else torch.where(kept, slopes, 0.0)
    return slopes if valid is None else torch.where(valid, slopes, 1.0)


def _entering(h: Tensor, start: Tensor, lengths: Tensor | None, kept: Tensor | None, reverse: bool) -> Tensor:
    """The state that entered each step."""
    first = start.unsqueeze(0)
    if reverse:
        entering = torch.cat([h[1:], first])
        if lengths is not None:  # a sequence starts at its true end
            entering = torch.where(reference.valid_steps(h, lengths - 1), entering, first)
    else:
        entering = torch.cat([first, h[:-1]])
    return entering if kept is None else torch.where(kept, entering, 0.0)
