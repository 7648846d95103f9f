"""Gradient norms in deep networks: of untrained ones by depth, and of a run before and after training.

The untrained have 6 to 100 recurrent layers with batch norm over the sequence, and classify random sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..figures import COLOURS, draw_curves, new_figure
from ..networks import DenseIndRNN, Network, PlainIndRNN, ResidualIndRNN, SequenceClassifier
from ..tasks.table import Results
from ..training import Task
from .gradients import gradient_flow

STEPS, BATCH, INPUTS, HIDDEN, CLASSES = 100, 16, 4, 32, 10
SETTINGS: dict[str, Any] = {"norm_place": "before", "sequence_length": STEPS, "long_memory": True}
BLOCKS = ((1, 1), (2, 1, 1), (3, 3, 2), (8, 6, 4), (18, 16, 14))
NETWORKS: dict[str, list[Callable[[], Network]]] = {
    "plain": [partial(PlainIndRNN, INPUTS, HIDDEN, n, **SETTINGS) for n in (6, 11, 21, 51, 99)],
    "residual": [partial(ResidualIndRNN, INPUTS, HIDDEN, n, **SETTINGS) for n in (3, 5, 10, 25, 49)],
    "dense": [partial(DenseIndRNN, INPUTS, 8, blocks, **SETTINGS) for blocks in BLOCKS],
}


def measure(seeds: int) -> list[dict[str, Any]]:
    """The gradient norms at the first and last block of each of `NETWORKS`, averaged over seeds."""
    rows = []
    for name, build in ((name, build) for name, builders in NETWORKS.items() for build in builders):
        pairs = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            pairs.append(gradient_norms(network := build()))
        first, last = (sum(values) / seeds for values in zip(*pairs, strict=True))
        rows.append({"network": name, "recurrent_layers": len(network.recurrent_layers), "first": first, "last": last})
    return rows


def gradient_norms(network: Network) -> tuple[float, float]:
    """Gradient norms of the first and the last Weight between recurrent layers."""
    model = SequenceClassifier(network, CLASSES)
    x, target = torch.randn(STEPS, BATCH, INPUTS), torch.randint(CLASSES, (BATCH,))
    F.cross_entropy(model(x)[0], target).backward()
    weights = [m.weight for m in network.modules() if isinstance(m, nn.Linear)]
    norms = [float(w.grad.norm()) for w in weights if w.grad is not None]
    return norms[1], norms[-1]  # the first of all reads the input, and is of another size


def before_and_after(
    model: nn.Module, before: Sequence[nn.Module], task: Task, batches: int = 10
) -> list[dict[str, float]]:
    """Gradient norms at the input weights of each layer but the first, averaged over training batches of a task.

    `before` is the same model untrained, one or more random draws. The batches are the first; no model is changed. The
    result has, for each layer from the second on, its number, the mean norm "before" over the draws, and that "after".
    """
    if not before:
        raise ValueError("before must hold at least one model, got none")
    flows = [gradient_flow(network, task, batches)["depth"] for network in (*before, model)]
    if len({len(flow) for flow in flows}) > 1:
        raise ValueError("before must be the same model as the other, got one with other layers")
    untrained = [sum(values) / len(before) for values in zip(*flows[:-1], strict=True)]
    pairs = zip(untrained, flows[-1], strict=True)
    return [{"layer": number, "before": old, "after": new} for number, (old, new) in enumerate(pairs, 2)]


def write(rows: list[dict[str, Any]], seeds: int, results: Results) -> str:
    """Write the norms of untrained networks and a figure, and return a table."""
    figure, (axes,) = new_figure(1)
    for name, colour in zip(NETWORKS, COLOURS, strict=False):
        points = [(row["recurrent_layers"], row["first"], row["last"]) for row in rows if row["network"] == name]
        layers, first, last = zip(*points, strict=True)
        axes.plot(layers, first, color=colour, marker="o", markersize=3, label=name)
        axes.plot(layers, last, color=colour, linestyle="--", linewidth=1)
    axes.set(yscale="log", xlabel="recurrent layers", ylabel="gradient norm at the start")
    axes.set_title("first block (solid) and last (dashed)", fontsize=10)
    axes.legend(frameon=False)
    cells = ([r["network"], r["recurrent_layers"], f"{r['first']:.2e}", f"{r['last']:.2e}"] for r in rows)
    head = "network, recurrent layers, first block, last block"
    return results.write({"torch": torch.__version__, "seeds": seeds, "rows": rows}, figure, head, cells)


def write_run(rows: Sequence[dict[str, float]], about: dict[str, Any], results: Results) -> str:
    """Write the norms of a run and a figure, and return a table."""
    figure, (axes,) = new_figure(1)
    draw_curves(axes, {f"{when} training": [(row["layer"], row[when]) for row in rows] for when in ("before", "after")})
    layers = [row["layer"] for row in rows]
    axes.set_xticks(layers[:: -(-len(layers) // 12)])
    axes.set(xlabel="layer whose input weights the gradient is of", ylabel="mean gradient norm")
    axes.legend(frameon=False)
    cells = ([row["layer"], f"{row['before']:.2e}", f"{row['after']:.2e}"] for row in rows)
    content = {**about, "torch": torch.__version__, "rows": [*rows]}
    return results.write(content, figure, "layer, before training, after", cells)
