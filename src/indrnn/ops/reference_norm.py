"""Recurrence, batch norm and dropout in plain PyTorch: the specification of `recurrence_norm`, forward and backward.

    after:   y = mask ⊙ BN(h),  h_t = σ(x_t + b + u ⊙ h_{t−1})
    before:  y = mask ⊙ h,      h_t = σ(BN(x_t + b) + u ⊙ h_{t−1})

Statistics are those of the batch: over its valid steps, in the accumulation type.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import reference
from .calls import Backward, Forward, NormBackward, NormForward, NormResult
from .reference import sum_to_neurons

Run = Callable[[Forward], tuple[Tensor, Tensor]]
Through = Callable[[Backward], tuple[Tensor, Tensor, Tensor, Tensor]]


def forward(call: NormForward, run: Run = reference.forward) -> NormResult:
    """Forward, by any backend's pass of the recurrence."""
    x, mask = call.x, call.mask
    dtype, valid = reference.accumulation_dtype(x.dtype), _valid(x, call.lengths)

    def normal(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = _moments(values, valid)
        y = (values - mean) * ((var + call.eps).rsqrt() * call.weight.to(dtype)) + call.shift.to(dtype)
        return torch.where(valid, y, 0.0), mean, var

    if call.place == "after":
        h, h_last = run(call.recurrence)
        y, mean, var = normal(h.to(dtype))
        return NormResult((y if mask is None else y * mask.to(dtype)).to(x.dtype), h_last, h, mean, var)
    z, mean, var = normal(x.to(dtype))
    h, h_last = run(call.recurrence._replace(x=z, u=call.u.to(dtype), bias=None))
    h, h_last = h.to(x.dtype), h_last.to(x.dtype)
    if mask is None:
        return NormResult(h, h_last, x.new_empty(0), mean, var)
    return NormResult((h.to(dtype) * mask.to(dtype)).to(x.dtype), h_last, h, mean, var)


def backward(
    call: NormBackward, through: Through = reference.backward, grad_h: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Backward, by any backend's pass of the recurrence; `grad_h` is a gradient that reached h itself.

    Statistics are recomputed, so that it is differentiable if `through` is.
    """
    h, x, weight, mask = call.h, call.x, call.weight, call.mask
    dtype, valid = reference.accumulation_dtype(h.dtype), _valid(h, call.lengths)
    normed = torch.where(valid, (h if x is None else x).to(dtype), 0.0)  # 0 · NaN would be the padding's derivative
    mean, var = _moments(normed, valid)
    rstd = (var + call.eps).rsqrt()
    unit = torch.where(valid, (normed - mean) * rstd, 0.0)
    count = _count(h, valid)

    def through_norm(g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        g = torch.where(valid, g, 0.0)
        S1, S2 = sum_to_neurons(g), sum_to_neurons(g * unit)
        gradient = (rstd * weight.to(dtype)) * (g - S1 / count - unit * (S2 / count))
        return torch.where(valid, gradient, 0.0), S2.to(weight.dtype), S1.to(weight.dtype)

    g = call.grad_y.to(dtype) if mask is None else call.grad_y.to(dtype) * mask.to(dtype)
    if x is None:
        g, grad_weight, grad_shift = through_norm(g)
        g = g if grad_h is None else g + grad_h
        grad_x, grad_u, grad_bias, grad_h_0 = through(call.recurrence(g.to(h.dtype)))
    else:
        g = g if grad_h is None else g + grad_h
        delta, grad_u, grad_bias, grad_h_0 = through(call.recurrence(g.to(h.dtype)))
        grad_x, grad_weight, grad_shift = through_norm(delta.to(dtype))
        grad_x, grad_bias = grad_x.to(x.dtype), torch.zeros_like(grad_bias)
    return grad_x, grad_u, grad_bias, grad_h_0, grad_weight, grad_shift


def _valid(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, B, 1, ..., 1), whether a step is within its sequence."""
    step = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    valid = (step >= 0).expand(x.shape[:2]) if lengths is None else step < lengths
    return valid.reshape(*x.shape[:2], *[1] * (x.dim() - 2))


def _count(values: Tensor, valid: Tensor) -> Tensor:
    """The count of numbers in a neuron's statistics; 1 for none, whose sums are 0."""
    between = values[0, 0].numel() // max(1, values.shape[-1]) if values.numel() else 1
    return (valid.sum() * between).clamp_min(1).to(reference.accumulation_dtype(values.dtype))


def _moments(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    count = _count(values, valid)
    mean = sum_to_neurons(torch.where(valid, values, 0.0)) / count
    mean = mean + sum_to_neurons(torch.where(valid, values - mean, 0.0)) / count  # what rounding took from a large one
    away = torch.where(valid, values - mean, 0.0)
    return mean, sum_to_neurons(away * away) / count
