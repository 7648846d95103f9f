"""First and second derivatives of the recurrence with batch norm, and its vmap rules, as in autograd.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import library, reference_norm
from .autograd import OPS, differentiable, direct, one_by_one, recurrence_backward, register_vmap
from .calls import NormBackward, NormForward, NormResult
from .layout import dense
from .watched import are_batched, are_plain, is_watched


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep h, and x for a norm before the recurrence."""
    call, result = NormForward(*inputs[:-1]), NormResult(*output)
    before = call.place == "before"
    ctx.y_is_h = before and call.mask is None
    ctx.bias_dtype = None if call.bias is None else call.bias.dtype
    ctx.options, ctx.backend = (call.eps, call.activation), inputs[-1]
    ctx.direct = ctx.overwritten = False
    ctx.mark_non_differentiable(result.mean, result.var)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        result.y if ctx.y_is_h else result.h,
        call.x if before else None,
        call.u,
        call.h_0,
        call.weight,
        result.mean,
        result.var,
        call.mask,
        call.lengths,
        call.resets,
    )


def _backward(
    ctx: Any, grad_y: Tensor | None, grad_h_last: Tensor | None, grad_h: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    """By the op or a backend, or, if it may be differentiated again, in differentiable steps."""
    by_op = not ctx.direct or is_watched() or are_batched(grad_y, grad_h_last, grad_h)
    grad_y, grad_h_last, grad_h = dense(grad_y), dense(grad_h_last), dense(grad_h)
    h, *others = ctx.saved_tensors
    grad_y = torch.zeros_like(h) if grad_y is None else grad_y
    call = NormBackward(grad_y, grad_h_last, h, *others, *ctx.options)
    grad_h = None if ctx.y_is_h else grad_h
    gradients: tuple[Tensor, ...]
    if not torch.compiler.is_compiling() and (torch.is_grad_enabled() or grad_h is not None):
        gradients = reference_norm.backward(call, lambda inner: recurrence_backward(*inner, ctx.backend), grad_h)
    elif by_op or not are_plain(*call[:12]):  # a gradient, or what a saved tensor's hook returned
        gradients = OPS.recurrence_norm_backward(*call, ctx.backend)
    else:
        gradients = library.norm_backward(call, ctx.backend)
    grad_x, grad_u, grad_bias, grad_h_0, grad_weight, grad_shift = gradients
    of_bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_x, grad_u, of_bias, None if call.h_0 is None else grad_h_0, grad_weight, grad_shift, *[None] * 7


recurrence_norm = differentiable("recurrence_norm", _keep, _backward, one_by_one)  # the statistics are of one call
recurrence_norm_direct = direct(NormForward, library.norm_forward, _keep, _backward)
register_vmap("recurrence_norm_backward", one_by_one)
