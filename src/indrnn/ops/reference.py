"""The passes in plain PyTorch, without and with batch norm: the specification that every backend is tested against.

They are made of differentiable PyTorch operations, so autograd can check the forward and derive the backward passes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .calls import Backward, Forward, NormBackward, NormForward, NormResult

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda z: z,
}

# gradient · σ'(z), from h = σ(z) alone
THROUGH_ACTIVATION: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, h: torch.where(h <= 0, 0.0, gradient),
    "tanh": lambda gradient, h: gradient * (1 - h * h),
    "sigmoid": lambda gradient, h: gradient * (h * (1 - h)),
    "identity": lambda gradient, h: gradient,
}


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which a state of this type is carried: float32 for the half types, else itself."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def step(x: Tensor, u: Tensor, h: Tensor, activation: str) -> Tensor:
    """One step, h' = σ(x + u ⊙ h), in the accumulation type."""
    return ACTIVATIONS[activation](x + u * h)


def why_not(x: Tensor, activation: str) -> None:
    """None: the reference supports everything."""


def forward(call: Forward) -> tuple[Tensor, Tensor]:
    """Return h (T, B, ..., N) and h_last (B, ..., N)."""
    x, u, bias, h_0, lengths, resets, activation, reverse = call
    dtype = accumulation_dtype(x.dtype)
    u = u.to(dtype)
    state = x.new_zeros(x.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)
    rows: dict[int, Tensor] = {}
    for t in range(x.shape[0])[:: -1 if reverse else 1]:
        x_t = x[t].to(dtype) if bias is None else x[t].to(dtype) + bias.to(dtype)
        entering = state if resets is None else torch.where(_per_row(resets[t], x_t), 0.0, state)
        if lengths is None:
            state = rows[t] = step(x_t, u, entering, activation)
        else:
            valid = _per_row(t < lengths, x_t)
            new = step(torch.where(valid, x_t, 0.0), u, entering, activation)
            state = torch.where(valid, new, state)
            rows[t] = torch.where(valid, new, 0.0)
    return _stack(rows, x).to(x.dtype), state.to(x.dtype).clone(memory_format=torch.contiguous_format)


def backward(call: Backward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x (T, B, ..., N), u (N,), a bias (N,) and h_0 (B, ..., N) from those of h and h_last."""
    grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse = call
    dtype = accumulation_dtype(h.dtype)
    u_ = u.to(dtype)
    start = h.new_zeros(h.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)
    carry = torch.zeros_like(start) if grad_h_last is None else grad_h_last.to(dtype)
    sum_u, sum_bias = torch.zeros_like(start), torch.zeros_like(start)  # each chain's part of the two gradients
    rows: dict[int, Tensor] = {}
    T = h.shape[0]
    for t in range(T)[:: 1 if reverse else -1]:
        h_t = h[t].to(dtype)
        before = t + 1 if reverse else t - 1
        entering = h[before].to(dtype) if 0 <= before < T else start
        if lengths is not None:
            entering = torch.where(_per_row(before < lengths, h_t), entering, start)
        if resets is not None:
            entering = torch.where(_per_row(resets[t], h_t), 0.0, entering)
        incoming = carry
        if grad_h is not None:
            grad_t = grad_h[t].to(dtype)
            incoming = carry + (grad_t if lengths is None else torch.where(_per_row(t < lengths, h_t), grad_t, 0.0))
        delta = THROUGH_ACTIVATION[activation](incoming, h_t)
        to_u, to_previous = delta * entering, u_ * delta
        if resets is not None:
            to_previous = torch.where(_per_row(resets[t], h_t), 0.0, to_previous)
        if lengths is not None:
            valid = _per_row(t < lengths, h_t)
            delta, to_u = torch.where(valid, delta, 0.0), torch.where(valid, to_u, 0.0)
            to_previous = torch.where(valid, to_previous, carry)
        carry, sum_u, sum_bias, rows[t] = to_previous, sum_u + to_u, sum_bias + delta, delta
    grad_u, grad_bias = (sum_to_neurons(chains).to(u.dtype) for chains in (sum_u, sum_bias))
    start_dtype = h.dtype if h_0 is None else h_0.dtype
    grad_h_0 = carry.to(start_dtype).clone(memory_format=torch.contiguous_format)
    return _stack(rows, h).to(h.dtype), grad_u, grad_bias, grad_h_0


def sum_to_neurons(values: Tensor) -> Tensor:
    """(..., N) to (N,), summed by halves, as the bits of torch's own sums depend on the number of threads."""
    values = values.reshape(values.numel() // max(1, values.shape[-1]), values.shape[-1])
    left_over = values.new_zeros(values.shape[-1])
    while len(values) > 1:
        half = len(values) // 2
        if len(values) % 2:
            left_over = left_over + values[-1]
        values = values[:half] + values[half : 2 * half]
    return left_over if len(values) == 0 else left_over + values[0]


def _per_row(flags: Tensor, like: Tensor) -> Tensor:
    """(B,) to (B, 1, ..., 1), to broadcast with a (B, ..., N) tensor."""
    return flags.view(-1, *[1] * (like.dim() - 1))


def _stack(rows: dict[int, Tensor], like: Tensor) -> Tensor:
    """torch.stack with a contiguous result, also if the rows' channels come last in memory."""
    return torch.stack([rows[t] for t in range(len(rows))]).contiguous() if rows else torch.zeros_like(like)


# ---- with batch norm and dropout: statistics of the batch, over its valid steps, in the accumulation type

Run = Callable[[Forward], tuple[Tensor, Tensor]]
Through = Callable[[Backward], tuple[Tensor, Tensor, Tensor, Tensor]]


def norm_forward(call: NormForward, run: Run = forward) -> NormResult:
    """Forward, by any backend's pass of the recurrence."""
    x, mask = call.x, call.mask
    dtype, valid = accumulation_dtype(x.dtype), valid_steps(x, call.lengths)

    def normal(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, var, _ = _moments(values, valid)
        y = (values - mean) * ((var + call.eps).rsqrt() * call.weight.to(dtype)) + call.shift.to(dtype)
        return torch.where(valid, y, 0.0), mean, var

    if call.place == "after":
        h, h_last = run(call.recurrence)
        y, mean, var = normal(h.to(dtype))
    else:
        z, mean, var = normal(x.to(dtype))
        h, h_last = (states.to(x.dtype) for states in run(call.recurrence._replace(x=z, u=call.u.to(dtype), bias=None)))
        if mask is None:
            return NormResult(h, h_last, x.new_empty(0), mean, var)
        y = h.to(dtype)
    return NormResult((y if mask is None else y * mask.to(dtype)).to(x.dtype), h_last, h, mean, var)


def norm_backward(
    call: NormBackward, through: Through = backward, grad_h: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Backward, by any backend's pass of the recurrence; `grad_h` is a gradient that reached h itself.

    Statistics are recomputed, so that it is differentiable if `through` is.
    """
    h, x, weight, mask = call.h, call.x, call.weight, call.mask
    dtype, valid = accumulation_dtype(h.dtype), valid_steps(h, call.lengths)
    normed = torch.where(valid, (h if x is None else x).to(dtype), 0.0)  # 0 · NaN would be the padding's derivative
    mean, var, count = _moments(normed, valid)
    rstd = (var + call.eps).rsqrt()
    unit = torch.where(valid, (normed - mean) * rstd, 0.0)

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
    if x is not None:
        grad_x, grad_weight, grad_shift = through_norm(grad_x.to(dtype))
        grad_x, grad_bias = grad_x.to(x.dtype), torch.zeros_like(grad_bias)
    return grad_x, grad_u, grad_bias, grad_h_0, grad_weight, grad_shift


def valid_steps(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, B, 1, ..., 1), whether a step is within its sequence."""
    step = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    valid = (step >= 0).expand(x.shape[:2]) if lengths is None else step < lengths
    return valid.reshape(*x.shape[:2], *[1] * (x.dim() - 2))


def _moments(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each neuron, and the count of their numbers; 1 for none, whose sums are 0."""
    between = values[0, 0].numel() // max(1, values.shape[-1]) if values.numel() else 1
    count = (valid.sum() * between).clamp_min(1).to(values.dtype)
    mean = sum_to_neurons(torch.where(valid, values, 0.0)) / count
    mean = mean + sum_to_neurons(torch.where(valid, values - mean, 0.0)) / count  # what rounding took from a large one
    away = torch.where(valid, values - mean, 0.0)
    return mean, sum_to_neurons(away * away) / count, count
