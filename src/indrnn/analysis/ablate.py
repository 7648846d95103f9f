"""Ablation by memory: a task's metric with the neurons of a range of memory silenced, layer by layer.

A range matters if it costs more than its control: as many neurons of the same layers, drawn at random.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..figures import add_legend, new_figure
from ..layers import EPSILON
from ..networks.unit import RecurrentUnit
from ..ops.calls import Forward
from ..tasks.table import Results
from ..training.evaluation import measure
from ..training.task import Task, generator
from .memory import BOUNDS, GROUP_COLOURS, GROUPS, LayerMemory, memory
from .neurons import Layer, layers_of, some, watched


@dataclass(frozen=True)
class Ablation:
    """The metric of a model with one group of neurons silenced."""

    layer: int | None
    """Number of the layer, from 1; None for all layers at once."""
    group: str
    """Group: short, middle or long."""
    neurons: int
    """Number of neurons silenced."""
    value: float
    """Metric without these neurons."""
    control: float | None
    """Mean of the metric without as many random neurons of the same layers; None without controls."""


@dataclass(frozen=True)
class Ablated:
    """The result of `ablate`."""

    metric: str
    """Metric: the task's accuracy where it measures one, else that by which its weights are chosen."""
    higher_is_better: bool
    """Direction of the metric."""
    items: int
    """Minimum number of validation items."""
    whole: float
    """Metric with all neurons."""
    length: int
    """Steps of a sequence."""
    bounds: tuple[float, float]
    """Ends of short and middle memory, as shares of the length."""
    epsilon: float
    """Smallest influence that counts as memory."""
    rows: list[Ablation]
    """Results by layer and group."""


@contextlib.contextmanager
def silenced(model: nn.Module, neurons: dict[str, Tensor]) -> Iterator[None]:
    """Make some neurons output zero, in evaluation mode and without gradients; the weights are not changed.

    `neurons` holds bool masks (N,) of those to silence, by the name of the layer's weight, as `LayerMemory.name`.
    """
    layers = {layer.name: layer for layer in layers_of(model)}
    for name, mask in neurons.items():
        if name not in layers:
            raise ValueError(f"neurons must be named as one of {', '.join(layers)}, got {name!r}")
        if mask.dtype != torch.bool or mask.shape != layers[name].u.shape:
            raise ValueError(f"neurons of {name} must be {len(layers[name].u)} booleans, got {mask.dtype}")
    units = {name for name in neurons if isinstance(layers[name].module, RecurrentUnit)}  # silent after their norm

    def inside(layer: Layer, part: slice, call: Forward, h: Tensor) -> Tensor | None:
        if layer.name in units or layer.name not in neurons:
            return None
        mask = neurons[layer.name][part]
        mask = mask.repeat_interleave(h.shape[-1] // len(mask)).to(h.device)  # over positions
        return h.masked_fill(mask, 0.0)

    def output_of(mask: Tensor, _: nn.Module, __: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return output[0].masked_fill(mask.to(output[0].device), 0.0), output[1]

    with contextlib.ExitStack() as stack:
        for name in units:
            stack.callback(layers[name].module.register_forward_hook(partial(output_of, neurons[name])).remove)
        stack.enter_context(watched(model, [*layers.values()], inside))
        yield


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

    The model, which is not changed, and `length`, `epsilon` and `bounds` are as for `memory`. The task's metric is
    measured on at least `items` items of its validation data. `controls` is the number of random draws, from `seed`,
    that each group is compared with; 0 for none.
    """
    check_count("items", items)
    check_count("controls", controls, 0)

    def measured(neurons: dict[str, Tensor]) -> dict[str, float]:
        with silenced(model, neurons):
            return measure(some(task, model, items), task=task) or {}

    def shuffled(mask: Tensor) -> Tensor:
        return mask[torch.randperm(len(mask), generator=random)]

    run = None if length else lambda: next(some(task, model, 1))
    memories = memory(model, length, epsilon=epsilon, bounds=bounds, run=run)
    whole = measured({})
    # Accuracy where it is measured, and not a loss that the weights were chosen by: what the answer loses
    metric = next((name for name in whole if name.endswith("accuracy")), task.metric)
    random = generator(seed, "ablate")
    places: dict[int | None, list[LayerMemory]] = {n: [layer] for n, layer in enumerate(memories.layers, 1)}
    if len(places) > 1:
        places[None] = memories.layers
    rows = []
    for (place, layers), group in itertools.product(places.items(), GROUPS):
        masks = {layer.name: torch.tensor([own == group for own in layer.groups]) for layer in layers}
        count = sum(int(mask.sum()) for mask in masks.values())
        if not count:
            continue
        without = measured(masks)[metric]
        draws = [measured({name: shuffled(mask) for name, mask in masks.items()}) for _ in range(controls)]
        control = sum(draw[metric] for draw in draws) / controls if controls else None
        rows.append(Ablation(place, group, count, without, control))
    higher = metric != task.metric or task.higher_is_better
    return Ablated(metric, higher, items, whole[metric], memories.length, bounds, epsilon, rows)


def write(measured: Ablated, about: dict[str, Any], results: Results) -> str:
    """Write the numbers, a figure (random draws are diamonds, all neurons a line) and a table, and return the table."""
    lines: list[Sequence[object]] = [["all", "none", 0, f"{measured.whole:.4g}", ""]]
    places = [*dict.fromkeys(row.layer for row in measured.rows)]
    figure, (axis,) = new_figure(1, width=max(5.0, 1.2 * len(places)))
    for row in measured.rows:
        control = "" if row.control is None else f"{row.control:.4g}"
        lines.append([row.layer or "all", row.group, row.neurons, f"{row.value:.4g}", control])
        x = places.index(row.layer) + (GROUPS.index(row.group) - 1) * 0.27
        axis.bar(x, row.value, 0.25, color=GROUP_COLOURS[row.group], label=row.group)
        # Under the axis, where neither bars nor dots are
        under: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "top"}
        axis.text(x, -0.015, str(row.neurons), **under, fontsize=6.5, color="0.3")
        if row.control is not None:
            axis.plot(x, row.control, "D", color="0.15", markersize=3.5, label="as many at random")
    axis.axhline(measured.whole, color="0.5", linestyle="--", linewidth=1, label="all neurons")
    if not measured.higher_is_better and measured.whole > 0:
        axis.set_yscale("log")
    axis.set_xticks(range(len(places)), [str(place or "all") for place in places])
    axis.tick_params(axis="x", length=0, pad=13)
    metric = measured.metric.replace("_", " ")
    axis.set(xlabel="layer in which neurons are silenced (small: how many)", ylabel=metric)
    short, long = (f"{bound * measured.length:.3g}" for bound in measured.bounds)
    title = f"{metric} without neurons of short memory (< {short} steps), middle, or long (≥ {long})"
    axis.set_title(title, fontsize=10)
    add_legend(figure)
    head = f"layer, silenced, neurons, {measured.metric}, as many at random"
    return results.write({**about, **asdict(measured)}, figure, head, lines)
