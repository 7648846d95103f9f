"""`SeriesTask`: training on series of any length, with random batches, series weights and augmentation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers.masks import without_padding
from ...training.task import Batch, Measured, Shard, generator, rows_of
from .defaults import Augmentation

Kind = Literal["classes", "labels", "numbers"]
"""Kind of target: one class of several, several labels at once, or numbers."""


@dataclass
class SeriesBatch(Batch):
    """A batch with a weight for each series."""

    weights: Tensor | None = None


@dataclass(frozen=True)
class Part:
    """Prepared series with their targets."""

    x: list[Tensor]  # (time, features) each
    y: list[Tensor]  # a class (int64), labels or numbers (outputs,); at every step, (time,) or (time, outputs)
    weights: Tensor | None = None  # (n,), of mean 1

    def select(self, items: Any) -> Part:
        """The series of these indices, an array."""
        weights = None if self.weights is None else self.weights[torch.from_numpy(items)]
        return Part([self.x[i] for i in items], [self.y[i] for i in items], weights)

    def describe(self) -> dict[str, Any]:
        """Sizes, and a checksum of all values."""
        checksum = hashlib.blake2b(digest_size=8)
        for x, y in zip(self.x, self.y, strict=True):
            checksum.update(f"{list(x.shape)}".encode() + x.contiguous().numpy().tobytes())
            checksum.update(y.contiguous().numpy().tobytes())
        if self.weights is not None:
            checksum.update(self.weights.numpy().tobytes())
        return {"series": len(self.x), "features": self.x[0].shape[1], "checksum": checksum.hexdigest()}


@dataclass(eq=False)
class SeriesTask:
    """Training task on series; see `indrnn.training.Task`. Batches are random, determined by the seed and the step."""

    train: Part
    validation: Part | None = None  # to select the weights by; None for the last weights
    _: KW_ONLY
    kind: Kind
    per_step: bool = False  # a target at every step, in place of one for each series
    batch_size: int = 32
    augmentation: Augmentation = Augmentation()  # noqa: RUF009
    masks: int = 0  # last features that are masks, exempt from changes of value
    class_weights: Tensor | None = None  # (classes,)
    seed: int = 0  # of order and augmentation

    higher_is_better = False

    def __post_init__(self) -> None:
        self.metric = "training_loss" if self.validation is None else "loss"
        self._order: tuple[int, Sequence[Tensor]] = (-1, [])

    def describe(self) -> dict[str, Any]:
        """Kind, sizes and checksums of the series."""
        return {
            "type": type(self).__name__,
            **{name: getattr(self, name) for name in ("kind", "per_step", "batch_size", "seed")},
            "augmentation": asdict(self.augmentation),
            "class_weights": None if self.class_weights is None else self.class_weights.tolist(),
            **{name: part.describe() for name in ("train", "validation") if (part := getattr(self, name)) is not None},
        }

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch; series that do not fill a batch are left out until the next epoch."""
        return max(1, len(self.train.x) // self.batch_size)

    def batch(self, step: int, shard: Shard) -> SeriesBatch:
        """Augmented series of an epoch in random order."""
        # At random, whatever their lengths: statistics of batches of one length each would differ by it
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            order = torch.randperm(len(self.train.x), generator=generator(self.seed, "order", epoch))
            self._order = epoch, order.split(self.batch_size)
        items = self._order[1][at]
        rows, count = rows_of(shard, len(items))
        batch = collate(self.train, items.tolist(), self.per_step)
        if self.augmentation != Augmentation():
            # Of the whole batch, whatever piece of it is asked for: pieces are the same in any division
            self._augment(batch, generator(self.seed, "augmentation", step))
        if len(rows) == len(items):
            return batch
        lengths, weights = (None if values is None else values[rows] for values in (batch.lengths, batch.weights))
        target = batch.target[:, rows] if self.per_step else batch.target[rows]
        return SeriesBatch(batch.inputs[:, rows], target, count, len(items), lengths, weights)

    def _augment(self, batch: SeriesBatch, source: torch.Generator) -> None:
        x, how = batch.inputs, self.augmentation
        if how.speed and len(x) > 2 and not self.per_step:
            x, batch.lengths = _at_another_speed(x, batch.lengths, how.speed, source)
            x[..., x.shape[-1] - self.masks :].round_()  # there or not, and nothing between
        T, B, C = x.shape
        values = C - self.masks
        changed = x[..., :values]
        if how.scale:
            changed = changed * (1 + how.scale * torch.randn(1, B, values, generator=source))
        if how.noise:
            changed = changed + how.noise * torch.randn(T, B, values, generator=source)
        batch.inputs = without_padding(torch.cat([changed, x[..., values:]], -1), batch.lengths)

    def _loss(self, output: Tensor, batch: SeriesBatch) -> Tensor:
        target, output = batch.target, output.float()
        if self.kind == "classes":
            weight = None if self.class_weights is None else self.class_weights.to(output.device)
            losses = F.cross_entropy(output.flatten(0, -2), target.flatten(), weight, reduction="none")
            losses = losses.view(target.shape)
        elif self.kind == "labels":
            losses = F.binary_cross_entropy_with_logits(output, target, reduction="none").mean(-1)
        else:
            losses = (output - target).square().mean(-1)
        losses = self._over_steps(losses, batch.lengths)
        return (losses if batch.weights is None else losses * batch.weights).mean()

    def _over_steps(self, values: Tensor, lengths: Tensor | None) -> Tensor:
        if not self.per_step:
            return values
        return values.mean(0) if lengths is None else without_padding(values, lengths).sum(0) / lengths

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy, or the squared error of standardised numbers."""
        return self._loss(model(batch.inputs, lengths=batch.lengths)[0], batch)

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        """Loss and accuracy of the series held back; without them, of those trained on."""
        part, prefix = (self.train, "training_") if self.validation is None else (self.validation, "")
        device = next(model.parameters()).device
        batches = by_length([len(series) for series in part.x], self.batch_size)
        for items in batches[shard.index :: shard.count]:
            batch: Any = collate(part, items, self.per_step).to(device)
            output = model(batch.inputs, lengths=batch.lengths)[0]
            means: dict[str, Tensor | float] = {f"{prefix}loss": self._loss(output, batch)}
            if self.kind == "classes":
                right = (output.argmax(-1) == batch.target).float()
                means[f"{prefix}accuracy"] = self._over_steps(right, batch.lengths).mean()
            yield means, len(items)

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        """Nothing: `fit` of an estimator never sees the test series."""
        return iter(())


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group indices of series into batches of similar length."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def pad(x: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Pad series (time, ...) into a batch (T, B, ...); return it with their lengths, None if they are equal."""
    lengths = [len(series) for series in x]
    if len(set(lengths)) == 1:
        return torch.stack(list(x), 1), None
    return nn.utils.rnn.pad_sequence(list(x)), torch.tensor(lengths)


def collate(part: Part, items: Sequence[int], per_step: bool = False) -> SeriesBatch:
    """Batch of the series with these indices, as they are."""
    inputs, lengths = pad([part.x[i] for i in items])
    targets = [part.y[i] for i in items]
    target = pad(targets)[0] if per_step else torch.stack(targets)
    weights = None if part.weights is None else part.weights[list(items)]
    return SeriesBatch(inputs, target, len(items), len(items), lengths, weights)


def _at_another_speed(x: Tensor, lengths: Tensor | None, most: float, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stretch each series (T, B, C) by a random factor, by linear interpolation; also return the new lengths."""
    T, B, C = x.shape
    before = torch.full((B,), T) if lengths is None else lengths
    factors = (most * (2 * torch.rand(B, generator=source) - 1)).exp()
    after = (before * factors).round().long().clamp_min(2)
    along = torch.arange(int(after.max()), dtype=x.dtype).unsqueeze(1) / (after - 1)
    at = along.clamp_max(1) * (before - 1)
    low = at.floor().long().clamp(0, T - 2)
    part = (at - low).unsqueeze(-1)
    rows = low.unsqueeze(-1).expand(-1, -1, C)
    return x.gather(0, rows) * (1 - part) + x.gather(0, rows + 1) * part, after
