"""Events of a run and their listeners: progress, TensorBoard, Weights & Biases, curve.png."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .folder import RunFolder, finite

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .options import Training
    from .run import Result


@dataclass(frozen=True)
class Start:
    """A run starts or resumes."""

    folder: Path | None
    """Folder of the run; None for one that writes nothing."""
    step: int
    """Number of steps that are behind it."""
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


class Listeners:
    """Passes events to listeners, and keeps their errors from ending the run."""

    def __init__(self, listeners: list[Listener]) -> None:
        self.listeners = listeners

    def __call__(self, name: str, event: Any) -> None:
        """Call the method of this name on each listener."""
        for listener in list(self.listeners):
            try:
                getattr(listener, name)(event)
            except Exception as error:
                self.listeners.remove(listener)
                problem = str(error) or type(error).__name__
                self("on_note", f"{type(listener).__name__} is told nothing more: {problem}")
                if isinstance(listener, _Printer):  # whoever would have shown that
                    with contextlib.suppress(Exception):
                        print(f"indrnn: the output ended ({problem}); the run goes on", file=sys.stderr)


class TensorBoard(Listener):
    """Scalars for TensorBoard, in the run's folder."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make: Any = SummaryWriter
        self._writer: Any = None
        self.folder = folder

    def on_start(self, event: Start) -> None:
        """Open the file."""
        self._writer = self._make(str(self.folder.path / "tensorboard"), purge_step=event.step)

    def on_evaluation(self, event: Evaluation) -> None:
        """Write the scalars."""
        for name, value in finite(event.numbers).items():
            if value is not None:
                self._writer.add_scalar(name, value, event.step)

    def on_end(self, result: Result) -> None:
        """Close the file."""
        self._writer.close()


class WandB(Listener):
    """Scalars for Weights & Biases, configured by its environment variables; WANDB_MODE=offline keeps them local."""

    def __init__(self, folder: RunFolder) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        self.folder = folder
        self._wandb: Any = wandb
        self._run: Any = None

    def on_start(self, event: Start) -> None:
        """Open the run."""
        name = self.folder.path.name
        self._run = self._wandb.init(project=os.environ.get("WANDB_PROJECT", "indrnn"), name=name, config=event.config)

    def on_evaluation(self, event: Evaluation) -> None:
        """Log the scalars."""
        self._run.log(finite(event.numbers), step=event.step)

    def on_end(self, result: Result) -> None:
        """Close the run."""
        self._run.finish(exit_code=0 if result.finished else 1)


class Curve(Listener):
    """Draws curve.png at the end: the metric over the steps."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._start: Start | None = None

    def on_start(self, event: Start) -> None:
        """Keep the name of the metric."""
        self._start = event

    def on_end(self, result: Result) -> None:
        """Draw it."""
        if not result.finished or self._start is None:
            return
        from ..figures import draw_run

        metric, direction = self._start.metric, self._start.higher_is_better
        try:
            draw_run(self.folder.picture, self.folder.read_metrics(), metric, higher_is_better=direction)
        except ImportError:
            raise RuntimeError("no picture was drawn: that needs matplotlib (pip install 'indrnn[report]')") from None
        except OSError as error:
            raise RuntimeError(f"{self.folder.picture} cannot be written: {error.strerror or error}") from None


def file_listeners(folder: RunFolder, options: Training, tell: Listeners) -> list[Listener]:
    """The listeners that write into a run's folder, or to Weights & Biases, as the options say."""
    listeners: list[Listener] = []
    if options.tensorboard:
        with contextlib.suppress(ImportError):
            listeners.append(TensorBoard(folder))
    if options.wandb:
        try:
            listeners.append(WandB(folder))
        except ImportError:
            tell("on_note", "nothing is logged to Weights & Biases: pip install 'indrnn[wandb]'")
    return [*listeners, *([Curve(folder)] if options.curve else [])]


def format_evaluation(event: Evaluation, metric: str) -> str:
    """Format an evaluation as a line."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in event.measured.items())
    best = ""
    if event.best_step is not None and event.best_step != event.step:
        best = f"  best {metric} {event.best[metric]:.4g} at step {event.best_step}"
    return f"step {event.step}/{event.steps}  loss {event.train_loss:.4g}  {numbers}{best}"


class _Printer(Listener):
    """Prints messages, and a line for each evaluation."""

    _metric = ""

    def on_start(self, event: Start) -> None:
        self._metric = event.metric

    def on_note(self, text: str) -> None:
        print(text, flush=True)

    def on_evaluation(self, event: Evaluation) -> None:
        self.on_note(format_evaluation(event, self._metric))


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
        print(line, flush=True)


class Bar(_Printer):
    """A progress bar, with the time left, below the lines of evaluations."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console()
        columns: list[Any] = [BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}")]
        columns += [TimeRemainingColumn(), TextColumn("left")]
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task: Any = None
        self._updated = 0.0

    def on_start(self, event: Start) -> None:
        """Show the bar."""
        super().on_start(event)
        self._progress.start()
        self._task = self._progress.add_task("", total=event.steps, completed=event.step)

    def on_note(self, text: str) -> None:
        """Print it above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_step(self, event: Step) -> None:
        """Move the bar, a few times a second."""
        if event.step == event.steps or time.monotonic() - self._updated > 0.2:
            self._updated = time.monotonic()
            self._progress.update(self._task, completed=event.step, description=f"loss {float(event.loss):.4g}")

    def on_end(self, result: Result) -> None:
        """Remove the bar."""
        self._progress.stop()


def progress() -> Listener:
    """`Bar` in a terminal if rich is installed, else `Lines`."""
    if sys.stdout is not None and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            return Bar()
    return Lines()
