"""Checks of arguments: each names the argument, what was given and what is expected.

Options are checked without torch. Where there is a tensor it is in `sys.modules`, whence it comes quicker, at each step
of a stream, than by an import.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Lengths: TypeAlias = "Tensor | Sequence[int] | None"
"""Steps of each sequence of a padded batch, as callers may give them."""


class MissingPackageError(ImportError, ValueError):
    """A package of an extra is not installed; the message names the pip line."""


MOST_THREADS = 1024
"""Most threads of a process: OpenMP starts all at once, and the process dies where the system has no room for them."""


def as_lengths(lengths: Lengths, device: torch.device) -> Tensor | None:
    """A list of lengths as a tensor; anything else as it is, for the checks that follow."""
    if not isinstance(lengths, (list, tuple)):
        return lengths  # type: ignore[return-value]
    return sys.modules["torch"].tensor(lengths, device=device)  # type: ignore[no-any-return]


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


def check_tensor(name: str, value: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless `value` is None or a tensor of this shape."""
    if value is None:
        return
    if not isinstance(value, sys.modules["torch"].Tensor):
        raise TypeError(f"{name} must be a tensor or None, got {type(value).__name__}")
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} must have the shape {shape} for this input, got {tuple(value.shape)}")


def check_resets(resets: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless `resets` is None or a bool tensor of this shape."""
    check_tensor("resets", resets, shape)
    if resets is not None and resets.dtype != sys.modules["torch"].bool:
        raise TypeError(f"resets must be bool, got {resets.dtype}")


def check_state(input: Tensor, hx: Tensor | None, shape: tuple[int, ...], weight: Tensor) -> None:
    """Raise unless a layer's input and state fit its weight, and the state is None or has this shape."""
    check_like_weight("input", input, weight)
    check_tensor("hx", hx, shape)
    check_like_weight("hx", hx, weight)


def check_like_weight(name: str, value: Tensor | None, weight: Tensor) -> None:
    """Raise unless `value` is None or on the device, and (but under autocast) of the type, of the layer's weight."""
    if value is None:
        return
    if value.device != weight.device:
        raise ValueError(f"{name} must be on the layer's device, {weight.device}, got one on {value.device}")
    if value.dtype != weight.dtype and not sys.modules["torch"].is_autocast_enabled(value.device.type):
        raise TypeError(f"{name} must be of the layer's type, {weight.dtype}, got {value.dtype}")
