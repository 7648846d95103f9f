"""The recurrence with batch norm over the sequence, before or after it, and dropout shared over time, as one op.

    after:   y = mask ⊙ BN(h),  h_t = σ(x_t + b + u ⊙ h_{t−1})
    before:  y = mask ⊙ h,      h_t = σ(BN(x_t + b) + u ⊙ h_{t−1})

With the batch's own statistics, so for training. `norm_forward` and `norm_backward` are the specification in plain
PyTorch; the native backend does the same in fewer passes over memory. Shapes are those of `recurrence`; weight, shift,
mean and var (N,); mask (1, B, ..., N).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import choice, native, op, reference, triton_backend
from .timeline import timeline

_WITH_NORM = (native, triton_backend)  # backends that do this in fewer passes
Run = Callable[..., tuple[Tensor, Tensor]]
Through = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


def recurrence_norm(
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    shift: Tensor,
    h_0: Tensor | None = None,
    *,
    place: str,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float = 1e-5,
    activation: str = "relu",
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    backend: str | None = None,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the recurrence, batch norm over batch and time before or after it, and dropout.

    Args:
        x: (T, B, ..., N), as for `recurrence`.
        u: (N,), the recurrent weight.
        weight: (N,), the norm's scale.
        shift: (N,), the norm's shift.
        h_0: (B, ..., N), the state before the first step; zeros if None.
        place: the norm's: "before" or "after" the recurrence.
        bias: (N,), added to each step of x; a norm before the recurrence takes it away again.
        mask: (1, B, ..., N), what the result is multiplied with at each step; None for nothing.
        eps: added to the variance.
        activation: as for `recurrence`.
        lengths: as for `recurrence`; padding enters no statistic.
        resets: as for `recurrence`.
        backend: as for `recurrence`.
        overwrite: x is the result of an operation and nothing else needs it, so that its memory may be used.

    Returns:
        y (T, B, ..., N), h_last (B, ..., N), and the mean and biased variance (N,) of h, or of x without the bias. The
        statistics carry no gradient.
    """
    if place not in ("before", "after"):
        raise ValueError(f"place must be 'before' or 'after', got {place!r}")
    timeline().refuse("recurrence_norm")
    op.check(x, u, h_0, bias, activation, lengths, resets)
    for name, value in (("weight", weight), ("shift", shift)):
        if value.shape != u.shape:
            raise ValueError(f"{name} must have shape {tuple(u.shape)}, as u has, got {tuple(value.shape)}")
    if mask is not None and mask.shape != (1, *x.shape[1:]):
        raise ValueError(f"mask must have shape {(1, *x.shape[1:])}, one for all steps, got {tuple(mask.shape)}")
    choice.check_name(backend)
    arguments = (x, u, bias, h_0, weight, shift, mask, lengths, resets, eps, activation, place, backend)
    in_place = overwrite and place == "after" and op.can_overwrite(arguments[:9], activation, backend)
    y, h_last, _, mean, var = (_RecurrenceNormInPlace if in_place else _RecurrenceNorm).apply(*arguments)
    return y, h_last, mean, var


def norm_forward(
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
    run: Run = reference.forward,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, h_last, h (empty where it is y), mean and variance; `run` is the recurrence's forward pass."""
    dtype, valid = reference.accumulation_dtype(x.dtype), _valid(x, lengths)

    def normal(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = _moments(values, valid)
        y = (values - mean) * ((var + eps).rsqrt() * weight.to(dtype)) + shift.to(dtype)
        return torch.where(valid, y, 0.0), mean, var

    if place == "after":
        h, h_last = run(x, u, bias, h_0, lengths, resets, activation, False)
        y, mean, var = normal(h.to(dtype))
        return (y if mask is None else y * mask.to(dtype)).to(x.dtype), h_last, h, mean, var
    z, mean, var = normal(x.to(dtype))
    h, h_last = run(z, u.to(dtype), None, h_0, lengths, resets, activation, False)
    h, h_last = h.to(x.dtype), h_last.to(x.dtype)
    if mask is None:
        return h, h_last, x.new_empty(0), mean, var
    return (h.to(dtype) * mask.to(dtype)).to(x.dtype), h_last, h, mean, var


def norm_backward(
    grad_y: Tensor,
    grad_h_last: Tensor | None,
    h: Tensor,
    x: Tensor | None,
    u: Tensor,
    h_0: Tensor | None,
    weight: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    eps: float,
    through: Through,
    grad_h: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, u, bias, h_0, weight and shift; x is given for a norm before the recurrence alone.

    `through` is the recurrence's backward pass, and `grad_h` a gradient that came back to h itself. Differentiable
    where `through` is.
    """
    dtype, valid = reference.accumulation_dtype(h.dtype), _valid(h, lengths)
    normed = (h if x is None else x).to(dtype)
    mean, var = _moments(normed, valid)
    rstd = (var + eps).rsqrt()
    unit = torch.where(valid, (normed - mean) * rstd, 0.0)
    over = tuple(range(h.dim() - 1))
    count = valid.expand(h.shape).sum(dim=over, dtype=dtype).clamp_min(1)

    def through_norm(g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        g = torch.where(valid, g, 0.0)
        S1, S2 = g.sum(dim=over), (g * unit).sum(dim=over)
        gradient = (rstd * weight.to(dtype)) * (g - S1 / count - unit * (S2 / count))
        return torch.where(valid, gradient, 0.0), S2.to(weight.dtype), S1.to(weight.dtype)

    g = grad_y.to(dtype) if mask is None else grad_y.to(dtype) * mask.to(dtype)
    if x is None:
        g, grad_weight, grad_shift = through_norm(g)
        g = g if grad_h is None else g + grad_h
        grad_x, grad_u, grad_bias, grad_h_0 = through(g.to(h.dtype), grad_h_last, h, u, h_0, lengths, resets)
    else:
        g = g if grad_h is None else g + grad_h
        delta, grad_u, grad_bias, grad_h_0 = through(g.to(h.dtype), grad_h_last, h, u, h_0, lengths, resets)
        grad_x, grad_weight, grad_shift = through_norm(delta.to(dtype))
        grad_x, grad_bias = grad_x.to(x.dtype), torch.zeros_like(grad_bias)
    return grad_x, grad_u, grad_bias, grad_h_0, grad_weight, grad_shift


def _valid(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, B, 1, ..., 1), whether a step is within its sequence."""
    step = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    valid = (step >= 0).expand(x.shape[:2]) if lengths is None else step < lengths
    return valid.reshape(*x.shape[:2], *[1] * (x.dim() - 2))


def _moments(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    over = tuple(range(values.dim() - 1))
    count = valid.expand(values.shape).sum(dim=over, dtype=values.dtype).clamp_min(1)
    mean = torch.where(valid, values, 0.0).sum(dim=over) / count
    away = torch.where(valid, values - mean, 0.0)
    return mean, (away * away).sum(dim=over) / count


# ---- the two ops

_OPTIONS = "Tensor? lengths, Tensor? resets, float eps, str activation, str place, str? backend"
op.LIBRARY.define(
    "recurrence_norm(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, Tensor weight, Tensor shift, Tensor? mask, "
    f"{_OPTIONS}) -> (Tensor y, Tensor h_last, Tensor h, Tensor mean, Tensor var)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
op.LIBRARY.define(
    "recurrence_norm_backward(Tensor grad_y, Tensor? grad_h_last, Tensor h, Tensor? x, Tensor u, Tensor? h_0, "
    f"Tensor weight, Tensor mean, Tensor var, Tensor? mask, {_OPTIONS}) -> (Tensor grad_x, Tensor grad_u, "
    "Tensor grad_bias, Tensor grad_h_0, Tensor grad_weight, Tensor grad_shift)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, _, _, _, _, _, _, lengths, _, _, activation, _, backend = args
    op.check_lengths(lengths, x.shape[0])
    module = choice.choose(x, activation, backend)
    if module in _WITH_NORM:
        return module.norm_forward(*args[:-1])  # type: ignore[no-any-return]
    return functools.partial(norm_forward, run=module.forward)(*args[:-1])


def _backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_y, grad_h_last, h, x, u, h_0, weight, _, _, mask, lengths, resets, eps, activation, _, backend = args
    module = choice.choose(h, activation, backend)
    if module in _WITH_NORM:
        return module.norm_backward(*args[:-2])  # type: ignore[no-any-return]
    through = functools.partial(module.backward, activation=activation, reverse=False)
    return norm_backward(grad_y, grad_h_last, h, x, u, h_0, weight, mask, lengths, resets, eps, through)


def _forward_shapes(
    x: Tensor, u: Tensor, bias: Any, h_0: Any, weight: Any, shift: Any, mask: Any, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype = reference.accumulation_dtype(x.dtype)
    h_is_y = options[-2] == "before" and mask is None
    statistics = (u.new_empty(u.shape, dtype=dtype), u.new_empty(u.shape, dtype=dtype))
    return x.new_empty(x.shape), x.new_empty(x.shape[1:]), x.new_empty(0 if h_is_y else x.shape), *statistics


def _backward_shapes(
    grad_y: Tensor, grad_h_last: Any, h: Tensor, x: Any, u: Tensor, h_0: Tensor | None, weight: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    like = h if h_0 is None else h_0
    of_u = (u.new_empty(u.shape), u.new_empty(u.shape))
    of_weight = (weight.new_empty(u.shape), weight.new_empty(u.shape))
    return h.new_empty(h.shape), *of_u, like.new_empty(h.shape[1:]), *of_weight


op.LIBRARY.impl("recurrence_norm", _forward, "CompositeExplicitAutograd")
op.LIBRARY.impl("recurrence_norm_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("indrnn::recurrence_norm", _forward_shapes, lib=op.LIBRARY)
torch.library.register_fake("indrnn::recurrence_norm_backward", _backward_shapes, lib=op.LIBRARY)


class _RecurrenceNorm(torch.autograd.Function):
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
        return torch.ops.indrnn.recurrence_norm(  # type: ignore[no-any-return]
            x, u, bias, h_0, weight, shift, mask, lengths, resets, eps, activation, place, backend
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, u, bias, h_0, weight, _, mask, lengths, resets, *ctx.options = inputs
        y, _, h, mean, var = output
        before = ctx.options[2] == "before"
        ctx.y_is_h = before and mask is None
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            y if ctx.y_is_h else h, x if before else None, u, h_0, weight, mean, var, mask, lengths, resets
        )

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, grad_h_last: Tensor | None, grad_h: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        h, x, u, h_0, weight, mean, var, mask, lengths, resets = ctx.saved_tensors
        eps, activation, _, backend = ctx.options
        grad_y = torch.zeros_like(h) if grad_y is None else grad_y
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() or (grad_h is not None and not ctx.y_is_h)):
            gradients = torch.ops.indrnn.recurrence_norm_backward(
                grad_y, grad_h_last, h, x, u, h_0, weight, mean, var, mask, lengths, resets, *ctx.options
            )
        else:  # where it may be differentiated again: in steps that can be

            def through(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
                return op._RecurrenceBackward.apply(*inputs, activation, False, backend)  # type: ignore[no-any-return]

            extra = None if ctx.y_is_h else grad_h
            gradients = norm_backward(
                grad_y, grad_h_last, h, x, u, h_0, weight, mask, lengths, resets, eps, through, extra
            )
        grad_x, grad_u, grad_bias, grad_h_0, grad_weight, grad_shift = gradients
        return (
            grad_x,
            grad_u,
            None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype),
            None if h_0 is None else grad_h_0,
            grad_weight,
            grad_shift,
            *[None] * 7,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        return op._one_by_one(_RecurrenceNorm.apply, info.batch_size, in_dims, args)


class _RecurrenceNormInPlace(torch.autograd.Function):
    """By the C++ kernel, with h in the place of x, for a norm after the recurrence."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        u: Tensor,
        bias: Tensor | None,
        h_0: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        mask: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        *options: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        op.check_lengths(lengths, x.shape[0])
        inputs = (x, u, bias, h_0, weight, shift, mask, lengths, resets, *options)
        output = native.norm_forward(*inputs[:-1], overwrite=True)
        ctx.mark_dirty(x)
        _RecurrenceNorm.setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _RecurrenceNorm.backward(ctx, *gradients)
