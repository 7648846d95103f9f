"""The paper's figure of time against LSTM over the length of a sequence, from what `indrnn bench layer` measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..training.checkpoint import write_atomically

LSTM = "torch.nn.LSTM"
_STEP = re.compile(r"T = (\d+): training step, .*")

Curves = dict[str, list[tuple[int, float, float]]]
"""By layer, for each length: steps, milliseconds, and how many times as quick as an LSTM."""


def curves(measured: Path) -> Curves:
    """The times of a training step by layer and length, from layer.json."""
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
    """Write complexity.json and complexity.png into a folder, and return a table of how many times as quick as LSTM."""
    from .curves import draw_panels
    from .runs import table

    content = json.dumps({**about, "curves": found}, indent=1, ensure_ascii=False)
    write_atomically(out / "complexity.json", (content + "\n").encode())
    shown = {name: points for name, points in found.items() if len(points) > 1}
    draw_panels(
        out / "complexity.png",
        {"a training step": {name: [(T, ms) for T, ms, _ in points] for name, points in shown.items()}},
        across="steps of a sequence",
        up="milliseconds",
    )
    lengths = sorted({T for points in found.values() for T, *_ in points})
    rows = []
    for name, points in found.items():
        ratios = {T: ratio for T, _, ratio in points}
        rows.append([name, *(f"{ratios[T]:.2f}" if T in ratios else "" for T in lengths)])
    return table(", ".join(["layer", *(f"T = {T}" for T in lengths)]), ([*row] for row in rows))
