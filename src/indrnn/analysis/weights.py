"""Histograms of the recurrent weights by layer, before and after training: the paper's figure of section 5.3.3."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checks import check_count
from ..figures import add_legend, new_figure
from ..tasks.table import Results
from .neurons import layers_of

NEAR = 0.1
"""Distance from 0 or from 1 up to which a |u| is near it."""


@dataclass(frozen=True)
class LayerWeights:
    """The recurrent weights of a layer."""

    name: str
    """The weight's name in the model."""
    after: list[float]
    """Weights after training, one for each neuron."""
    before: list[float] | None
    """Weights before training; None if they are not known."""
    counts_after: list[int]
    """Neurons in each bin; the bins are the same for all layers."""
    counts_before: list[int] | None
    """Neurons in each bin before training."""
    near_zero: float
    """Share of neurons with |u| < 0.1 after training: they hardly remember the step before."""
    near_one: float
    """Share of neurons with |u| >= 0.9 after training."""
    negative: float
    """Share of neurons with u < 0 after training."""


@dataclass(frozen=True)
class Weights:
    """The result of `weights`."""

    edges: list[float]
    """Edges of the bins, one more than bins."""
    layers: list[LayerWeights]
    """Layers, in the order in which they run."""


def weights(model: nn.Module, before: nn.Module | None = None, *, bins: int = 40) -> Weights:
    """The recurrent weights of any model that has them, layer by layer, and their histograms.

    `before` is the same model with its initial weights; None if they are not known. The bins go from the least to the
    largest weight of all layers, and always include 0 and 1.
    """
    check_count("bins", bins)
    layers = layers_of(model)
    earlier = [] if before is None else layers_of(before)
    if earlier and [(e.name, e.u.shape) for e in earlier] != [(e.name, e.u.shape) for e in layers]:
        raise ValueError("before must be the same model as the other, got one with other recurrent layers")
    every = torch.cat([layer.u for layer in (*layers, *earlier)])
    edges = np.linspace(min(0.0, float(every.min())), max(1.0, float(every.max())), bins + 1)
    histograms = []
    for layer, old in itertools.zip_longest(layers, earlier):
        values = [layer.u.tolist(), None if old is None else old.u.tolist()]
        counts = [None if u is None else np.histogram(u, edges)[0].tolist() for u in values]
        fields: list[Any] = [*values, *counts, *_near(layer.u), float((layer.u < 0).double().mean())]
        histograms.append(LayerWeights(layer.name, *fields))
    return Weights(edges.tolist(), histograms)


def _near(u: Tensor) -> tuple[float, float]:
    """Shares of neurons whose |u| is near 0 and near 1."""
    return float((u.abs() < NEAR).double().mean()), float((u.abs() >= 1 - NEAR).double().mean())


def write(counted: Weights, about: dict[str, Any], results: Results) -> str:
    """Write the numbers, a figure (filled after training, outlined before) and a table, and return the table."""
    rows: list[list[object]] = []
    figure, axes = new_figure(len(counted.layers), 2.6, 2.2, across=min(6, len(counted.layers)))
    for number, (axis, layer) in enumerate(zip(axes, counted.layers, strict=True), 1):
        zero, one = (None, None) if layer.before is None else _near(torch.tensor(layer.before))
        shares = (zero, layer.near_zero, one, layer.near_one, layer.negative)
        rows.append([number, len(layer.after), *("" if share is None else f"{100 * share:.0f} %" for share in shares)])
        axis.stairs(layer.counts_after, counted.edges, fill=True, color="#56b4e9", label="after training")
        if layer.counts_before is not None:
            axis.stairs(layer.counts_before, counted.edges, color="#d55e00", linewidth=1.2, label="before")
        axis.set_title(f"layer {number}", fontsize=9)
        axis.set_xlabel("recurrent weight u")
    axes[0].set_ylabel("neurons")
    add_legend(figure)
    head = "layer, neurons, near 0 before, near 0, near 1 before, near 1, negative"
    return results.write({**about, **asdict(counted)}, figure, head, rows)
