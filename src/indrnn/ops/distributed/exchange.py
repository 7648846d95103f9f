"""What the ranks of a process group exchange: values of all or of one, and sums with the same bits on every rank."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any
"""A process group, or None for the default one."""


def gather_objects(value: Any, group: Group) -> list[Any]:
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


def gather(value: Tensor, group: Group) -> list[Tensor]:
    """Every rank's value, in the order of ranks."""
    size = dist.get_world_size(group)
    if value.numel() == 0:
        return [value] * size
    values = [torch.zeros_like(value, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(values, value.contiguous(), group=group)
    return values


def from_rank(rank: int, value: Tensor, group: Group) -> Tensor:
    """The value of rank `rank`, on every rank."""
    value = value.contiguous().clone()
    if value.numel() > 0:
        dist.broadcast(value, group_src=rank, group=group)
    return value


def add_up(values: list[Tensor]) -> Tensor:
    """The sum, added in order: the same bits on every rank."""
    return functools.reduce(torch.add, values)


def ranks_in_order(group: Group, reverse: bool) -> list[int]:
    """The ranks in the order of processing."""
    ranks = list(range(dist.get_world_size(group)))
    return ranks[::-1] if reverse else ranks


class SumOverRanks(torch.autograd.Function):
    """The sum over the ranks, on each of them; the gradient is that of the sum of their losses."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        """Sum the values."""
        ctx.group = group
        return add_up(gather(value, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Sum the gradients."""
        return add_up(gather(grad, ctx.group)), None
