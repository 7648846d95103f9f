"""Sequences per second in training and testing at the shapes of NTU RGB+D, compared with `torch.nn.LSTM`.

20 frames of 150 numbers (two bodies of 25 joints), batch 128, 60 classes, float32, random data. A training step is
forward, loss, backward, clipping, Adam and the constraint; testing is the forward pass in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from indrnn import Dense, Plain, SequenceClassifier

from .cases import update
from .command import Benchmark, start
from .measure import Bench, quantiles, ratios, short

FRAMES, INPUTS, BATCH, CLASSES = 20, 150, 128, 60
REFERENCE = "torch.nn.LSTM, 6 × 512"
SHARED: dict[str, Any] = {"gamma": 5.0, "sequence_length": FRAMES, "long_memory": True}
DROPOUT: dict[str, Any] = {
    "first_dropout": 0.5,
    "dense_dropout": 0.5,
    "bottleneck_dropout": 0.1,
    "transition_dropout": 0.3,
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "IndRNN, 6 × 512": Plain(INPUTS, 512, 6, dropout=0.4, **SHARED).build,
    "IndRNN, 4 × 512": Plain(INPUTS, 512, 4, dropout=0.4, **SHARED).build,
    "dense IndRNN, k = 48": Dense(INPUTS, 48, **DROPOUT, **SHARED).build,
    REFERENCE: partial(nn.LSTM, INPUTS, 512, 6, dropout=0.5),
    "torch.nn.LSTM, 2 × 512": partial(nn.LSTM, INPUTS, 512, 2, dropout=0.5),
    "torch.nn.LSTM, 2 × 128": partial(nn.LSTM, INPUTS, 128, 2, dropout=0.5),
}


def testing(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """The predictions for a fixed batch."""

    def run() -> None:
        model.eval()
        with torch.inference_mode():
            model(x)

    return run


def run(bench: Bench) -> None:
    """Measure everything."""
    x = torch.randn(FRAMES, BATCH, INPUTS, device=bench.device)
    target = torch.randint(CLASSES, (BATCH,), device=bench.device)
    models = {name: SequenceClassifier(make(), CLASSES).to(bench.device) for name, make in MODELS.items()}
    for title, candidates in (
        ("training", {name: update(model, x, target) for name, model in models.items()}),
        ("testing", {name: testing(model, x) for name, model in models.items()}),
    ):
        raw = bench.interleaved(candidates)
        columns = ("", "parameters", "sequences a second [20 %, 80 %]", f"as a multiple of {REFERENCE}")
        bench.head(f"{title}: {FRAMES} frames, {INPUTS} inputs, batch {BATCH}", *columns)
        for name, ms in raw.items():
            speed, ratio = quantiles(BATCH / each * 1e3 for each in ms), ratios(raw[REFERENCE], ms)
            parameters = sum(parameter.numel() for parameter in models[name].parameters())
            bench.line(name, f"{parameters:,}", speed, short(ratio.median))
            bench.keep(title=title, name=name, per_second=speed, ratio=ratio)


BENCHMARK = Benchmark("skeleton", 15, run)
if __name__ == "__main__":
    start(BENCHMARK)
