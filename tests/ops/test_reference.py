"""The specification itself, against formulas that share nothing with it."""

from __future__ import annotations

import math

import pytest
import torch

from indrnn.ops import reference
from indrnn.ops.calls import Forward

from .problems import assert_same, problem

SCALAR = {
    "relu": lambda z: max(z, 0.0),
    "tanh": math.tanh,
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "identity": lambda z: z,
}


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_forward_is_the_equation_written_out_for_each_number(activation: str, reverse: bool) -> None:
    p = problem(6, 5, 3, activation=activation, reverse=reverse, lengths=True, resets=True)
    assert p.h_0 is not None
    assert p.bias is not None
    assert p.lengths is not None
    assert p.resets is not None
    h, h_last = p.run("reference")
    T, B, N = p.x.shape
    expected = torch.zeros_like(h)
    for b in range(B):
        length = int(p.lengths[b])
        for n in range(N):
            state = float(p.h_0[b, n])
            for t in reversed(range(length)) if reverse else range(length):
                if p.resets[t, b]:
                    state = 0.0
                state = SCALAR[activation](float(p.x[t, b, n]) + float(p.bias[n]) + float(p.u[n]) * state)
                expected[t, b, n] = state
            torch.testing.assert_close(h_last[b, n].item(), state)
    torch.testing.assert_close(h, expected)
    assert T == 6


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
def test_backward_is_autograd_of_forward(activation: str, reverse: bool, ragged: bool) -> None:
    p = problem(9, 4, 5, (2,), activation=activation, reverse=reverse, lengths=ragged, resets=ragged)
    assert_same(p.solve("reference"), p.solve_by_autograd(), rtol=1e-12, atol=1e-12)


def test_half_types_are_carried_in_float32() -> None:
    """1/256 is lost beside 1 in bfloat16, but not when the state between steps is float32."""
    x = torch.full((256, 1, 1), 1 / 256, dtype=torch.bfloat16)
    h, h_last = reference.forward(Forward(x, torch.ones(1), h_0=torch.ones(1, 1), activation="identity"))
    assert h.dtype == h_last.dtype == torch.bfloat16
    assert h_last.item() == 2.0


@pytest.mark.parametrize("backend", ["reference", "scan"])
@pytest.mark.parametrize("shape", [(3, 60_000, 1), (3, 1, 60_000), (2, 500, 70)], ids=str)
def test_same_bits_for_any_number_of_threads(backend: str, shape: tuple[int, int, int]) -> None:
    """In float32, and where torch's own sum over the batch would be shared out between threads."""
    p = problem(*shape, dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        runs = []
        for threads in (1, 2, 3, 4, 16):
            torch.set_num_threads(threads)
            runs.append(p.solve(backend))
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert_same(other, runs[0], rtol=0, atol=0)


def test_sums_by_halves_are_sums() -> None:
    for rows in (0, 1, 2, 3, 7, 63, 500):
        values = torch.randint(-100, 100, (rows, 5)).double()
        assert reference.sum_to_neurons(values).equal(values.sum(0))
