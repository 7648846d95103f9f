"""What the C++ kernel promises beyond the op: the reference's bits, and its own tanh and sigmoid."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indrnn import recurrence
from indrnn.ops import native

from ..conftest import BACKENDS
from .problems import assert_same, problem

pytestmark = pytest.mark.skipif("native" not in BACKENDS, reason=str(native.library()))


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_forward_has_the_references_bits(activation: str, dtype: torch.dtype) -> None:
    """No fused multiply-add, no reordering: so results do not change with the CPU."""
    p = problem(40, 5, 77, activation=activation, dtype=dtype)
    assert_same(list(p.run("native")), list(p.run("reference")), rtol=0, atol=0)
    ours, theirs = p.solve("native"), p.solve("reference")
    assert_same(ours[2:3], theirs[2:3], rtol=0, atol=0)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize(("dtype", "wider"), [(torch.float32, torch.float64), (torch.float64, torch.float64)], ids=str)
def test_tanh_and_sigmoid_are_within_four_units(activation: str, dtype: torch.dtype, wider: torch.dtype) -> None:
    around = torch.cat([torch.linspace(-20, 20, 20001), torch.logspace(-30, 2, 2001), -torch.logspace(-30, 2, 2001)])
    x = around.to(dtype).view(1, 1, -1)
    h, _ = recurrence(x, torch.zeros(x.shape[-1], dtype=dtype), activation=activation, backend="native")
    expected = getattr(torch, activation)(x.to(wider))
    error = (h.to(wider) - expected).abs()
    assert (error <= 4 * torch.finfo(dtype).eps * expected.abs() + torch.finfo(dtype).tiny).all()
    extreme = torch.tensor([float("inf"), float("-inf"), 1e30, -1e30, 0.0]).to(dtype).view(1, 1, -1)
    h, _ = recurrence(extreme, torch.zeros(5, dtype=dtype), activation=activation, backend="native")
    torch.testing.assert_close(h, getattr(torch, activation)(extreme), rtol=0, atol=1e-37)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_convert_as_torch_does(dtype: torch.dtype) -> None:
    """All 65,536 numbers read right, and sums of two of them round right, subnormal and overflowing ones too."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    h, _ = recurrence(every.view(1, 1, -1), torch.zeros(2**16), activation="identity", backend="native")
    torch.testing.assert_close(h.view(-1), every, rtol=0, atol=0, equal_nan=True)
    other = every[torch.randperm(2**16)]
    h, _ = recurrence(
        every.view(1, 1, -1), torch.ones(2**16), other.view(1, -1), activation="identity", backend="native"
    )
    expected = (every.float() + other.float()).to(dtype)
    torch.testing.assert_close(h.view(-1), expected, rtol=0, atol=0, equal_nan=True)


def test_gradient_of_u_stays_exact_over_a_hundred_thousand_steps() -> None:
    """A plain float32 sum of 100,000 like numbers is off by 1e-4; ours is added up in stretches."""
    T = 100_000
    x = torch.zeros(T, 1, 4).requires_grad_()
    u = torch.zeros(4, requires_grad=True)
    h_0 = torch.zeros(1, 4)
    with torch.no_grad():
        x += 0.1
    h, _ = recurrence(x, u, h_0, activation="identity", backend="native")
    h.sum().backward()
    assert u.grad is not None
    exact = torch.tensor(0.1).double() * (T - 1)
    plain = torch.tensor(np.cumsum(np.full(T - 1, 0.1, dtype=np.float32))[-1]).double()
    assert (plain - exact).abs() / exact > 5e-5
    torch.testing.assert_close(u.grad.double(), exact.expand(4), rtol=1e-5, atol=0)
