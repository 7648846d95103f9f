"""Training step of the paper's pixel-MNIST networks, compared with their matrix products alone and with LSTM.

A step is forward, loss, backward, clipping, Adam and the constraint; batch 32, T = 784, one pixel a step, float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from indrnn import SequenceClassifier
from indrnn.networks import Network, RecurrentUnit

from .cases import CLASSES, config, update
from .command import Benchmark, start
from .measure import Bench

STEPS, BATCH = 784, 32
NETWORKS = {"plain": "plain, 6 layers of 128", "residual": "residual, 5 blocks of two, 128", "dense": "dense, k = 16"}
PRODUCTS, FUSED = "the matrix products alone", "fused"


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


def products_only(network: Network) -> Network:
    """The network with products in place of recurrent layers."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RecurrentUnit):
                setattr(module, name, ProductOnly(child))
    return network


def check_agreement(device: torch.device) -> None:
    """Check that fused and separate modules, with the same weights and without dropout, give the same logits."""
    x = torch.rand(50, BATCH, 1, device=device)
    for name in NETWORKS:
        plan = config(name, STEPS, dropout=False)
        fused, separate = (
            SequenceClassifier(replace(plan, fused=fused).build(), CLASSES).to(device) for fused in (True, False)
        )
        separate.load_state_dict(fused.state_dict())
        torch.testing.assert_close(fused(x)[0], separate(x)[0], rtol=1e-3, atol=1e-4)


def run(bench: Bench) -> None:
    """Measure everything."""
    check_agreement(bench.device)
    x = torch.rand(STEPS, BATCH, 1, device=bench.device)
    target = torch.randint(CLASSES, (BATCH,), device=bench.device)
    for name, title in list(NETWORKS.items())[: 1 if bench.quick else None]:
        plan = config(name, STEPS, dropout=True)
        networks: dict[str, nn.Module] = {
            PRODUCTS: products_only(plan.build()),
            FUSED: plan.build(),
            "separate modules": replace(plan, fused=False).build(),
        }
        if name == "plain" and not bench.quick:
            networks["torch.nn.LSTM, 6 layers"] = nn.LSTM(1, 128, 6)
        steps = {
            name: update(SequenceClassifier(network, CLASSES).to(bench.device), x, target)
            for name, network in networks.items()
        }
        bench.compare(title, PRODUCTS, steps, slower=True)
        bench.say("\n| | peak of memory, MiB |\n|---|---|")
        for row in bench.titles()[title]:
            row["peak_bytes"] = bench.peak_bytes(steps[row["name"]])
            bench.line(row["name"], f"{row['peak_bytes'] / 2**20:.0f}")


BENCHMARK = Benchmark("network", 15, run)
if __name__ == "__main__":
    start(BENCHMARK)
