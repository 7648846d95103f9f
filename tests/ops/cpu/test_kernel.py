"""What the C++ kernel promises beyond the op: its bits, its own tanh and sigmoid, its sums, any tensor's numbers."""

from __future__ import annotations

import platform
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from indrnn import IndRNN, recurrence
from indrnn.ops import library, recurrence_, recurrence_norm
from indrnn.ops.calls import Backward, Forward, NormBackward, NormForward, NormResult
from indrnn.ops.cpu import kernel
from indrnn.ops.reference import accumulation_dtype

from ...conftest import BACKENDS
from ..problems import assert_same, problem

pytestmark = pytest.mark.skipif("native" not in BACKENDS, reason=str(kernel.library()))


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
    other = every[torch.randperm(2**16)]
    sums = _flushed(every.float()) + _flushed(other.float())  # after bias and u, of which there is none or 1
    for h_0, expected in ((None, every.float()), (other.view(1, -1), sums)):
        for flush in (False, True):  # what torch does with subnormal numbers is nothing to the kernel
            torch.set_flush_denormal(flush)
            try:
                h, _ = recurrence(every.view(1, 1, -1), torch.ones(2**16), h_0, activation="identity", backend="native")
            finally:
                torch.set_flush_denormal(False)
            wanted = _flushed(expected).to(dtype)
            torch.testing.assert_close(h.view(-1), wanted, rtol=0, atol=0, equal_nan=True)


def _flushed(numbers: Tensor) -> Tensor:
    """What is below the smallest normal number of the type that is computed in is 0, where the CPU can do that."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return numbers
    return torch.where(numbers.abs() < torch.finfo(numbers.dtype).tiny, 0, numbers)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_what_vanishes_is_zero_at_the_smallest_normal_number(activation: str, dtype: torch.dtype, threads: int) -> None:
    """Forward after an impulse and backward from the last step: powers of u, and then nothing, in every thread."""
    T, B, N = 1100, 9, 200  # several tiles of chains, so that every thread has one
    u = torch.linspace(0.3, 0.999, N, dtype=dtype)
    impulse, last = torch.zeros(T, B, N, dtype=dtype), torch.zeros(T, B, N, dtype=dtype)
    impulse[0] = last[-1] = 1
    active = torch.ones(T, B, N, dtype=dtype)  # of relu

    def run(backend: str) -> tuple[Tensor, Tensor]:
        h, _ = recurrence(impulse, u, activation=activation, backend=backend)
        x = active.clone().requires_grad_()
        states, _ = recurrence(x, u, activation=activation, backend=backend)
        return h, torch.autograd.grad(states, x, last)[0]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours, specified = run("native"), run("reference")
    finally:
        torch.set_num_threads(before)
    for mine, theirs in zip(ours, specified, strict=True):
        assert ((theirs != 0) & (theirs.abs() < torch.finfo(dtype).tiny)).any()
        torch.testing.assert_close(mine, _flushed(theirs), rtol=0, atol=0)


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


# ---- the same bits for any number of threads, and any strides


def forward(*args: Any) -> tuple[Tensor, Tensor]:
    h, h_last = library.run(Forward(*args), "native")
    return h, h_last


def backward(*args: Any) -> tuple[Tensor, ...]:
    return library.run(Backward(*args), "native")


def norm_forward(*args: Any) -> NormResult:
    return NormResult(*library.run(NormForward(*args), "native"))


def norm_backward(*args: Any) -> tuple[Tensor, ...]:
    return library.run(NormBackward(*args), "native")


class Passes:
    """Arguments for all passes of the kernel, and all their results."""

    def __init__(
        self,
        T: int,
        B: int,
        *between_and_N: int,
        activation: str = "relu",
        dtype: torch.dtype = torch.float32,
        reverse: bool = False,
        masked: bool = False,
        ragged: bool = False,
    ) -> None:
        shape, N = (T, B, *between_and_N), between_and_N[-1]
        self.activation, self.reverse = activation, reverse
        self.x, self.grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        self.h_0, self.grad_h_last = torch.randn(shape[1:]).to(dtype), torch.randn(shape[1:]).to(dtype)
        vectors = (torch.rand(N), torch.randn(N), torch.rand(N), torch.randn(N))
        self.u, self.bias, self.weight, self.shift = (vector.to(accumulation_dtype(dtype)) for vector in vectors)
        self.mask = (torch.rand(1, *shape[1:]) < 0.7) / 0.7 if masked else None
        self.lengths = torch.randint(0, T + 1, (B,)) if ragged else None
        self.resets = torch.rand(T, B) < 0.1 if ragged else None

    def results(self, threads: int = 1) -> list[Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return [*self._plain(), *self._with_norm("before"), *self._with_norm("after")]
        finally:
            torch.set_num_threads(before)

    def _plain(self) -> list[Tensor]:
        options = (self.lengths, self.resets, self.activation, self.reverse)
        h, h_last = forward(self.x, self.u, self.bias, self.h_0, *options)
        return [h, h_last, *backward(self.grad, self.grad_h_last, h, self.u, self.h_0, *options)]

    def _with_norm(self, place: str) -> list[Tensor]:
        norm = (self.weight, self.shift, self.mask, self.lengths, self.resets, 1e-5, self.activation, place)
        y, h_last, h, mean, var = norm_forward(self.x, self.u, self.bias, self.h_0, *norm)
        saved = (h if h.numel() else y, self.x if place == "before" else None, self.u, self.h_0, self.weight, mean, var)
        gradients = norm_backward(self.grad, self.grad_h_last, *saved, *norm[2:-1])
        return [y, h_last, h, mean, var, *gradients]


def assert_bits(actual: list[Tensor], expected: list[Tensor]) -> None:
    different = [i for i, (a, e) in enumerate(zip(actual, expected, strict=True)) if not torch.equal(a, e)]
    assert not different
    assert all(t.isfinite().all() for t in expected)


def kinds() -> list[Any]:
    """Each number of steps that go together, in each pass, with tiles of a row, of part of a row, and of several."""
    both: list[dict[str, Any]] = [{}, {"masked": True, "reverse": True}]
    activations = [("relu", torch.float32), ("identity", torch.float32), ("tanh", torch.float32)]
    others = [("relu", torch.float64), ("relu", torch.bfloat16)]
    return [
        *[
            pytest.param(
                shape, {"activation": activation, "dtype": dtype, **options}, id=f"{shape}-{activation}-{dtype}"
            )
            for shape in ((403, 1, 512), (403, 8, 512))  # rows are divided between 2 and between 16 threads
            for (activation, dtype), options in zip([*activations, *others], both * 3, strict=False)
        ],
        pytest.param((403, 1, 512), {"masked": True}, id="masked"),
        pytest.param((403, 8, 512), {"reverse": True}, id="reverse"),
        pytest.param((402, 8, 512), {"ragged": True}, id="ragged"),
        pytest.param((261, 2, 3, 300), {"masked": True}, id="a dimension between"),
        pytest.param((401, 37, 20), {}, id="several rows in a tile"),
    ]


@pytest.mark.parametrize(("shape", "options"), kinds())
def test_the_same_bits_for_any_number_of_threads(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    passes = Passes(*shape, **options)
    one = passes.results(1)
    for threads in (2, 3, 4, 16):
        assert_bits(passes.results(threads), one)


@pytest.mark.parametrize("shape", [(403, 1, 512), (66, 5, 77)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_for_any_strides(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    passes = Passes(*shape, dtype=dtype)
    contiguous = passes.results()
    T, B, N = shape
    for name in ("x", "grad"):
        tensor = getattr(passes, name)
        batch_first = torch.empty(B, T + 1, N, dtype=dtype).transpose(0, 1)[1:].copy_(tensor)
        wider = torch.empty(T, B, N + 3, dtype=dtype)[..., 3:].copy_(tensor)
        columns = torch.empty(T, N, B, dtype=dtype).transpose(1, 2).copy_(tensor)
        for strided in (batch_first, wider, columns):
            setattr(passes, name, strided)
            assert_bits(passes.results(2), contiguous)
        setattr(passes, name, tensor)


# ---- statistics of numbers far from 0


def exact_moments(values: list[float]) -> tuple[Fraction, Fraction]:
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction()) / len(exact)
    return mean, sum(((value - mean) ** 2 for value in exact), Fraction()) / len(exact)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(
    ("dtype", "ratio", "of_var", "of_y"),
    [
        (torch.float64, 1e7, 1e-9, 1e-8),
        (torch.float64, 1e8, 1e-8, 1e-7),
        (torch.float32, 1e3, 1e-5, 2e-6),
        (torch.float32, 1e4, 1e-5, 2e-6),  # the mean as a float32 is off by 5e-4 deviations
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("T", "lengths"), [(1, None), (65, None), (66, None), (203, None), (203, [203, 0, 70, 1])], ids=str
)
def test_variance_of_numbers_far_from_0(
    place: str, dtype: torch.dtype, ratio: float, of_var: float, of_y: float, T: int, lengths: list[int] | None
) -> None:
    """Mean over deviation is `ratio`; in one stretch of the kernel, just past it, and in several, and over chains."""
    B, N, eps = 4, 3, 1e-5
    x = (torch.randn(T, B, N, dtype=torch.float64) + ratio * torch.tensor([1.0, -1.0, 1.0])).to(dtype)
    zeros, ones = torch.zeros(N, dtype=dtype), torch.ones(N, dtype=dtype)
    length = None if lengths is None else torch.tensor(lengths)
    options: Any = (None, length, None, eps, "identity", place)
    y, _, _, mean, var = norm_forward(x, zeros, None, None, ones, zeros, *options)  # h is x, or its norm
    for n in range(N):
        valid = [x[: T if lengths is None else lengths[b], b, n] for b in range(B)]
        exact_mean, exact_var = exact_moments(torch.cat(valid).tolist())
        assert abs(Fraction(mean[n].item()) / exact_mean - 1) <= torch.finfo(dtype).eps
        assert abs(Fraction(var[n].item()) / exact_var - 1) <= of_var
        expected = [float(Fraction(v) - exact_mean) / (float(exact_var) + eps) ** 0.5 for v in valid[0].tolist()]
        actual = y[: len(expected), 0, n].double()
        torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=of_y, atol=of_y)


def test_statistics_of_constants_and_of_nothing() -> None:
    """Also where a square would overflow, and NaN where there is NaN."""
    ones, zeros, options = torch.ones(3).double(), torch.zeros(3).double(), (None, 1e-5, "identity", "before")
    x = torch.tensor([1e200, 3.0, torch.nan], dtype=torch.float64).repeat(130, 2, 1)
    for lengths in (torch.tensor([0, 130]), torch.tensor([0, 0])):
        *_, mean, var = norm_forward(x, zeros, None, None, ones, zeros, None, lengths, *options)
        expected = x[0, 0] if lengths.any() else zeros
        torch.testing.assert_close(mean, expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(var, expected - expected, rtol=0, atol=0, equal_nan=True)


# ---- tensors whose memory does not hold their numbers


def negated(tensor: Tensor) -> Tensor:
    """The same numbers, of which the memory holds the negatives."""
    view = torch._neg_view(-tensor)
    assert view.is_neg()
    return view


NUMBERS = ["x", "grad", "h_0", "grad_h_last", "u", "bias", "weight", "shift", "mask", "lengths"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_are_read_with_their_negative_bit(name: str, dtype: torch.dtype) -> None:
    passes = Passes(7, 3, 5, dtype=dtype, masked=True, ragged=True)
    expected = passes.results()
    setattr(passes, name, negated(getattr(passes, name)))
    assert_bits(passes.results(), expected)


@pytest.mark.parametrize("name", NUMBERS[:-1])
def test_torchs_zero_tensors_are_zeros(name: str) -> None:
    """They have no memory at all."""
    passes = Passes(7, 3, 5, masked=True)
    given = getattr(passes, name)
    setattr(passes, name, torch.zeros_like(given))
    expected = passes.results()
    setattr(passes, name, torch._efficientzerotensor(given.shape))
    assert_bits(passes.results(), expected)


def test_what_forward_saved_is_read_with_its_negative_bit() -> None:
    p = Passes(7, 3, 5)
    h, _ = forward(p.x, p.u, p.bias, p.h_0, None, None, "relu", False)
    arguments: Any = (p.u, p.h_0, None, None, "relu", False)
    expected = backward(p.grad, p.grad_h_last, h, *arguments)
    assert_bits(list(backward(p.grad, p.grad_h_last, negated(h), *arguments)), list(expected))
    statistics = (torch.rand(5), torch.rand(5))
    saved: Any = (None, p.u, p.h_0, p.weight)
    rest: Any = (None, None, None, 1e-5, "relu")
    with_norm = norm_backward(p.grad, None, h, *saved, *statistics, *rest)
    again = norm_backward(p.grad, None, negated(h), *saved, negated(statistics[0]), negated(statistics[1]), *rest)
    assert_bits(list(again), list(with_norm))


def test_in_place_an_x_with_the_negative_bit_is_left_alone() -> None:
    p = Passes(7, 3, 5)
    x = negated(p.x)
    assert_bits(list(recurrence_(x, p.u)), list(recurrence(p.x, p.u)))
    options: Any = {"place": "after", "overwrite": True}
    results = recurrence_norm(x, p.u, p.weight, p.shift, **options)
    assert torch.equal(x, p.x)
    assert_bits(list(results), list(recurrence_norm(p.x.clone(), p.u, p.weight, p.shift, **options)))


@pytest.mark.parametrize("of", [0, 1], ids=["h", "h_n"])
def test_gradients_that_come_through_a_conjugate(of: int) -> None:
    """They have the negative bit, and with one neuron they are taken as they are."""
    x = torch.randn(6, 2, 3)
    found = []
    for backend in (None, "native", "reference"):
        torch.manual_seed(0)
        layer = IndRNN(3, 1, nonlinearity="identity", backend=backend)
        h = layer(x)[of]
        (torch.complex(torch.zeros_like(h), h).conj() * (1 + 2j)).imag.sum().backward()
        found.append([parameter.grad for parameter in layer.parameters()])
    for gradients in found:
        torch.testing.assert_close(gradients, found[-1])
