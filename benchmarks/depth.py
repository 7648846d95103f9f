"""How gradients reach the first layers of deep networks: their norm at the first and last block, at initialisation.

Plain, residual and dense networks of 6 to 100 recurrent layers, 32 neurons (growth rate 8), batch norm over the
sequence, a random batch of 100 steps classified at the last. Run `python benchmarks/depth.py`; `--json FILE` keeps it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import write_json
from torch import nn

from indrnn.networks import DenseIndRNN, LastStepClassifier, Network, PlainIndRNN, Recurrent, ResidualIndRNN

STEPS, BATCH, INPUTS, HIDDEN, CLASSES, SEEDS = 100, 16, 4, 32, 10, 5
SETTINGS = Recurrent(norm="before", sequence_length=STEPS, long_memory=True)
NETWORKS: dict[str, list[Callable[[], Network]]] = {
    "plain": [partial(PlainIndRNN, INPUTS, HIDDEN, n, SETTINGS) for n in (6, 11, 21, 51, 99)],
    "residual": [partial(ResidualIndRNN, INPUTS, HIDDEN, n, SETTINGS) for n in (3, 5, 10, 25, 49)],
    "dense": [
        partial(DenseIndRNN, INPUTS, 8, blocks, SETTINGS)
        for blocks in ((1, 1), (2, 1, 1), (3, 3, 2), (8, 6, 4), (18, 16, 14))
    ],
}


def gradient_norms(network: Network) -> tuple[float, float]:
    """The norms of the gradients of the first Weight between recurrent layers and of the last."""
    model = LastStepClassifier(network, CLASSES)
    x, target = torch.randn(STEPS, BATCH, INPUTS), torch.randint(CLASSES, (BATCH,))
    F.cross_entropy(model(x)[0], target).backward()
    weights = [m.weight for m in network.modules() if isinstance(m, nn.Linear)]
    norms = [float(w.grad.norm()) for w in weights if w.grad is not None]
    return norms[1], norms[-1]  # the first of all reads the input, and is of another size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    rows = []
    print(f"{'network':10} {'recurrent layers':>16} {'first block':>12} {'last block':>12}   (mean of {SEEDS} seeds)")
    for name, builders in NETWORKS.items():
        for build in builders:
            pairs = []
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                network = build()
                pairs.append(gradient_norms(network))
            first, last = (sum(values) / SEEDS for values in zip(*pairs, strict=True))
            layers = len(network.recurrent_layers)
            print(f"{name:10} {layers:16} {first:12.2e} {last:12.2e}")
            rows.append({"network": name, "recurrent_layers": layers, "first": first, "last": last})
    write_json(options.json, seeds=SEEDS, rows=rows)


if __name__ == "__main__":
    main()
