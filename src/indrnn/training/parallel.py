"""Data parallelism: the processes that `torchrun` started, and four ways to train in them."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from .folder import RunError


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; a single process if not started by `torchrun`."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    control: dist.ProcessGroup | None = None  # for small messages between CPUs, whatever the gradients go through

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

    def copy_from_main(self, tensors: list[Tensor]) -> None:
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


SINGLE = Processes()


@contextlib.contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, if any; all leave together at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield SINGLE
        return
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device != "cpu" and torch.cuda.is_available() else "gloo")
        # And not after each run: torch's processes do not reliably meet a second time
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    control = dist.new_group(backend="gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")), control)
        dist.barrier(group=control)  # or the first to leave takes the connection of the others with it
    except RuntimeError as error:
        if not re.search("Connection (closed|reset) by peer", str(error)):
            raise
        raise RunError("another process of this run ended; what it said says why") from error
    finally:
        dist.destroy_process_group(control)


def choose_device(name: str, group: Processes = SINGLE) -> torch.device:
    """The device that this process computes on."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    try:
        device = torch.device(name)
        available_here = available[device.type]
    except (RuntimeError, KeyError):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}") from None
    if not available_here:
        which = "GPU" if device.type == "cuda" else "such GPU"
        raise ValueError(f"device {name!r} was asked for, and PyTorch finds no {which} here")
    if device.type == "cuda":
        # torch's types say that an index is always there; "cuda" alone has none
        number = int(name.partition(":")[2] or (group.local_rank if group.count > 1 else torch.cuda.current_device()))
        if number >= torch.cuda.device_count():
            raise ValueError(f"device {name!r} was asked for, and there are {torch.cuda.device_count()} GPUs here")
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    return device


class SingleProcess:
    """A single process; also the base class of the others. The model is on its device."""

    scale = 1.0
    """Factor of the loss: the number of processes where gradients are averaged over them and not summed."""

    def __init__(self, model: nn.Module, group: Processes) -> None:
        self.model, self.group = model, group
        self.runner: Any = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def share_buffers(self) -> None:
        """Copy the main process's buffers to all processes."""
        self.group.copy_from_main([buffer for buffer in self.model.buffers() if not buffer.is_sparse])

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Context for the forward and backward pass of a piece of a batch."""
        return contextlib.nullcontext()

    def reduce(self, loss: Tensor, stop: bool) -> tuple[Tensor, Tensor | bool]:
        """Sum gradients, losses and stop requests over the processes."""
        return loss, stop

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Total norm of the gradients, as a tensor on their device."""
        if not gradients:
            return torch.zeros(())
        device = gradients[0].device.type
        wide = torch.float32 if device == "mps" else torch.float64
        # In float32, large ones may overflow together, where each is finite and will be clipped
        for dtype in (torch.float64,) if device == "cuda" else (None, torch.float64):
            norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0, dtype)), dtype=wide)
            if device != "cpu" or math.isfinite(norm.item()):
                break
        return norm

    def state_of(self, part: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
        """The whole state of the model or of its optimiser."""
        return part.state_dict()

    def load(self, part: nn.Module | torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load a state returned by `state_of`."""
        part.load_state_dict(state)


class ExactAllReduce(SingleProcess):
    """Gradients, losses and stop requests are summed in one buffer, in a fixed order: bit-identical in every run."""

    def __init__(self, model: nn.Module, group: Processes) -> None:
        super().__init__(model, group)
        sizes, types = [p.numel() for p in self.parameters], {p.dtype for p in self.parameters}
        dtype = torch.float64 if torch.float64 in types else torch.float32
        self.buffer = torch.zeros(sum(sizes) + len(sizes) + 2, dtype=dtype, device=self.parameters[0].device)
        *parts, self.present, self.totals = self.buffer.split([*sizes, len(sizes), 2])
        self.views = [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]
        self.used: list[bool] | None = None

    def reduce(self, loss: Tensor, stop: bool) -> tuple[Tensor, Tensor | bool]:
        """See `SingleProcess.reduce`. A parameter without a gradient in any process stays without one."""
        present = [parameter.grad is not None for parameter in self.parameters]
        for parameter, view in zip(self.parameters, self.views, strict=True):
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
        self.present.copy_(torch.tensor(present, dtype=self.buffer.dtype), non_blocking=True)
        self.totals[0] = loss
        self.totals[1] = float(stop)
        dist.all_reduce(self.buffer)
        if self.used is None or self.buffer.device.type == "cpu":  # a GPU would be waited for: there it stays so
            self.used = [bool(count) for count in self.present.tolist()]
        for parameter, view, used in zip(self.parameters, self.views, self.used, strict=True):
            parameter.grad = view.to(parameter.dtype) if used else None
        return self.totals[0].clone(), self.totals[1] > 0


class DDP(SingleProcess):
    """PyTorch's DDP: gradients are summed during the backward pass; equal up to rounding, not bit-identical."""

    def __init__(self, model: nn.Module, group: Processes) -> None:
        super().__init__(model, group)
        self.scale = float(group.count)
        self.runner = nn.parallel.DistributedDataParallel(model)

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """See `SingleProcess.accumulate`; gradients are summed in the last piece's backward pass only."""
        return contextlib.nullcontext() if last else self.runner.no_sync()

    def reduce(self, loss: Tensor, stop: bool) -> tuple[Tensor, Tensor | bool]:
        """See `SingleProcess.reduce`; the gradients are summed already."""
        totals = torch.stack([loss, torch.full_like(loss, float(stop))])
        dist.all_reduce(totals)
        return totals[0], totals[1] > 0


class FSDP(DDP):
    """PyTorch's FSDP2: each process holds a shard of weights, gradients and optimiser state; gathered for saving."""

    def __init__(self, model: nn.Module, group: Processes) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        device = next(model.parameters()).device
        fully_shard(model, mesh=init_device_mesh(device.type, (group.count,)))
        SingleProcess.__init__(self, model, group)
        self.scale = float(group.count)

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """See `SingleProcess.accumulate`."""
        self.runner.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """See `SingleProcess.norm`."""
        norm: Any = nn.utils.get_total_norm(gradients)
        return norm.full_tensor().double()  # type: ignore[no-any-return]

    def state_of(self, part: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
        """See `SingleProcess.state_of`; all processes take part."""
        from torch.distributed.tensor import DTensor

        whole: dict[str, Any] = tree_map_only(DTensor, lambda tensor: tensor.full_tensor().cpu(), part.state_dict())
        return whole

    def load(self, part: nn.Module | torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """See `SingleProcess.load`."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        def sharded(value: Any, like: Any) -> Any:
            if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
                return value
            return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)

        if isinstance(part, nn.Module):
            own = part.state_dict()
            part.load_state_dict({name: sharded(value, own[name]) for name, value in state.items()})
            return
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        moments = {
            number: {name: sharded(value, parameters[number]) for name, value in own.items()}
            for number, own in state["state"].items()
        }
        part.load_state_dict({**state, "state": moments})


def in_parallel(kind: str, model: nn.Module, group: Processes) -> SingleProcess:
    """The strategy of this name; `SingleProcess` for a single process."""
    if group.count == 1:
        return SingleProcess(model, group)
    group.copy_from_main([tensor.detach() for tensor in model.state_dict().values() if isinstance(tensor, Tensor)])
    return {"exact": ExactAllReduce, "ddp": DDP, "fsdp": FSDP}[kind](model, group)
