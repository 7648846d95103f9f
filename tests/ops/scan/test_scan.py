"""The algebra of the scan, its rounding, what it refuses, and its Triton kernels in Triton's interpreter.

What every backend promises is in test_recurrence.py; there CPU tensors are the plain PyTorch version's.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch

from indrnn import recurrence
from indrnn.ops import reference, scan
from indrnn.ops.calls import Backward, Forward
from indrnn.ops.cpu import kernel
from indrnn.ops.scan import Map
from indrnn.ops.triton import backend as triton_backend

from ..problems import Problem, assert_same, problem

# NumPy says so where Triton's interpreter meets infinity
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")
Exact = tuple[Fraction, Fraction, Fraction, Fraction]  # a, b, lo, hi
FAR = Fraction(2**30)  # for a bound that is never reached


def apply(f: Exact, h: Fraction) -> Fraction:
    a, b, lo, hi = f
    return min(max(a + b * h, lo), hi)


def tensors(f: Exact) -> Map:
    return Map(*(torch.tensor([float(part)], dtype=torch.float64) for part in f))


def exact(f: Map) -> Exact:
    a, b, lo, hi = (Fraction(part.item()) for part in f)
    return a, b, lo, hi


def steps(generator: random.Random, count: int, activation: str) -> list[Exact]:
    """Steps whose numbers are small multiples of 1/4, so that float64 computes all of their compositions exactly."""

    def quarter(least: int, most: int) -> Fraction:
        return Fraction(generator.randint(least, most), 4)

    lo = Fraction(0) if activation == "relu" else -FAR
    kinds = [quarter(-6, 6), quarter(-4, 4), Fraction(0), Fraction(1), Fraction(-1), Fraction(3, 2), Fraction(-3, 2)]
    return [(quarter(-20, 20), generator.choice(kinds), lo, FAR) for _ in range(count)]


def compose(maps: list[Map], generator: random.Random) -> Map:
    """All of them, in order, with the parentheses set at random."""
    if len(maps) == 1:
        return maps[0]
    cut = generator.randint(1, len(maps) - 1)
    return compose(maps[cut:], generator).after(compose(maps[:cut], generator))


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("seed", range(40))
def test_maps_compose_exactly_in_any_association(activation: str, seed: int) -> None:
    """Against the steps one after the other, in rational numbers."""
    generator = random.Random(seed)
    f = steps(generator, 9, activation)
    whole = exact(compose([tensors(step) for step in f], generator))
    assert whole[2] <= whole[3]
    for h in (Fraction(n, 4) for n in range(-40, 41, 3)):
        expected = h
        for step in f:
            expected = apply(step, expected)
        assert apply(whole, h) == expected


@pytest.mark.parametrize("u", [Fraction(0), Fraction(1, 2), Fraction(-1, 2), Fraction(3, 2), Fraction(-3, 2)], ids=str)
def test_one_neuron_exactly(u: Fraction) -> None:
    """The whole backend against rational numbers: any sign of u, 0, and |u| > 1; every product is exact in float64."""
    generator = random.Random(0)
    x = [Fraction(generator.randint(-8, 8), 4) for _ in range(17)]
    h, expected = Fraction(1, 4), []
    for value in x:
        h = max(value + u * h, Fraction(0))
        expected.append(h)
    given = torch.tensor([float(value) for value in x], dtype=torch.float64).view(-1, 1, 1)
    start = torch.full((1, 1), 0.25, dtype=torch.float64)
    found, _ = recurrence(given, torch.tensor([float(u)], dtype=torch.float64), start, backend="scan")
    assert [Fraction(value) for value in found.flatten().tolist()] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("T", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_rounding_beside_the_sequential_order(T: int, dtype: torch.dtype) -> None:
    """For |u| <= 1 the two differ by at most 2·T roundings of the largest number on the way (docs/scan.md)."""
    x = (torch.randn(T, 2, 33, dtype=torch.float64) * 0.1).to(dtype)
    u = torch.linspace(-1, 1, 33, dtype=dtype)
    h, _ = recurrence(x, u, backend="scan")
    sequential, _ = recurrence(x, u)
    largest = x.double().cumsum(0).abs().amax().item() + sequential.abs().max().item()
    assert (h - sequential).abs().max().item() <= 2 * T * torch.finfo(dtype).eps * largest
    grad = torch.randn(T, 2, 33, dtype=torch.float64).to(dtype)
    call = Backward(grad, None, sequential, u)
    ours, theirs = scan.backward(call), (reference if T <= 1000 else kernel).backward(call)
    bound = (
        2 * T * torch.finfo(dtype).eps * (grad.double().cumsum(0).abs().amax().item() + theirs[0].abs().max().item())
    )
    assert (ours[0] - theirs[0]).abs().max().item() <= bound


def test_slopes_that_overflow_fall_back_to_the_sequential_order() -> None:
    """u^C of a chunk is far beyond the largest number, and the states are not: each is cut off before it grows."""
    T = 4000
    x = torch.full((T, 1, 1), -1e30)
    x[::3] = 1.0
    u = torch.tensor([1e15])
    h, h_last = recurrence(x, u, backend="scan")
    expected, expected_last = recurrence(x, u, backend="reference")
    assert expected.isfinite().all()
    assert h.equal(expected)
    assert h_last.equal(expected_last)


def test_a_state_that_overflows_is_infinite() -> None:
    """And not the largest number, which stands for infinity in the maps."""
    x, u = torch.full((200, 1, 2), 1.0), torch.tensor([2.0, 0.5])
    assert_same(list(recurrence(x, u, backend="scan")), list(recurrence(x, u, backend="reference")))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_other_activations_are_refused(activation: str) -> None:
    with pytest.raises(RuntimeError, match=f"'scan'.*is not supported: it supports relu and .*not {activation}"):
        recurrence(torch.zeros(3, 2, 1), torch.zeros(1), activation=activation, backend="scan")


def test_it_is_not_chosen_by_itself() -> None:
    import indrnn

    found = indrnn.backends()["scan"]
    assert found.available
    assert not found.chosen


@pytest.mark.parametrize("T", [1, 2, 3, 50, 784, 100_000, 10**7])
def test_chunks_make_the_steps_that_follow_each_other_few(T: int) -> None:
    C = scan.chunk_length(T)
    assert 1 <= C <= 512
    best = min(2 * c + -(-T // c) for c in range(1, min(T, 512) + 1))
    assert best + 2 >= 2 * C + -(-T // C)


@pytest.mark.parametrize(("T", "chains"), [(0, 5), (1, 1), (784, 6400), (784, 4096), (5000, 256_000), (10**7, 1)])
def test_chunks_on_a_gpu_are_of_whole_steps_at_once_and_not_too_many(T: int, chains: int) -> None:
    C = scan.gpu_chunk_length(T, chains)
    assert C % 16 == 0
    assert C > 0
    assert -(-T // C) * chains <= 2**17 + chains
    assert -(-T // C) <= 2 * C + 1


# ---- in Triton

GPU_CHUNK_LENGTH = scan.gpu_chunk_length
LANES = 64
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"h_0": False, "bias": False},
    "reverse": {"reverse": True},
    "lengths": {"lengths": True},
    "resets": {"resets": True, "bias": False},
    "identity": {"activation": "identity", "lengths": True},
    "all": {"reverse": True, "lengths": True, "resets": True, "between": (2,)},
    "identity, all": {"activation": "identity", "reverse": True, "lengths": True, "resets": True},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture
def _in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short chunks, and wide programs: the interpreter works op by op."""
    reason = triton_backend.why_not(torch.zeros(1), "relu")
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(scan, "INTERPRET", True)
    monkeypatch.setattr(scan, "gpu_chunk_length", lambda _T, _chains: 2)
    monkeypatch.setattr(triton_backend, "LANES", LANES)


in_triton = pytest.mark.usefixtures("_in_triton")


def check(p: Problem, tolerance: float = 1e-12) -> None:
    assert_same(p.solve("scan"), p.solve("reference"), rtol=tolerance, atol=tolerance)


def in_plain_pytorch(p: Problem, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(scan, "INTERPRET", False)
        return p.solve("scan")


@in_triton
@each_kind
def test_triton_equals_the_reference(kind: dict[str, Any]) -> None:
    check(problem(13, 3, 5, **kind))


@in_triton
def test_triton_equals_plain_pytorch_and_launches_three_kernels_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    p, launched, start = problem(12, 2, 3), [], triton_backend.launch

    def watched(kernel: str, *arguments: Any, **named: Any) -> None:
        launched.append(kernel)
        start(kernel, *arguments, **named)

    monkeypatch.setattr(triton_backend, "launch", watched)
    assert_same(p.solve("scan"), in_plain_pytorch(p, monkeypatch), rtol=1e-12, atol=1e-12)
    assert launched == ["forward_maps", "forward_starts", "forward", "backward_maps", "backward_starts", "backward"]


@in_triton
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_triton_exactly_for_any_u(activation: str) -> None:
    """Negative, 0, and |u| > 1; small multiples of 1/2, whose products are exact in float64."""
    u = torch.tensor([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5], dtype=torch.float64)
    p = problem(13, 2, len(u), activation=activation, bias=False)
    x, grad_h = torch.randint(-8, 8, (2, 13, 2, len(u))).double() / 2
    h_0, grad_h_last = torch.randint(-8, 8, (2, 2, len(u))).double() / 2
    check(replace(p, x=x, u=u, h_0=h_0, grad_h=grad_h, grad_h_last=grad_h_last), 0.0)


@in_triton
@pytest.mark.parametrize("absent", ["grad_h", "grad_h_last"])
def test_triton_without_one_of_the_gradients(absent: str) -> None:
    p = problem(9, 2, 3, lengths=True)
    grad_h, grad_h_last = (None, p.grad_h_last) if absent == "grad_h" else (p.grad_h, None)
    h, _ = reference.forward(p.forward_call._replace(bias=None))
    call = p.backward_call(h)._replace(grad_h=grad_h, grad_h_last=grad_h_last)
    for ours, theirs in zip(scan.backward(call), reference.backward(call), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@in_triton
def test_triton_with_strides() -> None:
    p = problem(9, 3, 5)
    x = torch.randn(3, 9, 12, dtype=torch.float64).transpose(0, 1)[..., 2:7]
    check(replace(p, x=x, grad_h=torch.ones((), dtype=torch.float64).expand(9, 3, 5)))


@in_triton
@pytest.mark.parametrize("reset", [False, True], ids=["", "reset after it"])
@pytest.mark.parametrize(
    ("place", "value"),
    [("x", "nan"), ("x", "inf"), ("x", "-inf"), ("h_0", "inf"), ("grad_h", "nan"), ("grad_h", "inf")]
    + [pytest.param("grad_h_last", value, marks=pytest.mark.slow) for value in ("nan", "inf", "-inf")],
)
def test_triton_with_what_is_not_finite(place: str, value: str, reset: bool) -> None:
    """In one chain: as the equation says, and the other chains to the bit as if it were not there."""
    p = problem(9, 2, 3)
    if reset:
        p = replace(p, resets=torch.arange(9).eq(6).unsqueeze(1).expand(9, 2))
    given = getattr(p, place).clone()
    given[(4, 0, 1) if given.dim() == 3 else (0, 1)] = float(value)
    bad = replace(p, **{place: given})
    found, without = bad.solve("scan"), p.solve("scan")
    assert_same(found, bad.solve("reference"), rtol=1e-12, atol=1e-12)
    for each, undisturbed in zip(found[:3], without[:3], strict=True):
        assert each[..., 1, :].equal(undisturbed[..., 1, :])
        assert each[..., [0, 2]].equal(undisturbed[..., [0, 2]])


@in_triton
def test_triton_walks_a_chain_whose_slopes_overflow() -> None:
    """u^2 of a chunk is beyond the largest number and the states are not; the gradients do overflow, as they should."""
    x, u = torch.full((23, 1, 3), -1e30), torch.tensor([0.5, 1e25, -1e25])
    x[::3] = 1.0
    x[..., 0] = torch.randn(23, 1)
    p = replace(problem(23, 1, 3, bias=False, h_0=False, dtype=torch.float32), x=x, u=u)
    expected = p.solve("reference")
    assert expected[0].isfinite().all()
    found = p.solve("scan")
    assert_same(found, expected, rtol=1e-5, atol=1e-5)
    assert found[0][..., 1:].equal(expected[0][..., 1:])


@in_triton
@pytest.mark.parametrize("u", [8.0, -8.0], ids=str)
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_triton_states_that_overflow(activation: str, u: float) -> None:
    p = problem(13, 1, 1, bias=False, activation=activation, dtype=torch.float32)
    check(replace(p, x=p.x * 1e33, u=torch.tensor([u])), 1e-5)


@in_triton
@pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)
def test_triton_halves_carry_float32(dtype: torch.dtype) -> None:
    p = problem(13, 2, 5, lengths=True, dtype=dtype)
    p.u.clamp_(-1, 1)
    check(p, 2 * torch.finfo(dtype).eps)


@in_triton
def test_triton_is_the_same_to_the_bit_each_time() -> None:
    p = problem(13, 3, 30, lengths=True, resets=True, dtype=torch.float32)  # two programs' chains
    assert LANES < 3 * 30
    assert all(one.equal(other) for one, other in zip(p.solve("scan"), p.solve("scan"), strict=True))


@in_triton
@pytest.mark.parametrize("T", [33, pytest.param(64, marks=pytest.mark.slow), pytest.param(784, marks=pytest.mark.slow)])
def test_triton_rounding_with_the_chunks_of_a_gpu(T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of docs/scan.md, in float32."""
    monkeypatch.setattr(scan, "gpu_chunk_length", GPU_CHUNK_LENGTH)
    x, grad = torch.randn(T, 1, 33), torch.randn(T, 1, 33)
    u = torch.linspace(-1, 1, 33)
    h, _ = scan.forward(Forward(x, u))
    exact, _ = reference.forward(Forward(x.double(), u.double()))
    bound = 2 * T * torch.finfo(torch.float32).eps
    assert (h - exact).abs().max().item() <= bound * (x.cumsum(0).abs().max().item() + exact.max().item())
    ours = scan.backward(Backward(grad, None, h, u))[0]
    theirs = reference.backward(Backward(grad.double(), None, h.double(), u.double()))[0]
    assert (ours - theirs).abs().max().item() <= bound * (grad.cumsum(0).abs().max().item() + theirs.abs().max().item())


@pytest.mark.slow
@in_triton
@pytest.mark.parametrize("chunk", [1, 3, 16])
@pytest.mark.parametrize("between", [(), (2, 3)], ids=str)
@pytest.mark.parametrize(("B", "N"), [(1, 1), (3, 5), (1, 130)])
@pytest.mark.parametrize("T", [0, 1, 7, 33])
def test_triton_awkward_sizes(
    T: int, B: int, N: int, between: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "gpu_chunk_length", lambda _T, _chains: chunk)
    p = problem(T, B, N, between, lengths=True, resets=(T + N) % 3 > 0, reverse=T % 2 > 0)
    p.u.clamp_(-1, 1)
    check(p)
