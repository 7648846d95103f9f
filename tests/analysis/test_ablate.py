"""Silenced neurons: against models whose weights are cut, and what a task loses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import indrnn
from indrnn.analysis import ablate as analysis
from indrnn.analysis.ablate import ablate, silenced
from indrnn.tasks.adding import Adding
from indrnn.tasks.table import Results
from indrnn.training import TensorTask

T, B, F = 11, 4, 3


def cut(weight: Tensor, which: Tensor) -> None:
    """What reads a layer reads these neurons no more."""
    with torch.no_grad():
        weight[:, which] = 0


def test_a_silenced_unit_is_one_that_nothing_reads() -> None:
    """After a norm too, whose shift would else stay."""
    model = indrnn.StepRegressor(indrnn.PlainIndRNN(F, 6, 3), 2).eval()
    for unit in model.network.recurrent_layers:  # type: ignore[union-attr]
        nn.init.normal_(unit.norm.bias)
    x, which = torch.randn(T, B, F), torch.tensor([True, False, True, False, False, True])
    with silenced(model, {"network.blocks.1.unit.weight_hh": which}):
        found = model(x)[0]
    whole = model(x)[0]
    cut(model.network.recurrent_layers[2].weight.weight, which)  # type: ignore[union-attr, index]
    assert_close(found, model(x)[0])
    assert not torch.allclose(found, whole)


def test_a_silenced_neuron_between_the_layers_of_an_indrnn() -> None:
    model = indrnn.IndRNN(F, 6, 3).eval()
    x, which = torch.randn(T, B, F), torch.tensor([True, False, True, False, False, True])
    with silenced(model, {"weight_hh_l1": which}):
        found = model(x)[0]
    cut(dict(model.named_parameters())["weight_ih_l2"], which)
    assert_close(found, model(x)[0].detach())


def test_channels_of_a_convolution_and_both_directions() -> None:
    conv = indrnn.ConvIndRNN1d(2, 4, 3)
    x, which = torch.randn(T, B, 2, 8), torch.tensor([False, True, False, True])
    with silenced(conv, {"weight_hh": which}):
        found = conv(x)[0]
    assert not found[:, :, which].any()
    assert_close(found[:, :, ~which], conv(x)[0][:, :, ~which].detach())
    both = indrnn.PlainIndRNN(F, 2, 1, bidirectional=True).eval()
    y = torch.randn(T, B, F)
    with silenced(both, {"blocks.0.unit.weight_hh": which}):
        found = both(y)[0]
    assert not found[..., which].any()
    assert_close(found[..., ~which], both(y)[0][..., ~which].detach())


def test_afterwards_the_model_is_as_it_was() -> None:
    model = indrnn.PlainIndRNN(F, 6, 2).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with contextlib.suppress(KeyError), silenced(model, {"blocks.0.unit.weight_hh": torch.ones(6) > 0}):
        assert not model.training
        raise KeyError
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def echo() -> tuple[nn.Module, TensorTask]:
    """Class 1 where the first step is positive: neuron 0 holds it, neuron 1 knows the last step, neuron 2 nothing."""
    network = indrnn.IndRNN(1, 3, bias=False, gamma=None)
    model = indrnn.SequenceClassifier(network, 2)
    with torch.no_grad():
        network.weight_ih_l0.copy_(torch.tensor([[1.0], [1.0], [0.0]]))
        network.weight_hh_l0.copy_(torch.tensor([1.0, 0.0, 0.5]))
        model.output.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1e-3, 0.0]]))
        model.output.bias.copy_(torch.tensor([0.01, 0.0]))

    class Times(TensorTask):
        def _output(self, model: nn.Module, batch: object) -> Tensor:
            return model(batch.inputs.transpose(0, 1))[0]  # type: ignore[attr-defined, no-any-return]

    x = torch.zeros(40, T, 1)
    x[:20, 0] = 1.0
    y = (x[:, 0, 0] > 0).long()
    return model, Times((x, y), (x, y), batch_size=7)


def test_a_task_of_long_memory_needs_the_long_neuron() -> None:
    model, task = echo()
    found = ablate(model, task, items=40, length=T, controls=0)
    assert found.whole == 1.0
    assert [(row.layer, row.group, row.neurons, row.value, row.control) for row in found.rows] == [
        (1, "short", 1, 1.0, None),
        (1, "middle", 1, 1.0, None),
        (1, "long", 1, 0.5, None),
    ]


def test_controls_silence_as_many_at_random() -> None:
    model, task = echo()
    found = ablate(model, task, items=40, length=T, controls=30)
    for row in found.rows:
        assert row.control == pytest.approx(1 - 0.5 / 3, abs=0.12)  # one of three: the long one at a third of the draws


def test_fewer_items_and_the_length_that_is_seen() -> None:
    model, task = echo()
    seen = []

    def spy(module: nn.Module, inputs: tuple[Tensor, ...], _: object) -> None:
        seen.append(inputs[0].shape[1])

    model.network.register_forward_hook(spy)  # type: ignore[union-attr]
    found = ablate(model, task, items=10, controls=0)
    assert found.length == T
    assert seen == [7, *[7, 7] * 4]  # the length, and two batches for all neurons and each group


def test_the_adding_problem_and_all_layers_at_once() -> None:
    model = indrnn.SequenceRegressor(indrnn.PlainIndRNN(2, 8, 2, sequence_length=T, long_memory=True), 1)
    found = ablate(model, Adding(T, test_sequences=60), items=50, epsilon=0.5)
    assert found.metric == "validation_mse"
    assert not found.higher_is_better
    assert {row.layer for row in found.rows} == {1, 2, None}
    assert sum(row.neurons for row in found.rows if row.layer is None) == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model, task: ablate(model, task, items=0), "items must"),
        (lambda model, task: ablate(model, task, controls=-1), "controls must"),
        (lambda model, task: silenced(model, {"u": torch.ones(3) > 0}).__enter__(), "neurons must be named as one of"),
        (lambda model, task: silenced(model, {"network.weight_hh_l0": torch.ones(3)}).__enter__(), "3 booleans"),
    ],
)
def test_bad_arguments_are_named(change: Callable[[nn.Module, TensorTask], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(*echo())


def test_numbers_and_picture_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, task = echo()
    found = ablate(model, task, items=20, length=T)
    table = analysis.write(found, {"run": "a"}, Results(tmp_path, "ablate"))
    assert table.splitlines()[2] == f"| all | none | 0 | {found.whole:.4g} |  |"
    kept = json.loads((tmp_path / "ablate.json").read_text())
    assert [row["value"] for row in kept["rows"]] == [row.value for row in found.rows]
    assert (tmp_path / "ablate.png").read_bytes().startswith(b"\x89PNG")
