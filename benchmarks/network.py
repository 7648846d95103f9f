"""What a training step of the paper's pixel-MNIST networks costs, beside their matrix products alone and beside LSTM.

A step is forward, loss, backward, clipping, Adam and the constraint; batch 32, T = 784, one pixel a step, float32. Run
`python benchmarks/network.py`; `--json FILE` keeps what it measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import interleaved, machine, peak_bytes, quantiles, write_json
from torch import Tensor, nn

import indrnn
from indrnn.networks import (
    DenseDropout,
    DenseIndRNN,
    IndRec,
    LastStepClassifier,
    Network,
    PlainIndRNN,
    Recurrent,
    ResidualIndRNN,
)

STEPS, BATCH, CLASSES = 784, 32, 10
SETTINGS = Recurrent(sequence_length=STEPS, long_memory=True)
NETWORKS: dict[str, Callable[[Recurrent], Network]] = {
    "plain, 6 layers of 128": lambda r: PlainIndRNN(1, 128, 6, r, dropout=0.1),
    "residual, 5 blocks of two, 128": lambda r: ResidualIndRNN(1, 128, 5, replace(r, norm="before"), dropout=0.1),
    "dense, k = 16": lambda r: DenseIndRNN(
        1, 16, recurrent=replace(r, norm="before"), dropout=DenseDropout(0.2, 0.1, 0.2, 0.1)
    ),
}


class Nothing(nn.Module):
    """In the place of a recurrent layer: what is left are the matrix products."""

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        """Return x."""
        return x


class LSTMClassifier(nn.Module):
    """As many layers of LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 128, 6)
        self.classifier = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """(T, B, 1) to logits."""
        return self.classifier(self.lstm(x)[0][-1]), None


def products_only(network: Network) -> Network:
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, IndRec):
                setattr(module, name, Nothing())
    return network


def training_step(model: nn.Module) -> Callable[[], None]:
    """One step on a fixed batch of noise."""
    x, target = torch.rand(STEPS, BATCH, 1), torch.randint(CLASSES, (BATCH,))
    optimizer = torch.optim.Adam(indrnn.parameter_groups(model, 1e-4), lr=2e-4)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x)[0], target).backward()
        nn.utils.clip_grad_value_(model.parameters(), 10.0)
        optimizer.step()
        indrnn.constrain_(model)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of interleaved timing (default 15)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    torch.manual_seed(0)
    indrnn.keep_memory()  # for all that is measured here alike
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    rows: list[dict[str, Any]] = []
    for title, build in NETWORKS.items():
        models: dict[str, nn.Module] = {
            "matrix products alone": LastStepClassifier(products_only(build(SETTINGS)), CLASSES),
            "fused": LastStepClassifier(build(SETTINGS), CLASSES),
            "separate modules": LastStepClassifier(build(replace(SETTINGS, fused=False)), CLASSES),
        }
        if title.startswith("plain"):
            models["torch.nn.LSTM, 6 layers"] = LSTMClassifier()
        steps = {name: training_step(model) for name, model in models.items()}
        timings, raw = interleaved(steps, options.rounds, warm_up=2)
        print(f"\n{title}")
        for name, timing in timings.items():
            ratio = quantiles([a / b for a, b in zip(raw[name], raw["matrix products alone"], strict=True)])
            peak = peak_bytes(steps[name])
            shown = f"{ratio.median:5.2f}× [{ratio.low:.2f}, {ratio.high:.2f}] the products"
            took = f"{timing.median:9.1f} ms  [{timing.low:.1f}, {timing.high:.1f}]"
            print(f"  {name:24} {took}   {shown}   peak {peak / 2**20:.0f} MiB")
            row = {"network": title, "name": name, "ms": asdict(timing), "ratio": asdict(ratio), "peak_bytes": peak}
            rows.append(row)
    write_json(options.json, rounds=options.rounds, rows=rows)


if __name__ == "__main__":
    main()
