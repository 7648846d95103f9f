"""PlainIndRNN: blocks of Weight, norm, recurrence, norm, dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from indrnn.networks import PlainIndRNN
from tests.networks.networks import NORMS, Composition, M, T, assert_composed, lively, shares_dropped

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.mark.parametrize("weights_per_block", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
def test_equals_composition(norm: str, weights_per_block: int) -> None:
    network = PlainIndRNN(M, 9, 3, **NORMS[norm], weights_per_block=weights_per_block, dtype=torch.float64)

    def compose(layers: Composition, x: Tensor) -> Tensor:
        for _ in range(3):
            for _ in range(weights_per_block - 1):
                x = torch.relu(layers.weight(x))
            x = layers.recurrent(layers.weight(x))
        return x

    assert_composed(lively(network), compose)


@pytest.mark.parametrize("backend", ["reference", None])
def test_activation_and_backend_reach_the_recurrence(backend: str | None, activation: str) -> None:
    network = PlainIndRNN(M, 9, 2, nonlinearity=activation, backend=backend, dtype=torch.float64)

    def compose(layers: Composition, x: Tensor) -> Tensor:
        return layers.recurrent(layers.weight(layers.recurrent(layers.weight(x))))

    assert_composed(lively(network), compose)


@pytest.mark.parametrize(
    ("dropout", "expected"),
    [(0.5, [0.5, 0.5, 0.5]), ([0.0, 0.75, 0.25], [0.0, 0.75, 0.25]), ((1.0, 0, 1), [1.0, 0.0, 1.0]), (0, [0.0] * 3)],
    ids=str,
)
def test_dropout_of_each_block(dropout: Any, expected: list[float]) -> None:
    shares = shares_dropped(PlainIndRNN(M, 101, 3, norm=None, dropout=dropout))
    # 9999 numbers: 0.02 is four standard deviations
    assert shares == pytest.approx(expected, abs=0.02)
    assert all(share == p for share, p in zip(shares, expected, strict=True) if p in (0, 1))


@pytest.mark.parametrize("norm", ["norm before", "norm after"])
def test_a_mean_far_above_the_deviation(norm: str) -> None:
    network = PlainIndRNN(M, 7, 1, nonlinearity="identity", **NORMS[norm])
    with torch.no_grad():
        network.recurrent_layers[0].weight_hh.zero_()
        for weight in network.parameters():
            if weight.dim() == 2:
                torch.nn.init.eye_(weight[:M])
                weight[M:].fill_(0.5)
        network.get_parameter("blocks.0.unit.bias").fill_(1e4)
    exact = network.config.build(dtype=torch.float64)
    exact.load_state_dict(network.state_dict())
    x = torch.randn(T, 29, M)
    # The numbers around 10^4 are themselves rounded to within 0.0005 deviations, and their mean so again.
    torch.testing.assert_close(network(x)[0].double(), exact(x.double())[0], rtol=0, atol=3e-3)
    for name, buffer in network.named_buffers():
        torch.testing.assert_close(buffer.double(), exact.get_buffer(name).double(), rtol=1e-4, atol=0)


BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
    ({"hidden_size": 1.0}, TypeError, "hidden_size must be an integer, got float"),
    ({"layers": 0}, ValueError, "layers must be at least 1, got 0"),
    ({"weights_per_block": 0}, ValueError, "weights_per_block must be at least 1, got 0"),
    ({"dropout": 1.5}, ValueError, r"dropout must be a number in \[0, 1\], got 1\.5"),
    ({"dropout": [0.1, -0.1]}, ValueError, r"dropout must be a number in \[0, 1\], got -0\.1"),
    ({"dropout": [0.1] * 3}, ValueError, "dropout must be one number or layers = 2 of them, got 3"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_ARGUMENTS, ids=[case[-1] for case in BAD_ARGUMENTS])
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PlainIndRNN(**{"input_size": M, "hidden_size": 9, "layers": 2, **options})
