"""Layers and networks over a sequence whose time steps are split over processes: each holds a slice of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .exchange import Group, SumOverRanks, from_rank, gather_objects
from .recurrence import split_recurrence


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
        return from_rank(0, value, self.group)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum over the ranks, on each of them; the gradient is that of the sum of their losses."""
        return SumOverRanks.apply(value, self.group)  # type: ignore[no-any-return]

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
    of_all, rank = gather_objects(steps, group), dist.get_rank(group)
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
