"""The algebra of the scan, its rounding, and what it refuses. What every backend promises is in test_op.py."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
import torch

from indrnn import recurrence
from indrnn.ops import reference, scan
from indrnn.ops.scan import Map

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
    arguments: tuple[Any, ...] = (grad, None, sequential, u, None, None, None, "relu", False)
    ours, theirs = scan.backward(*arguments), reference.backward(*arguments) if T <= 1000 else native(*arguments)
    bound = (
        2 * T * torch.finfo(dtype).eps * (grad.double().cumsum(0).abs().amax().item() + theirs[0].abs().max().item())
    )
    assert (ours[0] - theirs[0]).abs().max().item() <= bound


def native(*arguments: Any) -> Any:
    from indrnn.ops import native

    return native.backward(*arguments)


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


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_other_activations_are_refused(activation: str) -> None:
    with pytest.raises(RuntimeError, match=f"'scan'.*cannot serve: it serves relu and identity.*not {activation}"):
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
