"""SRU: the kernel's loops against the loop over time in torch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from indrnn.baselines import SRU
from indrnn.baselines.sru import reference, sru

from ..conftest import BACKENDS

needs_kernel = pytest.mark.skipif("native" not in BACKENDS, reason="the C++ kernel was not built")


@needs_kernel
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 3, 5), (130, 2, 63)], ids=str)
@pytest.mark.parametrize("inside", [True, False], ids=["skip inside", "skip apart"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_equals_the_loop(sizes: tuple[int, int, int], inside: bool, threads: int) -> None:
    T, B, N = sizes
    inputs = [torch.randn(T, B, (4 if inside else 3) * N), torch.randn(T, B, N), torch.randn(2, N), torch.randn(2, N)]
    inputs = [each.double().requires_grad_() for each in (*inputs, torch.randn(B, N))]
    projected, skip, *rest = inputs
    given: Any = (projected, None if inside else skip, *rest)
    wanted = [each for each in given if each is not None]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    results = []
    for function in (sru, reference):
        h, c = function(*given)
        loss = (h * torch.arange(h.numel()).view(h.shape).cos()).sum() + c.square().sum()
        results.append((h, c, *torch.autograd.grad(loss, wanted)))
    torch.set_num_threads(before)
    assert_close(results[0], results[1])


@needs_kernel
def test_float32_over_many_steps() -> None:
    """Sums over time stay exact enough: float32 against float64."""
    single = SRU(2, 17, 2)
    double = SRU(2, 17, 2, dtype=torch.float64)
    double.load_state_dict(single.state_dict())
    x = torch.rand(2000, 3, 2)
    for model, given in ((single, x), (double, x.double())):
        model(given)[0].sum().backward()
    for ours, exact in zip(single.parameters(), double.parameters(), strict=True):
        assert ours.grad is not None
        assert_close(ours.grad.double(), exact.grad, rtol=1e-4, atol=1e-3)


def test_state_carries_over_and_shapes_are_checked() -> None:
    model, x = SRU(2, 5, 2), torch.randn(9, 3, 2)
    whole, c_n = model(x)
    first, state = model(x[:4])
    second, end = model(x[4:], state)
    assert_close(torch.cat([first, second]), whole)
    assert_close(end, c_n)
    with pytest.raises(ValueError, match=r"input must have the shape \(T, B, 2\)"):
        model(torch.randn(9, 3, 4))
    with pytest.raises(ValueError, match=r"hx must have the shape \(2, 3, 5\)"):
        model(x, torch.zeros(1, 3, 5))
