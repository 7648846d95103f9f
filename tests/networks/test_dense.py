"""DenseIndRNN: each layer reads all before it; the paper's sizes, and a dropout for each place it names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from indrnn.networks import DenseIndRNN, SequenceClassifier
from tests.networks.networks import NORMS, Composition, M, assert_composed, lively, shares_dropped

pytestmark = pytest.mark.usefixtures("_one_thread")


# The networks of the paper: pixel by pixel MNIST, and NTU RGB+D.
@pytest.mark.parametrize(
    ("input_size", "growth_rate", "classes", "parameters"), [(1, 16, 10, 256_514), (150, 48, 60, 2_314_428)]
)
def test_parameter_counts_of_the_paper(input_size: int, growth_rate: int, classes: int, parameters: int) -> None:
    network = DenseIndRNN(input_size, growth_rate)
    model = SequenceClassifier(network, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(network.recurrent_layers) == 40
    assert network.extra_repr() == "recurrent_layers=40"


def test_every_recurrent_layer_has_u_bias_and_affine_norm() -> None:
    network = DenseIndRNN(M, 2)
    weights = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    assert len(weights) == 40
    for weight, layer in zip(weights, network.recurrent_layers, strict=True):
        assert layer.norm is not None
        sizes = [layer.weight_hh, layer.bias, layer.norm.weight, layer.norm.bias]
        assert all(isinstance(p, Tensor) and p.shape == (weight.out_features,) for p in sizes)


def test_sizes() -> None:
    k = 5
    network = DenseIndRNN(M, k, (3, 2))
    sizes = [layer.weight_hh.numel() for layer in network.recurrent_layers]
    # 6k + 3k = 45, to 22; and 2k = 32, to 16
    assert sizes == [6 * k, *[4 * k, k] * 3, 22, *[4 * k, k] * 2, 16]
    assert network.output_size == 16
    inputs = [module.in_features for module in network.modules() if isinstance(module, torch.nn.Linear)]
    assert inputs == [M, 30, 20, 35, 20, 40, 20, 45, 22, 20, 27, 20, 32]


def compose(layers: Composition, x: Tensor, blocks: tuple[int, ...], first_layer: bool) -> Tensor:
    if first_layer:
        x = layers.recurrent(layers.weight(x))
    for dense_layers in blocks:
        features = [x]
        for _ in range(dense_layers):
            bottleneck = layers.recurrent(layers.weight(torch.cat(features, dim=-1)))
            features.append(layers.recurrent(layers.weight(bottleneck)))
        x = layers.recurrent(layers.weight(torch.cat(features, dim=-1)))
    return x


@pytest.mark.parametrize("first_layer", [True, False], ids=["first layer", "no first layer"])
@pytest.mark.parametrize("norm", NORMS)
def test_equals_composition(norm: str, first_layer: bool) -> None:
    blocks = (2, 1)
    network = DenseIndRNN(M, 3, blocks, **NORMS[norm], first_layer=first_layer, last_transition=8, dtype=torch.float64)
    assert_composed(lively(network), lambda layers, x: compose(layers, x, blocks, first_layer))


def test_no_first_layer_reads_an_embedding() -> None:
    network = DenseIndRNN(600, 4, (2, 1), first_layer=False, last_transition=600)
    assert len(network.recurrent_layers) == 8
    assert network.output_size == 600
    assert [layer.weight_hh.numel() for layer in network.recurrent_layers] == [16, 4, 16, 4, 304, 16, 4, 600]
    features, _ = network(torch.nn.Embedding(23, 600)(torch.randint(23, (7, 3))))
    assert features.shape == (7, 3, 600)


PLACES: dict[str, list[int]] = {
    # first, [bottleneck, dense] · 2, transition, [bottleneck, dense], last transition
    "first": [0],
    "bottleneck": [1, 3, 6],
    "dense": [2, 4, 7],
    "transition": [5, 8],
    "last": [8],
}


@pytest.mark.parametrize("p", [1.0, 0.5])
@pytest.mark.parametrize("place", PLACES)
def test_dropout_acts_at_its_place_alone(place: str, p: float) -> None:
    network = DenseIndRNN(M, 40, (2, 1), norm=None, **{f"{place}_dropout": p})  # type: ignore[arg-type]
    shares = shares_dropped(network)
    for i, share in enumerate(shares):
        # at least 99 · 40 numbers: 0.04 is more than four standard deviations
        assert share == (0.0 if i not in PLACES[place] else pytest.approx(p, abs=0.04 if p < 1 else 0)), (i, shares)


def test_last_dropout_takes_the_place_of_the_transitions() -> None:
    shares = shares_dropped(DenseIndRNN(M, 4, (2, 1), norm=None, transition_dropout=1.0, last_dropout=0.0))
    assert shares == [0.0] * 5 + [1.0] + [0.0] * 3


def test_dropout_of_one_block() -> None:
    # The only transition is the last.
    assert shares_dropped(DenseIndRNN(M, 4, (1,), norm=None, transition_dropout=1.0)) == [0.0, 0.0, 0.0, 1.0]


BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
    ({"growth_rate": 0}, ValueError, "growth_rate must be at least 1, got 0"),
    ({"blocks": ()}, TypeError, "blocks must be the numbers of dense layers in each block, at least one"),
    ({"blocks": 8}, TypeError, "blocks must be the numbers of dense layers in each block"),
    ({"blocks": (2, 0)}, ValueError, "blocks must be at least 1, got 0"),
    ({"blocks": (2.0,)}, TypeError, "blocks must be an integer, got float"),
    ({"last_transition": 0}, ValueError, "last_transition must be at least 1, got 0"),
    ({"dropout": 0.5}, TypeError, "DenseIndRNN has no option dropout; it has backend, .*first_dropout"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_ARGUMENTS, ids=[case[-1] for case in BAD_ARGUMENTS])
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DenseIndRNN(**{"input_size": M, "growth_rate": 3, "blocks": (2, 1), **options})


@pytest.mark.parametrize("place", PLACES)
def test_bad_dropout_is_named(place: str) -> None:
    with pytest.raises(ValueError, match=rf"{place}_dropout must be a number in \[0, 1\], got 1\.5"):
        DenseIndRNN(M, 3, (1,), **{f"{place}_dropout": 1.5})  # type: ignore[arg-type]
