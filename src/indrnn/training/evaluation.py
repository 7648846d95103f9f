"""Evaluation: metrics averaged over processes, stops between batches, and saving and loading of the best weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..saving import load_module, load_tokeniser, new_module
from .checkpoint import BrokenCheckpointError, Checkpoints
from .folder import RunFolder
from .processes import Processes, choose_device
from .task import Measured, Shard, Task
from .update import Stepper, autocast


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
        found = measure(task.test(model, Shard()), Processes(), task=task)
        return found or measure(task.evaluate(model, 0, Shard()), Processes(), task=task) or {}


def is_finished(folder: RunFolder) -> bool:
    """Whether a run's saved weights belong to its last checkpoint, rather than to an end before it was resumed."""
    if not (folder.result.exists() and folder.weights.exists()):
        return False
    state, _ = folder.checkpoints.find()
    return state is None or bool(state["step"] == folder.read_json(folder.result)["steps"])


def best_model(folder: RunFolder) -> tuple[nn.Module, str]:
    """A run's model with its best weights, in evaluation mode, and which they are; nothing in the folder changes."""
    if not folder.config.exists() or is_finished(folder):
        which = "the finished run's weights" if folder.config.exists() else "the saved weights"
        return load_module(folder.path), which
    model = new_module(folder.path)
    step, _ = load_best(model, folder)
    if hasattr(model, "tokeniser"):
        model.tokeniser = load_tokeniser(folder.path)  # type: ignore[assignment]
    return model.eval(), f"the best weights so far, of step {step} (the run is not finished)"


def load_best(model: nn.Module, folder: RunFolder) -> tuple[int | None, bool]:
    """Load the best weights of a run into a model, without changing the run's folder.

    Returns:
        The step of those weights, and whether the run is finished.
    """
    if is_finished(folder):
        from safetensors.torch import load_model

        load_model(model, folder.weights)
        return folder.read_json(folder.result)["best_step"], True
    state, troubles = folder.checkpoints.find()
    if state is None:
        raise ValueError("; ".join(troubles) or f"{folder.path} holds no weights and no checkpoint")
    if state["best_step"] is None:
        raise ValueError(f"{folder.path} holds no weights and no checkpoint with an evaluation yet")
    try:
        best = folder.checkpoints.load_best(state["best_step"])
    except (BrokenCheckpointError, OSError) as error:
        raise ValueError(f"the best weights so far cannot be read: {error}") from None
    model.load_state_dict(best.get("weights", best["model"]))
    return state["best_step"], False


class Evaluator:
    """Evaluates a run's weights and saves the best.

    Args:
        stepper: holds the model.
        checkpoints: where the best weights are saved.
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
        """The model as evaluated and saved, in evaluation mode; the training weights are restored on exit.

        With `ema` it has the averaged weights, and with `gather` batch-norm statistics recomputed for these weights.
        `differs` tells whether either applies.
        """
        model = self.stepper.model
        self.stepper.share_buffers()
        average = self.stepper.average
        with average.applied() if average is not None else contextlib.nullcontext(), self._gathered(step, stopped):
            model.eval()
            try:
                with torch.no_grad(), self.stepper.autocast():
                    yield model
            finally:
                self.stepper.train(step)

    @contextlib.contextmanager
    def _gathered(self, step: int, stopped: Callable[[], bool]) -> Iterator[None]:
        """Use batch-norm statistics of the training batches before this step; the model's own are restored on exit."""
        if not self._gathers(step) or step == 0:
            yield
            return
        kept = [(buffer, buffer.detach().clone()) for buffer in self.stepper.model.buffers()]
        try:
            self.stepper.gather(step, stopped)
            yield
        finally:
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)

    def _gathers(self, step: int) -> bool:
        stepper = self.stepper
        return stepper.options.gather > 0 and step <= stepper.frozen_from and bool(stepper.norms)

    def differs(self, step: int) -> bool:
        """Whether the evaluated weights differ from the training weights, and are saved in addition to them."""
        return self.stepper.average is not None or self._gathers(step)

    def evaluate(self, step: int, stopped: Callable[[], bool], write: Callable[[Callable[[], None]], None]) -> bool:
        """Evaluate, and save the weights if they are the best so far; returns False if it was stopped."""
        shard = Shard(self.group.rank, self.group.count)
        with self.evaluated_weights(step, stopped) as model:
            measured = measure(iter(self.task.evaluate(model, step, shard)), self.group, stopped, task=self.task)
            weights = (
                _copied(self.stepper.sharing.model_state()) if self.differs(step) and measured is not None else None
            )
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
        """Report the last evaluation to the schedule; restore the best weights, and return True, if it asks to."""
        if self.best_step is None or not self.stepper.schedule.evaluated(self.since_best == 0):
            return False
        state = self.load_best()
        self.stepper.sharing.load_model(state["model"])
        if "optimizer" in state:
            self.stepper.sharing.load_optimizer(self.stepper.optimizer, state["optimizer"])
        if self.stepper.average is not None and "average" in state:
            self.stepper.average.load(state["average"])
        return True

    def load_best(self) -> dict[str, Any]:
        """Read the best weights, for all processes."""
        assert self.best_step is not None
        best = self.checkpoints.load_best(self.best_step) if self.group.main else None
        state: dict[str, Any] = self.group.from_main(best)
        return state

    def test(self, stopped: Callable[[], bool]) -> dict[str, float] | None:
        """Load the best weights into the model for good, and test them; None if it was stopped."""
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
        """Whether to stop: this step's evaluation reaches `until`, or `patience` evaluations brought no new best."""
        if self.measured is None:
            return False
        value = self.measured[self.task.metric]
        if until is not None and (value >= until if self.task.higher_is_better else value <= until):
            return True
        return patience is not None and self.since_best >= patience

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {name: getattr(self, name) for name in ("best_step", "best", "measured", "since_best", "due")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from a checkpoint; metrics that the task has renamed since get their present names."""
        names: dict[str, str] = getattr(self.task, "renamed", {})
        for key in ("best", "measured"):
            numbers = state[key]
            setattr(self, key, numbers and {names.get(name, name): value for name, value in numbers.items()})
        self.best_step, self.since_best, self.due = state["best_step"], state["since_best"], state.get("due", False)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
