"""Latency of streaming: one step at batch size 1, with carried state, float32, without gradients."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import IndRNN, IndRNNCell
from .measure import Bench, quantiles, short

UNITS, LAYERS = (128, 512), (1, 6)
CALLS = 50  # of each candidate in a round
OURS = "IndRNNCell"


class Cells(nn.Module):
    """Stacked cells; takes an input and the states of all cells, and returns an output and the new states.

    Args:
        make: makes one cell.
        layers: number of cells.
    """

    def __init__(self, make: Callable[[], nn.Module], layers: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(make() for _ in range(layers))

    def forward(self, x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """Run one step."""
        after = []
        for cell, state in zip(self.cells, states, strict=True):
            new = cell(x, state)
            after.append(new)
            x = new[0] if isinstance(new, tuple) else new
        return x, after


def candidates(units: int, layers: int, device: torch.device) -> dict[str, tuple[nn.Module, Tensor, Any]]:
    """By name: a model, its input, and its initial state."""
    x, h = torch.rand(1, units, device=device), torch.zeros(1, units, device=device)
    together = torch.zeros(layers, 1, units, device=device)

    def cells(cell: type[nn.Module]) -> Cells:
        return Cells(lambda: cell(units, units, device=device), layers)

    return {
        OURS: (cells(IndRNNCell), x, [h] * layers),
        "IndRNN, one step": (IndRNN(units, units, layers, device=device), x[None], together),
        "torch.nn.GRUCell": (cells(nn.GRUCell), x, [h] * layers),
        "torch.nn.LSTMCell": (cells(nn.LSTMCell), x, [(h, h)] * layers),
        "torch.nn.LSTM, one step": (nn.LSTM(units, units, layers, device=device), x[None], (together, together)),
    }


def check_agreement(units: int, layers: int, device: torch.device) -> None:
    """Check that layer and cells, step by step, give the result of the whole sequence."""
    layer = IndRNN(units, units, layers, device=device)
    cells = Cells(lambda: IndRNNCell(units, units, device=device), layers)
    for i, cell in enumerate(cells.cells):
        for name, parameter in cell.named_parameters():
            parameter.copy_(getattr(layer, f"{name}_l{i}"))
    x = torch.rand(20, 1, units, device=device)
    whole, _ = layer(x)
    state, states = torch.zeros(layers, 1, units, device=device), list(torch.zeros(layers, 1, units, device=device))
    for t in range(len(x)):
        step, state = layer(x[t : t + 1], state)
        by_cells, states = cells(x[t], states)
        torch.testing.assert_close(step[0], whole[t], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(by_cells, whole[t], rtol=1e-4, atol=1e-5)


def latencies(bench: Bench, given: dict[str, tuple[nn.Module, Tensor, Any]]) -> dict[str, list[list[float]]]:
    """Microseconds of each call, by candidate and round; the rounds of the candidates are interleaved."""
    states = {name: state for name, (_, _, state) in given.items()}
    raw: dict[str, list[list[float]]] = {name: [] for name in given}
    for i in range(bench.rounds + 1):  # the first is warm-up
        for name, (model, x, _) in given.items():
            took = []
            for _ in range(CALLS):
                bench.wait()
                start = time.perf_counter_ns()
                _, states[name] = model(x, states[name])
                bench.wait()
                took.append((time.perf_counter_ns() - start) / 1e3)
            if i > 0:
                raw[name].append(took)
    return raw


@torch.inference_mode()
def run(bench: Bench) -> None:
    """Measure everything."""
    for units in UNITS:
        for layers in LAYERS:
            check_agreement(units, layers, bench.device)
    for units in UNITS:
        for layers in LAYERS:
            title = f"{units} units, {layers} layer{'s' if layers > 1 else ''}"
            raw = latencies(bench, candidates(units, layers, bench.device))
            bench.say(f"\n{title}: one step at batch 1\n")
            bench.say(f"| | time, as a multiple of {OURS} [20 %, 80 %] | p50, µs | p99, µs |\n|---|---|---|---|")
            by_round = {name: [statistics.median(calls) for calls in rounds] for name, rounds in raw.items()}
            for name, rounds in raw.items():
                ratio = quantiles([a / b for a, b in zip(by_round[name], by_round[OURS], strict=True)])
                calls = sorted(call for each in rounds for call in each)
                p50, p99 = calls[len(calls) // 2], calls[int(len(calls) * 0.99)]
                bench.say(f"| {name} | {'1' if name == OURS else ratio} | {short(p50)} | {short(p99)} |")
                row = {"title": title, "name": name, "base": OURS, "p50_us": p50, "p99_us": p99, "calls": len(calls)}
                bench.rows.append({**row, "ratio": asdict(ratio)})


def draw(bench: Bench, path: Path) -> None:
    """Plot the median and the 99 % quantile of each."""
    from ..figures import new_figure, save_figure

    titles = list(dict.fromkeys(row["title"] for row in bench.rows))
    figure, panels = new_figure(len(titles), width=3.2)
    for axes, title in zip(panels, titles, strict=True):
        rows = [row for row in bench.rows if row["title"] == title]
        places = range(len(rows))
        middle, high = ([row[key] for row in rows] for key in ("p50_us", "p99_us"))
        axes.hlines(places, middle, high, color="0.7", linewidth=1)
        axes.plot(middle, places, "o", color="#1f6f8b", label="p50")
        axes.plot(high, places, "|", color="0.3", markersize=10, label="p99")
        axes.margins(y=0.15)
        axes.set_yticks(places, [row["name"] for row in rows] if axes is panels[0] else [""] * len(rows))
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("µs for one step")
        axes.set_title(title, fontsize=10)
    panels[-1].legend(frameon=False)
    save_figure(figure, path)
