"""The four registered ops `indrnn::recurrence[_norm][_backward]`: schemas, checks, shapes, and the way to a backend.

The backend is chosen inside an op as it runs, so a graph that holds it runs wherever indrnn does. autograd.py and
recurrence_norm.py give them derivatives and vmap rules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import choice, reference, reference_norm
from .calls import Backward, Forward, NormBackward, NormForward, NormResult
from .checks import (
    check_backward,
    check_forward,
    check_lengths,
    check_norm_backward,
    check_norm_forward,
    is_usual_backward,
    is_usual_forward,
)
from .cpu import kernel
from .layout import readable

LIBRARY = torch.library.Library("indrnn", "DEF")
_RECURRENCE = "Tensor? lengths, Tensor? resets, str activation, bool reverse, str? backend"
_NORM = "Tensor? mask, Tensor? lengths, Tensor? resets, float eps, str activation"
_SCHEMAS = (
    f"recurrence(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, {_RECURRENCE}) -> (Tensor h, Tensor h_last)",
    f"recurrence_backward(Tensor? grad_h, Tensor? grad_h_last, Tensor h, Tensor u, Tensor? h_0, {_RECURRENCE})"
    " -> (Tensor grad_x, Tensor grad_u, Tensor grad_bias, Tensor grad_h_0)",
    f"recurrence_norm(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, Tensor weight, Tensor shift, {_NORM}, str place,"
    " str? backend) -> (Tensor y, Tensor h_last, Tensor h, Tensor mean, Tensor var)",
    "recurrence_norm_backward(Tensor grad_y, Tensor? grad_h_last, Tensor h, Tensor? x, Tensor u, Tensor? h_0,"
    f" Tensor weight, Tensor mean, Tensor var, {_NORM}, str? backend) -> (Tensor grad_x, Tensor grad_u,"
    " Tensor grad_bias, Tensor grad_h_0, Tensor grad_weight, Tensor grad_shift)",
)
for _schema in _SCHEMAS:
    LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


# ---- by a backend


def forward(call: Forward, backend: str | None, *, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """The forward pass, after its checks; with `overwrite`, for the C++ kernel alone, h takes x's place."""
    if not is_usual_forward(call):
        check_forward(call)
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
        check_backward(call)
        check_lengths(call.lengths, call.h.shape[0])
        call = readable(call)
    if overwritten and call.h.is_cpu:
        return kernel.backward(call)
    gradients: tuple[Tensor, Tensor, Tensor, Tensor] = choice.choose(call.h, call.activation, backend).backward(call)
    return gradients


def norm_forward(call: NormForward, backend: str | None, *, overwrite: bool = False) -> NormResult:
    """The forward pass with batch norm, after its checks."""
    check_norm_forward(call)
    check_lengths(call.lengths, call.x.shape[0])
    call = readable(call)
    if overwrite:
        return kernel.norm_forward(call, overwrite=True)
    module = choice.choose(call.x, call.activation, backend)
    if not hasattr(module, "norm_forward"):
        return reference_norm.forward(call, module.forward)
    result: NormResult = module.norm_forward(call)
    return result


def norm_backward(call: NormBackward, backend: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The backward pass with batch norm, after its checks."""
    check_norm_backward(call)
    check_lengths(call.lengths, call.h.shape[0])
    call = readable(call)
    module = choice.choose(call.h, call.activation, backend)
    if not hasattr(module, "norm_backward"):
        return reference_norm.backward(call, module.backward)
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] = module.norm_backward(call)
    return gradients


def _norm_forward_op(*args: Any) -> tuple[Tensor, ...]:
    return tuple(norm_forward(NormForward(*args[:-1]), args[-1]))


LIBRARY.impl("recurrence", lambda *args: forward(Forward(*args[:-1]), args[-1]), "CompositeExplicitAutograd")
LIBRARY.impl("recurrence_backward", lambda *args: backward(Backward(*args[:-1]), args[-1]), "CompositeExplicitAutograd")
LIBRARY.impl("recurrence_norm", _norm_forward_op, "CompositeExplicitAutograd")
LIBRARY.impl(
    "recurrence_norm_backward",
    lambda *args: norm_backward(NormBackward(*args[:-1]), args[-1]),
    "CompositeExplicitAutograd",
)


# ---- shapes alone


def _forward_shapes(*args: Any) -> tuple[Tensor, Tensor]:
    check_forward(call := Forward(*args[:-1]))
    return call.x.new_empty(call.x.shape), call.x.new_empty(call.x.shape[1:])


def _backward_shapes(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_backward(call := Backward(*args[:-1]))
    return _gradient_shapes(call.h, call.u, call.h_0)


def _gradient_shapes(h: Tensor, u: Tensor, h_0: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    like = h if h_0 is None else h_0
    return h.new_empty(h.shape), u.new_empty(u.shape), u.new_empty(u.shape), like.new_empty(h.shape[1:])


def _norm_forward_shapes(*args: Any) -> tuple[Tensor, ...]:
    check_norm_forward(call := NormForward(*args[:-1]))
    x, dtype = call.x, reference.accumulation_dtype(call.x.dtype)
    h_is_y = call.place == "before" and call.mask is None
    statistics = (call.u.new_empty(call.u.shape, dtype=dtype), call.u.new_empty(call.u.shape, dtype=dtype))
    return x.new_empty(x.shape), x.new_empty(x.shape[1:]), x.new_empty(0 if h_is_y else x.shape), *statistics


def _norm_backward_shapes(*args: Any) -> tuple[Tensor, ...]:
    check_norm_backward(call := NormBackward(*args[:-1]))
    weight = call.weight
    return *_gradient_shapes(call.h, call.u, call.h_0), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


for _name, _shapes in {
    "recurrence": _forward_shapes,
    "recurrence_backward": _backward_shapes,
    "recurrence_norm": _norm_forward_shapes,
    "recurrence_norm_backward": _norm_backward_shapes,
}.items():
    torch.library.register_fake(f"indrnn::{_name}", _shapes, lib=LIBRARY)
