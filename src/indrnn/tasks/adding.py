"""The adding problem.

A sequence holds a random number at each step and marks two of the steps; the target is the sum of the two marked
numbers. Always predicting 1 has a mean squared error of 1/6 = 0.167.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_count
from ..training.task import Batch, Measured, Shard, generator, rows_of

BASELINE = 1 / 6
"""The error of always answering 1: the variance of the sum of two uniform numbers."""


def adding_batch(length: int, sequences: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Generate sequences: inputs (length, sequences, 2), numbers and marks, and targets (sequences,)."""
    values = torch.rand(length, sequences, generator=random)
    first = torch.randint(length, (sequences,), generator=random)
    apart = torch.randint(1, length, (sequences,), generator=random)  # so that the second is another step
    marks = torch.zeros(length, sequences)
    marks.scatter_(0, torch.stack([first, (first + apart) % length]), 1.0)
    return torch.stack([values, marks], dim=-1), (values * marks).sum(0)


class Adding:
    """The adding problem as a task: each batch is newly generated from (seed, step), and can be reproduced.

    Args:
        length: steps of a sequence.
        batch_size: sequences in a batch.
        test_sequences: sequences generated for each evaluation.
        seed: seed of all data.
    """

    metric = "validation_mse"
    higher_is_better = False
    renamed: ClassVar = {"test_mse": "validation_mse"}  # in the checkpoints of earlier versions

    def __init__(self, length: int, batch_size: int = 50, test_sequences: int = 1000, seed: int = 0) -> None:
        check_count("length", length, 2)
        check_count("batch_size", batch_size)
        check_count("test_sequences", test_sequences)
        self.length, self.batch_size, self.test_sequences, self.seed = length, batch_size, test_sequences, seed

    def batch(self, step: int, shard: Shard) -> Batch:
        """See `Task.batch`."""
        x, answer = adding_batch(self.length, self.batch_size, generator(self.seed, "train", step))
        if shard.count == 1:
            return Batch(x, answer, self.batch_size, self.batch_size)
        rows, count = rows_of(shard, self.batch_size)
        return Batch(x[:, rows], answer[rows], count, self.batch_size)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(model(batch.inputs)[0].squeeze(-1).float(), batch.target)

    def _errors(self, name: str, model: nn.Module, random: torch.Generator, shard: Shard) -> Iterator[Measured]:
        """The error on new sequences, in pieces that fit into memory: the same for any number of processes."""
        device = next(model.parameters()).device
        piece = max(1, 100_000 // self.length)
        for number, start in enumerate(range(0, self.test_sequences, piece)):
            x, answer = adding_batch(self.length, min(piece, self.test_sequences - start), random)
            if number % shard.count == shard.index:
                predicted = model(x.to(device))[0].squeeze(-1).float()
                yield {name: F.mse_loss(predicted.double(), answer.to(device).double())}, len(answer)

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        """The error on sequences generated anew for each evaluation."""
        return self._errors("validation_mse", model, generator(self.seed, "evaluate", step), shard)

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        """The error on sequences used for nothing else."""
        return self._errors("test_mse", model, generator(self.seed, "test"), shard)
