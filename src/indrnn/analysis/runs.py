"""Runs as reports show them: read for a page, and summed up in a small JSON file each, a figure and a table."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..figures import draw_panels, need_matplotlib
from ..files import write_atomically
from ..saving import defaults, flat, to_json
from ..tasks.recipe import Answer, Description, Recipe
from ..tasks.rows import rows
from ..tasks.runs import Run, open_run
from ..tasks.table import Summary, Table, markdown, own_table
from .gradients import gradient_flow

_SOME = 1000  # items without --full
_BATCHES = 10  # of training, for gradient flow
_QUIET = ("type", "data_dir", "input_size", "sequence_length")  # places on a disk, and what a task says
_POINTS = 200  # of a curve: as many as a picture shows


@dataclass
class Reported:
    """A run as the page shows it. Strings are plain text: they are escaped on the page."""

    name: str
    description: Description
    config: dict[str, Any]  # content of config.json
    lines: list[dict[str, Any]]  # of metrics.jsonl
    result: dict[str, Any]  # content of result.json
    model: nn.Module | None = None  # with its best weights; None if there are none yet
    recipe: str | None = None  # name of its row; None for a run of `indrnn fit` or one that was started from Python
    paper: tuple[str, str] | None = None  # result that the paper reports, and its table or figure
    changed: list[tuple[str, str, str]] = field(default_factory=list)
    """Options that differ from the recipe's: name, value, and the recipe's value."""
    answers: list[Answer] = field(default_factory=list)
    gradients: dict[str, list[float]] | None = None
    gradients_note: str = "Not measured."  # the batches that gradients were measured on, or why they were not
    missing: list[str] = field(default_factory=list)  # sentences on what could not be shown, and why

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return bool(self.result) and bool(self.lines) and self.result.get("steps") == self.steps

    @property
    def steps(self) -> int:
        """Steps at the last evaluation."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def scores(self) -> dict[str, Any]:
        """Test scores; empty without a test."""
        return self.description.scores or self.result.get("test") or {}

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """A metric over the steps."""
        values = ((line["step"], line.get(metric)) for line in self.lines)
        return [(step, float(value)) for step, value in values if value is not None]


def described(run: Run, name: str = "") -> Reported:
    """A run by what it recorded, without its model, and what is measured with it; `name` is that on the page."""
    lines = run.folder.read_metrics()
    row = rows().get(str(run.recipe_name))
    description = run.recipe.describe(run.recorded.get("task"), run.path)
    if run.recipe_name is None and lines:
        table = own_table(lines[0])
        description = replace(description, metric=table.metric, higher_is_better=table.higher_is_better)
    reported = Reported(name, description, run.recorded, lines, run.result, recipe=row.name if row else None)
    if row and row.is_shown:
        reported.paper = row.value, row.paper.removesuffix(", quicker")
    if run.recipe_name:
        reported.changed = _changed(run.recipe, row.recipe if row else None)
    return reported


def read_run(path: Path, name: str, *, full: bool = False, data_dir: Path | None = None) -> Reported:
    """Read a run, with its `name` on the page, from its folder; nothing is downloaded.

    With `full`, all test data are predicted, and gradients are measured on ten batches in place of one.
    """
    run = open_run(path)
    reported = described(run, name)
    try:
        reported.model, _ = run.best
    except (OSError, ValueError) as error:  # of a run that has no weights yet
        reported.missing.append(str(error))
        return reported
    try:
        reported.answers = run.at(data_dir).answers(reported.model, None if full else _SOME, run)
    except (OSError, ValueError) as error:  # data that are not here, or are others now
        reported.missing.append(f"Answers are not shown: {error}.")
    try:
        if not run.at(data_dir).available():
            raise ValueError("the data are not here (--data-dir, INDRNN_DATA)")
        task: Any = run.task(data_dir)
        most = min(_BATCHES, getattr(task, "steps_per_epoch", _BATCHES))
        batches = most if full else min(1, most)
        reported.gradients = gradient_flow(reported.model, task, batches)
        rest = f"; {most} with --full" if batches < most else ""
        reported.gradients_note = f"Measured on {batches} training batch{'' if batches == 1 else 'es'}{rest}."
    except (OSError, ValueError, RuntimeError) as error:  # also of a network whose gradients cannot be taken
        reported.gradients_note = f"Not measured: {error}."
    return reported


def sizes(model: nn.Module, layers: dict[str, Tensor]) -> dict[str, str]:
    """The size of a model in words, with that of its recurrent layers if it has any."""
    size = {"recurrent layers": f"{len(layers)}", "neurons": f"{sum(map(len, layers.values())):,}"} if layers else {}
    return size | {"parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}"}


def _changed(recipe: Recipe, usual: Recipe | None) -> list[tuple[str, str, str]]:
    """Options that differ from the recipe of the run's name, or from the defaults if there is none."""
    here = flat(to_json(recipe))
    there = flat(to_json(usual) if usual is not None else defaults(recipe))
    return [
        (name.removeprefix("training."), _in_words(value), _in_words(there.get(name, "")))
        for name, value in here.items()
        if value != there.get(name) and name.split(".")[-1] not in (*_QUIET, *recipe.places)
    ]


def _in_words(value: object) -> str:
    """An option's value, formatted for readers."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value is None else str(value)


def table_of_run(path: Path) -> Table:
    """How a run is summed up: the table of its recipe, or of its own metric."""
    run = open_run(path)
    return run.recipe.table if hasattr(run.recipe, "table") else own_table(_lines(run)[0])


def _lines(run: Run) -> list[dict[str, Any]]:
    if lines := run.folder.read_metrics():
        return lines
    raise ValueError(f"runs must have an evaluation at least; {run.path} has none")


def summary(path: Path, table: Table) -> Summary:
    """The summary of a run."""
    run = Run(path)
    lines, config = _lines(run), run.recorded
    recipe = config.get("recipe") or {}
    finished = run.result.get("steps") == lines[-1]["step"]
    values = [(line["step"], line.get(table.metric, line.get(table.without_validation or ""))) for line in lines]
    curve = [(step, value) for step, value in values if value is not None]
    if not curve:
        raise ValueError(f"runs must have a finite {table.metric} at least once; {path} has none")
    common = {
        "name": f"{path.parent.name}-{path.name}" if re.fullmatch(r"seed-\d+", path.name) else path.name,
        "recipe": recipe.get("name"),
        "command": shlex.join(config["command"]),
        "resumed": [shlex.join(time["command"]) for time in config.get("resumed", [])],
        "started": config["started"],
        "options": {name: value for name, value in recipe.items() if name != "name"} or None,
        "lr": config["training"]["lr"],
        "schedule": config["training"]["schedule"],
        "seed": config["seed"],
        "threads": config["threads"],
        "steps": lines[-1]["step"],
        "planned_steps": config["training"]["steps"],
        "seconds": lines[-1]["seconds"],
        "finished": finished,
        "metric": table.metric,
        "best": (max if table.higher_is_better else min)(curve, key=lambda point: point[1]),
        "last": curve[-1],
        "test": run.result.get("test") if finished else None,
        "machine": config["machine"],
        "curve": curve[::-1][:: -(-len(curve) // _POINTS)][::-1],  # with the last
        "config": config,  # for the table to look at
    }
    if table.name == "own":
        common["asked"] = _settings_checksum(config)
    return {name: value for name, value in table.summary(common).items() if name != "config"}


def _settings_checksum(config: Summary) -> str:
    """A checksum of the settings of a run without a table, except its seed and the series drawn with it."""
    drawn = {"task": ("seed", "train", "validation"), "recipe": (), "estimator": ("random_state",)}
    parts = [{k: v for k, v in (config.get(part) or {}).items() if k not in names} for part, names in drawn.items()]
    text = json.dumps([*parts, config["training"]], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def kept(folder: Path) -> list[Summary]:
    """The summaries of runs in a folder of results."""
    contents = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return [run for run in contents if isinstance(run, dict) and "curve" in run]  # and not what else is there


def gather(table: Table, runs: Iterable[Path], out: Path, *, overwrite: bool = False) -> str:
    """Write a JSON summary of each run to a folder, plot all that are there, and return a table of them.

    `overwrite`: whether existing summaries of these runs, and the figure, may be replaced.
    """
    need_matplotlib()
    summaries = [(path, summary(path, table)) for path in runs]  # all are read before anything is written
    files = {path.name: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    targets: dict[str, Summary] = {}
    for path, run in summaries:
        longer = f"{path.resolve().parent.name}-{run['name']}"
        names = itertools.chain([run["name"], longer], (f"{longer}-{number}" for number in itertools.count(2)))
        for name in names:
            old = files.get(f"{name}.json", run)
            if f"{name}.json" not in targets and all(old[key] == run[key] for key in ("started", "seed")):
                break
        run["name"] = name
        targets[f"{name}.json"] = run
    figure = out / f"{table.name}.png"
    there = [name for name in (*targets, figure.name) if (out / name).exists()]
    if there and not overwrite:
        raise ValueError(f"out: {out} holds {', '.join(there)} already; replace them with overwrite (--overwrite)")
    out.mkdir(parents=True, exist_ok=True)
    for name, run in targets.items():
        write_atomically(out / name, (json.dumps(run, ensure_ascii=False) + "\n").encode())
    every = sorted(kept(out), key=table.order)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in every:
        panel, name, points = table.curve(run)
        curves = panels.setdefault(panel, {})
        curves[name if name not in curves else f"{name}, {run['name']}"] = points
    usual: dict[str, Any] = {"across": "training step", "up": table.metric, "logarithmic": not table.higher_is_better}
    draw_panels(figure, panels, **(usual | table.picture))
    return table_of(table, every)


def table_of(table: Table, runs: Iterable[Summary]) -> str:
    """A Markdown table of runs; runs that differ only in their seeds form one row."""
    groups: dict[str, list[Summary]] = {}
    for run in sorted(runs, key=table.order):
        settings = run.get("asked") if table.name == "own" else table.order(run)
        key = json.dumps([settings, run["recipe"], run["planned_steps"], run["schedule"]])
        groups.setdefault(key, []).append(run)
    rows = []
    for group in groups.values():
        one = len({run["seed"] for run in group}) == len(group)
        rows += [table.row(part) for part in ([group] if one else [[run] for run in group])]
    return markdown(table.head, rows)
