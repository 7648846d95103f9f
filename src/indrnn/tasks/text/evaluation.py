"""`indrnn evaluate` of a language model: as it is, or with dynamic evaluation, set by hand or by a grid search."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checks import check_count, check_not_negative
from ...networks import LanguageModel
from ...training import Shard
from ...training.folder import finite
from ...words import duration, numbers
from ..recipe import Say
from ..runs import Run
from .corpus import Split
from .dynamic import SEGMENT, DynamicResult, dynamic_evaluation, gradient_statistics, grid
from .recipe import EvaluationOptions
from .task import LanguageTask

LRS, DECAYS = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4), (0.0, 0.004, 0.016, 0.064)
"""Values that `--grid` tries; 2.4e-6 and 0.016 were best in the log of the paper's authors."""
_LR, _DECAY = 1e-5, 0.016
_TIMED = 5  # segments


def evaluate(run: Run, options: EvaluationOptions, *, data_dir: Path | None, device: str, say: Say) -> dict[str, Any]:
    """Measure a run's best weights on the test text; returns the numbers for the output file."""
    for name, value in asdict(options).items():
        if value is None or value is False:
            continue
        if name not in ("dynamic", "test_batch") and not options.dynamic:
            raise ValueError(f"{name} is for --dynamic")
        if name in ("segment", "statistics_windows"):
            check_count(name, value)
        elif name in ("lr", "decay"):
            check_not_negative(name, value)
    if options.dynamic and options.test_batch is not None:
        raise ValueError("test_batch is not for --dynamic, which reads the text as one stream")
    recipe: Any = run.at(data_dir)
    if options.dynamic:
        task: Any = run.checked_task(recipe)
        return _evaluate_dynamically(run, options, task, device, say)
    if options.test_batch is not None:
        recipe = replace(recipe, test_batch=options.test_batch)
    test, which = run.evaluate(recipe, device)
    say(f"{run.recipe_name}: {numbers(test, 6)} with {which}")
    return {"weights": which, "test": test}


def _evaluate_dynamically(
    run: Run, options: EvaluationOptions, task: LanguageTask, device: str, say: Say
) -> dict[str, Any]:
    model: Any = run.best_on(device)
    which, epoch, corpus = run.best[1], task.steps_per_epoch, task.corpus
    windows = min(options.statistics_windows or epoch, epoch)
    plan = _Plan(model.eval(), task, options.segment or SEGMENT)
    lrs = LRS if options.lr is None else (options.lr,)
    decays = DECAYS if options.decay is None else (options.decay,)
    pairs = len(lrs) * len(decays) if options.grid else 0
    used = f"statistics over {windows:,} of {epoch:,} windows"
    searched = f"{pairs} pairs of lr and decay on {plan.segments(corpus.validation):,} segments of validation, "
    say(
        f"about {duration(plan.seconds(windows, pairs))}: {used} of the training text, {searched if pairs else ''}"
        f"{plan.segments(corpus.test):,} segments of the test"
    )
    with _progress("statistics", windows) as progress:
        statistics = plan.statistics(windows, progress)
    lr, decay = (_LR if options.lr is None else options.lr), (_DECAY if options.decay is None else options.decay)
    tried: dict[str, Any] = {}
    if options.grid:
        best, tried["grid"] = plan.search(statistics, lrs, decays, say)
        lr, decay = best.lr, best.decay
    static = plan.measure(corpus.test, "test, static", statistics)
    dynamic = plan.measure(corpus.test, "test, dynamic", statistics, lr, decay)
    before, after = plan.value(static), plan.value(dynamic)
    change = f"{abs(before - after) / before:.2%} {'lower' if after <= before else 'higher'}"
    say(
        f"{run.recipe_name}: {task.metric} {before:.6g} static, {after:.6g} dynamic "
        f"({change if math.isfinite(after) else 'diverged'}), tokens {static.tokens:,} in one stream, with {which}; "
        f"lr {lr:g}, decay {decay:g}{', chosen on validation' * options.grid}, segments of {plan.segment}, {used}"
    )
    measured = {"weights": which, "metric": task.metric, "static": before, "dynamic": after, "tokens": static.tokens}
    measured |= {"lr": lr, "decay": decay, "segment": plan.segment, "statistics_windows": windows}
    return {**measured, "windows_in_epoch": epoch, **tried}


@dataclass(frozen=True)
class _Plan:
    """A dynamic evaluation: its model, data and settings."""

    model: LanguageModel
    task: LanguageTask
    segment: int

    def statistics(self, count: int, progress: Callable[[int], None] = lambda _: None) -> dict[str, Tensor]:
        """Mean square gradients over the first windows of the training text."""

        def window(step: int) -> tuple[Tensor, Tensor]:
            progress(step)
            batch = self.task.batch(step, Shard())
            return batch.inputs, batch.target

        return gradient_statistics(self.model, map(window, range(count)))

    def segments(self, split: Split) -> int:
        """Number of updates over a text."""
        return -(-(len(split) - 1) // self.segment)

    def seconds(self, windows: int, pairs: int) -> float:
        """Estimated duration, from timing a few windows and segments."""
        self.statistics(1)  # to warm up
        start = time.perf_counter()
        statistics = self.statistics(1)
        window = time.perf_counter() - start
        corpus = self.task.corpus
        text = tokens_of(corpus.validation)[: 1 + _TIMED * self.segment]
        costs = []  # of a segment, without and with an update
        for lr in (0.0, _LR):
            start = time.perf_counter()
            result = dynamic_evaluation(self.model, text, statistics, lr=lr, decay=_DECAY, segment=self.segment)
            costs.append((time.perf_counter() - start) / len(result.segments))
        static, dynamic = costs
        search = (static + pairs * dynamic) * self.segments(corpus.validation) if pairs else 0.0
        return window * windows + (static + dynamic) * self.segments(corpus.test) + search

    def measure(
        self, split: Split, title: str, statistics: dict[str, Tensor], lr: float = 0.0, decay: float = 0.0
    ) -> DynamicResult:
        """Evaluate on a part of the corpus."""
        with _progress(title, len(split) - 1) as progress:
            rule: dict[str, Any] = {"lr": lr, "decay": decay, "segment": self.segment, "progress": progress}
            return dynamic_evaluation(self.model, tokens_of(split), statistics, **rule)

    def value(self, result: DynamicResult) -> float:
        """A result in the task's metric."""
        return result.perplexity if self.task.metric == "perplexity" else result.bits

    def search(
        self, statistics: dict[str, Tensor], lrs: tuple[float, ...], decays: tuple[float, ...], say: Say
    ) -> tuple[DynamicResult, list[dict[str, float]]]:
        """The best lr and decay on the validation text, and all results; prints a table."""
        split, metric = self.task.corpus.validation, self.task.metric
        static = self.measure(split, "validation, static", statistics)
        with _progress("validation, grid", len(lrs) * len(decays) * static.tokens) as progress:
            options: dict[str, Any] = {"lrs": lrs, "decays": decays, "segment": self.segment, "progress": progress}
            results = grid(self.model, tokens_of(split), statistics, **options)
        # A pair that is no better than the model as it is, or diverged, is not chosen
        best = results[0] if results[0].loss < static.loss else static
        say(f"{'lr':>8}  {'decay':>6}  {metric} on validation")
        for result in results:
            say(f"{result.lr:>8g}  {result.decay:>6g}  {self.value(result):.6g}{'  chosen' * (result is best)}")
        say(f"{'static':>16}  {self.value(static):.6g}{'  chosen: no pair is better' * (best is static)}")
        for name, value, values in (("lr", best.lr, lrs), ("decay", best.decay, decays)):
            if best is not static and len(values) > 1 and value > 0 and value in (min(values), max(values)):
                say(f"{name} {value:g} is at the end of the grid: one beyond it, with --{name}, may be better")
        tried = [{"lr": one.lr, "decay": one.decay, metric: self.value(one)} for one in (static, *results)]
        return best, [finite(numbers) for numbers in tried]


def tokens_of(split: Split) -> Tensor:
    """A part of a corpus as a tensor."""
    return torch.from_numpy(split.ids.astype(np.int64))


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, if there is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
