"""Latency of streaming: one step at batch size 1, with carried state, float32, without gradients."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from indrnn import IndRNN, IndRNNCell

from .command import Benchmark, start
from .measure import Bench, ratios, short

UNITS, LAYERS = (128, 512), (1, 6)
CALLS = 50  # of each candidate in a round
OURS = "IndRNNCell"
Streams = dict[str, tuple[nn.Module, Tensor, Any]]
"""By name: a model, its input, and its initial state."""


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
            after.append(cell(x, state))
            x = after[-1][0] if isinstance(after[-1], tuple) else after[-1]
        return x, after


def streams(units: int, layers: int, device: torch.device) -> Streams:
    """All that is measured."""
    x, h = torch.rand(1, units, device=device), torch.zeros(1, units, device=device)
    stacked = torch.zeros(layers, 1, units, device=device)

    def cells(cell: type[nn.Module]) -> Cells:
        return Cells(lambda: cell(units, units, device=device), layers)

    return {
        OURS: (cells(IndRNNCell), x, [h] * layers),
        "IndRNN, one step": (IndRNN(units, units, layers, device=device), x[None], stacked),
        "torch.nn.GRUCell": (cells(nn.GRUCell), x, [h] * layers),
        "torch.nn.LSTMCell": (cells(nn.LSTMCell), x, [(h, h)] * layers),
        "torch.nn.LSTM, one step": (nn.LSTM(units, units, layers, device=device), x[None], (stacked, stacked)),
    }


def check_agreement(units: int, layers: int, device: torch.device) -> None:
    """Check that layer and cells, step by step, give the result of the whole sequence."""
    (cells, _, states), (layer, _, state), *_ = streams(units, layers, device).values()
    for i, cell in enumerate(cells.cells):  # type: ignore[arg-type]
        for name, parameter in cell.named_parameters():
            parameter.copy_(getattr(layer, f"{name}_l{i}"))
    x = torch.rand(20, 1, units, device=device)
    whole, _ = layer(x)
    for t in range(len(x)):
        step, state = layer(x[t : t + 1], state)
        by_cells, states = cells(x[t], states)
        torch.testing.assert_close(step[0], whole[t], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(by_cells, whole[t], rtol=1e-4, atol=1e-5)


def latencies(bench: Bench, candidates: Streams) -> dict[str, list[list[float]]]:
    """Microseconds of each call, by candidate and round; the rounds of the candidates are interleaved."""
    states = {name: state for name, (_, _, state) in candidates.items()}
    raw: dict[str, list[list[float]]] = {name: [] for name in candidates}
    for i in range(bench.rounds + 1):  # the first is warm-up
        for name, (model, x, _) in candidates.items():
            calls = []
            for _ in range(CALLS):
                start = time.perf_counter_ns()
                _, states[name] = model(x, states[name])
                bench.wait()
                calls.append((time.perf_counter_ns() - start) / 1e3)
            if i > 0:
                raw[name].append(calls)
    return raw


@torch.inference_mode()
def run(bench: Bench) -> None:
    """Measure everything."""
    sizes = list(itertools.product(UNITS, LAYERS))
    for units, layers in sizes:
        check_agreement(units, layers, bench.device)
    for units, layers in sizes:
        title = f"{units} units, {layers} layer{'s' if layers > 1 else ''}"
        raw = latencies(bench, streams(units, layers, bench.device))
        columns = ("", f"time, as a multiple of {OURS} [20 %, 80 %]", "p50, µs", "p99, µs")
        bench.head(f"{title}: one step at batch 1", *columns)
        by_round = {name: [statistics.median(calls) for calls in rounds] for name, rounds in raw.items()}
        for name, rounds in raw.items():
            ratio, calls = ratios(by_round[name], by_round[OURS]), sorted(itertools.chain(*rounds))
            p50, p99 = calls[len(calls) // 2], calls[int(len(calls) * 0.99)]
            bench.line(name, 1 if name == OURS else ratio, short(p50), short(p99))
            numbers = {"p50_us": p50, "p99_us": p99, "calls": len(calls)}
            bench.keep(title=title, name=name, base=OURS, **numbers, ratio=ratio)


BENCHMARK = Benchmark("stream", 20, run)
if __name__ == "__main__":
    start(BENCHMARK)
