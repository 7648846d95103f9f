"""`distil`: train an IndRNN to reproduce the outputs of another recurrent network, and measure its error.

A nonlinear RNN has no equivalent IndRNN, unlike a linear one (`from_rnn`).
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..baselines import BaselineRNN
from ..checks import check_count, check_seed
from ..figures import draw_curves, new_figure
from ..networks import Dense, Head, Plain, Residual, StepRegressor
from ..training import OneCycle, Task, Training, train
from ..training.evaluation import measure, modes_kept
from ..training.folder import machine
from ..training.task import Batch, Measured, Shard, generator
from .runs import Run, seeded_model
from .table import Results, results_folder

if TYPE_CHECKING:
    from .adding import DistilOptions
    from .recipe import Say

Data = Tensor | tuple[Tensor, Tensor] | Callable[[int], Tensor | tuple[Tensor, Tensor]]
"""Inputs, or inputs and the task's targets, of which the batch is the first dimension; or a function of a number."""
Pair = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Distilled:
    """The result of `distil`, measured on sequences not used in training."""

    model: StepRegressor
    """Model from (T, B, inputs) to (T, B, outputs of the RNN), in the RNN's layout."""
    error: float
    """Relative error of the outputs over all steps, ‖ours − the RNN's‖ / ‖the RNN's‖."""
    per_step: list[float]
    """Relative error of the outputs at each step, as `error`."""
    readout_error: float | None
    """Relative error of the readout's predictions; None without a readout."""
    task_error: dict[str, float] | None
    """Mean squared error of the readout against the targets: of the "rnn", and of the "indrnn" in its place."""


def distil(
    rnn: nn.Module,
    data: Data,
    *,
    config: Plain | Residual | Dense | None = None,
    readout: Callable[[Tensor], Tensor] | None = None,
    steps: int = 2000,
    batch_size: int = 50,
    lr: float = 2e-3,
    seed: int = 0,
) -> Distilled:
    """Train an IndRNN to reproduce the outputs of an RNN at every step.

    The loss is the mean squared difference; the optimiser is Adam with a one-cycle learning rate, in `training.train`.

    Args:
        rnn: `torch.nn.RNN`, `LSTM` or `GRU`, or any module that maps (T, B, features) to outputs at each step, alone or
            first in a tuple; if its `batch_first` is true, it maps (B, T, features). It is not changed.
        data: input sequences, of which a tenth is held out; or a function that makes a batch from a number, called
            with 0, 1, … in training and with numbers from `steps` on for the measurement. With targets, in a tuple,
            and a `readout`, the task error is measured too.
        config: the IndRNN; None for two layers of 128 neurons without norm.
        readout: maps the RNN's outputs to the predictions of its task.
        steps: number of training steps.
        batch_size: batch size, for data in memory.
        lr: peak learning rate.
        seed: seed of the weights, the split and the order of the sequences.

    Example:
        distilled = indrnn.distil(torch.nn.RNN(2, 128), torch.rand(50, 1000, 2))
        distilled.error, distilled.model
    """
    check_count("batch_size", batch_size)
    check_seed(seed)
    options = Training(steps, lr, OneCycle(), clip=None, clip_norm=1.0, evaluate_every=steps)
    if not isinstance(rnn, nn.Module):
        raise TypeError(f"rnn must be a module, got {type(rnn).__name__}")
    time = 1 if getattr(rnn, "batch_first", False) else 0
    task = _Distillation(rnn, data, steps, batch_size, 1 - time, seed)
    with modes_kept(rnn):
        rnn.eval()
        first = task.batch(0, Shard())
        inputs, wanted = first.inputs, first.target
        if wanted.dim() != 3 or wanted.shape[:2] != inputs.shape[:2]:
            read, got = tuple(inputs.shape), tuple(wanted.shape)
            raise ValueError(f"rnn must give an output at each step of inputs {read}, got {got}")
        config = config or Plain(hidden_size=128, layers=2, norm=None)
        sized = replace(config, batch_first=time == 1).sized(inputs.shape[-1], inputs.shape[time])
        model: Any = seeded_model(Head(sized, wanted.shape[-1], "StepRegressor"), seed).to(inputs.device, inputs.dtype)
        train(model, task, replace(options, device=str(inputs.device)), seed=seed, quiet=True)
        return _measure(model.eval(), task, readout, time)


class _Distillation:
    """The task: outputs of the RNN at every step, of batches that a function makes or of sequences in memory."""

    metric = "validation_loss"
    higher_is_better = False

    def __init__(self, rnn: nn.Module, data: Data, steps: int, batch_size: int, batch_dim: int, seed: int) -> None:
        self.rnn, self.batch_dim = rnn, batch_dim
        if callable(data):
            self.make = lambda step: _pair(data(step))
            self.measured = lambda: map(self.make, range(steps, steps + 10))
            return
        inputs, targets = _pair(data)
        count = inputs.shape[batch_dim]
        if count < 2:
            raise ValueError(f"data must hold at least 2 sequences, got {count}")
        if targets is not None and len(targets) != count:
            raise ValueError(f"targets must be of the {count} sequences of data, got {len(targets)}")
        order = torch.randperm(count, generator=generator(seed, "held out"))
        held_out, rest = order.tensor_split([max(1, round(0.1 * count))])

        def of(rows: Tensor) -> Pair:
            own = inputs.index_select(batch_dim, rows.to(inputs.device))
            return own, None if targets is None else targets[rows.to(targets.device)]

        def make(step: int) -> Pair:
            return of(rest[torch.randint(len(rest), (batch_size,), generator=generator(seed, "order", step))])

        self.make, self.measured = make, lambda: map(of, held_out.split(batch_size))

    def batch(self, step: int, shard: Shard) -> Batch:
        inputs, _ = self.make(step)
        count = inputs.shape[self.batch_dim]
        return Batch(inputs, _outputs(self.rnn, inputs), count, count)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch.inputs)[0], batch.target)

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        for inputs, _ in self.measured():
            yield {self.metric: F.mse_loss(model(inputs)[0], _outputs(self.rnn, inputs))}, inputs.shape[self.batch_dim]

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        """See `Task.test`: there is none."""
        yield from ()


def _pair(item: Any) -> Pair:
    inputs, targets = item if isinstance(item, (tuple, list)) and len(item) == 2 else (item, None)
    if not isinstance(inputs, Tensor) or inputs.dim() != 3 or not inputs.is_floating_point():
        raise TypeError("data must be sequences of three dimensions, or a tuple of those and targets")
    if targets is not None and not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor, got {type(targets).__name__}")
    return inputs, targets


@torch.no_grad()
def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    result = module(x)
    output = result[0] if isinstance(result, tuple) else result
    if not isinstance(output, Tensor):
        raise TypeError(f"rnn must return a tensor, or one first in a tuple, got {type(output).__name__}")
    return output


@torch.no_grad()
def _measure(
    model: StepRegressor, task: _Distillation, readout: Callable[[Tensor], Tensor] | None, time: int
) -> Distilled:
    """Errors on sequences that were not trained on."""
    squares: list[tuple[Tensor, ...]] = []  # of the difference and of the RNN's outputs, by step
    answers: list[Tensor] = []  # of the readout: from the RNN's outputs, and from ours
    wanted: list[Tensor] = []
    others = [dim for dim in range(3) if dim != time]
    for x, targets in task.measured():
        theirs, ours = _outputs(task.rnn, x), _outputs(model, x)
        squares.append(tuple(part.double().square().sum(others) for part in (ours - theirs, theirs)))
        if readout is None:
            continue
        read = [readout(outputs).double() for outputs in (theirs, ours)]
        if targets is not None:
            if read[0].shape != targets.shape:
                shape = tuple(read[0].shape)
                raise ValueError(f"readout must give {tuple(targets.shape)} as the targets, got {shape}")
            wanted.append(targets.flatten())
        answers.append(torch.stack([part.flatten() for part in read]))
    tiny = torch.finfo(torch.float64).tiny
    off, size = (torch.stack(parts).sum(0) for parts in zip(*squares, strict=True))
    size = size.clamp_min(tiny)
    error, per_step = float((off.sum() / size.sum()).sqrt()), (off / size).sqrt().tolist()
    readout_error = task_error = None
    if readout is not None:
        rnn, indrnn = torch.cat(answers, 1)
        readout_error = float(((indrnn - rnn).square().sum() / rnn.square().sum().clamp_min(tiny)).sqrt())
        if wanted:
            target = torch.cat(wanted)
            squared = [float((read - target).square().mean()) for read in (rnn, indrnn)]
            task_error = {"rnn": squared[0], "indrnn": squared[1]}
    return Distilled(model, error, per_step, readout_error, task_error)


# ---- `indrnn analyse distil`


def analyse(run: Run, options: DistilOptions, arguments: Sequence[str], say: Say) -> None:
    """Distil the RNN of a run on the adding problem, and compare the two networks."""
    from .adding import adding_batch  # which brings in the command line's package

    # As the recipes' IndRNN: the neurons of the last layer begin with a memory of the whole sequence
    config = Plain(hidden_size=options.hidden_size, layers=options.layers, norm=None)
    config = replace(config, gamma=2.0, long_memory=True, epsilon=0.5)
    Training(options.steps, options.lr, threads=options.threads)  # wrong options are named before the run is read
    check_seed(options.seed)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    results = Results(results_folder(options.run, options.out), "distil", overwrite=options.overwrite)
    teacher: Any = run.best[0]
    if not isinstance(teacher.network, BaselineRNN):
        kind = type(teacher.network).__name__
        raise ValueError(f"run must be of an RNN, LSTM or GRU, and {options.run} is of {kind}")
    results.prepare()
    recipe: Any = run.recipe
    distilled = distil(
        teacher.network,
        lambda number: adding_batch(recipe.length, recipe.batch_size, generator(options.seed, "distil", number)),
        config=config,
        readout=lambda h: teacher.output(h[-1]).squeeze(-1),
        steps=options.steps,
        lr=options.lr,
        seed=options.seed,
    )
    rows = _rows(teacher, distilled, recipe.task())
    numbers = {
        **run.summary,
        "asked": shlex.join(["indrnn", "analyse", "distil", *arguments]),
        **{name: getattr(options, name) for name in ("layers", "hidden_size", "steps", "lr", "seed")},
        "machine": machine(),
        **{name: value for name, value in vars(distilled).items() if name != "model"},
        "rows": rows,
    }
    cells = [[f"{value:.3g}" if isinstance(value, float) else value or "" for value in row.values()] for row in rows]
    figure, (axes,) = new_figure(1)
    percent = [(step, 100 * value) for step, value in enumerate(distilled.per_step, 1)]
    draw_curves(axes, {"at each step": percent}, logarithmic=False, reference=(100 * distilled.error, "over all steps"))
    axes.set(ylim=(0, None), xlabel="step of the sequence", ylabel="difference of the outputs (% of the RNN's)")
    axes.legend(frameon=False)
    say(results.write(numbers, figure, "network, parameters, error, test MSE", cells))
    say(results.drawn)


def _rows(teacher: Any, distilled: Distilled, task: Task) -> list[dict[str, Any]]:
    """Sizes and errors of the RNN and of the distilled network in its place."""
    in_its_place = copy.deepcopy(teacher)
    in_its_place.network = distilled.model
    rows: list[dict[str, Any]] = []
    for name, model, error in (("RNN", teacher, None), ("IndRNN", in_its_place, distilled.error)):
        with torch.no_grad():
            test = measure(task.test(model, Shard())) or {}
        count = sum(parameter.numel() for parameter in model.network.parameters() if parameter.requires_grad)
        rows.append({"network": name, "parameters": count, "error": error, "test_MSE": test["test_mse"]})
    return rows
