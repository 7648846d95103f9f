"""Recomputation over time (gradient checkpointing): the backward pass recomputes the forward pass in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Parameters = Sequence[Any]
"""Parameters of the layers; None for one that is not there."""
Run = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Parameters], tuple[Tensor, Tensor]]
"""Function of a piece of x, the state before it, its lengths and resets and the parameters: its output and state."""


def in_pieces(
    run: Run, steps: int, x: Tensor, h_0: Tensor, lengths: Tensor | None, resets: Tensor | None, parameters: Parameters
) -> tuple[Tensor, Tensor]:
    """Compute run(x, h_0, lengths, resets, parameters) in pieces of `steps`, keeping only the states between them.

    The random numbers of `run` must be fixed beforehand; it is differentiated in x, h_0 and the parameters.
    """
    if torch.compiler.is_compiling():
        raise RuntimeError("recompute cannot be compiled; leave it out, and let torch.compile save memory its own way")
    if x.shape[0] <= steps:
        return run(x, h_0, lengths, resets, parameters)
    return _InPieces.apply(run, steps, x, h_0, lengths, resets, *parameters)  # type: ignore[no-any-return]


def _pieces(
    x: Tensor, steps: int, lengths: Tensor | None, resets: Tensor | None
) -> Iterator[tuple[slice, Tensor, Tensor | None, Tensor | None]]:
    """Each piece's place, and its part of x, lengths and resets."""
    for start in range(0, x.shape[0], steps):
        place = slice(start, start + steps)
        part = x[place]
        own_lengths = None if lengths is None else (lengths - start).clamp(0, part.shape[0])
        yield place, part, own_lengths, None if resets is None else resets[place]


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, steps: int, *tensors: Any) -> tuple[Tensor, Tensor]:
        x, h_0, lengths, resets, *parameters = tensors
        states, output = [h_0], None
        for place, part, part_lengths, part_resets in _pieces(x, steps, lengths, resets):
            out, state = run(part, states[-1], part_lengths, part_resets, parameters)
            if output is None:
                output = out.new_empty(x.shape[0], *out.shape[1:])
            output[place] = out
            states.append(state)
        assert output is not None
        device = x.device.type
        ctx.run, ctx.steps, ctx.pieces = run, steps, len(states) - 1
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
        totals: list[Any] = [None] * len(parameters)
        pieces = list(_pieces(x, ctx.steps, lengths, resets))
        for (place, part, *flags), state in zip(reversed(pieces), reversed(states), strict=True):
            with torch.enable_grad(), torch.autocast(*ctx.autocast):
                inputs = [part.detach().requires_grad_(grad_x is not None), state.detach().requires_grad_()]
                pairs = zip(parameters, needed, strict=True)
                copies = [None if p is None else p.detach().requires_grad_(need) for p, need in pairs]
                outputs = ctx.run(*inputs, *flags, copies)
            leaves = [tensor for tensor in (*inputs, *copies) if tensor is not None and tensor.requires_grad]
            cotangents = (grad_output[place], grad_state)
            gradients = iter(torch.autograd.grad(outputs, leaves, cotangents, materialize_grads=True))
            if grad_x is not None:
                grad_x[place] = next(gradients)
            grad_state = next(gradients)
            for k, need in enumerate(needed):
                if need:
                    totals[k] = next(gradients) if totals[k] is None else totals[k] + next(gradients)
        return None, None, grad_x, grad_state, None, None, *totals
