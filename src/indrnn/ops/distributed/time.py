"""`split_time`: layers and networks over a sequence whose time is split over processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..timeline import Timeline, on
from .exchange import Group, SumOverRanks, from_rank, gather_objects
from .recurrence import split_recurrence


@dataclass(frozen=True)
class Slice(Timeline):
    """The steps of a sequence that this rank holds."""

    is_split: ClassVar[bool] = True
    group: Group
    steps: int
    total: int
    first_step: int = 0

    def all_steps(self, T: int) -> int:
        """The steps of the whole sequence, of which T are here."""
        return self.total

    def refuse(self, what: str) -> None:
        """Raise."""
        raise RuntimeError(f"{what} cannot run within split_time, where each process holds a slice of time")

    def same_on_all(self, value: Tensor) -> Tensor:
        """The first rank's value."""
        return from_rank(0, value, self.group)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum over the ranks, on each of them; the gradient is that of the sum of their losses."""
        return SumOverRanks.apply(value, self.group)  # type: ignore[no-any-return]

    def recurrence(self, x: Tensor, u: Tensor, h_0: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
        """`split_recurrence`, with parts of gradients."""
        if x.shape[0] != self.steps:
            raise ValueError(f"x must have the {self.steps} steps that split_time was given, got {x.shape[0]}")
        return split_recurrence(x, u, h_0, group=self.group, summed=False, **options)


@contextmanager
def split_time(steps: int, group: Group = None) -> Iterator[Slice]:
    """Context in which layers and networks run over a sequence of which this rank holds a slice of `steps` time steps.

    Every rank of the group enters it, and makes the same calls, in the thread that entered it; other threads are not
    affected. Inputs and outputs of a call are this rank's slice; `lengths`, `resets`, states and a network's `last`
    features are those of the whole sequence, on every rank. The backward pass may run outside of it, on every rank;
    with `torch.utils.checkpoint`, which calls the layers again, it must run inside. A rank's gradients of parameters
    are its part of them: `sum_gradients` makes them whole. `recurrence` is `split_recurrence`, with parts of gradients,
    too.

    Args:
        steps: T_r, the time steps on this rank.
        group: the process group; None for the default one.
    """
    of_all, rank = gather_objects(steps, group), dist.get_rank(group)
    place = Slice(group, steps, sum(of_all), first_step=sum(of_all[:rank]))
    with on(place):
        yield place


def sum_gradients(parameters: Iterable[Tensor], group: Group = None) -> None:
    """Sum the parameters' `grad` over the ranks, on every rank; one that has none counts as zeros."""
    for parameter in parameters:
        if parameter.requires_grad:
            part = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            total = part.contiguous().clone()
            dist.all_reduce(total, group=group)
            parameter.grad = total
