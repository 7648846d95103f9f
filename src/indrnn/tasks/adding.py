"""The adding problem: the task, and the paper's four panels as recipes.

A sequence holds a random number at each step and marks two of the steps; the target is the sum of the two marked
numbers. Always predicting 1 has a mean squared error of 1/6 = 0.167.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .._lazy import Lazy
from ..baselines import Baseline
from ..checks import check_count, check_seed
from ..figures import draw_metric, draw_pairs, new_figure, save_figure
from ..networks import Head, Plain
from ..training import Cosine, RunFolder, Steps, Training
from ..training.task import Batch, Measured, Shard, generator, rows_of
from .recipe import Answer, AnyNetwork, Description, Extra, Loop, Pairs, Recipe, Row, Samples, fit_into_page
from .table import Summary, Table, command_of, mean, steps_of, time_of

with contextlib.suppress(ImportError):  # without a command line
    from tyro.conf import Positional

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from .runs import Run
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")

BASELINE = 1 / 6
"""Error of always answering 1: the variance of the sum of two uniform numbers."""
_REFERENCE = (BASELINE, "always answering 1")


def adding_batch(length: int, sequences: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Generate sequences: inputs (length, sequences, 2), numbers and marks, and targets (sequences,)."""
    values = torch.rand(length, sequences, generator=random)
    first = torch.randint(length, (sequences,), generator=random)
    apart = torch.randint(1, length, (sequences,), generator=random)  # so that the second is another step
    marks = torch.zeros(length, sequences)
    marks.scatter_(0, torch.stack([first, (first + apart) % length]), 1.0)
    return torch.stack([values, marks], dim=-1), (values * marks).sum(0)


class Adding:
    """The adding problem as a task, with options of `AddingRecipe`; each batch is generated anew from (seed, step)."""

    metric = "validation_mse"
    higher_is_better = False

    def __init__(self, length: int, batch_size: int = 50, test_sequences: int = 1000, seed: int = 0) -> None:
        check_count("length", length, 2)
        check_count("batch_size", batch_size)
        check_count("test_sequences", test_sequences)
        self.length, self.batch_size, self.test_sequences, self.seed = length, batch_size, test_sequences, seed

    def batch(self, step: int, shard: Shard) -> Batch:
        """New sequences, and the sums of their marked numbers."""
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


# ---- recipe

# The paper gives the bound |u| <= 2^(1/T). That the last layer starts above 2^(-1/T) and that input weights start in
# N(0, 0.001) are the authors' published settings.
_INDRNN = Plain(hidden_size=128, layers=2, norm=None, gamma=2.0, long_memory=True, epsilon=0.5, weight_std=0.001)


def _summary(run: Summary) -> Summary:
    options, test = run.pop("options"), run.pop("test")
    model = options["model"].get("kind", "indrnn")
    return {**run, "model": model, "length": options["length"], "test_mse": test and test["test_mse"]}


def _row(runs: list[Summary]) -> list[object]:
    first = runs[0]
    finished = all(run["finished"] for run in runs)
    error = mean([run["test_mse"] if finished else run["best"][1] for run in runs], "{:.2g}")
    error += "" if finished else " (best evaluation)"
    columns = [first["length"], first["model"], f"{first['lr']:g}", steps_of(first), time_of(first), error]
    return [*columns, command_of(first)]


@dataclass
class DistilOptions:
    """Distil a run's RNN (or LSTM, GRU) on the adding problem into an IndRNN, and compare the two.

    The error is the relative difference of the outputs over all steps, on sequences not trained on. Also reported: the
    errors of both networks on the run's test sequences, with the run's own output layer. For any data: `indrnn.distil`.
    """

    run: Positional[Path]
    """Folder of a finished run of a recurrent baseline on the adding problem."""
    out: Path | None = None
    """Output folder of distil.json, distil.md and distil.png; None for results/insight/NAME."""
    layers: int = 3
    """Number of layers of the IndRNN."""
    hidden_size: int = 128
    """Neurons per layer."""
    steps: int = 3000
    """Number of training steps."""
    lr: float = 2e-3
    """Peak learning rate."""
    seed: int = 0
    """Random seed of weights and sequences."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""
    overwrite: bool = False
    """Replace existing files."""


_DISTIL = Extra("analyse", "distil", DistilOptions, "indrnn.tasks.distillation:analyse")


@dataclass(frozen=True)
class AddingRecipe(Recipe):
    """Learn to add the two marked numbers of a sequence."""

    table: ClassVar[Table] = Table(
        name="adding",
        metric="validation_mse",
        higher_is_better=False,
        head="T, model, lr, steps, time, test MSE, command",
        summary=_summary,
        order=lambda run: (run["length"], run["model"], run["lr"]),
        row=_row,
        curve=lambda run: (f"T = {run['length']}", f"{run['model']}, lr {run['lr']:g}", run["curve"]),
        picture={"up": "mean squared error", "reference": _REFERENCE, "smoothed": 5},
    )
    extras: ClassVar[tuple[Extra, ...]] = (_DISTIL,)

    length: int = 100
    """Sequence length in time steps."""
    batch_size: int = 50
    """Batch size."""
    test_sequences: int = 1000
    """Number of newly drawn sequences in each evaluation."""
    model: AnyNetwork = _INDRNN
    """The network; its last step gives the output."""
    training: Loop = field(default_factory=Training)
    """Training options."""
    seed: int = 0
    """Random seed of weights and data."""

    def check(self) -> None:
        self.task()
        check_seed(self.seed)

    def model_config(self, member: int = 0) -> Head:
        return Head(self.model.sized(2, self.length), 1, "SequenceRegressor")

    def task(self, member: int = 0) -> Adding:
        return Adding(self.length, self.batch_size, self.test_sequences, self.seed)

    def finish(self, folder: Path, models: Sequence[nn.Module]) -> list[str]:
        """Draw predictions against their targets beside the error over training."""
        if self.training.curve and (folder / "curve.png").exists():
            figure, (left, right) = new_figure(2)
            draw_metric(left, RunFolder(folder).read_metrics(), self.table.metric, reference=_REFERENCE)
            left.set_ylabel("mean squared error")
            pairs = self._pairs(models[0], 500)
            draw_pairs(right, pairs, across="the sum of the two marked numbers", up="the network's answer")
            save_figure(figure, folder / "curve.png")
        return []

    def _pairs(self, model: nn.Module, count: int) -> list[tuple[float, float]]:
        x, target = adding_batch(self.length, count, generator(self.seed, "picture"))
        device = next(model.parameters()).device
        with torch.inference_mode():
            predicted = torch.cat([model(part.to(device))[0].squeeze(-1).cpu() for part in x.split(50, dim=1)])
        return list(zip(target.tolist(), predicted.tolist(), strict=True))

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        others = f"{self.test_sequences:,} others in each evaluation and in the test"
        data = (
            f"Random numbers, {self.length:,} steps of which two are marked; their sum is the answer. Fresh sequences "
            f"in every batch of {self.batch_size}, and {others}."
        )
        task, compared = f"the adding problem, T = {self.length:,}", f"{_REFERENCE[1]} gives {BASELINE:.3g}"
        return Description(task, data, self.table.metric, self.table.higher_is_better, _REFERENCE, compared)

    def answers(self, model: nn.Module, limit: int | None, run: Run) -> list[Answer]:
        return [Pairs(self._pairs(model, 200), "fresh sequences")]

    def samples(self, model: nn.Module) -> Samples:
        """See `Recipe.samples`: numbers to add, and some sequences that were not used in training."""
        x, _ = adding_batch(self.length, fit_into_page(self.length, 1), generator(self.seed, "explorer"))
        recorded = []
        for number, sequence in enumerate(x.unbind(1)):
            marks = sequence[:, 1].nonzero().flatten().tolist()
            values = [round(value, 6) for value in sequence[:, 0].tolist()]
            recorded.append({"label": f"sequence {number + 1}", "values": values, "marks": marks})
        return Samples("adding", self.length, {"length": self.length, "samples": recorded}, list(x.unbind(1)))


# ---- rows


def _paper(length: int, lr: float, model: AnyNetwork = _INDRNN) -> AddingRecipe:
    """The paper's training: 60,000 steps, with the learning rate divided by 10 every 20,000."""
    return AddingRecipe(length, model=model, training=Training(steps=60_000, lr=lr, schedule=Steps(20_000, 0.1)))


def _fast(length: int, steps: int, lr: float) -> AddingRecipe:
    """The same network with a cosine learning rate, over far fewer steps."""
    return AddingRecipe(length, model=_INDRNN, training=Training(steps=steps, lr=lr, schedule=Cosine(warm_up=0.05)))


_RNN, _LSTM, _IRNN = Baseline("rnn"), Baseline("lstm"), Baseline("irnn")

ROWS = (
    Row("adding-100", _paper(100, 2e-4), "Fig. 4a", "error near 0", "15 min", 17_281),
    Row("adding-100-rnn", _paper(100, 2e-3, _RNN), "Fig. 4a", "does not learn", "30 min", 16_897),
    Row("adding-100-lstm", _paper(100, 2e-3, _LSTM), "Fig. 4a", "error near 0", "1 h", 67_201),
    Row("adding-100-irnn", _paper(100, 2e-4, _IRNN), "Fig. 4a", "error near 0", "30 min", 16_897),
    Row("adding-500", _paper(500, 2e-4), "Fig. 4b", "error near 0", "1 h", 17_281),
    Row("adding-500-rnn", _paper(500, 2e-3, _RNN), "Fig. 4b", "does not learn", "2 h", 16_897),
    Row("adding-500-lstm", _paper(500, 2e-3, _LSTM), "Fig. 4b", "has difficulties", "5 h", 67_201),
    Row("adding-500-irnn", _paper(500, 1e-5, _IRNN), "Fig. 4b", "has difficulties", "2 h", 16_897),
    Row("adding-1000", _paper(1000, 2e-4), "Fig. 4c", "error near 0", "2 h", 17_281),
    Row("adding-1000-rnn", _paper(1000, 2e-3, _RNN), "Fig. 4c", "does not learn", "4 h", 16_897),
    Row("adding-1000-lstm", _paper(1000, 2e-3, _LSTM), "Fig. 4c", "does not learn", "9 h", 67_201),
    Row("adding-1000-irnn", _paper(1000, 1e-5, _IRNN), "Fig. 4c", "does not learn", "4 h", 16_897),
    Row("adding-5000", _paper(5000, 2e-4), "Fig. 4d", "error near 0", "10 h", 17_281),
    Row("adding-5000-rnn", _paper(5000, 2e-3, _RNN), "beside Fig. 4d", Row.NOT_SHOWN, "20 h", 16_897),
    Row("adding-5000-lstm", _paper(5000, 2e-3, _LSTM), "beside Fig. 4d", Row.NOT_SHOWN, "2 days", 67_201),
    Row("adding-5000-irnn", _paper(5000, 1e-5, _IRNN), "beside Fig. 4d", Row.NOT_SHOWN, "20 h", 16_897),
    Row("adding-100-fast", _fast(100, 3_000, 1e-3), "Fig. 4a, quicker", "error near 0", "1 min", 17_281),
    Row("adding-500-fast", _fast(500, 5_000, 1e-3), "Fig. 4b, quicker", "error near 0", "5 min", 17_281),
    Row("adding-1000-fast", _fast(1000, 12_000, 1e-3), "Fig. 4c, quicker", "error near 0", "25 min", 17_281),
    Row("adding-5000-fast", _fast(5000, 4_000, 1e-4), "Fig. 4d, quicker", "error near 0", "50 min", 17_281),
)
