"""A linear RNN as a two-layer IndRNN: outputs and gradients against a loop over the steps, in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import indrnn
from indrnn.analysis.conversion import ComplexIndRNN, Conversion, complex_reference, complex_scan, from_rnn

T, B, M, N = 1000, 2, 3, 7
F64 = torch.float64


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def radius(U: Tensor, to: float) -> Tensor:
    largest: Tensor = torch.linalg.eigvals(U).abs().max()
    return U * to / largest


def rotation(*angles: float) -> Tensor:
    blocks = [torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=F64) for a in angles]
    whole: Tensor = torch.block_diag(*blocks)
    return whole


def symmetric() -> Tensor:
    U = random(N, N)
    return radius(U + U.T, 0.999)


def similar(to: Tensor) -> Tensor:
    """The same eigenvalues, in another basis."""
    V = random(len(to), len(to))
    inverse: Tensor = torch.linalg.inv(V)
    return V @ to @ inverse


def with_real_eigenvalues() -> Tensor:
    return similar(torch.diag(torch.linspace(-0.9, 1, N, dtype=F64)))


def mixed() -> Tensor:
    blocks = (rotation(0.3) * 0.99, torch.tensor([[0.9]], dtype=F64), rotation(2.0))
    return similar(torch.block_diag(*blocks))


MATRICES = {
    "random": lambda: radius(random(N, N), 1.0),
    "random, radius 0.9": lambda: radius(random(N, N), 0.9),
    "symmetric": symmetric,
    "real eigenvalues": with_real_eigenvalues,
    "rotation": lambda: rotation(0.1, 1.0, 3.0),
    "mixed": mixed,
    "zero": lambda: torch.zeros(N, N, dtype=F64),
    "identity": lambda: torch.eye(N, dtype=F64),
    "one neuron": lambda: torch.tensor([[-0.7]], dtype=F64),
}


def by_steps(x: Tensor, W: Tensor, U: Tensor, bias: Tensor | None = None, h: Tensor | None = None) -> Tensor:
    h = x.new_zeros(x.shape[1], len(U)) if h is None else h
    rows = []
    for x_t in x:
        h = x_t @ W.T + h @ U.T + (0 if bias is None else bias)
        rows.append(h)
    return torch.stack(rows)


def relative(a: Tensor, b: Tensor) -> float:
    return float(((a - b).abs().max() / b.abs().max()).detach())


def gradient_of_input_weights(found: Conversion) -> Tensor:
    """From that of the first layer's weights, which are V⁻¹ W."""
    neurons = found.model.neurons
    weight = neurons.weight_ih if isinstance(neurons, ComplexIndRNN) else neurons.weight_ih_l0
    assert weight.grad is not None
    through = found.model.into.mH @ weight.grad
    return through.real if through.is_complex() else through


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("backend", ["scan", "reference"])
def test_equal_outputs_and_gradients_over_1000_steps(name: str, backend: str) -> None:
    U = MATRICES[name]()
    W, bias, x = random(len(U), M).requires_grad_(), random(len(U)), random(T, B, M).requires_grad_()
    found = from_rnn((W, U, bias), backend=backend)
    assert found.perturbation == 0
    assert found.is_real == (not torch.linalg.eigvals(U).imag.any())
    expected, (h, h_n) = by_steps(x, W, U, bias), found.model(x)
    tolerance = 1e-12 * found.condition  # a rounding of 2e-16 over 1,000 steps, magnified by the eigenvectors
    assert relative(h, expected) < tolerance
    assert torch.equal(h_n[0], h[-1])
    upstream = random(*h.shape)
    to_x, to_W = torch.autograd.grad((expected * upstream).sum(), [x, W])
    (h * upstream).sum().backward()
    assert x.grad is not None
    assert relative(x.grad, to_x) < tolerance
    assert relative(gradient_of_input_weights(found), to_W) < tolerance


@pytest.mark.parametrize("name", ["symmetric", "mixed"])
def test_a_state_before_the_first_step(name: str) -> None:
    U = MATRICES[name]()
    W, x, h_0 = random(len(U), M), random(9, B, M), random(B, len(U))
    found = from_rnn((W, U))
    assert relative(found.model(x, h_0.unsqueeze(0))[0], by_steps(x, W, U, h=h_0)) < 1e-13 * found.condition
    first, state = found.model(x[:4])
    rest, last = found.model(x[4:], state)
    whole, end = found.model(x)
    assert_close(torch.cat([first, rest]), whole)
    assert_close(last, end)


def test_what_it_says_of_the_eigenvectors() -> None:
    assert from_rnn((random(N, M), symmetric())).condition == 1
    V = random(N, N)
    V = V / V.norm(dim=0)
    U = V @ torch.diag(torch.linspace(-0.9, 1, N, dtype=F64)) @ torch.linalg.inv(V)
    found = from_rnn((random(N, M), U))
    assert found.condition == pytest.approx(float(torch.linalg.cond(V)), rel=1e-6)
    assert found.error < 1e-13 * found.condition
    assert_close(found.eigenvalues.sort().values, torch.linspace(-0.9, 1, N, dtype=F64))


def test_a_turn_takes_one_complex_neuron_and_no_real_one() -> None:
    found = from_rnn((random(2, M), rotation(0.5)))
    assert not found.is_real
    assert found.eigenvalues.tolist() == [pytest.approx(complex(math.cos(0.5), math.sin(0.5)))]


@pytest.mark.parametrize(("size", "bar"), [(2, 1e-8), (3, 1e-6)])
def test_a_jordan_block_is_perturbed_and_the_error_said(size: int, bar: float) -> None:
    U = 0.9 * torch.eye(size, dtype=F64) + torch.diag(torch.ones(size - 1, dtype=F64), 1)
    W, x = random(size, M), random(T, B, M)
    with pytest.warns(UserWarning, match="not diagonalisable, or nearly so: U was perturbed by") as said:
        found = from_rnn((W, U))
    assert 0 < found.perturbation < 1e-6
    assert f"{found.error:.1e}" in str(said[0].message)
    powers = [torch.linalg.matrix_power(U, t) for t in range(T + 1)]
    model = found.model.double()
    assert 1e-16 < found.error < bar
    # The impulse response, by the model itself: no step is worse than a few times what it says
    impulse = torch.zeros(T, M, M, dtype=F64)
    impulse[0] = torch.eye(M)
    response = model(impulse)[0]  # (T, M, N): rows of Uᵗ W
    truth = torch.stack([(U_t @ W).T for U_t in powers[:T]])
    assert relative(response, truth) < 10 * found.error
    assert relative(model(x)[0], by_steps(x, W, U)) < 100 * found.error


def test_ill_conditioned_eigenvectors_are_said() -> None:
    U = torch.tensor([[0.5, 1.0], [0.0, 0.5 + 1e-7]], dtype=F64)
    found = from_rnn((random(2, M), U))
    assert found.condition > 1e7
    assert 0 < found.error < 1e-8
    with pytest.warns(UserWarning, match=r"condition of the eigenvectors"):
        from_rnn((random(2, M), U), max_condition=1e3)


def test_types_and_cells() -> None:
    U, W, b = radius(random(N, N), 0.9).float(), random(N, M).float(), random(N).float()
    x = torch.randn(30, B, M)
    expected = by_steps(x, W, U, b)
    plain = SimpleNamespace(weight_ih=W, weight_hh=U, bias_ih=b / 2, bias_hh=b / 2, nonlinearity="identity")
    layer = SimpleNamespace(weight_ih_l0=W, weight_hh_l0=U, bias_l0=b, nonlinearity="identity")
    cell = nn.RNNCell(M, N)
    cell.nonlinearity = "identity"
    with torch.no_grad():
        for parameter, value in zip(cell.parameters(), (W, U, b, 0 * b), strict=True):
            parameter.copy_(value)
    for rnn in ((W, U, b), plain, layer, cell):
        h, _ = from_rnn(rnn).model(x)
        assert h.dtype == torch.float32
        assert_close(h, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("rnn", "kind", "message"),
    [
        (nn.RNN(2, 3), ValueError, "rnn must be linear, .* got 'tanh' of RNN: .*indrnn.distil"),
        (nn.Linear(2, 3), TypeError, "rnn must be .*, got Linear"),
        ((torch.ones(2, 2),), ValueError, "got 1 parts"),
        ((torch.ones(2, 3), torch.ones(3, 3)), ValueError, r"W must have the shape \(3, inputs\), got \(2, 3\)"),
        ((torch.ones(2, 3), torch.ones(2)), ValueError, "U must be a square matrix"),
        ((torch.ones(2, 3), torch.ones(2, 2), torch.ones(3)), ValueError, "bias must have the shape"),
        ((torch.ones(2, 3), torch.full((2, 2), math.nan)), ValueError, "U must be finite"),
        ((torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 2)), TypeError, "W must be a tensor of float32"),
        (("a", torch.ones(2, 2)), TypeError, "W must be a tensor"),
        (indrnn.IndRNN(2, 3, nonlinearity="identity"), ValueError, "U must be a square matrix"),
    ],
)
def test_what_is_refused(rnn: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        indrnn.from_rnn(rnn)


def test_other_bad_arguments() -> None:
    good = (torch.ones(2, 3), torch.eye(2))
    with pytest.raises(ValueError, match="steps must"):
        from_rnn(good, steps=0)
    with pytest.raises(ValueError, match="max_condition must be at least 1"):
        from_rnn(good, max_condition=0.5)
    with pytest.raises(ValueError, match="input must have the shape"):
        from_rnn(good).model(torch.ones(4, 2, 2))
    with pytest.raises(ValueError, match="hx must have the shape"):
        from_rnn(good).model(torch.ones(4, 2, 3), torch.ones(2, 2))
    with pytest.raises(ValueError, match="backend must be one of 'scan', 'reference'"):
        ComplexIndRNN(2, 3, backend="native")
    with pytest.raises(ValueError, match="dtype must be complex"):
        ComplexIndRNN(2, 3, dtype=torch.float32)


@pytest.mark.parametrize("steps", [1, 2, 3, 64, 65, 500])
@pytest.mark.parametrize("start", [True, False])
def test_the_scan_is_the_loop(steps: int, start: bool) -> None:
    x = torch.randn(steps, 3, 5, dtype=torch.complex128, requires_grad=True)
    u = torch.polar(torch.rand(5, dtype=F64), 6 * torch.rand(5, dtype=F64)).requires_grad_()
    h_0 = torch.randn(3, 5, dtype=torch.complex128, requires_grad=True) if start else None
    inputs = [x, u] if h_0 is None else [x, u, h_0]
    results = []
    for run in (complex_reference, complex_scan):
        h = run(x, u, h_0)
        gradients = torch.autograd.grad((h * torch.arange(5)).abs().square().sum(), inputs, materialize_grads=True)
        results.append([h, *gradients])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("backend", ["scan", "reference"])
def test_no_steps_leave_the_state(backend: str) -> None:
    found = from_rnn((random(4, M), rotation(0.1, 0.2)), backend=backend)
    state = random(1, B, 4)
    h, h_n = found.model(random(0, B, M), state)
    assert h.shape == (0, B, 4)
    assert_close(h_n, state)
    assert torch.equal(found.model(random(0, B, M))[1], torch.zeros(1, B, 4, dtype=F64))


def test_the_complex_layer_draws_its_parameters() -> None:
    layer = ComplexIndRNN(4, 1000)
    assert 0.9 < float(layer.weight_hh.detach().abs().max()) <= 1
    assert float(layer.weight_ih.detach().real.abs().max()) == pytest.approx(0.152, rel=0.01)
    z, last = layer(torch.randn(6, 2, 4))
    assert torch.equal(z[-1], last)
    assert last.abs().sum() > 0
