"""Dynamic evaluation of a language model, that learns from the text it has just predicted, and `indrnn evaluate`.

Krause, Kahembwe, Murray, Renals: Dynamic evaluation of neural sequence models (2018); the RMS rule with decay.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checks import check_count, check_not_negative, check_positive
from ...layers.bound import constrain_
from ...networks import LanguageModel
from ...training import Shard
from ...training.folder import finite
from ...words import duration, numbers
from ..recipe import Say
from ..runs import Run
from .corpus import Split
from .recipe import EvaluationOptions, measured
from .task import LanguageTask, detached

_Update = Callable[[list[Tensor]], None]
SEGMENT = 20
"""Tokens between two updates, as in the paper."""
EPSILON = 2e-5
LRS, DECAYS = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4), (0.0, 0.004, 0.016, 0.064)
"""Values that `--grid` tries; 2.4e-6 and 0.016 were best in the log of the paper's authors."""
_LR, _DECAY = 1e-5, 0.016
_TIMED = 5  # segments


@dataclass(frozen=True)
class DynamicResult:
    """Result of `dynamic_evaluation`."""

    loss: float
    """Mean cross-entropy of a token, in nats."""
    tokens: int
    """Number of predicted tokens: all but the first."""
    lr: float
    decay: float
    segments: tuple[float, ...]
    """Losses of the segments, each summed over its tokens."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite if that overflows."""
        return measured("word", self.loss)

    @property
    def bits(self) -> float:
        """Bits per token."""
        return measured("char", self.loss)


def segments(tokens: Tensor, batch_size: int = 1, segment: int = SEGMENT) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a text (N,) into `batch_size` parallel streams, and those into windows of inputs and next tokens.

    Yields pairs of (segment, batch_size); the last may be shorter. Tokens at the end that fill no stream are left out.
    """
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() != 1:
        what = f"the shape {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"tokens must be a tensor (N,) of class indices, got {what}")
    if len(tokens) < 2:
        raise ValueError(f"tokens must be at least 2, of which the second is predicted, got {len(tokens)}")
    check_count("batch_size", batch_size)
    check_count("segment", segment)
    length = (len(tokens) - 1) // batch_size
    if length == 0:
        raise ValueError(f"tokens must be more than batch_size = {batch_size}, got {len(tokens)}")
    # A corpus keeps them in the smallest type that holds them
    inputs, targets = (tokens[at : at + length * batch_size].view(batch_size, length).t().long() for at in (0, 1))
    yield from zip(inputs.split(segment), targets.split(segment), strict=True)


def gradient_statistics(model: LanguageModel, windows: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The mean squared gradient of each trained weight, by which `dynamic_evaluation` scales its steps.

    The gradient is that of a window's mean loss, in evaluation mode; the state is carried from window to window. The
    model is not changed. `windows` are pairs of inputs and next tokens, both (T, B), of the training set, as `segments`
    yields them. Larger batches are faster and give smaller gradients, and so need a smaller `lr`.

    Returns:
        A tensor for each parameter, of its shape, by name.
    """
    learner = _Learner(model)
    squares, count = [torch.zeros_like(weight) for weight in learner.weights], 0
    for inputs, targets in windows:
        _, gradients = learner.learn(inputs, targets)
        torch._foreach_addcmul_(squares, gradients, gradients)
        count += 1
    if not count:
        raise ValueError("windows must hold at least one window, got none")
    return {name: square / count for name, square in zip(learner.parameters, squares, strict=True)}


def dynamic_evaluation(
    model: LanguageModel,
    tokens: Tensor,
    statistics: Mapping[str, Tensor],
    *,
    lr: float,
    decay: float,
    segment: int = SEGMENT,
    epsilon: float = EPSILON,
    progress: Callable[[int], None] | None = None,
) -> DynamicResult:
    """Predict a text segment by segment, with a copy of the model that learns from each segment once predicted.

    After each segment with gradient g, every trained weight θ, which was θ₀ after training, becomes

        θ − lr · g / (√MS + ε) + min(decay · √MS / mean(√MS), 1) · (θ₀ − θ)

    where MS is its mean squared gradient on the training set and mean(√MS) the mean over all trained weights. Weights
    with large gradients take smaller steps along the gradient, and return faster to θ₀. Recurrent weights are then
    constrained to their bound. The text is one stream, in evaluation mode throughout: no dropout, and running
    statistics in batch norms. Each token is predicted by weights that were updated on earlier tokens only.

    Of the text, (N,), N − 1 tokens are predicted. `decay` is λ in the paper; an `lr` of 0 is no update. `progress`
    is called after each segment with the number of tokens predicted so far.

    Example:
        statistics = gradient_statistics(model, segments(train, batch_size=100))
        result = dynamic_evaluation(model, test, statistics, lr=2e-4, decay=0.01)
    """
    check_not_negative("lr", lr)
    check_not_negative("decay", decay)
    check_positive("epsilon", epsilon)
    learner = _Learner(model)
    update = learner.rule(statistics, lr, decay, epsilon) if lr else None
    losses, predicted = [], 0
    for inputs, targets in segments(tokens, 1, segment):
        loss, gradients = learner.learn(inputs, targets, differentiated=update is not None)
        if update is not None:
            update(gradients)
        losses.append(loss * len(inputs))
        predicted += len(inputs)
        if progress is not None:
            progress(predicted)
    return DynamicResult(sum(losses) / predicted, predicted, lr, decay, tuple(losses))


def grid(
    model: LanguageModel,
    tokens: Tensor,
    statistics: Mapping[str, Tensor],
    *,
    lrs: Sequence[float],
    decays: Sequence[float],
    segment: int = SEGMENT,
    epsilon: float = EPSILON,
    progress: Callable[[int], None] | None = None,
) -> list[DynamicResult]:
    """Grid search: `dynamic_evaluation` for every pair of `lrs` and `decays`, best first; for use on validation text.

    A pair that diverges comes last. `progress` is called after each segment with the number of tokens predicted so far,
    over all pairs.
    """
    if not lrs or not decays:
        raise ValueError("lrs and decays must hold at least one number each")
    options: dict[str, Any] = {"segment": segment, "epsilon": epsilon}
    results: list[DynamicResult] = []

    def advance(predicted: int) -> None:
        if progress is not None:
            progress(sum(result.tokens for result in results) + predicted)

    for lr, decay in itertools.product(lrs, decays):
        results.append(dynamic_evaluation(model, tokens, statistics, lr=lr, decay=decay, progress=advance, **options))
    return sorted(results, key=lambda result: result.loss if math.isfinite(result.loss) else math.inf)


class _Learner:
    """A copy of a model in evaluation mode, with the state of its stream."""

    def __init__(self, model: LanguageModel) -> None:
        if not (hasattr(model, "loss") and hasattr(model, "network")):  # wrappers have them too
            raise TypeError(f"model must be a LanguageModel, got {type(model).__name__}")
        self.model = copy.deepcopy(model).eval()
        self.parameters: dict[str, Tensor] = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.weights = list(self.parameters.values())
        if not self.weights:
            raise ValueError("model must have parameters that require a gradient, got none")
        self.state: Any = None

    def learn(self, inputs: Tensor, targets: Tensor, differentiated: bool = True) -> tuple[float, list[Tensor]]:
        """The mean loss of a window, (T, B), and its gradient for each parameter."""
        if getattr(self.model.network, "batch_first", False):
            inputs, targets = inputs.t(), targets.t()
        inputs, targets = (tokens.to(self.weights[0].device) for tokens in (inputs, targets))
        # cuDNN differentiates its recurrent layers in training mode alone, where dropout would act
        with torch.set_grad_enabled(differentiated), torch.backends.cudnn.flags(enabled=False):
            loss, state = self.model.loss(inputs, targets, self.state)
            self.state = detached(state)
            options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
            gradients = torch.autograd.grad(loss, self.weights, **options) if differentiated else ()
        return float(loss.detach()), list(gradients)

    def rule(self, statistics: Mapping[str, Tensor], lr: float, decay: float, epsilon: float) -> _Update:
        """The update of the parameters after each segment, given their gradients."""
        shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        squares = {name: tuple(square.shape) for name, square in statistics.items()}
        if shapes != squares:
            wrong = min(name for name in shapes.keys() | squares.keys() if shapes.get(name) != squares.get(name))
            what = f"got {squares.get(wrong)} for {wrong} of the shape {shapes.get(wrong)}"
            raise ValueError(f"statistics must be of this model, by `gradient_statistics`, {what}")
        roots = [statistics[name].to(p).sqrt() for name, p in self.parameters.items()]
        mean = sum(float(root.sum(dtype=torch.float64)) for root in roots) / sum(root.numel() for root in roots)
        if not mean > 0:
            raise ValueError("statistics must hold a gradient that is not 0")
        trained = [weight.detach().clone() for weight in self.weights]
        steps = [-lr / (root + epsilon) for root in roots]
        rates = [(decay / mean * root).clamp_max_(1) for root in roots]

        @torch.no_grad()
        def update(gradients: list[Tensor]) -> None:
            away = torch._foreach_sub(trained, self.weights)
            torch._foreach_addcmul_(self.weights, gradients, steps)
            torch._foreach_addcmul_(self.weights, away, rates)
            constrain_(self.model)

        return update


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
        return _evaluate_dynamically(run, options, run.checked_task(recipe), device, say)
    if options.test_batch is not None:
        recipe = replace(recipe, test_batch=options.test_batch)
    test, which = run.evaluate(recipe, device)
    say(f"{run.recipe_name}: {numbers(test, 6)} with {which}")
    return {"weights": which, "test": test}


def _evaluate_dynamically(run: Run, options: EvaluationOptions, task: Any, device: str, say: Say) -> dict[str, Any]:
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
        plan.gather(windows, progress)
    lr, decay = (_LR if options.lr is None else options.lr), (_DECAY if options.decay is None else options.decay)
    tried: dict[str, Any] = {}
    if options.grid:
        best, tried["grid"] = plan.search(lrs, decays, say)
        lr, decay = best.lr, best.decay
    static = plan.measure(corpus.test, "test, static")
    dynamic = plan.measure(corpus.test, "test, dynamic", lr, decay)
    before, after = plan.value(static), plan.value(dynamic)
    change = f"{abs(before - after) / before:.2%} {'lower' if after <= before else 'higher'}"
    say(
        f"{run.recipe_name}: {task.metric} {before:.6g} static, {after:.6g} dynamic "
        f"({change if math.isfinite(after) else 'diverged'}), tokens {static.tokens:,} in one stream, with {which}; "
        f"lr {lr:g}, decay {decay:g}{', chosen on validation' * options.grid}, segments of {plan.segment}, {used}"
    )
    result = {"weights": which, "metric": task.metric, "static": before, "dynamic": after, "tokens": static.tokens}
    result |= {"lr": lr, "decay": decay, "segment": plan.segment, "statistics_windows": windows}
    return {**result, "windows_in_epoch": epoch, **tried}


@dataclass
class _Plan:
    """A dynamic evaluation: its model, data and settings."""

    model: LanguageModel
    task: LanguageTask
    segment: int
    statistics: dict[str, Tensor] = field(default_factory=dict)

    def gather(self, count: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Take the statistics over the first windows of the training text."""

        def window(step: int) -> tuple[Tensor, Tensor]:
            progress(step)
            batch = self.task.batch(step, Shard())
            return batch.inputs, batch.target

        self.statistics = gradient_statistics(self.model, map(window, range(count)))

    def segments(self, split: Split) -> int:
        """Number of updates over a text."""
        return -(-(len(split) - 1) // self.segment)

    def seconds(self, windows: int, pairs: int) -> float:
        """Estimated duration, from timing a few windows and segments."""
        self.gather(1)  # to warm up
        start = time.perf_counter()
        self.gather(1)
        window = time.perf_counter() - start
        corpus = self.task.corpus
        text = tokens_of(corpus.validation)[: 1 + _TIMED * self.segment]
        costs = []  # of a segment, without and with an update
        for lr in (0.0, _LR):
            start = time.perf_counter()
            result = dynamic_evaluation(self.model, text, self.statistics, lr=lr, decay=_DECAY, segment=self.segment)
            costs.append((time.perf_counter() - start) / len(result.segments))
        static, dynamic = costs
        search = (static + pairs * dynamic) * self.segments(corpus.validation) if pairs else 0.0
        return window * windows + (static + dynamic) * self.segments(corpus.test) + search

    def measure(self, split: Split, title: str, lr: float = 0.0, decay: float = 0.0) -> DynamicResult:
        with _progress(title, len(split) - 1) as progress:
            rule: dict[str, Any] = {"lr": lr, "decay": decay, "segment": self.segment, "progress": progress}
            return dynamic_evaluation(self.model, tokens_of(split), self.statistics, **rule)

    def value(self, result: DynamicResult) -> float:
        """A result in the task's metric."""
        return measured(self.task.tokeniser.unit, result.loss)

    def search(self, lrs: Sequence[float], decays: Sequence[float], say: Say) -> tuple[DynamicResult, list[Any]]:
        """The best lr and decay on the validation text, and all results; prints a table."""
        split, metric = self.task.corpus.validation, self.task.metric
        static = self.measure(split, "validation, static")
        with _progress("validation, grid", len(lrs) * len(decays) * static.tokens) as progress:
            options: dict[str, Any] = {"lrs": lrs, "decays": decays, "segment": self.segment, "progress": progress}
            results = grid(self.model, tokens_of(split), self.statistics, **options)
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
        return best, list(map(finite, tried))


def tokens_of(split: Split) -> Tensor:
    """A part of a corpus as a tensor."""
    return torch.from_numpy(split.ids.astype(np.int64))


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
