"""ResidualIndRNN: shortcuts around blocks of norm, recurrence, Weight; and a hundred layers of it train."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from indrnn import attach_constraint, parameter_groups
from indrnn.networks import ResidualIndRNN, SequenceClassifier
from tests.networks.networks import NORMS, Composition, M, assert_composed, lively, shares_dropped

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.mark.parametrize("operations", [2, 3])
@pytest.mark.parametrize("norm", NORMS)
def test_equals_composition(norm: str, operations: int) -> None:
    network = ResidualIndRNN(M, 9, 2, **NORMS[norm], operations=operations, dtype=torch.float64)

    def compose(layers: Composition, x: Tensor) -> Tensor:
        x = layers.weight(x)
        for _ in range(2):
            residual = x
            for _ in range(operations):
                residual = layers.weight(layers.recurrent(residual))
            x = x + residual
        return layers.recurrent(x)

    assert_composed(lively(network), compose)


# The paper's networks of 12, 21 and 100 layers.
@pytest.mark.parametrize(("blocks", "layers"), [(5, 11), (10, 21), (49, 99)])
def test_depth(blocks: int, layers: int) -> None:
    network = ResidualIndRNN(M, 2, blocks)
    assert len(network.recurrent_layers) == layers
    assert sum(isinstance(module, torch.nn.Linear) for module in network.modules()) == layers
    assert network.extra_repr() == f"recurrent_layers={layers}, blocks={blocks} of 2"
    assert network.extra_repr() in repr(network)


def test_depth_of_three_operations() -> None:
    network = ResidualIndRNN(M, 2, 4, operations=3)
    assert len(network.recurrent_layers) == 13
    assert network.extra_repr() == "recurrent_layers=13, blocks=4 of 3"


def marks(batch: int, generator: torch.Generator, steps: int = 20) -> tuple[Tensor, Tensor]:
    """Noise, and two marks at random steps; whether the first kind of mark comes first."""
    x = torch.zeros(steps, batch, 3)
    x[..., 0] = torch.rand(steps, batch, generator=generator) - 0.5
    first, second = torch.rand(steps, batch, generator=generator).argsort(0)[:2]
    samples = torch.arange(batch)
    x[first, samples, 1] = 1
    x[second, samples, 2] = 1
    return x, (first < second).long()


def loss_after_training(blocks: int, steps: int = 250) -> float:
    """The loss on 1000 sequences that were not trained on."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    network = ResidualIndRNN(3, 32, blocks, norm_place="before", sequence_length=20, long_memory=True)
    model = SequenceClassifier(network, 2)
    optimizer = torch.optim.Adam(parameter_groups(model, 1e-4), lr=3e-3)
    attach_constraint(optimizer, model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
    for _ in range(steps):
        x, which = marks(64, generator)
        loss = F.cross_entropy(model(x)[0], which)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    x, which = marks(1000, generator)
    with torch.no_grad():
        return F.cross_entropy(model.eval()(x)[0], which).item()


@pytest.mark.slow
def test_a_hundred_layers_train() -> None:
    # Chance is ln 2 = 0.69. With these seeds and steps the two reach 0.002 and 0.003, with others 0.0004 to 0.003:
    # below 0.01 the task is solved, and what differs is noise. As many plain layers stay at 0.70.
    assert loss_after_training(blocks=5) < 0.01
    assert loss_after_training(blocks=49) < 0.01


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dropout": 0.5}, [0.5] * 5),
        ({"dropout": 0.5, "last_dropout": 0.25}, [0.5] * 4 + [0.25]),
        ({"dropout": 1.0, "last_dropout": 0.0}, [1.0] * 4 + [0.0]),
        ({"last_dropout": 1.0}, [0.0] * 4 + [1.0]),
        ({}, [0.0] * 5),
    ],
    ids=str,
)
def test_dropout(options: dict[str, Any], expected: list[float]) -> None:
    shares = shares_dropped(ResidualIndRNN(M, 101, 2, norm=None, **options))
    # 9999 numbers: 0.02 is four standard deviations
    assert shares == pytest.approx(expected, abs=0.02)
    assert all(share == p for share, p in zip(shares, expected, strict=True) if p in (0, 1))


BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
    ({"hidden_size": 0}, ValueError, "hidden_size must be at least 1, got 0"),
    ({"blocks": 2.0}, TypeError, "blocks must be an integer, got float"),
    ({"operations": 0}, ValueError, "operations must be at least 1, got 0"),
    ({"dropout": -1}, ValueError, r"dropout must be a number in \[0, 1\], got -1"),
    ({"last_dropout": 2.0}, ValueError, r"last_dropout must be a number in \[0, 1\], got 2\.0"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_ARGUMENTS, ids=[case[-1] for case in BAD_ARGUMENTS])
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ResidualIndRNN(**{"input_size": M, "hidden_size": 9, "blocks": 2, **options})
