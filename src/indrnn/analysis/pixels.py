"""Runs of sequential and permuted MNIST, gathered beside the paper's table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..recipes import ROWS
from ..tasks.pixels import SIDE, TRAINING_IMAGES
from . import runs as kept
from .curves import draw_panels


def gather(runs: Iterable[Path], out: Path) -> str:
    """Write a JSON for each run into a folder, draw all that are there as pixels.png, and return a table of them."""
    every = sorted(kept.keep(runs, out, summary), key=lambda run: (run["task"], run["name"]))
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for each in every:
        points = [(step * each["epochs"] / each["steps"], 100 * value) for step, value in each["curve"]]
        panels.setdefault(each["task"], {})[each["name"]] = points
    draw_panels(out / "pixels.png", panels, across="epoch", up="accuracy on validation images (%)", logarithmic=False)
    return kept.table("task, run, epochs, time, validation, test, paper, command", map(_row, every))


def summary(run: Path) -> dict[str, Any]:
    """What is kept of a run."""
    common = kept.summary(run, "PixelsRecipe", "accuracy", higher_is_better=True)
    options = common["options"]
    epoch = -(-(TRAINING_IMAGES - options["validation"]) // options["batch_size"])
    task = "permuted MNIST" if options["permuted"] else "sequential MNIST"
    if options["shrink"] > 1:
        task += f", {SIDE // options['shrink']}×{SIDE // options['shrink']} pixels"
    return {**common, "task": task, "epochs": common["steps"] / epoch}


def _row(run: dict[str, Any]) -> list[object]:
    test = f"{100 * run['test']['accuracy']:.2f} %" if run["finished"] else "not finished"
    row = ROWS.get(run["recipe"])
    best = f"{100 * run['best'][1]:.2f} %"
    columns = [run["task"], run["name"], f"{run['epochs']:.1f}", kept.time_of(run), best, test]
    return [*columns, "" if row is None else row.value, f"`{run['command']}`"]
