"""The paper's figure of time over sequence length, compared with LSTM, from the results of `indrnn bench layer`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..files import write_atomically

LSTM = "torch.nn.LSTM"
_STEP = re.compile(r"T = (\d+): training step, .*")

Curves = dict[str, list[tuple[int, float, float]]]
"""By layer, for each length: steps, milliseconds, and how many times as quick as an LSTM."""


def curves(measured: Path) -> Curves:
    """Read the times of a training step, by layer and length, from layer.json."""
    if not measured.is_file():
        raise FileNotFoundError(f"measured must be the layer.json that `indrnn bench layer` writes; {measured} is none")
    try:
        rows = json.loads(measured.read_text(encoding="utf-8"))["rows"]
        steps = [(match, row) for row in rows if (match := _STEP.fullmatch(row["title"])) and row["base"] == LSTM]
        found: Curves = {}
        for match, row in steps:
            point = (int(match[1]), float(row["ms"]["median"]), float(row["ratio"]["median"]))
            found.setdefault(row["name"], []).append(point)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"measured: {measured} is not what `indrnn bench layer` writes: {error!r}") from None
    if LSTM not in found:
        raise ValueError(f"measured: {measured} holds no times of {LSTM}")
    return {name: sorted(points) for name, points in found.items()}


def write(found: Curves, about: dict[str, Any], out: Path) -> str:
    """Write complexity.json and complexity.png into a folder, and return a table of the speed-ups over LSTM."""
    from ..tasks.table import markdown

    content = json.dumps({**about, "curves": found}, indent=1, ensure_ascii=False)
    write_atomically(out / "complexity.json", (content + "\n").encode())
    draw(found, out / "complexity.png")
    lengths = sorted({T for points in found.values() for T, *_ in points})
    rows = []
    for name, points in found.items():
        ratios = {T: ratio for T, _, ratio in points}
        rows.append([name, *(f"{ratios[T]:.2f}" if T in ratios else "" for T in lengths)])
    return markdown(", ".join(["layer", *(f"T = {T}" for T in lengths)]), ([*row] for row in rows))


def draw(found: Curves, path: Path) -> Path:
    """Plot time in ms and speed-up over LSTM against the length: IndRNN in thick lines, the LSTM in black."""
    from matplotlib.ticker import LogLocator

    from ..figures import new_figure, save_figure
    from .svg import COLOURS

    figure, axes = new_figure(2, width=5.4)
    shown = {name: points for name, points in found.items() if len(points) > 1}
    others = 0
    for name, points in shown.items():
        ours = name.startswith("IndRNN")
        style: dict[str, Any] = {"color": "black", "marker": "o"}
        if name != LSTM:
            style = {"color": COLOURS[others % len(COLOURS)], "marker": "osD^v<>pX"[others % 9]}
            others += 1
        style |= {"linewidth": 2.2 if ours else 1.2, "linestyle": "-" if ours or name == LSTM else "--"}
        for axis, which in zip(axes, (1, 2), strict=True):
            lengths, values = [point[0] for point in points], [point[which] for point in points]
            axis.plot(lengths, values, label=name, markersize=4, **style)
    ticks = sorted({T for points in shown.values() for T, *_ in points})
    for axis, up in zip(axes, ("milliseconds", f"times as quick as {LSTM}"), strict=True):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(ticks, [f"{T:,}" for T in ticks])
        axis.minorticks_off()
        axis.set_xlabel("steps of a sequence")
        axis.set_ylabel(up)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:,g}")
    axes[0].set_title("a training step")
    axes[1].set_title("against the LSTM")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    save_figure(figure, path)
    return path
