"""Small runs that the tests of training share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import indrnn
from indrnn.training import Listener, Measured, Result, Shard, Step, TensorTask, Training, train

T, FEATURES, CLASSES, ITEMS, BATCH = 9, 3, 4, 25, 11
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
QUICK = Training(
    steps=6,
    lr=1e-2,
    evaluate_every=2,
    checkpoint_every=math.inf,
    device="cpu",
    threads=1,
    tensorboard=False,
    curve=False,
)


class Told(Listener):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def on_note(self, text: str) -> None:
        self.said.append(text)

    def on_step(self, event: Step) -> None:
        self.steps.append((event.step, event.steps))


class Scripted(TensorTask):
    """Evaluations that are written down: the accuracy of each step."""

    script: dict[int, float]

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        for means, count in super().evaluate(model, step, shard):
            yield means | {self.metric: self.script[step]}, count


def sequences(items: int = ITEMS, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(items, T, FEATURES, generator=random, dtype=dtype),
        torch.randint(CLASSES, (items,), generator=random),
    )


def task(dtype: torch.dtype = torch.float32) -> TensorTask:
    return TensorTask(sequences(dtype=dtype), sequences(13, dtype, seed=1), batch_size=BATCH, seed=3)


def classifier(norm: Any = None, dropout: float = 0.0, dtype: torch.dtype = torch.float32, seed: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    options: dict[str, Any] = {"norm": None} if norm is None else {"norm_place": norm}
    network = indrnn.PlainIndRNN(FEATURES, 7, 2, **options, dropout=dropout, batch_first=True, dtype=dtype)
    return indrnn.SequenceClassifier(network, CLASSES)


def go(model: nn.Module, what: Any, out: Path, options: Training = QUICK, **others: Any) -> Result:
    told = others.pop("report", None)
    return train(model, what, options, out=out, listeners=[told] if told else [], quiet=True, **others)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def timeless(out: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in metrics(out)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights_of(out: Path) -> bytes:
    return (out / "weights.safetensors").read_bytes()
