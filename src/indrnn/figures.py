"""`curve.png`: the metric of a run over its steps."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .training.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def draw_run(
    run: RunFolder, metric: str, reference: tuple[float, str] | None = None, *, higher_is_better: bool = False
) -> Path:
    """Draw a metric of a run over its steps into curve.png; `reference` is a value to compare with, and its label."""
    figure, (axes,) = new_figure(1)
    draw_curve(axes, run.read_metrics(), metric, reference, logarithmic=not higher_is_better)
    save_figure(figure, run.picture)
    return run.picture


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
