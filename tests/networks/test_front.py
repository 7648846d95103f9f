"""Convolutions in front of a network, against torch's own functions on one sequence at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from indrnn.baselines import Baseline
from indrnn.networks import Front, FrontNetwork
from indrnn.networks.config import Plain, Pool
from indrnn.networks.heads import SequenceClassifier

pytestmark = pytest.mark.usefixtures("_one_thread")

T, B, C = 23, 5, 2
LENGTHS = torch.tensor([23, 1, 8, 9, 17])
FRONTS: dict[str, dict[str, Any]] = {
    "one": {"features": (6,), "kernels": (5,), "strides": (1,)},
    "strided": {"features": (6, 4), "kernels": (5, 3), "strides": (4, 2)},
    "stride over kernel": {"features": (6, 4), "kernels": (2, 1), "strides": (3, 2)},
}
fronts = pytest.mark.parametrize("options", FRONTS.values(), ids=FRONTS)


def make(options: dict[str, Any], network: Any = None) -> FrontNetwork:
    """With statistics and scales that are not at their start, in float64."""
    torch.manual_seed(0)
    inner = network or Plain(None, 7, 2, norm=None)
    front = Front(inner, **options).sized(C, T).build(dtype=torch.float64)
    with torch.no_grad():
        for norm in front.norms:
            for value in (norm.running_var, norm.weight):
                assert isinstance(value, Tensor)
                value.uniform_(0.5, 2)
            for value in (norm.running_mean, norm.bias):
                assert isinstance(value, Tensor)
                value.uniform_(-0.5, 0.5)
    return front.eval()


def inputs() -> Tensor:
    return torch.randn(T, B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def convolved(front: FrontNetwork, x: Tensor) -> Tensor:
    """(T, C) through the convolutions of a front in evaluation: zeros before the first step, as many as are needed."""
    for i, norm in enumerate(front.norms):
        weight: Any = front.convolutions[i].weight
        padded = F.pad(x.t(), (front.config.kernels[i] - 1, 0))
        x = F.conv1d(padded.unsqueeze(0), weight, stride=front.config.strides[i])
        of: Any = norm
        x = F.batch_norm(x, of.running_mean, of.running_var, of.weight, of.bias, eps=of.eps).relu()[0].t()
    return x


@fronts
@pytest.mark.parametrize("last", [False, True], ids=["all steps", "last step"])
def test_each_sequence_as_by_itself(options: dict[str, Any], last: bool) -> None:
    front, x = make(options), inputs()
    x[LENGTHS[2] :, 2] = float("nan")  # padding is not looked at
    found, _ = front(x, lengths=LENGTHS, last=last)
    for b, length in enumerate(LENGTHS.tolist()):
        features = convolved(front, x[:length, b])
        assert len(features) == front.config.steps(length)
        expected = front.network(features.unsqueeze(1))[0][:, 0]
        assert_close(found[b] if last else found[: len(expected), b], expected[-1] if last else expected)


@fronts
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_an_answer_is_that_of_the_sequence_by_itself(options: dict[str, Any], pool: Pool) -> None:
    """The mean is over the steps that the strides leave, and not over as many as the input has."""
    front, x = make(options), inputs()
    head = SequenceClassifier(front, 3, pool).eval()
    found, _ = head(x, lengths=LENGTHS)
    for b, length in enumerate(LENGTHS.tolist()):
        assert_close(found[b], head(x[:length, b : b + 1])[0][0])


@fronts
def test_statistics_of_training_are_those_of_valid_steps(options: dict[str, Any]) -> None:
    front, x = make(options).train(), inputs()
    front(x, lengths=LENGTHS)
    first: Any = front.norms[0]
    weight: Any = front.convolutions[0].weight
    kernel, stride = options["kernels"][0], options["strides"][0]
    rows = [
        F.conv1d(F.pad(x[:n, b].t(), (kernel - 1, 0)).unsqueeze(0), weight, stride=stride)[0].t()
        for b, n in enumerate(LENGTHS.tolist())
    ]
    every = torch.cat(rows)
    before: Any = make(options).norms[0]
    assert_close(first.running_mean, 0.9 * before.running_mean + 0.1 * every.mean(0))
    assert_close(first.running_var, 0.9 * before.running_var + 0.1 * every.var(0))


def test_statistics_can_be_the_mean_over_batches() -> None:
    """As they are gathered before an evaluation: momentum None."""
    front = make(FRONTS["one"]).train()
    norm: Any = front.norms[0]
    norm.momentum = None
    norm.reset_running_stats()
    weight: Any = front.convolutions[0].weight
    means = []
    for scale in (1.0, 3.0):
        front(scale * inputs())
        padded = F.pad(scale * inputs().permute(1, 2, 0), (4, 0))
        means.append(F.conv1d(padded, weight).mean((0, 2)))
    assert_close(norm.running_mean, (means[0] + means[1]) / 2)


@fronts
@pytest.mark.parametrize("network", [None, Baseline("lstm", 5, 1)], ids=["indrnn", "lstm"])
def test_a_sequence_in_pieces_that_strides_divide(options: dict[str, Any], network: Any) -> None:
    front, x = make(options, network), inputs()
    stride = torch.tensor(options["strides"]).prod().item()
    whole, _ = front(x)
    state, pieces = None, []
    for begin in range(0, T, int(stride)):
        features, state = front(x[begin : begin + int(stride)], state)
        pieces.append(features)
    assert_close(torch.cat(pieces), whole)


@fronts
def test_an_output_depends_on_the_past_alone(options: dict[str, Any]) -> None:
    front, x = make(options), inputs().requires_grad_()
    features, _ = front(x)
    stride = int(torch.tensor(options["strides"]).prod())
    (gradient,) = torch.autograd.grad(features[2].sum(), x)
    assert gradient[: 2 * stride + 1].abs().sum() > 0
    assert gradient[2 * stride + 1 :].abs().sum() == 0


def test_bad_input_is_named() -> None:
    front = make(FRONTS["strided"])
    with pytest.raises(ValueError, match=r"\(T, B, 2\), got \(23, 5, 3\)"):
        front(torch.zeros(T, B, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="resets are not supported"):
        front(inputs(), resets=torch.zeros(T, B, dtype=torch.bool))
    with pytest.raises(ValueError, match="kernels must have one number for each convolution, 2"):
        Front(Plain(), features=(4, 4), kernels=(3,), strides=(1, 1))
    with pytest.raises(ValueError, match="strides"):
        Front(Plain(), strides=(0,))


def test_a_backward_hook_of_a_norm_is_called() -> None:
    front, seen = make(FRONTS["strided"]).train(), []
    front.norms[1].register_full_backward_hook(lambda *_: seen.append(True))
    front(inputs().requires_grad_())[0].sum().backward()
    assert seen == [True]
