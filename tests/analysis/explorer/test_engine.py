"""The page's JavaScript engine gives PyTorch's numbers, for every kind of network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import indrnn
from indrnn.analysis.explorer.program import program_of, recurrent_states
from indrnn.models import Dense, Head, Plain, Residual

from .programs import needs_node, run, settled

T, B, INPUTS = 23, 3, 2
NORMS: list[dict[str, Any]] = [
    {"norm": None},
    *({"norm": norm, "norm_place": place} for norm in ("batch", "layer", "rms") for place in ("before", "after")),
    {"norm": "step", "norm_steps": 9, "norm_place": "before"},
    {"norm": "step", "norm_steps": 50, "norm_place": "after", "norm_rows": "document"},
]
NETWORKS = {
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


def assert_same(model: nn.Module, x: Tensor, expected: Tensor) -> None:
    states = recurrent_states(model, x)
    for b, (answers, found) in enumerate(run(model, x)):
        torch.testing.assert_close(answers, expected[:, b], rtol=1e-4, atol=1e-4)
        assert len(found) == len(states)
        for ours, theirs in zip(found, states, strict=True):
            torch.testing.assert_close(ours, theirs[:, b], rtol=1e-4, atol=1e-4)


@needs_node
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: "-".join(str(value) for value in norm.values()))
def test_answers_and_states_are_those_of_torch(name: str, norm: dict[str, Any]) -> None:
    config = NETWORKS[name]
    config = type(config)(**{**vars(config), **norm})
    x = sequences()
    model = settled(Head(config, 4).build(), x)
    assert_same(model, x, by_prefix(model, x))


@needs_node
@pytest.mark.parametrize("kind", ["SequenceClassifier", "SequenceRegressor"])
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_heads_of_sequences(kind: Any, pool: Any) -> None:
    x = sequences()
    model = settled(Head(Plain(INPUTS, 7, 2), 3, kind, pool).build(), x)
    assert_same(model, x, by_prefix(model, x))
    assert program_of(model).output["classes"] == (kind == "SequenceClassifier")


@needs_node
@pytest.mark.parametrize("kind", ["StepClassifier", "StepRegressor"])
def test_heads_of_steps(kind: Any) -> None:
    x = sequences()
    model = settled(Head(Plain(INPUTS, 7, 2), 3, kind).build(), x)
    with torch.no_grad():
        expected = model(x)[0]
    assert_same(model, x, expected)


@needs_node
@pytest.mark.parametrize("kind", ["SequenceClassifier", "StepClassifier"])
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_both_directions(kind: Any, pool: Any) -> None:
    x = sequences()
    model = settled(Head(Plain(INPUTS, 5, 2, bidirectional=True), 3, kind, pool).build(), x)
    with torch.no_grad():
        answer = model(x)[0]
    assert_same(model, x, answer if kind == "StepClassifier" else answer.unsqueeze(0))


@needs_node
@pytest.mark.parametrize("nonlinearity", ["relu", "tanh", "sigmoid", "identity"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_layer_and_every_activation(nonlinearity: str, bidirectional: bool) -> None:
    x = sequences()
    layer = indrnn.IndRNN(INPUTS, 6, 2, nonlinearity, bidirectional=bidirectional)
    model = indrnn.SequenceClassifier(layer, 3).eval()
    with torch.no_grad():
        answer = model(x)[0]
        torch.testing.assert_close(recurrent_states(model, x)[-1], layer(x)[0])
    assert_same(model, x, answer.unsqueeze(0) if bidirectional else by_prefix(model, x))


@needs_node
@pytest.mark.parametrize("name", NETWORKS)
def test_a_neuron_is_left_out(name: str) -> None:
    """Against torch with the neuron's input weights, bias and recurrent weight at 0: its state is 0 then."""
    x = sequences()
    config = NETWORKS[name]
    config = type(config)(**{**vars(config), "norm": "batch", "norm_place": "after"})
    model = settled(Head(config, 4).build(), x)
    units = [unit for unit in model.network.recurrent_layers if unit.weight is not None]  # type: ignore[union-attr,operator]
    unit = units[len(units) // 2]
    layer = model.network.recurrent_layers.index(unit)  # type: ignore[union-attr,operator]
    found = run(model, x, (layer, 1))
    with torch.no_grad():
        unit.weight.weight[1], unit.bias[1], unit.weight_hh[1] = 0.0, 0.0, 0.0
    expected = by_prefix(model, x)
    for b, (answers, states) in enumerate(found):
        torch.testing.assert_close(answers, expected[:, b], rtol=1e-4, atol=1e-4)
        assert not states[layer][:, 1].any()


def test_what_is_no_network_of_independent_neurons() -> None:
    with pytest.raises(ValueError, match="got SequenceClassifier of LSTM"):
        program_of(indrnn.SequenceClassifier(nn.LSTM(2, 3), 4))
    with pytest.raises(ValueError, match="got Linear"):
        program_of(nn.Linear(2, 3))


def test_where_inputs_come_from() -> None:
    """Every input weight has a source: the pieces are as many as there are columns."""
    for config in NETWORKS.values():
        model = Head(config, 4).build()
        layers = program_of(model).layers
        assert [each.size for each in layers] == [unit.size for unit in model.network.recurrent_layers]  # type: ignore[union-attr,operator]
        for layer in layers:
            columns = layer.size if layer.weight is None else layer.weight["shape"][1]
            assert sum(piece["size"] for piece in layer.sources) == columns
            for piece in layer.sources:
                assert "layer" not in piece or layers[piece["layer"]].size == piece["size"]
