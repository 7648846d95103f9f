"""A task that carries state from step to step: streams of numbers, read on where the last step left off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import indrnn
from indrnn.training import Batch, Measured, Shard, generator, rows_of

STREAMS, STEPS = 5, 6
"""Streams side by side, and numbers of each that a step reads."""


class Reader(nn.Module):
    """Answers each number of a stream with a guess of the mean of all before it; long memory matters to it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = indrnn.IndRNN(1, 9)
        self.out = nn.Linear(9, 1)

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, h_n = self.layer(x, h)
        return self.out(y), h_n


class Streams:
    """What is carried is h of the streams of this process."""

    metric, higher_is_better = "mse", False

    def __init__(self) -> None:
        self.h: Tensor | None = None
        self.used: list[float] = []  # the sum of what was carried into each step

    def describe(self) -> dict[str, Any]:
        return {"streams": STREAMS, "steps": STEPS}

    def state_dict(self) -> dict[str, Any]:
        return {"h": self.h}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.h = state["h"]

    def batch(self, step: int, shard: Shard) -> Batch:
        x = torch.rand(STEPS, STREAMS, 1, generator=generator("streams", step))
        rows, count = rows_of(shard, STREAMS)
        return Batch(x[:, rows], x[:, rows].cumsum(0) / 6, count, STREAMS)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.used.append(0.0 if self.h is None else float(self.h.sum()))
        output, h = model(batch.inputs, self.h)
        self.h = h.detach()
        return F.mse_loss(output, batch.target)

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        h = None  # its own, and not what is carried in training
        for number in range(2):
            batch = self.batch(10**6 + number, Shard())
            output, h = model(batch.inputs, h)
            if shard.index == 0:
                yield {"mse": F.mse_loss(output, batch.target)}, STREAMS

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        return self.evaluate(model, 0, shard)


def reader() -> Reader:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Reader()
