"""Seeds, pieces of batches, and tensors in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn.training import Batch, Measured, Shard, TensorTask, derive_seed, generator
from indrnn.training.evaluation import measure
from indrnn.training.task import rows_of

ITEMS, FEATURES, CLASSES, BATCH = 23, 3, 5, 7
STEPS = 4  # in an epoch: three full batches and one of 2


def means(pieces: Iterator[Measured]) -> dict[str, float]:
    """The means over all that a task yields."""
    found = measure(pieces)
    assert found is not None
    return found


def numbered(items: int = ITEMS) -> tuple[Tensor, Tensor]:
    """Each item's input and target hold its number."""
    numbers = torch.arange(items)
    return numbers.float().unsqueeze(1).expand(items, FEATURES), numbers


def data(items: int = ITEMS) -> tuple[Tensor, Tensor]:
    return torch.randn(items, FEATURES), torch.randint(CLASSES, (items,))


def numbers_of(batch: Batch) -> list[int]:
    assert torch.equal(batch.inputs, batch.target.float().unsqueeze(1).expand(-1, FEATURES))
    return [int(number) for number in batch.target]


def epoch_of(task: TensorTask, epoch: int) -> list[list[int]]:
    steps = range(epoch * task.steps_per_epoch, (epoch + 1) * task.steps_per_epoch)
    return [numbers_of(task.batch(step, Shard())) for step in steps]


# ---- seeds


def test_a_seed_depends_on_each_argument() -> None:
    given: list[tuple[int | str, ...]] = [
        (),
        (0,),
        (1,),
        (-1,),
        (0, 0),
        (0, "noise"),
        (0, "order"),
        (1, "noise"),
        ("noise", 0),
        ("0",),
        (0, "noise", 0),
        (0, "noise", 1),
        (0, "noise", 1, 0),
        (0, "noise", 0, 1),
        (0, "noise", 10),
        (0, "noise1", 0),
        (2**70,),
    ]
    seeds = {derive_seed(*of) for of in given}
    assert len(seeds) == len(given)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_in_every_process_and_version() -> None:
    """Or a run could not be resumed, and its numbers not be made again."""
    assert derive_seed(0, "noise", 17, 0, 2) == 6325019005119354944
    assert derive_seed(3, "order", 0) == 4917129201955457761


def test_a_generator_is_its_own() -> None:
    state = torch.get_rng_state()
    first, again, other = (torch.rand(9, generator=generator(5, "x", last)) for last in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


# ---- pieces


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 101])
@pytest.mark.parametrize("total", [0, 1, 2, 13, 50, 97])
def test_pieces_in_order_are_the_whole(total: int, count: int) -> None:
    pieces = [Shard(index, count).of(total) for index in range(count)]
    assert list(chain.from_iterable(pieces)) == list(range(total))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_the_whole_is_the_default() -> None:
    assert Shard().of(11) == range(11)


def test_an_empty_piece_holds_one_item_that_does_not_count() -> None:
    found = [rows_of(Shard(index, 5), 3) for index in range(5)]
    assert [count for _, count in found].count(0) == 2
    for rows, count in found:
        assert len(rows) == max(1, count)
        assert rows.dtype == torch.int64
    assert [int(row) for rows, count in found for row in rows[:count]] == [0, 1, 2]


# ---- batches of tensors


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize("batch_size", [1, BATCH, ITEMS - 1, ITEMS, ITEMS + 9])
def test_each_item_once_in_an_epoch(batch_size: int, epoch: int) -> None:
    task = TensorTask(numbered(), batch_size=batch_size)
    batches = epoch_of(task, epoch)
    assert sorted(chain.from_iterable(batches)) == list(range(ITEMS))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_an_epochs_last_batch_holds_what_is_left() -> None:
    task = TensorTask(numbered(), batch_size=BATCH)
    assert task.steps_per_epoch == STEPS
    for step in (STEPS - 1, 2 * STEPS - 1):
        batch = task.batch(step, Shard())
        assert (len(batch.inputs), len(batch.target), batch.count, batch.total) == (2, 2, 2, 2)
    batch = task.batch(STEPS, Shard())
    assert (len(batch.inputs), batch.count, batch.total) == (BATCH, BATCH, BATCH)


def test_another_order_in_each_epoch_and_for_each_seed() -> None:
    task, other = (TensorTask(numbered(), batch_size=BATCH, seed=seed) for seed in (0, 1))
    orders = [tuple(chain.from_iterable(epoch_of(task, epoch))) for epoch in range(6)]
    orders += [tuple(chain.from_iterable(epoch_of(other, epoch))) for epoch in range(6)]
    assert len(set(orders)) == 12
    assert tuple(range(ITEMS)) not in orders


def test_a_step_has_its_batch_whenever_it_is_asked_for() -> None:
    task = TensorTask(numbered(), batch_size=BATCH, seed=3)
    in_order = [numbers_of(task.batch(step, Shard())) for step in range(3 * STEPS)]
    for step in [11, 0, 7, 7, 4, 10, 1, 0]:
        assert numbers_of(task.batch(step, Shard())) == in_order[step]
        assert numbers_of(TensorTask(numbered(), batch_size=BATCH, seed=3).batch(step, Shard())) == in_order[step]


def test_batches_leave_the_global_generator_alone() -> None:
    task = TensorTask(numbered(), batch_size=BATCH)
    state = torch.get_rng_state()
    first = numbers_of(task.batch(0, Shard()))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert numbers_of(TensorTask(numbered(), batch_size=BATCH).batch(0, Shard())) == first


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("step", [0, STEPS - 1, 2 * STEPS + 1])
def test_pieces_of_a_batch_are_the_batch(step: int, count: int) -> None:
    lengths = torch.arange(ITEMS) * 10
    task = TensorTask((*numbered(), lengths), batch_size=BATCH)
    whole = task.batch(step, Shard())
    pieces = [task.batch(step, Shard(index, count)) for index in range(count)]
    assert all(piece.total == whole.total for piece in pieces)
    assert sum(piece.count for piece in pieces) == whole.total
    for piece in pieces:
        assert len(piece.inputs) == max(1, piece.count)  # an empty one holds an item, so that the model can run
    for name in ("inputs", "target", "lengths"):
        parts = [getattr(piece, name)[: piece.count] for piece in pieces]
        assert torch.equal(torch.cat(parts), getattr(whole, name))


# ---- losses and numbers


class WithLengths(nn.Module):
    """Remembers the lengths it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.lengths: list[Tensor] = []

    def forward(self, x: Tensor, *, lengths: Tensor) -> tuple[Tensor, None]:
        self.lengths.append(lengths)
        return self.linear(x), None


def test_lengths_go_with_their_items() -> None:
    lengths = torch.arange(ITEMS) * 3 + 1
    task = TensorTask((*numbered()[:1], torch.arange(ITEMS) % CLASSES, lengths), batch_size=BATCH)
    model = WithLengths()
    batch = task.batch(2, Shard(1, 2))
    task.loss(model, batch)
    assert batch.lengths is not None
    assert torch.equal(model.lengths[0], batch.inputs[:, 0].long() * 3 + 1)
    model.lengths.clear()
    means(task.evaluate(model, 0, Shard()))
    assert torch.equal(torch.cat(model.lengths), lengths)


def test_without_lengths_the_model_gets_none() -> None:
    task = TensorTask(data(), batch_size=BATCH)
    batch = task.batch(0, Shard())
    assert batch.lengths is None
    assert batch.to(torch.device("cpu")).lengths is None
    assert torch.isfinite(task.loss(nn.Linear(FEATURES, CLASSES), batch))


def test_the_loss_of_a_batch() -> None:
    model = nn.Linear(FEATURES, CLASSES)
    batch = TensorTask(data(), batch_size=BATCH).batch(0, Shard())
    logits = batch.inputs @ model.weight.T + model.bias
    chosen = logits[torch.arange(BATCH), batch.target]
    expected = (logits.exp().sum(1).log() - chosen).sum() / BATCH
    assert_close(TensorTask(data(), batch_size=BATCH).loss(model, batch), expected)


def test_the_first_part_of_a_tuple_is_the_output() -> None:
    class Pair(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return super().forward(input), "state"

    task = TensorTask(data(), batch_size=BATCH)
    pair, alone = Pair(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)
    alone.load_state_dict(pair.state_dict())
    batch = task.batch(0, Shard())
    assert torch.equal(task.loss(pair, batch), task.loss(alone, batch))
    assert means(task.evaluate(pair, 0, Shard())) == means(task.evaluate(alone, 0, Shard()))


def test_accuracy_and_loss_over_all_items() -> None:
    """Over the items, not over the batches: the last one is smaller."""
    train, validation, test = data(), data(17), data(11)
    task = TensorTask(train, validation, test, batch_size=BATCH)
    model = nn.Linear(FEATURES, CLASSES)
    assert (task.metric, task.higher_is_better) == ("accuracy", True)
    for measured, (x, y) in (
        (means(task.evaluate(model, 3, Shard())), validation),
        (means(task.test(model, Shard())), test),
    ):
        rows = list(zip(model(x).tolist(), y.tolist(), strict=True))
        right = [row.index(max(row)) == target for row, target in rows]
        losses = [math.log(sum(map(math.exp, row))) - row[target] for row, target in rows]
        assert set(measured) == {"loss", "accuracy"}
        assert measured["accuracy"] == sum(right) / len(y)
        assert measured["loss"] == pytest.approx(sum(losses) / len(y), rel=1e-5)


def test_a_regression_goes_by_its_loss() -> None:
    x, y = torch.randn(ITEMS, FEATURES), torch.randn(ITEMS, 2)
    task = TensorTask((x, y), batch_size=BATCH, loss=F.l1_loss)
    model = nn.Linear(FEATURES, 2)
    assert (task.metric, task.higher_is_better) == ("training_loss", False)
    assert set(means(task.evaluate(model, 0, Shard()))) == {"training_loss"}
    assert means(task.evaluate(model, 0, Shard()))["training_loss"] == pytest.approx(
        (model(x) - y).abs().mean().item(), rel=1e-5
    )


def test_what_was_measured_on_is_in_the_name() -> None:
    model = nn.Linear(FEATURES, CLASSES)
    train, validation = data(), data(17)
    alone, both = TensorTask(train), TensorTask(train, validation)
    assert alone.metric == "training_accuracy"
    on_training = means(alone.evaluate(model, 0, Shard()))
    on_validation = means(both.evaluate(model, 0, Shard()))
    assert set(on_training) == {"training_accuracy", "training_loss"}
    assert on_training["training_loss"] == means(TensorTask(data(), train).evaluate(model, 0, Shard()))["loss"]
    assert set(on_validation) == {"accuracy", "loss"}
    assert list(alone.test(model, Shard())) == list(both.test(model, Shard())) == []  # there are no test data


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_processes_share_an_evaluation(processes: int) -> None:
    model = nn.Linear(FEATURES, CLASSES)
    task = TensorTask(data(), data(17), batch_size=BATCH)
    shares = [list(task.evaluate(model, 0, Shard(index, processes))) for index in range(processes)]
    assert sum(count for share in shares for _, count in share) == 17
    losses = (
        sum(float(torch.as_tensor(each["loss"]).detach()) * count for share in shares for each, count in share) / 17
    )
    assert losses == pytest.approx(means(task.evaluate(model, 0, Shard()))["loss"], rel=1e-6)


# ---- where data come from


class Numbered(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Reads an item when it is asked for."""

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        return torch.full((FEATURES,), math.nan if item == self.bad else float(item)), item


def sources() -> dict[str, Any]:
    x, y = numbered()
    loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
    arrays = (x.numpy().copy(), y.numpy().astype("int32"))
    return {
        "arrays": arrays,
        "int32": (x, y.int()),
        "bytes": (x, y.to(torch.uint8)),
        "set": Numbered(),
        "loader": loader,
    }


@pytest.mark.parametrize("kind", sources())
def test_data_of_every_kind_is_the_same_data(kind: str) -> None:
    size = {} if kind == "loader" else {"batch_size": BATCH}  # a loader's own
    task = TensorTask(sources()[kind], sources()[kind], **size)  # type: ignore[arg-type]
    expected = TensorTask(numbered(), numbered(), batch_size=BATCH)
    assert task.batch_size == BATCH
    assert task.classifies
    assert task.prefetch == (kind in ("set", "loader"))
    for step in (0, STEPS - 1, 2 * STEPS):
        batch, same = task.batch(step, Shard()), expected.batch(step, Shard())
        assert torch.equal(batch.inputs, same.inputs)
        assert torch.equal(batch.target, same.target)
        assert batch.target.dtype == torch.int64
    model = nn.Linear(FEATURES, ITEMS)
    assert means(task.evaluate(model, 0, Shard())) == means(expected.evaluate(model, 0, Shard()))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_named_with_its_place(split: str, value: float) -> None:
    x, y = torch.randn(ITEMS, 6, FEATURES), torch.randint(CLASSES, (ITEMS,))
    x[13, 4, 1] = value
    with pytest.raises(
        ValueError, match=rf"^{split} must be finite, got {value} in the inputs of item 13, at \[4, 1\]"
    ):
        TensorTask(**cast("Any", {"train": data(), split: (x, y)}))
    bad = (torch.zeros(4, 2), torch.tensor([0, 1, value, 2.0]))
    with pytest.raises(ValueError, match=rf"^{split} must be finite, got {value} in the targets of item 2$"):
        TensorTask(**cast("Any", {"train": data(), split: bad}), loss=F.mse_loss)


def test_large_numbers_are_finite() -> None:
    TensorTask((torch.full((9, 2), 3e38), torch.zeros(9)), loss=F.mse_loss)


def test_a_bad_item_of_a_data_set_is_named_when_it_is_read() -> None:
    task = TensorTask(data(), Numbered(bad=16), batch_size=BATCH)
    with pytest.raises(ValueError, match=r"^validation must be finite, got nan in the inputs of item 16, at \[0\]"):
        means(task.evaluate(nn.Linear(FEATURES, ITEMS), 0, Shard()))


def test_a_data_set_without_numbers_is_refused() -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(TypeError, match=r"^train must be a data set of known length"):
        TensorTask(Endless())


def test_a_task_says_what_it_is() -> None:
    train, other = data(), data()
    about = TensorTask(train, batch_size=BATCH, seed=3).describe()
    assert (about["batch_size"], about["seed"], about["train"]["items"]) == (BATCH, 3, ITEMS)
    assert TensorTask(train, batch_size=BATCH, seed=3).describe() == about
    assert TensorTask(train, batch_size=BATCH + 1, seed=3).describe() != about
    assert TensorTask(other, batch_size=BATCH, seed=3).describe() != about
    assert TensorTask(train, other, batch_size=BATCH, seed=3).describe() != about


# ---- bad data

Errors = type[Exception] | tuple[type[Exception], ...]
BAD: dict[str, tuple[Any, Errors]] = {
    "one tensor": ((torch.zeros(3, 2),), TypeError),
    "four tensors": ((torch.zeros(3),) * 4, TypeError),
    "no tensors": ((), TypeError),
    "a list": ((torch.zeros(3, 2), [0, 1, 2]), TypeError),
    "a None": ((torch.zeros(3, 2), None), TypeError),
    "numbers": ((torch.tensor(1.0), torch.tensor(1)), (TypeError, ValueError)),
    "other sizes": ((torch.zeros(3, 2), torch.zeros(4)), ValueError),
    "other lengths": ((torch.zeros(3, 2), torch.zeros(3), torch.zeros(2)), ValueError),
    "nothing": ((torch.zeros(0, 2), torch.zeros(0)), ValueError),
}


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("name", BAD)
def test_bad_data(name: str, split: str) -> None:
    given, error = BAD[name]
    with pytest.raises(error, match=f"^{split} must"):
        TensorTask(**{"train": data(), split: given})


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True])
def test_bad_batch_size(batch_size: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^batch_size must"):
        TensorTask(data(), batch_size=batch_size)


def test_the_steps_of_an_epoch_are_apart() -> None:
    """Two batches of an epoch share no item, whatever epoch."""
    task = TensorTask(numbered(), batch_size=2)
    for first, second in pairwise(epoch_of(task, 2)):
        assert not set(first) & set(second)
