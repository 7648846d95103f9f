"""Histograms of the recurrent weights by layer, before and after training: the paper's figure of section 5.3.3."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..checks import check_count
from ..figures import new_grid
from ..tasks.table import markdown
from .neurons import layers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..tasks.results import Results

NEAR = 0.1
"""How far from 0 or from 1 a |u| counts as near it."""


@dataclass(frozen=True)
class LayerWeights:
    """The recurrent weights of a layer."""

    name: str
    """The weight's name in the model."""
    after: list[float]
    """u of each neuron."""
    before: list[float] | None
    """The same before training, where that is known."""
    counts_after: list[int]
    """Neurons in each bin; the bins are the same for all layers."""
    counts_before: list[int] | None
    near_zero: float
    """The share of neurons with |u| < 0.1 after training: they hardly remember the step before."""
    near_one: float
    """The share with 0.9 <= |u|."""
    negative: float
    """The share with u < 0."""


@dataclass(frozen=True)
class Weights:
    """The result of `weights`."""

    edges: list[float]
    """Of the bins, one more than bins."""
    layers: list[LayerWeights]


def weights(model: nn.Module, before: nn.Module | None = None, *, bins: int = 40) -> Weights:
    """The recurrent weights of a model and their histograms, layer by layer.

    Args:
        model: any model with independent recurrent weights.
        before: the same model with its initial weights; None if they are not known.
        bins: number of histogram bins, from the least to the largest weight of all layers, always including 0 and 1.
    """
    check_count("bins", bins)
    layers = layers_of(model)
    earlier = None if before is None else layers_of(before)
    if earlier is not None:
        shapes = [[(layer.name, layer.u.shape) for layer in each] for each in (layers, earlier)]
        if shapes[0] != shapes[1]:
            raise ValueError("before must be the same model as the other, got one with other recurrent layers")
    every = torch.cat([layer.u for layer in (*layers, *(earlier or []))])
    edges = np.linspace(min(0.0, float(every.min())), max(1.0, float(every.max())), bins + 1)
    found = []
    for place, layer in enumerate(layers):
        u = layer.u
        old = None if earlier is None else earlier[place].u
        found.append(
            LayerWeights(
                name=layer.name,
                after=u.tolist(),
                before=None if old is None else old.tolist(),
                counts_after=np.histogram(u.numpy(), edges)[0].tolist(),
                counts_before=None if old is None else np.histogram(old.numpy(), edges)[0].tolist(),
                near_zero=_share(u.abs() < NEAR),
                near_one=_share(u.abs() >= 1 - NEAR),
                negative=_share(u < 0),
            )
        )
    return Weights(edges.tolist(), found)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(which: torch.Tensor) -> float:
    return float(which.double().mean())


def write(counted: Weights, about: dict[str, Any], results: Results) -> str:
    """Write the numbers, a figure and a table, and return the table."""
    head = "layer, neurons, near 0 before, near 0, near 1 before, near 1, negative"
    rows = []
    for number, layer in enumerate(counted.layers, 1):
        old = None if layer.before is None else torch.tensor(layer.before).abs()
        earlier = ["", ""] if old is None else [_percent(_share(old < NEAR)), _percent(_share(old >= 1 - NEAR))]
        now = [_percent(share) for share in (layer.near_zero, layer.near_one, layer.negative)]
        rows.append([number, len(layer.after), earlier[0], now[0], earlier[1], now[1], now[2]])
    table = markdown(head, rows)
    results.write({**about, **asdict(counted)}, draw(counted), table)
    return table


def draw(counted: Weights) -> Figure:
    """A panel for each layer, in rows of six: filled after training, outlined before."""
    figure, axes = new_grid(len(counted.layers), across=min(6, len(counted.layers)))
    for number, (axis, layer) in enumerate(zip(axes, counted.layers, strict=True), 1):
        axis.stairs(layer.counts_after, counted.edges, fill=True, color="#56b4e9", label="after training")
        if layer.counts_before is not None:
            axis.stairs(layer.counts_before, counted.edges, color="#d55e00", linewidth=1.2, label="before")
        axis.set_title(f"layer {number}", fontsize=9)
        axis.set_xlabel("recurrent weight u")
    axes[0].set_ylabel("neurons")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure
