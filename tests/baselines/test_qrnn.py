"""The QRNN computes its equations, and is called as the networks of this package are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import indrnn
from indrnn import SequenceClassifier
from indrnn.baselines import QRNN, QRNNBaseline

T, B, M, N = 11, 5, 3, 7
DOUBLE = torch.float64

windows = pytest.mark.parametrize("window", [1, 2, 4], ids=lambda window: f"window {window}")
layouts = pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])


def lively(layers: int = 2, window: int = 2, **options: Any) -> QRNNBaseline:
    network = QRNNBaseline(M, N, layers, window=window, **{"dtype": DOUBLE, **options})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-0.8, 0.8)
    return network


def by_hand(network: QRNNBaseline, x: Tensor) -> Tensor:
    """The equations, a step at a time: convolutions as a sum over earlier steps."""
    for convolution in network.convolutions:
        weight = convolution.weight.detach()  # type: ignore[operator]
        taps = weight.view(3 * N, network.window, -1)
        c, rows = torch.zeros(x.shape[1], N, dtype=x.dtype), []
        for t in range(len(x)):
            a = convolution.bias.detach().expand(x.shape[1], -1)  # type: ignore[operator]
            for k in range(network.window):  # the last tap is of the step itself
                at = t - (network.window - 1 - k)
                if at >= 0:
                    a = a + x[at] @ taps[:, k].t()
            z, f, o = torch.tanh(a[:, :N]), 1 / (1 + torch.exp(-a[:, N : 2 * N])), 1 / (1 + torch.exp(-a[:, 2 * N :]))
            c = f * c + (1 - f) * z
            rows.append(o * c)
        x = torch.stack(rows)
    return x


@windows
@layouts
def test_features_are_those_of_the_equations(batch_first: bool, window: int) -> None:
    network, x = lively(3, window, batch_first=batch_first), torch.randn(T, B, M, dtype=DOUBLE)
    given = x.transpose(0, 1) if batch_first else x
    features, _ = network(given)
    assert_close(features.transpose(0, 1) if batch_first else features, by_hand(network, x))
    last, _ = network(given, last=True)
    assert_close(last, by_hand(network, x)[-1])


@windows
@pytest.mark.parametrize("cuts", [[4], [1, 2, 9], list(range(1, T))], ids=["2 pieces", "4 pieces", "steps"])
def test_pieces_with_the_state_carried_are_the_whole(cuts: list[int], window: int) -> None:
    network, x = lively(2, window), torch.randn(T, B, M, dtype=DOUBLE)
    whole, after = network(x)
    pieces, state = [], None
    for piece in x.tensor_split(cuts):
        features, state = network(piece, state)
        pieces.append(features)
    assert_close(torch.cat(pieces), whole)
    assert_close(state, after)


def test_gradients_are_right_through_the_state() -> None:
    network = lively(2)
    x = torch.randn(5, 2, M, dtype=DOUBLE, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        first, state = network(x[:2])
        second, _ = network(x[2:], state)
        return torch.cat([first, second])

    assert torch.autograd.gradcheck(run, x)


def test_dropout_is_between_layers_and_has_one_mask_for_all_steps() -> None:
    x = torch.randn(T, B, M, dtype=DOUBLE)
    one, two = lively(1, dropout=0.5), lively(2, dropout=0.5)
    assert_close(one(x)[0], by_hand(one, x))
    assert not torch.allclose(two(x)[0], by_hand(two, x))
    assert_close(two.eval()(x)[0], by_hand(two, x))


@pytest.mark.parametrize("layers", [1, 3])
def test_the_number_of_parameters(layers: int) -> None:
    with torch.device("meta"):
        network = QRNN(N, layers).sized(M, 99).build()
    assert sum(p.numel() for p in network.parameters()) == sum(
        3 * N * (2 * inputs + 1) for inputs in [M, *[N] * (layers - 1)]
    )
    assert network.config == QRNN(N, layers, input_size=M)


def test_a_head_of_it_is_saved_and_loaded(tmp_path: Any) -> None:
    model, x = SequenceClassifier(lively(dtype=torch.float32), 4).eval(), torch.randn(T, B, M)
    indrnn.save(model, tmp_path)
    assert_close(indrnn.load(tmp_path)(x), model(x), rtol=0, atol=0)


def test_autocast_carries_the_state_in_full_precision() -> None:
    network, x = lively(dtype=torch.float32), torch.randn(T, B, M)
    expected, _ = network(x)
    with torch.autocast("cpu", torch.bfloat16):
        features, state = network(x)
    assert state[0][0].dtype == torch.float32
    assert_close(features, expected, rtol=0.05, atol=0.05)


def test_impossible_options() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"hidden_size": 0}, "hidden_size must"),
        ({"window": 0}, "window must"),
        ({"dropout": 1.5}, "dropout must"),
    ]
    for options, said in cases:
        with pytest.raises(ValueError, match=said):
            QRNN(**options)
        with pytest.raises(ValueError, match=said):
            QRNNBaseline(**{"input_size": 2, "hidden_size": 8, **options})
    network = lively()
    with pytest.raises(ValueError, match="lengths are not supported"):
        network(torch.randn(T, B, M, dtype=DOUBLE), lengths=[T] * B)
    with pytest.raises(ValueError, match=r"input must have the shape \(T, B, 3\), got \(11, 5, 4\)"):
        network(torch.randn(T, B, 4, dtype=DOUBLE))
    _, state = network(torch.randn(T, B, M, dtype=DOUBLE))
    with pytest.raises(ValueError, match="state must hold one of each of 2 layers, got 1"):
        network(torch.randn(T, B, M, dtype=DOUBLE), state[:1])
