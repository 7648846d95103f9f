"""Evaluation: metrics averaged over processes, stops between batches, and the choice of the best weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .best import load_best
from .folder import RunFolder
from .parallel import Processes, choose_device
from .task import Measured, Shard, Task
from .update import Updater, autocast


def evaluate(model: nn.Module, task: Task, run: str | Path, *, device: str = "auto") -> dict[str, float]:
    """Evaluate the best weights of a run in its training precision, by `Task.test`, else by `Task.evaluate`.

    Args:
        model: built as for the run; the best weights are loaded into it.
        task: the run's task.
        run: the run's folder.
        device: device to compute on; on a CPU, float32 replaces fp16.
    """
    folder = RunFolder(Path(run))
    load_best(model, folder)
    where = choose_device(device, Processes())
    model.to(where).eval()
    precision = folder.read_json(folder.config)["training"]["precision"]
    if precision == "fp16" and where.type == "cpu":
        precision = "float32"
    with torch.no_grad(), autocast(precision, where):
        metrics = measure(task.test(model, Shard()), Processes(), task=task)
        return metrics or measure(task.evaluate(model, 0, Shard()), Processes(), task=task) or {}


def measure(
    pieces: Iterator[Measured],
    group: Processes,
    stopped: Callable[[], bool] = lambda: False,
    *,
    task: Task | None = None,
) -> dict[str, float] | None:
    """Average metrics over the items of all batches and processes; None if any process was stopped before the end.

    Args:
        pieces: means and item counts, as a task yields them.
        group: the processes.
        stopped: called before each piece; whether to stop.
        task: its `derive`, if any, is applied to the means.
    """
    sums: dict[str, Tensor | float] = {}
    items = 0
    halted = False
    while not (halted := stopped()):
        piece = next(pieces, None)
        if piece is None:
            break
        means, count = piece
        for name, mean in means.items():
            wide = mean.detach() if isinstance(mean, Tensor) else float(mean)
            if isinstance(wide, Tensor) and wide.device.type != "mps":
                wide = wide.double()
            sums[name] = sums.get(name, 0.0) + wide * count
        items += count
    everyone = group.of_all(({name: float(value) for name, value in sums.items()}, items, halted))
    if any(halted for _, _, halted in everyone):
        return None
    total = sum(items for _, items, _ in everyone)
    names = dict.fromkeys(name for sums, _, _ in everyone for name in sums)
    measured = {name: sum(sums.get(name, 0.0) for sums, _, _ in everyone) / total for name in names}
    derive: Callable[[dict[str, float]], dict[str, float]] = getattr(task, "derive", lambda means: means)
    return derive(measured) if measured else {}


class BestWeights(Protocol):
    """Where the best weights of a run are kept: its checkpoints, or memory."""

    def save_best(self, step: int, state: dict[str, Any]) -> None:
        """Keep the best weights so far."""

    def load_best(self, step: int) -> dict[str, Any]:
        """Read them."""


class Evaluator:
    """Evaluates a run's weights and keeps the best.

    Args:
        updater: holds the model.
        kept: where the best weights are kept.
    """

    def __init__(self, updater: Updater, kept: BestWeights) -> None:
        self.updater, self.kept = updater, kept
        self.task, self.group, self.options = updater.task, updater.group, updater.options
        self.best_step: int | None = None
        self.best: dict[str, float] = {}
        self.measured: dict[str, float] = {}  # in the last evaluation
        self.measured_step: int | None = None
        self.since_best = 0  # evaluations
        self.due = False  # whether the last evaluation was stopped before its end

    def evaluate(self, step: int, stopped: Callable[[], bool]) -> bool:
        """Evaluate, and keep the weights if they are the best so far; returns False if it was stopped."""
        shard = Shard(self.group.rank, self.group.count)
        weights = None
        with self._evaluated_weights(step, stopped) as model:
            measured = measure(iter(self.task.evaluate(model, step, shard)), self.group, stopped, task=self.task)
            if measured is not None and (self.updater.average is not None or self._gathers(step)):
                weights = _copied(self.updater.parallel.model_state())  # not those that are trained
        self.due = measured is None
        if measured is None:
            return False
        self.measured, self.measured_step = measured, step
        if not self._is_better(measured):
            self.since_best += 1
            return True
        self.best_step, self.best, self.since_best = step, measured, 0
        state = self.updater.training_state()
        if weights is not None:
            state["weights"] = weights
        if self.group.main:
            self.kept.save_best(step, state)
        return True

    def _is_better(self, measured: dict[str, float]) -> bool:
        value = measured[self.task.metric]
        sign = 1 if self.task.higher_is_better else -1
        return math.isfinite(value) and (self.best_step is None or sign * value > sign * self.best[self.task.metric])

    @contextlib.contextmanager
    def _evaluated_weights(self, step: int, stopped: Callable[[], bool]) -> Iterator[nn.Module]:
        """The model as evaluated and saved, in evaluation mode; the training weights are restored on exit.

        With `ema` it has the averaged weights, and with `gather` batch-norm statistics recomputed for these weights.
        """
        updater = self.updater
        updater.parallel.share_buffers()
        with contextlib.ExitStack() as stack:
            if updater.average is not None:
                stack.enter_context(updater.average.applied())
            if step and self._gathers(step):
                stack.enter_context(_restored_buffers(updater.model))
                updater.gather(step, stopped)
            updater.model.eval()
            try:
                with torch.no_grad(), updater.autocast():
                    yield updater.model
            finally:
                updater.train_mode(step)

    def _gathers(self, step: int) -> bool:
        """Whether batch-norm statistics are recomputed at this step."""
        return self.options.gather > 0 and step <= self.updater.frozen_from and bool(self.updater.norms)

    def report_to_schedule(self) -> bool:
        """Report the last evaluation to the schedule; restore the best weights, and return True, if it asks to."""
        if self.best_step is None or not self.updater.schedule.evaluated(self.since_best == 0):
            return False
        self.updater.load_training_state(self._load_best(self.best_step))
        return True

    def _load_best(self, step: int) -> dict[str, Any]:
        """Read the best weights, for all processes."""
        state: dict[str, Any] = self.group.from_main(self.kept.load_best(step) if self.group.main else None)
        return state

    def enough(self, step: int) -> bool:
        """Whether to stop: this step's evaluation reaches `until`, or `patience` evaluations brought no new best."""
        until, patience = self.options.until, self.options.patience
        if self.measured_step != step:
            return False
        value = self.measured[self.task.metric]
        if until is not None and (value >= until if self.task.higher_is_better else value <= until):
            return True
        return patience is not None and self.since_best >= patience

    def test(self, stopped: Callable[[], bool]) -> dict[str, float] | None:
        """Load the best weights into the model for good, and test them; None if it was stopped."""
        updater = self.updater
        if self.best_step is not None:
            best = self._load_best(self.best_step)
            updater.parallel.load_model(best.get("weights", best["model"]))
        elif updater.average is not None:
            updater.average.apply()
        updater.model.eval()
        with torch.no_grad(), updater.autocast():
            pieces = iter(self.task.test(updater.model, Shard(self.group.rank, self.group.count)))
            return measure(pieces, self.group, stopped, task=self.task)

    _STATE = ("best_step", "best", "measured", "measured_step", "since_best", "due")

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {name: getattr(self, name) for name in self._STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from a checkpoint."""
        for name in self._STATE:
            setattr(self, name, state[name])


@contextlib.contextmanager
def _restored_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers on exit."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the mode of every submodule, training or evaluation, on exit, also after an error."""
    training = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
