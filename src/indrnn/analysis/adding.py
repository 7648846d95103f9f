"""Runs of the adding problem, gathered: small files that can be kept, and the paper's figure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..tasks.adding import BASELINE
from ..training.checkpoint import write_atomically
from ..training.folder import RunFolder
from .curves import draw_panels

_POINTS = 200  # of a curve: as many as a picture shows


def gather(runs: Iterable[Path], out: Path) -> str:
    """Write a JSON for each run into a folder, draw all that are there as adding.png, and return a table of them."""
    kept = [summary(RunFolder(run)) for run in runs]  # all are read before anything is written
    out.mkdir(parents=True, exist_ok=True)
    for each in kept:
        write_atomically(out / f"{each['name']}.json", (json.dumps(each, ensure_ascii=False) + "\n").encode())
    every = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for each in sorted(every, key=lambda one: (one["length"], one["model"], one["lr"])):
        points = [(step, value) for step, value in each["curve"]]
        panels.setdefault(f"T = {each['length']}", {})[f"{each['model']}, lr {each['lr']:g}"] = points
    draw_panels(out / "adding.png", panels, (BASELINE, "always answering 1"))
    return table(every)


def summary(run: RunFolder) -> dict[str, Any]:
    """What is kept of a run."""
    if not run.config.exists():
        raise FileNotFoundError(f"runs must be folders of runs, and {run.path} holds no config.json")
    config, lines = json.loads(run.config.read_text()), run.read_metrics()
    options = config.get("options", {})
    if options.get("type") != "AddingRecipe" or not lines:
        raise ValueError(f"runs must be of the adding problem, with an evaluation at least; {run.path} is not")
    result = json.loads(run.result.read_text()) if run.result.exists() else {}
    finished = bool(result) and result["steps"] == lines[-1]["step"]
    curve = [(line["step"], line["test_mse"]) for line in lines if line["test_mse"] is not None]
    model = options["model"]
    return {
        "name": run.path.name,
        "recipe": config["recipe"],
        "command": shlex.join(config["command"]),
        "resumed": [shlex.join(time["command"]) for time in config.get("resumed", [])],
        "model": model.get("kind", "indrnn"),
        "length": options["length"],
        "lr": config["training"]["lr"],
        "schedule": config["training"]["schedule"],
        "seed": config["seed"],
        "threads": config["threads"],
        "steps": lines[-1]["step"],
        "planned_steps": config["training"]["steps"],
        "seconds": lines[-1]["seconds"],
        "finished": finished,
        "best": min(curve, key=lambda point: point[1]),
        "last": curve[-1],
        "test_mse": result.get("test", {}).get("test_mse") if finished else None,
        "machine": config["machine"],
        "curve": thinned(curve),
    }


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most 200 points of a curve, the last among them."""
    every = -(-len(curve) // _POINTS)
    return [point for i, point in enumerate(curve) if (len(curve) - 1 - i) % every == 0]


def table(runs: list[dict[str, Any]]) -> str:
    """Runs as a Markdown table."""
    rows = [
        "| T | model | lr | steps | time | test MSE | command |",
        "|---|---|---|---|---|---|---|",
    ]  # of the first time
    for run in sorted(runs, key=lambda one: (one["length"], one["model"], one["lr"])):
        planned = "" if run["finished"] else f" of {run['planned_steps']:,}"
        error = f"{run['test_mse']:.2g}" if run["finished"] else f"{run['best'][1]:.2g} (best evaluation)"
        time = f"{run['seconds'] / 60:.0f} min"
        cells = [run["length"], run["model"], f"{run['lr']:g}", f"{run['steps']:,}{planned}", time, error]
        rows.append("| " + " | ".join(str(cell) for cell in cells) + f" | `{run['command']}` |")
    return "\n".join(rows)
