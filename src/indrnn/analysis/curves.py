"""Curves of runs, and what a model of the adding problem answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..training import generator
from ..training.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(panels: int, width: float = 5.0) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * panels, 3.6), layout="constrained")
    FigureCanvasAgg(figure)  # without pyplot, which would want a display and keep the figure
    axes = [figure.add_subplot(1, panels, i + 1) for i in range(panels)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the file is whole or not there."""
    temporary = path.with_name(f".{path.stem}.tmp.png")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)


def smooth(values: list[float], over: int) -> list[float]:
    """Means over the last so many values, less at the start."""
    return [sum(part) / len(part) for part in (values[max(0, i - over + 1) : i + 1] for i in range(len(values)))]


def draw_run(
    run: RunFolder, metric: str, reference: tuple[float, str] | None = None, *, higher_is_better: bool = False
) -> Path:
    """Draw a metric of a run over its steps into curve.png; `reference` is a line to compare with, and its name."""
    figure, (axes,) = new_figure(1)
    _curve(axes, run.read_metrics(), metric, reference, logarithmic=not higher_is_better)
    save_figure(figure, run.picture)
    return run.picture


def _curve(
    axes: Axes,
    lines: list[dict[str, Any]],
    metric: str,
    reference: tuple[float, str] | None,
    *,
    logarithmic: bool = True,
) -> None:
    known = [(line["step"], line[metric]) for line in lines if line.get(metric) is not None]
    axes.plot([step for step, _ in known], [value for _, value in known], color="C0", label=metric.replace("_", " "))
    if reference is not None:
        axes.axhline(reference[0], color="0.5", linestyle="--", linewidth=1, label=reference[1])
    if logarithmic and known and min(value for _, value in known) > 0:
        axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.legend(frameon=False)


def draw_adding(run: RunFolder, model: nn.Module, length: int, seed: int = 0) -> Path:
    """Draw the error over training, and 500 answers beside the right ones, into curve.png."""
    from ..tasks.adding import BASELINE, adding_batch

    figure, (left, right) = new_figure(2)
    _curve(left, run.read_metrics(), "test_mse", (BASELINE, "always answering 1"))
    left.set_ylabel("mean squared error")
    x, answer = adding_batch(length, 500, generator(seed, "picture"))
    with torch.inference_mode():
        device = next(model.parameters()).device
        predicted = torch.cat([model(part.to(device))[0].squeeze(-1).cpu() for part in x.split(50, dim=1)])
    right.plot([0, 2], [0, 2], color="0.5", linestyle="--", linewidth=1)
    right.scatter(answer, predicted, s=6, color="C0")
    right.set_xlabel("the sum of the two marked numbers")
    right.set_ylabel("the network's answer")
    save_figure(figure, run.picture)
    return run.picture


def draw_panels(
    path: Path,
    panels: dict[str, dict[str, list[tuple[float, float]]]],
    *,
    across: str,
    up: str,
    reference: tuple[float, str] | None = None,
    logarithmic: bool = True,
    smoothed: int = 1,
) -> None:
    """Draw curves, by panel and name, side by side; `across` and `up` say what the axes are."""
    figure, axes = new_figure(len(panels), width=3.6)
    names = sorted({name for curves in panels.values() for name in curves})
    for each, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, points in sorted(curves.items()):
            values = smooth([value for _, value in points], smoothed)
            each.plot([x for x, _ in points], values, label=name, color=f"C{names.index(name)}", linewidth=1.2)
        if reference is not None:
            each.axhline(reference[0], color="0.5", linestyle="--", linewidth=1, label=reference[1])
        if logarithmic:
            each.set_yscale("log")
        each.set_title(title)
        each.set_xlabel(across)
    axes[0].set_ylabel(up)
    handles: dict[str, Any] = {}
    for each in axes:
        handles |= {label: handle for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    save_figure(figure, path)
