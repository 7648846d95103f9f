"""gather_statistics: means over batches for the weights of the moment, and nothing else is changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import DenseIndRNN, PlainIndRNN, ResidualIndRNN, SequenceClassifier, gather_statistics
from indrnn.networks import State

T, B, M = 11, 7, 3
EXACT: dict[str, Any] = {"rtol": 0, "atol": 0}
NETWORKS: dict[str, Any] = {
    "plain": lambda **o: PlainIndRNN(M, 9, 2, dropout=0.5, **o),
    "residual": lambda **o: ResidualIndRNN(M, 9, 2, dropout=0.5, **o),
    "dense": lambda **o: DenseIndRNN(M, 3, (1, 1), dense_dropout=0.5, **o),
    "torch's own": lambda **o: nn.Sequential(nn.Linear(M, 5), nn.Dropout(0.5), nn.BatchNorm1d(T), nn.Dropout(0.5)),
}

pytestmark = pytest.mark.usefixtures("_one_thread")
networks = pytest.mark.parametrize("name", NETWORKS)


def batches(name: str, number: int = 3) -> list[Tensor]:
    return [torch.randn(B, T, M) if "torch" in name else torch.randn(T, B, M) for _ in range(number)]


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var"))}


@networks
def test_they_are_the_means_over_the_batches_without_dropout(name: str) -> None:
    model = NETWORKS[name]()
    given = batches(name)
    by_hand = copy.deepcopy(model).eval()
    norms = [m for m in by_hand.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    found = []
    for x in given:
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
        with torch.no_grad():
            by_hand(x)
        found.append(statistics(by_hand))
    gather_statistics(model, iter(given))
    assert norms
    for key, value in statistics(model).items():
        assert_close(value, torch.stack([each[key] for each in found]).mean(0), rtol=1e-5, atol=1e-6)


@networks
def test_nothing_else_is_changed(name: str) -> None:
    model = NETWORKS[name]()
    model(batches(name)[0])
    for module in list(model.modules())[::2]:
        module.training = False
    modes = [module.training for module in model.modules()]
    momenta = [getattr(module, "momentum", None) for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    gather_statistics(model, batches_of_generator(name))
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model.modules()] == modes
    assert [getattr(module, "momentum", None) for module in model.modules()] == momenta
    for key, value in model.state_dict().items():
        same = torch.equal(value, before[key])
        assert same != key.endswith(("running_mean", "running_var")), key
    assert all(p.grad is None for p in model.parameters())


def batches_of_generator(name: str) -> Iterator[Tensor]:
    numbers = torch.Generator().manual_seed(4)
    for _ in range(3):
        yield torch.randn((B, T, M) if "torch" in name else (T, B, M), generator=numbers)


def test_what_fails_leaves_everything_as_it_was() -> None:
    model = PlainIndRNN(M, 9, 2)
    model(torch.randn(T, B, M))
    before = copy.deepcopy(model.state_dict())
    for given, error in (
        ([torch.randn(T, B, M), torch.randn(T, B, M + 1)], "input must have the shape"),
        ([], "batches"),
    ):
        with pytest.raises(ValueError, match=error):
            gather_statistics(model, given)
        assert_close(model.state_dict(), before, **EXACT)
        assert all(module.training for module in model.modules())
        assert [unit.norm.momentum for unit in model.recurrent_layers] == [0.1, 0.1]  # type: ignore[union-attr]


def test_a_model_without_batch_norm_is_left_alone() -> None:
    model = PlainIndRNN(M, 9, 2, norm="layer")

    class Never:
        def __iter__(self) -> Iterator[Tensor]:
            raise AssertionError

    gather_statistics(model, Never())


def test_batches_may_be_tuples_arguments_by_name_or_called() -> None:
    model = SequenceClassifier(PlainIndRNN(M, 9, 2), 4)
    given, lengths = batches("plain"), torch.tensor([11, 3, 4, 5, 6, 7, 8])
    results = []
    for form in ("tensor", "tuple", "call"):
        other = copy.deepcopy(model)
        if form == "call":
            gather_statistics(other, given, call=lambda model, x: model(x)[0].sum())
        else:
            gather_statistics(other, [(x, "target") if form == "tuple" else x for x in given])
        results.append(statistics(other))
    assert_close(results[1], results[0], **EXACT)
    assert_close(results[2], results[0], **EXACT)
    gather_statistics(model, [{"input": x, "lengths": lengths} for x in given])
    assert not torch.equal(next(iter(statistics(model).values())), next(iter(results[0].values())))


def test_a_carried_state_is_copied_and_goes_from_batch_to_batch() -> None:
    model = PlainIndRNN(M, 9, 2, nonlinearity="tanh")
    x = torch.randn(2 * T, B, M)
    _, state = copy.deepcopy(model)(torch.randn(T, B, M))
    assert isinstance(state, State)
    kept = State(tuple(h.detach().clone() for h in state.h), state.position.clone())
    other = copy.deepcopy(model)
    gather_statistics(model, [x[:T], x[T:]], state=state)
    assert_close(state.detach(), kept, **EXACT)
    other.eval()
    found, carried = [], kept
    for piece in (x[:T], x[T:]):
        for unit in other.recurrent_layers:
            assert unit.norm is not None
            unit.norm.train().momentum = 1.0  # type: ignore[assignment]
        with torch.no_grad():
            _, carried = other(piece, carried)
        found.append(statistics(other))
    for key, value in statistics(model).items():
        assert_close(value, (found[0][key] + found[1][key]) / 2)
