"""Sequences per second in training and testing at the shapes of NTU RGB+D, compared with `torch.nn.LSTM`.

20 frames of 150 numbers (two bodies of 25 joints), batch 128, 60 classes, float32, random data. A training step is
forward, loss, backward, clipping, Adam and the constraint; testing is the forward pass in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from ..networks import Dense, NetworkConfig, Plain, SequenceClassifier
from .measure import Bench, quantiles, short
from .network import update_on

FRAMES, INPUTS, BATCH, CLASSES = 20, 150, 128, 60
REFERENCE = "torch.nn.LSTM, 6 × 512"
NETWORKS: dict[str, NetworkConfig] = {
    "IndRNN, 6 × 512": Plain(INPUTS, 512, 6, dropout=0.4, gamma=5.0, sequence_length=FRAMES, long_memory=True),
    "IndRNN, 4 × 512": Plain(INPUTS, 512, 4, dropout=0.4, gamma=5.0, sequence_length=FRAMES, long_memory=True),
    "dense IndRNN, k = 48": Dense(
        *(INPUTS, 48),
        first_dropout=0.5,
        dense_dropout=0.5,
        bottleneck_dropout=0.1,
        transition_dropout=0.3,
        gamma=5.0,
        sequence_length=FRAMES,
        long_memory=True,
    ),
}
LSTMS = {REFERENCE: (512, 6), "torch.nn.LSTM, 2 × 512": (512, 2), "torch.nn.LSTM, 2 × 128": (128, 2)}


class LSTMClassifier(nn.Module):
    """Layers of LSTM with dropout between them, and a classifier on the last step."""

    def __init__(self, size: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(INPUTS, size, layers, dropout=0.5)
        self.classifier = nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """(T, B, inputs) to logits."""
        return self.classifier(self.lstm(x)[0][-1]), None


def models() -> dict[str, nn.Module]:
    """All models to measure, by name."""
    ours: dict[str, nn.Module] = {
        name: SequenceClassifier(config.build(), CLASSES) for name, config in NETWORKS.items()
    }
    return ours | {name: LSTMClassifier(*sizes) for name, sizes in LSTMS.items()}


def testing(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """The predictions for a fixed batch."""

    def run() -> None:
        model.eval()
        with torch.inference_mode():
            model(x)

    return run


def run(bench: Bench) -> None:
    """Measure everything."""
    device = bench.device
    x = torch.randn(FRAMES, BATCH, INPUTS, device=device)
    target = torch.randint(CLASSES, (BATCH,), device=device)
    built = {name: model.to(device) for name, model in models().items()}
    sizes = {name: sum(parameter.numel() for parameter in model.parameters()) for name, model in built.items()}
    for title, candidates in (
        ("training", {name: update_on(model, x, target) for name, model in built.items()}),
        ("testing", {name: testing(model, x) for name, model in built.items()}),
    ):
        raw = bench.interleaved(candidates)
        bench.say(f"\n{title}: {FRAMES} frames, {INPUTS} inputs, batch {BATCH}\n")
        bench.say(
            f"| | parameters | sequences a second [20 %, 80 %] | as a multiple of {REFERENCE} |\n|---|---|---|---|"
        )
        for name, took in raw.items():
            speed = quantiles([BATCH / each * 1e3 for each in took])
            ratio = quantiles([a / b for a, b in zip(raw[REFERENCE], took, strict=True)])
            bench.say(f"| {name} | {sizes[name]:,} | {speed} | {short(ratio.median)} |")
            bench.rows.append({"title": title, "name": name, "per_second": asdict(speed), "ratio": asdict(ratio)})


def draw(bench: Bench, path: Path) -> None:
    """Draw sequences per second."""
    from ..figures import new_figure, save_figure

    figure, panels = new_figure(2, width=4.5)
    for axes, title in zip(panels, ("training", "testing"), strict=True):
        rows = [row for row in bench.rows if row["title"] == title]
        bars = axes.barh(range(len(rows)), [row["per_second"]["median"] for row in rows], color="#1f6f8b")
        axes.bar_label(bars, [f"{row['ratio']['median']:.1f}×" for row in rows], fontsize=8, padding=3)
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows] if title == "training" else [""] * len(rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"sequences a second, {title}")
        axes.margins(x=0.15)
    save_figure(figure, path)
