"""Learning rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..checks import check_count, check_fraction, check_positive


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
class OneCycle:
    """One-cycle schedule: cosine warm-up from 1/25 of the learning rate, then cosine decay to nearly 0."""

    warm_up: float = 0.3
    """Fraction of training spent on warm-up."""

    def __post_init__(self) -> None:
        check_fraction("schedule.warm_up", self.warm_up)

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


@dataclass
class ScheduleState:
    """The schedule of one run, which a plateau changes with the evaluations."""

    schedule: Schedule
    divisions: int = 0
    """Divisions of the learning rate."""
    waited: int = 0
    """Evaluations without a new best, since that or the last division."""

    def factor(self, step: int, steps: int) -> float:
        """Factor of the learning rate at `step`, of `steps` in all."""
        if isinstance(self.schedule, Plateau):
            return float((1 / self.schedule.divide_by) ** self.divisions)
        return self.schedule.factor(step, steps)

    def evaluated(self, better: bool) -> bool:
        """Register an evaluation; returns whether to restore the best weights."""
        if not isinstance(self.schedule, Plateau):
            return False
        self.waited = 0 if better else self.waited + 1
        if self.waited < self.schedule.patience:
            return False
        self.divisions, self.waited = self.divisions + 1, 0
        return True
