"""Weight decay reaches the input weights and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from indrnn import IndRNN, IndRNNCell, parameter_groups

M, N = 7, 13


class Model(nn.Module):
    """An IndRNN among the kinds of layer that stand beside one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, M)
        self.layers = IndRNN(M, N, 2, bidirectional=True)
        self.norm = nn.BatchNorm1d(2 * N)
        self.cell = IndRNNCell(2 * N, N, bias=False)
        self.head = nn.Linear(N, 11)


INPUT_WEIGHTS = {
    "embedding.weight",
    "layers.weight_ih_l0",
    "layers.weight_ih_l0_reverse",
    "layers.weight_ih_l1",
    "layers.weight_ih_l1_reverse",
    "cell.weight_ih",
    "head.weight",
}


def decay_of(model: nn.Module, weight_decay: float) -> dict[str, float]:
    """By parameter, the decay that an optimiser given the groups would apply."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: group["weight_decay"]
        for group in parameter_groups(model, weight_decay)
        for parameter in group["params"]
    }


def test_decay_is_on_input_weights_only() -> None:
    model = Model()
    decays = decay_of(model, 0.01)
    assert decays.keys() == dict(model.named_parameters()).keys()
    assert {name for name, decay in decays.items() if decay == 0.01} == INPUT_WEIGHTS
    assert set(decays.values()) == {0.01, 0.0}


def times_listed(model: nn.Module) -> Counter[Tensor]:
    return Counter(parameter for group in parameter_groups(model, 0.01) for parameter in group["params"])


def test_each_parameter_is_in_one_group() -> None:
    model = Model()
    assert times_listed(model) == dict.fromkeys(model.parameters(), 1)


def test_shared_parameters_are_in_one_group() -> None:
    model = Model()
    model.register_module("again", model.layers)  # a module that stands in two places
    tied = nn.Linear(M, 11)
    tied.weight = model.embedding.weight
    model.register_module("tied", tied)
    model.register_parameter("u_again", model.cell.get_parameter("weight_hh"))
    assert times_listed(model) == dict.fromkeys(model.parameters(), 1)
    torch.optim.SGD(parameter_groups(model, 0.01), lr=1.0)  # which refuses a parameter in two groups


def test_step_without_gradient_shrinks_the_input_weights_only() -> None:
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(0.5, 1)  # biases start at 0, and nothing would show
            parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    torch.optim.SGD(parameter_groups(model, 0.1), lr=0.5).step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if name in INPUT_WEIGHTS else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)
        assert torch.equal(parameter, before[name]) == (name not in INPUT_WEIGHTS), name


@pytest.mark.parametrize("model", [nn.BatchNorm1d(N), nn.Embedding(M, N)], ids=["norm", "embedding"])
def test_no_group_is_empty(model: nn.Module) -> None:
    groups = parameter_groups(model, 0.01)
    assert len(groups) == 1
    torch.optim.Adam(groups)


def test_frozen_parameters_are_listed_too() -> None:
    # They may be set free later, and an optimiser passes over what has no gradient.
    model = Model()
    model.embedding.weight.requires_grad_(False)
    assert decay_of(model, 0.01)["embedding.weight"] == 0.01


def test_zero_decay() -> None:
    assert set(decay_of(Model(), 0.0).values()) == {0.0}


def test_negative_decay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight_decay must not be negative, got -0\.1"):
        parameter_groups(Model(), -0.1)
