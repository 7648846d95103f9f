"""Checks of options, without torch: each names the argument, what was given and what is expected."""

from __future__ import annotations

import math
from collections.abc import Callable


class MissingPackageError(ImportError, ValueError):
    """A package of an extra is not installed; the message names the pip line."""


MOST_THREADS = 1024
"""Most threads of a process: OpenMP starts all at once, and the process dies where the system has no room for them."""


def is_number(value: object) -> bool:
    """Whether it is an integer or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_count(name: str, value: int, least: int = 1, most: float = math.inf) -> None:
    """Raise unless `value` is an integer of at least `least` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")


def check_seed(value: int, name: str = "seed") -> None:
    """Raise unless `value` is a seed that torch takes."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        raise ValueError(f"{name} must be a whole number of 64 bits, got {value!r}")


def check_threads(value: int) -> None:
    """Raise unless `value` is a number of threads that a process can have."""
    check_count("threads", value, most=MOST_THREADS)


def _check_of(expected: str, holds: Callable[[float], bool]) -> Callable[[str, float], None]:
    """The check of a number for which `holds` is true: it is given the argument's name and its value."""

    def check(name: str, value: float) -> None:
        if not (is_number(value) and holds(value)):
            raise ValueError(f"{name} must be {expected}, got {value!r}")

    return check


check_positive = _check_of("a positive number", lambda value: 0 < value < math.inf)
check_not_negative = _check_of("a number of at least 0", lambda value: 0 <= value < math.inf)
check_fraction = _check_of("a number in [0, 1)", lambda value: 0 <= value < 1)
check_share = _check_of("a number in (0, 1]", lambda value: 0 < value <= 1)
check_probability = _check_of("a number in [0, 1]", lambda value: 0 <= value <= 1)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless `value` is one of them."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
