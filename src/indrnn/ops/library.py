"""The four registered ops `indrnn::recurrence[_norm][_backward]`, and the choice of a backend for each call of one.

The backend is chosen inside an op as it runs, so a graph that holds it runs wherever indrnn does. autograd.py gives
them derivatives and vmap rules.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_type_hints

import torch
from torch import Tensor

from ..checks import check_choice
from . import BACKENDS, reference, scan
from .calls import Backward, Call, Forward, NormBackward, NormForward, NormResult, readable
from .checks import KINDS, check, check_lengths, is_usual
from .cpu import kernel
from .triton import backend as triton_backend

# ---- the choice of a backend, by device, argument and environment variable

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
        check_choice("backend", backend, BACKENDS)
        return backend
    backend = os.environ.get(_VARIABLE)
    if backend and backend not in _BACKENDS:
        raise ValueError(f"{_VARIABLE} must be unset or one of {', '.join(_BACKENDS)}, got {backend!r}")
    return backend or None


# ---- the ops

LIBRARY = torch.library.Library("indrnn", "DEF")


def run(call: Call, backend: str | None, *, in_place: bool = False) -> tuple[Tensor, ...]:
    """A pass, after its checks; with `in_place` on a CPU by the C++ kernel, whose h takes, or took, the place of x."""
    name, of, _, _, _ = KINDS[type(call)]
    x: Tensor = getattr(call, of)
    if not is_usual(call):
        check(call)
        check_lengths(call.lengths, x.shape[0])
        call = readable(call)
    if in_place and of == "x":
        return getattr(kernel, name)(call, overwrite=True)  # type: ignore[no-any-return]
    module = kernel if in_place and x.is_cpu else choose(x, call.activation, backend)
    return getattr(module, name)(call)  # type: ignore[no-any-return]


def _results_like(call: Call) -> tuple[Tensor, ...]:
    """Empty results of a pass, for compilers."""
    if isinstance(call, (Forward, NormForward)):
        x, u = call.x, call.u
        h, h_last = x.new_empty(x.shape), x.new_empty(x.shape[1:])
        if isinstance(call, Forward):
            return h, h_last
        h_is_y = call.place == "before" and call.mask is None
        dtype = reference.accumulation_dtype(x.dtype)
        moments = (u.new_empty(u.shape, dtype=dtype) for _ in range(2))
        return h, h_last, x.new_empty(0 if h_is_y else x.shape), *moments
    h, u, start = call.h, call.u, call.h if call.h_0 is None else call.h_0
    gradients = (h.new_empty(h.shape), u.new_empty(u.shape), u.new_empty(u.shape), start.new_empty(h.shape[1:]))
    if isinstance(call, Backward):
        return gradients
    return *gradients, *(call.weight.new_empty(call.weight.shape) for _ in range(2))


_TYPES = {Tensor: "Tensor", Tensor | None: "Tensor?", str: "str", bool: "bool", float: "float"}
_GRADIENTS = ("grad_x", "grad_u", "grad_bias", "grad_h_0")


def _register(name: str, kind: type[Call], *results: str) -> None:
    """Register an op whose arguments are those of a call and the name of a backend."""

    def fake(*args: Any) -> tuple[Tensor, ...]:
        check(call := kind(*args[:-1]))
        return _results_like(call)

    arguments = ", ".join(f"{_TYPES[type_]} {argument}" for argument, type_ in get_type_hints(kind).items())
    returned = ", ".join(f"Tensor {result}" for result in results)
    LIBRARY.define(f"{name}({arguments}, str? backend) -> ({returned})", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, lambda *args: tuple(run(kind(*args[:-1]), args[-1])), "CompositeExplicitAutograd")
    torch.library.register_fake(f"indrnn::{name}", fake, lib=LIBRARY)


_register("recurrence", Forward, "h", "h_last")
_register("recurrence_backward", Backward, *_GRADIENTS)
_register("recurrence_norm", NormForward, *NormResult._fields)
_register("recurrence_norm_backward", NormBackward, *_GRADIENTS, "grad_weight", "grad_shift")
