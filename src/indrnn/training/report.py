"""What a run shows while it goes on."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self


class Report(Protocol):
    """Where a run tells of itself."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End."""

    def say(self, text: str) -> None:
        """Say something worth a line."""

    def progress(self, step: int, steps: int, text: str) -> None:
        """Show how far it is."""


class Silent:
    """Says nothing: for the processes beside the main one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def say(self, text: str) -> None:
        """Nothing."""

    def progress(self, step: int, steps: int, text: str) -> None:
        """Nothing."""


class Lines(Silent):
    """A line now and then: for files and pipes.

    Args:
        every: seconds between two lines of progress.
    """

    def __init__(self, every: float = 30.0) -> None:
        self.every, self._told = every, -float("inf")
        self._began: tuple[float, int] | None = None

    def say(self, text: str) -> None:
        """Print it."""
        print(text, flush=True)

    def progress(self, step: int, steps: int, text: str) -> None:
        """Print it, unless the last one was a moment ago."""
        now = time.monotonic()
        self._began = self._began or (now, step)
        if step == steps or now - self._told >= self.every:
            self._told = now
            taken = step - self._began[1]
            minutes = (now - self._began[0]) / max(1, taken) * (steps - step) / 60
            left = f"  {minutes:.0f} min left" if taken and step < steps else ""
            print(f"step {step}/{steps}  {text}{left}", flush=True)


class Bar(Silent):
    """A progress bar, with the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console()
        columns: list[Any] = [BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}")]
        columns += [TimeRemainingColumn(), TextColumn("left")]
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task: Any = None
        self._told = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print it above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def progress(self, step: int, steps: int, text: str) -> None:
        """Move the bar, a few times a second."""
        if self._task is None:
            self._task = self._progress.add_task("", total=steps, completed=step)
        if step == steps or time.monotonic() - self._told > 0.1:
            self._told = time.monotonic()
            self._progress.update(self._task, completed=step, total=steps, description=text)


def default_report() -> Report:
    """A bar in a terminal where rich is installed, else lines."""
    if sys.stdout.isatty():
        try:
            return Bar()
        except ImportError:
            pass
    return Lines()
