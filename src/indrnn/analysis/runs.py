"""Summaries of runs: a small JSON file per run, a figure and a table."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..training.folder import RunFolder

_POINTS = 200  # of a curve: as many as a picture shows

Run = dict[str, Any]
"""What is kept of a run."""


@dataclass(frozen=True)
class Page:
    """How runs of one kind are summarised."""

    name: str
    """Of the folder of results, and of the picture."""
    metric: str
    higher_is_better: bool
    head: str
    """Of the table: names of columns, with commas between them."""
    order: Callable[[Run], tuple[Any, ...]]
    """What the rows are ordered by; with the recipe and its training, what runs have in common that are one row."""
    row: Callable[[list[Run]], list[object]]
    """A row of the table, of runs that differ by their seeds alone."""
    curve: Callable[[Run], tuple[str, str, list[tuple[float, float]]]]
    """Panel, name and points of a run in the picture."""
    summary: Callable[[Run], Run] = lambda run: run
    """What is kept, of what is common to all runs and the recipe's options."""
    older: str | None = None
    """What the metric was called before."""
    picture: dict[str, Any] = field(default_factory=dict)
    """More for `draw_panels`."""


def _own_row(runs: list[Run]) -> list[object]:
    first = runs[0]
    best = mean([run["best"][1] for run in runs], "{:.4g}")
    tests = [run["test"] for run in runs]
    names = [name for name in tests[0] if all(name in each for each in tests)] if all(tests) else []
    test = ", ".join(f"{name} {mean([each[name] for each in tests], '{:.4g}')}" for name in names)
    return [first["name"], steps_of(first), time_of(first), f"{first['metric']} {best}", test, command_of(first)]


def own_page(lines: list[Run]) -> Page:
    """The page for a user's own task, whose metric is found in its measurements."""
    known = [name for name in lines[0] if name not in ("step", "lr", "train_loss", "gradient_norm", "seconds")]
    metric = next((name for name in known if name.endswith("accuracy")), known[0])
    return Page(
        name="own",
        metric=metric,
        higher_is_better=metric.endswith("accuracy"),
        head="run, steps, time, best evaluation, test, command",
        order=lambda run: (run["name"],),
        row=_own_row,
        curve=lambda run: (run["metric"], run["name"], run["curve"]),
        picture={"across": "training step", "up": metric, "logarithmic": not metric.endswith("accuracy")},
    )


def kind(run: Path) -> str:
    """The type of a run's recipe; "own" if it has none."""
    folder = RunFolder(run)
    if not folder.config.exists():
        raise FileNotFoundError(f"runs must be folders of runs, and {run} holds no config.json")
    return str(folder.read_json(folder.config).get("options", {}).get("type", "own"))


def summary(path: Path, page: Page) -> Run:
    """The summary of a run."""
    run = RunFolder(path)
    if not (lines := run.read_metrics()):
        raise ValueError(f"runs must have an evaluation at least; {path} has none")
    config = run.read_json(run.config)
    result = run.read_json(run.result) if run.result.exists() else {}
    finished = bool(result) and result["steps"] == lines[-1]["step"]
    values = [(line["step"], line.get(page.metric, line.get(page.older or ""))) for line in lines]
    curve = [(step, value) for step, value in values if value is not None]
    if not curve:
        raise ValueError(f"runs must have a finite {page.metric} at least once; {path} has none")
    common = {
        "name": f"{path.parent.name}-{path.name}" if re.fullmatch(r"seed-\d+", path.name) else path.name,
        "recipe": config.get("recipe"),
        "command": shlex.join(config["command"]),
        "resumed": [shlex.join(time["command"]) for time in config.get("resumed", [])],
        "started": config["started"],
        "options": config.get("options"),
        "lr": config["training"]["lr"],
        "schedule": config["training"]["schedule"],
        "seed": config["seed"],
        "threads": config["threads"],
        "steps": lines[-1]["step"],
        "planned_steps": config["training"]["steps"],
        "seconds": lines[-1]["seconds"],
        "finished": finished,
        "metric": page.metric,
        "best": (max if page.higher_is_better else min)(curve, key=lambda point: point[1]),
        "last": curve[-1],
        "test": result.get("test") if finished else None,
        "machine": config["machine"],
        "curve": thinned(curve),
        "config": config,  # for the page to look at
    }
    if page.name == "own":
        common["asked"] = _asked(config)
    return {name: value for name, value in page.summary(common).items() if name != "config"}


def _asked(config: Run) -> str:
    """A checksum of the settings of a run without a recipe, except its seed and the series drawn with it."""
    task, fit, estimator = (dict(config.get(name) or {}) for name in ("task", "fit", "estimator"))
    for content, names in ((task, ("seed", "train", "validation")), (fit, ("seed",)), (estimator, ("random_state",))):
        for name in names:
            content.pop(name, None)
    text = json.dumps([task, fit, estimator, config["training"]], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most 200 points of a curve, including the last."""
    every = -(-len(curve) // _POINTS)
    return [point for i, point in enumerate(curve) if (len(curve) - 1 - i) % every == 0]


def kept(folder: Path) -> list[Run]:
    """The summaries of runs in a folder of results."""
    every = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return [each for each in every if isinstance(each, dict) and "curve" in each]  # and not what else is there


def gather(page: Page, runs: Iterable[Path], out: Path, *, overwrite: bool = False) -> str:
    """Write a JSON summary of each run to a folder, plot all that are there, and return a table of them.

    Args:
        page: how the runs are summarised.
        runs: the run folders.
        out: the output folder; runs already there are plotted and listed too.
        overwrite: whether existing summaries of these runs, and the figure, may be replaced.
    """
    from .curves import draw_panels

    found = [(run, summary(run, page)) for run in runs]  # all are read before anything is written
    files = {path.name: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    targets: dict[str, Run] = {}
    for path, each in found:
        names = [each["name"], f"{path.resolve().parent.name}-{each['name']}"]
        names += [f"{names[1]}-{number}" for number in range(2, 2 + len(found) + len(files))]
        free = next(name for name in names if f"{name}.json" not in targets and _same(files.get(f"{name}.json"), each))
        each["name"] = free
        targets[f"{free}.json"] = each
    picture = out / f"{page.name}.png"
    there = [name for name in (*targets, picture.name) if (out / name).exists()]
    if there and not overwrite:
        raise ValueError(f"out: {out} holds {', '.join(there)} already; replace them with overwrite (--overwrite)")
    out.mkdir(parents=True, exist_ok=True)
    for name, each in targets.items():
        write_atomically(out / name, (json.dumps(each, ensure_ascii=False) + "\n").encode())
    every = kept(out)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for each in sorted(every, key=page.order):
        panel, name, points = page.curve(each)
        curves = panels.setdefault(panel, {})
        curves[name if name not in curves else f"{name}, {each['name']}"] = points
    draw_panels(picture, panels, **page.picture)
    return table_of(page, every)


def _same(old: Run | None, new: Run) -> bool:
    """Whether the summary under a name is of this run, or there is none."""
    if old is None:
        return True
    if "started" not in old:  # of an earlier version
        return (old.get("command"), old.get("seed")) == (new["command"], new["seed"])
    return bool(old["started"] == new["started"] and old["seed"] == new["seed"])


def table_of(page: Page, runs: list[Run]) -> str:
    """A Markdown table of runs; runs that differ only in their seeds form one row."""
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=page.order):
        of_page = page.order(run) if page.name != "own" else run.get("asked")
        key = [of_page, run["recipe"], run["planned_steps"], run["schedule"]]
        groups.setdefault(json.dumps(key), []).append(run)
    rows = []
    for group in groups.values():
        one = len({run["seed"] for run in group}) == len(group)
        rows += [page.row(part) for part in ([group] if one else [[run] for run in group])]
    return table(page.head, rows)


def mean(values: list[float], form: str, unit: str = "") -> str:
    """Format a number; for several, their mean ± standard deviation and count."""
    if len(values) == 1:
        return form.format(values[0]) + unit
    middle, deviation = statistics.fmean(values), statistics.stdev(values)
    return f"{form.format(middle)} ± {form.format(deviation)}{unit} (n = {len(values)})"


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; `head` holds comma-separated names."""
    names = head.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def command_of(run: Run) -> str:
    """The command of a run, and those that resumed it for more steps or with other options."""

    def asked(command: str) -> str:
        return re.sub(r" --resume( (?!-)\S+)?| --out \S+", "", command)

    later = [command for command in run.get("resumed", []) if asked(command) != asked(run["command"])]
    return ", then ".join(f"`{command}`" for command in (run["command"], *later))


def time_of(run: Run) -> str:
    """Duration of a run, in minutes."""
    return f"{run['seconds'] / 60:.0f} min"


def steps_of(run: Run) -> str:
    """Number of steps taken, and, if the run is unfinished, the number planned."""
    return f"{run['steps']:,}" + ("" if run["finished"] else f" of {run['planned_steps']:,}")
