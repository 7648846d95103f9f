"""The adding problem's data is what the paper says, and the same for the same seed and step, however it is divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn.tasks.adding import BASELINE, Adding, adding_batch
from indrnn.training import Batch, Measured, Shard, generator
from indrnn.training.evaluation import measure

WHOLE = Shard()


def means(pieces: Iterator[Measured]) -> dict[str, float]:
    """The means over all that a task yields."""
    found = measure(pieces)
    assert found is not None
    return found


class Answers(nn.Module):
    """Gives an answer of (B, 1) and no state, as the models do; remembers what it was asked."""

    def __init__(self, add: float = 0.0, constant: float | None = None) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(()))  # where the task finds the device
        self.add, self.constant = add, constant
        self.asked: list[Tensor] = []

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        self.asked.append(x)
        right = (x[..., 0] * x[..., 1]).sum(0)
        answer = right if self.constant is None else torch.full_like(right, self.constant)
        return (answer + self.add + self.anchor).unsqueeze(-1), None


def seen(task: Adding, what: str, step: int = 0) -> Tensor:
    """The sequences that `evaluate` or `test` shows a model."""
    model = Answers()
    with torch.no_grad():
        if what == "evaluate":
            means(task.evaluate(model, step, Shard()))
        else:
            means(task.test(model, Shard()))
    return torch.cat(model.asked, dim=1)


# ---- sequences


@pytest.mark.parametrize(("length", "sequences"), [(2, 31), (3, 1), (13, 57), (211, 5)])
def test_two_different_steps_are_marked_and_the_answer_is_their_sum(length: int, sequences: int) -> None:
    x, answer = adding_batch(length, sequences, generator(5, "here"))
    assert x.shape == (length, sequences, 2)
    assert answer.shape == (sequences,)
    assert x.dtype == answer.dtype == torch.float32
    values, marks = x.unbind(-1)
    assert bool((values >= 0).all())
    assert bool((values < 1).all())
    assert bool(((marks == 0) | (marks == 1)).all())
    assert marks.sum(0).tolist() == [2.0] * sequences
    for b in range(sequences):
        first, second = values[marks[:, b] == 1, b].tolist()
        assert answer[b].item() == pytest.approx(first + second)


def chi_square(counts: Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


def test_every_step_and_every_pair_of_steps_is_marked_as_often() -> None:
    length, sequences = 7, 42_000
    x, _ = adding_batch(length, sequences, generator(1, "marks"))
    marks = x[..., 1]
    pairs = marks.double() @ marks.double().t()
    counts = pairs[torch.ones(length, length).triu(1).bool()]
    assert int(counts.sum()) == sequences
    # Of 21 equally likely pairs: 20 degrees of freedom, above 45.3 once in a thousand seeds
    assert chi_square(counts) < 45.3
    # A step is marked in 2 of 7 sequences, with a variance of 5/7 of that: 7 · 5/7 = 5 in the mean, so 5/6 of
    # chi-square with 6 degrees of freedom, which is above 22.5 once in a thousand.
    assert chi_square(marks.sum(1).double()) < 22.5 * 5 / 6


def test_values_are_uniform() -> None:
    x, _ = adding_batch(10, 5_000, generator(2, "values"))
    counts = torch.histc(x[..., 0], bins=20, min=0, max=1).double()
    assert chi_square(counts) < 43.8  # 19 degrees of freedom, once in a thousand


def test_the_baseline_is_the_variance_of_the_answers() -> None:
    assert pytest.approx(1 / 6) == BASELINE
    _, answer = adding_batch(9, 60_000, generator(3, "answers"))
    # The deviation of the variance of 60,000 sums of two uniform numbers is 0.0008, of their mean 0.0017.
    assert answer.var().item() == pytest.approx(1 / 6, abs=0.003)
    assert answer.mean().item() == pytest.approx(1.0, abs=0.006)


# ---- batches


def test_a_batch_is_made_again_by_seed_and_step() -> None:
    task = Adding(17, 5, seed=3)
    batch = task.batch(4, WHOLE)
    task.batch(9, WHOLE)
    torch.rand(100)
    again = Adding(17, 5, seed=3).batch(4, WHOLE)
    assert torch.equal(batch.inputs, again.inputs)
    assert torch.equal(batch.target, again.target)
    assert (batch.count, batch.total, batch.lengths) == (5, 5, None)
    assert batch.inputs.shape == (17, 5, 2)
    others = [Adding(17, 5, seed=3).batch(step, WHOLE) for step in (0, 3, 5, 40)]
    others += [Adding(17, 5, seed=seed).batch(4, WHOLE) for seed in (0, 2, -3, 34)]
    for other in others:
        assert not bool((other.inputs[..., 0] == batch.inputs[..., 0]).any())


def test_making_a_batch_leaves_torchs_own_generator_alone() -> None:
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    Adding(5, 3).batch(0, WHOLE)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [7, 10, 50])
def test_pieces_side_by_side_are_the_batch(size: int, count: int) -> None:
    task = Adding(11, size, seed=1)
    whole = task.batch(6, WHOLE)
    pieces = [task.batch(6, Shard(i, count)) for i in range(count)]
    assert torch.equal(torch.cat([piece.inputs for piece in pieces], dim=1), whole.inputs)
    assert torch.equal(torch.cat([piece.target for piece in pieces]), whole.target)
    assert [piece.count for piece in pieces] == [piece.inputs.shape[1] for piece in pieces]
    assert sum(piece.count for piece in pieces) == size
    assert {piece.total for piece in pieces} == {size}
    assert max(piece.count for piece in pieces) - min(piece.count for piece in pieces) <= 1


def test_more_pieces_than_sequences() -> None:
    """Some fall empty: they hold a sequence that counts for nothing, so that a model can run."""
    task = Adding(11, 3, seed=1)
    whole = task.batch(6, WHOLE)
    pieces = [task.batch(6, Shard(i, 7)) for i in range(7)]
    counted = [piece for piece in pieces if piece.count]
    assert torch.equal(torch.cat([piece.inputs for piece in counted], dim=1), whole.inputs)
    assert all(piece.inputs.shape[1] == piece.target.shape[0] == 1 for piece in pieces)


# ---- error


def test_loss_is_the_mean_squared_error() -> None:
    task = Adding(11, 6)
    batch = task.batch(0, WHOLE)
    assert task.loss(Answers(), batch).item() == pytest.approx(0.0, abs=1e-12)
    assert task.loss(Answers(add=0.5), batch).item() == pytest.approx(0.25)
    model = Answers(constant=0.3)
    loss = task.loss(model, batch)
    errors = 0.3 - batch.target.double()
    assert loss.item() == pytest.approx(errors.square().mean().item())
    loss.backward()
    assert model.anchor.grad is not None
    assert model.anchor.grad.item() == pytest.approx(2 * errors.mean().item())


def test_loss_is_of_float32_where_the_model_answers_in_less() -> None:
    class Half(Answers):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return super().forward(x)[0].bfloat16(), None

    task = Adding(11, 6)
    batch = task.batch(0, WHOLE)
    assert task.loss(Half(), batch).dtype == torch.float32


@pytest.mark.parametrize("sequences", [1, 7, 1000])
@pytest.mark.parametrize("length", [5, 307])
def test_a_perfect_model_makes_no_error(length: int, sequences: int) -> None:
    task = Adding(length, 3, sequences)
    with torch.no_grad():
        measured = [means(task.evaluate(Answers(), 20, Shard())), means(task.test(Answers(), Shard()))]
        shifted = means(task.test(Answers(add=0.5), Shard()))
    for numbers, name in zip(measured, (task.metric, "test_mse"), strict=True):
        assert list(numbers) == [name]
        assert numbers[name] == pytest.approx(0.0, abs=1e-12)
    assert task.metric == "validation_mse"  # it chooses the weights
    assert shifted["test_mse"] == pytest.approx(0.25)
    assert not task.higher_is_better


def test_always_answering_one_makes_the_error_of_the_baseline() -> None:
    task = Adding(31, 3, 20_000)
    with torch.no_grad():
        for numbers in (
            means(task.evaluate(Answers(constant=1.0), 20, Shard())),
            means(task.test(Answers(constant=1.0), Shard())),
        ):
            assert next(iter(numbers.values())) == pytest.approx(BASELINE, abs=0.006)  # its deviation is 0.0014


@pytest.mark.parametrize(("length", "sequences"), [(3, 1), (300, 1003), (100_001, 3)], ids=str)
def test_every_sequence_of_a_measurement_counts_once(length: int, sequences: int) -> None:
    """Though they come in pieces."""
    task = Adding(length, 3, sequences)
    model = Answers(constant=-3.0)
    with torch.no_grad():
        measured = means(task.test(model, Shard()))["test_mse"]
    x = torch.cat(model.asked, dim=1)
    assert x.shape == (length, sequences, 2)
    assert all(piece.numel() <= max(2 * length, 200_000) for piece in model.asked)
    answers = (x[..., 0].double() * x[..., 1]).sum(0)
    assert measured == pytest.approx(float(((answers + 3.0) ** 2).mean()), rel=1e-6)
    assert answers.unique().numel() == sequences


def test_measurements_are_made_again_by_seed_and_step() -> None:
    for what in ("evaluate", "test"):
        assert torch.equal(seen(Adding(19, 4, 33, 7), what, 5), seen(Adding(19, 4, 33, 7), what, 5))


def test_training_evaluations_and_test_share_no_sequence() -> None:
    tasks = [Adding(19, 33, 33, seed) for seed in (7, 8)]
    streams = [task.batch(step, WHOLE).inputs for task in tasks for step in (0, 5)]
    streams += [seen(task, "evaluate", step) for task in tasks for step in (0, 5)]
    streams += [seen(task, "test") for task in tasks]
    first_values = torch.stack([stream[0, :, 0] for stream in streams])
    rows = {tuple(row.tolist()) for row in torch.cat([stream[..., 0].t() for stream in streams])}
    assert len(rows) == len(streams) * 33
    correlation = torch.corrcoef(first_values.double()) - torch.eye(len(streams), dtype=torch.float64)
    assert float(correlation.abs().max()) < 0.6  # of 33 numbers each, 45 pairs: a deviation of 0.18


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length must be at least 2, got 1"),
        ({"length": -5}, "length must be at least 2, got -5"),
        ({"length": 7.0}, "length must be an integer, got float"),
        ({"length": 7, "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"length": 7, "batch_size": True}, "batch_size must be an integer, got bool"),
        ({"length": 7, "test_sequences": 0}, "test_sequences must be at least 1, got 0"),
    ],
    ids=["length 1", "negative length", "float length", "batch size", "bool", "test sequences"],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Adding(**options)


def test_batches_go_to_a_device_whole() -> None:
    batch = Adding(11, 6).batch(0, WHOLE)
    moved = batch.to(torch.device("cpu"))
    assert isinstance(moved, Batch)
    assert_close((moved.inputs, moved.target), (batch.inputs, batch.target), rtol=0, atol=0)
    assert (moved.count, moved.total) == (6, 6)


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_processes_measure_on_the_same_sequences(processes: int) -> None:
    """Each its share of the pieces; together they are those of one process."""
    task = Adding(20_000, 3, 12)  # pieces of 5, 5 and 2
    whole = seen(task, "test")
    model = Answers()
    with torch.no_grad():
        shares = [list(task.test(model, Shard(index, processes))) for index in range(processes)]
    assert sum(count for share in shares for _, count in share) == 12
    found = {tuple(column.tolist()) for column in torch.cat(model.asked, dim=1)[:9, :, 0].T}
    assert found == {tuple(column.tolist()) for column in whole[:9, :, 0].T}
