"""Evaluation: a run's best weights, metrics averaged over batches and processes, and a run's progress by them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from ..saving import load_module, new_module
from .checkpoint import BrokenCheckpointError, load
from .folder import RunFolder
from .options import Training
from .parallel import SINGLE, Processes, choose_device
from .task import Measured, Shard, Task
from .update import autocast


def is_finished(folder: RunFolder) -> bool:
    """Whether a run's saved weights belong to its last checkpoint, rather than to an end before it was resumed."""
    if not (folder.result.exists() and folder.weights.exists()):
        return False
    header, _ = folder.checkpoints.newest(header_only=True)
    return header is None or bool(header["step"] == folder.read_json(folder.result)["steps"])


def best_model(folder: RunFolder) -> tuple[nn.Module, str]:
    """A run's model with its best weights, in evaluation mode, and which they are; see `load_best`."""
    if not folder.config.exists():
        return load_module(folder.path), "the saved weights"
    if is_finished(folder):
        return load_module(folder.path), "the finished run's weights"
    model = new_module(folder.path)
    step = load_best(model, folder)
    return model.eval(), f"the best weights so far, of step {step} (the run is not finished)"


def load_best(model: nn.Module, folder: RunFolder) -> int | None:
    """Load a run's best weights into a model, and return their step; a `ValueError` if there are none to be read."""
    if is_finished(folder):
        from safetensors.torch import load_model

        load_model(model, folder.weights)
        return folder.read_json(folder.result)["best_step"]  # type: ignore[no-any-return]
    header, problems = folder.checkpoints.newest(header_only=True)
    if header is None:
        raise ValueError("; ".join(problems.values()) or f"{folder.path} holds no weights and no checkpoint")
    step: int | None = header["best_step"]
    if step is None:
        raise ValueError(f"{folder.path} holds no weights and no checkpoint with an evaluation yet")
    try:
        best = load(folder.checkpoints.best(step))
    except (BrokenCheckpointError, OSError) as error:
        raise ValueError(f"the best weights so far cannot be read: {error}") from None
    model.load_state_dict(best.get("weights", best["model"]))
    return step


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
    where = choose_device(device)
    model.to(where).eval()
    precision = folder.read_json(folder.config)["training"]["precision"]
    with torch.no_grad(), autocast(precision, where):
        test = measure(task.test(model, Shard()), task=task)
        return test or measure(task.evaluate(model, 0, Shard()), task=task) or {}


def measure(
    pieces: Iterable[Measured],
    group: Processes = SINGLE,
    stopped: Callable[[], bool] = lambda: False,
    *,
    task: Task | None = None,
) -> dict[str, float] | None:
    """Average metrics over the items of all batches and processes; None if any process was stopped before the end.

    `stopped` is asked before each piece. The `derive` of `task`, if any, is applied to the means.
    """
    pieces = iter(pieces)
    sums: dict[str, Tensor | float] = {}
    items = 0
    while not (halted := stopped()) and (piece := next(pieces, None)) is not None:
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


@dataclass
class Progress:
    """How far a run is, and how good its best and its last evaluation; part of its checkpoints."""

    step: int = 0
    seconds: float = 0.0
    best_step: int | None = None
    best: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    measured_step: int | None = None
    since_best: int = 0  # evaluations
    due: bool = False  # a last evaluation was stopped before its end, and is to be repeated

    def record(self, measured: dict[str, float], task: Task) -> bool:
        """Record an evaluation of this step's weights; returns whether they are the best so far."""
        self.measured, self.measured_step = measured, self.step
        value, sign = measured[task.metric], 1 if task.higher_is_better else -1
        if math.isfinite(value) and (self.best_step is None or sign * value > sign * self.best[task.metric]):
            self.best_step, self.best, self.since_best = self.step, measured, 0
            return True
        self.since_best += 1
        return False

    def enough(self, task: Task, options: Training) -> bool:
        """Whether to stop: this step's evaluation reaches `until`, or `patience` evaluations brought no new best."""
        if self.measured_step != self.step:
            return False
        value, until = self.measured[task.metric], options.until
        if until is not None and (value >= until if task.higher_is_better else value <= until):
            return True
        return options.patience is not None and self.since_best >= options.patience


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the mode of every submodule, training or evaluation, on exit, also after an error."""
    training = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
