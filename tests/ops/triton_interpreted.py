"""The Triton backend against the specification, in Triton's interpreter: `test_triton.py` runs this by itself.

The interpreter works op by op and step by step, so most tests take a few steps at once and many chains to a program.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from indrnn.ops import fused, reference, triton_backend

from ..conftest import ACTIVATIONS
from .problems import Problem, assert_same, problem

assert os.environ.get("TRITON_INTERPRET") == "1", "it must be set before Triton is imported: run test_triton.py"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinity

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"h_0": False, "bias": False},
    "bias and h_0": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": True, "h_0": False},
    "resets": {"resets": True, "bias": False},
    "lengths, resets": {"lengths": True, "resets": True},
    "all": {"reverse": True, "lengths": True, "resets": True, "between": (2,)},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
both_places = pytest.mark.parametrize("place", ["before", "after"])
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
each_half = pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)


@pytest.fixture
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "steps", lambda *_: 4)
    monkeypatch.setattr(triton_backend, "blocks", lambda *_: (512, 1))


few_steps = pytest.mark.usefixtures("_few_steps")


def solve(p: Problem, by: Any, h: Tensor | None = None) -> list[Tensor]:
    """Forward and backward; the latter from the h that is given, so that rounding in the former is not in it."""
    options = (p.lengths, p.resets, p.activation, p.reverse)
    made, h_last = by.forward(p.x, p.u, p.bias, p.h_0, *options)
    h = made if h is None else h
    return [made, h_last, *by.backward(p.grad_h, p.grad_h_last, h, p.u, p.h_0, *options)]


def check(p: Problem) -> None:
    expected = solve(p, reference)
    assert_same(solve(p, triton_backend, expected[0]), expected, rtol=1e-12, atol=1e-12)


def assert_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """To `tolerance` of the largest number of each tensor."""
    assert len(actual) == len(expected)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        scale = max(1.0, e.abs().max().item() if e.numel() else 1.0)
        torch.testing.assert_close(a.double(), e.double(), rtol=0, atol=tolerance * scale, msg=f"{{}} in {i}".format)


# ---- the recurrence


@few_steps
@each_kind
@each_activation
def test_equals_the_reference(activation: str, kind: dict[str, Any]) -> None:
    check(problem(7, 3, 5, activation=activation, **kind))


@pytest.mark.slow
@few_steps
@pytest.mark.parametrize("between", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("N", [1, 5, 130])
@pytest.mark.parametrize("B", [1, 3, 5])
@pytest.mark.parametrize("T", [1, 7, 33])
def test_awkward_sizes(T: int, B: int, N: int, between: tuple[int, ...]) -> None:
    every = T * B * N  # as good as random
    p = problem(T, B, N, between, lengths=True, resets=every % 3 > 0, reverse=every % 2 > 0)
    p.u.clamp_(-1, 1)
    check(p)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@each_activation
def test_with_the_settings_of_a_gpu(activation: str, dtype: torch.dtype) -> None:
    p = problem(33, 1, 33, activation=activation, lengths=True, resets=True, dtype=dtype)
    expected = solve(p, reference)
    assert_close(solve(p, triton_backend, expected[0]), expected, 1e-12 if dtype == torch.float64 else 2e-6)


@pytest.mark.slow
@few_steps
@each_kind
@each_activation
def test_float32_to_its_rounding(activation: str, kind: dict[str, Any]) -> None:
    p = problem(33, 3, 5, activation=activation, dtype=torch.float32, **kind)
    p.u.clamp_(-1, 1)
    h = reference.forward(p.x, p.u, p.bias, p.h_0, p.lengths, p.resets, p.activation, p.reverse)[0]
    exact = solve(p.to(torch.float64), reference, h.double())
    assert_close(solve(p, triton_backend, h), exact, 1e-6)


@each_activation
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_activations_over_the_whole_range(activation: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "steps", lambda *_: 1)
    monkeypatch.setattr(triton_backend, "blocks", lambda *_: (4096, 1))
    size = torch.logspace(-30, 3, 2000, dtype=torch.float64)
    x = torch.cat([size, -size, torch.linspace(-12, 12, 96)]).to(dtype).view(1, 1, -1)
    h, _ = triton_backend.forward(x, x.new_zeros(4096), None, None, None, None, activation, False)
    exact = reference.ACTIVATIONS[activation](x.double())
    error = ((h.double() - exact) / exact.where(exact.abs() > torch.finfo(dtype).tiny, 1.0)).abs().max()
    assert error < 2 * torch.finfo(dtype).eps, error


@few_steps
@each_half
@each_activation
def test_half_types(activation: str, dtype: torch.dtype) -> None:
    p = problem(9, 3, 5, activation=activation, dtype=dtype, lengths=True, resets=True)
    expected = solve(p, reference)
    actual = solve(p, triton_backend, expected[0])
    assert [t.dtype for t in actual] == [t.dtype for t in expected]
    ulp = torch.finfo(dtype).eps
    # To bfloat16 the interpreter cuts off where GPUs round; and tanh and sigmoid may round to either side of a tie.
    exact = dtype == torch.float16 and activation in ("relu", "identity")
    assert_same(actual[:2], expected[:2], rtol=0 if exact else ulp, atol=0)
    assert_same(actual[2:], expected[2:], rtol=ulp, atol=ulp)


@few_steps
@each_half
def test_float32_parameters_beside_a_half_input(dtype: torch.dtype) -> None:
    p = problem(9, 3, 5, dtype=dtype)
    full = problem(9, 3, 5, dtype=torch.float32, seed=1)
    p = replace(p, u=full.u, bias=full.bias, h_0=full.h_0)
    expected = solve(p, reference)
    actual = solve(p, triton_backend, expected[0])
    assert [t.dtype for t in actual] == [dtype] * 3 + [torch.float32] * 3
    assert_same(actual, expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@few_steps
@pytest.mark.parametrize("stride", ["batch first", "gaps", "backwards", "expanded"])
def test_any_strides(stride: str) -> None:
    p = problem(6, 3, 5, (2,), lengths=True, resets=True)

    def strided(x: Tensor) -> Tensor:
        if stride == "batch first":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        if stride == "gaps":
            return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]
        if stride == "backwards":
            order = list(reversed(range(x.dim())))
            return x.permute(order).contiguous().permute(order)
        return x[:1, :1].expand(x.shape)

    assert p.resets is not None
    check(replace(p, x=strided(p.x), grad_h=strided(p.grad_h), resets=strided(p.resets.double()).bool()))


@few_steps
@pytest.mark.parametrize("absent", ["grad_h", "grad_h_last"])
def test_a_gradient_that_is_not_there(absent: str) -> None:
    p = problem(6, 2, 5)
    h = p.x.relu()
    gradients = [None if name == absent else getattr(p, name) for name in ("grad_h", "grad_h_last")]
    arguments: Any = (*gradients, h, p.u, p.h_0, None, None, "relu", False)
    actual, expected = triton_backend.backward(*arguments), reference.backward(*arguments)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@few_steps
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@each_activation
def test_what_stands_in_the_padding_changes_nothing(activation: str, reverse: bool) -> None:
    p = problem(6, 5, 3, activation=activation, reverse=reverse, lengths=True, resets=True)
    assert p.lengths is not None
    clean = solve(p, triton_backend)
    padding = torch.arange(6).unsqueeze(1) >= p.lengths
    p.x[padding] = p.grad_h[padding] = torch.nan
    assert_same(solve(p, triton_backend), clean, rtol=0, atol=0)


@few_steps
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@each_activation
def test_nan_and_inf_come_out_where_the_equation_puts_them(activation: str, value: float) -> None:
    # Neurons are independent: each gets the value elsewhere, and the last none.
    p = problem(5, 2, 7, activation=activation, resets=True, lengths=True)
    p.lengths = torch.tensor([5, 3])
    assert p.bias is not None
    assert p.h_0 is not None
    p.x[2, :, 0] = p.u[1] = p.bias[2] = p.h_0[:, 3] = p.grad_h[2, :, 4] = p.grad_h_last[:, 5] = value
    check(p)


@few_steps
@pytest.mark.parametrize("shape", [(0, 3, 5), (4, 0, 5), (4, 3, 0), (4, 3, 0, 5)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    T, B, *between, N = shape
    check(problem(T, B, N, tuple(between)))


@few_steps
def test_same_bits_each_time_and_for_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(33, 3, 5, activation="tanh", dtype=torch.float32, lengths=True)
    runs = [solve(p, triton_backend) for _ in range(2)]
    monkeypatch.setattr(triton_backend, "blocks", lambda *_: (8, 1))
    for other in (runs[1], solve(p, triton_backend)):
        assert_same(other, runs[0], rtol=0, atol=0)


@few_steps
def test_results_have_storage_of_their_own() -> None:
    p = problem(0)
    assert p.h_0 is not None
    h_last = triton_backend.forward(p.x, p.u, None, p.h_0, None, None, "relu", False)[1]
    assert h_last.data_ptr() != p.h_0.data_ptr()


@few_steps
def test_lengths_out_of_range_are_refused() -> None:
    p = replace(problem(7, 2), lengths=torch.tensor([3, 8]))
    with pytest.raises(RuntimeError, match="lengths must lie between 0 and T = 7"):
        solve(p, triton_backend)


@few_steps
def test_int32_lengths_serve_as_well() -> None:
    p = problem(6, lengths=True)
    assert p.lengths is not None
    check(replace(p, lengths=p.lengths.int()))


def test_float32_with_the_settings_of_a_gpu() -> None:
    p = problem(9, 1, 33, dtype=torch.float32, lengths=True, resets=True)
    expected = solve(p, reference)
    assert_close(solve(p, triton_backend, expected[0]), expected, 1e-6)


def test_it_says_that_it_serves() -> None:
    assert triton_backend.why_not(torch.zeros(1), "relu") is None
    assert "not meta" in (triton_backend.why_not(torch.zeros(1, device="meta"), "relu") or "")


# ---- with batch norm


def norm_solve(p: Problem, place: str, masked: bool, *, spec: bool, h: Tensor | None = None) -> list[Tensor]:
    """All results and gradients, by the specification or by Triton; backward from the h that is given."""
    generator = torch.Generator().manual_seed(1)
    N, dtype = p.x.shape[-1], p.x.dtype
    weight, shift = torch.rand(N, generator=generator) + 0.5, torch.randn(N, generator=generator)
    weight, shift = weight.to(p.u.dtype), shift.to(p.u.dtype)
    kept = (torch.rand((1, *p.x.shape[1:]), generator=generator) < 0.7) / 0.7
    mask = kept.to(dtype) if masked else None
    x = p.x if place == "before" else None
    eps = 1e-5
    inputs = (p.x, p.u, p.bias, p.h_0, weight, shift, mask, p.lengths, p.resets, eps, p.activation, place)
    results = fused.norm_forward(*inputs) if spec else triton_backend.norm_forward(*inputs)
    y, _, made, mean, var = results
    h = h if h is not None else made if made.numel() else y
    common = (p.grad_h, p.grad_h_last, h, x, p.u, p.h_0, weight)
    if not spec:
        rest = (mean, var, mask, p.lengths, p.resets, eps, p.activation)
        return [*results, *triton_backend.norm_backward(*common, *rest)]
    through = functools.partial(reference.backward, activation=p.activation, reverse=False)
    return [*results, *fused.norm_backward(*common, mask, p.lengths, p.resets, eps, through)]


def norm_check(p: Problem, place: str, masked: bool, tolerance: float = 1e-12) -> None:
    spec = norm_solve(p, place, masked, spec=True)
    h = spec[2] if spec[2].numel() else spec[0]
    actual = norm_solve(p, place, masked, spec=False, h=h)
    assert [t.dtype for t in actual] == [t.dtype for t in spec]
    assert [t.shape for t in actual] == [t.shape for t in spec]
    assert_close(actual, spec, tolerance)


@few_steps
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@both_places
@each_activation
def test_norm_equals_the_specification(activation: str, place: str, masked: bool) -> None:
    norm_check(problem(7, 5, 3, activation=activation, h_0=False, bias=False), place, masked)
    norm_check(problem(7, 5, 3, (2,), activation=activation, lengths=True, resets=True), place, masked)


@pytest.mark.slow
@few_steps
@pytest.mark.parametrize(("T", "B", "N"), [(1, 1, 1), (1, 3, 130), (7, 1, 5), (33, 5, 1), (33, 3, 130)], ids=str)
@both_places
def test_norm_of_awkward_sizes(place: str, T: int, B: int, N: int) -> None:
    p = problem(T, B, N, lengths=T > 1)
    p.u.clamp_(-1, 1)
    if T * B == 1:  # a single number has no variance: its gradients are 0, times 300, by rounding alone
        p.x.zero_()
    norm_check(p, place, True, 1e-11)


@few_steps
@both_places
def test_norm_strided(place: str) -> None:
    p = problem(6, 3, 5, lengths=True)
    p.x, p.grad_h = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (p.x, p.grad_h))
    norm_check(p, place, True)


@pytest.mark.slow
@both_places
def test_norm_float32_with_the_settings_of_a_gpu(place: str) -> None:
    p = problem(131, 2, 9, dtype=torch.float32, lengths=True, resets=True)
    p.u.clamp_(-1, 1)
    p.lengths = torch.tensor([131, 70])
    norm_check(p, place, True, 5e-6)


@few_steps
@both_places
@each_half
def test_norm_of_half_types(place: str, dtype: torch.dtype) -> None:
    p = problem(9, 5, 3, dtype=dtype, lengths=True)
    p.u, p.bias = p.u.float(), torch.randn(3)
    norm_check(p, place, True, 4 * torch.finfo(dtype).eps)


@few_steps
@both_places
def test_norm_of_a_mean_ten_thousand_times_the_deviation(place: str) -> None:
    """In float32, where a sum of squares would have lost the deviation altogether."""
    T, B, N = 130, 16, 5
    x = (1e4 + torch.randn(T, B, N, dtype=torch.float64)).float()
    zeros, ones = torch.zeros(N), torch.ones(N)
    nothing = (None,) * 3
    y, _, _, mean, var = triton_backend.norm_forward(
        x, zeros, None, None, ones, zeros, *nothing, 1e-5, "identity", place
    )
    over = x.double()
    exact, spread = over.mean((0, 1)), over.var((0, 1), unbiased=False)
    torch.testing.assert_close(mean.double(), exact, rtol=1e-7, atol=0)
    torch.testing.assert_close(var.double(), spread, rtol=1e-5, atol=0)
    torch.testing.assert_close(y.double(), (over - exact) / (spread + 1e-5).sqrt(), rtol=0, atol=2e-4)


@few_steps
@both_places
def test_norm_of_numbers_that_drift(place: str) -> None:
    """A chain that moves far away from its first value, and a variance of that movement."""
    p = problem(130, 2, 3, dtype=torch.float32, activation="identity", h_0=False, bias=False)
    p.u.zero_()
    p.x += torch.linspace(0, 1e4, 130).view(-1, 1, 1)
    exact = norm_solve(p.to(torch.float64), place, False, spec=True)
    actual = norm_solve(p, place, False, spec=False)
    torch.testing.assert_close(actual[3].double(), exact[3], rtol=1e-6, atol=0)
    torch.testing.assert_close(actual[4].double(), exact[4], rtol=1e-6, atol=0)


@few_steps
@both_places
def test_norm_padding_changes_nothing(place: str) -> None:
    p = problem(6, 5, 3, activation="tanh", lengths=True, resets=True)
    assert p.lengths is not None
    clean = norm_solve(p, place, True, spec=False)
    padding = torch.arange(6).unsqueeze(1) >= p.lengths
    p.x[padding] = p.grad_h[padding] = torch.nan
    assert_close(norm_solve(p, place, True, spec=False), clean, 0.0)


@few_steps
@both_places
@pytest.mark.parametrize("shape", [(0, 3, 5), (4, 0, 5)], ids=str)
def test_norm_empty(place: str, shape: tuple[int, int, int]) -> None:
    norm_check(problem(*shape), place, True)


@few_steps
@both_places
def test_norm_same_bits_each_time(place: str) -> None:
    p = problem(70, 3, 5, dtype=torch.float32, lengths=True)
    runs = [norm_solve(p, place, True, spec=False) for _ in range(2)]
    assert all(a.equal(e) for a, e in zip(*runs, strict=True))
