"""Summaries of runs: a small JSON file per run, a figure and a table."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..tasks.runs import open_run
from ..tasks.table import Summary, Table, markdown, own_table
from ..training.folder import RunFolder

_POINTS = 200  # of a curve: as many as a picture shows


def table_of_run(path: Path) -> Table:
    """How a run is summed up: the table of its recipe, or of its own metric."""
    run = open_run(path)
    if hasattr(run.recipe, "table"):
        return run.recipe.table
    if not (lines := run.folder.read_metrics()):
        raise ValueError(f"runs must have an evaluation at least; {path} has none")
    return own_table(lines[0])


def summary(path: Path, page: Table) -> Summary:
    """The summary of a run."""
    run = RunFolder(path)
    if not (lines := run.read_metrics()):
        raise ValueError(f"runs must have an evaluation at least; {path} has none")
    config = run.read_json(run.config)
    recipe = config.get("recipe") or {}
    result = run.read_json(run.result) if run.result.exists() else {}
    finished = bool(result) and result["steps"] == lines[-1]["step"]
    values = [(line["step"], line.get(page.metric, line.get(page.without_validation or ""))) for line in lines]
    curve = [(step, value) for step, value in values if value is not None]
    if not curve:
        raise ValueError(f"runs must have a finite {page.metric} at least once; {path} has none")
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


def _asked(config: Summary) -> str:
    """A checksum of the settings of a run without a table, except its seed and the series drawn with it."""
    task, recipe, estimator = (dict(config.get(name) or {}) for name in ("task", "recipe", "estimator"))
    for name in ("seed", "train", "validation"):
        task.pop(name, None)
    estimator.pop("random_state", None)
    text = json.dumps([task, recipe, estimator, config["training"]], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most 200 points of a curve, including the last."""
    every = -(-len(curve) // _POINTS)
    return [point for i, point in enumerate(curve) if (len(curve) - 1 - i) % every == 0]


def kept(folder: Path) -> list[Summary]:
    """The summaries of runs in a folder of results."""
    every = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return [each for each in every if isinstance(each, dict) and "curve" in each]  # and not what else is there


def gather(page: Table, runs: Iterable[Path], out: Path, *, overwrite: bool = False) -> str:
    """Write a JSON summary of each run to a folder, plot all that are there, and return a table of them.

    Args:
        page: how the runs are summarised.
        runs: the run folders.
        out: the output folder; runs already there are plotted and listed too.
        overwrite: whether existing summaries of these runs, and the figure, may be replaced.
    """
    from ..figures import draw_panels

    found = [(run, summary(run, page)) for run in runs]  # all are read before anything is written
    files = {path.name: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    targets: dict[str, Summary] = {}
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
    usual: dict[str, Any] = {"across": "training step", "up": page.metric, "logarithmic": not page.higher_is_better}
    draw_panels(picture, panels, **(usual | page.picture))
    return table_of(page, every)


def _same(old: Summary | None, new: Summary) -> bool:
    """Whether the summary under a name is of this run, or there is none."""
    return old is None or bool(old["started"] == new["started"] and old["seed"] == new["seed"])


def table_of(page: Table, runs: list[Summary]) -> str:
    """A Markdown table of runs; runs that differ only in their seeds form one row."""
    groups: dict[str, list[Summary]] = {}
    for run in sorted(runs, key=page.order):
        of_page = page.order(run) if page.name != "own" else run.get("asked")
        key = [of_page, run["recipe"], run["planned_steps"], run["schedule"]]
        groups.setdefault(json.dumps(key), []).append(run)
    rows = []
    for group in groups.values():
        one = len({run["seed"] for run in group}) == len(group)
        rows += [page.row(part) for part in ([group] if one else [[run] for run in group])]
    return markdown(page.head, rows)
