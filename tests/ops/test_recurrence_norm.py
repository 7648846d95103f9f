"""Recurrence, batch norm and dropout as one op, against the same as separate steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from indrnn import recurrence
from indrnn.ops import recurrence_norm

from ..conftest import slow_for_triton, smooth
from .problems import Problem, problem

both_places = pytest.mark.parametrize("place", ["before", "after"])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"h_0": False, "bias": False},
    "ragged": {"lengths": True, "resets": True, "between": (2,)},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
with_and_without_mask = pytest.mark.parametrize(
    "masked", [pytest.param(False, marks=slow_for_triton, id="no mask"), pytest.param(True, id="mask")]
)


class Case:
    """A problem with a norm's scale and shift, a mask, and the gradients that come back."""

    def __init__(self, place: str, masked: bool, p: Problem) -> None:
        self.place, self.p = place, p.with_gradients()
        dtype = p.x.dtype
        self.weight = (torch.rand(p.x.shape[-1]) + 0.5).to(dtype).requires_grad_()
        self.shift = torch.randn(p.x.shape[-1]).to(dtype).requires_grad_()
        self.mask = ((torch.rand(1, *p.x.shape[1:]) < 0.7) / 0.7).to(dtype) if masked else None

    @property
    def leaves(self) -> list[Tensor]:
        return [*self.p.leaves, self.weight, self.shift]

    def fused(self, backend: str, **others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p = self.p
        arguments: dict[str, Any] = {
            "bias": p.bias,
            "mask": self.mask,
            "place": self.place,
            "activation": p.activation,
            "lengths": p.lengths,
            "resets": p.resets,
        }
        return recurrence_norm(p.x, p.u, self.weight, self.shift, p.h_0, backend=backend, **(arguments | others))

    def separate(self, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """With torch's batch norm on the valid rows alone."""
        p = self.p
        T, B = p.x.shape[:2]
        valid = torch.ones(T, B, dtype=torch.bool) if p.lengths is None else torch.arange(T).unsqueeze(1) < p.lengths

        def norm(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            rows = values[valid].reshape(-1, values.shape[-1])
            y = torch.nn.functional.batch_norm(rows, None, None, self.weight, self.shift, training=True)
            mean, var = rows.mean(0), rows.var(0, unbiased=False)
            return torch.zeros_like(values).index_put((valid,), y.view(-1, *values.shape[2:])), mean, var

        def run(x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
            options: dict[str, Any] = {"activation": p.activation, "lengths": p.lengths, "resets": p.resets}
            return recurrence(x, p.u, p.h_0, bias=bias, backend=backend, **options)

        if self.place == "before":
            z, mean, var = norm(p.x if p.bias is None else p.x + p.bias)
            y, h_last = run(z, None)
            mean = mean if p.bias is None else mean - p.bias
        else:
            h, h_last = run(p.x, p.bias)
            y, mean, var = norm(h)
        return (y if self.mask is None else y * self.mask), h_last, mean, var

    def solve(self, results: tuple[Tensor, Tensor, Tensor, Tensor]) -> list[Tensor]:
        """All results and all gradients."""
        p = self.p
        gradients = torch.autograd.grad(
            results[:2], self.leaves, (p.grad_h, p.grad_h_last), allow_unused=True, materialize_grads=True
        )
        return [t.detach() for t in (*results, *gradients)]


def assert_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """To `tolerance` of the largest number of each tensor."""
    assert len(actual) == len(expected)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        scale = max(1.0, e.abs().max().item() if e.numel() else 1.0)
        torch.testing.assert_close(a, e, rtol=0, atol=tolerance * scale, msg=f"{{}} in tensor {i}".format)


@each_kind
@both_places
@with_and_without_mask
def test_equals_separate_steps(backend: str, activation: str, place: str, masked: bool, kind: dict[str, Any]) -> None:
    case = Case(place, masked, problem(9, 5, 13, activation=activation, **kind))
    assert_close(case.solve(case.fused(backend)), case.solve(case.separate(backend)), 1e-10)


@each_kind
@both_places
@pytest.mark.parametrize(  # within one of the kernel's stretches of 64 steps, and over two and three
    "T", [40, *(pytest.param(T, marks=slow_for_triton) for T in (67, 130))]
)
def test_equals_separate_steps_in_float32(backend: str, place: str, kind: dict[str, Any], T: int) -> None:
    p = problem(T, 7, 33, dtype=torch.float32, **kind)
    p.u.clamp_(-0.99, 0.99)
    if place == "before":  # a bias has no gradient there, and the separate steps' rounding is all of theirs
        p.bias = None
    case = Case(place, True, p)
    assert_close(case.solve(case.fused(backend)), case.solve(case.separate(backend)), 1e-5)


@slow_for_triton
@both_places
@with_and_without_mask
@pytest.mark.parametrize(
    "ragged", [pytest.param(False, marks=pytest.mark.slow, id="full"), pytest.param(True, id="ragged")]
)
def test_gradcheck(backend: str, place: str, masked: bool, ragged: bool) -> None:
    p = problem(3, 3, 2, activation=smooth(backend), lengths=ragged, resets=ragged)
    if ragged:
        p.lengths = torch.tensor([3, 0, 2])
    case = Case(place, masked, p)

    def f(x: Tensor, u: Tensor, bias: Tensor, h_0: Tensor, weight: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        return recurrence_norm(
            x,
            u,
            weight,
            shift,
            h_0,
            bias=bias,
            place=place,
            mask=case.mask,
            activation=smooth(backend),
            lengths=p.lengths,
            resets=p.resets,
            backend=backend,
        )[:2]

    fast = backend == "triton"  # in a random direction: every number would take the interpreter minutes
    assert torch.autograd.gradcheck(f, case.leaves, fast_mode=fast)
    leaves = case.leaves
    if fast and place == "before":  # a bias has a constant gradient there, for which torch has no fast mode
        leaves[2].requires_grad_(False)
    assert torch.autograd.gradgradcheck(f, leaves, fast_mode=fast)


@slow_for_triton
@both_places
def test_a_mean_ten_thousand_times_the_deviation(backend: str, place: str) -> None:
    """In float32, where a sum of squares would have lost the deviation altogether."""
    T, B, N = 200, 16, 5
    exact = 1e4 + torch.randn(T, B, N, dtype=torch.float64)
    x, zeros, ones = exact.float(), torch.zeros(N), torch.ones(N)
    y, _, mean, var = recurrence_norm(x, zeros, ones, zeros, place=place, activation="identity", backend=backend)
    over = x.double()
    torch.testing.assert_close(mean.double(), over.mean((0, 1)), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.double(), over.var((0, 1), unbiased=False), rtol=1e-5, atol=0)
    expected = (over - over.mean((0, 1))) / (over.var((0, 1), unbiased=False) + 1e-5).sqrt()
    # float32 has a spacing of 1e-3 at 1e4: that much is in x's mean, and no more than it.
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-3)


@both_places
def test_a_batch_that_comes_first_in_memory(backend: str, place: str) -> None:
    p = problem(6, 3, 5, lengths=True)
    plain = Case(place, True, p)
    expected = plain.solve(plain.fused(backend))
    p.x, p.grad_h = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (p.x, p.grad_h))
    other = Case(place, True, p)
    other.weight, other.shift, other.mask = plain.weight, plain.shift, plain.mask
    assert_close(other.solve(other.fused(backend)), expected, 1e-12)


@both_places
def test_what_stands_in_the_padding_changes_nothing(backend: str, place: str) -> None:
    p = problem(8, 5, 7, activation=smooth(backend), lengths=True, resets=True)
    assert p.lengths is not None
    clean = Case(place, True, p)
    expected = clean.solve(clean.fused(backend))
    padding = torch.arange(8).unsqueeze(1) >= p.lengths
    p.x[padding] = p.grad_h[padding] = torch.nan
    other = Case(place, True, p)
    other.weight, other.shift, other.mask = clean.weight, clean.shift, clean.mask
    assert_close(other.solve(other.fused(backend)), expected, 0.0)


@both_places
def test_what_stands_in_the_padding_changes_no_second_derivative(backend: str, place: str) -> None:
    lengths, results = torch.tensor([6, 2, 0, 4]), []
    for value in (0.0, torch.nan):
        x, u, weight, shift = (torch.linspace(0.1, 1.3, n).double().cos() for n in (6 * 4 * 3, 3, 3, 3))
        x = x.view(6, 4, 3).masked_fill((torch.arange(6).unsqueeze(1) >= lengths).unsqueeze(-1), value)
        leaves = [leaf.requires_grad_() for leaf in (x, u, weight, shift)]
        y, *_ = recurrence_norm(*leaves, place=place, lengths=lengths, activation=smooth(backend), backend=backend)
        first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad([g.square().sum() for g in first], leaves))
    for clean, ours in zip(*results, strict=True):
        assert torch.equal(ours, clean)


@both_places
@pytest.mark.parametrize("shape", [(0, 3, 5), (4, 0, 5)], ids=str)
def test_empty(backend: str, place: str, shape: tuple[int, int, int]) -> None:
    case = Case(place, True, problem(*shape))
    y, h_last, mean, var, *gradients = case.solve(case.fused(backend))
    assert y.shape == shape
    assert h_last.isfinite().all()
    assert mean.eq(0).all()
    assert var.eq(0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@both_places
def test_half_types(backend: str, place: str) -> None:
    """The norm's parameters and statistics stay float32 beside a half input, as under autocast."""
    p = problem(30, 6, 9, dtype=torch.bfloat16)
    p.u, p.bias = p.u.float().clamp(-1, 1), torch.randn(9)
    case = Case(place, True, p)
    case.weight, case.shift = (t.detach().float().requires_grad_() for t in (case.weight, case.shift))
    y, h_last, mean, var, *gradients = case.solve(case.fused(backend))
    assert (y.dtype, h_last.dtype, mean.dtype, var.dtype) == (torch.bfloat16,) * 2 + (torch.float32,) * 2
    assert [g.dtype for g in gradients] == [leaf.dtype for leaf in case.leaves]
    full = Case(place, True, p.to(torch.float32))
    full.weight, full.shift, full.mask = case.weight, case.shift, case.mask
    tolerance = 2**-6 if backend == "triton" else 2**-7  # its interpreter cuts off to bfloat16 where GPUs round
    assert_close([t.float() for t in (y, h_last, mean, var)], full.solve(full.fused(backend))[:4], tolerance)


@slow_for_triton
@both_places
def test_same_bits_for_any_number_of_threads(backend: str, place: str) -> None:
    p = problem(300, 13, 67, dtype=torch.float32, lengths=True)
    p.u.clamp_(-1, 1)
    case = Case(place, True, p)
    threads = torch.get_num_threads()
    try:
        runs = []
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            runs.append(case.solve(case.fused(backend)))
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        for a, e in zip(other, runs[0], strict=True):
            assert a.equal(e)


@both_places
@with_and_without_mask
def test_opcheck(backend: str, place: str, masked: bool) -> None:
    case = Case(place, masked, problem(lengths=True))
    p, options = case.p, (case.mask, case.p.lengths, None, 1e-5, "relu")
    x, u, weight, shift = (t.detach() for t in (p.x, p.u, case.weight, case.shift))
    inputs = (x, u, None, None, weight, shift, *options, place, backend)
    torch.library.opcheck(torch.ops.indrnn.recurrence_norm.default, inputs)
    y, _, h, mean, var = torch.ops.indrnn.recurrence_norm(*inputs)
    h = h if h.numel() else y
    torch.library.opcheck(
        torch.ops.indrnn.recurrence_norm_backward.default,
        (p.grad_h, None, h, x if place == "before" else None, u, None, weight, mean, var, *options, backend),
    )


@both_places
def test_compiles_whole(backend: str, place: str) -> None:
    torch._dynamo.reset()
    case = Case(place, True, problem(6, 4, 5, activation=smooth(backend), lengths=True))
    compiled = torch.compile(lambda: case.fused(backend), fullgraph=True, backend="aot_eager")
    assert_close(case.solve(compiled()), case.solve(case.fused(backend)), 1e-12)


@both_places
def test_func_grad_and_vmap(backend: str, place: str) -> None:
    p = problem(5, 4, 3, activation=smooth(backend), h_0=False, bias=False)
    weight, shift = torch.rand(3).double(), torch.rand(3).double()

    def loss(x: Tensor, u: Tensor) -> Tensor:
        return (
            recurrence_norm(x, u, weight, shift, place=place, activation=smooth(backend), backend=backend)[0]
            .sin()
            .sum()
        )

    x = torch.stack([p.x, p.x.flip(0)])
    expected = [torch.autograd.functional.vjp(loss, (one, p.u))[1] for one in x]
    actual = vmap(grad(loss, (0, 1)), (0, None))(x, p.u)
    for i in range(2):
        torch.testing.assert_close(actual[i], torch.stack([e[i] for e in expected]))


def test_a_bad_place_is_named() -> None:
    p = problem()
    with pytest.raises(ValueError, match="place must be 'before' or 'after', got 'around'"):
        recurrence_norm(p.x, p.u, p.u, p.u, place="around")


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("weight", (4,), "(N,) = (5,)"),
        ("shift", (1,), "(N,) = (5,)"),
        ("mask", (3, 5), "(1, 3, 5)"),
        ("mask", (1, 1, 5), "(1, 3, 5)"),
    ],
)
def test_a_bad_shape_is_named(name: str, shape: tuple[int, ...], expected: str) -> None:
    arguments = {"weight": torch.ones(5), "shift": torch.zeros(5), "mask": None} | {name: torch.ones(shape)}
    with pytest.raises(ValueError, match=re.escape(f"{name} must have the shape {expected}")):
        recurrence_norm(torch.randn(4, 3, 5), torch.ones(5), place="after", **arguments)  # type: ignore[arg-type]
