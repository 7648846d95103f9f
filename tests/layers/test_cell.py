"""IndRNNCell stands where torch.nn.RNNCell stands, and is one step of IndRNN."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import IndRNN, IndRNNCell

B, M, N = 7, 3, 13

batches = pytest.mark.parametrize("batch", [(B,), (1,), ()], ids=["batch 7", "batch 1", "unbatched"])
biases = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


def make_cell(nonlinearity: str = "tanh", **options: Any) -> IndRNNCell:
    """A float64 cell with recurrent weights of both signs, and biases that are not 0."""
    cell = IndRNNCell(M, N, nonlinearity=nonlinearity, **{"dtype": torch.float64, **options})
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            if name != "weight_ih":
                parameter.uniform_(-1, 1)
    return cell


def twin(cell: IndRNNCell) -> nn.RNNCell:
    """The torch.nn.RNNCell that computes the same: weight_hh = diag(u), bias_hh = 0."""
    rnn = nn.RNNCell(M, N, cell.bias is not None, cell.nonlinearity, dtype=torch.float64)
    with torch.no_grad():
        rnn.weight_ih.copy_(cell.get_parameter("weight_ih"))
        rnn.weight_hh.copy_(cell.get_parameter("weight_hh").diag())
        if cell.bias is not None:
            rnn.bias_ih.copy_(cell.get_parameter("bias"))
            rnn.bias_hh.zero_()
    return rnn


@biases
@batches
@pytest.mark.parametrize("with_hx", [False, True], ids=["no hx", "hx"])
@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_equals_torch(nonlinearity: str, with_hx: bool, batch: tuple[int, ...], bias: bool) -> None:
    cell = make_cell(nonlinearity, bias=bias)
    rnn = twin(cell)
    x = torch.randn(*batch, M, dtype=torch.float64, requires_grad=True)
    hx = torch.randn(*batch, N, dtype=torch.float64, requires_grad=True) if with_hx else None
    leaves = [x, *([] if hx is None else [hx])]
    h, expected = cell(x, hx), rnn(x, hx)
    assert h.shape == (*batch, N)
    assert_close(h, expected)

    weights = torch.randn_like(h)
    gradients = torch.autograd.grad((h * weights).sum(), [*leaves, *cell.parameters()])
    matching = [rnn.weight_ih, rnn.weight_hh, *([rnn.bias_ih] if bias else [])]
    expecteds = torch.autograd.grad((expected * weights).sum(), [*leaves, *matching])
    for gradient, wanted in zip(gradients, expecteds, strict=True):
        assert_close(gradient, wanted.diagonal() if wanted.shape == (N, N) else wanted)


@batches
def test_gradcheck(batch: tuple[int, ...], activation: str) -> None:
    cell = make_cell(activation)
    parameters = dict(cell.named_parameters())

    def call(x: Tensor, hx: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(cell, dict(zip(parameters, values, strict=True)), (x, hx))

    x = torch.randn(*batch, M, dtype=torch.float64, requires_grad=True)
    hx = torch.randn(*batch, N, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x, hx, *parameters.values()), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (x, hx, *parameters.values()), fast_mode=True)


def looped(cell: IndRNNCell, x: Tensor, h: Tensor | None = None) -> Tensor:
    steps = []
    for x_t in x:
        h = cell(x_t, h)
        steps.append(h)
    return torch.stack(steps)


def layer_of(cell: IndRNNCell) -> IndRNN:
    """The layer with the cell's parameters."""
    layer = IndRNN(M, N, nonlinearity=cell.nonlinearity, bias=cell.bias is not None)
    layer.to(next(cell.parameters()).dtype)
    layer.load_state_dict(
        {name if name.startswith("bound") else f"{name}_l0": value for name, value in cell.state_dict().items()}
    )
    return layer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_loop_equals_layer(dtype: torch.dtype, activation: str) -> None:
    cell = make_cell(activation, dtype=dtype)
    layer = layer_of(cell)
    x, h_0 = torch.randn(20, B, M, dtype=dtype), torch.randn(B, N, dtype=dtype)
    output, h_n = layer(x, h_0.unsqueeze(0))
    states = looped(cell, x, h_0)
    assert_close(states, output)
    assert_close(states[-1:], h_n)
    weights = torch.randn_like(output)
    assert_close(
        torch.autograd.grad((states * weights).sum(), list(cell.parameters())),
        torch.autograd.grad((output * weights).sum(), list(layer.parameters())),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_loop_is_near_the_layer_in_half_types(dtype: torch.dtype, activation: str) -> None:
    cell = make_cell(activation, dtype=dtype)
    x = torch.randn(20, B, M, dtype=dtype)
    output, _ = layer_of(cell)(x)
    states = looped(cell, x)
    assert states.dtype == output.dtype == dtype
    # The layer carries its state in float32; the loop rounds it at each step, to within eps / 2 and to either side, so
    # 20 steps add up to about √20 < 5 such errors.
    scale = float(output.detach().abs().max())
    assert_close(states, output, rtol=0, atol=5 * torch.finfo(dtype).eps / 2 * scale)


def test_one_step_in_half_precision_is_the_layers_to_the_bit() -> None:
    cell = make_cell(dtype=torch.bfloat16)
    x = torch.randn(1, B, M, dtype=torch.bfloat16)
    h_0 = torch.randn(B, N, dtype=torch.bfloat16)
    output, _ = layer_of(cell)(x, h_0.unsqueeze(0))
    assert torch.equal(cell(x[0], h_0), output[0])


def test_autocast_leaves_the_recurrent_weight_alone() -> None:
    # 0.999 is 1 in bfloat16, and −1 + 1 · 1 would be 0.
    cell = IndRNNCell(1, 1, nonlinearity="identity")
    with torch.no_grad():
        cell.get_parameter("weight_hh").fill_(0.999)
        cell.get_parameter("weight_ih").fill_(-1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = cell(torch.ones(1, 1), torch.ones(1, 1))
    assert h.dtype == torch.bfloat16
    assert_close(h.float(), torch.tensor([[-0.001]]), rtol=2**-8, atol=1e-7)
    h.sum().backward()
    gradient = cell.get_parameter("weight_hh").grad
    assert gradient is not None
    assert gradient.dtype == torch.float32


@biases
def test_parameters(bias: bool) -> None:
    cell = IndRNNCell(M, N, bias)
    expected = {"weight_ih": (N, M), "weight_hh": (N,), **({"bias": (N,)} if bias else {})}
    assert {name: tuple(parameter.shape) for name, parameter in cell.named_parameters()} == expected


def test_arguments_come_in_torchs_order() -> None:
    cell, rnn = IndRNNCell(M, N, False, "relu"), nn.RNNCell(M, N, False, "relu")
    assert (cell.input_size, cell.hidden_size, cell.nonlinearity) == (rnn.input_size, rnn.hidden_size, "relu")
    assert [name for name, _ in cell.named_parameters()] == ["weight_ih", "weight_hh"]


def test_reset_parameters_draws_anew() -> None:
    cell = make_cell()
    before = copy.deepcopy(cell.state_dict())
    cell.reset_parameters()
    for name, parameter in cell.named_parameters():
        assert not (parameter == before[name]).any(), name


def test_copies_compute_the_same() -> None:
    cell = make_cell(gamma=2, sequence_length=9)
    loaded = make_cell(gamma=2, sequence_length=9)
    loaded.load_state_dict(cell.state_dict())
    x, hx = torch.randn(B, M, dtype=torch.float64), torch.randn(B, N, dtype=torch.float64)
    for other in (loaded, copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert torch.equal(other(x, hx), cell(x, hx))
        assert other.bound.upper == cell.bound.upper == 2 ** (1 / 9)


def test_long_memory_raises_the_recurrent_weights() -> None:
    T, epsilon = 100, 0.5
    u = IndRNNCell(M, 999, sequence_length=T, long_memory=True, epsilon=epsilon).get_parameter("weight_hh")
    assert u.min() >= torch.tensor(epsilon ** (1 / T))
    assert u.max() <= 1
    assert IndRNNCell(M, 999, sequence_length=T, epsilon=epsilon).get_parameter("weight_hh").min() < 0.1


def test_repr_shows_what_was_asked_for() -> None:
    assert f"{M}, {N}, bias=False, nonlinearity='tanh'" in repr(IndRNNCell(M, N, False, "tanh"))


X = torch.zeros(B, M)

BAD_INPUTS: list[tuple[Any, ...]] = [
    (torch.zeros(B, M + 1), None, ValueError, r"input must have the shape \(B, 3\) or \(3,\), got \(7, 4\)"),
    (torch.zeros(1, B, M), None, ValueError, r"input must have the shape \(B, 3\) or \(3,\), got \(1, 7, 3\)"),
    (torch.tensor(1.0), None, ValueError, "input must have the shape .*, got"),
    (X.double(), None, TypeError, "input must be of the layer's type, torch.float32, got torch.float64"),
    (X.to("meta"), None, ValueError, "input must be on the layer's device, cpu, got one on meta"),
    ([0.0, 0.0, 0.0], None, TypeError, "input must be a tensor"),
    (X, torch.zeros(N), ValueError, r"hx must have the shape \(7, 13\) for this input, got \(13,\)"),
    (X, torch.zeros(B, N + 1), ValueError, r"hx must have the shape \(7, 13\) for this input, got \(7, 14\)"),
    (X[0], torch.zeros(1, N), ValueError, r"hx must have the shape \(13,\) for this input, got \(1, 13\)"),
    (X, torch.zeros(B, N).double(), TypeError, "hx must be of"),
    (X, torch.zeros(B, N, device="meta"), ValueError, "hx must be on"),
    (X, [0.0], TypeError, "hx must be a tensor or None"),
]


@pytest.mark.parametrize(("input", "hx", "error", "message"), BAD_INPUTS, ids=[case[-1] for case in BAD_INPUTS])
def test_bad_inputs_are_named(input: Any, hx: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        IndRNNCell(M, N)(input, hx)


BAD_ARGUMENTS: list[tuple[Any, ...]] = [
    ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
    ({"hidden_size": -1}, ValueError, "hidden_size must be at least 1, got -1"),
    ({"hidden_size": 1.0}, TypeError, "hidden_size must be an integer, got float"),
    ({"nonlinearity": "gelu"}, ValueError, "nonlinearity must be one of 'relu', .*got 'gelu'"),
    ({"gamma": 2.0}, ValueError, "sequence_length is needed to turn gamma"),
    ({"long_memory": True}, ValueError, "sequence_length is needed for long_memory"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_ARGUMENTS, ids=[case[-1] for case in BAD_ARGUMENTS])
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        IndRNNCell(**{"input_size": M, "hidden_size": N, **options})
