"""Recomputation over time (gradient checkpointing): the backward pass recomputes the forward pass in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Run = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Sequence[Tensor]], tuple[Tensor, Tensor]]
"""From a piece of x, the state before it, its lengths and resets and the parameters to its output and state."""


def in_pieces(
    run: Run,
    steps: int,
    x: Tensor,
    h_0: Tensor,
    lengths: Tensor | None,
    resets: Tensor | None,
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Compute run(x, h_0, lengths, resets, parameters) in pieces, keeping only the states between them.

    Args:
        run: maps (T, B, M) and its other arguments to an output (T, B, ...) and the state after it. Its random numbers
            must be fixed beforehand.
        steps: time steps of a piece.
        x: (T, B, M).
        h_0: the state before the first step.
        lengths: (B,), as for `recurrence`.
        resets: (T, B), as for `recurrence`.
        parameters: tensors besides x and h_0 that `run` is differentiated in.
    """
    if torch.compiler.is_compiling():
        raise RuntimeError("recompute cannot be compiled; leave it out, and let torch.compile save memory its own way")
    if x.shape[0] <= steps:
        return run(x, h_0, lengths, resets, parameters)
    return _InPieces.apply(run, steps, x, h_0, lengths, resets, *parameters)  # type: ignore[no-any-return]


def _piece(x: Tensor, start: int, steps: int, lengths: Tensor | None, resets: Tensor | None) -> tuple[Any, ...]:
    x = x[start : start + steps]
    lengths = None if lengths is None else (lengths - start).clamp(0, x.shape[0])
    return x, lengths, None if resets is None else resets[start : start + steps]


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        run: Run,
        steps: int,
        x: Tensor,
        h_0: Tensor,
        lengths: Tensor | None,
        resets: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        starts, states = range(0, x.shape[0], steps), [h_0]
        output = None
        for start in starts:
            piece, piece_lengths, piece_resets = _piece(x, start, steps, lengths, resets)
            out, state = run(piece, states[-1], piece_lengths, piece_resets, parameters)
            if output is None:
                output = out.new_empty(x.shape[0], *out.shape[1:])
            output[start : start + steps] = out
            states.append(state)
        assert output is not None
        device = x.device.type
        ctx.run, ctx.steps, ctx.pieces = run, steps, len(starts)
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        ctx.save_for_backward(x, lengths, resets, *states[:-1], *parameters)
        return output, states[-1]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("with recompute there is a first derivative only, and a second was asked for")
        x, lengths, resets, *others = ctx.saved_tensors
        states, parameters = others[: ctx.pieces], others[ctx.pieces :]
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[2] else None
        needed = ctx.needs_input_grad[6:]
        totals: list[Tensor | None] = [None] * len(parameters)
        for i in reversed(range(ctx.pieces)):
            start = i * ctx.steps
            piece, piece_lengths, piece_resets = _piece(x, start, ctx.steps, lengths, resets)
            with torch.enable_grad(), torch.autocast(*ctx.autocast):
                inputs = [piece.detach().requires_grad_(grad_x is not None), states[i].detach().requires_grad_()]
                own = [p.detach().requires_grad_(need) for p, need in zip(parameters, needed, strict=True)]
                out, state = ctx.run(*inputs, piece_lengths, piece_resets, own)
            wanted = [tensor for tensor in (*inputs, *own) if tensor.requires_grad]
            gradients = iter(
                torch.autograd.grad(
                    (out, state), wanted, (grad_output[start : start + ctx.steps], grad_state), materialize_grads=True
                )
            )
            if grad_x is not None:
                grad_x[start : start + ctx.steps] = next(gradients)
            grad_state = next(gradients)
            for k, need in enumerate(needed):
                if need:
                    total, gradient = totals[k], next(gradients)
                    totals[k] = gradient if total is None else total + gradient
        return None, None, grad_x, grad_state, None, None, *totals
