"""How a network is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


def check_positive(name: str, value: float) -> None:
    """Raise unless value is a finite number above 0."""
    if not (isinstance(value, (int, float)) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise unless value is a whole number of at least this much."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raise unless value is a number in [0, 1)."""
    if not (isinstance(value, (int, float)) and 0 <= value < 1):
        raise ValueError(f"{name} must be a number in [0, 1), got {value!r}")


def check_seed(value: int, name: str = "seed") -> None:
    """Raise unless value is a seed that torch takes."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**64:
        raise ValueError(f"{name} must be a whole number of 64 bits, got {value!r}")


@dataclass(frozen=True)
class Constant:
    """The same learning rate throughout."""

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied with at this step of so many."""
        return 1.0


@dataclass(frozen=True)
class Steps:
    """The learning rate is multiplied with a factor every so many steps."""

    every: int = 20_000
    """Steps between two changes."""
    by: float = 0.1
    """The factor."""

    def __post_init__(self) -> None:
        check_count("schedule.every", self.every)
        check_positive("schedule.by", self.by)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied with at this step of so many."""
        return float(self.by ** (step // self.every))


@dataclass(frozen=True)
class Plateau:
    """The learning rate is divided when the evaluations get no better, and the best weights are taken up again."""

    divide_by: float = 5.0
    """What the learning rate is divided by."""
    patience: int = 100
    """Evaluations without a new best that are waited for."""

    def __post_init__(self) -> None:
        check_positive("schedule.divide_by", self.divide_by)
        check_count("schedule.patience", self.patience)

    def factor(self, step: int, steps: int) -> float:
        """1: this schedule goes by the evaluations, which the loop counts."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """The learning rate rises in a line, then falls to 0 along half a cosine."""

    warm_up: float = 0.0
    """The share of training in which it rises."""

    def __post_init__(self) -> None:
        check_fraction("schedule.warm_up", self.warm_up)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied with at this step of so many."""
        rise = self.warm_up * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1.0, steps - rise))))


@dataclass(frozen=True)
class OneCycle:
    """The learning rate rises from a 25th of itself, then falls to nothing, both along half a cosine."""

    warm_up: float = 0.3
    """The share of training in which it rises."""

    def __post_init__(self) -> None:
        check_fraction("schedule.warm_up", self.warm_up)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied with at this step of so many."""
        rise = self.warm_up * steps
        low, along = (1 / 25, step / rise) if step < rise else (1e-4, 1 - (step - rise) / max(1.0, steps - rise))
        return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * min(1.0, max(0.0, along))))


Schedule = Constant | Steps | Plateau | Cosine | OneCycle


@dataclass(frozen=True)
class Training:
    """The loop: Adam, with what the paper does around it."""

    steps: int = 10_000
    """Updates of the weights."""
    lr: float = 2e-4
    """Adam's learning rate, before the schedule."""
    schedule: Schedule = field(default_factory=Constant)
    """How the learning rate changes."""
    weight_decay: float = 0.0
    """Decay of input weights; recurrent weights, biases and norms have none."""
    clip: float | None = 10.0
    """Each element of a gradient is clipped to this magnitude; None for no clipping."""
    accumulate: int = 1
    """Pieces that a batch is computed in, one after the other, to save memory."""
    evaluate_every: int = 100
    """Steps between two evaluations, each a line in metrics.jsonl."""
    until: float | None = None
    """Stop at the first evaluation that is this good, an accuracy of 0.92, say; None to go on to the last step."""
    checkpoint_every: float = 120.0
    """Seconds between two checkpoints."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: matrix products and activations in bfloat16 (autocast), weights in float32."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads; None leaves it to PyTorch."""
    compile: bool = False
    """Run the network through torch.compile."""
    tensorboard: bool = True
    """Whether scalars are written for TensorBoard too, where it is installed."""

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_positive("lr", self.lr)
        if not (isinstance(self.weight_decay, (int, float)) and 0 <= self.weight_decay < math.inf):
            raise ValueError(f"weight_decay must be a number of at least 0, got {self.weight_decay!r}")
        if self.clip is not None:
            check_positive("clip", self.clip)
        if self.until is not None and not math.isfinite(self.until):
            raise ValueError(f"until must be a finite number or None, got {self.until!r}")
        for name in ("accumulate", "evaluate_every"):
            check_count(name, getattr(self, name))
        if self.threads is not None:
            check_count("threads", self.threads)
        if not (isinstance(self.checkpoint_every, (int, float)) and self.checkpoint_every >= 0):
            raise ValueError(f"checkpoint_every must be seconds, at least 0, got {self.checkpoint_every!r}")
        if self.precision not in ("float32", "bf16"):
            raise ValueError(f"precision must be float32 or bf16, got {self.precision!r}")
        if not isinstance(self.schedule, Schedule):
            raise ValueError(f"schedule must be one of the schedules of indrnn.training, got {self.schedule!r}")


FREE_ON_RESUME = frozenset({"steps", "until", "device", "threads", "checkpoint_every", "tensorboard"})
"""Fields of `Training` that may differ when a run is taken up again."""
