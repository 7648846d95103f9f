"""Default hyperparameters by data size: network, steps, learning rate, augmentation. Experiments: docs/fit.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...baselines import Baseline
from ...checks import check_choice, check_count, check_fraction, check_positive
from ...networks.config import Front, Plain, Pool

Effort = Literal["quick", "default", "best"]
Core = Literal["indrnn", "lstm", "gru"]

SMALL = 300  # series below which none is held back: each counts for more in training than in choosing weights
FEW = 10  # groups below which none is held back: one is more than a tenth of what there is to learn from
FRAMES = 256  # approximate number of steps that the recurrent layers see of a long signal, after convolutions
RAW = 8  # stride to `FRAMES` steps from which a signal counts as raw, such as sound
MEMBERS: dict[Effort, int] = {"quick": 1, "default": 1, "best": 5}  # networks by default
_COUNTS = ("hidden_size", "layers", "steps", "batch_size", "patience", "members", "threads")
_CHECKS = dict.fromkeys(_COUNTS, check_count) | {"lr": check_positive, "validation": check_fraction}
_CHOICES = {"effort": get_args(Effort), "core": get_args(Core)}


@dataclass(frozen=True)
class Shape:
    """Properties of the data that determine the defaults."""

    series: int
    input_size: int  # features of each step, masks included
    mean_length: float
    longest: int
    per_step: bool = False  # an answer at every step, in place of one for each series

    @property
    def stride(self) -> int:
        """Total stride of the convolutions before the recurrent layers."""
        stride = 1 if self.per_step else int(2 ** max(0, round(math.log2(self.mean_length / FRAMES))))
        return stride if stride < RAW else 2 * stride  # of raw signals half the frames are enough

    @property
    def raw(self) -> bool:
        """Whether the series are long enough to count as raw signals, downsampled before the recurrent layers."""
        return self.stride > RAW


@dataclass(frozen=True)
class Augmentation:
    """Random augmentation of the training series."""

    noise: float = 0.0  # deviation of noise that is added to standardised values
    scale: float = 0.0  # deviation of a factor, around 1, for each series and channel
    speed: float = 0.0  # largest logarithm of the factor by which a series is made faster or slower, and so shorter


@dataclass(frozen=True)
class Plan:
    """Network and training hyperparameters of a fit."""

    network: Any
    pool: Pool  # over time: the features of a series' last step, or their mean
    steps: int
    lr: float
    batch_size: int
    augmentation: Augmentation = Augmentation()
    validation: float = 0.0  # share of the series held back to choose the weights by; 0 for the last weights
    evaluate_every: int = 100
    patience: int | None = None  # evaluations without a better one before training stops early
    members: int = 1  # networks, each from a seed of its own, whose answers are averaged

    def describe(self) -> str:
        """The settings in a line."""
        network, front = self.network, ""
        if isinstance(network, Front):
            parts = zip(network.features, network.kernels, network.strides, strict=True)
            convolutions = [f"{n} of {k} steps" + (f" every {s}" if s > 1 else "") for n, k, s in parts]
            front, network = f"convolutions ({', '.join(convolutions)}), then ", network.network
        name = network.kind.upper() if isinstance(network, Baseline) else "IndRNN"
        ways = "bidirectional " if getattr(network, "bidirectional", False) else ""
        members = "" if self.members == 1 else f"{self.members} times "
        held = f"{self.validation:.0%} of the series held back" if self.validation else "no series held back"
        layers = f"{network.layers} {ways}{name} layers of {network.hidden_size}, {self.pool} over time"
        training = f"{self.steps} steps of {self.batch_size} series, lr {self.lr:g}, {held}"
        return f"{members}{front}{layers}; {training}"


def check_options(options: dict[str, Any]) -> None:
    """Raise for wrong values of options of an estimator; None is the default."""
    for name, value in options.items():
        if value is None:
            continue
        if name in _CHECKS:
            _CHECKS[name](name, value)
        elif name in _CHOICES:
            check_choice(name, value, _CHOICES[name])
        elif name in ("augment", "bidirectional") and not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def plan(shape: Shape, effort: Effort = "default", core: Core = "indrnn", **options: Any) -> Plan:
    """Choose the plan for data of this shape; an estimator's options override it, unless None."""
    chosen = {name: value for name, value in options.items() if value is not None}
    values = {name: value.item() if hasattr(value, "item") else value for name, value in chosen.items()}  # of NumPy
    check_options({"effort": effort, "core": core} | values)
    raw, series = shape.raw, shape.series
    # Smaller for few or very long series
    most = max(1, 2_000_000 // max(1, shape.longest))
    batch_size = max(1, min(16 if raw else 32, most, max(16, math.ceil(series / 4)), series))
    batch_size = values.get("batch_size", batch_size)
    # 20 epochs, of raw signals 40, within limits
    steps = min(8000 if raw else 4000, max(400, (40 if raw else 20) * series / batch_size))
    steps = values.get("steps", int(steps / (3 if effort == "quick" else 1)))
    validation = values.get("validation", 0.0 if series < SMALL else 0.1)
    augmentation = Augmentation()
    if values.get("augment", (series < 1000 or raw) and not shape.per_step):
        augmentation = Augmentation(scale=0.3, speed=0.15) if raw else Augmentation(noise=0.05, scale=0.1)
    evaluate_every = max(1, min(steps, math.ceil(steps / 20))) if validation else steps
    patience = values.get("patience", 8) if validation else None
    pool, lr = values.get("pool", "mean"), values.get("lr", 4e-3 if raw else 1e-3)
    network, members = _network(shape, core, values), values.get("members", MEMBERS[effort])
    return Plan(network, pool, steps, lr, batch_size, augmentation, validation, evaluate_every, patience, members)


def _network(shape: Shape, core: Core, values: dict[str, Any]) -> Any:
    width = values.get("hidden_size", 128 if shape.raw else 64)
    layers = values.get("layers", 4 if shape.raw and core == "indrnn" else 2)
    dropout, both = values.get("dropout", 0.1), values.get("bidirectional", not shape.raw)
    # In series that are shorter than the first kernel there is nothing for it to find
    front = values.get("front", shape.mean_length >= 17)
    stride = shape.stride if isinstance(front, bool) else front
    if not isinstance(stride, int) or stride < 1 or stride & (stride - 1):
        raise ValueError(f"front must be True, False, or the stride of the convolutions, a power of two, got {front!r}")
    if stride > 1 and shape.per_step:
        raise ValueError(f"front must not have a stride where there is an answer at every step, got {stride}")
    after = math.ceil(shape.longest / stride) if front else shape.longest
    long = after * width > 4_000_000  # activations of one layer and series: beyond that only recomputing them fits
    if core == "indrnn":
        options: dict[str, Any] = {"bidirectional": both and not long, "dropout": dropout}
        if long:
            options |= {"norm": "layer", "recompute": max(256, int(math.sqrt(after)))}
        network: Any = Plain(None, width, layers, **options)
    else:
        network = Baseline(core, 2 * width if both else width, layers, dropout)
    if front:
        first = 2 ** math.ceil(math.log2(stride) / 2) if stride > 1 else 1
        strides = (first, stride // first)
        kernels = (17 if first <= 4 else 4 * first + 1, 9 if strides[1] <= 2 else 2 * strides[1] + 1)
        network = Front(network, features=(64, 64), kernels=kernels, strides=strides)
    return network.sized(shape.input_size, shape.longest)
