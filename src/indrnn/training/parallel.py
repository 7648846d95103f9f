"""Data parallelism: gradients summed in a fixed order (exact), overlapped (DDP), or with sharded weights (FSDP)."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .processes import Processes


class Alone:
    """A single process; also the base class of the others.

    Args:
        model: the model, on its device.
        group: the processes.
    """

    scale = 1.0
    """What the loss is multiplied with, where gradients are averaged over the processes and not summed."""

    def __init__(self, model: nn.Module, group: Processes) -> None:
        self.model = self.runner = model
        self.group = group
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def piece(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Context for the forward and backward pass of a piece of a batch."""
        return contextlib.nullcontext()

    def finish(self, loss: Tensor, stop: bool) -> tuple[Tensor, Tensor | bool]:
        """Sum gradients, losses and stop requests over the processes."""
        return loss, stop

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Total norm of the gradients, as a tensor on their device."""
        if not gradients:
            return torch.zeros(())
        if gradients[0].device.type == "cpu":
            norm = _norm(gradients, None)
            # Large ones may overflow together, where each is finite and will be clipped.
            return norm if math.isfinite(norm.item()) else _norm(gradients, torch.float64)
        return _norm(gradients, torch.float64 if gradients[0].device.type == "cuda" else None)

    def model_state(self) -> dict[str, Any]:
        """The whole model's state."""
        return self.model.state_dict()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole optimiser's state."""
        return optimizer.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        """Load a state returned by `model_state`."""
        self.model.load_state_dict(state)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load a state returned by `optimizer_state`."""
        optimizer.load_state_dict(state)


def _norm(gradients: list[Tensor], dtype: torch.dtype | None) -> Tensor:
    norms = torch._foreach_norm(gradients, 2.0, dtype)
    wide = torch.float32 if gradients[0].device.type == "mps" else torch.float64
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), dtype=wide)
    return norm


class Exact(Alone):
    """Gradients, losses and stop requests are summed in one buffer, in a fixed order: bit-identical in every run."""

    def __init__(self, model: nn.Module, group: Processes) -> None:
        super().__init__(model, group)
        wide = any(parameter.dtype == torch.float64 for parameter in self.parameters)
        sizes = [parameter.numel() for parameter in self.parameters]
        device = self.parameters[0].device
        dtype = torch.float64 if wide else torch.float32
        self.buffer = torch.zeros(sum(sizes) + len(sizes) + 2, dtype=dtype, device=device)
        *parts, self.there, self.more = self.buffer.split([*sizes, len(sizes), 2])
        self.views = [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]
        self.used: list[bool] | None = None

    def finish(self, loss: Tensor, stop: bool) -> tuple[Tensor, Tensor | bool]:
        """See `Alone.finish`. A parameter without a gradient in any process stays without one."""
        here = [parameter.grad is not None for parameter in self.parameters]
        for parameter, view in zip(self.parameters, self.views, strict=True):
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
        self.there.copy_(torch.tensor(here, dtype=self.buffer.dtype), non_blocking=True)
        self.more[0] = loss
        self.more[1] = float(stop)
        dist.all_reduce(self.buffer)
        if self.used is None or self.buffer.device.type == "cpu":  # a GPU would be waited for: there it stays so
            self.used = [bool(count) for count in self.there.tolist()]
        for parameter, view, used in zip(self.parameters, self.views, self.used, strict=True):
            parameter.grad = view.to(parameter.dtype) if used else None
        return self.more[0].clone(), self.more[1] > 0


class Overlapped(Alone):
    """PyTorch's DDP: gradients are summed during the backward pass; equal up to rounding, not bit-identical."""

    runner: Any

    def __init__(self, model: nn.Module, group: Processes) -> None:
        super().__init__(model, group)
        self.scale = float(group.count)
        self.runner = nn.parallel.DistributedDataParallel(model)

    def piece(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """See `Alone.piece`; gradients are summed in the last piece's backward pass only."""
        return contextlib.nullcontext() if last else self.runner.no_sync()

    def finish(self, loss: Tensor, stop: bool) -> tuple[Tensor, Tensor | bool]:
        """See `Alone.finish`; the gradients are summed already."""
        more = torch.stack([loss, torch.full_like(loss, float(stop))])
        dist.all_reduce(more)
        return more[0], more[1] > 0


class Divided(Overlapped):
    """PyTorch's FSDP2: each process holds a shard of weights, gradients and optimiser state; gathered for saving."""

    def __init__(self, model: nn.Module, group: Processes) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        device = next(model.parameters()).device
        fully_shard(model, mesh=init_device_mesh(device.type, (group.count,)))
        Alone.__init__(self, model, group)
        self.scale = float(group.count)

    def piece(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """See `Alone.piece`."""
        self.runner.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """See `Alone.norm`."""
        norm: Any = nn.utils.get_total_norm(gradients)
        return norm.full_tensor().double()  # type: ignore[no-any-return]

    def model_state(self) -> dict[str, Any]:
        """See `Alone.model_state`; all processes take part."""
        return {name: _whole(value) for name, value in self.model.state_dict().items()}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """See `Alone.optimizer_state`; all processes take part."""
        state = optimizer.state_dict()
        moments = {
            number: {name: _whole(value) for name, value in each.items()} for number, each in state["state"].items()
        }
        return {**state, "state": moments}

    def load_model(self, state: dict[str, Any]) -> None:
        """See `Alone.load_model`."""
        mine = self.model.state_dict()
        self.model.load_state_dict({name: _divided(value, mine[name]) for name, value in state.items()})

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """See `Alone.load_optimizer`."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {
            number: {name: _divided(value, parameters[number]) for name, value in each.items()}
            for number, each in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": moments})


def _whole(value: Any) -> Any:
    """Gather a sharded tensor as a whole one, on the CPU."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def _divided(value: Any, like: Any) -> Any:
    """Shard a whole tensor like another of its shape."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def share(kind: str, model: nn.Module, group: Processes) -> Alone:
    """The strategy of this name; `Alone` for a single process."""
    if group.count == 1:
        return Alone(model, group)
    group.copy_from_main([tensor.detach() for tensor in model.state_dict().values() if isinstance(tensor, Tensor)])
    return {"exact": Exact, "ddp": Overlapped, "fsdp": Divided}[kind](model, group)
