"""What the defaults go by: strides and augmentation of long signals, and what is given in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from indrnn.networks.config import Front
from indrnn.tasks.series.defaults import Augmentation, Plan, Shape, plan


def planned(length: int, series: int = 2000, **given: Any) -> Plan:
    return plan(Shape(series, 1, float(length), length), **given)


@pytest.mark.parametrize(
    ("length", "strides"),
    [(17, (1, 1)), (361, (1, 1)), (363, (2, 1)), (1000, (2, 2)), (3499, (8, 4)), (100_000, (32, 32))],
)
def test_strides_of_long_signals(length: int, strides: tuple[int, int]) -> None:
    network = planned(length).network
    assert isinstance(network, Front)
    assert network.strides == strides
    assert all(kernel > stride for kernel, stride in zip(network.kernels, strides, strict=True))  # none is skipped


def test_series_that_are_short_have_no_convolutions() -> None:
    assert not isinstance(planned(16).network, Front)


def test_raw_signals_have_small_batches_and_a_higher_rate() -> None:
    assert (planned(1400).batch_size, planned(1400).lr) == (32, 1e-3)
    assert (planned(3499).batch_size, planned(3499).lr) == (16, 4e-3)
    assert planned(1_000_000).batch_size == 2


def test_raw_signals_are_read_forward_so_that_a_stream_costs_the_same_at_each_step() -> None:
    assert planned(1400).network.network.bidirectional
    assert not planned(3499).network.network.bidirectional
    assert planned(3499, bidirectional=True).network.network.bidirectional


def test_raw_signals_are_augmented_at_any_size() -> None:
    mild = Augmentation(noise=0.05, scale=0.1)
    assert planned(200).augmentation == Augmentation()
    assert planned(200, series=999).augmentation == mild
    assert planned(3499).augmentation.speed > 0
    assert planned(3499, augment=False).augmentation == Augmentation()
    at_every_step = plan(Shape(2000, 1, 3499.0, 3499, per_step=True))
    assert at_every_step.augmentation == Augmentation()


@pytest.mark.parametrize("front", [True, np.True_], ids=["bool", "numpy"])
def test_a_given_front(front: Any) -> None:
    assert planned(3499, front=front).network == planned(3499).network
    assert planned(3499, front=16).network.strides == (4, 4)
    assert planned(3499, front=1).network.strides == (1, 1)
    assert not isinstance(planned(3499, front=np.False_).network, Front)
    for wrong in (0, -2, 12):
        with pytest.raises(ValueError, match=f"front must be True, False, or .* a power of two, got {wrong}"):
            planned(3499, front=wrong)
    with pytest.raises(ValueError, match="at every step, got 4"):
        plan(Shape(20, 1, 90.0, 90, per_step=True), front=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 2.5}, "batch_size must be an integer, got float"),
        ({"members": 0}, "members must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"validation": 1.5}, "validation must be a number in"),
        ({"validation": -0.1}, "validation must be a number in"),
        ({"augment": "yes"}, "augment must be True or False, got 'yes'"),
        ({"bidirectional": 3}, "bidirectional must be True or False, got 3"),
        ({"front": "yes"}, "front must be True, False, or"),
        ({"core": "rnn"}, "core must be one of 'indrnn', 'lstm', 'gru', got 'rnn'"),
    ],
    ids=str,
)
def test_what_is_given_is_checked(given: dict[str, Any], message: str) -> None:
    """None of it may be taken for the default in silence."""
    with pytest.raises((TypeError, ValueError), match=message):
        planned(50, **given)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert planned(50, steps=np.int64(7)).steps == 7
