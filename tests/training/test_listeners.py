"""Lines of progress: what they say of the rate and of the time that is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from torch import nn

from indrnn.training.listeners import Lines, Start, Step


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def walk(lines: Lines, clock: list[float], steps: range, seconds: float) -> None:
    """Take these steps of 3,000, each of which takes so long."""
    for step in steps:
        clock[0] += seconds
        lines.on_step(Step(step, 3000, lr=0.1, loss=0.5, seconds=seconds))


def test_rate_and_time_left(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(every=30)
    walk(lines, clock, range(1, 42), seconds=1.5)
    assert capsys.readouterr().out.splitlines() == [
        "step 1/3000  loss 0.5",
        "step 21/3000  loss 0.5  0.667 steps/s  74 min left",
        "step 41/3000  loss 0.5  0.667 steps/s  74 min left",
    ]


def test_a_pause_does_not_stay_in_the_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """As of a laptop that slept for an hour, or a process that was stopped."""
    lines = Lines(every=30)
    walk(lines, clock, range(1, 1000), seconds=1.5)
    clock[0] += 3600
    walk(lines, clock, range(1000, 2000), seconds=1.5)
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "step 1980/3000  loss 0.5  0.667 steps/s  26 min left"
    assert "step 1000/3000  loss 0.5  0.095 steps/s  351 min left" in said  # 399 steps, and the pause


def test_a_second_run_has_its_own_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(every=30)
    walk(lines, clock, range(1, 100), seconds=1.5)
    lines.on_start(Start(Path("run"), 0, 3000, "loss", higher_is_better=False, model=nn.Identity(), config={}))
    capsys.readouterr()
    walk(lines, clock, range(1, 22), seconds=3)
    assert capsys.readouterr().out.splitlines() == [
        "step 1/3000  loss 0.5",
        "step 11/3000  loss 0.5  0.333 steps/s  149 min left",
        "step 21/3000  loss 0.5  0.333 steps/s  149 min left",
    ]
