"""Training step of the paper's pixel-MNIST networks, compared with their matrix products alone and with LSTM.

A step is forward, loss, backward, clipping, Adam and the constraint; batch 32, T = 784, one pixel a step, float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import constrain_, parameter_groups
from ..networks import Dense, Network, NetworkConfig, Plain, RecurrentUnit, Residual, SequenceClassifier
from .measure import Bench

STEPS, BATCH, CLASSES = 784, 32, 10
NETWORKS: dict[str, NetworkConfig] = {
    "plain, 6 layers of 128": Plain(1, 128, 6, dropout=0.1, sequence_length=STEPS, long_memory=True),
    "residual, 5 blocks of two, 128": Residual(1, 128, 5, dropout=0.1, sequence_length=STEPS, long_memory=True),
    "dense, k = 16": Dense(
        *(1, 16),
        first_dropout=0.2,
        bottleneck_dropout=0.1,
        dense_dropout=0.2,
        transition_dropout=0.1,
        sequence_length=STEPS,
        long_memory=True,
    ),
}
PRODUCTS = "the matrix products alone"


class ProductOnly(nn.Module):
    """Replaces a recurrent layer by its matrix product alone."""

    def __init__(self, unit: RecurrentUnit) -> None:
        super().__init__()
        self.weight, self.size = unit.weight, unit.size

    def forward(self, x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return the product, and a state of zeros."""
        if self.weight is not None:
            x = F.linear(x, self.weight.weight)  # type: ignore[arg-type]
        return x, x.new_zeros(x.shape[1], self.size)


class LSTMClassifier(nn.Module):
    """As many LSTM layers, with a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 128, 6)
        self.classifier = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """(T, B, 1) to logits."""
        return self.classifier(self.lstm(x)[0][-1]), None


def products_only(network: Network) -> Network:
    """The network with products in place of recurrent layers."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RecurrentUnit):
                setattr(module, name, ProductOnly(child))
    return network


def training_step(model: nn.Module, device: torch.device) -> Callable[[], None]:
    """A training step on a fixed batch of noise."""
    x, target = torch.rand(STEPS, BATCH, 1, device=device), torch.randint(CLASSES, (BATCH,), device=device)
    return update_on(model.to(device), x, target)


def update_on(model: nn.Module, x: Tensor, target: Tensor) -> Callable[[], None]:
    """A training step on this batch: forward, loss, backward, clipping, Adam and the constraint."""
    optimizer = torch.optim.Adam(parameter_groups(model, 1e-4), lr=2e-4)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x)[0], target).backward()
        nn.utils.clip_grad_value_(model.parameters(), 10.0)
        optimizer.step()
        constrain_(model)

    return run


def check_agreement(device: torch.device) -> None:
    """Check that fused and separate modules, with the same weights, give the same logits."""
    for config in NETWORKS.values():
        fused, apart = (
            SequenceClassifier(replace(config, fused=fused).build(), CLASSES).to(device) for fused in (True, False)
        )
        apart.load_state_dict(fused.state_dict())
        x = torch.rand(50, BATCH, 1, device=device)
        results = []
        for model in (fused, apart):
            for module in model.modules():
                if isinstance(module, RecurrentUnit):
                    module.dropout = 0.0
            torch.manual_seed(0)
            results.append(model(x)[0])
        torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


def run(bench: Bench) -> None:
    """Measure everything."""
    check_agreement(bench.device)
    for title, config in list(NETWORKS.items())[: 1 if bench.quick else None]:
        models: dict[str, nn.Module] = {
            PRODUCTS: SequenceClassifier(products_only(config.build()), CLASSES),
            "fused": SequenceClassifier(config.build(), CLASSES),
            "separate modules": SequenceClassifier(replace(config, fused=False).build(), CLASSES),
        }
        if title.startswith("plain") and not bench.quick:
            models["torch.nn.LSTM, 6 layers"] = LSTMClassifier()
        steps = {name: training_step(model, bench.device) for name, model in models.items()}
        bench.compare(title, PRODUCTS, steps, slower=True)
        bench.say("\n| | peak of memory, MiB |\n|---|---|")
        for name, step in steps.items():
            peak = bench.peak_bytes(step)
            bench.say(f"| {name} | {peak / 2**20:.0f} |")
            next(row for row in bench.rows if (row["title"], row["name"]) == (title, name))["peak_bytes"] = peak


def draw(bench: Bench, path: Path) -> None:
    """Draw the times as multiples of the products'."""
    from ..figures import new_figure, save_figure

    titles, names = (list(dict.fromkeys(row[key] for row in bench.rows)) for key in ("title", "name"))
    figure, panels = new_figure(len(titles), width=3.6)
    for axes, title in zip(panels, titles, strict=True):
        rows = [row for row in bench.rows if row["title"] == title]
        middle = [row["ratio"]["median"] for row in rows]
        spread = [[abs(row["ratio"][end] - row["ratio"]["median"]) for row in rows] for end in ("low", "high")]
        places = [names.index(row["name"]) for row in rows]
        bars = axes.barh(places, middle, xerr=spread, color="#4fa3bf", error_kw={"linewidth": 0.8})
        axes.bar_label(bars, [f"{value:.2f}×" for value in middle], fontsize=8, padding=3)
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("time of a step, products = 1")
        axes.margins(x=0.2)
    save_figure(figure, path)
