"""Ablation by memory: a task's metric with the neurons of a range of memory silenced, layer by layer.

A silenced neuron outputs zero at every step to whatever reads its layer. Each number has a control: as many neurons of
the same layers, drawn at random. A range matters if it costs more than its control.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..figures import new_figure
from ..layers.options import EPSILON
from ..networks.unit import RecurrentUnit
from ..ops.calls import Forward
from ..tasks.table import markdown
from ..training.evaluation import measure
from ..training.parallel import Processes
from ..training.task import Task, generator
from .memory import BOUNDS, GROUP_COLOURS, GROUPS, Memory, memory
from .neurons import Layer, layers_of, some, watched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..tasks.results import Results


@dataclass(frozen=True)
class Ablation:
    """The metric of a model with one group of neurons silenced."""

    layer: int | None
    """Of which layer, from 1; None for those of all layers at once."""
    group: str
    """short, middle or long."""
    neurons: int
    """How many were silenced."""
    value: float
    """The task's metric without them."""
    control: float | None
    """Mean of the metric without as many neurons of the same layers, drawn at random; None where none was asked for."""


@dataclass(frozen=True)
class Ablated:
    """The result of `ablate`."""

    metric: str
    """The task's accuracy where it measures one, else what its weights are chosen by."""
    higher_is_better: bool
    items: int
    """Validation items that were asked for."""
    whole: float
    """The metric with all neurons."""
    length: int
    bounds: tuple[float, float]
    epsilon: float
    rows: list[Ablation]


@contextlib.contextmanager
def silenced(model: nn.Module, neurons: dict[str, Tensor]) -> Iterator[None]:
    """Make some neurons output zero, in evaluation mode and without gradients; the weights are not changed.

    Args:
        model: any model with independent recurrent weights.
        neurons: bool masks (N,) of the neurons to silence, by the name of the layer's recurrent weight, as
            `LayerMemory.name`.
    """
    layers = layers_of(model)
    by_name = {layer.name: layer for layer in layers}
    for name, which in neurons.items():
        if name not in by_name:
            raise ValueError(f"neurons must be named as one of {', '.join(by_name)}, got {name!r}")
        if which.dtype != torch.bool or which.shape != by_name[name].u.shape:
            raise ValueError(f"neurons of {name} must be {len(by_name[name].u)} booleans, got {which.dtype}")
    handles = [
        layer.module.register_forward_hook(_without(neurons[layer.name]))
        for layer in layers
        if layer.name in neurons and isinstance(layer.module, RecurrentUnit)
    ]

    chosen = neurons

    def inside(layer: Layer, neurons: slice, call: Forward, h: Tensor) -> Tensor | None:
        if layer.name not in chosen or isinstance(layer.module, RecurrentUnit):
            return None
        which = chosen[layer.name][neurons]
        which = which.repeat_interleave(h.shape[-1] // len(which)).to(h.device)  # over positions
        return h.masked_fill(which, 0.0)

    try:
        with watched(model, layers, inside):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _without(which: Tensor) -> Any:
    def hook(_: nn.Module, __: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return output[0].masked_fill(which.to(output[0].device), 0.0), output[1]  # after the norm

    return hook


def ablate(
    model: nn.Module,
    task: Task,
    *,
    items: int = 500,
    length: int | None = None,
    epsilon: float = EPSILON,
    bounds: tuple[float, float] = BOUNDS,
    controls: int = 1,
    seed: int = 0,
) -> Ablated:
    """Measure a task without the neurons of short, middle and long memory, in each layer and in all at once.

    Args:
        model: any model with independent recurrent weights; it is not changed.
        task: its validation data and metric are used.
        items: minimum number of validation items to measure on.
        length: as for `memory`.
        epsilon: as for `memory`.
        bounds: as for `memory`.
        controls: number of random draws as controls for each group; 0 for none.
        seed: seed of the random draws.
    """
    check_count("items", items)
    check_count("controls", controls, 0)

    def measured() -> dict[str, float]:
        return measure(some(task, model, items), Processes(), task=task) or {}

    found = memory(
        model, length, epsilon=epsilon, bounds=bounds, run=None if length else lambda: next(some(task, model, 1))
    )
    with silenced(model, {}):
        first = measured()
    # Accuracy where it is measured, and not a loss that the weights were chosen by: what the answer loses
    metric = next((name for name in first if name.endswith("accuracy")), task.metric)
    random = generator(seed, "ablate")
    rows = []
    places: list[int | None] = [*range(len(found.layers)), None]
    for place in places if len(found.layers) > 1 else places[:-1]:
        for group in GROUPS:
            chosen = _chosen(found, place, group)
            count = sum(int(which.sum()) for which in chosen.values())
            if not count:
                continue
            with silenced(model, chosen):
                without = measured()[metric]
            others = []
            for _ in range(controls):
                with silenced(model, {name: _shuffled(which, random) for name, which in chosen.items()}):
                    others.append(measured()[metric])
            control = sum(others) / controls if controls else None
            rows.append(Ablation(None if place is None else place + 1, group, count, without, control))
    higher = task.higher_is_better if metric == task.metric else True
    return Ablated(metric, higher, items, first[metric], found.length, bounds, epsilon, rows)


def _chosen(found: Memory, place: int | None, group: str) -> dict[str, Tensor]:
    layers = found.layers if place is None else [found.layers[place]]
    return {layer.name: torch.tensor([each == group for each in layer.groups]) for layer in layers}


def _shuffled(which: Tensor, random: torch.Generator) -> Tensor:
    return which[torch.randperm(len(which), generator=random)]


def write(measured: Ablated, about: dict[str, Any], results: Results) -> str:
    """Write the numbers, a figure and a table, and return the table."""
    rows: list[Sequence[object]] = [["all", "none", 0, f"{measured.whole:.4g}", ""]]
    for row in measured.rows:
        control = "" if row.control is None else f"{row.control:.4g}"
        rows.append(["all" if row.layer is None else row.layer, row.group, row.neurons, f"{row.value:.4g}", control])
    table = markdown(f"layer, silenced, neurons, {measured.metric}, as many at random", rows)
    results.write({**about, **asdict(measured)}, draw(measured), table)
    return table


def draw(measured: Ablated) -> Figure:
    """Bars by layer and group, the whole model as a line and the random draws as diamonds."""
    places = list(dict.fromkeys(row.layer for row in measured.rows))
    figure, (axis,) = new_figure(1, width=max(5.0, 1.2 * len(places)))
    labelled: set[str] = set()

    def once(label: str) -> str | None:
        """The label at its first use, for a legend that names each kind once."""
        new = label not in labelled
        labelled.add(label)
        return label if new else None

    for row in measured.rows:
        x = places.index(row.layer) + (GROUPS.index(row.group) - 1) * 0.27
        axis.bar(x, row.value, 0.25, color=GROUP_COLOURS[row.group], label=once(row.group))
        # Under the axis, where neither bars nor dots are
        under: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "top"}
        axis.text(x, -0.015, str(row.neurons), **under, fontsize=6.5, color="0.3")
        if row.control is not None:
            axis.plot(x, row.control, "D", color="0.15", markersize=3.5, label=once("as many at random"))
    axis.axhline(measured.whole, color="0.5", linestyle="--", linewidth=1, label="all neurons")
    if not measured.higher_is_better and measured.whole > 0:
        axis.set_yscale("log")
    axis.set_xticks(range(len(places)), ["all" if place is None else str(place) for place in places])
    axis.tick_params(axis="x", length=0, pad=13)
    axis.set_xlabel("layer in which neurons are silenced (small: how many)")
    metric = measured.metric.replace("_", " ")
    axis.set_ylabel(metric)
    low, high = (bound * measured.length for bound in measured.bounds)
    title = f"{metric} without neurons of short memory (< {low:.3g} steps), middle, or long (≥ {high:.3g})"
    axis.set_title(title, fontsize=10)
    figure.legend(loc="outside right center", frameon=False)
    return figure
