"""Memory of each neuron in steps: by its recurrent weight, and by the gradient over the steps of real sequences.

The influence of a neuron's state k steps back on its current state is ∂h_T/∂h_{T−k} = u^k · σ'_T · … · σ'_{T−k+1}. If
σ' is 1, as for an active ReLU, it is below ε after ln ε / ln |u| steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..figures import new_figure
from ..layers.bound import RecurrentBound
from ..layers.options import EPSILON
from ..ops.autograd import OPS
from ..ops.calls import Forward
from ..ops.reference import THROUGH_ACTIVATION
from ..tasks.table import markdown
from .neurons import Layer, layers_of, per_weight, watched

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..tasks.results import Results

GROUPS = ("short", "middle", "long")
"""The three ranges of memory."""
BOUNDS = (0.1, 0.5)
"""Where they end by default, as shares of a sequence: short is below a tenth, long is half of it and more."""
GROUP_COLOURS = {"short": "#e69f00", "middle": "#56b4e9", "long": "#0072b2"}
"""Of the groups, in pictures: told apart by colour-blind people too."""


@dataclass(frozen=True)
class LayerMemory:
    """The memory of a layer's neurons; each list has one entry per neuron."""

    name: str
    """The recurrent weight's name in the model."""
    u: list[float]
    steps: list[float]
    """Steps until the influence of a state is below ε, while the neuron is active; inf for |u| >= 1, 0 for u = 0."""
    groups: list[str]
    """short, middle or long."""
    active: list[float] | None = None
    """The mean over the steps seen of σ': for ReLU, the share at which the neuron is active."""
    measured: list[float] | None = None
    """Mean over the sequences seen of the number of steps before the last whose state reaches it with ε and more."""
    longest: list[float] | None = None
    """The largest such number."""
    difference: float | None = None
    """The largest difference between a measured ∂h_T/∂h_t and u^(T−t) · ∏ σ'."""

    def count(self, group: str) -> int:
        """Number of neurons in a group."""
        return self.groups.count(group)


@dataclass(frozen=True)
class Memory:
    """The result of `memory`."""

    length: int
    """Steps of a sequence."""
    epsilon: float
    bounds: tuple[float, float]
    layers: list[LayerMemory]
    sequences: int = 0
    """How many were seen; 0 for none, and then nothing is measured."""


def steps_of(u: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Steps until |u|^k is below epsilon, ln ε / ln |u|; inf for |u| >= 1, 0 for u = 0."""
    check_epsilon(epsilon)
    size = u.detach().double().abs()
    steps = math.log(epsilon) / size.log()  # at 0: ln ε / −inf
    return torch.where(size >= 1, math.inf, steps).clamp_min(0.0)


def weight_of(steps: float, epsilon: float = EPSILON) -> float:
    """The |u| whose influence is epsilon after `steps` steps, ε^(1/steps): the inverse of `steps_of`."""
    check_epsilon(epsilon)
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
        found = memory(indrnn.load("runs/mnist-6-fast"))
        [layer.count("long") for layer in found.layers]
    """
    check_epsilon(epsilon)
    check_bounds(bounds)
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise ValueError(f"length must be a positive whole number or None, got {length!r}")
    layers = layers_of(model)
    measured = {layer: _Measured(layer.u, epsilon) for layer in layers}
    if run is not None:
        with watched(model, layers, lambda layer, neurons, call, h: measured[layer].add(neurons, call, h)):
            run()
    if length is None:
        seen = max(each.longest_sequence for each in measured.values())
        length = _bounded_for(layers) or seen
        if not length:
            raise ValueError("length is needed: the model was not built for a sequence_length")
    found = []
    for layer, each in measured.items():
        steps: list[float] = steps_of(layer.u, epsilon).tolist()
        groups = [group_of(value, length, bounds) for value in steps]
        found.append(LayerMemory(layer.name, layer.u.tolist(), steps, groups, **each.numbers()))
    return Memory(length, epsilon, bounds, found, max(each.count for each in measured.values()))


def _bounded_for(layers: list[Layer]) -> int | None:
    bounds = [layer.module.bound for layer in layers]
    known = [bound.options.get("sequence_length") for bound in bounds if isinstance(bound, RecurrentBound)]
    return max((each for each in known if each), default=None)


class _Measured:
    """Sums over the recurrences of one layer."""

    def __init__(self, u: Tensor, epsilon: float) -> None:
        self.epsilon = epsilon
        self.count = self.longest_sequence = 0
        self.steps = torch.zeros_like(u)  # seen by each neuron
        self.sequences = torch.zeros_like(u)
        self.derivative, self.memory, self.longest = (torch.zeros_like(u) for _ in range(3))
        self.difference = 0.0

    def add(self, neurons: slice, call: Forward, h: Tensor) -> None:
        """Add one recurrence, with x and h (T, B, ..., N)."""
        if not h.numel():  # no step, or no sequence
            return
        T, N = h.shape[0], h.shape[-1]
        gradient = _gradient(call, h)
        wide = h.reshape(T, -1, N).double()
        ends = _ends(call, T, h.shape[1]).repeat_interleave(wide.shape[1] // max(1, h.shape[1]))  # (B,)
        derivative = THROUGH_ACTIVATION[call.activation](torch.ones_like(wide), wide)
        valid = torch.arange(T, device=h.device).unsqueeze(1) <= ends  # (T, B)
        self.count += int((ends >= 0).sum()) if neurons.start == 0 else 0
        self.longest_sequence = max(self.longest_sequence, T)
        self.steps[neurons] += valid.sum().cpu()
        self.sequences[neurons] += (ends >= 0).sum().cpu()
        self.derivative[neurons] += per_weight((derivative * valid.unsqueeze(-1)).sum((0, 1)), neurons).cpu()
        if T < 2:
            return
        u = call.u.detach().double()
        at, known = _back(ends, T, call.reverse)
        index = at.unsqueeze(-1).expand(-1, -1, N)
        enters = u if call.resets is None else u * ~call.resets.repeat_interleave(len(ends) // h.shape[1], 1)[..., None]
        reaching = (enters * gradient.reshape(T, -1, N).double()).gather(0, index)
        expected = (enters * derivative).gather(0, index).cumprod(0)
        kept = known.unsqueeze(-1)
        self.difference = max(self.difference, float(((reaching - expected).abs() * kept).max()))
        run = ((reaching.abs() >= self.epsilon) & kept).long().cumprod(0).sum(0).double()  # (B, N)
        self.memory[neurons] += per_weight(run.sum(0), neurons).cpu()
        longest = run.amax(0).view(neurons.stop - neurons.start, -1).amax(-1).cpu()
        self.longest[neurons] = torch.maximum(self.longest[neurons], longest)

    def numbers(self) -> dict[str, Any]:
        """The measured fields of `LayerMemory`."""
        if not self.count:
            return {}
        return {
            "active": (self.derivative / self.steps).tolist(),
            "measured": (self.memory / self.sequences).tolist(),
            "longest": self.longest.tolist(),
            "difference": self.difference,
        }


def _gradient(call: Forward, h: Tensor) -> Tensor:
    """∂h_last/∂x_t, (T, B, ..., N), by training's backward pass: one call, as neurons and sequences are independent."""
    last = torch.ones_like(h[0])
    rest = (call.h_0, call.lengths, call.resets, call.activation, call.reverse, None)
    gradient: Tensor = OPS.recurrence_backward(None, last, h, call.u, *rest)[0]
    return gradient


def _ends(call: Forward, T: int, batch: int) -> Tensor:
    """The last valid step of each sequence, (B,); −1 for one of length 0."""
    if call.lengths is not None:
        return call.lengths.long() - 1
    return torch.full((batch,), T - 1, device=call.x.device)


def _back(ends: Tensor, T: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """For 1 to T − 1 steps back from a sequence's end: the step that the state enters, (T − 1, B), and if it exists.

    h_{t−1} enters step t as x_t does, but multiplied by u: so ∂h_T/∂h_{t−1} = u · ∂h_T/∂x_t.
    """
    back = torch.arange(1, T, device=ends.device).unsqueeze(1)
    known = back <= ends
    at = (back - 1).expand(-1, len(ends)) if reverse else ends - back + 1
    return at.clamp(0, T - 1), known


def check_epsilon(epsilon: float) -> None:
    """Raise unless it is a number in (0, 1)."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be a number between 0 and 1, got {epsilon!r}")


def check_bounds(bounds: tuple[float, float]) -> None:
    """Raise unless they are positive and in order."""
    if len(bounds) != 2 or not 0 < bounds[0] < bounds[1] < math.inf:
        raise ValueError(f"bounds must be two positive numbers, the smaller first, got {bounds}")


# ---- files


def write(measured: Memory, about: dict[str, Any], results: Results) -> str:
    """Write the numbers, a figure and a table, and return the table; an infinite memory is null."""
    content = {**about, **asdict(measured)}
    for layer in content["layers"]:
        layer["steps"] = [value if math.isfinite(value) else None for value in layer["steps"]]
    head = "layer, neurons, short, middle, long, median size of u, active, measured steps"
    rows = []
    for number, layer in enumerate(measured.layers, 1):
        counts = [layer.count(group) for group in GROUPS]
        median = torch.tensor(layer.u).abs().median()
        seen = ["", ""]
        if layer.active is not None and layer.measured is not None:
            active, steps = (torch.tensor(values).mean() for values in (layer.active, layer.measured))
            seen = [f"{100 * active:.0f} %", f"{steps:.1f}"]
        rows.append([number, len(layer.u), *counts, f"{median:.4f}", *seen])
    table = markdown(head, rows)
    results.write(content, draw(measured), table)
    return table


def in_words(found: Memory) -> str:
    """A sentence on which weights give short and long memory, by the paper's relation."""
    (short, below), (long, least) = (
        (bound * found.length, weight_of(bound * found.length, found.epsilon)) for bound in found.bounds
    )
    return (
        f"sequences of {found.length:,} steps, an influence of {found.epsilon:g}: short memory is below "
        f"{short:.4g} steps (|u| < {below:.5g}), long from {long:.4g} on (|u| >= {least:.5g})"
    )


def draw(measured: Memory) -> Figure:
    """The memory of each neuron by layer, the groups, and, if measured, measured against expected memory."""
    seen = measured.sequences > 0
    figure, axes = new_figure(3 if seen else 2, width=4.2)
    _draw_neurons(axes[0], measured)
    _draw_groups(axes[1], measured)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right center", frameon=False)
    for axis in axes[:2]:
        axis.set_xlabel("layer")
        axis.set_xlim(0.4, len(measured.layers) + 0.6)
    if seen:
        _draw_measured(axes[2], measured)
    return figure


def _shown(measured: Memory, layer: LayerMemory) -> list[float]:
    """Steps as they are drawn: of an endless memory, at four times the length."""
    shown: list[float] = torch.tensor(layer.steps).clamp(0.3, 4.0 * measured.length).tolist()
    return shown


def _draw_neurons(axis: Axes, measured: Memory) -> None:
    for place, layer in enumerate(measured.layers, 1):
        beside = [place + offset for offset in torch.linspace(-0.35, 0.35, len(layer.u)).tolist()]
        colours = [GROUP_COLOURS[group] for group in layer.groups]
        axis.scatter(beside, _shown(measured, layer), s=5, color=colours, linewidths=0)
    axis.axhline(measured.length, color="0.5", linestyle="--", linewidth=1)
    beside_axis: dict[str, Any] = {"transform": axis.get_yaxis_transform(), "va": "center"}
    axis.text(1.01, measured.length, "length of\na sequence", **beside_axis, color="0.4", fontsize=7)
    axis.set_yscale("log")
    axis.set_ylabel(f"steps until the influence is below {measured.epsilon:g}")
    axis.set_title("memory of each neuron (top row: no end)", fontsize=10)


def _draw_groups(axis: Axes, measured: Memory) -> None:
    places = list(range(1, len(measured.layers) + 1))
    below = [0.0] * len(places)
    for group in GROUPS:
        shares = [100 * layer.count(group) / len(layer.u) for layer in measured.layers]
        axis.bar(places, shares, bottom=below, color=GROUP_COLOURS[group], label=group, width=0.8)
        below = [a + b for a, b in zip(below, shares, strict=True)]
    axis.set_ylabel("neurons (%)")
    low, high = (bound * measured.length for bound in measured.bounds)
    axis.set_title(f"short: < {low:.3g} steps, long: ≥ {high:.3g}", fontsize=10)


def _draw_measured(axis: Axes, measured: Memory) -> None:
    for layer in measured.layers:
        steps = torch.tensor(layer.measured).clamp_min(0.3).tolist()
        colours = [GROUP_COLOURS[group] for group in layer.groups]
        axis.scatter(_shown(measured, layer), steps, s=5, color=colours, linewidths=0)
    axis.plot([0.3, measured.length], [0.3, measured.length], color="0.5", linestyle="--", linewidth=1)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("steps by the weight alone (right edge: no end)")
    axis.set_ylabel("steps measured on sequences")
    axis.set_title("dashed: active at every step; bottom row: none", fontsize=10)
