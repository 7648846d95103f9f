"""Training options: learning rate schedules, optimiser, clipping, precision, evaluation, checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..checks import check_choice, check_count, check_fraction, check_not_negative, check_positive, check_threads
from ..networks.config import check_options


@dataclass(frozen=True)
class Constant:
    """Constant learning rate."""

    def factor(self, step: int, steps: int) -> float:
        """Factor of the learning rate at `step`, of `steps` in all."""
        return 1.0


@dataclass(frozen=True)
class Steps:
    """Step schedule: the learning rate is multiplied by a factor at regular intervals."""

    every: int = 20_000
    """Steps between two changes of the learning rate."""
    by: float = 0.1
    """Factor of each change."""

    def __post_init__(self) -> None:
        check_count("schedule.every", self.every)
        check_positive("schedule.by", self.by)

    def factor(self, step: int, steps: int) -> float:
        """Factor of the learning rate at `step`, of `steps` in all."""
        return float(self.by ** (step // self.every))


@dataclass(frozen=True)
class Plateau(Constant):
    """Plateau schedule: when evaluations stop improving, the learning rate is divided and the best weights restored."""

    divide_by: float = 5.0
    """Divisor of the learning rate."""
    patience: int = 100
    """Evaluations without a new best before the learning rate is divided."""

    def __post_init__(self) -> None:
        check_positive("schedule.divide_by", self.divide_by)
        check_count("schedule.patience", self.patience)


@dataclass(frozen=True)
class Cosine:
    """Cosine schedule: linear warm-up, then cosine decay of the learning rate to 0."""

    warm_up: float = 0.0
    """Fraction of training spent on warm-up."""

    def __post_init__(self) -> None:
        check_fraction("schedule.warm_up", self.warm_up)

    def factor(self, step: int, steps: int) -> float:
        """Factor of the learning rate at `step`, of `steps` in all."""
        rise = self.warm_up * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1.0, steps - rise))))


@dataclass(frozen=True)
class OneCycle(Cosine):
    """One-cycle schedule: cosine warm-up from 1/25 of the learning rate, then cosine decay to nearly 0."""

    warm_up: float = 0.3
    """Fraction of training spent on warm-up."""

    def factor(self, step: int, steps: int) -> float:
        """Factor of the learning rate at `step`, of `steps` in all."""
        rise = self.warm_up * steps
        low, along = (1 / 25, step / rise) if step < rise else (1e-4, 1 - (step - rise) / max(1.0, steps - rise))
        return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * min(1.0, max(0.0, along))))


Schedule = Constant | Steps | Plateau | Cosine | OneCycle

SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "steps": Steps,
    "plateau": Plateau,
    "cosine": Cosine,
    "one-cycle": OneCycle,
}
"""Schedules by their name on the command line."""


Optimizer = Literal["adam", "adamw", "sgd", "muon"]
Precision = Literal["float32", "bf16", "fp16"]
Distributed = Literal["exact", "ddp", "fsdp"]


@dataclass(frozen=True)
class Training:
    """Options of the training loop."""

    steps: int = 10_000
    """Number of training steps (weight updates)."""
    lr: float = 2e-4
    """Base learning rate, scaled by the schedule."""
    schedule: Schedule = field(default_factory=Constant)
    """Learning rate schedule."""
    optimizer: Optimizer = "adam"
    """Optimiser. adam adds weight decay to the gradient, as in the paper; adamw decouples it; sgd uses momentum;
    muon orthogonalises the updates of weight matrices and uses adamw for the rest."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 0.0
    """Weight decay of input weights; recurrent weights, biases and norms are not decayed."""
    clip: float | None = 10.0
    """Gradient clipping by value: maximum magnitude of each element; None for no clipping."""
    clip_norm: float | None = None
    """Gradient clipping by norm, applied before clipping by value; None for no clipping."""
    ema: float | None = None
    """Decay of a moving average of the weights, such as 0.999, evaluated and saved in their place; None for none."""
    accumulate: int = 1
    """Gradient accumulation: number of pieces in which a batch is computed, to save memory."""
    evaluate_every: int = 100
    """Steps between two evaluations; each writes a line to metrics.jsonl."""
    gather: int = 20
    """Number of recent training batches over which batch-norm statistics are recomputed before an evaluation;
    0 for the running statistics, which lag behind the weights."""
    freeze_norms: float | None = None
    """Fraction of the steps, such as 0.75, after which batch norms keep the statistics gathered then, also in training;
    None to train with each batch's own statistics to the end."""
    until: float | None = None
    """Stop at the first evaluation that reaches this value, such as an accuracy of 0.92; None to train all steps."""
    patience: int | None = None
    """Early stopping: number of evaluations without a new best before training stops; None to train all steps."""
    checkpoint_every: float = 120.0
    """Seconds between checkpoints."""
    precision: Precision = "float32"
    """Precision. bf16, fp16: matrix products and activations in half precision (autocast), weights in float32;
    fp16 scales the loss and needs a GPU."""
    device: str = "auto"
    """Device: cpu, cuda, cuda:1, ...; auto: cuda if available, else cpu."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""
    compile: bool = False
    """Compile the network with torch.compile."""
    distributed: Distributed = "exact"
    """Data parallelism. exact: gradients summed in a fixed order, bit-identical when resumed;
    ddp: the sum overlaps with the backward pass; fsdp: weights and optimiser are sharded over processes."""
    tensorboard: bool = True
    """Log scalars to TensorBoard, if it is installed."""
    wandb: bool = False
    """Log scalars to Weights & Biases."""
    curve: bool = True
    """Plot curve.png at the end, if matplotlib is installed."""

    def __post_init__(self) -> None:
        check_options(self, gather=0)
        check_positive("lr", self.lr)
        check_fraction("momentum", self.momentum)
        check_not_negative("weight_decay", self.weight_decay)
        for check, names in ((check_positive, ("clip", "clip_norm")), (check_fraction, ("ema", "freeze_norms"))):
            for name in names:
                if getattr(self, name) is not None:
                    check(name, getattr(self, name))
        if self.until is not None and not math.isfinite(self.until):
            raise ValueError(f"until must be a finite number or None, got {self.until!r}")
        if self.freeze_norms is not None and isinstance(self.schedule, Plateau):
            raise ValueError("freeze_norms cannot be combined with a plateau, which goes back to earlier weights")
        if self.threads is not None:
            check_threads(self.threads)
        if not (isinstance(self.checkpoint_every, (int, float)) and self.checkpoint_every >= 0):
            raise ValueError(f"checkpoint_every must be seconds, at least 0, got {self.checkpoint_every!r}")
        for name, kind in {"optimizer": Optimizer, "precision": Precision, "distributed": Distributed}.items():
            check_choice(name, getattr(self, name), get_args(kind))
        if self.distributed == "fsdp" and self.ema is not None:
            raise ValueError(f"ema must be None with distributed fsdp, whose weights are sharded, got {self.ema!r}")
        if self.distributed == "fsdp" and self.optimizer == "muon":
            raise ValueError("optimizer must not be muon with distributed fsdp, whose matrices are sharded")
        if not isinstance(self.schedule, Schedule):
            raise ValueError(f"schedule must be one of the schedules of indrnn.training, got {self.schedule!r}")


MAY_DIFFER = {"steps", "until", "patience", "device", "threads", "checkpoint_every", "tensorboard", "wandb", "curve"}
"""Fields of `Training` that may differ when a run is resumed."""
