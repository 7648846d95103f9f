"""Distributed training: several processes, one for each GPU or part of a CPU, as started by `torchrun`."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


class LostError(RuntimeError):
    """Another process is gone."""


@dataclass
class Processes:
    """This process among those that train together; a single process if not started by `torchrun`."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    control: dist.ProcessGroup | None = None
    """For small messages between CPUs, whatever the gradients go through."""

    @property
    def main(self) -> bool:
        """Whether this is the main process, which writes the files."""
        return self.rank == 0

    def from_main(self, value: Any) -> Any:
        """Broadcast a picklable object from the main process to all."""
        if self.count == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, 0, group=self.control)
        return holder[0]

    def copy_from_main(self, tensors: list[torch.Tensor]) -> None:
        """Broadcast the main process's tensors to all, in place."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def of_all(self, value: Any) -> list[Any]:
        """Gather the picklable objects of all processes, on all."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.control)
        return values

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier(group=self.control)


@contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, if any; all leave together at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    if not dist.is_initialized():
        on_gpu = device != "cpu" and torch.cuda.is_available()
        dist.init_process_group("nccl" if on_gpu else "gloo")
        atexit.register(_leave)  # and not after each run: torch's processes do not reliably meet a second time
    control = dist.new_group(backend="gloo")
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    group = Processes(dist.get_rank(), dist.get_world_size(), rank, control)
    try:
        yield group
        group.wait()  # or the first to leave takes the connection of the others with it
    except RuntimeError as error:
        if not re.search("Connection (closed|reset) by peer", str(error)):
            raise
        raise LostError("another process of this run ended; what it said says why") from error
    finally:
        dist.destroy_process_group(control)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device(name: str, group: Processes) -> torch.device:
    """The device that this process computes on."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name!r} was asked for, and PyTorch finds no GPU here")
        # torch's types say that an index is always there; "cuda" alone has none
        number = int(name.partition(":")[2] or (group.local_rank if group.count > 1 else torch.cuda.current_device()))
        if number >= torch.cuda.device_count():
            raise ValueError(f"device {name!r} was asked for, and there are {torch.cuda.device_count()} GPUs here")
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError(f"device {name!r} was asked for, and PyTorch finds no such GPU here")
    elif device.type != "cpu":
        raise ValueError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}")
    return device
