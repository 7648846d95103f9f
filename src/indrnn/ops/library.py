"""The four registered ops `indrnn::recurrence[_norm][_backward]`: schemas, checks, shapes, and the way to a backend.

The backend is chosen inside an op as it runs, so a graph that holds it runs wherever indrnn does. autograd.py gives
them derivatives and vmap rules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import choice, reference
from .calls import Backward, Call, Forward, NormBackward, NormForward, readable
from .checks import KINDS, check, check_lengths, is_usual
from .cpu import kernel

LIBRARY = torch.library.Library("indrnn", "DEF")


def run(call: Call, backend: str | None, *, in_place: bool = False) -> tuple[Tensor, ...]:
    """A pass, after its checks; with `in_place` on a CPU by the C++ kernel, whose h takes, or took, the place of x."""
    name, of, _, _, _ = KINDS[type(call)]
    x: Tensor = getattr(call, of)
    if not is_usual(call):
        check(call)
        check_lengths(call.lengths, x.shape[0])
        call = readable(call)
    results: tuple[Tensor, ...]
    if in_place and of == "x":
        results = getattr(kernel, name)(call, overwrite=True)
    else:
        module = kernel if in_place and x.is_cpu else choice.choose(x, call.activation, backend)
        results = getattr(module, name)(call)
    return results


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


def _register(schema: str, kind: type[Call]) -> None:
    """Register an op whose arguments are those of a call and the name of a backend."""

    def fake(*args: Any) -> tuple[Tensor, ...]:
        check(call := kind(*args[:-1]))
        return _results_like(call)

    name = schema[: schema.index("(")]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, lambda *args: tuple(run(kind(*args[:-1]), args[-1])), "CompositeExplicitAutograd")
    torch.library.register_fake(f"indrnn::{name}", fake, lib=LIBRARY)


_FLAGS = "Tensor? lengths, Tensor? resets, str activation, bool reverse, str? backend"
_NORM = "Tensor? mask, Tensor? lengths, Tensor? resets, float eps, str activation"
_GRADIENTS = "Tensor grad_x, Tensor grad_u, Tensor grad_bias, Tensor grad_h_0"
_register(f"recurrence(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, {_FLAGS}) -> (Tensor h, Tensor h_last)", Forward)
_register(
    f"recurrence_backward(Tensor? grad_h, Tensor? grad_h_last, Tensor h, Tensor u, Tensor? h_0, {_FLAGS})"
    f" -> ({_GRADIENTS})",
    Backward,
)
_register(
    f"recurrence_norm(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, Tensor weight, Tensor shift, {_NORM}, str place,"
    " str? backend) -> (Tensor y, Tensor h_last, Tensor h, Tensor mean, Tensor var)",
    NormForward,
)
_register(
    "recurrence_norm_backward(Tensor grad_y, Tensor? grad_h_last, Tensor h, Tensor? x, Tensor u, Tensor? h_0,"
    f" Tensor weight, Tensor mean, Tensor var, {_NORM}, str? backend) -> ({_GRADIENTS}, Tensor grad_weight,"
    " Tensor grad_shift)",
    NormBackward,
)
