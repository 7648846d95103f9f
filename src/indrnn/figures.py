"""Figures with matplotlib, which is imported where they are drawn: curves of runs, and panels of many; PNG and SVG."""

from __future__ import annotations

import contextlib
import html
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checks import MissingPackageError
from .files import write_atomically

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]
"""Points (x, y)."""
Reference = tuple[float, str]
"""Value to compare with, and its name."""

COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#882255", "#44aa99", "#332288", "#999999"),
)
"""Colours of curves: Okabe and Ito's, then Tol's, which people with any colour vision can tell apart."""
LINES = ("-", "--", ":", "-.")
"""Styles of lines, so that curves differ without colours too."""


def need_matplotlib() -> None:
    """Raise if matplotlib, of the extra `report`, is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingPackageError("figures need matplotlib: pip install 'indrnn[report]'") from None


def new_figure(
    panels: int, width: float = 5.0, height: float = 3.6, across: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels, each of this width and height in inches, with `across` in a row; None for all."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = across or panels
    down = -(-panels // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    FigureCanvasAgg(figure)  # without pyplot, which would want a display and keep the figure
    axes = [figure.add_subplot(down, across, i + 1) for i in range(panels)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def figure_with_legend(panels: int, width: float, names: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels of this width in inches side by side, and room for a legend beside them."""
    legend = 0.5 + 0.09 * max(len(named(name)) for name in names)
    return new_figure(panels, width + legend / panels, height=max(3.6, 0.3 + 0.22 * len(names)))


def add_legend(figure: Figure) -> None:
    """Add a legend to the right of the panels, which names each curve once."""
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)


def named(name: str, most: int = 60) -> str:
    """Prepare a user's name for a figure: shortened to `most` characters, and escaped for matplotlib.

    matplotlib reads text between two dollar signs as a formula, and omits names that begin with _ from a legend.
    """
    short = name if len(name) <= most else f"{name[: most - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


# ---- files


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; the file is never partial."""
    with _drawing():
        write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))


def svg_of(figure: Figure, label: str, number: int) -> str:
    """A figure as an <svg> element of a page, of class `chart`; the same figure gives the same bytes.

    Lines and text that are black have the page's colours (report.css). `label` says what is shown to those who do not
    see it; `number`, of the figure on its page, keeps its ids apart from those of others.
    """
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": str(number), "font.sans-serif": ["DejaVu Sans"]}
    without: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    content = io.StringIO()
    with _drawing(settings):
        figure.savefig(content, format="svg", transparent=True, metadata=without)
    head, _, body = content.getvalue().partition("</defs>")  # in the head, a style for the whole page
    (box,) = re.findall(r'viewBox="[^"]*"', head)
    body = re.sub(r' id="[A-Za-z.]+(2d)?_\d+"', "", body)  # nothing refers to these
    return f'<svg class="chart" role="img" aria-label="{html.escape(label)}" {box}>{body}'


@contextlib.contextmanager
def _drawing(settings: dict[Any, Any] | None = None) -> Iterator[None]:
    from matplotlib import rc_context

    with rc_context({"axes.formatter.min_exponent": 3, **(settings or {})}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # and drawn as a box
        yield


# ---- curves


def draw_curves(
    axes: Axes,
    curves: Mapping[str, Curve],
    *,
    logarithmic: bool = True,
    reference: Reference | None = None,
    order: Sequence[str] = (),
) -> None:
    """Draw named curves, and a line at the reference value, if any.

    Colours and styles follow `order`, by default the names of `curves`. A logarithmic axis needs values above 0 and
    none below.
    """
    numbers = {name: number for number, name in enumerate(order or curves)}
    for name, points in curves.items():
        number = numbers[name]
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=named(name),
            color=COLOURS[number % len(COLOURS)],
            linestyle=LINES[(number + number // len(COLOURS)) % len(LINES)],
            linewidth=1.4,
            marker="o" if len(points) == 1 else "",  # a line of one point is not seen
            markersize=3,
        )
    if reference is not None:
        axes.axhline(reference[0], color="0.5", linestyle="--", linewidth=1, label=named(reference[1]))
    values = [y for points in curves.values() for _, y in points]
    if logarithmic and any(value > 0 for value in values) and not any(value < 0 for value in values):
        axes.set_yscale("log")


def draw_metric(axes: Axes, lines: Sequence[Mapping[str, Any]], metric: str, **options: Any) -> None:
    """Draw a metric over the steps of a run, given the lines of its metrics.jsonl and options of `draw_curves`."""
    points = [(line["step"], line[metric]) for line in lines if line.get(metric) is not None]
    draw_curves(axes, {metric.replace("_", " "): points}, **options)
    axes.set_xlabel("training step")
    axes.legend(frameon=False)


def draw_run(path: Path, lines: list[dict[str, Any]], metric: str, *, higher_is_better: bool = False) -> None:
    """Write a figure of a metric over the steps of a run, given the lines of its metrics.jsonl."""
    figure, (axes,) = new_figure(1)
    draw_metric(axes, lines, metric, logarithmic=not higher_is_better)
    save_figure(figure, path)


def draw_pairs(axes: Axes, pairs: Curve, *, across: str, up: str) -> None:
    """Draw pairs of numbers as dots, with a line where both are equal."""
    values = [value for pair in pairs for value in pair]
    axes.plot([min(values), max(values)], [min(values), max(values)], color="0.5", linestyle="--", linewidth=1)
    axes.scatter([x for x, _ in pairs], [y for _, y in pairs], s=6, color=COLOURS[0])
    axes.set(xlabel=across, ylabel=up)


def smooth(points: Curve, over: int) -> Curve:
    """Moving average over the last `over` values, fewer at the start."""
    parts = [points[max(0, i - over + 1) : i + 1] for i in range(len(points))]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]


def draw_panels(
    path: Path,
    panels: dict[str, dict[str, list[tuple[float, float]]]],
    *,
    across: str,
    up: str,
    reference: Reference | None = None,
    logarithmic: bool = True,
    smoothed: int = 1,
) -> None:
    """Write a figure of curves, by panel and name, side by side; `across` and `up` label the axes."""
    names = sorted({name for curves in panels.values() for name in curves})
    figure, axes = figure_with_legend(len(panels), 3.2, [*names, reference[1] if reference else ""])
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        shown = {name: smooth(points, smoothed) for name, points in sorted(curves.items())}
        draw_curves(panel, shown, logarithmic=logarithmic, reference=reference, order=names)
        # What a panel has room for
        lines = textwrap.wrap(named(title), 26, break_long_words=False, break_on_hyphens=False)
        panel.set(title="\n".join(lines), xlabel=across)
    axes[0].set_ylabel(up)
    add_legend(figure)
    save_figure(figure, path)


def draw_confusion(
    path: Path, counts: np.ndarray[Any, Any], names: Sequence[str], columns: Sequence[str] | None = None
) -> None:
    """Draw a confusion matrix: the share of each true class (row) that was predicted as each class (column).

    `counts` are of items by true and predicted class; `columns` are short names of the classes, None for `names`.
    """
    figure, (axes,) = new_figure(1, width=6.0, height=4.8)
    picture = axes.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="Blues", vmin=0, vmax=1)
    places, size = range(len(names)), 8 if len(names) <= 12 else 6
    axes.set_yticks(places, [named(name, 24) for name in names], fontsize=size)
    axes.set_xticks(places, [named(name, 24) for name in columns or names], fontsize=size)
    axes.tick_params(axis="x", rotation=0 if columns else 90)
    axes.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(picture, label="share of the true class")
    save_figure(figure, path)


def draw_forecasts(
    path: Path, series: dict[str, tuple[Any, Any]], levels: Sequence[int], *, up: str, across: str, shown: int
) -> None:
    """Draw the last `shown` steps of the first 8 series and their forecasts with intervals, two panels in a row.

    `series` holds by name a table of what is known (ds, y) and one of forecasts (ds, forecast, lo-LEVEL, hi-LEVEL);
    `levels` are in per cent.
    """
    pictured = dict(list(series.items())[:8])
    figure, panels = new_figure(len(pictured), height=2.8, across=min(len(pictured), 2))
    for axes, (name, (known, ahead)) in zip(panels, pictured.items(), strict=True):
        axes.plot(known["ds"][-shown:], known["y"][-shown:], color="0.3", linewidth=1.2, label=named(up))
        axes.plot(ahead["ds"], ahead["forecast"], color=COLOURS[0], linewidth=1.4, label="forecast")
        for level in sorted(levels):
            shade: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.18, "linewidth": 0}
            axes.fill_between(ahead["ds"], ahead[f"lo-{level}"], ahead[f"hi-{level}"], label=f"{level} %", **shade)
        axes.set(title=named(name), xlabel=named(across))
        axes.tick_params(axis="x", rotation=30)
    panels[0].legend(frameon=False, loc="upper left")
    save_figure(figure, path)
