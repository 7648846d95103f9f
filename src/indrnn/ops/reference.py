"""The recurrence and its backward pass in plain PyTorch: the specification that every other backend is tested against.

Both functions are made of differentiable PyTorch operations, so autograd can check the first and derive the second.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .calls import Backward, Forward

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


def why_not(x: Tensor, activation: str) -> str | None:
    """None: the reference supports everything."""
    return None


def forward(call: Forward) -> tuple[Tensor, Tensor]:
    """Return h (T, B, ..., N) and h_last (B, ..., N)."""
    x, u, bias, h_0, lengths, resets, activation, reverse = call
    dtype = accumulation_dtype(x.dtype)
    u = u.to(dtype)
    state = x.new_zeros(x.shape[1:], dtype=dtype) if h_0 is None else h_0.to(dtype)
    rows: dict[int, Tensor] = {}
    for t in _steps(x.shape[0], reverse):
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
    for t in _steps(T, not reverse):
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


def _steps(T: int, reverse: bool) -> range:
    return range(T - 1, -1, -1) if reverse else range(T)


def _per_row(flags: Tensor, like: Tensor) -> Tensor:
    """(B,) to (B, 1, ..., 1), to broadcast with a (B, ..., N) tensor."""
    return flags.view(-1, *[1] * (like.dim() - 1))


def _stack(rows: dict[int, Tensor], like: Tensor) -> Tensor:
    """torch.stack with a contiguous result, also if the rows' channels come last in memory."""
    return torch.stack([rows[t] for t in range(len(rows))]).contiguous() if rows else torch.zeros_like(like)
