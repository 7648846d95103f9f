"""How Triton kernels are launched: blocks, warps, steps at once, and what every kernel is told of a tensor's shape."""

from __future__ import annotations

import contextlib
import importlib
import math
from typing import Any

import torch
from torch import Tensor

from ..calls import Backward, Call, Forward, with_contiguous_rows
from ..reference import accumulation_dtype

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


def parts(T: int, chains: int, at_once: int) -> tuple[int, int]:
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
