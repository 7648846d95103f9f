"""Schedules of the learning rate, and values that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from indrnn.training import Constant, Cosine, OneCycle, Plateau, Schedule, Steps, Training


def half_cosine(start: float, end: float, along: float) -> float:
    """From start (along = 0) to end (along = 1), level at both."""
    return end + (start - end) * math.cos(math.pi * along / 2) ** 2


# ---- schedules


@pytest.mark.parametrize("schedule", [Constant(), Plateau(7.0, 3)], ids=["Constant", "Plateau"])
@pytest.mark.parametrize("step", [0, 1, 58, 130])
def test_constant(schedule: Schedule, step: int) -> None:
    assert schedule.factor(step, 131) == 1.0


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 1.0), (12, 1.0), (13, 0.3), (25, 0.3), (26, 0.3 * 0.3), (38, 0.3 * 0.3), (39, 0.3**3), (130, 0.3**10)],
)
def test_steps(step: int, expected: float) -> None:
    assert Steps(every=13, by=0.3).factor(step, 131) == pytest.approx(expected, rel=1e-14)


def test_steps_fall_below_every_number() -> None:
    assert Steps(every=1, by=0.1).factor(10_000, 10_001) == 0.0


@pytest.mark.parametrize("steps", [1, 2, 131])
def test_cosine_from_the_start(steps: int) -> None:
    for step in {0, 1, steps // 3, steps // 2, steps - 1}:
        assert Cosine().factor(step, steps) == pytest.approx(half_cosine(1.0, 0.0, step / steps), abs=1e-14)


def test_cosine_at_its_turning_points() -> None:
    schedule = Cosine(warm_up=0.25)
    factors = {step: schedule.factor(step, 200) for step in (0, 1, 49, 50, 125, 200)}
    expected = {0: 1 / 51, 1: 2 / 51, 49: 50 / 51, 50: 1.0, 125: 0.5, 200: 0.0}
    assert factors == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("warm_up", [0.1, 0.05, 0.999])
def test_cosine_with_a_rise_that_ends_between_two_steps(warm_up: float) -> None:
    steps = 131
    rise = warm_up * steps
    assert rise % 1 != 0
    for step in range(steps):
        expected = (step + 1) / (rise + 1) if step < rise else half_cosine(1.0, 0.0, (step - rise) / (steps - rise))
        if steps - rise >= 1:  # else the fall has no step of its own
            assert Cosine(warm_up).factor(step, steps) == pytest.approx(expected, abs=1e-14)
        assert 0 < Cosine(warm_up).factor(step, steps) <= 1


def test_one_cycle_at_its_turning_points() -> None:
    schedule = OneCycle(warm_up=0.3)
    factors = {step: schedule.factor(step, 200) for step in (0, 30, 60, 130, 200)}
    middle = (1 + 1e-4) / 2
    assert factors == pytest.approx({0: 0.04, 30: 0.52, 60: 1.0, 130: middle, 200: 1e-4}, rel=1e-12)


@pytest.mark.parametrize("warm_up", [0.0, 0.07, 0.3, 0.9])
@pytest.mark.parametrize("steps", [13, 131])
def test_one_cycle_between_them(warm_up: float, steps: int) -> None:
    rise = warm_up * steps
    for step in range(steps):
        if step < rise:
            expected = half_cosine(1 / 25, 1.0, step / rise)
        else:
            expected = half_cosine(1.0, 1e-4, (step - rise) / (steps - rise))
        assert OneCycle(warm_up).factor(step, steps) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", [Cosine(), Cosine(0.3), OneCycle(), OneCycle(0.0)], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_runs_have_a_learning_rate(schedule: Schedule, steps: int) -> None:
    assert all(0 < schedule.factor(step, steps) <= 1 for step in range(steps))


# ---- refused values

NOT_POSITIVE = [0, -1, -0.5, math.inf, math.nan, "1", None]
NOT_COUNTS = [0, -3, 1.0, 2.5, True, "3", None]
NOT_FRACTIONS = [-0.01, 1, 1.0, 3, math.nan, "0.5", None]


def each(*fields: tuple[str, list[Any]]) -> pytest.MarkDecorator:
    """A case for each value of each field."""
    cases = [pytest.param(name, value, id=f"{name}={value!r}") for name, values in fields for value in values]
    return pytest.mark.parametrize(("name", "value"), cases)


@each(
    ("steps", NOT_COUNTS),
    ("lr", NOT_POSITIVE),
    ("schedule", ["cosine", None, Cosine, 0.1]),
    ("weight_decay", [-1e-9, -1, math.inf, math.nan, "0", None]),
    ("clip", [value for value in NOT_POSITIVE if value is not None]),
    ("accumulate", NOT_COUNTS),
    ("evaluate_every", NOT_COUNTS),
    ("checkpoint_every", [-1, -0.001, math.nan, "120", None]),
    ("precision", ["float16", "bfloat16", "", None, 32]),
    ("threads", [value for value in [*NOT_COUNTS, 100_000] if value is not None]),
    ("optimizer", ["Adam", "", None]),
    ("momentum", NOT_FRACTIONS),
    ("clip_norm", [value for value in NOT_POSITIVE if value is not None]),
    ("ema", [value for value in NOT_FRACTIONS if value is not None]),
    ("patience", [value for value in NOT_COUNTS if value is not None]),
    ("distributed", ["DDP", None]),
)
def test_training_refuses(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must .*, got "):
        Training(**{name: value})


@each(("every", NOT_COUNTS), ("by", NOT_POSITIVE))
def test_steps_refuses(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^schedule\.{name} must .*, got "):
        Steps(**{name: value})


@each(("divide_by", NOT_POSITIVE), ("patience", NOT_COUNTS))
def test_plateau_refuses(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^schedule\.{name} must .*, got "):
        Plateau(**{name: value})


@pytest.mark.parametrize("kind", [Cosine, OneCycle])
@each(("warm_up", NOT_FRACTIONS))
def test_warm_up_refuses(kind: type[Cosine | OneCycle], name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^schedule\.{name} must .*, got "):
        kind(**{name: value})


def test_values_at_the_edge_are_accepted() -> None:
    Training(steps=1, weight_decay=0, clip=None, checkpoint_every=0, threads=None, schedule=Steps(1, 2))
    Training(checkpoint_every=math.inf, clip=1, lr=1, evaluate_every=1, accumulate=1)
    Cosine(0), OneCycle(0.999), Plateau(1e-3, 1)
