"""Gradient flow: against gradients taken one sequence at a time, and the picture of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from indrnn import IndRNN
from indrnn.analysis import gradients
from indrnn.baselines import Baseline, BaselineRNN, QRNNBaseline
from indrnn.networks import Dense, Head, Plain, PlainIndRNN, Residual, SequenceClassifier
from indrnn.tasks.adding import Adding
from indrnn.tasks.pixels import Pixels, PixelsRecipe
from indrnn.tasks.recipe import AnyNetwork
from indrnn.tasks.table import Results
from indrnn.training import Batch, Shard, TensorTask

pytest.importorskip("matplotlib")


def task(count: int = 26) -> Pixels:
    images = torch.randint(0, 256, (count, 2, 3), dtype=torch.uint8)
    labels = torch.arange(count, dtype=torch.uint8) % 10
    return Pixels((images, labels), (images, labels), PixelsRecipe(validation=2, batch_size=4))


def model(network: AnyNetwork) -> nn.Module:
    return Head(network.sized(1, 6), 10).build()


NETWORKS: dict[str, tuple[AnyNetwork, int]] = {
    "plain": (Plain(None, 5, 3), 3),
    "residual": (Residual(None, 5, 2), 5),
    "dense": (Dense(None, 2), 1 + 2 * 18 + 3),
    "lstm": (Baseline("lstm", 5, 3), 3),
    "rnn": (Baseline("rnn", 5, 2), 2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_input_weights_of_every_layer_in_order(name: str) -> None:
    network, layers = NETWORKS[name]
    weights = gradients.input_weights(model(network))
    assert len(weights) == layers
    assert weights[0].shape[1] == 1, "the first reads the pixels"
    assert all(weight.shape[1] > 1 for weight in weights[1:])


def test_the_flow_is_the_mean_of_gradients_taken_one_by_one() -> None:
    """Without a norm, so that sequences do not depend on each other."""
    net, data = model(Plain(None, 5, 3, norm=None)), task()
    flow = gradients.gradient_flow(net, data, batches=3)
    weights = gradients.input_weights(net)[1:]
    over_time, over_depth = torch.zeros(6), torch.zeros(2)
    for step in range(3):
        batch = data.batch(step, Shard())
        for i in range(batch.count):
            x = batch.inputs[:, i : i + 1].clone().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(net(x)[0], batch.target[i : i + 1]), x)
            over_time += gradient.abs().flatten() / (3 * batch.count)
        loss = F.cross_entropy(net(batch.inputs)[0], batch.target)
        over_depth += torch.stack([g.norm() for g in torch.autograd.grad(loss, weights)]) / 3
    torch.testing.assert_close(torch.tensor(flow["time"]), over_time)
    torch.testing.assert_close(torch.tensor(flow["depth"]), over_depth)


@pytest.mark.parametrize("kind", ["IndRNN", "QRNN", "GRU"])
def test_layers_and_baselines_of_other_kinds(kind: str) -> None:
    network: nn.Module = {"IndRNN": IndRNN(1, 5, 3), "QRNN": QRNNBaseline(1, 5, 3), "GRU": BaselineRNN("gru", 1, 5, 3)}[
        kind
    ]
    net, data = SequenceClassifier(network, 10), task()
    found = gradients.gradient_flow(net, data, batches=1)
    batch = data.batch(0, Shard())
    x = batch.inputs.clone().requires_grad_()
    weights = gradients.input_weights(net)
    assert len(weights) == 3
    at_x, *at_weights = torch.autograd.grad(F.cross_entropy(net(x)[0], batch.target), [x, *weights[1:]])
    torch.testing.assert_close(torch.tensor(found["depth"]), torch.stack([each.norm() for each in at_weights]))
    torch.testing.assert_close(torch.tensor(found["time"]), at_x.norm(dim=-1).sum(1))


def test_batch_first_and_embedded_tokens() -> None:
    """Any task: here one of tokens, whose input has no gradient, in a model of its own."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 4)
            self.head = SequenceClassifier(PlainIndRNN(4, 5, 2, norm=None, batch_first=True), 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens))[0]  # type: ignore[no-any-return]

    net = Tokens()
    tokens, labels = torch.randint(11, (12, 7)), torch.arange(12) % 3
    data = TensorTask((tokens, labels), batch_size=5)
    flow = gradients.gradient_flow(net, data, batches=3)
    expected = torch.zeros(7)
    for item in range(12):
        x = net.embedding(tokens[item : item + 1])
        (gradient,) = torch.autograd.grad(F.cross_entropy(net.head(x)[0], labels[item : item + 1]), x)
        expected += gradient[0].norm(dim=-1) / 12
    torch.testing.assert_close(torch.tensor(flow["time"]), expected)
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_batches_of_several_lengths() -> None:
    class Lengths(Adding):
        def batch(self, step: int, shard: Shard) -> Batch:
            return Adding(3 + step, 4).batch(step, shard)

    net = Head(Plain(None, 5, 2, norm=None).sized(2, 5), 1, "SequenceRegressor").build()
    time = gradients.gradient_flow(net, Lengths(3, 4), batches=3)["time"]
    first = torch.zeros(3, 5)
    for step in range(3):
        batch = Adding(3 + step, 4).batch(step, Shard())
        x = batch.inputs.requires_grad_()
        loss = F.mse_loss(net(x)[0].squeeze(-1), batch.target)
        first[step, : 3 + step] = 4 * torch.autograd.grad(loss, x)[0].norm(dim=-1).mean(1)
    torch.testing.assert_close(torch.tensor(time), first.sum(0) / torch.tensor([3.0, 3, 3, 2, 1]))


def test_a_model_without_a_network() -> None:
    with pytest.raises(ValueError, match="model must hold a network or baseline of this package, got Linear"):
        gradients.gradient_flow(nn.Linear(1, 2), task(), 1)


def test_without_recurrence_nothing_flows_back_in_time() -> None:
    net = model(Plain(None, 5, 2, norm=None))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("weight_hh"):
                parameter.zero_()
    time = gradients.gradient_flow(net, task(), batches=2)["time"]
    assert time[:-1] == [0.0] * 5
    assert time[-1] > 0


def test_the_model_stays_as_it_was() -> None:
    """Its statistics too, which a norm updates as it is used in training."""
    net = model(Plain(None, 5, 2, dropout=0.1)).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gradients.gradient_flow(net, task(), batches=2)
    assert not net.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_numbers_and_the_picture_are_written(tmp_path: Path) -> None:
    flows = [
        {"name": name, "indrnn": name == "plain", **gradients.gradient_flow(model(NETWORKS[name][0]), task(), 1)}
        for name in ("plain", "lstm", "rnn")
    ]
    results = Results(tmp_path / "new" / "folder", "gradients")
    gradients.write(flows, results)
    picture = results.path("png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((picture.parent / "gradients.json").read_text()) == flows
    assert sorted(path.name for path in picture.parent.iterdir()) == ["gradients.json", "gradients.png"]
