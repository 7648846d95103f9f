"""Sequential MNIST: images of digits, one pixel per step; permuted MNIST: the pixels in a fixed random order.

The data, the task, the recipe, and the rows of the paper's table.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .._lazy import Lazy
from ..baselines import Baseline, Transformer
from ..checks import check_choice, check_count, check_seed
from ..files import DataSet, is_here, read
from ..networks import Dense, Head, Plain, Residual
from ..training import OneCycle, Plateau, Training
from ..training.task import Batch, Shard, TensorTask, generator, rows_of
from .recipe import Answer, AnyNetwork, Confusion, Description, Loop, Recipe, Row, Samples
from .table import Summary, Table, accuracy_columns, command_of, time_of

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from .runs import Run
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")

_FILES = {
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST = DataSet(
    "mnist",
    _FILES,
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://raw.githubusercontent.com/fgnt/mnist/master",
    ),
)
"""The four files, and their addresses."""

CLASSES, TRAINING_IMAGES, SIDE = 10, 60_000, 28
"""Sizes of MNIST; an image has SIDE × SIDE pixels."""
_TEST_IMAGES = 10_000
_SHOWN = 4  # images of every digit, one digit after the other


def read_idx(content: bytes) -> Tensor:
    """Read the array of unsigned bytes in a file of the idx format, whose content has been verified."""
    start = 4 + 4 * content[3]  # behind a size for each dimension
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].view(shape)


def read_mnist(data_dir: Path | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read MNIST: training images (60000, 28, 28) and labels, and test images (10000, 28, 28) and labels, as bytes."""
    images, labels, test_images, test_labels = map(read_idx, read(MNIST, data_dir).values())
    return images, labels, test_images, test_labels


class Pixels(TensorTask):
    """Classification of images read pixel by pixel, row by row.

    The images stay bytes in memory; each batch is converted to (steps, batch, 1) floats (pixel / 256 − 1/2) · 2.
    `train` and `test` hold images (count, height, width) and labels (count,), both uint8; the recipe says how they are
    split, ordered and shifted.
    """

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], recipe: PixelsRecipe) -> None:
        (images, labels), validation = train, recipe.validation
        if not validation < len(images):
            raise ValueError(f"validation must be fewer than the {len(images)} training images, got {validation}")
        height, width = (size // recipe.shrink for size in images.shape[1:])
        place = pixel_order(height * width, recipe.permutation_seed) if recipe.permuted else None
        self.order_of_pixels, self.shift = place, recipe.shift
        self._shifts = _shifts(height, width, recipe.shift, place) if recipe.shift else None
        order = torch.randperm(len(images), generator=generator(recipe.split_seed, "split"))
        held_out, rest = order[:validation], order[validation:]
        parts = [
            (_in_steps(images[items], recipe.shrink, place), labels[items].long())
            for items in (rest, rest[:validation] if recipe.judge == "train" else held_out)
        ]
        parts.append((_in_steps(test[0], recipe.shrink, place), test[1].long()))
        super().__init__(*parts, batch_size=recipe.batch_size, seed=recipe.seed)

    def describe(self) -> dict[str, Any]:
        """See `TensorTask.describe`; with the shift, if any."""
        return super().describe() | ({"shift": self.shift} if self.shift else {})

    def batch(self, step: int, shard: Shard) -> Batch:
        batch = super().batch(step, shard)
        if self._shifts is None:
            return batch
        drawn = torch.randint(len(self._shifts), (batch.total,), generator=generator(self.seed, "shift", step))
        rows, _ = rows_of(shard, batch.total)
        padded = F.pad(batch.inputs, (0, 0, 0, 0, 0, 1), value=-1.0)  # one step more: a background pixel
        batch.inputs = padded.gather(0, self._shifts[drawn[rows]].t().unsqueeze(-1))
        return batch

    def batch_of(self, split: str, items: Tensor) -> Batch:
        """See `TensorTask.batch_of`; without a shift."""
        pixels, labels = self._of(split, items)
        return Batch(_as_inputs(pixels), labels, len(items), len(items))


def pixel_order(steps: int, seed: int) -> Tensor:
    """The pixel that each step of permuted MNIST reads, (steps,)."""
    return torch.randperm(steps, generator=generator(seed, "permutation"))


def _in_steps(images: Tensor, shrink: int, order: Tensor | None) -> Tensor:
    """(count, height, width) to (count, steps): the means of squares of `shrink` pixels a side, as they are read."""
    height, width = images.shape[1:]
    if height % shrink or width % shrink:
        raise ValueError(f"shrink must divide the {height}×{width} pixels of an image, got {shrink}")
    if shrink > 1:
        images = F.avg_pool2d(images.unsqueeze(1).float(), shrink).round().to(torch.uint8)
    pixels = images.flatten(1)
    return pixels if order is None else pixels[:, order]


def _as_inputs(pixels: Tensor) -> Tensor:
    """Bytes (count, steps) to floats (steps, count, 1)."""
    x = pixels.t().unsqueeze(-1).to(torch.float32, memory_format=torch.contiguous_format)
    return x.mul_(1 / 128).sub_(1)


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


# ---- recipe

_NAMES = ("sequential MNIST", "permuted MNIST")


def _summary(run: Summary) -> Summary:
    options = run["options"]
    epoch = -(-(TRAINING_IMAGES - options["validation"]) // options["batch_size"])
    task = _NAMES[options["permuted"]]
    if options["shrink"] > 1:
        task += f", {SIDE // options['shrink']}×{SIDE // options['shrink']} pixels"
    if options.get("shift", 0) > 0:
        task += f", training shifted by up to {options['shift']}"
    return {**run, "task": task, "epochs": run["steps"] / epoch}


def _row(runs: list[Summary]) -> list[object]:
    first = runs[0]
    paper = next((row.value for row in ROWS if row.name == first["recipe"]), "")
    columns = [first["task"], first["name"], f"{first['epochs']:.1f}", time_of(first)]
    return [*columns, *accuracy_columns(runs), paper, command_of(first)]


@dataclass(frozen=True)
class PixelsRecipe(Recipe):
    """Classify digits that are read one pixel a step."""

    table: ClassVar[Table] = Table(
        name="pixels",
        metric="accuracy",
        higher_is_better=True,
        head="task, run, epochs, time, validation, test, paper, command",
        summary=_summary,
        order=lambda run: (run["task"], run["recipe"], json.dumps(run["options"]), run["lr"]),
        row=_row,
        curve=lambda run: (
            run["task"],
            run["name"],
            [(step * run["epochs"] / run["steps"], 100 * value) for step, value in run["curve"]],
        ),
        picture={"across": "epoch", "up": "accuracy on validation images (%)", "logarithmic": False},
    )

    permuted: bool = False
    """Permuted MNIST: read the pixels in a fixed random order."""
    shrink: int = 1
    """Average pooling of images, in pixels per side; 2 shortens the sequence from 784 to 196 steps."""
    shift: int = 0
    """Data augmentation: maximum random shift of a training image along each axis in pixels, redrawn each time."""
    batch_size: int = 32
    """Batch size."""
    validation: int = 3000
    """Number of the 60,000 training images held out for validation, which selects the best weights."""
    judge: Literal["validation", "train"] = "validation"
    """Evaluate on the validation images, or on as many of the training images."""
    model: AnyNetwork = field(default_factory=lambda: Plain(long_memory=True))
    """The network; its last step gives the output."""
    training: Loop = field(default_factory=Training)
    """Training options."""
    seed: int = 0
    """Random seed of weights, dropout, data order and augmentation."""
    split_seed: int = 0
    """Random seed of the validation split."""
    permutation_seed: int = 0
    """Random seed of the pixel permutation."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""

    def check(self) -> None:
        for name in ("validation", "batch_size", "shrink"):
            check_count(name, getattr(self, name))
        check_count("shift", self.shift, 0)
        for name in ("seed", "split_seed", "permutation_seed"):
            check_seed(getattr(self, name), name)
        check_choice("judge", self.judge, ("validation", "train"))
        if not self.validation < TRAINING_IMAGES:
            raise ValueError(f"validation must be fewer than the {TRAINING_IMAGES} images, got {self.validation}")
        if SIDE % self.shrink:
            raise ValueError(f"shrink must divide the {SIDE} pixels of an image's side, got {self.shrink}")

    def available(self) -> bool:
        return is_here(MNIST, self.data_dir)

    def model_config(self, member: int = 0) -> Head:
        return Head(self.model.sized(1, (SIDE // self.shrink) ** 2), CLASSES)

    def task(self, member: int = 0) -> Pixels:
        images, labels, test_images, test_labels = read_mnist(self.data_dir)
        return Pixels((images, labels), (test_images, test_labels), self)

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        steps = (SIDE // self.shrink) ** 2
        order = "a fixed random order" if self.permuted else "rows from the top"
        data = (
            f"MNIST, one pixel a step: {steps} steps in {order}. {TRAINING_IMAGES - self.validation:,} images to train "
            f"on, {self.validation:,} kept back to choose the best weights by, {_TEST_IMAGES:,} for the test."
        )
        return Description(_NAMES[self.permuted], data, self.table.metric, self.table.higher_is_better)

    def answers(self, model: nn.Module, limit: int | None, run: Run) -> list[Answer]:
        if not self.available():
            raise ValueError("the confusion matrix needs MNIST, which is not here (--data-dir, INDRNN_DATA)")
        task = self.task()
        count = task.size("test") if limit is None else min(limit, task.size("test"))
        with torch.inference_mode():
            batches = (task.batch_of("test", items) for items in torch.arange(count).split(250))
            cells = torch.cat([CLASSES * batch.target + model(batch.inputs)[0].argmax(1) for batch in batches])
        counts = cells.bincount(minlength=CLASSES**2).view(CLASSES, CLASSES)
        rest = "" if limit is None else "; all with --full"
        names = [str(digit) for digit in range(CLASSES)]
        return [Confusion(counts.tolist(), names, f"the first {count:,} test images{rest}")]

    def samples(self, model: nn.Module) -> Samples:
        """See `Recipe.samples`: digits to draw, and images held out from training if MNIST is there."""
        steps = (SIDE // self.shrink) ** 2
        order = pixel_order(steps, self.permutation_seed) if self.permuted else None
        page = {"shrink": self.shrink, "order": None if order is None else order.tolist(), "samples": []}
        samples = Samples("pixels", steps, page, classes=[str(digit) for digit in range(CLASSES)])
        if not self.available():
            samples.note = "MNIST is not here, so that the page has drawn digits in the place of images (--data-dir)"
            return samples
        images, labels, *_ = read_mnist(self.data_dir)
        held_out = torch.randperm(len(images), generator=generator(self.split_seed, "split"))[: self.validation]
        of_digit = [held_out[labels[held_out] == digit][:_SHOWN] for digit in range(CLASSES)]
        items = torch.stack([digits[i] for i in range(_SHOWN) for digits in of_digit if i < len(digits)])
        samples.sequences = [*_as_inputs(_in_steps(images[items], self.shrink, order)).unbind(1)]
        page["samples"] = [
            {"label": str(label), "image": base64.b64encode(image.numpy().tobytes()).decode()}
            for image, label in zip(images[items], labels[items].tolist(), strict=True)
        ]
        return samples


# ---- rows

_EPOCH = 1782  # steps of 32 images in the 57,000
_FAST_EPOCH = 891  # of 64


def _paper(model: AnyNetwork, *, lr: float = 2e-4) -> PixelsRecipe:
    """The paper's training (docs/pixels.md), for as many epochs as the authors' longest run; the plateaus decide."""
    training = Training(800 * _EPOCH, lr, Plateau(5, 100), weight_decay=1e-4, evaluate_every=_EPOCH)
    return PixelsRecipe(model=model, training=training)


def _fast(model: AnyNetwork) -> PixelsRecipe:
    """The best result in a few epochs, by validation accuracy, of what was tried (docs/pixels.md)."""
    training = Training(10 * _FAST_EPOCH, 2e-3, OneCycle(), "muon", weight_decay=1e-4, evaluate_every=_FAST_EPOCH // 2)
    return PixelsRecipe(model=model, batch_size=64, training=training)


_SIX = Plain(layers=6, long_memory=True)
_RESIDUAL, _DENSE = Residual(blocks=5, long_memory=True), Dense(long_memory=True)
_TABLE_SIX, _TABLE_TWELVE = replace(_SIX, dropout=0.1), replace(_SIX, layers=12, dropout=0.1)
_TABLE_RESIDUAL, _LSTM_12 = replace(_RESIDUAL, dropout=0.1), Baseline("lstm", layers=12)
_TABLE_DENSE = replace(_DENSE, first_dropout=0.2, dense_dropout=0.2, bottleneck_dropout=0.1, transition_dropout=0.1)


def _both(
    name: str, recipe: PixelsRecipe, table: str, values: tuple[str, str], cost: str, parameters: int
) -> tuple[Row, Row]:
    """A row for MNIST and one for permuted MNIST."""
    row = Row(f"mnist-{name}", recipe, table, values[0], cost, parameters)
    return row, replace(row, name=f"p{row.name}", recipe=replace(recipe, permuted=True), value=values[1])


_TABLE = "Table 2"
ROWS = (
    *_both("6", _paper(_TABLE_SIX), _TABLE, ("99.0 %", "96.0 %"), "3 days", 86_410),
    *_both("12", _paper(_TABLE_TWELVE), _TABLE, ("99.37 %", "96.84 %"), "6 days", 187_786),
    *_both("res12", _paper(_TABLE_RESIDUAL), _TABLE, ("99.39 %", "97.02 %"), "6 days", 170_890),
    *_both("dense", _paper(_TABLE_DENSE), _TABLE, ("99.48 %", "97.20 %"), "9 days", 256_514),
    *_both("6-fast", _fast(_SIX), "Table 2, quicker", ("99.0 %", "96.0 %"), "1 h", 86_410),
    *_both("12-fast", _fast(replace(_SIX, layers=12)), "Table 2, quicker", ("99.37 %", "96.84 %"), "2 h", 187_786),
    *_both("res12-fast", _fast(_RESIDUAL), "Table 2, quicker", ("99.39 %", "97.02 %"), "2 h", 170_890),
    *_both("dense-fast", _fast(_DENSE), "Table 2, quicker", ("99.48 %", "97.20 %"), "3 h", 256_514),
    *_both("rnn", _paper(Baseline("rnn", layers=6)), "beside Table 2", (Row.NOT_SHOWN,) * 2, "12 days", 182_410),
    *_both("irnn", _paper(Baseline("irnn"), lr=1e-5), _TABLE, ("95.0 %", "82 %"), "3 days", 17_930),
    *_both("lstm-6", _paper(Baseline("lstm", layers=6)), _TABLE, ("98.2 %", "88 %"), "30 days", 725_770),
    *_both("lstm-12", _paper(_LSTM_12), "section 5.2.2", ("does not converge", Row.NOT_SHOWN), "60 days", 1_515_274),
    *_both("transformer", _paper(Transformer()), _TABLE, ("98.2 %", Row.NOT_SHOWN), "60 days", 794_890),
    *_both("r-transformer", _paper(Transformer(window=7)), _TABLE, ("99.1 %", Row.NOT_SHOWN), "90 days", 1_191_178),
)
