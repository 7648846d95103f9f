"""Figures of training curves, and of predictions on the adding problem."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..figures import draw_curve, draw_run, named, new_figure, new_grid, save_figure
from ..training import generator
from ..training.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def smooth(values: list[float], over: int) -> list[float]:
    """Moving average over the last `over` values, fewer at the start."""
    return [sum(part) / len(part) for part in (values[max(0, i - over + 1) : i + 1] for i in range(len(values)))]


def draw_adding(run: RunFolder, model: nn.Module, length: int, seed: int = 0) -> Path:
    """Plot the error over training, and 500 predictions against their targets, into curve.png."""
    from ..tasks.adding import BASELINE, adding_batch

    figure, (left, right) = new_figure(2)
    lines = [{"validation_mse": line.get("test_mse"), **line} for line in run.read_metrics()]  # as it was called before
    draw_curve(left, lines, "validation_mse", (BASELINE, "always answering 1"))
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


def figure_with_legend(panels: int, width: float, names: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels of this width in inches side by side, and room for a legend beside them."""
    legend = 0.5 + 0.09 * max(len(named(name)) for name in names)
    return new_figure(panels, width + legend / panels, height=max(3.6, 0.3 + 0.22 * len(names)))


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
    """Draw curves, by panel and name, side by side; `across` and `up` label the axes."""
    names = sorted({name for curves in panels.values() for name in curves})
    figure, axes = figure_with_legend(len(panels), 3.2, [*names, reference[1] if reference else ""])
    for each, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, points in sorted(curves.items()):
            values = smooth([value for _, value in points], smoothed)
            dashes, colour = divmod(names.index(name), 10)  # more names than matplotlib has colours differ by dashes
            style: dict[str, Any] = {
                "color": f"C{colour}",
                "linestyle": ("-", "--", ":", "-.")[dashes % 4],
                "linewidth": 1.2,
            }
            marker = "o" if len(points) == 1 else ""  # a line of one point is not seen
            each.plot([x for x, _ in points], values, label=named(name), marker=marker, markersize=3, **style)
        if reference is not None:
            each.axhline(reference[0], color="0.5", linestyle="--", linewidth=1, label=reference[1])
        if logarithmic:
            each.set_yscale("log")
        # What a panel has room for
        lines = textwrap.wrap(named(title), 26, break_long_words=False, break_on_hyphens=False)
        each.set_title("\n".join(lines))
        each.set_xlabel(across)
    axes[0].set_ylabel(up)
    handles: dict[str, Any] = {}
    for each in axes:
        handles |= {label: handle for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    save_figure(figure, path)


__all__ = [
    "draw_adding",
    "draw_panels",
    "draw_run",
    "figure_with_legend",
    "named",
    "new_figure",
    "new_grid",
    "save_figure",
    "smooth",
]
