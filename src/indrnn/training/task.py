"""What is learnt: batches, a loss, and numbers that say how well it went."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        return Batch(self.inputs.to(device), self.target.to(device), self.count, self.total, lengths)


class Task(Protocol):
    """What `train` needs. Every method gives the same for the same arguments: so a run can be taken up again."""

    metric: str
    """The number of `evaluate` that says which weights are best."""
    higher_is_better: bool
    """Whether it grows as they get better."""

    def batch(self, step: int, shard: Shard) -> Batch:
        """Make this piece of the batch of a step, on the CPU."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Run the model and return the mean loss over the batch's items."""

    def evaluate(self, model: nn.Module, step: int) -> dict[str, float]:
        """Measure a model, in evaluation mode, during training."""

    def test(self, model: nn.Module) -> dict[str, float]:
        """Measure the best weights once training is over."""


def rows_of(shard: Shard, total: int) -> tuple[Tensor, int]:
    """The items of a piece of a batch, and how many count: an empty piece gets one item that does not."""
    items = shard.of(total)
    return torch.tensor(list(items) or [0]), len(items)


Data = Sequence[Tensor]


class TensorTask:
    """Tensors in memory: items in the first dimension, shuffled anew in each epoch.

    Args:
        train: inputs and targets, and lengths if the inputs are padded.
        validation: the same, to evaluate on; None for the training data.
        test: the same, for the end; None for the validation data.
        batch_size: items in a batch. An epoch's last batch holds what is left.
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
        batch_size: int = 32,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        seed: int = 0,
    ) -> None:
        check_count("batch_size", batch_size)
        self.data = {"train": _checked("train", train)}
        self.data["validation"] = _checked("validation", validation) if validation is not None else self.data["train"]
        self.data["test"] = _checked("test", test) if test is not None else self.data["validation"]
        self.batch_size, self._loss, self.seed = batch_size, loss, seed
        self.classifies = not self.data["train"][1].is_floating_point()
        self.metric = "accuracy" if self.classifies else "loss"
        self.higher_is_better = self.classifies
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.data["train"][0]) // self.batch_size)

    def batch(self, step: int, shard: Shard) -> Batch:
        """See `Task.batch`."""
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            size = len(self.data["train"][0])
            self._order = epoch, torch.randperm(size, generator=generator(self.seed, "order", epoch))
        items = self._order[1][at * self.batch_size : (at + 1) * self.batch_size]
        rows, count = rows_of(shard, len(items))
        return self._take("train", items[rows], count, len(items))

    def _take(self, split: str, items: Tensor, count: int, total: int) -> Batch:
        inputs, target, *lengths = self.data[split]
        return Batch(inputs[items], target[items], count, total, lengths[0][items] if lengths else None)

    def _output(self, model: nn.Module, batch: Batch) -> Tensor:
        extra: dict[str, Any] = {} if batch.lengths is None else {"lengths": batch.lengths}
        output = model(batch.inputs, **extra)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return self._loss(self._output(model, batch), batch.target)

    def _measure(self, model: nn.Module, split: str) -> dict[str, float]:
        size = len(self.data[split][0])
        device = next(model.parameters()).device
        loss, right = 0.0, 0
        for start in range(0, size, self.batch_size):
            items = torch.arange(start, min(start + self.batch_size, size))
            batch = self._take(split, items, len(items), len(items)).to(device)
            output = self._output(model, batch)
            loss += self._loss(output, batch.target).item() * len(items)
            if self.classifies:
                right += int((output.argmax(1) == batch.target).sum())
        measured = {"loss": loss / size}
        if self.classifies:
            measured["accuracy"] = right / size
        return measured

    def evaluate(self, model: nn.Module, step: int) -> dict[str, float]:
        """See `Task.evaluate`."""
        return self._measure(model, "validation")

    def test(self, model: nn.Module) -> dict[str, float]:
        """See `Task.test`."""
        return self._measure(model, "test")


def _checked(name: str, data: Data) -> tuple[Tensor, ...]:
    data = tuple(data)
    if len(data) not in (2, 3) or not all(isinstance(tensor, Tensor) for tensor in data):
        raise TypeError(f"{name} must be two tensors, inputs and targets, or three, with lengths")
    sizes = {len(tensor) if tensor.dim() else 0 for tensor in data}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"{name} must hold the same number of items, at least one, in each tensor, got {sorted(sizes)}"
        )
    return data
