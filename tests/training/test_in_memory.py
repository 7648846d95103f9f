"""Training without a folder: the loop written by hand, the run in a folder, and what it leaves alone."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import PlainIndRNN, SequenceClassifier
from indrnn.training import Batch, Evaluation, Listener, Result, RunError, Shard, TensorTask, Training, train

from .runs import Scripted

OPTIONS: dict[str, Any] = {"device": "cpu", "tensorboard": False, "curve": False, "clip": None}


def data(items: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(items, 3, generator=random, dtype=torch.float64), torch.randint(4, (items,), generator=random)


def task() -> TensorTask:
    return TensorTask(data(25, 0), data(13, 1), batch_size=11, seed=3)


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(3, 4, dtype=torch.float64)


class Told(Listener):
    """Keeps the evaluations."""

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []

    def on_evaluation(self, event: Evaluation) -> None:
        self.evaluations.append(event)


def scripted(*accuracies: float) -> Scripted:
    found = Scripted(data(25, 0), data(13, 1), batch_size=11, seed=3)
    found.script = {2 * (i + 1): accuracy for i, accuracy in enumerate(accuracies)}
    return found


def by_hand(steps: int, lr: float = 0.1) -> nn.Module:
    """Adam over the same batches."""
    found, what = model(), task()
    optimizer = torch.optim.Adam(found.parameters(), lr=lr)
    for step in range(steps):
        batch = what.batch(step, Shard())
        optimizer.zero_grad()
        F.cross_entropy(found(batch.inputs), batch.target).backward()
        optimizer.step()
    return found


def test_weights_are_those_of_the_best_evaluation() -> None:
    found, told = model(), Told()
    options = Training(steps=8, lr=0.1, evaluate_every=2, **OPTIONS)
    result = train(found, scripted(0.2, 0.7, 0.6, 0.1), options, listeners=[told], quiet=True)
    assert (result.steps, result.best_step, result.best["accuracy"], result.finished) == (8, 4, 0.7, True)
    assert [event.step for event in told.evaluations] == [2, 4, 6, 8]
    assert_close(dict(found.named_parameters()), dict(by_hand(4).named_parameters()), rtol=1e-9, atol=1e-12)


def test_patience_ends_it() -> None:
    options = Training(steps=12, lr=0.1, evaluate_every=2, patience=2, **OPTIONS)
    told = Told()
    train(model(), scripted(0.7, 0.6, 0.5, 0.9, 0.9, 0.9), options, listeners=[told], quiet=True)
    assert [event.step for event in told.evaluations] == [2, 4, 6]


def test_the_same_as_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout too: to the last bit, and the numbers that are measured."""
    monkeypatch.chdir(tmp_path)
    random = torch.Generator().manual_seed(2)
    x, y = torch.randn(25, 9, 3, generator=random), torch.randint(4, (25,), generator=random)
    torch.manual_seed(5)
    first = SequenceClassifier(PlainIndRNN(3, 7, 2, dropout=0.3, batch_first=True), 4)
    second = copy.deepcopy(first)
    options = Training(steps=7, lr=0.01, evaluate_every=3, **OPTIONS)
    what = TensorTask((x[:17], y[:17]), (x[17:], y[17:]), batch_size=5)
    told = Told()
    here = train(first, what, options, seed=4, listeners=[told], quiet=True)
    assert list(tmp_path.iterdir()) == []
    there = train(second, what, options, out=tmp_path / "run", seed=4, quiet=True)
    assert (here.steps, here.best_step, here.best) == (there.steps, there.best_step, there.best)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert [event.step for event in told.evaluations] == [3, 6, 7]


def test_what_is_global_stays_as_it_was() -> None:
    found, threads = model(), torch.get_num_threads()
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    train(found, task(), Training(steps=2, threads=threads + 1, **OPTIONS), seed=1, quiet=True)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(3), expected)


def test_a_loss_that_is_not_finite_ends_it_and_says_where_it_began() -> None:
    what = TensorTask(data(25, 0), batch_size=11, loss=lambda output, target: (-1 - output.square()).sqrt().mean())
    ended: list[Result] = []

    class Ends(Listener):
        def on_end(self, result: Result) -> None:
            ended.append(result)

    with pytest.raises(RunError, match=r"^step 1: the loss became nan, in the loss itself; .*\. A lower lr may help$"):
        train(model(), what, Training(steps=4, **OPTIONS), listeners=[Ends()], quiet=True)
    assert [(result.steps, result.finished, result.folder) for result in ended] == [(0, False, None)]


def test_an_interrupt_has_its_usual_effect_and_listeners_are_told() -> None:
    ended: list[Result] = []

    class Interrupts(Listener):
        def on_end(self, result: Result) -> None:
            ended.append(result)

    class Interrupted(TensorTask):
        def batch(self, step: int, shard: Shard) -> Batch:
            if step == 2:
                signal.raise_signal(signal.SIGINT)
            return super().batch(step, shard)

    with pytest.raises(KeyboardInterrupt):
        train(model(), Interrupted(data(25, 0)), Training(steps=4, **OPTIONS), listeners=[Interrupts()], quiet=True)
    assert [result.steps for result in ended] == [2]


@pytest.mark.parametrize("what", ["resume", "overwrite"])
def test_without_a_folder_nothing_is_resumed_or_deleted(what: str) -> None:
    with pytest.raises(ValueError, match=f"out must be a folder to {what}, got None"):
        train(model(), task(), resume=what == "resume", overwrite=what == "overwrite")
