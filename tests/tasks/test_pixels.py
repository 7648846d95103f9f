"""Images as sequences of pixels: read as published, scaled and ordered as the paper says, divided the same always."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from indrnn.files import DataSet
from indrnn.networks import Head, Plain, PlainIndRNN
from indrnn.tasks import pixels as module
from indrnn.tasks.pixels import MNIST, Pixels, PixelsRecipe, read_idx, read_mnist
from indrnn.training import Measured, OneCycle, Shard, Training, generator, train
from indrnn.training.evaluation import measure

WHOLE = Shard()


def means(pieces: Iterator[Measured]) -> dict[str, float]:
    """The means over all that a task yields."""
    found = measure(pieces)
    assert found is not None
    return found


def idx(array: Tensor) -> bytes:
    """A file of the idx format, by hand."""
    head = bytes([0, 0, 8, array.dim()]) + b"".join(struct.pack(">I", size) for size in array.shape)
    return head + bytes(array.flatten().tolist())


def numbered(count: int, height: int = 3, width: int = 5, first: int = 0) -> tuple[Tensor, Tensor]:
    """Images whose first two pixels say which they are, and the rest where they are; their labels."""
    images = torch.arange(height * width, dtype=torch.uint8).repeat(count, 1)
    number = torch.arange(first, first + count)
    images[:, 0], images[:, 1] = number // 256, number % 256
    return images.view(count, height, width), (number % 10).to(torch.uint8)


def numbers_of(pixels: Tensor) -> list[int]:
    """Which images these (count, steps) are, where they are not permuted."""
    return (pixels[:, 0].int() * 256 + pixels[:, 1].int()).tolist()


def small(**options: Any) -> Pixels:
    return Pixels(
        numbered(61), numbered(17, first=1000), PixelsRecipe(**({"validation": 13, "batch_size": 7} | options))
    )


# ---- the idx format


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (1, 1, 1), (0, 5)], ids=str)
def test_idx_files_are_read(shape: tuple[int, ...]) -> None:
    array = torch.randint(0, 256, shape, dtype=torch.uint8)
    read = read_idx(idx(array))
    assert read.dtype == torch.uint8
    assert torch.equal(read, array)


def test_idx_of_bytes_by_hand() -> None:
    content = b"\0\0\x08\x02" + b"\0\0\0\x02" + b"\0\0\0\x03" + b"\x00\x01\xff\x80\x05\x06"
    assert read_idx(content).tolist() == [[0, 1, 255], [128, 5, 6]]


def test_the_four_files_are_images_and_labels_for_training_and_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [*numbered(7, 4, 4), *numbered(3, 4, 4, first=50)]
    contents = dict(zip(MNIST.files, map(idx, arrays), strict=True))
    files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(module, "MNIST", DataSet("mnist", files, ()))
    for name, content in contents.items():
        (tmp_path / name).write_bytes(gzip.compress(content, 1))
    assert all(torch.equal(one, two) for one, two in zip(read_mnist(tmp_path), arrays, strict=True))


# ---- sequences


def test_pixels_are_scaled_to_the_bit() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    task = Pixels(
        (every.repeat(2, 1, 1), torch.zeros(2).byte()), (every, torch.zeros(1).byte()), PixelsRecipe(validation=1)
    )
    x = task.batch(0, WHOLE).inputs
    assert x.dtype == torch.float32
    exact = (torch.arange(256, dtype=torch.float64) / 256 - 0.5) * 2
    assert torch.equal(x.flatten().double(), exact)
    assert (x.min().item(), x.max().item()) == (-1.0, 2 * 255 / 256 - 1)


def test_a_batch_is_the_images_row_by_row() -> None:
    task = small()
    batch = task.batch(3, WHOLE)
    assert batch.inputs.shape == (15, 7, 1)
    assert batch.inputs.is_contiguous()
    assert batch.target.shape == (7,)
    assert batch.target.dtype == torch.int64
    assert (batch.count, batch.total, batch.lengths) == (7, 7, None)
    bytes_read = ((batch.inputs[..., 0] + 1) * 128).t()  # (B, T)
    assert bytes_read[:, 2:].tolist() == [list(range(2, 15))] * 7
    assert [number % 10 for number in numbers_of(bytes_read)] == batch.target.tolist()
    assert task.order_of_pixels is None


def test_the_images_stay_bytes() -> None:
    """All that a task keeps: no copy in float32, which would be four times as large."""
    for options in ({}, {"permuted": True}, {"shrink": 1}):
        task = small(**options)
        task.batch(0, WHOLE)
        assert [task.data[split][0].dtype for split in task.data] == [torch.uint8] * 3
        kept = [value for value in vars(task).values() if isinstance(value, Tensor)]
        kept += [tensor for data in task.data.values() for tensor in data]
        assert not any(tensor.is_floating_point() for tensor in kept)
        bytes_kept = sum(task.data[split][0].untyped_storage().nbytes() for split in task.data)
        assert bytes_kept == (61 + 17) * 15


def test_averages_of_squares() -> None:
    image = torch.tensor([[0, 4, 255, 255], [8, 0, 255, 255], [1, 2, 100, 0], [3, 5, 0, 1]], dtype=torch.uint8)
    images = image.repeat(2, 1, 1)
    labels = torch.tensor([3, 3], dtype=torch.uint8)
    task = Pixels((images, labels), (images, labels), PixelsRecipe(validation=1, shrink=2))
    assert [task.data[split][0][0].tolist() for split in task.data] == [[3, 255, 3, 25]] * 3  # 2.75 and 25.25
    assert task.batch(0, WHOLE).inputs.shape == (4, 1, 1)
    whole = Pixels((images, labels), (images, labels), PixelsRecipe(validation=1, shrink=4))
    assert whole.data["test"][0].tolist() == [[72], [72]]


# ---- permutation


def test_permuted_pixels_are_in_one_order_for_all_images() -> None:
    plain, permuted = small(), small(permuted=True)
    order = permuted.order_of_pixels
    assert order is not None
    assert sorted(order.tolist()) == list(range(15))
    assert order.tolist() != list(range(15))
    for split in ("train", "validation", "test"):
        assert torch.equal(permuted.data[split][0], plain.data[split][0][:, order])
        assert torch.equal(permuted.data[split][1], plain.data[split][1])
    x, y = plain.batch(5, WHOLE).inputs, permuted.batch(5, WHOLE).inputs
    assert torch.equal(x[order], y)


def test_the_order_of_the_pixels_is_by_its_seed_alone() -> None:
    def order(**options: Any) -> list[int]:
        found = small(permuted=True, **options).order_of_pixels
        assert found is not None
        return found.tolist()

    assert order() == order(seed=5, split_seed=6, batch_size=3, validation=2)
    assert order() == order(permutation_seed=0)
    assert order() != order(permutation_seed=1)
    torch.manual_seed(77)
    assert order(permutation_seed=3) == order(permutation_seed=3)


def test_the_order_for_mnist_is_the_recorded_one() -> None:
    """Results of permuted MNIST belong to it: should it ever change, they have to be measured again."""
    images, labels = numbered(3, 28, 28)
    order = Pixels((images, labels), (images, labels), PixelsRecipe(validation=1, permuted=True)).order_of_pixels
    assert order is not None
    assert torch.equal(order, torch.randperm(784, generator=generator(0, "permutation")))
    assert order[:8].tolist() == [459, 643, 699, 680, 659, 593, 168, 45]


# ---- split


def test_images_are_kept_back_and_none_is_lost_or_in_two_places() -> None:
    task = small()
    parts = {split: numbers_of(task.data[split][0]) for split in task.data}
    assert [len(parts[split]) for split in ("train", "validation", "test")] == [48, 13, 17]
    assert sorted(parts["train"] + parts["validation"]) == list(range(61))
    assert parts["test"] == list(range(1000, 1017))
    assert sorted(parts["validation"]) != list(range(13))
    for split, numbers in parts.items():
        assert task.data[split][1].tolist() == [number % 10 for number in numbers]


def test_the_split_is_by_its_seed_alone() -> None:
    def kept(**options: Any) -> set[int]:
        task = small(**options)
        return set(numbers_of(task.data["validation"][0]))

    assert kept() == kept(seed=4, permutation_seed=9, batch_size=2)
    assert kept() != kept(split_seed=1)
    assert kept(split_seed=1) == kept(split_seed=1)


def test_evaluations_may_be_on_images_that_are_trained_on() -> None:
    """The images kept back are kept back all the same."""
    task, usual = small(judge="train"), small()
    numbers = numbers_of(task.data["validation"][0])
    assert len(set(numbers)) == 13
    assert set(numbers) <= set(numbers_of(task.data["train"][0]))
    assert torch.equal(task.data["train"][0], usual.data["train"][0])
    assert task.data["validation"][1].tolist() == [number % 10 for number in numbers]


# ---- batches


def test_an_epoch_visits_every_training_image_once_in_an_order_of_its_own() -> None:
    task = small()
    assert task.steps_per_epoch == 7  # of 48 in batches of 7: the last holds 6
    epochs = []
    for epoch in range(3):
        batches = [task.batch(epoch * 7 + step, WHOLE) for step in range(7)]
        assert [batch.count for batch in batches] == [7] * 6 + [6]
        inputs = torch.cat([batch.inputs[..., 0] for batch in batches], dim=1)
        epochs.append(numbers_of(((inputs + 1) * 128).t()))
    expected = sorted(numbers_of(task.data["train"][0]))
    assert [sorted(epoch) for epoch in epochs] == [expected] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_batch_is_made_again_by_seed_and_step() -> None:
    task = small(seed=3)
    batch = task.batch(9, WHOLE)
    task.batch(30, WHOLE)
    again = small(seed=3).batch(9, WHOLE)
    assert torch.equal(batch.inputs, again.inputs)
    assert torch.equal(batch.target, again.target)
    for other in (small(seed=3).batch(8, WHOLE), small(seed=4).batch(9, WHOLE)):
        assert not torch.equal(other.inputs, batch.inputs)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 11])
def test_pieces_side_by_side_are_the_batch(count: int) -> None:
    task = small(permuted=True)
    for step in (2, 6):  # a full batch, and the last of an epoch
        whole = task.batch(step, WHOLE)
        pieces = [task.batch(step, Shard(i, count)) for i in range(count)]
        counted = [piece for piece in pieces if piece.count]
        assert torch.equal(torch.cat([piece.inputs for piece in counted], dim=1), whole.inputs)
        assert torch.equal(torch.cat([piece.target for piece in counted]), whole.target)
        assert sum(piece.count for piece in pieces) == whole.count
        assert {piece.total for piece in pieces} == {whole.count}
        assert all(piece.inputs.shape[:2] == (15, max(1, piece.count)) for piece in pieces)


class Knows(nn.Module):
    """Reads the label off the second pixel, for images numbered below 256; is wrong for every fifth class."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        assert not self.training
        label = ((x[1, :, 0] + 1) * 128).long() % 10
        return nn.functional.one_hot(torch.where(label == 5, 6, label), 10) * 9.0 + self.anchor, None


def test_every_image_of_a_measurement_counts_once() -> None:
    task = Pixels(numbered(61), numbered(33), PixelsRecipe(validation=13, batch_size=7))
    with torch.no_grad():
        validation, test = means(task.evaluate(Knows().eval(), 3, Shard())), means(task.test(Knows().eval(), Shard()))
    wrong = sum(number % 10 == 5 for number in range(33))
    assert test["accuracy"] == pytest.approx(1 - wrong / 33)
    wrong = int((task.data["validation"][1] == 5).sum())
    assert validation["accuracy"] == pytest.approx(1 - wrong / 13)
    assert task.metric == "accuracy"
    assert task.higher_is_better


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": 0}, "validation must be at least 1, got 0"),
        ({"validation": 61}, "validation must be fewer than the 61 training images, got 61"),
        ({"validation": 7.0}, "validation must be an integer, got float"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": True}, "batch_size must be an integer, got bool"),
        ({"shrink": 0}, "shrink must be at least 1, got 0"),
        ({"shift": -1}, "shift must be at least 0, got -1"),
        ({"shrink": 2}, "shrink must divide the 3×5 pixels of an image, got 2"),
        ({"split_seed": 0.5}, "seed must be a whole number of 64 bits, got 0.5"),
        ({"permutation_seed": 2**64}, "seed must be a whole number of 64 bits, got 18446744073709551616"),
    ],
    ids=[
        "validation",
        "all",
        "float",
        "batch size",
        "bool",
        "shrink",
        "shift",
        "does not divide",
        "split",
        "permutation",
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        small(**options)


# ---- learning


def bright(count: int) -> tuple[Tensor, Tensor]:
    """Dark images of 6×6 in which one of four places is bright, all in the upper half: which, is the class."""
    labels = torch.arange(count) % 4
    images = torch.randint(0, 40, (count, 36), generator=generator(0, "bright", count)).to(torch.uint8)
    images[torch.arange(count), 4 * labels + 1] = 255
    images[:, 18:] = 0
    return images.view(count, 6, 6), labels.to(torch.uint8)


@pytest.mark.parametrize("memory", [True, False], ids=["recurrent", "u = 0"])
def test_a_small_network_learns_what_it_saw_long_before(memory: bool, tmp_path: Path) -> None:
    """And nothing where u is held at 0: the last step alone, where the answer is given, is the same in all images."""
    torch.manual_seed(0)
    task = Pixels(bright(464), bright(100), PixelsRecipe(validation=64, batch_size=40))
    model = Head(Plain(1, 32, 2, sequence_length=36, long_memory=True), 4).build()
    network = model.network
    assert isinstance(network, PlainIndRNN)
    if not memory:
        for layer in network.recurrent_layers:
            layer.weight_hh.requires_grad_(False).zero_()
    options = Training(steps=240 if memory else 40, lr=1.5e-2, schedule=OneCycle(), evaluate_every=60, threads=1)
    result = train(model, task, options, out=tmp_path / "run")
    if memory:
        assert result.test["accuracy"] >= 0.95
    else:
        assert result.test["accuracy"] == 0.25
        assert result.best["accuracy"] < 0.4
        assert all(layer.weight_hh.count_nonzero() == 0 for layer in network.recurrent_layers)


# ---- the real one


def real() -> Path | None:
    folder = os.environ.get("INDRNN_DATA")
    name = next(iter(MNIST.files))
    places = [Path(folder) / below / each for below in ("mnist", "") for each in (name, name[:-3])] if folder else []
    return Path(folder) if folder and any(place.is_file() for place in places) else None


@pytest.mark.skipif(real() is None, reason="INDRNN_DATA names no folder with MNIST in it")
def test_mnist() -> None:
    images, labels, test_images, test_labels = read_mnist()
    assert [tuple(part.shape) for part in (images, labels)] == [(60_000, 28, 28), (60_000,)]
    assert [tuple(part.shape) for part in (test_images, test_labels)] == [(10_000, 28, 28), (10_000,)]
    assert {part.dtype for part in (images, labels, test_images, test_labels)} == {torch.uint8}
    counts = torch.bincount(images.flatten().int(), minlength=256).double()  # of each value of a byte
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = float((counts * values).sum() / counts.sum())
    deviation = float((counts * (values - mean) ** 2).sum() / counts.sum()) ** 0.5
    assert mean == pytest.approx(0.1307, abs=5e-5)
    assert deviation == pytest.approx(0.3081, abs=5e-5)
    assert torch.bincount(labels.int()).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(test_labels.int()).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]

    task = Pixels((images, labels), (test_images, test_labels), PixelsRecipe())
    assert [len(task.data[split][0]) for split in ("train", "validation", "test")] == [57_000, 3_000, 10_000]
    assert all(task.data[split][0].dtype == torch.uint8 for split in task.data)
    assert task.steps_per_epoch == 1782
    assert int(torch.bincount(task.data["validation"][1]).min()) > 200  # of about 300
    batch = task.batch(0, WHOLE)
    assert (tuple(batch.inputs.shape), tuple(batch.target.shape)) == ((784, 32, 1), (32,))


@pytest.mark.parametrize("permuted", [False, True], ids=["in order", "permuted"])
def test_training_images_are_shifted_over_the_background(permuted: bool) -> None:
    images = torch.randint(1, 256, (6, 3, 5), dtype=torch.uint8)
    labels = torch.arange(6, dtype=torch.uint8)
    plain, shifted = (
        Pixels(
            (images, labels), (images, labels), PixelsRecipe(validation=1, batch_size=5, permuted=permuted, shift=shift)
        )
        for shift in (0, 2)
    )
    order = torch.arange(15) if plain.order_of_pixels is None else plain.order_of_pixels
    seen = set()
    for step in range(40):
        before, after = plain.batch(step, Shard()), shifted.batch(step, Shard())
        assert torch.equal(before.target, after.target)
        for item in range(5):
            given, found = torch.zeros(15), torch.zeros(15)
            given[order], found[order] = before.inputs[:, item, 0], after.inputs[:, item, 0]
            moves = [
                (down, right)
                for down in range(-2, 3)
                for right in range(-2, 3)
                if torch.equal(_moved(given.view(3, 5), down, right), found.view(3, 5))
            ]
            assert len(moves) == 1
            seen.add(moves[0])
    assert len(seen) == 25
    pieces = [shifted.batch(3, Shard(index, 2)).inputs for index in range(2)]
    assert torch.equal(torch.cat(pieces, dim=1), shifted.batch(3, Shard()).inputs)
    kept = [next(iter(task.evaluate(_Sum(), 0, Shard())))[0]["loss"] for task in (plain, shifted)]
    assert kept[0] == kept[1]
    assert shifted.describe() == plain.describe() | {"shift": 2}


def _moved(image: Tensor, down: int, right: int) -> Tensor:
    """By a loop over pixels; what comes from outside is background, −1."""
    result = torch.full_like(image, -1.0)
    for y in range(3):
        for x in range(5):
            if 0 <= y - down < 3 and 0 <= x - right < 5:
                result[y, x] = image[y - down, x - right]
    return result


class _Sum(nn.Module):
    """Logits that follow from the pixels alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 10))

    def forward(self, x: Tensor) -> Tensor:
        return x.sum((0, 2))[:, None] * self.weight
