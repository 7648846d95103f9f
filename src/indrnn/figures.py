"""Figures with matplotlib, which is imported where they are drawn: curves of runs, and panels of many."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours of curves: Okabe and Ito's, which people with any colour vision can tell apart."""
LINES = ("-", "--", ":", "-.")
"""Styles of lines, so that curves differ without colours too."""


def new_figure(panels: int, width: float = 5.0, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels side by side; `width` of a panel and `height` in inches."""
    return new_grid(panels, panels, (width, height))


def new_grid(panels: int, across: int, size: tuple[float, float] = (2.6, 2.2)) -> tuple[Figure, list[Axes]]:
    """Make a figure with `across` panels in a row, each with a width and height of `size` in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    down = -(-panels // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    FigureCanvasAgg(figure)  # without pyplot, which would want a display and keep the figure
    axes = [figure.add_subplot(down, across, i + 1) for i in range(panels)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def named(name: str, most: int = 60) -> str:
    """Prepare a user's name for a figure: shortened to `most` characters, and escaped for matplotlib.

    matplotlib reads text between two dollar signs as a formula, and omits names that begin with _ from a legend.
    """
    short = name if len(name) <= most else f"{name[: most - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the file is never partial. A character that is missing from the font is drawn as a box."""
    temporary = path.with_name(f".{path.stem}.tmp.png")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(temporary, dpi=120)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def draw_run(path: Path, lines: list[dict[str, Any]], metric: str, *, higher_is_better: bool = False) -> None:
    """Draw a metric over the steps of a run, given the lines of its metrics.jsonl."""
    figure, (axes,) = new_figure(1)
    draw_curve(axes, lines, metric, None, logarithmic=not higher_is_better)
    save_figure(figure, path)


def draw_curve(
    axes: Axes,
    lines: list[dict[str, Any]],
    metric: str,
    reference: tuple[float, str] | None,
    *,
    logarithmic: bool = True,
) -> None:
    """Draw a metric over the steps, with a line at the reference value, if any."""
    known = [(line["step"], line[metric]) for line in lines if line.get(metric) is not None]
    axes.plot([step for step, _ in known], [value for _, value in known], color="C0", label=metric.replace("_", " "))
    if reference is not None:
        axes.axhline(reference[0], color="0.5", linestyle="--", linewidth=1, label=reference[1])
    if logarithmic and known and min(value for _, value in known) > 0:
        axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.legend(frameon=False)


def smooth(values: list[float], over: int) -> list[float]:
    """Moving average over the last `over` values, fewer at the start."""
    return [sum(part) / len(part) for part in (values[max(0, i - over + 1) : i + 1] for i in range(len(values)))]


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
                "linestyle": LINES[dashes % 4],
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


def draw_confusion(
    path: Path, counts: np.ndarray[Any, Any], names: Sequence[str], columns: Sequence[str] | None = None
) -> None:
    """Draw a confusion matrix: the share of each true class (row) that was predicted as each class (column).

    Args:
        path: the output file.
        counts: number of items by true and predicted class.
        names: names of the classes.
        columns: short names for the columns; None for the names.
    """
    figure, (axes,) = new_figure(1, width=6.0, height=4.8)
    picture = axes.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="Blues", vmin=0, vmax=1)
    places, size = range(len(names)), 8 if len(names) <= 12 else 6
    axes.set_yticks(places, [named(name, 24) for name in names], fontsize=size)
    axes.set_xticks(places, [named(name, 24) for name in columns or names], fontsize=size)
    axes.tick_params(axis="x", rotation=0 if columns else 90)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    figure.colorbar(picture, label="share of the true class")
    save_figure(figure, path)
