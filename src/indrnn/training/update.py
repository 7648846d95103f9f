"""One step of training: a batch, its loss, the gradient, the update."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..layers import constrain_, parameter_groups
from ..layers.statistics import gather_statistics, is_batch_norm
from .muon import Muon
from .options import Training
from .parallel import share
from .processes import Processes
from .schedules import ScheduleState
from .task import Batch, Shard, Task, derive_seed


class NotFiniteError(Exception):
    """The loss or a gradient is not finite; the weights have not been updated with it.

    Args:
        step: number of steps before it.
        loss: the loss.
    """

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(step, loss)
        self.step, self.loss = step, loss


class Stepper:
    """Performs training steps, and holds all state that a step changes.

    Args:
        model: the model, on its device.
        task: the task.
        options: training options.
        seed: seed of all randomness in the model.
        group: the processes.
        device: device to compute on.
        fused: whether the optimiser updates all weights in one pass; see `may_fuse`.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        options: Training,
        *,
        seed: int,
        group: Processes,
        device: torch.device,
        fused: bool,
    ) -> None:
        self.model, self.task, self.options, self.seed = model, task, options, seed
        self.group, self.device, self.fused = group, device, fused
        self.sharing = share(options.distributed, model, group)
        self.runner: Any = torch.compile(self.sharing.runner) if options.compile else self.sharing.runner
        self.optimizer = _optimizer(model, options, fused)
        self.schedule = ScheduleState(options.schedule)
        self.scaler = torch.amp.GradScaler(device.type) if options.precision == "fp16" else None
        self.average = Average(self.sharing.parameters, options.ema) if options.ema is not None else None
        self.batches = Batches(task, group, options, device)
        self.lr = options.lr
        self.loss_sum: Tensor | float = 0.0  # since the last evaluation
        self.norm_sum: Tensor | float = 0.0
        self.since = 0
        self.loss: Tensor | float = 0.0  # of the last step
        self.carried: dict[str, Any] | None = None  # what the task carried into the last step
        self.frozen_from = math.inf if options.freeze_norms is None else round(options.freeze_norms * options.steps)
        self._later = Later(device, waits=fused and device.type != "cpu")
        self._bad = torch.zeros((), device=device)
        self._wide = torch.float32 if device.type == "mps" else torch.float64

    @property
    def norms(self) -> list[nn.Module]:
        """The model's batch norms."""
        return [module for module in self.model.modules() if is_batch_norm(module)]

    def train(self, step: int) -> None:
        """Switch to training mode, except batch norms that were frozen before this step."""
        self.model.train()
        if step > self.frozen_from:
            for norm in self.norms:
                norm.eval()

    def gather(self, step: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Recompute batch-norm statistics over the last training batches before this step."""
        carries, count = carried(self.task), self.options.gather
        try:
            with self.autocast():
                batches = self._until_stopped(range(max(0, step - count), step), stopped)
                gather_statistics(self.model, batches, call=self.task.loss)
        finally:
            if carries is not None:
                self.task.load_state_dict(carries)  # type: ignore[attr-defined]
        self.share_buffers()

    def _until_stopped(self, steps: range, stopped: Callable[[], bool]) -> Iterator[Batch]:
        for step in steps:
            yield self.batches.again(step)
            if self.group.count == 1 and stopped():  # of several processes, all must make the same calls
                return

    def share_buffers(self) -> None:
        """Copy the main process's buffers to all processes."""
        self.group.copy_from_main([buffer for buffer in self.model.buffers() if not buffer.is_sparse])

    def take(self, step: int, stop: bool) -> bool:
        """One update of the weights; returns whether some process was asked to stop."""
        options, sharing = self.options, self.sharing
        if step == self.frozen_from:
            if options.gather and step and self.norms:
                self.gather(step)
            self.train(step + 1)
        self.lr = options.lr * self.schedule.factor(step, options.steps)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self.lr
        self.optimizer.zero_grad()
        self.carried = carried(self.task)
        mine: Tensor | None = None
        for piece in range(options.accumulate):
            self.seed_for(step, piece)
            batch = self.batches(step, piece)
            # The pieces' losses are means of their own items; together they are to be the mean of all.
            share = batch.count / batch.total
            with sharing.piece(last=piece == options.accumulate - 1):
                with self.autocast():
                    loss = self.task.loss(self.runner, batch)
                self._scaled(_times(loss, share * sharing.scale)).backward()
            part = _times(loss.detach(), share).to(self._wide)
            mine = part if mine is None else mine + part
        assert mine is not None
        summed, stops = sharing.finish(mine, stop)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in sharing.parameters if parameter.grad is not None]
        total, norm = self._seen(summed), self._seen(sharing.norm(gradients))
        stop = self._heed(step, total, norm, stops)
        self._clip(gradients, norm)
        self._update()
        constrain_(self.model)
        if self.average is not None:
            self.average.update(step)
        self.loss = total
        self.loss_sum += total
        self.norm_sum += norm
        self.since += 1
        return stop

    def seed_for(self, step: int, piece: int) -> None:
        """Seed the model's random numbers; directly in the generators, as torch.manual_seed is slow."""
        seed = derive_seed(self.seed, "noise", step, self.group.rank, piece)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index].manual_seed(seed)
        elif self.device.type == "mps":
            torch.mps.manual_seed(seed)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast to half precision, if the options ask for it."""
        return autocast(self.options.precision, self.device)

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _seen(self, value: Tensor) -> Tensor | float:
        """Convert to a Python number, whose arithmetic needs no call of torch, unless reading it would wait."""
        return value if self._later.waits else value.item()

    def _heed(self, step: int, loss: Tensor | float, norm: Tensor | float, stops: Tensor | bool) -> bool:
        """Raise if numbers are not finite; where reading waits, a step later, without updating weights in between."""
        telling = loss if self.scaler is not None else loss + norm  # the scaler sees to gradients
        if not isinstance(loss, Tensor) or not isinstance(telling, Tensor):
            if not math.isfinite(telling):
                raise NotFiniteError(step, float(loss))
            return bool(stops)
        bad = ~torch.isfinite(telling)
        self._bad = torch.maximum(self._bad, bad.to(self._bad))
        if self.scaler is None:
            self.optimizer.found_inf = self._bad  # type: ignore[attr-defined]
        wish = stops.to(loss) if isinstance(stops, Tensor) else torch.full_like(loss, float(stops))
        return self._look(self._later.put(step, torch.stack([self._bad.to(loss), loss, wish])))

    def settle(self) -> None:
        """Wait for the last step's numbers and check them; called before evaluating or saving."""
        self._look(self._later.last())

    def _look(self, seen: tuple[int, Tensor] | None) -> bool:
        if seen is None:
            return False
        step, values = seen
        bad, loss, wish = values.tolist()
        if bad:
            raise NotFiniteError(step, loss)
        return bool(wish)

    def _clip(self, gradients: list[Tensor], norm: Tensor | float) -> None:
        options = self.options
        if options.clip_norm is not None and gradients:
            like = gradients[0]
            factor = torch.as_tensor(options.clip_norm / (norm + 1e-6), dtype=self._wide, device=like.device)
            torch._foreach_mul_(gradients, factor.clamp(max=1.0).to(like.dtype))
        if options.clip is not None and gradients:
            torch._foreach_clamp_min_(gradients, -options.clip)
            torch._foreach_clamp_max_(gradients, options.clip)

    def _update(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def means(self) -> dict[str, float]:
        """Mean loss and gradient norm since the last call."""
        steps = max(1, self.since)
        result = {"train_loss": float(self.loss_sum) / steps, "gradient_norm": float(self.norm_sum) / steps}
        self.loss_sum, self.norm_sum, self.since = 0.0, 0.0, 0
        return result

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint; with fsdp, or a task with state, every process must call it."""
        state: dict[str, Any] = {
            "model": self.sharing.model_state(),
            "optimizer": self.sharing.optimizer_state(self.optimizer),
            "fused": self.fused,
            "schedule": self.schedule.state_dict(),
            "loss_sum": float(self.loss_sum),
            "norm_sum": float(self.norm_sum),
            "since_line": self.since,
            "lr": self.lr,
        }
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self.average is not None:
            state["average"] = self.average.values
        mine = carried(self.task)
        if mine is not None:
            state["task"] = self.group.of_all(on_cpu(mine))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from a checkpoint."""
        self.sharing.load_model(state["model"])
        self.sharing.load_optimizer(self.optimizer, state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.loss_sum, self.norm_sum, self.since = state["loss_sum"], state["norm_sum"], state["since_line"]
        self.lr = state.get("lr", self.lr)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load(state["average"])
        if "task" in state:
            self.task.load_state_dict(to_device(state["task"][self.group.rank], self.device))  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the thread that makes batches."""
        self.batches.close()


class Batches:
    """The batches of a run, on its device; prefetched in a thread if the task asks for it.

    Args:
        task: makes the batches.
        group: the processes.
        options: the number of steps and pieces.
        device: device of the batches.
    """

    def __init__(self, task: Task, group: Processes, options: Training, device: torch.device) -> None:
        self.task, self.group, self.device = task, group, device
        self.pieces, self.steps = options.accumulate, options.steps
        self._pool = ThreadPoolExecutor(1, "batches") if getattr(task, "prefetch", False) else None
        self._coming: tuple[tuple[int, int], Future[Batch]] | None = None

    def again(self, step: int) -> Batch:
        """This process's first piece of any step's batch; the prefetched batch is not affected."""
        return self._make(step, 0).to(self.device)

    def _make(self, step: int, piece: int) -> Batch:
        shard = Shard(self.group.rank * self.pieces + piece, self.group.count * self.pieces)
        batch = self.task.batch(step, shard)
        return batch.pinned() if self._pool is not None and self.device.type == "cuda" else batch

    def __call__(self, step: int, piece: int = 0) -> Batch:
        """This process's piece of the batch of a step."""
        if self._pool is None:
            return self._make(step, piece).to(self.device)
        if self._coming is not None and self._coming[0] == (step, piece):
            batch = self._coming[1].result()
        else:
            batch = self._make(step, piece)
        self._coming = None
        following = (step, piece + 1) if piece + 1 < self.pieces else (step + 1, 0)
        if following[0] < self.steps:
            self._coming = following, self._pool.submit(self._make, *following)
        return batch.to(self.device)

    def close(self) -> None:
        """End the thread."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class Average:
    """A moving average of weights, w̄ ← d w̄ + (1 − d) w with d = min(decay, (1 + step) / (10 + step)).

    Args:
        parameters: the weights.
        decay: fraction of the average that is kept in each step, late in training.
    """

    def __init__(self, parameters: list[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.values = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after a step."""
        torch._foreach_lerp_(self.values, list(self.parameters), 1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def load(self, values: list[Tensor]) -> None:
        """Restore the average from a checkpoint."""
        for mine, value in zip(self.values, values, strict=True):
            mine.copy_(value)

    @contextlib.contextmanager
    def applied(self) -> Any:
        """Replace the model's weights by the average; they are restored on exit."""
        kept = [parameter.detach().clone() for parameter in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(list(self.parameters), self.values)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(list(self.parameters), kept)


class Later:
    """Numbers of a step, read a step later if reading them at once would wait for the device.

    Args:
        device: device of the numbers.
        waits: whether reading would wait.
    """

    def __init__(self, device: torch.device, *, waits: bool) -> None:
        self.device, self.waits = device, waits
        self._pending: tuple[int, Tensor, Any] | None = None

    def put(self, step: int, values: Tensor) -> tuple[int, Tensor] | None:
        """Start copying this step's numbers to the CPU; returns those of the step before, which have arrived."""
        earlier = self.last()
        cuda = self.device.type == "cuda"
        here = torch.zeros(values.shape, dtype=values.dtype, pin_memory=cuda)
        here.copy_(values, non_blocking=cuda)
        event = torch.cuda.Event() if cuda else None
        if event is not None:
            event.record()
        self._pending = step, here, event
        return earlier

    def last(self) -> tuple[int, Tensor] | None:
        """The numbers sent last; None if they have been read already."""
        if self._pending is None:
            return None
        step, values, event = self._pending
        self._pending = None
        if event is not None:
            event.synchronize()
        return step, values


def _times(value: Tensor, factor: float) -> Tensor:
    """The product, without a call of torch if the factor is 1."""
    return value if factor == 1 else value * factor


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Autocast of matrix products and activations to half precision, unless `precision` is float32."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


def may_fuse(model: nn.Module, options: Training, group: Processes) -> bool:
    """Whether to use a fused optimiser: for real weights on CPUs and NVIDIA GPUs; not for muon or sharded weights."""
    divided = options.distributed == "fsdp" and group.count > 1
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    served = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    return served and not divided and options.optimizer != "muon"


def _optimizer(model: nn.Module, options: Training, fused: bool) -> torch.optim.Optimizer:
    if options.optimizer == "muon":
        return Muon(model, options.lr, options.weight_decay)
    groups = parameter_groups(model, options.weight_decay)
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=fused)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=options.lr, fused=fused)


def carried(task: Task) -> dict[str, Any] | None:
    """The state that a task carries from step to step; None if it carries none."""
    state = getattr(task, "state_dict", None)
    return None if state is None else state()


def on_cpu(value: Any) -> Any:
    """Move nested tensors to the CPU, detached."""
    return to_device(value, torch.device("cpu"))


def to_device(value: Any, device: torch.device) -> Any:
    """Move nested tensors to a device, detached; also in named tuples, such as a network's state."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().to(device), value)
