"""SRU: the kernel's loops against the loop over time in torch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
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


def solved(given: Any) -> list[Tensor]:
    """h, the last c, and all gradients."""
    leaves: Any = [None if each is None else each.detach().requires_grad_() for each in given]
    h, c = sru(*leaves)
    wanted = [leaf for leaf in leaves if leaf is not None]
    gradients = torch.autograd.grad((h, c), wanted, (torch.cos(h.detach() * 9), torch.sin(c.detach() * 9)))
    return [h.detach(), c.detach(), *gradients]


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", [(130, 5, 63), (70, 67, 130)], ids=str)
@pytest.mark.parametrize("inside", [True, False], ids=["skip inside", "skip apart"])
def test_the_same_bits_for_any_number_of_threads(sizes: tuple[int, int, int], inside: bool, dtype: torch.dtype) -> None:
    T, B, N = sizes
    skip = None if inside else torch.randn(T, B, N, dtype=dtype)
    shapes = ((T, B, (4 if inside else 3) * N), (2, N), (2, N), (B, N))
    projected, *rest = (torch.randn(shape, dtype=dtype) for shape in shapes)
    before, runs = torch.get_num_threads(), []
    for threads in (1, 2, 3, 4, 16):
        torch.set_num_threads(threads)
        runs.append(solved((projected, skip, *rest)))
    torch.set_num_threads(before)
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))


@needs_kernel
def test_the_negative_bit_and_zero_tensors_are_read_as_what_they_stand_for() -> None:
    """In what is given, and in gradients, which get the bit from a conjugate."""
    T, B, N = 5, 3, 1
    given = [torch.randn(T, B, 3 * N), torch.randn(T, B, N), torch.randn(2, N), torch.randn(2, N), torch.randn(B, N)]
    expected = solved(given)
    for i, each in enumerate(given):
        assert all(map(torch.equal, solved([*given[:i], torch._neg_view(-each), *given[i + 1 :]]), expected))
        zeros = solved([*given[:i], torch.zeros_like(each), *given[i + 1 :]])
        assert all(
            map(torch.equal, solved([*given[:i], torch._efficientzerotensor(each.shape), *given[i + 1 :]]), zeros)
        )
    leaves = [each.requires_grad_() for each in given]
    found = []
    for function in (sru, reference):
        parts = [torch.complex(torch.zeros_like(part), part).conj() for part in function(*leaves)]
        loss = torch.stack([(part * (1 + 2j)).imag.sum() for part in parts]).sum()
        found.append(torch.autograd.grad(loss, leaves))
    assert_close(found[0], found[1])


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
