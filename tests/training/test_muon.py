from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import indrnn
from indrnn.training import Muon
from indrnn.training.optimizers import orthogonal

from .runs import QUICK, classifier, go, task, weights_of


class Net(nn.Module):
    """One of each kind of parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 7)
        self.conv = nn.Conv1d(7, 9, 3)
        self.rnn = indrnn.IndRNN(9, 13, num_layers=2, gamma=1.0, sequence_length=50)
        self.norm = nn.BatchNorm1d(13)
        self.out = nn.Linear(13, 5)
        self.gain = nn.Linear(1, 5, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        h, _ = self.rnn(self.conv(self.table(words).transpose(1, 2)).permute(2, 0, 1))
        return self.out(self.norm(h[-1])) + self.gain(torch.ones(len(words), 1))  # type: ignore[no-any-return]


def is_matrix(name: str) -> bool:
    return (name.endswith("weight") and name.split(".")[0] in ("conv", "out")) or "weight_ih" in name


def gradients_(module: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


@pytest.mark.parametrize("shape", [(7, 7), (63, 5), (5, 63), (2, 500), (128, 128)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_orthogonal_keeps_the_singular_vectors_and_levels_the_values(shape: tuple[int, int], scale: float) -> None:
    left, _ = torch.linalg.qr(torch.randn(shape[0], min(shape), dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(shape[1], min(shape), dtype=torch.float64))
    values = torch.linspace(1, 20, min(shape), dtype=torch.float64)
    got = orthogonal((scale * left * values @ right.t()).float())
    assert got.dtype == torch.float32
    inside = left.t() @ got.double() @ right
    found = inside.diagonal()
    assert found.min() > 0.6
    assert found.max() < 1.2
    torch.testing.assert_close(inside, torch.diag(found), rtol=0, atol=1e-4)
    torch.testing.assert_close(left @ inside @ right.t(), got.double(), rtol=0, atol=1e-4)


def test_orthogonal_of_nothing_is_nothing() -> None:
    assert not orthogonal(torch.zeros(4, 9)).any()
    assert orthogonal(torch.randn(3, 4, dtype=torch.float64)).dtype == torch.float64
    assert orthogonal(torch.randn(3, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_every_parameter_is_in_one_group_and_matrices_are_the_input_weights() -> None:
    net = Net()
    optimizer = Muon(net, weight_decay=0.5)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    seen: dict[str, tuple[bool, float]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert names[id(parameter)] not in seen
            seen[names[id(parameter)]] = (group["matrices"], group["weight_decay"])
    assert seen.keys() == set(names.values())
    for name, (matrix, decay) in seen.items():
        assert matrix == is_matrix(name), name
        assert decay == (0.5 if matrix or name in ("table.weight", "gain.weight") else 0.0), name


def test_all_but_matrices_go_by_adam_with_decay_apart() -> None:
    net = Net().double()
    beside = copy.deepcopy(net)
    optimizer = Muon(net, lr=3e-3, weight_decay=0.2, betas=(0.8, 0.97), eps=1e-7)
    named = dict(beside.named_parameters())
    groups = [
        {"params": [named["table.weight"], named["gain.weight"]], "weight_decay": 0.2},
        {"params": [p for p in named.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=3e-3, betas=(0.8, 0.97), eps=1e-7)
    for step in range(5):
        gradients_(net, step)
        gradients_(beside, step)
        optimizer.step()
        adam.step()
    for name, parameter in net.named_parameters():
        if not is_matrix(name):
            torch.testing.assert_close(parameter, named[name], rtol=1e-12, atol=1e-14)


def test_matrices_take_orthogonal_steps_of_the_mean_gradient_with_decay_apart() -> None:
    net = Net().double()
    before = copy.deepcopy(dict(net.named_parameters()))
    means = {name: torch.zeros_like(p) for name, p in before.items()}
    optimizer = Muon(net, lr=1e-2, weight_decay=0.3, momentum=0.9)
    expected = {name: p.detach().clone() for name, p in before.items()}
    for step in range(3):
        gradients_(net, step)
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            means[name] = 0.9 * means[name] + 0.1 * parameter.grad
            direction = (0.9 * means[name] + 0.1 * parameter.grad).flatten(1) if parameter.dim() > 1 else None
            if direction is not None:
                size = 0.2 * 1e-2 * math.sqrt(max(direction.shape))
                expected[name] *= 1 - 1e-2 * 0.3
                expected[name] -= size * orthogonal(direction).view_as(parameter)
        optimizer.step()
    for name, parameter in net.named_parameters():
        if is_matrix(name):
            torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-10, atol=1e-12)


def test_an_update_is_as_large_as_one_of_adam() -> None:
    """0.2 to 0.4 of the learning rate in the root mean square, which Adam has while gradients vary."""
    for rows, columns in ((128, 128), (64, 200), (300, 20)):
        layer = nn.Linear(columns, rows)
        before = layer.weight.detach().clone()
        optimizer = Muon(layer, lr=1e-2)
        gradients_(layer, 0)
        optimizer.step()
        rms = (layer.weight.detach() - before).square().mean().sqrt().item()
        assert 0.12e-2 < rms < 0.25e-2


def test_only_parameters_with_a_gradient_move_and_a_closure_is_called() -> None:
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    net = nn.Sequential(first.requires_grad_(False), last)
    before = copy.deepcopy(net.state_dict())
    optimizer = Muon(net)

    def closure() -> float:
        optimizer.zero_grad()
        loss = net(torch.ones(5, 3)).square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == pytest.approx(net_loss(before))
    assert torch.equal(first.weight, before["0.weight"])
    assert not torch.equal(last.weight, before["1.weight"])


def net_loss(state: dict[str, Any]) -> float:
    hidden = torch.ones(5, 3) @ state["0.weight"].t() + state["0.bias"]
    return float((hidden @ state["1.weight"].t() + state["1.bias"]).square().sum())


def test_the_state_is_kept_to_the_bit(tmp_path: Path) -> None:
    nets = [Net(), Net()]
    optimizers = [Muon(net, weight_decay=0.1) for net in nets]
    for step in range(3):
        gradients_(nets[0], step)
        optimizers[0].step()
    torch.save({"net": nets[0].state_dict(), "optimizer": optimizers[0].state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    nets[1].load_state_dict(state["net"])
    optimizers[1].load_state_dict(state["optimizer"])
    for step in range(3, 6):
        for net, optimizer in zip(nets, optimizers, strict=True):
            gradients_(net, step)
            optimizer.step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_half_precision_parameters_stay_so() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).bfloat16()
    before = copy.deepcopy(net.state_dict())
    gradients_(net, 0)
    Muon(net, lr=0.1).step()
    for name, value in net.state_dict().items():
        assert value.dtype == torch.bfloat16
        assert value.isfinite().all()
        assert not torch.equal(value, before[name])


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        Muon(table).step()


@pytest.mark.parametrize(
    "wrong", [{"lr": -1.0}, {"momentum": 1.0}, {"betas": (1.0, 0.9)}, {"eps": math.nan}, {"weight_decay": -0.1}]
)
def test_wrong_options_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Muon(nn.Linear(3, 4), **wrong)


def test_odd_parameters() -> None:
    """None of a number, one number, no numbers, a kernel whose memory lies in another order."""
    module = nn.ParameterDict({"none": torch.ones(0, 5), "one": torch.tensor(2.0), "row": torch.ones(1, 7)})
    module["kernel"] = nn.Parameter(torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last))
    plain = nn.ParameterDict({"kernel": module["kernel"].detach().contiguous()})
    gradients_(module, 0)
    plain["kernel"].grad = module["kernel"].grad
    optimizer = Muon(module)
    optimizer.step()
    Muon(plain).step()
    matrices = [id(p) for group in optimizer.param_groups for p in group["params"] if group["matrices"]]
    assert matrices == [id(module["kernel"])]
    assert torch.equal(module["kernel"], plain["kernel"])
    assert module["one"].item() == pytest.approx(2.0 - 2e-3 * math.copysign(1, module["one"].grad.item()))
    with pytest.raises(TypeError, match="complex ones: z"):
        Muon(nn.ParameterDict({"z": torch.ones(3, 3, dtype=torch.complex64)}))


@pytest.mark.parametrize("kept", [0.0, 120.0])
def test_a_run_goes_by_muon_and_is_resumed_to_the_bit(tmp_path: Path, kept: float) -> None:
    options = replace(QUICK, steps=9, optimizer="muon", weight_decay=0.1, clip=None, evaluate_every=3)
    go(classifier("after", 0.2), task(), tmp_path / "whole", options)
    go(classifier("after", 0.2), task(), tmp_path / "parts", replace(options, steps=5, checkpoint_every=kept))
    go(classifier("after", 0.2), task(), tmp_path / "parts", options, resume=True)
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "parts")


def test_divided_matrices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="optimizer must not be muon with distributed fsdp"):
        go(classifier(), task(), tmp_path / "run", replace(QUICK, optimizer="muon", distributed="fsdp"))
    assert not (tmp_path / "run").exists()
