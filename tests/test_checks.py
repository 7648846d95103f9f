"""Checks of plain arguments: each error names the argument, what was given and what is expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from indrnn import checks

GOOD: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (checks.check_count, ("size", 1)),
    (checks.check_count, ("size", 0, 0)),
    (checks.check_seed, (-(2**63),)),
    (checks.check_seed, (2**64 - 1,)),
    (checks.check_threads, (checks.MOST_THREADS,)),
    (checks.check_positive, ("lr", 7)),
    (checks.check_fraction, ("share", 0)),
    (checks.check_probability, ("dropout", 1)),
    (checks.check_choice, ("norm", None, ("batch", None))),
]
BAD: list[tuple[Callable[..., None], tuple[Any, ...], type[Exception], str]] = [
    (checks.check_count, ("size", 7.0), TypeError, "size must be an integer, got float"),
    (checks.check_count, ("size", True), TypeError, "size must be an integer, got bool"),
    (checks.check_count, ("size", 0), ValueError, "size must be at least 1, got 0"),
    (checks.check_count, ("size", 6, 7), ValueError, "size must be at least 7, got 6"),
    (checks.check_seed, (2**64,), ValueError, f"seed must be a whole number of 64 bits, got {2**64}"),
    (checks.check_seed, (0.5, "split_seed"), ValueError, "split_seed must be a whole number of 64 bits, got 0.5"),
    (checks.check_threads, (0,), ValueError, "threads must be at least 1, got 0"),
    (checks.check_threads, (1025,), ValueError, "threads must be at most 1024, got 1025"),
    (checks.check_positive, ("lr", 0), ValueError, "lr must be a positive number, got 0"),
    (checks.check_positive, ("lr", math.inf), ValueError, "lr must be a positive number, got inf"),
    (checks.check_fraction, ("share", 1), ValueError, "share must be a number in [0, 1), got 1"),
    (checks.check_fraction, ("share", math.nan), ValueError, "share must be a number in [0, 1), got nan"),
    (checks.check_probability, ("dropout", "half"), ValueError, "dropout must be a number in [0, 1], got 'half'"),
    (checks.check_choice, ("norm", "x", ("batch", None)), ValueError, "norm must be one of 'batch', None, got 'x'"),
]


@pytest.mark.parametrize(("check", "arguments"), GOOD)
def test_what_is_right_passes(check: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    check(*arguments)


@pytest.mark.parametrize(("check", "arguments", "kind", "message"), BAD)
def test_what_is_wrong_is_named(
    check: Callable[..., None], arguments: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as error:
        check(*arguments)
    assert str(error.value) == message
