"""What is kept of runs: small files, a picture and a table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..training.checkpoint import write_atomically
from ..training.folder import RunFolder

_POINTS = 200  # of a curve: as many as a picture shows


def kind(run: Path) -> str:
    """The type of a run's recipe."""
    config = RunFolder(run).config
    if not config.exists():
        raise FileNotFoundError(f"runs must be folders of runs, and {run} holds no config.json")
    return str(json.loads(config.read_text()).get("options", {}).get("type"))


def summary(path: Path, recipe: str, metric: str, *, higher_is_better: bool) -> dict[str, Any]:
    """What is kept of a run of this type of recipe, whatever it learnt; "options" are the recipe's."""
    run = RunFolder(path)
    if kind(path) != recipe or not (lines := run.read_metrics()):
        raise ValueError(f"runs must be of {recipe}, with an evaluation at least; {path} is not")
    config = json.loads(run.config.read_text())
    result = json.loads(run.result.read_text()) if run.result.exists() else {}
    finished = bool(result) and result["steps"] == lines[-1]["step"]
    curve = [(line["step"], line[metric]) for line in lines if line[metric] is not None]
    return {
        "name": path.name,
        "recipe": config["recipe"],
        "command": shlex.join(config["command"]),
        "resumed": [shlex.join(time["command"]) for time in config.get("resumed", [])],
        "options": config["options"],
        "lr": config["training"]["lr"],
        "schedule": config["training"]["schedule"],
        "seed": config["seed"],
        "threads": config["threads"],
        "steps": lines[-1]["step"],
        "planned_steps": config["training"]["steps"],
        "seconds": lines[-1]["seconds"],
        "finished": finished,
        "best": (max if higher_is_better else min)(curve, key=lambda point: point[1]),
        "last": curve[-1],
        "test": result.get("test") if finished else None,
        "machine": config["machine"],
        "curve": thinned(curve),
    }


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most 200 points of a curve, the last among them."""
    every = -(-len(curve) // _POINTS)
    return [point for i, point in enumerate(curve) if (len(curve) - 1 - i) % every == 0]


def keep(runs: Iterable[Path], out: Path, summarise: Callable[[Path], dict[str, Any]]) -> list[dict[str, Any]]:
    """Write a JSON for each run into a folder, and return all that are there."""
    kept = [summarise(run) for run in runs]  # all are read before anything is written
    out.mkdir(parents=True, exist_ok=True)
    for each in kept:
        write_atomically(out / f"{each['name']}.json", (json.dumps(each, ensure_ascii=False) + "\n").encode())
    every = (json.loads(path.read_text()) for path in sorted(out.glob("*.json")))
    return [each for each in every if "curve" in each]  # and not what else is there


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Rows under a head of names, in Markdown."""
    names = head.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def time_of(run: dict[str, Any]) -> str:
    """How long a run took."""
    return f"{run['seconds'] / 60:.0f} min"


def steps_of(run: dict[str, Any]) -> str:
    """How many steps it made, and of how many, where it was not finished."""
    return f"{run['steps']:,}" + ("" if run["finished"] else f" of {run['planned_steps']:,}")
