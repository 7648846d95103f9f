"""Summaries of runs: a small JSON file per run, a figure and a table."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..tasks.runs import Run, open_run
from ..tasks.table import Summary, Table, markdown, own_table

_POINTS = 200  # of a curve: as many as a picture shows


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
    from ..figures import draw_panels

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
