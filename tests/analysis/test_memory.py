"""Memory of neurons: against a walk by hand, autograd through the network, and the formula."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close

import indrnn
from indrnn.analysis import memory as analysis
from indrnn.analysis.memory import Memory, group_of, memory, ranges, steps_of, weight_of
from indrnn.analysis.neurons import layers_of
from indrnn.tasks.table import Results

T, B, F = 23, 5, 3

MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "plain": (lambda: indrnn.PlainIndRNN(F, 7, 3), 3),
    "plain, norm before": (lambda: indrnn.PlainIndRNN(F, 7, 2, norm_place="before"), 2),
    "plain, no norm": (lambda: indrnn.PlainIndRNN(F, 7, 2, norm=None, dropout=0.5), 2),
    "residual": (lambda: indrnn.ResidualIndRNN(F, 7, 2), 5),
    "dense": (lambda: indrnn.DenseIndRNN(F, 2, (2, 1)), 9),
    "both ways": (lambda: indrnn.PlainIndRNN(F, 8, 2, bidirectional=True), 2),
    "head": (lambda: indrnn.SequenceClassifier(indrnn.PlainIndRNN(F, 7, 2), 4), 2),
    "layers": (lambda: indrnn.IndRNN(F, 7, 11), 11),
    "layers, both ways": (lambda: indrnn.IndRNN(F, 7, 2, bidirectional=True), 4),
    "layers, recomputed": (lambda: indrnn.IndRNN(F, 7, 2, recompute=4), 2),
    "tanh": (lambda: indrnn.IndRNN(F, 7, 1, "tanh"), 1),
}


def slow_memory(u: Tensor, h: Tensor, epsilon: float, derivative: Callable[[Tensor], Tensor]) -> Tensor:
    """Of one layer, whose states are (T, B, N), by hand: the steps back to which every product is large enough."""
    u, h = u.detach(), h.detach()
    steps = torch.zeros(h.shape[1:], dtype=torch.float64)
    for b in range(h.shape[1]):
        for n in range(h.shape[2]):
            influence = 1.0
            for t in range(len(h) - 1, 0, -1):  # from step t back into t - 1
                influence *= abs(float(u[n])) * float(derivative(h[t, b, n]))
                if influence < epsilon:
                    break
                steps[b, n] += 1
    return steps


@pytest.mark.parametrize("u", [1e-6, 0.3, -0.5, 0.9, 0.999])
@pytest.mark.parametrize("epsilon", [0.5, 0.2, 1e-3])
def test_steps_are_where_the_power_falls_below_epsilon(u: float, epsilon: float) -> None:
    steps = float(steps_of(torch.tensor([u]), epsilon)[0])
    assert abs(u) ** math.floor(steps) >= epsilon > abs(u) ** (math.floor(steps) + 1)
    assert weight_of(steps, epsilon) == pytest.approx(abs(u), rel=1e-6)


def test_weights_without_an_end_and_without_memory() -> None:
    assert steps_of(torch.tensor([0.0, 1.0, -1.0, 1.5])).tolist() == [0.0, math.inf, math.inf, math.inf]


def test_the_table_of_weight_and_memory() -> None:
    table = ranges(100, epsilon=0.2, gamma=2.0)
    assert table["long"][0] == table["short"][1]
    assert table["long"][0] ** 100 == pytest.approx(0.2)
    assert table["not exploding"][1] ** 100 == pytest.approx(2.0)
    assert (table["short"][0], table["long"][1]) == (0.0, math.inf)


def test_groups_are_relative_to_the_sequence() -> None:
    assert [group_of(steps, 100) for steps in (0, 9.9, 10, 49, 50, math.inf)] == [
        *("short", "short", "middle", "middle", "long", "long")
    ]
    assert [group_of(steps, 20, (0.25, 1.0)) for steps in (4, 5, 19, 20)] == ["short", "middle", "middle", "long"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_independent_neurons(name: str) -> None:
    build, layers = MODELS[name]
    model = build().train()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    found = memory(model, 50, run=lambda: model(torch.randn(T, B, F)))
    assert len(found.layers) == layers
    names = dict(model.named_parameters())
    for layer in found.layers:
        assert layer.u == names[layer.name].double().flatten().tolist()
        assert layer.difference is not None
        assert layer.difference < 1e-5
        assert layer.measured is not None
        assert layer.active is not None
        assert len(layer.measured) == len(layer.active) == len(layer.u)
    assert found.sequences == B
    assert model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_measured_memory_is_that_of_a_walk_by_hand() -> None:
    model = indrnn.IndRNN(F, 7).double()
    x = torch.randn(T, B, F, dtype=torch.float64) + 0.5
    (layer,) = memory(model, run=lambda: model(x), length=T).layers
    h, _ = model(x)
    by_hand = slow_memory(model.weight_hh_l0, h, 0.2, lambda value: (value > 0).double())
    assert layer.measured is not None
    assert max(layer.measured) > 0
    assert_close(torch.tensor(layer.measured), by_hand.mean(0).float())
    assert layer.longest == by_hand.amax(0).tolist()
    assert_close(torch.tensor(layer.active), (h > 0).double().mean((0, 1)).float())


def test_of_tanh_by_hand() -> None:
    model = indrnn.IndRNN(F, 4, 1, "tanh").double()
    x = torch.randn(T, B, F, dtype=torch.float64)
    (layer,) = memory(model, run=lambda: model(x), length=T, epsilon=0.01).layers
    h, _ = model(x)
    by_hand = slow_memory(model.weight_hh_l0, h, 0.01, lambda value: 1 - value**2)
    assert_close(torch.tensor(layer.measured), by_hand.mean(0).float())
    assert_close(torch.tensor(layer.active), (1 - h**2).mean((0, 1)).float())


def test_the_gradient_is_autograds_through_the_trained_unit() -> None:
    """∂h_T/∂h_t of a unit in the middle of a network, its state at t disturbed through the state that is passed in."""
    network = indrnn.PlainIndRNN(F, 6, 3, norm="layer").double().eval()
    x = torch.randn(T, 1, F, dtype=torch.float64) + 0.5
    reference = memory(network, T, epsilon=0.2, run=lambda: network(x))
    for place, layer in enumerate(reference.layers):
        memories = torch.zeros(6)
        running = torch.ones(6, dtype=torch.bool)
        for back in range(1, T):
            _, before = network(x[: T - back])
            states = [h.detach().clone() for h in before.h]
            states[place].requires_grad_()
            _, after = network(x[T - back :], indrnn.State(tuple(states), before.position))
            (gradient,) = torch.autograd.grad(after.h[place].sum(), states[place])
            running &= gradient[0].abs() >= 0.2
            memories += running
        assert layer.longest == memories.tolist(), layer.name


def test_sequences_of_several_lengths_are_measured_from_their_ends() -> None:
    model = indrnn.IndRNN(F, 7)
    x, lengths = torch.randn(T, 3, F) + 0.5, [T, 9, 0]
    (whole,) = memory(model, T, run=lambda: model(x, lengths=lengths)).layers
    parts = [memory(model, T, run=partial(model, x[:n, i])).layers[0] for i, n in ((0, T), (1, 9))]
    for name in ("measured", "longest"):
        found = torch.tensor([getattr(part, name) for part in parts])
        expected = found.mean(0) if name == "measured" else found.amax(0)
        assert_close(torch.tensor(getattr(whole, name)), expected)
    active = torch.tensor([part.active for part in parts])
    assert_close(torch.tensor(whole.active), (T * active[0] + 9 * active[1]) / (T + 9))


def test_a_reset_ends_the_memory() -> None:
    model = indrnn.IndRNN(F, 7, nonlinearity="identity", gamma=None)
    nn.init.constant_(model.weight_hh_l0, 0.99)
    resets = torch.zeros(T, B, dtype=torch.bool)
    resets[T - 6] = True
    (layer,) = memory(model, T, run=lambda: model(torch.randn(T, B, F), resets=resets)).layers
    assert layer.measured == [5.0] * 7
    assert layer.difference is not None
    assert layer.difference < 1e-6


def test_the_reverse_direction_is_measured_from_the_first_step() -> None:
    model = indrnn.IndRNN(F, 7, bidirectional=True)
    x = torch.randn(T, B, F) + 0.5
    forward, reverse = memory(model, T, run=lambda: model(x)).layers
    alone = indrnn.IndRNN(F, 7)
    with torch.no_grad():
        for name, value in alone.named_parameters():
            value.copy_(getattr(model, f"{name}_reverse"))
    (expected,) = memory(alone, T, run=lambda: alone(x.flip(0))).layers
    assert reverse.measured == expected.measured
    assert reverse.measured != forward.measured


def test_a_channel_of_a_convolution_is_the_mean_over_its_positions() -> None:
    model = indrnn.ConvIndRNN1d(2, 4, 3)
    x = torch.randn(T, B, 2, 8) + 0.5
    (layer,) = memory(model, T, run=lambda: model(x)).layers
    h, _ = model(x)  # (T, B, 4, 6)
    assert_close(torch.tensor(layer.active), (h > 0).float().mean((0, 1, 3)))
    by_hand = [slow_memory(model.weight_hh, h[..., at], 0.2, lambda value: (value > 0).double()) for at in range(6)]
    assert_close(torch.tensor(layer.measured), torch.stack(by_hand).mean((0, 1)).float())


def test_weights_that_are_computed_are_taken_as_they_are_used() -> None:
    pruned = indrnn.IndRNN(F, 8, 3)
    prune.random_unstructured(pruned, "weight_hh_l0", 0.5)
    assert [layer.weight for layer in layers_of(pruned)] == ["weight_hh_l0", "weight_hh_l1", "weight_hh_l2"]
    assert memory(pruned, T).layers[0].u == pruned.weight_hh_l0.double().tolist()
    assert 0.0 in memory(pruned, T).layers[0].steps
    other = indrnn.IndRNN(F, 8, gamma=None)
    parametrize.register_parametrization(other, "weight_hh_l0", nn.Tanh())
    assert memory(other, T).layers[0].u == other.weight_hh_l0.double().tolist()


def test_the_length_is_what_the_model_was_built_for_else_what_it_sees() -> None:
    built = indrnn.IndRNN(F, 7, sequence_length=99)
    assert memory(built).length == 99
    free = indrnn.IndRNN(F, 7)
    assert memory(free, run=lambda: free(torch.randn(T, B, F))).length == T
    with pytest.raises(ValueError, match="length is needed"):
        memory(free)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0}, "epsilon must be a number between 0 and 1, got 0"),
        ({"epsilon": 1.0}, "epsilon must"),
        ({"epsilon": "a"}, "epsilon must"),
        ({"length": 0}, "length must be a positive whole number or None, got 0"),
        ({"length": True}, "length must"),
        ({"bounds": (0.5, 0.1)}, "bounds must be two positive numbers"),
        ({"bounds": (0.5,)}, "bounds must"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        memory(indrnn.IndRNN(F, 7), **{"length": T, **arguments})  # type: ignore[arg-type]


def test_a_model_without_independent_neurons() -> None:
    with pytest.raises(ValueError, match="model must hold independent recurrent weights, got LSTM"):
        memory(nn.LSTM(2, 3), T)
    with pytest.raises(TypeError, match="model must be a module, got str"):
        memory("run")  # type: ignore[arg-type]


def test_a_cell_has_memory_and_nothing_measured() -> None:
    cell = indrnn.IndRNNCell(F, 7)
    (layer,) = memory(cell, T, run=lambda: cell(torch.randn(B, F))).layers
    assert len(layer.steps) == 7
    assert layer.measured is None


@pytest.mark.parametrize("measured", [True, False])
def test_numbers_and_picture_are_written(measured: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model = indrnn.PlainIndRNN(F, 7, 2, norm=None)
    with torch.no_grad():
        model.recurrent_layers[0].weight_hh[0] = 1.0
    found: Memory = memory(model, T, run=(lambda: model(torch.randn(T, B, F))) if measured else None)
    table = analysis.write(found, {"run": "a"}, Results(tmp_path, "memory"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.json", "memory.md", "memory.png"]
    assert (tmp_path / "memory.md").read_text() == table + "\n"
    kept = json.loads((tmp_path / "memory.json").read_text())
    assert kept["run"] == "a"
    assert kept["layers"][0]["steps"][0] is None
    assert [layer["u"] for layer in kept["layers"]] == [layer.u for layer in found.layers]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert [row[2:5] for row in rows] == [
        [str(layer.count(group)) for group in ("short", "middle", "long")] for layer in found.layers
    ]
