"""Recomputation in pieces of time: the same numbers and gradients, with less memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from indrnn import IndRNN

T, B, M, N = 23, 3, 2, 5
RAGGED: dict[str, Any] = {
    "lengths": torch.tensor([T, 9, 0]),
    "resets": torch.rand(T, B, generator=torch.Generator().manual_seed(1)) < 0.2,
}


def both(steps: int, **options: Any) -> tuple[IndRNN, IndRNN]:
    """A layer that keeps everything, and one that computes it again."""
    kept = IndRNN(M, N, dtype=torch.float64, **options)
    again = copy.deepcopy(kept)
    again.recompute = steps
    return kept, again


def outcome(module: IndRNN, x: Tensor, hx: Tensor | None, **options: Any) -> list[Tensor]:
    """Output, state, and the gradients of everything."""
    x = x.clone().requires_grad_()
    hx = None if hx is None else hx.clone().requires_grad_()
    output, h_n = module(x, hx, **options)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    inputs = [x, *([] if hx is None else [hx]), *module.parameters()]
    loss = (output * weights).sum() + h_n.square().sum()
    return [output.detach(), h_n.detach(), *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("steps", [1, 7, 22, 23, 100])
@pytest.mark.parametrize("options", [{}, {"num_layers": 3}, {"nonlinearity": "tanh", "bias": False}], ids=str)
@pytest.mark.parametrize("given", [{}, RAGGED], ids=["full", "ragged"])
def test_the_same_numbers(steps: int, options: dict[str, Any], given: dict[str, Any]) -> None:
    kept, again = both(steps, **options)
    x, hx = torch.randn(T, B, M, dtype=torch.float64), torch.randn(kept.num_layers, B, N, dtype=torch.float64)
    for state in (hx, None):
        for a, b in zip(outcome(again, x, state, **given), outcome(kept, x, state, **given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_dropout_has_one_mask_for_all_pieces() -> None:
    kept, again = both(4, num_layers=2, dropout=0.5)
    x = torch.randn(T, B, M, dtype=torch.float64)
    results = []
    for module in (kept, again):
        torch.manual_seed(3)
        results.append(outcome(module, x, None))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_frozen_parameters_and_no_gradient_of_the_input() -> None:
    kept, again = both(5, num_layers=2)
    x = torch.randn(T, B, M, dtype=torch.float64)
    for module in (kept, again):
        module.weight_hh_l0.requires_grad_(False)
        module(x)[0].square().sum().backward()
        assert module.weight_hh_l0.grad is None
    for a, b in zip(kept.parameters(), again.parameters(), strict=True):
        if a.requires_grad:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-12, atol=1e-12)


def test_other_weights_for_a_call() -> None:
    """Which are gone again when the backward pass runs."""
    kept, again = both(5)
    x = torch.randn(T, B, M, dtype=torch.float64)
    weights = {name: (2 * value).detach().requires_grad_() for name, value in kept.named_parameters()}
    results = []
    for module in (kept, again):
        output, _ = torch.func.functional_call(module, weights, (x,))
        results.append(torch.autograd.grad(output.square().sum(), list(weights.values())))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_autocast_is_the_same_in_the_backward_pass() -> None:
    kept = IndRNN(M, N)
    again = copy.deepcopy(kept)
    again.recompute = 6
    x = torch.randn(T, B, M)
    gradients = []
    for module in (kept, again):
        with torch.autocast("cpu", torch.bfloat16):
            output, _ = module(x)
        assert output.dtype == torch.bfloat16
        gradients.append(torch.autograd.grad(output.float().square().sum(), list(module.parameters())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * a.abs().max().item())


def test_little_is_kept() -> None:
    """Beside the input and the parameters, a state for each piece."""
    again = both(100, num_layers=2)[1]
    x = torch.randn(5000, 1, M, dtype=torch.float64)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        again(x)
    del kept[x.untyped_storage().data_ptr()]
    assert sum(kept.values()) <= 50 * 2 * N + sum(parameter.numel() for parameter in again.parameters())


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="recompute must be at least 1, got 0"):
        IndRNN(M, N, recompute=0)
    with pytest.raises(ValueError, match="recompute cannot be combined with bidirectional"):
        IndRNN(M, N, bidirectional=True, recompute=4)
    module, x = IndRNN(M, N, recompute=4), torch.randn(T, B, M, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x)[0].sum(), x)
    assert not gradient.requires_grad
    with pytest.raises(RuntimeError, match="a first derivative only, and a second was asked for"):
        torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="recompute cannot be compiled"):
        torch.compile(module, backend="eager", fullgraph=True)(x)
    assert "recompute=4" in repr(module)
