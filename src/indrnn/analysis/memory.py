"""Memory of each neuron in steps: by its recurrent weight, and by the gradient over the steps of real sequences.

The influence of a neuron's state k steps back on its current state is ∂h_T/∂h_{T−k} = u^k · σ'_T · … · σ'_{T−k+1}. If
σ' is 1, as for an active ReLU, it is below ε after ln ε / ln |u| steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import is_number
from ..figures import new_figure
from ..layers import EPSILON
from ..ops.autograd import OPS
from ..ops.calls import Forward
from ..ops.reference import THROUGH_ACTIVATION
from ..tasks.table import Results
from ..training.folder import finite
from .neurons import layers_of, per_weight, watched

GROUPS = ("short", "middle", "long")
"""The three ranges of memory."""
BOUNDS = (0.1, 0.5)
"""Ends of the first two by default, as shares of a sequence: short is below a tenth, long is half of it and more."""
GROUP_COLOURS = {"short": "#e69f00", "middle": "#56b4e9", "long": "#0072b2"}
"""Colours of the groups, which colour-blind people can tell apart too."""


@dataclass(frozen=True)
class LayerMemory:
    """The memory of a layer's neurons; each list has one entry per neuron."""

    name: str
    """The recurrent weight's name in the model."""
    u: list[float]
    """Recurrent weights."""
    steps: list[float]
    """Steps until the influence of a state is below ε, while the neuron is active; inf for |u| >= 1, 0 for u = 0."""
    groups: list[str]
    """Groups: short, middle or long."""
    active: list[float] | None = None
    """Mean of σ' over the steps seen: for ReLU, the share at which the neuron is active."""
    measured: list[float] | None = None
    """Mean over the sequences seen of the number of steps before the last whose state reaches it with ε and more."""
    longest: list[float] | None = None
    """Maximum of that number of steps over the sequences seen; see `measured`."""
    difference: float | None = None
    """Largest difference between a measured ∂h_T/∂h_t and u^(T−t) · ∏ σ'."""

    def count(self, group: str) -> int:
        """Number of neurons in a group."""
        return self.groups.count(group)


@dataclass(frozen=True)
class Memory:
    """The result of `memory`."""

    length: int
    """Steps of a sequence."""
    epsilon: float
    """Smallest influence that counts."""
    bounds: tuple[float, float]
    """Ends of short and middle memory, as shares of the length."""
    layers: list[LayerMemory]
    """Layers, in the order in which they run."""
    sequences: int = 0
    """Number of sequences seen; with 0, nothing is measured."""


def steps_of(u: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Steps until |u|^k is below epsilon, ln ε / ln |u|; inf for |u| >= 1, 0 for u = 0."""
    check_settings(epsilon)
    size = u.detach().double().abs()
    steps = math.log(epsilon) / size.log()  # at 0: ln ε / −inf
    return torch.where(size >= 1, math.inf, steps).clamp_min(0.0)


def weight_of(steps: float, epsilon: float = EPSILON) -> float:
    """The |u| whose influence is epsilon after `steps` steps, ε^(1/steps): the inverse of `steps_of`."""
    check_settings(epsilon)
    if not steps > 0:
        raise ValueError(f"steps must be positive, got {steps}")
    return float(epsilon ** (1 / steps))


def ranges(steps: int, epsilon: float = EPSILON, gamma: float = 1.0) -> dict[str, tuple[float, float]]:
    """The paper's table relating weight and memory: the range of |u| for each, for ReLU.

    Returns:
        "long": still effective after `steps` steps, above ε^(1/steps). "short": reduced by then, up to ε^(1/steps).
        "not exploding": up to γ^(1/steps).
    """
    least = weight_of(steps, epsilon)
    if not 0 < gamma < math.inf:
        raise ValueError(f"gamma must be a positive number, got {gamma}")
    return {"long": (least, math.inf), "short": (0.0, least), "not exploding": (0.0, gamma ** (1 / steps))}


def group_of(steps: float, length: int, bounds: tuple[float, float] = BOUNDS) -> str:
    """The group (short, middle or long) of a memory of `steps` steps in sequences of this length."""
    return GROUPS[sum(steps >= bound * length for bound in bounds)]


def memory(
    model: nn.Module,
    length: int | None = None,
    *,
    epsilon: float = EPSILON,
    bounds: tuple[float, float] = BOUNDS,
    run: Callable[[], object] | None = None,
) -> Memory:
    """How many steps each neuron of a model remembers, layer by layer.

    Args:
        model: any model with independent recurrent weights; it is not changed.
        length: sequence length of the task; None for that of the model's bounds, else the longest seen in `run`.
        epsilon: smallest influence that counts.
        bounds: where short memory ends and long memory begins, as fractions of the length.
        run: calls the model on sequences, `lambda: model(x)`; if given, the gradient ∂h_T/∂h_t within each layer, from
            the last step of each sequence back, and how often neurons are active are measured too.

    Example:
        measured = memory(indrnn.load("runs/mnist-6-fast"))
        [layer.count("long") for layer in measured.layers]
    """
    check_settings(epsilon, bounds)
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise ValueError(f"length must be a positive whole number or None, got {length!r}")
    layers = layers_of(model)
    sums = {layer: _Sums(layer.u, epsilon) for layer in layers}
    if run is not None:
        with watched(model, layers, lambda layer, *call: sums[layer].add(*call)):
            run()
    bounded = max(layer.module.bound.options.get("sequence_length") or 0 for layer in layers)
    length = length or bounded or max(layer.longest_sequence for layer in sums.values())
    if not length:
        raise ValueError("length is needed: the model was not built for a sequence_length")
    measured = []
    for layer, layer_sums in sums.items():
        steps: list[float] = steps_of(layer.u, epsilon).tolist()
        groups = [group_of(value, length, bounds) for value in steps]
        measured.append(LayerMemory(layer.name, layer.u.tolist(), steps, groups, **layer_sums.means()))
    return Memory(length, epsilon, bounds, measured, max(layer.count for layer in sums.values()))


class _Sums:
    """Sums over the recurrences of one layer."""

    def __init__(self, u: Tensor, epsilon: float) -> None:
        self.epsilon = epsilon
        self.count = self.longest_sequence = 0
        self.steps, self.sequences, self.derivative, self.memory, self.longest = torch.zeros(5, *u.shape).to(u)
        self.difference = 0.0

    def add(self, neurons: slice, call: Forward, h: Tensor) -> None:
        """Add one recurrence, with x and h (T, B, ..., N)."""
        if not h.numel():  # no step, or no sequence
            return
        T, B, N = h.shape[0], h.shape[1], h.shape[-1]
        wide = h.reshape(T, -1, N).double()
        positions = wide.shape[1] // B
        # The last valid step of each sequence; −1 for one of length 0
        ends = torch.full((B,), T - 1, device=h.device) if call.lengths is None else call.lengths.long() - 1
        ends = ends.repeat_interleave(positions)
        derivative = THROUGH_ACTIVATION[call.activation](torch.ones_like(wide), wide)
        valid = torch.arange(T, device=h.device).unsqueeze(1) <= ends  # (T, B)
        self.count += int((ends >= 0).sum()) if neurons.start == 0 else 0
        self.longest_sequence = max(self.longest_sequence, T)
        self.steps[neurons] += valid.sum().cpu()
        self.sequences[neurons] += (ends >= 0).sum().cpu()
        self.derivative[neurons] += per_weight((derivative * valid.unsqueeze(-1)).sum((0, 1)), neurons).cpu()
        if T < 2:
            return
        # h_{t−1} enters step t as x_t does, but multiplied by u: ∂h_T/∂h_{t−1} = u · ∂h_T/∂x_t
        u = call.u.detach().double()
        enters = u if call.resets is None else u * ~call.resets.repeat_interleave(positions, 1).unsqueeze(-1)
        back = torch.arange(1, T, device=h.device).unsqueeze(1)  # steps from a sequence's end, (T − 1, 1)
        entered = (back - 1).expand(-1, len(ends)) if call.reverse else ends - back + 1
        index = entered.clamp(0, T - 1).unsqueeze(-1).expand(-1, -1, N)
        exists = (back <= ends).unsqueeze(-1)
        # ∂h_T/∂x_t by training's backward pass: one call, as neurons and sequences are independent
        rest = (call.h_0, call.lengths, call.resets, call.activation, call.reverse, None)
        gradient = OPS.recurrence_backward(None, torch.ones_like(h[0]), h, call.u, *rest)[0]
        reaching = (enters * gradient.reshape(T, -1, N).double()).gather(0, index)
        expected = (enters * derivative).gather(0, index).cumprod(0)
        self.difference = max(self.difference, float(((reaching - expected).abs() * exists).max()))
        memory = ((reaching.abs() >= self.epsilon) & exists).long().cumprod(0).sum(0).double()  # (B, N)
        self.memory[neurons] += per_weight(memory.sum(0), neurons).cpu()
        longest = memory.amax(0).view(neurons.stop - neurons.start, -1).amax(-1).cpu()
        self.longest[neurons] = torch.maximum(self.longest[neurons], longest)

    def means(self) -> dict[str, Any]:
        """The measured fields of `LayerMemory`."""
        if not self.count:
            return {}
        active, measured = self.derivative / self.steps, self.memory / self.sequences
        lists = {"active": active.tolist(), "measured": measured.tolist(), "longest": self.longest.tolist()}
        return lists | {"difference": self.difference}


def check_settings(epsilon: float, bounds: tuple[float, float] = BOUNDS) -> None:
    """Raise unless epsilon is a number in (0, 1), and the bounds are positive and in order."""
    if not (is_number(epsilon) and 0 < epsilon < 1):
        raise ValueError(f"epsilon must be a number between 0 and 1, got {epsilon!r}")
    if len(bounds) != 2 or not 0 < bounds[0] < bounds[1] < math.inf:
        raise ValueError(f"bounds must be two positive numbers, the smaller first, got {bounds}")


def in_words(measured: Memory) -> str:
    """A sentence on which weights give short and long memory, by the paper's relation."""
    short, long = (bound * measured.length for bound in measured.bounds)
    below, least = (weight_of(steps, measured.epsilon) for steps in (short, long))
    return (
        f"sequences of {measured.length:,} steps, an influence of {measured.epsilon:g}: short memory is below "
        f"{short:.4g} steps (|u| < {below:.5g}), long from {long:.4g} on (|u| >= {least:.5g})"
    )


def write(measured: Memory, about: dict[str, Any], results: Results) -> str:
    """Write the numbers, a figure and a table, and return the table; an infinite memory is null."""
    content = {**about, **asdict(measured)}
    figure, (by_layer, groups, *seen) = new_figure(3 if measured.sequences else 2, width=4.2)
    length, places = measured.length, range(1, len(measured.layers) + 1)
    rows = []
    for place, layer, written in zip(places, measured.layers, content["layers"], strict=True):
        written["steps"] = [*map(finite, layer.steps)]
        means = ["", ""]
        if layer.active is not None and layer.measured is not None:
            means = [f"{100 * torch.tensor(layer.active).mean():.0f} %", f"{torch.tensor(layer.measured).mean():.1f}"]
        median = torch.tensor(layer.u).abs().median()
        rows.append([place, len(layer.u), *map(layer.count, GROUPS), f"{median:.4f}", *means])
        steps = [min(max(value, 0.3), 4.0 * length) for value in layer.steps]  # without an end: of four lengths
        dots: dict[str, Any] = {"s": 5, "color": [GROUP_COLOURS[group] for group in layer.groups], "linewidths": 0}
        by_layer.scatter((place + torch.linspace(-0.35, 0.35, len(steps))).tolist(), steps, **dots)
        for axis in seen:
            axis.scatter(steps, [max(value, 0.3) for value in layer.measured or ()], **dots)
    by_layer.axhline(length, color="0.5", linestyle="--", linewidth=1)
    beside_axis: dict[str, Any] = {"transform": by_layer.get_yaxis_transform(), "va": "center"}
    by_layer.text(1.01, length, "length of\na sequence", **beside_axis, color="0.4", fontsize=7)
    by_layer.set(yscale="log", ylabel=f"steps until the influence is below {measured.epsilon:g}")
    by_layer.set_title("memory of each neuron (top row: no end)", fontsize=10)
    below = [0.0] * len(measured.layers)
    for group in GROUPS:
        shares = [100 * layer.count(group) / len(layer.u) for layer in measured.layers]
        groups.bar(places, shares, bottom=below, color=GROUP_COLOURS[group], label=group, width=0.8)
        below = [a + b for a, b in zip(below, shares, strict=True)]
    groups.set_ylabel("neurons (%)")
    short, long = (bound * length for bound in measured.bounds)
    groups.set_title(f"short: < {short:.3g} steps, long: ≥ {long:.3g}", fontsize=10)
    figure.legend(*groups.get_legend_handles_labels(), loc="outside right center", frameon=False)
    for axis in (by_layer, groups):
        axis.set(xlabel="layer", xlim=(0.4, len(measured.layers) + 0.6))
    for axis in seen:
        axis.plot([0.3, length], [0.3, length], color="0.5", linestyle="--", linewidth=1)
        axis.set(xscale="log", xlabel="steps by the weight alone (right edge: no end)")
        axis.set(yscale="log", ylabel="steps measured on sequences")
        axis.set_title("dashed: active at every step; bottom row: none", fontsize=10)
    head = "layer, neurons, short, middle, long, median size of u, active, measured steps"
    return results.write(content, figure, head, rows)
