"""Which of the ways to compute the recurrence serves a given tensor."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from . import native, reference, scan, triton_backend

# In the order in which the automatic choice tries them
_AUTOMATIC: dict[str, ModuleType] = {"native": native, "reference": reference}
# The Triton kernels have only been run in its interpreter: on a GPU they are to be asked for.
_BACKENDS: dict[str, ModuleType] = _AUTOMATIC | {"scan": scan, "triton": triton_backend}
_VARIABLE = "INDRNN_BACKEND"


@dataclass(frozen=True)
class Backend:
    """What `backends()` says of one backend."""

    available: bool
    """Whether it can serve."""
    chosen: bool
    """Whether it is the one that would be used."""
    why_not: str | None
    """Why it cannot serve, where it cannot."""


def backends(x: Tensor | None = None, activation: str = "relu") -> dict[str, Backend]:
    """Tell which backends can compute `recurrence(x, ...)`, which one would, and why the others cannot.

    Args:
        x: the tensor in question; a float32 CPU tensor if not given.
        activation: the activation in question.

    Returns:
        One `Backend` for each name that `recurrence(backend=...)` and the environment variable INDRNN_BACKEND take.
    """
    x = torch.empty(0) if x is None else x
    reasons = {name: module.why_not(x, activation) for name, module in _BACKENDS.items()}
    asked = _asked(None)
    chosen = asked or next(name for name in _AUTOMATIC if reasons[name] is None)
    return {
        name: Backend(reason is None, name == chosen and reason is None, reason) for name, reason in reasons.items()
    }


def choose(x: Tensor, activation: str, backend: str | None) -> ModuleType:
    """The module that computes the recurrence for this tensor; raise where the one asked for by name cannot."""
    asked = _asked(backend)
    if asked is not None:
        reason = _BACKENDS[asked].why_not(x, activation)
        if reason is not None:
            by = "by the argument backend" if backend is not None else f"by the environment variable {_VARIABLE}"
            raise RuntimeError(f"backend {asked!r}, asked for {by}, cannot serve: {reason}")
        return _BACKENDS[asked]
    for module in _AUTOMATIC.values():
        reason = module.why_not(x, activation)
        if reason is None:
            return module
        if module is native and x.device.type == "cpu":
            _say_once(f"indrnn computes in plain PyTorch, which is slow: {reason}")
    raise AssertionError("the reference serves everything")


def check_name(backend: str | None) -> None:
    """Raise if there is no backend of this name."""
    if backend is not None and backend not in _BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(_BACKENDS)}, got {backend!r}")


def _asked(backend: str | None) -> str | None:
    if backend is None:
        backend = os.environ.get(_VARIABLE) or None
        if backend is not None and backend not in _BACKENDS:
            raise ValueError(f"{_VARIABLE} must be unset or one of {', '.join(_BACKENDS)}, got {backend!r}")
    return backend


_said: set[str] = set()


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
