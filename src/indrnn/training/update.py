"""One step of training: a batch, its loss, the gradient, the update."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ..layers import constrain_
from ..layers.norm import gather_statistics, is_batch_norm
from .optimizers import make_optimizer
from .options import Plateau, Training
from .parallel import Processes, in_parallel
from .task import Batch, Shard, Task, derive_seed

# Of an updater, in a checkpoint
_NUMBERS = ("loss_sum", "norm_sum", "summed", "lr", "divisions", "waited")


class NotFiniteError(Exception):
    """The loss or a gradient is not finite, after so many steps; the weights have not been updated with it."""

    def __init__(self, step: int, loss: float) -> None:
        self.step, self.loss = step, loss


class Updater:
    """Updates the weights of a model, which is on its device, and holds all state that a step changes."""

    def __init__(
        self, model: nn.Module, task: Task, options: Training, seed: int, group: Processes, fused: bool
    ) -> None:
        self.model, self.task, self.options, self.seed, self.group = model, task, options, seed, group
        self.parallel = in_parallel(options.distributed, model, group)
        self.parameters: list[Tensor] = [*self.parallel.parameters]
        self.runner: Any = torch.compile(self.parallel.runner) if options.compile else self.parallel.runner
        self.optimizer = make_optimizer(model, options, fused)
        self.device = device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "fp16")
        self.average = None if options.ema is None else [weight.detach().clone() for weight in self.parameters]
        self.lr = options.lr
        self.divisions = 0  # of the learning rate, by a plateau
        self.waited = 0  # evaluations without a new best, since that or the last division
        self.loss: Tensor | float = 0.0  # of the last step
        self.loss_sum: Tensor | float = 0.0  # since the last evaluation
        self.norm_sum: Tensor | float = 0.0
        self.summed = 0  # steps
        # What the task carries from step to step, None if nothing; and what it carried into the last step
        self.task_state: Callable[[], dict[str, Any] | None] = getattr(task, "state_dict", lambda: None)
        self.carried: dict[str, Any] | None = None
        self.norms = [module for module in model.modules() if is_batch_norm(module)]
        self.frozen_from = math.inf if options.freeze_norms is None else round(options.freeze_norms * options.steps)
        self.gathers_until = self.frozen_from if options.gather and self.norms else -1
        self.scalars = DeferredScalars(device, waits=fused and device.type != "cpu")
        self.autocast = functools.partial(autocast, options.precision, device)
        self._wide = torch.float32 if device.type == "mps" else torch.float64
        self.prefetches = getattr(task, "prefetch", False)
        self.pool = ThreadPoolExecutor(1, "batches")
        self._prefetched: dict[tuple[int, int], Future[Batch]] = {}  # the next batch, by step and piece

    def next_batch(self, step: int, piece: int = 0) -> Batch:
        """This process's piece of the batch of a step; the next one is prefetched if the task asks for it."""
        if not self.prefetches:
            return self.batch(step, piece)
        future = self._prefetched.get((step, piece))
        batch = self._make_batch(step, piece) if future is None else future.result()
        following = (step, piece + 1) if piece + 1 < self.options.accumulate else (step + 1, 0)
        self._prefetched = {}
        if following[0] < self.options.steps:
            self._prefetched[following] = self.pool.submit(self._make_batch, *following)
        return batch.to(self.device)

    def batch(self, step: int, piece: int = 0) -> Batch:
        """This process's piece of any step's batch, on its device; the prefetched batch is not affected."""
        return self._make_batch(step, piece).to(self.device)

    def _make_batch(self, step: int, piece: int) -> Batch:
        pieces = self.options.accumulate
        batch = self.task.batch(step, Shard(self.group.rank * pieces + piece, self.group.count * pieces))
        return batch.pinned() if self.prefetches and self.device.type == "cuda" else batch

    def update(self, step: int, stop: bool) -> bool:
        """Update the weights once; returns whether some process was asked to stop. See `DeferredScalars` for errors."""
        if step == self.frozen_from:
            if 0 < step <= self.gathers_until:
                self._gather(step)
            self.train_mode(step + 1)
        schedule = self.options.schedule
        divided = (1 / schedule.divide_by) ** self.divisions if isinstance(schedule, Plateau) else 1.0
        self.lr = self.options.lr * (divided * schedule.factor(step, self.options.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        self.optimizer.zero_grad()
        self.carried = self.task_state()
        loss, stops = self.parallel.reduce(self._backward(step), stop)
        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.loss, norm = self.scalars.read(loss), self.scalars.read(self.parallel.norm(gradients))
        scales = self.scaler.is_enabled()  # it skips steps whose gradients are not finite
        stop = self.scalars.check(step, self.loss, self.loss if scales else self.loss + norm, stops)
        if self.scalars.waits and not scales:
            self.optimizer.found_inf = self.scalars.bad  # type: ignore[attr-defined]
        if self.options.clip_norm is not None and gradients:
            factor = torch.as_tensor(self.options.clip_norm / (norm + 1e-6), dtype=self._wide, device=self.device)
            torch._foreach_mul_(gradients, factor.clamp(max=1.0).to(gradients[0].dtype))
        if self.options.clip is not None and gradients:
            torch._foreach_clamp_min_(gradients, -self.options.clip)
            torch._foreach_clamp_max_(gradients, self.options.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        constrain_(self.model)
        if self.average is not None and self.options.ema is not None:
            decay = min(self.options.ema, (1 + step) / (10 + step))  # at first, the average follows the weights
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.parameters, 1 - decay)
        self.loss_sum, self.norm_sum, self.summed = self.loss_sum + self.loss, self.norm_sum + norm, self.summed + 1
        return stop

    def _backward(self, step: int) -> Tensor:
        """Compute the gradients of this process's part of the batch; returns its part of the loss."""
        parts = []
        for piece in range(self.options.accumulate):
            self.seed_noise(step, piece)
            batch = self.next_batch(step, piece)
            # The pieces' losses are means of their own items; together they are to be the mean of all.
            share = batch.count / batch.total
            with self.parallel.accumulate(last=piece == self.options.accumulate - 1):
                with self.autocast():
                    loss = self.task.loss(self.runner, batch)
                factor = share * self.parallel.scale
                self.scaler.scale(loss if factor == 1 else loss * factor).backward()
            part = loss.detach() if share == 1 else loss.detach() * share
            parts.append(part.to(self._wide))
        return functools.reduce(Tensor.add, parts)

    def seed_noise(self, step: int, piece: int) -> None:
        """Seed the model's random numbers; directly in the generators, as torch.manual_seed is slow."""
        seed = derive_seed(self.seed, "noise", step, self.group.rank, piece)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index].manual_seed(seed)
        elif self.device.type == "mps":
            torch.mps.manual_seed(seed)

    def means(self) -> tuple[float, float]:
        """Mean loss and gradient norm since the last call."""
        steps = max(1, self.summed)
        loss, norm = float(self.loss_sum) / steps, float(self.norm_sum) / steps
        self.loss_sum, self.norm_sum, self.summed = 0.0, 0.0, 0
        return loss, norm

    def divide_lr(self, better: bool) -> bool:
        """Register an evaluation; returns whether a plateau divides the learning rate and restores the best weights."""
        schedule = self.options.schedule
        self.waited = 0 if better else self.waited + 1
        if not isinstance(schedule, Plateau) or self.waited < schedule.patience:
            return False
        self.divisions, self.waited = self.divisions + 1, 0
        return True

    def train_mode(self, step: int) -> None:
        """Switch to training mode, except batch norms that were frozen before this step."""
        self.model.train()
        if step > self.frozen_from:
            for norm in self.norms:
                norm.eval()

    @contextlib.contextmanager
    def evaluated_weights(self, step: int, stopped: Callable[[], bool]) -> Iterator[nn.Module]:
        """The model in evaluation mode, with averaged weights and gathered statistics if any; until exit."""
        self.parallel.share_buffers()
        gathers = step <= self.gathers_until
        changed: list[Tensor] = [] if self.average is None else [*self.parameters]
        changed += self.model.buffers() if gathers else []
        before = [tensor.detach().clone() for tensor in changed]
        try:
            if self.average is not None:
                _copy(self.average, self.parameters)
            if gathers:
                self._gather(step, stopped)
            self.model.eval()
            with torch.no_grad(), self.autocast():
                yield self.model
        finally:
            self.train_mode(step)
            _copy(before, changed)

    def best_weights(self, step: int) -> dict[str, Any]:
        """A copy of the evaluated weights, as an entry of a checkpoint; none if they are those that are trained."""
        if self.average is None and step > self.gathers_until:
            return {}
        state = self.parallel.state_of(self.model)
        return {"weights": {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}}

    def load_best_weights(self, best: dict[str, Any] | None) -> None:
        """Load the weights of the best evaluation into the model for good, in evaluation mode; None for the last."""
        if best is not None:
            self.parallel.load(self.model, best.get("weights", best["model"]))
        elif self.average is not None:
            _copy(self.average, self.parameters)
        self.model.eval()

    def _gather(self, step: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Recompute batch-norm statistics over the last training batches before this step."""
        recent = range(max(0, step - self.options.gather), step)
        # At least one; and of several processes, all must make the same calls
        batches = (self.batch(i) for i in recent if i == recent[0] or self.group.count > 1 or not stopped())
        before = self.task_state()
        try:
            with self.autocast():
                gather_statistics(self.model, batches, call=self.task.loss)
        finally:
            self.load_carried(before)
        self.parallel.share_buffers()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint; with fsdp, or a task with state, every process must call it."""
        state = self.training_state() | {"scaler": self.scaler.state_dict()}
        for name in _NUMBERS:
            value = getattr(self, name)
            state[name] = value.item() if isinstance(value, Tensor) else value
        if (carried := self.task_state()) is not None:
            state["task"] = self.group.of_all(_to_device(carried, torch.device("cpu")))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from a checkpoint."""
        self.load_training_state(state)
        for name in _NUMBERS:
            setattr(self, name, state[name])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        if "task" in state:
            self.load_carried(state["task"][self.group.rank])

    def training_state(self) -> dict[str, Any]:
        """Model, optimiser and moving average."""
        state = {"model": self.parallel.state_of(self.model), "optimizer": self.parallel.state_of(self.optimizer)}
        return state if self.average is None else state | {"average": self.average}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore what is in `state` of model, optimiser and moving average."""
        self.parallel.load(self.model, state["model"])
        if "optimizer" in state:
            self.parallel.load(self.optimizer, state["optimizer"])
        if self.average is not None and "average" in state:
            _copy(state["average"], self.average)

    def load_carried(self, state: dict[str, Any] | None) -> None:
        """Set the state that the task carries from step to step, if it carries any."""
        if state is not None:
            self.task.load_state_dict(_to_device(state, self.device))  # type: ignore[attr-defined]


class DeferredScalars:
    """Numbers of a step, checked a step later if reading them at once would wait; `bad` is set on the device."""

    def __init__(self, device: torch.device, *, waits: bool) -> None:
        self.cuda, self.waits = device.type == "cuda", waits
        self.bad = torch.zeros((), device=device)  # whether any step's numbers were
        self._pending: tuple[int, Tensor, Any] | None = None

    def read(self, value: Tensor) -> Tensor | float:
        """Convert to a Python number, whose arithmetic needs no call of torch, unless reading it would wait."""
        return value if self.waits else value.item()

    def check(self, step: int, loss: Tensor | float, checked: Tensor | float, stops: Tensor | bool) -> bool:
        """Raise if `checked` is not finite, now or a step later; returns whether some process was asked to stop."""
        if not isinstance(loss, Tensor) or not isinstance(checked, Tensor):
            if not math.isfinite(checked):
                raise NotFiniteError(step, float(loss))
            return bool(stops)
        self.bad = torch.maximum(self.bad, (~torch.isfinite(checked)).to(self.bad))
        stops = stops.to(loss) if isinstance(stops, Tensor) else torch.full_like(loss, float(stops))
        values = torch.stack([self.bad.to(loss), loss, stops])
        stop = self.check_last()
        copied = torch.zeros(values.shape, dtype=values.dtype, pin_memory=self.cuda)
        copied.copy_(values, non_blocking=self.cuda)
        self._pending = step, copied, torch.cuda.current_stream().record_event() if self.cuda else None
        return stop

    def check_last(self) -> bool:
        """Check the numbers that were sent to the CPU last."""
        if self._pending is None:
            return False
        (step, values, event), self._pending = self._pending, None
        if event is not None:
            event.synchronize()
        bad, loss, stop = values.tolist()
        if bad:
            raise NotFiniteError(step, loss)
        return bool(stop)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Autocast of matrix products and activations to half precision; none for float32, nor for fp16 on a CPU."""
    if precision == "float32" or (precision == "fp16" and device.type == "cpu"):
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


@torch.no_grad()
def _copy(values: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for value, tensor in zip(values, into, strict=True):
        tensor.copy_(value)


def _to_device(value: Any, device: torch.device) -> Any:
    """Move nested tensors to a device, detached; also in named tuples, such as a network's state."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().to(device), value)


def first_not_finite(model: nn.Module, task: Task, batch: Batch) -> str | None:
    """Run a batch again and say where a number that is not finite first appears; None if all are finite this time."""
    for part in ("inputs", "target"):
        tensor = getattr(batch, part)
        if not _finite(tensor):
            place = (~torch.isfinite(tensor)).nonzero()[0].tolist()
            return f"first in the {part} of the batch, {tensor[tuple(place)].item()} at {place}"
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}
    forward: list[str] = []
    backward: list[str] = []

    def check_output(module: nn.Module, _inputs: Any, output: Any) -> None:
        if not _finite(output):
            forward.append(names[module])
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: None if _finite(gradient) else backward.append(names[module]))

    handles = [module.register_forward_hook(check_output) for module in names]
    try:
        model.zero_grad()
        loss = task.loss(model, batch)
        if forward:
            return f"first in the output of {forward[0]}"
        if not _finite(loss):
            return "in the loss itself; every module's output is finite"
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    if backward:
        return f"first in the gradient of the output of {backward[0]}; the forward pass is finite"
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"in the gradient of {name}; the forward pass is finite"
    return None


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _finite(value: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(value))
