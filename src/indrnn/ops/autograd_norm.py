"""First and second derivatives of the recurrence with batch norm, and its vmap rules, as in autograd.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import library, reference_norm
from .autograd import OPS, RecurrenceBackward, one_by_one
from .calls import NormBackward, NormForward, NormResult
from .layout import dense
from .watched import are_batched, are_plain, is_watched

NormGradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class RecurrenceNorm(torch.autograd.Function):
    """The registered op, with its derivative."""

    @staticmethod
    def forward(
        x: Tensor,
        u: Tensor,
        bias: Tensor | None,
        h_0: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        mask: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        eps: float,
        activation: str,
        place: str,
        backend: str | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Run the op."""
        return OPS.recurrence_norm(  # type: ignore[no-any-return]
            x, u, bias, h_0, weight, shift, mask, lengths, resets, eps, activation, place, backend
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep h, and x for a norm before the recurrence."""
        call, result = NormForward(*inputs[:-1]), NormResult(*output)
        before = call.place == "before"
        ctx.y_is_h = before and call.mask is None
        ctx.bias_dtype = None if call.bias is None else call.bias.dtype
        ctx.options, ctx.backend = (call.eps, call.activation), inputs[-1]
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

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """By the op, or, if it may be differentiated again, in differentiable steps."""
        return _backward(ctx, _by_op, RecurrenceBackward.apply, *gradients)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """A batch of calls as a loop: the statistics are of one call."""
        return one_by_one(RecurrenceNorm.apply, info.batch_size, in_dims, args)


class DirectNorm(torch.autograd.Function):
    """The backend called without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, overwrite: bool, *inputs: Any) -> tuple[Tensor, ...]:
        """Run the pass."""
        output = tuple(library.norm_forward(NormForward(*inputs[:-1]), inputs[-1], overwrite=overwrite))
        if overwrite:
            ctx.mark_dirty(inputs[0])
        RecurrenceNorm.setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """By the backend, if nothing watches now."""
        run = _by_op if is_watched() or are_batched(*gradients) else _by_backend
        return None, *_backward(ctx, run, RecurrenceBackward.apply, *gradients)


def _by_backend(call: NormBackward, backend: str | None) -> NormGradients:
    if not are_plain(*call[:12]):  # a gradient, or what a saved tensor's hook returned
        return _by_op(call, backend)
    return library.norm_backward(call, backend)


def _by_op(call: NormBackward, backend: str | None) -> NormGradients:
    return OPS.recurrence_norm_backward(*call, backend)  # type: ignore[no-any-return]


def _backward(
    ctx: Any,
    run: Callable[[NormBackward, str | None], NormGradients],
    through: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]],
    grad_y: Tensor | None,
    grad_h_last: Tensor | None,
    grad_h: Tensor | None,
    *_: Any,
) -> tuple[Tensor | None, ...]:
    grad_y, grad_h_last, grad_h = dense(grad_y), dense(grad_h_last), dense(grad_h)
    h, *others = ctx.saved_tensors
    grad_y = torch.zeros_like(h) if grad_y is None else grad_y
    call = NormBackward(grad_y, grad_h_last, h, *others, *ctx.options)
    grad_h = None if ctx.y_is_h else grad_h
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() or grad_h is not None):
        gradients = run(call, ctx.backend)
    else:
        gradients = reference_norm.backward(call, lambda inner: through(*inner, ctx.backend), grad_h)
    grad_x, grad_u, grad_bias, grad_h_0, grad_weight, grad_shift = gradients
    of_bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_x, grad_u, of_bias, None if call.h_0 is None else grad_h_0, grad_weight, grad_shift, *[None] * 7


# ---- of the op itself, for graphs that hold it


def _backward_by_op(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return _backward(ctx, _by_op, OPS.recurrence_backward, *gradients)


def _vmap(op: Any) -> Callable[..., tuple[Any, Any]]:
    return lambda info, in_dims, *args: one_by_one(op, info.batch_size, in_dims, args)


torch.library.register_autograd(
    "indrnn::recurrence_norm", _backward_by_op, setup_context=RecurrenceNorm.setup_context, lib=library.LIBRARY
)
torch.library.register_vmap("indrnn::recurrence_norm", _vmap(OPS.recurrence_norm), lib=library.LIBRARY)
torch.library.register_vmap(
    "indrnn::recurrence_norm_backward", _vmap(OPS.recurrence_norm_backward), lib=library.LIBRARY
)
