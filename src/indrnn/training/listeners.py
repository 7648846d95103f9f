"""Events of a run and their listeners: progress, TensorBoard, Weights & Biases, curve.png."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..figures import draw_run
from .folder import RunFolder, finite

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .options import Training
    from .run import Result
    from .task import Task


@dataclass(frozen=True)
class Start:
    """A run starts or resumes."""

    folder: Path | None
    """Folder of the run; None for one that writes nothing."""
    step: int
    """Number of steps done before."""
    steps: int
    metric: str
    higher_is_better: bool
    model: nn.Module
    config: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A training step was completed."""

    step: int
    steps: int
    lr: float
    loss: Tensor | float
    """Loss, on the device: reading it waits for the step to be computed."""
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """An evaluation was completed."""

    step: int
    steps: int
    lr: float
    train_loss: float
    """Mean loss since the evaluation before."""
    gradient_norm: float
    measured: dict[str, float]
    best_step: int | None
    """Step of the best evaluation so far, which may be this one."""
    best: dict[str, float]
    """Metrics of the best evaluation so far."""
    seconds: float

    @property
    def numbers(self) -> dict[str, float]:
        """All scalars to log."""
        means = {"lr": self.lr, "train_loss": self.train_loss, "gradient_norm": self.gradient_norm}
        return {**means, **self.measured, "seconds": round(self.seconds, 3)}


class Listener:
    """Base class of listeners to a run's events, in its main process. All methods are optional.

    A listener that raises gets no further events, and the run goes on.
    """

    def on_start(self, event: Start) -> None:
        """Called when a run starts or resumes."""

    def on_step(self, event: Step) -> None:
        """Called after each step."""

    def on_evaluation(self, event: Evaluation) -> None:
        """Called after each evaluation."""

    def on_note(self, text: str) -> None:
        """Called with a message for the user."""

    def on_end(self, result: Result) -> None:
        """Called when the run is finished or stopped."""


class Listeners(list[Listener]):
    """Listeners of a run, whose errors do not end it."""

    def __call__(self, name: str, event: Any) -> None:
        """Call the method of this name on each listener."""
        for listener in self.copy():
            try:
                getattr(listener, name)(event)
            except Exception as error:
                self.remove(listener)
                problem = str(error) or type(error).__name__
                self("on_note", f"{type(listener).__name__.lstrip('_')} is told nothing more: {problem}")
                if isinstance(listener, _Printer):  # whoever would have shown that
                    with contextlib.suppress(Exception):
                        print(f"indrnn: the output ended ({problem}); the run goes on", file=sys.stderr)


class _TensorBoard(Listener):
    """Scalars for TensorBoard, in the run's folder."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = partial(SummaryWriter, str(folder.path / "tensorboard"))

    def on_start(self, event: Start) -> None:
        self._writer: Any = self._open(purge_step=event.step)

    def on_evaluation(self, event: Evaluation) -> None:
        for name, value in finite(event.numbers).items():
            if value is not None:
                self._writer.add_scalar(name, value, event.step)

    def on_end(self, result: Result) -> None:
        self._writer.close()


class _WandB(Listener):
    """Scalars for Weights & Biases, configured by its environment variables; WANDB_MODE=offline keeps them local."""

    def __init__(self, folder: RunFolder) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        self._open = partial(wandb.init, name=folder.path.name)

    def on_start(self, event: Start) -> None:
        self._run: Any = self._open(project=os.environ.get("WANDB_PROJECT", "indrnn"), config=event.config)

    def on_evaluation(self, event: Evaluation) -> None:
        self._run.log(finite(event.numbers), step=event.step)

    def on_end(self, result: Result) -> None:
        self._run.finish(exit_code=0 if result.finished else 1)


class _Curve(Listener):
    """Draws curve.png at the end: the metric over the steps, if it was evaluated more than once."""

    def __init__(self, folder: RunFolder, task: Task) -> None:
        self.folder, self.task = folder, task

    def on_end(self, result: Result) -> None:
        folder, task = self.folder, self.task
        try:
            if result.finished and len(lines := folder.read_metrics()) > 1:
                draw_run(folder.picture, lines, task.metric, higher_is_better=task.higher_is_better)
        except OSError as error:
            raise RuntimeError(f"{folder.picture} cannot be written: {error.strerror or error}") from None


def file_listeners(folder: RunFolder, task: Task, options: Training, tell: Listeners) -> list[Listener]:
    """The listeners that write into a run's folder, or to Weights & Biases, as the options say."""
    listeners: list[Listener] = []
    if options.tensorboard:
        with contextlib.suppress(ImportError):
            listeners.append(_TensorBoard(folder))
    if options.wandb:
        try:
            listeners.append(_WandB(folder))
        except ImportError:
            tell("on_note", "nothing is logged to Weights & Biases: pip install 'indrnn[wandb]'")
    if options.curve:
        listeners.append(_Curve(folder, task))
    return listeners


class _Printer(Listener):
    """Prints messages, and a line for each evaluation."""

    def on_start(self, event: Start) -> None:
        self._metric = event.metric

    def on_note(self, text: str) -> None:
        print(text, flush=True)

    def on_evaluation(self, event: Evaluation) -> None:
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in event.measured.items())
        line = f"step {event.step}/{event.steps}  loss {event.train_loss:.4g}  {numbers}"
        if event.best_step is not None and event.best_step != event.step:
            line += f"  best {self._metric} {event.best[self._metric]:.4g} at step {event.best_step}"
        self.on_note(line)


class Lines(_Printer):
    """Prints lines of progress between those of evaluations, so many seconds apart; for files and pipes."""

    def __init__(self, every: float = 30.0) -> None:
        self.every = every
        # Times and steps of the latest lines: the rate is over these alone, so a pause does not spoil it for good
        self._printed: deque[tuple[float, int]] = deque(maxlen=20)

    def on_start(self, event: Start) -> None:
        """Forget an earlier run."""
        super().on_start(event)
        self._printed.clear()

    def on_step(self, event: Step) -> None:
        """Print progress, unless the last line is less than `every` seconds old."""
        now = time.monotonic()
        if event.step == event.steps or (self._printed and now - self._printed[-1][0] < self.every):
            return
        line = f"step {event.step}/{event.steps}  loss {float(event.loss):.4g}"
        if self._printed:
            start, first = self._printed[0]
            rate = (event.step - first) / max(now - start, 1e-9)
            line += f"  {rate:.3g} steps/s  {(event.steps - event.step) / rate / 60:.0f} min left"
        self._printed.append((now, event.step))
        self.on_note(line)


class _Bar(_Printer):
    """A progress bar, with the time left, below the lines of evaluations."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console, self._updated = Console(), 0.0
        columns = BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
        self._progress = Progress(*columns, TextColumn("left"), console=self._console, transient=True)

    def on_start(self, event: Start) -> None:
        super().on_start(event)
        self._progress.start()
        self._task = self._progress.add_task("", total=event.steps, completed=event.step)

    def on_note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_step(self, event: Step) -> None:
        if event.step == event.steps or time.monotonic() - self._updated > 0.2:  # seconds
            self._updated = time.monotonic()
            self._progress.update(self._task, completed=event.step, description=f"loss {float(event.loss):.4g}")

    def on_end(self, result: Result) -> None:
        self._progress.stop()


def progress() -> Listener:
    """A bar in a terminal if rich is installed, else lines."""
    if sys.stdout is not None and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            return _Bar()
    return Lines()
