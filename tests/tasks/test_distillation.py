"""Distilling an RNN: what is reported, against what the returned model gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import indrnn
from indrnn.networks import Plain, Residual
from indrnn.tasks.distillation import distil

T, M, N = 9, 2, 5
SMALL = Plain(hidden_size=16, layers=2, norm=None)


def made(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(T, 20, M, generator=torch.Generator().manual_seed(step))
    return x, x[0, :, 0]


def test_the_errors_are_those_of_the_model_on_fresh_sequences() -> None:
    rnn = nn.RNN(M, N)
    readout = nn.Linear(N, 1)
    found = distil(rnn, made, config=SMALL, steps=30, readout=lambda h: readout(h[-1]).squeeze(-1))
    batches = [made(30 + number) for number in range(10)]
    x, targets = torch.cat([each[0] for each in batches], 1), torch.cat([each[1] for each in batches])
    with torch.no_grad():
        theirs, ours = rnn(x)[0], found.model(x)[0]
        answers = [readout(h[-1]).squeeze(-1) for h in (theirs, ours)]
    assert found.error == pytest.approx(float((ours - theirs).norm() / theirs.norm()), rel=1e-4)
    by_step = [float((ours[t] - theirs[t]).norm() / theirs[t].norm()) for t in range(T)]
    assert found.per_step == pytest.approx(by_step, rel=1e-4)
    assert found.readout_error == pytest.approx(float((answers[1] - answers[0]).norm() / answers[0].norm()), rel=1e-4)
    assert found.task_error is not None
    assert found.task_error["rnn"] == pytest.approx(float((answers[0] - targets).square().mean()), rel=1e-4)
    assert found.task_error["indrnn"] == pytest.approx(float((answers[1] - targets).square().mean()), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tanh", "relu", "lstm"])
def test_it_learns(kind: str) -> None:
    rnn = nn.LSTM(M, N) if kind == "lstm" else nn.RNN(M, N, nonlinearity=kind)
    few, many = (distil(rnn, made, config=SMALL, steps=steps).error for steps in (1, 300))
    assert many < 0.4 * few
    assert distil(rnn, made, config=SMALL, steps=1).readout_error is None


def test_sequences_in_memory_of_which_a_tenth_is_kept_back() -> None:
    rnn = nn.RNN(M, N, batch_first=True).train()
    x = torch.randn(40, T, M)
    before = {name: value.clone() for name, value in rnn.state_dict().items()}
    seen: list[Tensor] = []
    rnn.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    found = distil(rnn, x, config=SMALL, steps=40, batch_size=8)
    assert len(found.per_step) == T
    assert found.model.network.batch_first
    trained = {tuple(row[0].tolist()) for batch in seen[:-2] for row in batch}
    measured = {tuple(row[0].tolist()) for row in seen[-1]}
    assert len(measured) == 4
    assert not trained & measured
    assert rnn.training
    assert all(torch.equal(value, before[name]) for name, value in rnn.state_dict().items())


def test_the_same_seed_gives_the_same_model_and_draws_no_number_of_others() -> None:
    rnn, x = nn.RNN(M, N), torch.randn(T, 30, M)
    torch.manual_seed(3)
    following = torch.rand(2)
    torch.manual_seed(3)
    first, second = (distil(rnn, x, config=SMALL, steps=5, seed=4) for _ in range(2))
    assert torch.equal(torch.rand(2), following)
    assert first.per_step == second.per_step
    assert first.error != distil(rnn, x, config=SMALL, steps=5, seed=5).error


def test_any_network_and_the_bound_is_held() -> None:
    found = distil(nn.RNN(M, N), made, config=Residual(hidden_size=6, blocks=2), steps=3, lr=0.5)
    assert isinstance(found.model.network, indrnn.ResidualIndRNN)
    assert all(float(unit.weight_hh.detach().abs().max()) <= 1 for unit in found.model.network.recurrent_layers)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"rnn": "rnn"}, TypeError, "rnn must be a module, got str"),
        ({"rnn": nn.Flatten(0)}, ValueError, "rnn must give an output at each step"),
        ({"data": torch.ones(3, 2)}, TypeError, "data must be sequences of three dimensions"),
        ({"data": torch.ones(T, 1, M)}, ValueError, "at least 2 sequences, got 1"),
        ({"data": (torch.ones(T, 4, M), torch.ones(3))}, ValueError, "targets must be of the 4 sequences"),
        ({"data": (torch.ones(T, 4, M), [1.0])}, TypeError, "targets must be a tensor"),
        ({"steps": 0}, ValueError, "steps must"),
        ({"lr": 0}, ValueError, "lr must be a positive number"),
        ({"seed": 1.5}, ValueError, "seed must"),
        ({"readout": lambda h: h}, ValueError, "readout must give"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], kind: type[Exception], message: str) -> None:
    given: dict[str, object] = {"rnn": nn.RNN(M, N), "data": made, "steps": 1, "config": SMALL} | arguments
    with pytest.raises(kind, match=message):
        indrnn.distil(**given)  # type: ignore[arg-type]
