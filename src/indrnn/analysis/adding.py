"""Runs of the adding problem, gathered as the paper's figure 4."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..tasks.adding import BASELINE
from . import runs as kept
from .curves import draw_panels


def gather(runs: Iterable[Path], out: Path) -> str:
    """Write a JSON for each run into a folder, draw all that are there as adding.png, and return a table of them."""
    every = sorted(kept.keep(runs, out, summary), key=lambda run: (run["length"], run["model"], run["lr"]))
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for each in every:
        points = [(step, value) for step, value in each["curve"]]
        panels.setdefault(f"T = {each['length']}", {})[f"{each['model']}, lr {each['lr']:g}"] = points
    reference = (BASELINE, "always answering 1")
    draw_panels(
        out / "adding.png", panels, across="training step", up="mean squared error", reference=reference, smoothed=5
    )
    return kept.table("T, model, lr, steps, time, test MSE, command", map(_row, every))


def summary(run: Path) -> dict[str, Any]:
    """What is kept of a run."""
    common = kept.summary(run, "AddingRecipe", "test_mse", higher_is_better=False)
    options = common.pop("options")
    test = common.pop("test")
    model = options["model"].get("kind", "indrnn")
    return {**common, "model": model, "length": options["length"], "test_mse": test and test["test_mse"]}


def _row(run: dict[str, Any]) -> list[object]:
    error = f"{run['test_mse']:.2g}" if run["finished"] else f"{run['best'][1]:.2g} (best evaluation)"
    columns = [run["length"], run["model"], f"{run['lr']:g}", kept.steps_of(run), kept.time_of(run), error]
    return [*columns, f"`{run['command']}`"]
