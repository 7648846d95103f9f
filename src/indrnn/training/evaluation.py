"""Evaluations: measured together by all processes, stopped between batches, and the best weights kept."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.statistics import gather_statistics, is_batch_norm
from .checkpoint import Checkpoints
from .processes import Processes
from .step import Stepper, carried
from .task import Batch, Measured, Shard, Task


def measure(
    pieces: Iterator[Measured],
    group: Processes,
    stopped: Callable[[], bool] = lambda: False,
    *,
    task: Task | None = None,
) -> dict[str, float] | None:
    """The means over the items of all batches and processes; None where one was stopped in between.

    Args:
        pieces: what a task yields.
        group: the processes.
        stopped: asked before each piece.
        task: derives its numbers from the means, where it does that.
    """
    sums: dict[str, Tensor | float] = {}
    items = 0
    halted = False
    while not (halted := stopped()):
        found = next(pieces, None)
        if found is None:
            break
        means, count = found
        for name, mean in means.items():
            wide = mean.detach() if isinstance(mean, Tensor) else float(mean)
            if isinstance(wide, Tensor) and wide.device.type != "mps":
                wide = wide.double()
            sums[name] = sums.get(name, 0.0) + wide * count
        items += count
    everyone = group.of_all(({name: float(value) for name, value in sums.items()}, items, halted))
    if any(each[2] for each in everyone):
        return None
    total = sum(each[1] for each in everyone)
    names = dict.fromkeys(name for each in everyone for name in each[0])
    measured = {name: sum(each[0].get(name, 0.0) for each in everyone) / total for name in names}
    derive: Callable[[dict[str, float]], dict[str, float]] = getattr(task, "derive", lambda means: means)
    return derive(measured) if measured else {}


class Evaluator:
    """Measures a run's weights and keeps the best.

    Args:
        stepper: holds the model.
        checkpoints: where the best weights go.
    """

    def __init__(self, stepper: Stepper, checkpoints: Checkpoints) -> None:
        self.stepper, self.checkpoints = stepper, checkpoints
        self.task, self.group = stepper.task, stepper.group
        self.best_step: int | None = None
        self.best: dict[str, float] = {}
        self.measured: dict[str, float] | None = None  # of this very step
        self.since_best = 0  # evaluations
        self.due = False  # whether this step's evaluation was stopped before its end

    @contextlib.contextmanager
    def evaluated_weights(self, step: int, stopped: Callable[[], bool]) -> Iterator[nn.Module]:
        """The model as it is evaluated and saved, in evaluation mode; the run's own weights come back afterwards.

        With `ema` it has the averaged weights, and with `gather` the statistics that batch norms have with these very
        weights. `differs` says whether there is either.
        """
        model = self.stepper.model
        self._share_buffers()
        average = self.stepper.average
        with average.applied() if average is not None else contextlib.nullcontext(), self._gathered(step, stopped):
            model.eval()
            try:
                with torch.no_grad(), self.stepper.autocast():
                    yield model
            finally:
                model.train()

    @contextlib.contextmanager
    def _gathered(self, step: int, stopped: Callable[[], bool]) -> Iterator[None]:
        """Statistics of batch norms over the training batches before this step; the run's own come back afterwards."""
        stepper, count = self.stepper, self.stepper.options.gather
        if not self._gathers or step == 0:
            yield
            return
        kept = [(buffer, buffer.detach().clone()) for buffer in stepper.model.buffers()]
        carries = carried(self.task)
        try:
            with stepper.autocast():
                batches = self._until_stopped(range(max(0, step - count), step), stopped)
                gather_statistics(stepper.model, batches, call=self.task.loss)
            self._share_buffers()
            yield
        finally:
            if carries is not None:
                self.task.load_state_dict(carries)  # type: ignore[attr-defined]
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)

    def _until_stopped(self, steps: range, stopped: Callable[[], bool]) -> Iterator[Batch]:
        for step in steps:
            yield self.stepper.batches.again(step)
            if self.group.count == 1 and stopped():  # of several processes, all must make the same calls
                return

    def _share_buffers(self) -> None:
        self.group.copy_from_main([buffer for buffer in self.stepper.model.buffers() if not buffer.is_sparse])

    @property
    def _gathers(self) -> bool:
        return self.stepper.options.gather > 0 and any(is_batch_norm(each) for each in self.stepper.model.modules())

    @property
    def differs(self) -> bool:
        """Whether what is evaluated is something else than the run's weights, and is kept beside them."""
        return self.stepper.average is not None or self._gathers

    def evaluate(self, step: int, stopped: Callable[[], bool], write: Callable[[Callable[[], None]], None]) -> bool:
        """Measure, and keep the weights where they are the best; returns whether it was not stopped."""
        shard = Shard(self.group.rank, self.group.count)
        with self.evaluated_weights(step, stopped) as model:
            measured = measure(iter(self.task.evaluate(model, step, shard)), self.group, stopped, task=self.task)
            weights = _copied(self.stepper.sharing.model_state()) if self.differs and measured is not None else None
        self.due = measured is None
        if measured is None:
            return False
        self.measured = measured
        value = measured[self.task.metric]
        sign = 1 if self.task.higher_is_better else -1
        better = math.isfinite(value) and (self.best_step is None or sign * value > sign * self.best[self.task.metric])
        if better:
            self.best_step, self.best, self.since_best = step, measured, 0
            sharing = self.stepper.sharing
            optimizer = sharing.optimizer_state(self.stepper.optimizer)
            state: dict[str, Any] = {"model": sharing.model_state(), "optimizer": optimizer}
            if weights is not None:
                state["weights"] = weights
            if self.stepper.average is not None:
                state["average"] = self.stepper.average.values
            if self.group.main:
                write(lambda: self.checkpoints.save_best(step, state))
        else:
            self.since_best += 1
        return True

    def schedule(self) -> bool:
        """Let the schedule know of the last evaluation; where it wants that, go back to the best weights."""
        if self.best_step is None or not self.stepper.pace.evaluated(self.since_best == 0):
            return False
        state = self.load_best()
        self.stepper.sharing.load_model(state["model"])
        if "optimizer" in state:
            self.stepper.sharing.load_optimizer(self.stepper.optimizer, state["optimizer"])
        if self.stepper.average is not None and "average" in state:
            self.stepper.average.load(state["average"])
        return True

    def load_best(self) -> dict[str, Any]:
        """The best weights, on all processes."""
        assert self.best_step is not None
        best = self.checkpoints.load_best(self.best_step) if self.group.main else None
        state: dict[str, Any] = self.group.from_main(best)
        return state

    def test(self, stopped: Callable[[], bool]) -> dict[str, float] | None:
        """Give the model the best weights for good, and measure those; None where it was stopped."""
        model = self.stepper.model
        if self.best_step is not None:
            best = self.load_best()
            self.stepper.sharing.load_model(best.get("weights", best["model"]))
        elif self.stepper.average is not None:
            self.stepper.average.applied().__enter__()
        model.eval()
        with torch.no_grad(), self.stepper.autocast():
            pieces = iter(self.task.test(model, Shard(self.group.rank, self.group.count)))
            return measure(pieces, self.group, stopped, task=self.task)

    def enough(self, until: float | None, patience: int | None) -> bool:
        """Whether this step's weights are as good as was asked for, or have not got better for long enough."""
        if self.measured is None:
            return False
        value = self.measured[self.task.metric]
        if until is not None and (value >= until if self.task.higher_is_better else value <= until):
            return True
        return patience is not None and self.since_best >= patience

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: getattr(self, name) for name in ("best_step", "best", "measured", "since_best", "due")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint, where numbers may have had other names."""
        names: dict[str, str] = getattr(self.task, "renamed", {})
        for key in ("best", "measured"):
            numbers = state[key]
            setattr(self, key, numbers and {names.get(name, name): value for name, value in numbers.items()})
        self.best_step, self.since_best, self.due = state["best_step"], state["since_best"], state.get("due", False)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
