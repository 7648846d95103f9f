"""A sequence whose time steps are split over processes: each rank holds a slice, in the order of ranks.

For relu and identity a slice, however long, is one clamped affine map of the state that enters it (docs/scan.md), and
backward one affine map of the gradient that comes back to it. The ranks exchange these maps, a few numbers for each
batch element and neuron; each applies those before it, and runs over its own slice from its true initial state.
Shapes as in `reference`, with T_r steps on rank r in place of T; docs/split.md says how it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..checks import check_choice
from . import BACKENDS, reference
from .autograd import OPS
from .calls import Forward
from .checks import check, check_lengths
from .scan import Map, finite

Group = Any
"""A process group, or None for the default one."""


@dataclass(frozen=True)
class TimeSlice:
    """The time steps of a sequence that this process holds, as `split_time` returns it."""

    group: Group
    """Process group whose processes hold the sequence."""
    steps: int
    """Number of time steps on this process."""
    total: int
    """Number of time steps of the whole sequence."""
    first_step: int
    """Index of this process's first step in the whole sequence."""

    def same_on_all(self, value: Tensor) -> Tensor:
        """The first rank's value, for random numbers shared over time."""
        return _from_rank(0, value, self.group)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum over the ranks, on each of them; the gradient is that of the sum of their losses."""
        return _SumOverRanks.apply(value, self.group)  # type: ignore[no-any-return]

    def recurrence(self, x: Tensor, u: Tensor, h_0: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
        """`split_recurrence`, with parts of gradients."""
        if x.shape[0] != self.steps:
            raise ValueError(f"x must have the {self.steps} steps that split_time was given, got {x.shape[0]}")
        return split_recurrence(x, u, h_0, group=self.group, summed=False, **options)


def split_time(steps: int, group: Group = None) -> TimeSlice:
    """This rank's slice, of `steps` time steps, of a sequence that the ranks of a group hold in the order of ranks.

    `layer(x, time_slice=split_time(len(x)))` and `network(x, time_slice=...)` run over the whole sequence. Every rank
    of the group calls this function, and then makes the same calls. Inputs and outputs of a call are this rank's slice;
    `lengths`, `resets`, states and a network's `last` features are those of the whole sequence, on every rank. Every
    rank runs the backward pass; its gradients of parameters are its part of them: `sum_gradients` makes them whole.

    Args:
        steps: T_r, the time steps on this rank.
        group: the process group; None for the default one.
    """
    of_all, rank = _gather_objects(steps, group), dist.get_rank(group)
    return TimeSlice(group, steps, sum(of_all), first_step=sum(of_all[:rank]))


def check_whole(what: str, time_slice: TimeSlice | None) -> None:
    """Raise if time is split over processes: for what needs the whole sequence on one."""
    if time_slice is not None:
        raise ValueError(f"{what} cannot run with a time_slice, where each process holds a slice of the sequence")


def sum_gradients(parameters: Iterable[Tensor], group: Group = None) -> None:
    """Sum the parameters' `grad` over the ranks, on every rank; one that has none counts as zeros."""
    for parameter in parameters:
        if parameter.requires_grad:
            part = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            total = part.contiguous().clone()
            dist.all_reduce(total, group=group)
            parameter.grad = total


# ---- the recurrence


def split_recurrence(
    x: Tensor,
    u: Tensor,
    h_0: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: str = "relu",
    reverse: bool = False,
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    group: Group = None,
    backend: str | None = None,
    summed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute h_t = σ(x_t + b + u ⊙ h_{t−1}) over a sequence of which each rank holds a slice of time.

    Every rank of the group makes the call, with all but x alike, and every rank runs the backward pass: one without a
    loss of its own, on `h.sum() * 0`. The gradient is that of the sum of all ranks' losses. Differentiable once.

    Args:
        x: (T_r, B, ..., N), this rank's slice; T_r may differ between ranks, and be 0.
        u: (N,), as for `recurrence`.
        h_0: (B, ..., N), the state before the first step of the whole sequence; zeros if None.
        bias: (N,), as for `recurrence`.
        activation: "relu" or "identity".
        reverse: go from the last step of the last rank to the first step of the first.
        lengths: (B,), the steps of each whole sequence.
        resets: (T, B), bool, of the whole sequence.
        group: the process group; None for the default one.
        backend: as for `recurrence`; it computes the slices.
        summed: give every rank the whole gradient of u, bias and h_0. If False a rank gets a part, and the sum of the
            ranks' parts is the gradient: for parameters whose gradients are summed later, and for an h_0 that is the
            h_last of another such call.

    Returns:
        h (T_r, B, ..., N), the states of this rank's steps, and h_last (B, ..., N), the state after the last step of
        the whole sequence, on every rank.
    """
    call = Forward(x, u, bias, h_0, lengths, None, activation, reverse)
    check(call)
    if activation not in ("relu", "identity"):
        raise ValueError(f"activation must be relu or identity where time is split over processes, got {activation!r}")
    check_choice("backend", backend, BACKENDS)
    steps, differentiable = _agree(call, resets, summed, group)
    start, total = sum(steps[: dist.get_rank(group)]), sum(steps)
    check(call._replace(x=x.new_empty(()).expand(total, *x.shape[1:]), resets=resets))
    check_lengths(lengths, total)
    if lengths is not None:
        lengths = (lengths - start).clamp(0, x.shape[0])
    if resets is not None:
        resets = resets[start : start + x.shape[0]]
    # A rank on which nothing needs a gradient takes part in the backward pass all the same.
    anchor = torch.zeros((), requires_grad=True) if differentiable else None
    call = call._replace(lengths=lengths, resets=resets)
    h, h_last = _SplitRecurrence.apply(anchor, backend, group, summed, *call)
    return h, h_last


def _agree(call: Forward, resets: Tensor | None, summed: bool, group: Group) -> tuple[list[int], bool]:
    """The ranks' numbers of steps, and whether any needs a gradient; raises if their arguments differ."""
    x, _, bias, h_0, lengths, _, activation, reverse = call
    present = tuple(tensor is not None for tensor in (h_0, bias, lengths, resets))
    alike = (tuple(x.shape[1:]), x.dtype, activation, reverse, present, torch.is_grad_enabled(), summed)
    differentiable = any(tensor is not None and tensor.requires_grad for tensor in call[:4])
    ranks = _gather_objects((x.shape[0], differentiable, alike), group)
    expected = ranks[0][2]
    names = "x's shape without T, x's type, activation, reverse, which arguments are given, the grad mode, summed"
    for rank, (_, _, other) in enumerate(ranks):
        if other != expected:
            raise ValueError(f"every rank must have the same ({names}), got {expected} on rank 0, {other} on {rank}")
    return [steps for steps, *_ in ranks], any(needs for _, needs, _ in ranks)


class _SplitRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor | None, backend: str | None, group: Group, summed: bool, *call: Any
    ) -> tuple[Tensor, Tensor]:
        """Of a call whose lengths and resets are this rank's own."""
        x, u, bias, h_0, lengths, resets, activation, reverse = call
        dtype = reference.accumulation_dtype(x.dtype)
        u_, bias_ = u.to(dtype), None if bias is None else bias.to(dtype)
        state = x.new_zeros(x.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)

        def run(x: Tensor, start: Tensor, activation: str = activation) -> Any:
            return OPS.recurrence(x, u_, bias_, start, lengths, resets, activation, reverse, backend)

        # The map's bounds are where the slice leads from the two ends of all numbers; its slope is known.
        exact = x.to(dtype)
        largest = torch.full_like(state, torch.finfo(dtype).max)
        ends = (-largest, largest)
        if activation == "relu":
            ends = (run(exact, ends[0])[1], run(exact, ends[1])[1])
        affine = run(exact, torch.zeros_like(state), "identity")[1], _slope(u_, x, lengths, resets)
        bounds = (bound.clamp(-largest, largest) for bound in (torch.minimum(*ends), torch.maximum(*ends)))
        maps = [Map(*part) for part in _gather(torch.stack([*affine, *bounds]), group)]
        rank, ranks = dist.get_rank(group), range(len(maps))[:: -1 if reverse else 1]
        states = [state]
        for source in ranks:
            states.append(maps[source](states[-1]))
        if finite(*(torch.stack(part) for part in maps)) and all(bool((h.abs() < largest).all()) for h in states):
            start, h_last = states[ranks.index(rank)], states[-1]
            h = run(x, start)[0]
        else:  # the sequential order puts NaN and Inf where the equation does; bounds would make Inf the largest number
            for source in ranks:
                if source == rank:
                    start = state
                    h, state = run(exact, start)
                state = _from_rank(source, state, group)
            h, h_last = h.to(x.dtype), state
        ctx.save_for_backward(h, u, start, lengths, resets)
        ctx.options, ctx.group, ctx.summed = (activation, reverse, backend), group, summed
        ctx.dtypes = (None if bias is None else bias.dtype, None if h_0 is None else h_0.dtype)
        ctx.set_materialize_grads(False)
        return h, h_last.to(x.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_h_last: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "indrnn.ops.split_recurrence can be differentiated once, and a second derivative was asked for"
            )
        h, u, start, lengths, resets = ctx.saved_tensors
        activation, reverse, _ = ctx.options
        u_ = u.to(start.dtype)

        def pull(carry: Tensor) -> Any:
            return OPS.recurrence_backward(grad_h, carry, h, u_, start, lengths, resets, *ctx.options)

        zero = torch.zeros_like(start)
        slope = _slope(u_, h, lengths, resets, h if activation == "relu" else None)
        own = torch.stack([pull(zero)[3], slope, zero if grad_h_last is None else grad_h_last.to(start.dtype)])
        parts = _gather(own, ctx.group)
        rank, ranks = dist.get_rank(ctx.group), range(len(parts))[:: 1 if reverse else -1]
        carries = [carry := add_up([part[2] for part in parts])]
        for source in ranks:
            offset, slope, _ = parts[source]
            carries.append(offset + slope * carries[-1])
        if finite(*carries, *parts):
            gradients = pull(carries[ranks.index(rank)])
            carry = carries[-1]
        else:
            for source in ranks:
                if source == rank:
                    gradients = pull(carry)
                    carry = gradients[3]
                carry = _from_rank(source, carry, ctx.group)
        grad_x, grad_u, grad_bias, _ = gradients
        if ctx.summed:
            grad_u, grad_bias = add_up(_gather(torch.stack([grad_u, grad_bias]), ctx.group))
        elif rank != ranks[-1]:
            carry = zero
        both = zip((grad_bias, carry), ctx.dtypes, strict=True)
        optional = (None if dtype is None else gradient.to(dtype) for gradient, dtype in both)  # the bias's and h_0's
        return *[None] * 4, grad_x, grad_u.to(u.dtype), *optional, *[None] * 4


def _slope(u: Tensor, x: Tensor, lengths: Tensor | None, resets: Tensor | None, active: Tensor | None = None) -> Tensor:
    """(B, ..., N), the factor by which a slice multiplies a small change of its first state: a power of u, or 0.

    No change passes a reset, nor, if `active` is relu's output, a step at which that is 0.
    """
    valid = reference.valid_steps(x, lengths)
    slope = (u ** valid.sum(0).to(u.dtype)).expand(x.shape[1:])
    if resets is not None:
        slope = torch.where((resets.view_as(valid) & valid).any(0), 0.0, slope)
    if active is not None:
        slope = torch.where(((active <= 0) & valid).any(0), 0.0, slope)
    return slope


# ---- what the ranks exchange: sums have the same bits on every rank


def _gather_objects(value: Any, group: Group) -> list[Any]:
    """Every rank's value, in the order of ranks."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "time is split over the processes of a group, and there is none: call torch.distributed.init_process_group"
        )
    if dist.get_rank(group) < 0:
        raise ValueError("group must be one that this process is in")
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _gather(value: Tensor, group: Group) -> list[Tensor]:
    """Every rank's value, in the order of ranks."""
    size = dist.get_world_size(group)
    if value.numel() == 0:
        return [value] * size
    values = [torch.zeros_like(value, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(values, value.contiguous(), group=group)
    return values


def _from_rank(rank: int, value: Tensor, group: Group) -> Tensor:
    """The value of rank `rank`, on every rank."""
    value = value.contiguous().clone()
    if value.numel() > 0:
        dist.broadcast(value, group_src=rank, group=group)
    return value


def add_up(values: list[Tensor]) -> Tensor:
    """The sum, added in order: the same bits on every rank."""
    return functools.reduce(torch.add, values)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return add_up(_gather(value, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return add_up(_gather(grad, ctx.group)), None
