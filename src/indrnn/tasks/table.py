"""How runs of a recipe are summed up, in a table and a figure of `indrnn report`; and the files of an analysis."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..figures import need_matplotlib, save_figure
from ..files import write_atomically
from ..training.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summary = dict[str, Any]
"""Numbers and settings of a run that a report keeps."""


def _own_row(runs: list[Summary]) -> list[object]:
    first = runs[0]
    best = mean([run["best"][1] for run in runs], "{:.4g}")
    tests = [run["test"] for run in runs]
    names = [name for name in tests[0] if all(name in test for test in tests)] if all(tests) else []
    test = ", ".join(f"{name} {mean([numbers[name] for numbers in tests], '{:.4g}')}" for name in names)
    return [first["name"], steps_of(first), time_of(first), f"{first['metric']} {best}", test, command_of(first)]


@dataclass(frozen=True)
class Table:
    """How runs of one kind are summed up; the defaults know the metric alone."""

    name: str
    """Name of the folder of results, and of the figure."""
    metric: str
    """Metric of the evaluations."""
    higher_is_better: bool
    head: str = "run, steps, time, best evaluation, test, command"
    """Names of the table's columns, separated by commas."""
    row: Callable[[list[Summary]], list[object]] = _own_row
    """Row of runs that differ only in their seeds."""
    order: Callable[[Summary], tuple[Any, ...]] = lambda run: (
        run.get("task", ""),
        str(run["recipe"]),
        json.dumps(run["options"]),
        run["lr"],
    )
    """Key that rows are sorted by; with the recipe and its training, what runs of one row have in common."""
    curve: Callable[[Summary], tuple[str, str, list[Any]]] = lambda run: (run["metric"], run["name"], run["curve"])
    """Panel, name and points of a run in the figure."""
    summary: Callable[[Summary], Summary] = lambda run: run
    """Summary that is kept, of the numbers common to all runs and the recipe's options."""
    without_validation: str | None = None
    """Metric of runs that hold no data back."""
    picture: dict[str, Any] = field(default_factory=dict)
    """Options of `figures.draw_panels` that are not the usual ones."""


def own_table(line: Summary) -> Table:
    """The table of a user's own task, whose metric is read from a line of its measurements."""
    measured = [name for name in line if name not in ("step", "lr", "train_loss", "gradient_norm", "seconds")]
    metric = next((name for name in measured if name.endswith("accuracy")), measured[0])
    return Table("own", metric, metric.endswith("accuracy"), order=lambda run: (run["name"],))


def mean(values: list[float], form: str, unit: str = "") -> str:
    """Format a number; for several, their mean ± standard deviation and count."""
    if len(values) == 1:
        return form.format(values[0]) + unit
    middle, deviation = statistics.fmean(values), statistics.stdev(values)
    return f"{form.format(middle)} ± {form.format(deviation)}{unit} (n = {len(values)})"


def markdown(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; `head` holds comma-separated names."""
    names = head.split(", ")
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (names, ["---"] * len(names), *rows))


def command_of(run: Summary) -> str:
    """The command of a run, and those that resumed it for more steps or with other options."""

    def options(command: str) -> str:
        return re.sub(r" --resume( (?!-)\S+)?| --out \S+", "", command)

    later = [command for command in run.get("resumed", []) if options(command) != options(run["command"])]
    return ", then ".join(f"`{command}`" for command in (run["command"], *later))


def time_of(run: Summary) -> str:
    """Duration of a run, in minutes."""
    return f"{run['seconds'] / 60:.0f} min"


def steps_of(run: Summary) -> str:
    """Number of steps taken, and, if the run is unfinished, the number planned."""
    return f"{run['steps']:,}" + ("" if run["finished"] else f" of {run['planned_steps']:,}")


def accuracy_columns(runs: list[Summary]) -> list[object]:
    """Best validation accuracy and test accuracy, in percent."""
    test = "not finished"
    if all(run["finished"] for run in runs):
        test = mean([100 * run["test"]["accuracy"] for run in runs], "{:.2f}", " %") if runs[0]["test"] else ""
    return [mean([100 * run["best"][1] for run in runs], "{:.2f}", " %"), test]


# ---- files of an analysis


def results_folder(run: Path, out: Path | None = None) -> Path:
    """The output folder of an analysis: `out`, or results/insight/NAME for a run called NAME."""
    return out or Path("results/insight") / run.resolve().name


class Results:
    """The files of one analysis, named after it; raises if they are there already and may not be replaced."""

    def __init__(self, folder: Path, name: str, *, overwrite: bool = False) -> None:
        self.folder, self.name = folder, name
        there = [path.name for path in map(self.path, ("json", "md", "png")) if path.exists()]
        if there and not overwrite:
            raise ValueError(
                f"out: {folder} holds {', '.join(there)} already; replace them with overwrite (--overwrite)"
            )

    def path(self, suffix: str) -> Path:
        """The file with this suffix."""
        return self.folder / f"{self.name}.{suffix}"

    def prepare(self) -> None:
        """Create the folder and check that all can be written, before any work is done."""
        need_matplotlib()
        RunFolder(self.folder).prepare()

    def write(self, numbers: Any, figure: Figure, head: str = "", rows: Iterable[Iterable[object]] = ()) -> str:
        """Write numbers as JSON, a figure as PNG and, with a `head`, a table as `markdown`; returns the table."""
        table = markdown(head, rows) if head else ""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path("json"), (json.dumps(numbers, ensure_ascii=False) + "\n").encode())
        save_figure(figure, self.path("png"))
        if table:
            write_atomically(self.path("md"), (table + "\n").encode())
        return table

    @property
    def drawn(self) -> str:
        """Line that names the figure."""
        return f"drawn in {self.path('png')}"
