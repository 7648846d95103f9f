"""Tasks: batches, loss and metrics; `TensorTask` for your own data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .._lazy import Lazy
from ..checks import check_count

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn
    from torch.utils import data as torch_data
else:  # tasks stand beside their options, which need no torch
    np, torch, torch_data = Lazy("numpy"), Lazy("torch"), Lazy("torch.utils.data")

Measured: TypeAlias = "tuple[dict[str, Tensor | float], int]"
"""Means over some items, each a number or a tensor of one, and the number of items."""
Array: TypeAlias = "Tensor | np.ndarray[Any, Any]"
Data: TypeAlias = "Sequence[Array] | torch_data.Dataset[Any] | torch_data.DataLoader[Any]"
"""Inputs and targets, and lengths if the inputs are padded; or a data set whose items are such tuples."""


def derive_seed(*of: int | str) -> int:
    """Derive the seed of a generator from a run's seed and the purpose of the numbers; it differs for each."""
    digest = hashlib.blake2b(repr(of).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # below 2^63


def generator(*of: int | str) -> torch.Generator:
    """A new generator, seeded by `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(*of))


@dataclass(frozen=True)
class Shard:
    """A piece of a batch: number `index` of `count` pieces, over processes and gradient accumulation."""

    index: int = 0
    count: int = 1

    def of(self, total: int) -> range:
        """The items of this piece, for a batch of `total` items; piece sizes differ by at most one."""
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

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        parts: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, torch.Tensor)}
        return replace(self, **parts)

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device, asynchronously from pinned memory."""
        return self if device.type == "cpu" else self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Copy the batch to pinned memory."""
        return self._map(lambda tensor: tensor.pin_memory())


class Task(Protocol):
    """Interface of the tasks that `train` takes.

    Every method must return the same for the same arguments, so that a run can be resumed. Optional members:

    - `describe() -> dict`: description of the task (data, batch size, ...), for config.json. A run is only resumed if
      it is equal.
    - `state_dict() -> dict` and `load_state_dict(dict)`: the state that `loss` carries from step to step on the device,
      such as h_n of a language model. A checkpoint holds that of each process. A step must not write into tensors that
      `state_dict` returned before it, but make new ones.
    - `derive(means) -> dict`: the metrics of an evaluation, computed from its means over all items and processes; for
      metrics that are not means, such as perplexity.
    - `tokeniser`: an `indrnn.networks.tokeniser.Tokeniser`, saved in the run's folder with the model.
    - `prefetch = True`: make the next batch in a thread while a step is computed, for a `batch` that reads files.
    """

    metric: str
    """Name of the number of `evaluate` that says which weights are best."""
    higher_is_better: bool
    """Direction of the metric: whether larger numbers are better."""

    def batch(self, step: int, shard: Shard) -> Batch:
        """Make this piece of a step's batch, on the CPU."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Run the model and return the mean loss over the batch's items."""

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        """Evaluate a model, in evaluation mode, during training; yields after each batch, so that a run can be stopped.

        `shard` is this process's share of the work.
        """

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        """Test the best weights after training; yields nothing if there is no test data."""


def rows_of(shard: Shard, total: int) -> tuple[Tensor, int]:
    """Item indices of a piece of a batch, and their count; an empty piece gets one item, and a count of 0."""
    items = shard.of(total)
    return torch.tensor(list(items) or [0]), len(items)


class _Items:
    """Items of a `Dataset`, read on demand."""

    def __init__(self, name: str, dataset: torch_data.Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        if isinstance(dataset, torch_data.IterableDataset) or not hasattr(dataset, "__len__"):
            raise TypeError(f"{name} must be a data set of known length, whose items can be had by number")
        self.name, self.dataset, self.collate = name, dataset, collate
        if not len(self):
            raise ValueError(f"{name} must hold at least one item, got none")
        self.read(torch.tensor([0]))

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, items: Tensor) -> tuple[Tensor, ...]:
        numbers = items.tolist()
        batch = self.collate([self.dataset[number] for number in numbers])
        if not isinstance(batch, (tuple, list)):
            raise TypeError(f"{self.name} must have items of two parts, inputs and target, or three, with a length")
        return _checked_tensors(self.name, batch, numbers)


class TensorTask:
    """Task on items in memory or in a `Dataset`, reshuffled in each epoch.

    The best weights are selected on the validation set, and evaluated on the test set after training. Without
    validation data they are selected on the training data, and the metrics are named `training_...`; without test data
    there is no test.

    Args:
        train: inputs and targets, and lengths if the inputs are padded: tensors or NumPy arrays with the items in the
            first dimension; or a `Dataset` of such tuples; or a `DataLoader`, of which the data set, the collate
            function and, unless given, the batch size are used. The order is the task's own, so that it can be resumed.
        validation: validation data, in the same form.
        test: test data, in the same form.
        batch_size: batch size; 32 if neither this nor a `DataLoader` gives one. An epoch's last batch may be smaller.
        loss: function of the model's output and the target, averaged over the items; None for the cross-entropy. Of an
            output that is a tuple (output, state), the first part is used.
        seed: seed of the shuffling.
    """

    def __init__(
        self,
        train: Data,
        validation: Data | None = None,
        test: Data | None = None,
        *,
        batch_size: int | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        if batch_size is None:
            batch_size = (train.batch_size if isinstance(train, torch_data.DataLoader) else None) or 32
        check_count("batch_size", batch_size)
        splits = {"train": train, "validation": validation, "test": test}
        self.data: dict[str, Any] = {name: _checked(name, data) for name, data in splits.items() if data is not None}
        self.judged = "validation" if validation is not None else "train"
        self.prefetch = isinstance(self.data["train"], _Items)
        self.batch_size, self._loss, self.seed = batch_size, loss or torch.nn.functional.cross_entropy, seed
        self.classifies = self.higher_is_better = not self._of("train", torch.tensor([0]))[1].is_floating_point()
        self._prefix = "" if validation is not None else "training_"
        self.metric = self._prefix + ("accuracy" if self.classifies else "loss")
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def describe(self) -> dict[str, Any]:
        """Description of the task: sizes, and a checksum over some of the items if they are in memory."""
        loss = getattr(self._loss, "__qualname__", type(self._loss).__qualname__)
        options = {"type": type(self).__name__, "batch_size": self.batch_size, "seed": self.seed, "loss": loss}
        return options | {name: _describe(data) for name, data in self.data.items()}

    def size(self, split: str) -> int:
        """Number of items in "train", "validation" or "test"; 0 if there are none."""
        data = self.data.get(split, ([],))
        return len(data) if isinstance(data, _Items) else len(data[0])

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return -(-self.size("train") // self.batch_size)

    def batch(self, step: int, shard: Shard) -> Batch:
        """See `Task.batch`."""
        items = self._items_of(step)
        rows, count = rows_of(shard, len(items))
        return replace(self.batch_of("train", items[rows]), count=count, total=len(items))

    def _items_of(self, step: int) -> Tensor:
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, torch.randperm(self.size("train"), generator=generator(self.seed, "order", epoch))
        return self._order[1][at * self.batch_size : (at + 1) * self.batch_size]

    def _of(self, split: str, items: Tensor) -> tuple[Tensor, ...]:
        data = self.data[split]
        return data.read(items) if isinstance(data, _Items) else tuple(tensor[items] for tensor in data)

    def batch_of(self, split: str, items: Tensor) -> Batch:
        """The batch of these items of "train", "validation" or "test", given by index, as a model reads it."""
        inputs, target, *lengths = self._of(split, items)
        return Batch(inputs, target, len(items), len(items), lengths[0] if lengths else None)

    def _output(self, model: nn.Module, batch: Batch) -> Tensor:
        output = model(batch.inputs) if batch.lengths is None else model(batch.inputs, lengths=batch.lengths)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return self._loss(self._output(model, batch), batch.target)

    def _measure(self, model: nn.Module, split: str, shard: Shard, prefix: str = "") -> Iterator[Measured]:
        device = next(model.parameters()).device
        for items in torch.arange(self.size(split)).split(self.batch_size)[shard.index :: shard.count]:
            batch = self.batch_of(split, items).to(device)
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


def _checked(name: str, data: Data) -> tuple[Tensor, ...] | _Items:
    if isinstance(data, torch_data.DataLoader):
        return _Items(name, data.dataset, data.collate_fn)
    if isinstance(data, torch_data.Dataset):
        return _Items(name, data, torch_data.default_collate)
    return _checked_tensors(name, tuple(data))


def _checked_tensors(name: str, data: Sequence[Any], numbers: list[int] | None = None) -> tuple[Tensor, ...]:
    """Items as tensors, with classes in int64; an error names one that is not finite, by its number if given."""
    if len(data) not in (2, 3) or not all(isinstance(part, (torch.Tensor, np.ndarray)) for part in data):
        raise TypeError(f"{name} must be two tensors or NumPy arrays, inputs and targets, or three, with lengths")
    inputs, target, *lengths = (torch.as_tensor(part) for part in data)
    tensors = inputs, target if target.is_floating_point() else target.long(), *lengths
    sizes = sorted({len(tensor) if tensor.dim() else 0 for tensor in tensors})
    if numbers is None and (len(sizes) != 1 or 0 in sizes):
        raise ValueError(f"{name} must hold the same number of items, at least one, in each tensor, got {sizes}")
    for part, tensor in zip(("inputs", "targets"), tensors, strict=False):
        if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):
            continue
        for item, *place in (~torch.isfinite(tensor)).nonzero().tolist():  # none if only the sum was too large
            value, at = tensor[(item, *place)].item(), f", at {place}" if place else ""
            number = item if numbers is None else numbers[item]
            raise ValueError(f"{name} must be finite, got {value} in the {part} of item {number}{at}")
    return tensors


def _describe(data: tuple[Tensor, ...] | _Items) -> dict[str, Any]:
    if isinstance(data, _Items):
        return {"items": len(data), "dataset": type(data.dataset).__qualname__}
    count = len(data[0])
    rows = torch.linspace(0, count - 1, min(count, 64), dtype=torch.float64).long()  # evenly over the set
    checksum = hashlib.blake2b(digest_size=8)
    for tensor in data:
        sample = tensor.detach().cpu()[rows].contiguous()
        checksum.update(f"{sample.dtype} {list(tensor.shape)}".encode())
        checksum.update(sample.view(torch.uint8).numpy().tobytes() if sample.dim() else b"")
    return {"items": count, "shape": list(data[0].shape[1:]), "checksum": checksum.hexdigest()}
