"""The choice of a backend: native, reference, scan or Triton, by device, argument and environment variable."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from . import names, reference, scan
from .cpu import kernel
from .triton import backend as triton_backend

_BACKENDS: dict[str, ModuleType] = {"native": kernel, "reference": reference, "scan": scan, "triton": triton_backend}
# What the automatic choice takes on each kind of device; where there is nothing or it is not supported, the reference.
# In its interpreter Triton supports CPU tensors as well, for tests: there it is never taken unless asked for.
_FAST = {"cpu": "native", "cuda": "triton"}
_VARIABLE = "INDRNN_BACKEND"
_said: set[str] = set()
"""Reasons that were said, each once."""


@dataclass(frozen=True)
class Backend:
    """One backend, as described by `backends()`."""

    available: bool
    """Whether the backend supports the tensor."""
    chosen: bool
    """Whether the backend would be used for the tensor."""
    why_not: str | None
    """Reason why the backend does not support the tensor; None if it does."""


def backends(x: Tensor | None = None, activation: str = "relu") -> dict[str, Backend]:
    """List which backends can compute `recurrence(x, ...)`, which one would be used, and why the others cannot.

    Args:
        x: the input tensor; a float32 CPU tensor if not given.
        activation: the activation.

    Returns:
        One `Backend` for each name that `recurrence(backend=...)` and the environment variable INDRNN_BACKEND take.
    """
    x = torch.empty(0, dtype=torch.float32, device="cpu") if x is None else x
    reasons = {name: module.why_not(x, activation) for name, module in _BACKENDS.items()}
    fast = _FAST.get(x.device.type, "reference")
    chosen = _requested(None) or (fast if reasons[fast] is None else "reference")
    return {
        name: Backend(reason is None, name == chosen and reason is None, reason) for name, reason in reasons.items()
    }


def choose(x: Tensor, activation: str, backend: str | None) -> ModuleType:
    """The module that computes the recurrence for this tensor; raises if one requested by name cannot."""
    requested = _requested(backend)
    module = _BACKENDS[requested or _FAST.get(x.device.type, "reference")]
    reason = module.why_not(x, activation)
    if reason is None:
        return module
    if requested is not None:
        by = "by the argument backend" if backend is not None else f"by the environment variable {_VARIABLE}"
        raise RuntimeError(f"backend {requested!r}, asked for {by}, is not supported: {reason}")
    if reason not in _said:
        _said.add(reason)
        warnings.warn(f"indrnn computes in plain PyTorch, which is slow: {reason}", RuntimeWarning, stacklevel=2)
    return reference


def _requested(backend: str | None) -> str | None:
    """The requested backend; None for the automatic choice."""
    if backend is not None:
        names.check_backend(backend)
        return backend
    backend = os.environ.get(_VARIABLE)
    if backend and backend not in names.BACKENDS:
        raise ValueError(f"{_VARIABLE} must be unset or one of {', '.join(names.BACKENDS)}, got {backend!r}")
    return backend or None
