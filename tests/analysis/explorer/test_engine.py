"""The page's JavaScript engine gives PyTorch's numbers, for every kind of network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import indrnn
from indrnn.analysis.explorer.program import Program, recurrent_states
from indrnn.networks import Dense, Head, LanguageModel, Plain, Residual
from indrnn.networks.config import Front, Kind, Pool
from indrnn.tasks.recipe import AnyNetwork

from ...conftest import ACTIVATIONS
from .programs import needs_node, run, settled

T, B, INPUTS = 11, 2, 2
NORMS: list[dict[str, Any]] = [
    {"norm": None},
    *({"norm": norm, "norm_place": place} for norm in ("batch", "layer", "rms") for place in ("before", "after")),
    {"norm": "step", "norm_steps": 9, "norm_place": "before"},
    {"norm": "step", "norm_steps": 50, "norm_place": "after"},
]
NETWORKS: dict[str, AnyNetwork] = {
    "plain": Plain(INPUTS, 7, 3),
    "two weights": Plain(INPUTS, 5, 2, weights_per_block=2),
    "residual": Residual(INPUTS, 6, 2, last_transition=5),
    "dense": Dense(INPUTS, 3, (2, 1)),
    "dense without a first layer": Dense(INPUTS, 2, (1, 2), first_layer=False, last_transition=4),
}


def sequences() -> Tensor:
    return torch.randn(T, B, INPUTS)


def by_prefix(model: nn.Module, x: Tensor) -> Tensor:
    """The answers after each step, (T, B, outputs), each by a call of its own."""
    with torch.no_grad():
        return torch.stack([model(x[: t + 1])[0] for t in range(len(x))])


def assert_same(
    models: Sequence[nn.Module],
    x: Tensor,
    expected: Sequence[Tensor],
    given: Callable[[Tensor], Tensor] = lambda x: x,
) -> None:
    """Whether the engine gives these answers, and torch's states of what the models are given."""
    for model, right, answers in zip(models, expected, run(models, x), strict=True):
        states = recurrent_states(model, given(x))
        for b, (answer, found) in enumerate(answers):
            torch.testing.assert_close(answer, right[:, b], rtol=1e-4, atol=1e-4)
            assert len(found) == len(states)
            for ours, theirs in zip(found, states, strict=True):
                torch.testing.assert_close(ours, theirs[:, b], rtol=1e-4, atol=1e-4)


@needs_node
@pytest.mark.parametrize("name", NETWORKS)
def test_answers_and_states_are_those_of_torch(name: str) -> None:
    x = sequences()
    configs = [replace(NETWORKS[name], **norm) for norm in NORMS]
    models = [settled(Head(config, 4).build(), x) for config in configs]
    assert_same(models, x, [by_prefix(model, x) for model in models])


@needs_node
def test_a_long_sequence() -> None:
    """784 steps, in which rounding adds up."""
    x = torch.rand(784, 2, 1) * 2 - 1
    models = [
        settled(Head(config, 10).build(), x)
        for config in (Plain(1, 16, 6, long_memory=True, sequence_length=784), Residual(1, 12, 3), Dense(1, 4, (2, 2)))
    ]
    for model, answers in zip(models, run(models, x), strict=True):
        with torch.no_grad():
            expected = model(x)[0]
        found = torch.stack([answer[-1] for answer, _ in answers])
        torch.testing.assert_close(found.softmax(1), expected.softmax(1), rtol=0, atol=1e-4)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@needs_node
def test_heads() -> None:
    x = sequences()
    models: list[nn.Module] = []
    expected = []
    for kind in get_args(Kind):
        for pool in get_args(Pool) if kind.startswith("Sequence") else ("last",):
            model = settled(Head(Plain(INPUTS, 7, 2), 3, kind, pool).build(), x)
            assert Program(model).plain["output"]["classes"] == kind.endswith("Classifier")
            models.append(model)
            with torch.no_grad():
                expected.append(by_prefix(model, x) if kind.startswith("Sequence") else model(x)[0])
    assert_same(models, x, expected)


@needs_node
def test_both_directions() -> None:
    x = sequences()
    heads = [Head(Plain(INPUTS, 5, 2, bidirectional=True), 3, pool=pool) for pool in get_args(Pool)]
    heads += [Head(Dense(INPUTS, 2, (2,), bidirectional=True), 3, "StepClassifier")]
    models: list[nn.Module] = [settled(head.build(), x) for head in heads]
    with torch.no_grad():
        answers = [model(x)[0] for model in models]
    assert_same(models, x, [answer if answer.dim() == 3 else answer.unsqueeze(0) for answer in answers])


@needs_node
def test_layers_and_every_activation() -> None:
    x = sequences()
    models: list[nn.Module] = []
    expected = []
    for nonlinearity in ACTIVATIONS:
        for bidirectional in (False, True):
            layer = indrnn.IndRNN(INPUTS, 6, 2, nonlinearity, bidirectional=bidirectional)
            model = indrnn.SequenceClassifier(layer, 3).eval()
            models.append(model)
            with torch.no_grad():
                expected.append(model(x)[0].unsqueeze(0) if bidirectional else by_prefix(model, x))
                torch.testing.assert_close(recurrent_states(model, x)[-1], layer(x)[0])
    assert_same(models, x, expected)


@needs_node
def test_language_models() -> None:
    """Vectors of tokens at first, and logits of the next by the same weight or an own one."""
    words = torch.randint(0, 9, (T, B))
    configs = (Plain(6, 6, 2), Residual(6, 6, 1, norm="step", norm_steps=4), Dense(6, 2, (2,), first_layer=False))
    models: list[nn.Module] = [
        settled(LanguageModel(config.build(), 9, tied=isinstance(config, Plain)), words) for config in configs
    ]
    with torch.no_grad():
        expected = [model(words)[0] for model in models]
    assert_same(models, words.unsqueeze(-1), expected, lambda _: words)


@needs_node
def test_a_neuron_is_left_out() -> None:
    """Against torch with the neuron's input weights, bias and recurrent weight at 0: its state is 0 then."""
    x = sequences()
    models = [settled(Head(config, 4).build(), x) for config in NETWORKS.values()]
    left: list[tuple[int, int] | None] = []
    units = []
    for model in models:
        network: Any = model.network
        every = network.recurrent_layers
        own = [unit for unit in every if unit.weight is not None]
        units.append(own[len(own) // 2])
        left.append((every.index(units[-1]), 1))
    found = run(models, x, left)
    for model, unit, neuron, answers in zip(models, units, left, found, strict=True):
        with torch.no_grad():
            unit.weight.weight[1], unit.bias[1], unit.weight_hh[1] = 0.0, 0.0, 0.0
        expected = by_prefix(model, x)
        assert neuron is not None
        for b, (answer, states) in enumerate(answers):
            torch.testing.assert_close(answer, expected[:, b], rtol=1e-4, atol=1e-4)
            assert not states[neuron[0]][:, 1].any()


def test_what_is_no_network_of_independent_neurons() -> None:
    with pytest.raises(ValueError, match="got SequenceClassifier of LSTM"):
        Program(indrnn.SequenceClassifier(nn.LSTM(2, 3), 4))
    with pytest.raises(ValueError, match="got Linear"):
        Program(nn.Linear(2, 3))


def test_where_inputs_come_from() -> None:
    """Every input weight has a source: the pieces are as many as there are columns."""
    for config in NETWORKS.values():
        model = Head(config, 4).build()
        layers = Program(model).plain["layers"]
        units: Any = model.network.recurrent_layers
        assert [layer["size"] for layer in layers] == [unit.size for unit in units]
        for layer in layers:
            columns = layer["size"] if layer["weight"] is None else layer["weight"]["shape"][1]
            assert sum(piece["size"] for piece in layer["sources"]) == columns
            for piece in layer["sources"]:
                assert "layer" not in piece or layers[piece["layer"]]["size"] == piece["size"]


@needs_node
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)], ids=["every step", "strided"])
def test_a_network_behind_convolutions(strides: tuple[int, int]) -> None:
    """As `indrnn fit` trains them: the layers see one step for every `stride` of the input."""
    x = sequences()
    inner = [Plain(None, 5, 2, bidirectional=both) for both in (False, True)]
    fronts = [Front(network, INPUTS, (4, 3), (3, 2), strides) for network in inner]
    models = [settled(Head(front.sized(INPUTS, T), 4).build(), x) for front in fronts]
    length = fronts[0].steps(T)
    for model, answers in zip(models, run(models, x), strict=True):
        with torch.no_grad():
            right = model(x)[0]
        states = recurrent_states(model, x)
        for b, (answer, found) in enumerate(answers):
            torch.testing.assert_close(answer[-1], right[b], rtol=1e-4, atol=1e-4)
            for ours, theirs in zip(found, states, strict=True):
                assert len(ours) == length
                torch.testing.assert_close(ours, theirs[:, b], rtol=1e-4, atol=1e-4)
