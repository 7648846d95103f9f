"""Every analysis of networks of odd shapes: one neuron, one layer, both directions, each norm, one step, padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from indrnn import IndRNN
from indrnn.analysis import depth
from indrnn.analysis.ablate import ablate
from indrnn.analysis.explorer import page_of, recorded
from indrnn.analysis.gradients import gradient_flow
from indrnn.analysis.memory import memory
from indrnn.analysis.neurons import layers_of
from indrnn.analysis.weights import weights
from indrnn.networks import Dense, Head, Plain, Residual
from indrnn.networks.config import Front
from indrnn.tasks.distillation import distil
from indrnn.training import Batch, Shard, TensorTask

NETWORKS: dict[str, Any] = {
    "one neuron": Plain(2, 1, 1),
    "tanh without norm": Plain(2, 4, 2, norm=None, nonlinearity="tanh"),
    "sigmoid": Plain(2, 3, 2, nonlinearity="sigmoid"),
    "both directions": Plain(2, 4, 2, bidirectional=True),
    "norm by step": Plain(2, 4, 2, norm="step", norm_steps=7),
    "layer norm before": Plain(2, 4, 2, norm="layer", norm_place="before"),
    "residual": Residual(2, 1, 1, last_transition=3),
    "residual, both directions": Residual(2, 4, 1, bidirectional=True),
    "dense": Dense(2, 2, (1, 1), bidirectional=True),
    "behind convolutions": Front(Plain(None, 4, 1, bidirectional=True), 2, (3, 3), (3, 9), (1, 4)),
}


class TimeFirst(TensorTask):
    """Items (T, features), in batches (T, B, features)."""

    def batch_of(self, split: str, items: Tensor) -> Batch:
        batch = super().batch_of(split, items)
        batch.inputs = batch.inputs.transpose(0, 1).contiguous()
        return batch


def task_of(steps: int, padded: bool) -> TimeFirst:
    data: list[Tensor] = [torch.randn(9, steps, 2), torch.arange(9) % 3]
    if padded:
        data.append(torch.randint(1, steps + 1, (9,)))
    return TimeFirst(data, data, batch_size=5)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_analysis(name: str, steps: int, padded: bool) -> None:
    model: nn.Module = Head(NETWORKS[name].sized(2, steps), 3).build()
    task = task_of(steps, padded)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    found = memory(model, run=lambda: list(task.evaluate(model, 0, Shard())))
    for layer in found.layers:
        assert layer.difference is not None
        assert layer.difference < 1e-5
        assert layer.measured is not None
        assert all(0 <= each <= steps - 1 for each in layer.measured)
    neurons = sum(len(layer.u) for layer in layers_of(model))
    ablated = ablate(model, task, items=5)
    assert ablated.metric == "accuracy"
    in_layers = sum(row.neurons for row in ablated.rows if row.layer is not None)
    assert in_layers == neurons == sum(len(layer.after) for layer in weights(model).layers)
    flow = gradient_flow(model, task, 2)
    assert torch.tensor(flow["time"]).isfinite().all()
    assert torch.equal(torch.get_rng_state(), random)
    page_of(model, recorded([torch.randn(steps, 2)]), "run")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


def test_gradients_of_dropout_are_the_same_every_time() -> None:
    model = Head(Plain(2, 8, 2, dropout=0.5), 3).build()
    task = task_of(7, False)
    first = gradient_flow(model, task, 2)
    torch.rand(3)
    assert gradient_flow(model, task, 2) == first


def test_a_part_that_is_in_evaluation_mode_stays_so() -> None:
    model: Any = Head(Plain(2, 8, 2), 3).build().train()
    model.network.blocks[0].eval()
    for look in (
        lambda: gradient_flow(model, task_of(7, False), 1),
        lambda: memory(model, run=lambda: model(torch.randn(7, 3, 2))),
        lambda: page_of(model, recorded([torch.randn(7, 2)]), "run"),
        lambda: distil(model.network, torch.randn(7, 9, 2), steps=1),
    ):
        look()
        assert model.training
        assert not model.network.blocks[0].training
        assert model.network.blocks[1].training


def test_gradients_where_none_are_recorded() -> None:
    """The caller's mode does not matter, nor which parameters are frozen: the weights are not changed."""
    model, task = Head(Plain(2, 5, 2), 3).build(), task_of(7, False)
    found = gradient_flow(model, task, 1)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert gradient_flow(model, task, 1) == found
    model.network.requires_grad_(False)
    assert gradient_flow(model, task, 1) == found
    assert not any(each.requires_grad for each in model.network.parameters())


def test_gradients_of_input_weights_that_are_computed() -> None:
    """They are those of the weights as the pass used them; what computes them stays as it is."""
    model: Any = Head(Plain(2, 5, 3), 3).build()
    task = task_of(7, False)
    expected = gradient_flow(model, task, 1)
    prune.custom_from_mask(model.network.blocks[1].unit.weight, "weight", torch.ones(5, 5))
    parametrizations.weight_norm(model.network.blocks[2].unit.weight, "weight")
    found = gradient_flow(model, task, 1)
    for what in ("time", "depth"):
        assert found[what] == pytest.approx(expected[what], rel=1e-4)
    parametrizations.spectral_norm(model.network.blocks[0].unit.weight, "weight")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    gradient_flow(model, task, 1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_precision(dtype: torch.dtype) -> None:
    model = Head(Plain(2, 4, 2), 3).build().to(dtype)
    x = torch.randn(7, 3, 2).to(dtype)
    found = memory(model, run=lambda: model(x))
    for layer in found.layers:
        assert layer.difference is not None
        assert layer.difference < 8 * torch.finfo(dtype).eps
    page_of(model, recorded(list(x.unbind(1))), "run")


@pytest.mark.parametrize("shape", [(0, 3, 2), (7, 0, 2)], ids=["no step", "no sequence"])
def test_nothing_to_measure(shape: tuple[int, ...]) -> None:
    layer = IndRNN(2, 5, 2)
    found = memory(layer, 7, run=lambda: layer(torch.randn(shape)))
    assert (found.sequences, found.layers[0].measured) == (0, None)


def test_depth_before_and_after_training() -> None:
    models = [Head(Plain(2, 5, 3), 3).build() for _ in range(3)]
    task = task_of(7, False)
    rows = depth.before_and_after(models[0], models[1:], task, 2)
    flows = [gradient_flow(model, task, 2)["depth"] for model in models]
    assert [row["layer"] for row in rows] == [2, 3]
    assert [row["after"] for row in rows] == flows[0]
    assert [row["before"] for row in rows] == pytest.approx([(a + b) / 2 for a, b in zip(*flows[1:], strict=True)])
    with pytest.raises(ValueError, match="before must hold at least one"):
        depth.before_and_after(models[0], [], task)
    with pytest.raises(ValueError, match="other layers"):
        depth.before_and_after(models[0], [Head(Plain(2, 5, 2), 3).build()], task, 1)
