"""The four registered ops `indrnn::recurrence[_norm][_backward]`: schemas, checks, shapes, and the way to a backend.

The backend is chosen inside an op as it runs, so a graph that holds it runs wherever indrnn does. autograd.py and
autograd_norm.py give them derivatives and vmap rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import choice, reference, reference_norm
from .calls import Backward, Forward, NormBackward, NormForward, NormResult
from .checks import check, check_lengths, is_usual_backward, is_usual_forward
from .cpu import kernel
from .layout import readable

LIBRARY = torch.library.Library("indrnn", "DEF")


# ---- by a backend


def forward(call: Forward, backend: str | None, *, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """The forward pass, after its checks; with `overwrite`, for the C++ kernel alone, h takes x's place."""
    if not is_usual_forward(call):
        check(call)
        check_lengths(call.lengths, call.x.shape[0])
        call = readable(call)
    if overwrite:
        return kernel.forward(call, overwrite=True)
    results: tuple[Tensor, Tensor] = choice.choose(call.x, call.activation, backend).forward(call)
    return results


def backward(
    call: Backward, backend: str | None, *, overwritten: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backward pass, after its checks; `overwritten` as its forward pass, so by the C++ kernel on a CPU."""
    if not is_usual_backward(call):
        check(call)
        check_lengths(call.lengths, call.h.shape[0])
        call = readable(call)
    if overwritten and call.h.is_cpu:
        return kernel.backward(call)
    gradients: tuple[Tensor, Tensor, Tensor, Tensor] = choice.choose(call.h, call.activation, backend).backward(call)
    return gradients


def norm_forward(call: NormForward, backend: str | None, *, overwrite: bool = False) -> NormResult:
    """The forward pass with batch norm, after its checks."""
    check(call)
    check_lengths(call.lengths, call.x.shape[0])
    call = readable(call)
    if overwrite:
        return kernel.norm_forward(call, overwrite=True)
    module = choice.choose(call.x, call.activation, backend)
    if not hasattr(module, "norm_forward"):
        return reference_norm.forward(call, module.forward)
    result: NormResult = module.norm_forward(call)
    return result


def norm_backward(call: NormBackward, backend: str | None) -> tuple[Tensor, ...]:
    """The backward pass with batch norm, after its checks."""
    check(call)
    check_lengths(call.lengths, call.h.shape[0])
    call = readable(call)
    module = choice.choose(call.h, call.activation, backend)
    if not hasattr(module, "norm_backward"):
        return reference_norm.backward(call, module.backward)
    gradients: tuple[Tensor, ...] = module.norm_backward(call)
    return gradients


# ---- empty results, for compilers


def _forward_like(call: Forward) -> tuple[Tensor, ...]:
    return call.x.new_empty(call.x.shape), call.x.new_empty(call.x.shape[1:])


def _backward_like(call: Backward | NormBackward) -> tuple[Tensor, ...]:
    h, u, start = call.h, call.u, call.h if call.h_0 is None else call.h_0
    return h.new_empty(h.shape), u.new_empty(u.shape), u.new_empty(u.shape), start.new_empty(h.shape[1:])


def _norm_forward_like(call: NormForward) -> tuple[Tensor, ...]:
    x, u, dtype = call.x, call.u, reference.accumulation_dtype(call.x.dtype)
    h_is_y = call.place == "before" and call.mask is None
    mean, var = (u.new_empty(u.shape, dtype=dtype) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape[1:]), x.new_empty(0 if h_is_y else x.shape), mean, var


def _norm_backward_like(call: NormBackward) -> tuple[Tensor, ...]:
    weight = call.weight
    return *_backward_like(call), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


# ---- registered


def _register(schema: str, kind: type[NamedTuple], run: Callable[..., Any], like: Callable[..., Any]) -> None:
    """Register an op whose arguments are those of a call and the name of a backend."""

    def fake(*args: Any) -> tuple[Tensor, ...]:
        check(call := kind(*args[:-1]))  # type: ignore[arg-type]
        return like(call)  # type: ignore[no-any-return]

    name = schema[: schema.index("(")]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, lambda *args: tuple(run(kind(*args[:-1]), args[-1])), "CompositeExplicitAutograd")
    torch.library.register_fake(f"indrnn::{name}", fake, lib=LIBRARY)


_FLAGS = "Tensor? lengths, Tensor? resets, str activation, bool reverse, str? backend"
_NORM = "Tensor? mask, Tensor? lengths, Tensor? resets, float eps, str activation"
_GRADIENTS = "Tensor grad_x, Tensor grad_u, Tensor grad_bias, Tensor grad_h_0"
_register(
    f"recurrence(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, {_FLAGS}) -> (Tensor h, Tensor h_last)",
    *(Forward, forward, _forward_like),
)
_register(
    f"recurrence_backward(Tensor? grad_h, Tensor? grad_h_last, Tensor h, Tensor u, Tensor? h_0, {_FLAGS})"
    f" -> ({_GRADIENTS})",
    *(Backward, backward, _backward_like),
)
_register(
    f"recurrence_norm(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, Tensor weight, Tensor shift, {_NORM}, str place,"
    " str? backend) -> (Tensor y, Tensor h_last, Tensor h, Tensor mean, Tensor var)",
    *(NormForward, norm_forward, _norm_forward_like),
)
_register(
    "recurrence_norm_backward(Tensor grad_y, Tensor? grad_h_last, Tensor h, Tensor? x, Tensor u, Tensor? h_0,"
    f" Tensor weight, Tensor mean, Tensor var, {_NORM}, str? backend) -> ({_GRADIENTS}, Tensor grad_weight,"
    " Tensor grad_shift)",
    *(NormBackward, norm_backward, _norm_backward_like),
)
