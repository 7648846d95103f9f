"""Sequential MNIST: images of digits, one pixel per step; permuted MNIST: the pixels in a fixed random order."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_count, check_seed
from ..files import DataFile, DataSet, read
from ..training.task import Batch, Shard, TensorTask, generator, rows_of

MNIST = DataSet(
    "mnist",
    (
        DataFile(
            "train-images-idx3-ubyte.gz", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016
        ),
        DataFile(
            "train-labels-idx1-ubyte.gz", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008
        ),
        DataFile(
            "t10k-images-idx3-ubyte.gz", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016
        ),
        DataFile(
            "t10k-labels-idx1-ubyte.gz", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008
        ),
    ),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://raw.githubusercontent.com/fgnt/mnist/master",
    ),
)
"""The four files, and where they can be had."""

CLASSES, TRAINING_IMAGES, SIDE = 10, 60_000, 28
"""Of MNIST; an image has SIDE × SIDE pixels."""


def read_idx(content: bytes) -> Tensor:
    """Read the array of unsigned bytes in a file of the idx format."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError("an idx file of unsigned bytes must begin with 00 00 08")
    dims = content[3]
    start = 4 + 4 * dims
    if len(content) < start:
        raise ValueError(f"an idx file of {dims} dimensions must have a head of {start} bytes, got {len(content)}")
    shape = struct.unpack(f">{dims}I", content[4:start])
    array = torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:]
    if array.numel() != torch.Size(shape).numel():
        raise ValueError(f"an idx file of shape {shape} must hold {torch.Size(shape).numel()} bytes after its head")
    return array.view(shape)


def read_mnist(data_dir: Path | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read MNIST: training images (60000, 28, 28) and labels, and test images (10000, 28, 28) and labels, as bytes."""
    contents = read(MNIST, data_dir)
    images, labels, test_images, test_labels = (read_idx(contents[file.name]) for file in MNIST.files)
    return images, labels, test_images, test_labels


class Pixels(TensorTask):
    """Classification of images read pixel by pixel, row by row.

    The images stay bytes in memory; each batch is converted to (steps, batch, 1) floats (pixel / 256 − 1/2) · 2.

    Args:
        train: images (count, height, width) and labels (count,), both uint8.
        test: the same, for test.
        validation: number of training images held out, drawn by `split_seed`.
        judge: evaluate on the held-out images (validation), or on as many of the training images (train).
        batch_size: images in a batch.
        permuted: read the pixels in an order drawn by `permutation_seed`, the same for all images.
        shrink: average squares of this many pixels a side first: 2 makes sequences a quarter as long.
        shift: maximum random shift of training images over the background, in pixels each way, drawn anew each time.
        seed: seed of the order and the shifts of the images in training.
        split_seed: see `validation`.
        permutation_seed: see `permuted`.
    """

    def __init__(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        *,
        validation: int = 3000,
        judge: Literal["validation", "train"] = "validation",
        batch_size: int = 32,
        permuted: bool = False,
        shrink: int = 1,
        shift: int = 0,
        seed: int = 0,
        split_seed: int = 0,
        permutation_seed: int = 0,
    ) -> None:
        check_pixels(validation, judge, batch_size, shrink, shift, seed, split_seed, permutation_seed)
        images, labels = train
        if not validation < len(images):
            raise ValueError(f"validation must be fewer than the {len(images)} training images, got {validation}")
        order = torch.randperm(len(images), generator=generator(split_seed, "split"))
        pixels = self._sequences(images, shrink)
        steps = pixels.shape[1]
        place = torch.randperm(steps, generator=generator(permutation_seed, "permutation")) if permuted else None
        self.order_of_pixels, self.shift = place, shift
        self._shifts = _shifts(images.shape[1] // shrink, images.shape[2] // shrink, shift, place) if shift else None

        def part(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            return (pixels if place is None else pixels[:, place]), labels.long()

        kept, rest = order[:validation], order[validation:]
        kept = rest[:validation] if judge == "train" else kept
        super().__init__(
            part(pixels[rest], labels[rest]),
            part(pixels[kept], labels[kept]),
            part(self._sequences(test[0], shrink), test[1]),
            batch_size=batch_size,
            seed=seed,
        )

    def describe(self) -> dict[str, Any]:
        """See `TensorTask.describe`; with the shift, if any."""
        return super().describe() | ({"shift": self.shift} if self.shift else {})

    def batch(self, step: int, shard: Shard) -> Batch:
        """See `Task.batch`."""
        batch = super().batch(step, shard)
        if self._shifts is None:
            return batch
        drawn = torch.randint(len(self._shifts), (batch.total,), generator=generator(self.seed, "shift", step))
        rows, _ = rows_of(shard, batch.total)
        padded = F.pad(batch.inputs, (0, 0, 0, 0, 0, 1), value=-1.0)  # one step more: a background pixel
        batch.inputs = padded.gather(0, self._shifts[drawn[rows]].t().unsqueeze(-1))
        return batch

    @staticmethod
    def _sequences(images: Tensor, shrink: int) -> Tensor:
        """(count, height, width) to (count, steps)."""
        if shrink > 1:
            height, width = images.shape[1:]
            if height % shrink or width % shrink:
                raise ValueError(f"shrink must divide the {height}×{width} pixels of an image, got {shrink}")
            means = F.avg_pool2d(images.unsqueeze(1).float(), shrink)
            images = means.round().to(torch.uint8).squeeze(1)
        return images.flatten(1)

    def take(self, split: str, items: Tensor) -> Batch:
        """See `TensorTask.take`; without a shift."""
        pixels, labels = self._of(split, items)
        x = pixels.t().unsqueeze(-1).to(torch.float32, memory_format=torch.contiguous_format)
        return Batch(x.mul_(1 / 128).sub_(1), labels, len(items), len(items))


def _shifts(height: int, width: int, most: int, place: Tensor | None) -> Tensor:
    """For each shift, the step from which each step takes its pixel, (shifts, steps); `steps` itself for background."""
    steps = height * width
    number = torch.full((height + 2 * most, width + 2 * most), steps)
    number[most : most + height, most : most + width] = torch.arange(steps).view(height, width)
    moved = number.unfold(0, height, 1).unfold(1, width, 1).reshape(-1, steps)
    if place is None:
        return moved
    step_of = torch.cat([place.argsort(), torch.tensor([steps])])  # of each pixel, in the order of reading
    return step_of[moved[:, place]]


def check_pixels(
    validation: int,
    judge: str,
    batch_size: int,
    shrink: int,
    shift: int,
    seed: int,
    split_seed: int,
    permutation_seed: int,
) -> None:
    """Raise for invalid options."""
    check_count("validation", validation)
    if judge not in ("validation", "train"):
        raise ValueError(f"judge must be validation or train, got {judge!r}")
    check_count("batch_size", batch_size)
    check_count("shrink", shrink)
    check_count("shift", shift, 0)
    check_seed(seed)
    check_seed(split_seed, "split_seed")
    check_seed(permutation_seed, "permutation_seed")
