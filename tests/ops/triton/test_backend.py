"""The Triton backend's settings, and what its kernels promise beyond the op, in Triton's interpreter, without a GPU.

What every backend promises is in test_recurrence.py and test_recurrence_norm.py.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from indrnn.ops import reference
from indrnn.ops.calls import Forward, NormBackward, NormForward
from indrnn.ops.triton import backend as triton_backend

from ...conftest import ACTIVATIONS, BACKENDS
from ..problems import Problem, assert_same, problem

interpreted = pytest.mark.skipif(
    "triton" not in BACKENDS, reason=triton_backend.why_not(torch.empty(0), "relu") or "it supports"
)
few_steps = pytest.mark.usefixtures("_few_steps")
each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
both_places = pytest.mark.parametrize("place", ["before", "after"])
DTYPES = {"float64": torch.float64, "float32": torch.float32}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
each_half = pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)


# ---- settings, and what it supports


@pytest.mark.parametrize(("B", "N"), [(1, 1), (50, 128), (32, 128), (128, 2000), (1000, 3)])
@pytest.mark.parametrize("lanes", [32, 64])
def test_settings(B: int, N: int, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "LANES", lanes)
    block, warps = triton_backend.blocks(B * N)
    assert block & (block - 1) == 0, "Triton takes powers of two"
    assert block == warps * lanes


def test_a_small_problem_is_spread_over_more_programs_than_a_gpu_has_multiprocessors() -> None:
    block, _ = triton_backend.blocks(50 * 128)
    assert 50 * 128 // block >= 132


@pytest.mark.parametrize(("T", "chains"), [(0, 5), (1, 1), (5000, 6400), (784, 256000), (10**7, 1)])
def test_time_is_divided_into_parts_that_cover_it(T: int, chains: int) -> None:
    parts, span = triton_backend.time_parts(T, chains, 16)
    assert span % 16 == 0
    assert (parts - 1) * span <= max(T - 1, 0) < parts * span
    assert parts == 1 or parts * chains <= 2**18


def test_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "TRITON_INTERPRET=1" in (triton_backend.why_not(torch.zeros(1), "relu") or "")
    assert "not meta" in (triton_backend.why_not(torch.zeros(1, device="meta"), "relu") or "")


@interpreted
def test_it_supports_cpu_tensors_in_the_interpreter() -> None:
    assert triton_backend.why_not(torch.zeros(1), "relu") is None


@pytest.mark.skipif("triton" not in BACKENDS or torch.cuda.is_available(), reason="is about Triton without a GPU")
def test_without_a_driver_for_the_gpu_it_says_so() -> None:
    with FakeTensorMode():
        x = torch.empty(1, device="cuda")
    assert "Triton cannot reach a GPU: 0 active drivers" in (triton_backend.why_not(x, "relu") or "")


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", None)
    triton_backend._problem.cache_clear()
    try:
        assert "Triton cannot be imported" in (triton_backend.why_not(torch.zeros(1), "relu") or "")
    finally:
        triton_backend._problem.cache_clear()


# ---- the recurrence


def solve(p: Problem, by: Any, h: Tensor | None = None) -> list[Tensor]:
    """Forward and backward; the latter from the h that is given, so that rounding in the former is not in it."""
    made, h_last = by.forward(p.forward_call)
    return [made, h_last, *by.backward(p.backward_call(made if h is None else h))]


def assert_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """To `tolerance` of the largest number of each tensor."""
    assert len(actual) == len(expected)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        scale = max(1.0, e.abs().max().item() if e.numel() else 1.0)
        torch.testing.assert_close(a.double(), e.double(), rtol=0, atol=tolerance * scale, msg=f"{{}} in {i}".format)


@interpreted
@pytest.mark.slow
@each_dtype
@each_activation
def test_with_the_settings_of_a_gpu(activation: str, dtype: torch.dtype) -> None:
    p = problem(33, 1, 33, activation=activation, lengths=True, resets=True, dtype=dtype)
    expected = solve(p, reference)
    assert_close(solve(p, triton_backend, expected[0]), expected, 1e-12 if dtype == torch.float64 else 2e-6)


@interpreted
def test_a_few_steps_with_the_settings_of_a_gpu() -> None:
    p = problem(9, 1, 33, dtype=torch.float32, lengths=True, resets=True)
    expected = solve(p, reference)
    assert_close(solve(p, triton_backend, expected[0]), expected, 1e-6)


@interpreted
@pytest.mark.slow
@few_steps
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@each_activation
def test_float32_to_its_rounding(activation: str, ragged: bool, reverse: bool) -> None:
    options: dict[str, Any] = {"reverse": reverse, "lengths": ragged, "resets": ragged}
    p = problem(33, 3, 5, (2,), activation=activation, dtype=torch.float32, **options)
    p.u.clamp_(-1, 1)
    h = reference.forward(p.forward_call)[0]
    exact = solve(p.to(torch.float64), reference, h.double())
    assert_close(solve(p, triton_backend, h), exact, 1e-6)


@interpreted
@each_dtype
@each_activation
def test_activations_over_the_whole_range(activation: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "steps", lambda *_: 1)
    monkeypatch.setattr(triton_backend, "blocks", lambda *_: (4096, 1))
    size = torch.logspace(-30, 3, 2000, dtype=torch.float64)
    x = torch.cat([size, -size, torch.linspace(-12, 12, 96)]).to(dtype).view(1, 1, -1)
    h, _ = triton_backend.forward(Forward(x, x.new_zeros(4096), activation=activation))
    exact = reference.ACTIVATIONS[activation](x.double())
    error = ((h.double() - exact) / exact.where(exact.abs() > torch.finfo(dtype).tiny, 1.0)).abs().max()
    assert error < 2 * torch.finfo(dtype).eps, error


@interpreted
@few_steps
@pytest.mark.parametrize("float32_parameters", [False, True], ids=["all half", "float32 parameters"])
@each_half
@each_activation
def test_half_types_to_their_rounding(activation: str, dtype: torch.dtype, float32_parameters: bool) -> None:
    p = problem(9, 3, 5, activation=activation, dtype=dtype, lengths=True, resets=True)
    if float32_parameters:
        full = problem(9, 3, 5, dtype=torch.float32, seed=1)
        p = replace(p, u=full.u, bias=full.bias, h_0=full.h_0)
    expected = solve(p, reference)
    actual = solve(p, triton_backend, expected[0])
    ulp = torch.finfo(dtype).eps
    # To bfloat16 the interpreter cuts off where GPUs round; and tanh and sigmoid may round to either side of a tie.
    exact = dtype == torch.float16 and activation in ("relu", "identity")
    assert_same(actual[:2], expected[:2], rtol=0 if exact else ulp, atol=0)
    assert_same(actual[2:], expected[2:], rtol=ulp, atol=ulp)


@interpreted
@few_steps
def test_same_bits_each_time_and_for_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(33, 3, 5, activation="tanh", dtype=torch.float32, lengths=True)
    runs = [solve(p, triton_backend) for _ in range(2)]
    monkeypatch.setattr(triton_backend, "blocks", lambda *_: (8, 1))
    for other in (runs[1], solve(p, triton_backend)):
        assert_same(other, runs[0], rtol=0, atol=0)


@interpreted
@few_steps
def test_lengths_out_of_range_are_refused_without_a_look_at_them() -> None:
    """By an assertion on the device: the op itself looks at those on a CPU alone."""
    p = replace(problem(7, 2), lengths=torch.tensor([3, 8]))
    with pytest.raises(RuntimeError, match="lengths must lie between 0 and T = 7"):
        solve(p, triton_backend)


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
    by: Any = (reference.norm_forward, reference.norm_backward)
    if not spec:
        by = (triton_backend.norm_forward, triton_backend.norm_backward)
    options: Any = {"mask": mask, "lengths": p.lengths, "resets": p.resets, "eps": 1e-5, "activation": p.activation}
    results = by[0](NormForward(p.x, p.u, p.bias, p.h_0, weight, shift, place=place, **options))
    h = h if h is not None else results.h if results.h.numel() else results.y
    inputs = (p.grad_h, p.grad_h_last, h, x, p.u, p.h_0, weight, results.mean, results.var)
    return [*results, *by[1](NormBackward(*inputs, **options))]


def norm_check(p: Problem, place: str, masked: bool, tolerance: float) -> None:
    spec = norm_solve(p, place, masked, spec=True)
    h = spec[2] if spec[2].numel() else spec[0]
    actual = norm_solve(p, place, masked, spec=False, h=h)
    assert [t.dtype for t in actual] == [t.dtype for t in spec]
    assert [t.shape for t in actual] == [t.shape for t in spec]
    assert_close(actual, spec, tolerance)


@interpreted
@pytest.mark.slow
@few_steps
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@both_places
@each_activation
def test_norm_to_the_rounding_of_float64(activation: str, place: str, masked: bool) -> None:
    norm_check(problem(7, 5, 3, activation=activation, h_0=False, bias=False), place, masked, 1e-12)
    norm_check(problem(7, 5, 3, (2,), activation=activation, lengths=True, resets=True), place, masked, 1e-12)


@interpreted
@pytest.mark.slow
@few_steps
@pytest.mark.parametrize(("T", "B", "N"), [(1, 1, 1), (1, 3, 130), (7, 1, 5), (33, 5, 1), (33, 5, 130)], ids=str)
@both_places
def test_norm_of_awkward_sizes(place: str, T: int, B: int, N: int) -> None:
    p = problem(T, B, N, lengths=T > 1)
    p.u.clamp_(-1, 1)
    if T * B == 1:  # a single number has no variance: its gradients are 0, times 300, by rounding alone
        p.x.zero_()
    norm_check(p, place, True, 1e-11)


@interpreted
@pytest.mark.slow
@both_places
def test_norm_with_the_settings_of_a_gpu(place: str) -> None:
    p = problem(131, 2, 9, dtype=torch.float32, lengths=True, resets=True)
    p.u.clamp_(-1, 1)
    p.lengths = torch.tensor([131, 70])
    norm_check(p, place, True, 5e-6)


@interpreted
@few_steps
@both_places
@each_half
def test_norm_of_half_types_to_their_rounding(place: str, dtype: torch.dtype) -> None:
    p = problem(9, 5, 3, dtype=dtype, lengths=True)
    p.u, p.bias = p.u.float(), torch.randn(3)
    norm_check(p, place, True, 4 * torch.finfo(dtype).eps)


@interpreted
@pytest.mark.slow
@few_steps
@both_places
def test_norm_of_a_mean_ten_thousand_times_the_deviation(place: str) -> None:
    """Closer than what test_recurrence_norm.py asks of all backends."""
    T, B, N = 130, 16, 5
    x = (1e4 + torch.randn(T, B, N, dtype=torch.float64)).float()
    zeros, ones = torch.zeros(N), torch.ones(N)
    nothing = (None,) * 3
    call = NormForward(x, zeros, None, None, ones, zeros, *nothing, 1e-5, "identity", place)
    y, _, _, mean, var = triton_backend.norm_forward(call)
    over = x.double()
    exact, spread = over.mean((0, 1)), over.var((0, 1), unbiased=False)
    torch.testing.assert_close(mean.double(), exact, rtol=1e-7, atol=0)
    torch.testing.assert_close(var.double(), spread, rtol=1e-5, atol=0)
    torch.testing.assert_close(y.double(), (over - exact) / (spread + 1e-5).sqrt(), rtol=0, atol=2e-4)


@interpreted
@pytest.mark.slow
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
