"""Charts as SVG for pages: curves, histograms, a scatter and a confusion matrix.

Colours follow the page's (`--fill`, `--muted`, ...), so that a chart is light or dark with it; curves differ by dashes
too. All text in a chart is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which people with any colour vision can tell apart."""
_DASHES = ("", "8 4", "2 3", "10 3 2 3", "5 5", "1 4")

_NOTHING = '<p class="small">There is nothing to draw.</p>'
_FEW = 12  # points of a curve that are dots too

Points = Sequence[tuple[float, float]]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that divide a range into about `count` parts."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    by = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / by - 1e-9)
    return [round(number * by, 12) for number in range(first, math.floor(high / by + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten in a range; if there are fewer than two, other round numbers too."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**exponent for exponent in exponents if low <= 10.0**exponent <= high]
    if len(tens) >= 2:
        return tens[:: -(-len(tens) // 7)]
    every = [digit * 10.0**exponent for exponent in exponents for digit in (1, 2, 5)]
    found = [value for value in every if low <= value <= high]
    return found if len(found) >= 2 else ticks(low, high)


def _about(value: float) -> tuple[float, float]:
    """A range around one number."""
    return (value - 0.1 * abs(value), value + 0.1 * abs(value)) if value else (-1.0, 1.0)


def show(value: float, span: float | None = None) -> str:
    """Format a number briefly; given the span of an axis, with enough digits to tell its ticks apart."""
    if span and value and 1e-3 <= abs(value) < 1000 and span < 0.02 * abs(value):
        return f"{value:.{min(12, 2 - math.floor(math.log10(span)))}f}"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


class _Chart:
    """A frame with axes, which maps values to positions."""

    def __init__(
        self,
        across: tuple[float, float],
        up: tuple[float, float],
        labels: tuple[str, str],
        *,
        size: tuple[int, int],
        logarithmic: bool = False,
        whole: bool = False,
        label: str,
    ) -> None:
        self.size, self.logarithmic, self.label = size, logarithmic, label
        self.left, self.right, self.top, self.bottom = 84, 14, 12, 52  # room for the text of a phone
        self.across = across if across[1] > across[0] else (across[0] - 1, across[0] + 1)
        low, high = up if up[1] > up[0] else _about(up[0])
        self.up = (math.log10(low), math.log10(high)) if logarithmic else (low, high)
        width, height = size
        self.parts: list[str] = []
        for value in _powers(low, high) if logarithmic else ticks(low, high):
            y = self.y(value)
            self.parts.append(
                f'<line class="grid" x1="{self.left}" x2="{width - self.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            self.text(self.left - 8, y + 4, show(value, None if logarithmic else high - low), "end")
        for value in ticks(*self.across):
            if whole and value != int(value):
                continue
            x = self.x(value)  # at the right edge a name would be cut off in its middle
            self.text(x, height - self.bottom + 24, show(value), "end" if x > width - self.right - 12 else "middle")
        self.text((self.left + width - self.right) / 2, height - 6, labels[0], "middle")
        middle = (self.top + height - self.bottom) / 2
        self.parts.append(
            f'<text transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(labels[1])}</text>'
        )

    def x(self, value: float) -> float:
        low, high = self.across
        return self.left + (self.size[0] - self.left - self.right) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.up
        value = math.log10(value) if self.logarithmic else value
        return self.top + (self.size[1] - self.top - self.bottom) * (high - value) / (high - low)

    def text(self, x: float, y: float, text: str, anchor: str) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def __str__(self) -> str:
        width, height = self.size
        return (
            f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(self.label)}">'
            f"{''.join(self.parts)}</svg>"
        )


def curves(
    named: Sequence[tuple[str, Points]],
    *,
    across: str,
    up: str,
    logarithmic: bool = False,
    reference: tuple[float, str] | None = None,
) -> str:
    """Line chart of named curves, each with its own colour and dash, a legend, and optionally a `reference` line."""
    named = [(name, [point for point in points if math.isfinite(point[1])]) for name, points in named]
    values = [y for _, points in named for _, y in points] + ([reference[0]] if reference else [])
    if logarithmic:
        values = [value for value in values if value > 0]
    if not values:
        return _NOTHING
    span = [x for _, points in named for x, _ in points] or [0.0]
    low, high = min(values), max(values)
    margin = 1.0 if logarithmic else 0.04 * (high - low)
    bounds = (low * 0.9, high * 1.1) if logarithmic else (low - margin, high + margin)
    label = f"{up} over {across}: {', '.join(name for name, _ in named)}"
    chart = _Chart(
        (min(span), max(span)),
        bounds,
        (across, up),
        size=(640, 300),
        logarithmic=logarithmic,
        whole=all(x == int(x) for x in span),
        label=label,
    )
    if reference:
        y = chart.y(reference[0])
        chart.parts.append(f'<line class="reference" x1="{chart.left}" x2="626" y1="{y:.1f}" y2="{y:.1f}"/>')
    for number, (_, points) in enumerate(named):
        path = "".join(
            f"{'L' if i else 'M'}{chart.x(x):.1f} {chart.y(y):.1f}"
            for i, (x, y) in enumerate((x, y) for x, y in points if y > 0 or not logarithmic)
        )
        dash, colour = _DASHES[number % len(_DASHES)], COLOURS[number % len(COLOURS)]
        chart.parts.append(f'<path class="curve" d="{path}" stroke="{colour}" stroke-dasharray="{dash}"/>')
        if len(points) <= _FEW:  # a line through one point would not be seen
            chart.parts += [
                f'<circle cx="{chart.x(x):.1f}" cy="{chart.y(y):.1f}" r="4" fill="{colour}"/>'
                for x, y in points
                if y > 0 or not logarithmic
            ]
    return str(chart) + _legend([name for name, _ in named], reference and reference[1])


def _legend(names: Sequence[str], reference: str | None) -> str:
    items = [
        f'<li><svg viewBox="0 0 34 10" aria-hidden="true"><line x1="1" x2="33" y1="5" y2="5" stroke-width="2.5" '
        f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-dasharray="{_DASHES[i % len(_DASHES)]}"/></svg>'
        f"{escape(name)}</li>"
        for i, name in enumerate(names)
    ]
    if reference:
        items.append(
            '<li><svg viewBox="0 0 34 10" aria-hidden="true"><line class="reference" x1="1" x2="33" y1="5" y2="5"/>'
            f"</svg>{escape(reference)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def histogram(counts: Sequence[int], names: Sequence[str], *, title: str, most: int | None = None) -> str:
    """Bar chart with a name below and a count above each bar, on a scale up to at least `most`."""
    width, height, top, bottom = 300, 156, 36, 26
    top_count = max([most or 0, *counts, 1])
    step = (width - 8) / len(counts)
    parts = [f'<text class="title" x="4" y="14">{escape(title)}</text>']
    for number, (count, name) in enumerate(zip(counts, names, strict=True)):
        tall = (height - top - bottom) * count / top_count
        x, y = 4 + number * step, height - bottom - tall
        parts.append(f'<rect class="column" x="{x + 1:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{tall:.1f}"/>')
        if count:
            parts.append(f'<text x="{x + step / 2:.1f}" y="{y - 3:.1f}" text-anchor="middle">{count}</text>')
        parts.append(f'<text x="{x + step / 2:.1f}" y="{height - 9}" text-anchor="middle">{escape(name)}</text>')
    said = ", ".join(f"{name}: {count}" for count, name in zip(counts, names, strict=True))
    label = escape(f"{title}: {said}")
    head = f'<svg class="chart small-chart" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
    return f"{head}{''.join(parts)}</svg>"


def scatter(points: Points, *, across: str, up: str) -> str:
    """Scatter plot with the line of equal numbers; points that are not finite are left out."""
    points = [point for point in points if all(map(math.isfinite, point))]
    if not points:
        return _NOTHING
    every = [value for point in points for value in point]
    low, high = min(every), max(every)
    chart = _Chart(
        (low, high), (low, high), (across, up), size=(420, 340), label=f"{len(points)} dots: {up} over {across}"
    )
    corners = [(chart.x(value), chart.y(value)) for value in (low, high)]
    (x1, y1), (x2, y2) = corners
    chart.parts.append(f'<line class="reference" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    chart.parts += [f'<circle class="dot" cx="{chart.x(x):.1f}" cy="{chart.y(y):.1f}" r="2.6"/>' for x, y in points]
    return str(chart)


_MANY = 15  # classes from which on a matrix is drawn closer


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Confusion matrix as a table: true classes in rows, predictions in columns, shaded by the share of a row.

    With many classes, columns are numbered from 1.
    """
    many = len(names) > _MANY
    over = [str(number) for number in range(1, len(names) + 1)] if many else names  # where names have no room
    head = "".join(
        f'<th scope="col" title="{escape(name)}">{escape(short)}</th>' for name, short in zip(names, over, strict=True)
    )
    rows = []
    for right, (name, row) in enumerate(zip(names, counts, strict=True)):
        beside = f"{over[right]} {name}" if many and over[right] not in name.split() else name
        total = sum(row) or 1
        cells = "".join(
            f'<td class="{"diagonal" if right == column else "wrong"}" style="--share:{count / total:.3f}">'
            f"{count if count else ''}</td>"
            for column, count in enumerate(row)
        )
        rows.append(
            f'<tr><th scope="row">{escape(beside)}</th>{cells}<td class="share">{row[right] / total:.1%}</td></tr>'
        )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix">'
        f'<table class="matrix{" close" if many else ""}"><thead><tr>'
        f'<th scope="col">right ↓ answered →</th>{head}<th scope="col">right</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
