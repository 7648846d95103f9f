"""Tasks: batches, loss and metrics of what is learnt; `TensorTask` for one's own data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from .options import check_count


def derive_seed(*of: int | str) -> int:
    """A seed for a generator, from a run's seed and what the numbers are for; another for each."""
    digest = hashlib.blake2b(repr(of).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # below 2^63


def generator(*of: int | str) -> torch.Generator:
    """A generator of its own, seeded by `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(*of))


@dataclass(frozen=True)
class Shard:
    """Which piece of a batch: number `index` of `count` pieces, over processes and accumulation."""

    index: int = 0
    count: int = 1

    def of(self, total: int) -> range:
        """The items of this piece, of a batch of so many; the pieces differ by one item at most."""
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)


@dataclass
class Batch:
    """A piece of a batch; see `Task.batch`."""

    inputs: Tensor
    target: Tensor
    count: int
    """Items that the loss is the mean of; 0 in a piece that fell empty and holds one item in its place."""
    total: int
    """Items in all pieces of the batch."""
    lengths: Tensor | None = None

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        lengths = None if self.lengths is None else change(self.lengths)
        return replace(self, inputs=change(self.inputs), target=change(self.target), lengths=lengths)

    def to(self, device: torch.device) -> Batch:
        """The same on a device; from pinned memory without waiting for it."""
        return self if device.type == "cpu" else self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same in memory that a GPU reads by itself."""
        return self._each(lambda tensor: tensor.pin_memory())


Measured = tuple[dict[str, Tensor | float], int]
"""Means over some items, each a number or a tensor of one, and how many items."""


class Task(Protocol):
    """What `train` needs. Every method gives the same for the same arguments: so a run can be taken up again.

    Five more are looked for and may be left out:

    `describe() -> dict`: what it is (data, batch size, ...), for config.json. A run is only resumed by its equal.

    `state_dict() -> dict` and `load_state_dict(dict)`: what `loss` carries from step to step on the device, such as
    h_n of a language model. A checkpoint holds that of each process. A step must not write into the tensors that
    `state_dict` returned before it: it makes new ones.

    `derive(means) -> dict`: the numbers of an evaluation, from its means over all items and processes: for those that
    are no means, such as a perplexity.

    `tokeniser`: an `indrnn.tokeniser.Tokeniser`, kept in the run's folder with the model.

    `prefetch = True`: the next batch is made in a thread while a step is computed, for a `batch` that reads files.
    """

    metric: str
    """The number of `evaluate` that says which weights are best."""
    higher_is_better: bool
    """Whether it grows as they get better."""

    def batch(self, step: int, shard: Shard) -> Batch:
        """Make this piece of the batch of a step, on the CPU."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Run the model and return the mean loss over the batch's items."""

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        """Measure a model, in evaluation mode, during training; yield after each batch, so that a run can be stopped.

        `shard` is this process's piece of the work.
        """

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        """Measure the best weights once training is over; yields nothing where there is nothing to measure on."""


def rows_of(shard: Shard, total: int) -> tuple[Tensor, int]:
    """The items of a piece of a batch, and how many count: an empty piece gets one item that does not."""
    items = shard.of(total)
    return torch.tensor(list(items) or [0]), len(items)


Array = Tensor | np.ndarray[Any, Any]
Data = Sequence[Array] | Dataset[Any] | DataLoader[Any]
"""Inputs and targets, and lengths if the inputs are padded; or a data set whose items are such tuples."""


class _Items:
    """Items of a `Dataset`, read when they are asked for."""

    def __init__(self, name: str, dataset: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise TypeError(f"{name} must be a data set of known length, whose items can be had by number")
        self.name, self.dataset, self.collate = name, dataset, collate
        if not len(self):
            raise ValueError(f"{name} must hold at least one item, got none")
        self.take(torch.tensor([0]))

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, items: Tensor) -> tuple[Tensor, ...]:
        numbers = items.tolist()
        batch = self.collate([self.dataset[number] for number in numbers])
        if not isinstance(batch, (tuple, list)):
            raise TypeError(f"{self.name} must have items of two parts, inputs and target, or three, with a length")
        tensors = _tensors(self.name, batch)
        _check_finite(self.name, tensors, numbers)
        return tensors


class TensorTask:
    """Items in memory or in a `Dataset`, shuffled anew in each epoch.

    Three sets: of training, of validation, which chooses the best weights, and of test, for the end. Without
    validation data the weights are chosen on those of training, and the numbers are called `training_...`; without
    test data nothing is measured at the end.

    Args:
        train: inputs and targets, and lengths if the inputs are padded: tensors or NumPy arrays with the items in the
            first dimension; or a `Dataset` of such tuples; or a `DataLoader`, of which its data set, how it collates
            and, unless given, its batch size are taken. The order is this task's own, so that it can be resumed.
        validation: the same, to evaluate on.
        test: the same, for the end.
        batch_size: items in a batch, 32 if none is given. An epoch's last batch holds what is left.
        loss: of the model's output and the target, mean over the items. An output that is a tuple (output, state) is
            taken by its first part.
        seed: of the shuffling.
    """

    def __init__(
        self,
        train: Data,
        validation: Data | None = None,
        test: Data | None = None,
        *,
        batch_size: int | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        seed: int = 0,
    ) -> None:
        if batch_size is None:
            batch_size = (train.batch_size if isinstance(train, DataLoader) else None) or 32
        check_count("batch_size", batch_size)
        given = {"train": train, "validation": validation, "test": test}
        self.data: dict[str, Any] = {name: _checked(name, data) for name, data in given.items() if data is not None}
        self.judged = "validation" if validation is not None else "train"
        self.prefetch = isinstance(self.data["train"], _Items)
        self.batch_size, self._loss, self.seed = batch_size, loss, seed
        self.classifies = not self._of("train", torch.tensor([0]))[1].is_floating_point()
        self._prefix = "" if validation is not None else "training_"
        self.metric = self._prefix + ("accuracy" if self.classifies else "loss")
        self.higher_is_better = self.classifies
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def describe(self) -> dict[str, Any]:
        """What it is: sizes, and a checksum over some of the items where they are in memory."""
        loss = getattr(self._loss, "__qualname__", type(self._loss).__qualname__)
        about = {"type": type(self).__name__, "batch_size": self.batch_size, "seed": self.seed, "loss": loss}
        return about | {name: _about(data) for name, data in self.data.items()}

    def size(self, split: str) -> int:
        """Items of "train", "validation" or "test"; 0 where there are none."""
        if split not in self.data:
            return 0
        data = self.data[split]
        return len(data) if isinstance(data, _Items) else len(data[0])

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return -(-self.size("train") // self.batch_size)

    def batch(self, step: int, shard: Shard) -> Batch:
        """See `Task.batch`."""
        items = self._items_of(step)
        rows, count = rows_of(shard, len(items))
        return replace(self.take("train", items[rows]), count=count, total=len(items))

    def _items_of(self, step: int) -> Tensor:
        """The items of a step's batch."""
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            order = torch.randperm(self.size("train"), generator=generator(self.seed, "order", epoch))
            self._order = epoch, order
        return self._order[1][at * self.batch_size : (at + 1) * self.batch_size]

    def _of(self, split: str, items: Tensor) -> tuple[Tensor, ...]:
        data = self.data[split]
        return data.take(items) if isinstance(data, _Items) else tuple(tensor[items] for tensor in data)

    def take(self, split: str, items: Tensor) -> Batch:
        """A batch of these items of "train", "validation" or "test", by their numbers, as a model reads it."""
        inputs, target, *lengths = self._of(split, items)
        return Batch(inputs, target, len(items), len(items), lengths[0] if lengths else None)

    def _output(self, model: nn.Module, batch: Batch) -> Tensor:
        extra: dict[str, Any] = {} if batch.lengths is None else {"lengths": batch.lengths}
        output = model(batch.inputs, **extra)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return self._loss(self._output(model, batch), batch.target)

    def _measure(self, model: nn.Module, split: str, shard: Shard, prefix: str = "") -> Iterator[Measured]:
        size = self.size(split)
        device = next(model.parameters()).device
        for number in range(shard.index, -(-size // self.batch_size), shard.count):
            items = torch.arange(number * self.batch_size, min((number + 1) * self.batch_size, size))
            batch = self.take(split, items).to(device)
            output = self._output(model, batch)
            means: dict[str, Tensor | float] = {f"{prefix}loss": self._loss(output, batch.target)}
            if self.classifies:
                means[f"{prefix}accuracy"] = (output.argmax(1) == batch.target).double().mean()
            yield means, len(items)

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        """See `Task.evaluate`."""
        return self._measure(model, self.judged, shard, self._prefix)

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        """See `Task.test`."""
        if "test" in self.data:
            yield from self._measure(model, "test", shard)


def _tensors(name: str, data: Sequence[Any]) -> tuple[Tensor, ...]:
    """As tensors, classes as 64-bit numbers."""
    if len(data) not in (2, 3) or not all(isinstance(each, (Tensor, np.ndarray)) for each in data):
        raise TypeError(f"{name} must be two tensors or NumPy arrays, inputs and targets, or three, with lengths")
    inputs, target, *lengths = (torch.as_tensor(each) for each in data)
    return inputs, target if target.is_floating_point() else target.long(), *lengths


def _checked(name: str, data: Data) -> tuple[Tensor, ...] | _Items:
    if isinstance(data, DataLoader):
        return _Items(name, data.dataset, data.collate_fn)
    if isinstance(data, Dataset):
        return _Items(name, data, default_collate)
    tensors = _tensors(name, tuple(data))
    sizes = {len(tensor) if tensor.dim() else 0 for tensor in tensors}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"{name} must hold the same number of items, at least one, in each tensor, got {sorted(sizes)}"
        )
    _check_finite(name, tensors, range(len(tensors[0])))
    return tensors


def _check_finite(name: str, tensors: tuple[Tensor, ...], numbers: Sequence[int]) -> None:
    """Raise with the place of the first number that is not finite."""
    for part, tensor in zip(("inputs", "targets"), tensors, strict=False):
        if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):
            continue
        wrong = (~torch.isfinite(tensor)).nonzero()
        if len(wrong):  # else only the sum was too large
            item, *place = wrong[0].tolist()
            value = tensor[tuple(wrong[0])].item()
            at = f", at [{', '.join(map(str, place))}]" if place else ""
            raise ValueError(f"{name} must be finite, got {value} in the {part} of item {numbers[item]}{at}")


_SAMPLED = 64  # items, evenly over a set, that its checksum is taken over


def _about(data: tuple[Tensor, ...] | _Items) -> dict[str, Any]:
    if isinstance(data, _Items):
        return {"items": len(data), "dataset": type(data.dataset).__qualname__}
    count = len(data[0])
    rows = torch.linspace(0, count - 1, min(count, _SAMPLED), dtype=torch.float64).long()
    checksum = hashlib.blake2b(digest_size=8)
    for tensor in data:
        sample = tensor.detach().cpu()[rows].contiguous()
        checksum.update(f"{sample.dtype} {list(tensor.shape)}".encode())
        checksum.update(sample.view(torch.uint8).numpy().tobytes() if sample.dim() else b"")
    return {"items": count, "shape": list(data[0].shape[1:]), "checksum": checksum.hexdigest()}
