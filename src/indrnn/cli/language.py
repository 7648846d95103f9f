"""The commands for language models: `generate`, and `evaluate --dynamic`."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tyro
from torch import Tensor

from ..networks import LanguageModel
from ..networks.tokeniser import UNKNOWN, Tokeniser, Unknown
from ..tasks.recipe import Recipe
from ..tasks.runs import open_run
from ..tasks.text.corpus import Split
from ..tasks.text.dynamic import SEGMENT, DynamicResult, dynamic_evaluation, gradient_statistics, grid
from ..tasks.text.recipe import PennRecipe, TextRecipe
from ..tasks.text.task import LanguageTask
from ..training import Shard
from ..training.folder import finite
from ..training.processes import Processes, choose_device
from .main import UsageError, say
from .parse import Parser

if TYPE_CHECKING:
    from .runs import EvaluateOptions

# ---- generate


@dataclass
class GenerateOptions:
    """Generate text with the language model of a run: the prompt and its continuation, printed token by token.

    The prompt is an option, or standard input: `echo "To be" | indrnn generate RUN`. The same seed gives the same text.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder, or a folder written by `indrnn.save`."""
    prompt: str | None = None
    """Prompt; None or - to read it from standard input, without the last newline."""
    length: int = 200
    """Number of tokens to generate: characters, words or bytes."""
    temperature: float = 0.8
    """Sampling temperature: below 1 favours likely tokens, above 1 unlikely ones; 0 for greedy decoding."""
    top_k: int | None = None
    """Top-k sampling: sample from the k most likely tokens."""
    top_p: float | None = None
    """Top-p sampling: sample from the fewest most likely tokens whose probabilities sum to p."""
    seed: int = 0
    """Random seed of sampling."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""


GENERATE = Parser("generate", GenerateOptions)


def generate(arguments: list[str]) -> int:
    """Write text, token by token."""
    options = GENERATE(arguments)
    device = choose_device(options.device, Processes())
    model, tokeniser = _language_model(options.run)
    prompt = _encoded(_prompt(options.prompt, tokeniser), tokeniser)
    names = ("temperature", "top_k", "top_p", "seed")
    drawn = model.to(device).stream(
        prompt.to(device), options.length, **{name: getattr(options, name) for name in names}
    )
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks a character shows another
        sys.stdout.reconfigure(errors="replace")
    first = list(itertools.islice(drawn, 1))  # what cannot be drawn at all fails before anything is printed
    return _printed(tokeniser.decode_each(map(int, itertools.chain(prompt, first, drawn))))


def _printed(pieces: Iterable[str]) -> int:
    """Print each piece immediately; Ctrl-C ends the text."""
    last, code = "\n", 0
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
            last = piece or last
    except KeyboardInterrupt:
        code = 130
    if not last.endswith("\n"):
        print(flush=True)
    return code


def _language_model(path: Path) -> tuple[LanguageModel, Tokeniser]:
    """A run's best language model and its tokeniser; of an unfinished run, the best so far."""
    run = open_run(path, saved=True)
    model, which = run.best
    if not isinstance(model, LanguageModel):
        raise UsageError(f"run must be of a language model, and {path} is of a {type(model).__name__}")
    if model.tokeniser is None:
        raise UsageError(f"run must have a tokeniser, and {path} holds no {run.folder.tokeniser.name}")
    if "so far" in which:
        _note(f"with {which}")
    return model, model.tokeniser


def _language_recipe(run: Path, recipe: Recipe) -> PennRecipe | TextRecipe:
    if not isinstance(recipe, (PennRecipe, TextRecipe)):
        raise UsageError(f"run must be of a language model, and {run} is of a {type(recipe).__name__}")
    return recipe


def _prompt(given: str | None, tokeniser: Tokeniser) -> str:
    if given is not None and given != "-":
        with contextlib.suppress(UnicodeEncodeError):
            return given.encode().decode()
        raise UsageError(f"prompt must be UTF-8 text, got {given!r}")
    if sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise UsageError("prompt must be given: --prompt TEXT, or on standard input")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"prompt must be UTF-8 text, got {error.object[error.start]:#x} at byte {error.start}"
        ) from None
    if (tokeniser.lookup("\r") < 0).any():  # line ends of another system, which the model's text did not have
        text = text.replace("\r\n", "\n")
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")  # which `echo` adds


def _encoded(prompt: str, tokeniser: Tokeniser) -> Tensor:
    ids = tokeniser.lookup(prompt)
    if len(ids) == 0:
        raise UsageError(f"prompt must hold at least one token to begin with, got {prompt!r}")
    if (ids < 0).any():
        unknown = Unknown(tokeniser)
        unknown.add(prompt, ids)
        if tokeniser.unknown_id is None:
            raise UsageError(f"prompt {unknown}")
        _note(f"the prompt {unknown}, read as {UNKNOWN}")
    return tokeniser.encode(prompt)


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"indrnn: {text}", file=sys.stderr)


# ---- evaluate --dynamic

LRS, DECAYS = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4), (0.0, 0.004, 0.016, 0.064)
"""What `--grid` chooses from; 2.4e-6 and 0.016 were best in the log of the paper's authors."""
_LR, _DECAY = 1e-5, 0.016
_TIMED = 5  # segments


@dataclass(frozen=True)
class _Plan:
    """A dynamic evaluation: its model, data and settings."""

    model: LanguageModel
    task: LanguageTask
    segment: int
    windows: int
    """Of the training text."""

    def training(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The first windows of the training text."""
        for step in range(count):
            window = self.task.batch(step, Shard())
            yield window.inputs, window.target

    def statistics(self, count: int, progress: Callable[[int], None]) -> dict[str, Tensor]:
        """Mean square gradients over `count` windows."""

        def watched() -> Iterator[tuple[Tensor, Tensor]]:
            for done, window in enumerate(self.training(count)):
                progress(done)
                yield window

        return gradient_statistics(self.model, watched())

    def segments(self, split: Split) -> int:
        """Number of updates over a text."""
        return math.ceil((len(split) - 1) / self.segment)

    def seconds(self, pairs: int) -> float:
        """Estimated duration, from timing a few windows and segments."""
        self.statistics(1, _silent)  # to warm up
        start = time.perf_counter()
        statistics = self.statistics(1, _silent)
        window = time.perf_counter() - start
        text = tokens_of(self.task.corpus.validation)[: 1 + _TIMED * self.segment]
        each = []
        for lr in (0.0, _LR):
            start = time.perf_counter()
            dynamic_evaluation(self.model, text, statistics, lr=lr, decay=_DECAY, segment=self.segment)
            each.append((time.perf_counter() - start) / math.ceil((len(text) - 1) / self.segment))
        static, dynamic = each
        test, validation = self.segments(self.task.corpus.test), self.segments(self.task.corpus.validation)
        chosen = (static + pairs * dynamic) * validation if pairs else 0.0
        return window * self.windows + (static + dynamic) * test + chosen

    def measure(
        self, split: Split, title: str, statistics: dict[str, Tensor], lr: float, decay: float
    ) -> DynamicResult:
        """Evaluate on a part of the corpus."""
        text = tokens_of(split)
        rule: dict[str, Any] = {"lr": lr, "decay": decay, "segment": self.segment}
        with _progress(title, len(text) - 1) as progress:
            return dynamic_evaluation(self.model, text, statistics, progress=progress, **rule)

    def value(self, result: DynamicResult) -> float:
        """A result in the task's metric."""
        return result.perplexity if self.task.metric == "perplexity" else result.bits


def tokens_of(split: Split) -> Tensor:
    """A part of a corpus as a tensor."""
    return torch.from_numpy(split.ids.astype(np.int64))


def evaluate_dynamically(
    options: EvaluateOptions, recipe: Recipe, recorded: dict[str, Any], about: dict[str, Any]
) -> None:
    """Measure a run's best weights on the test text, as they are and with dynamic evaluation."""
    from .runs import best_of, check_data, write_numbers
    from .train import time_of

    task = _language_recipe(options.run, recipe).task()
    check_data(recorded, task, options.run, ("train", "validation", "test"))
    device = choose_device(options.device, Processes())
    model, which = best_of(options.run, recipe)
    assert isinstance(model, LanguageModel)
    epoch = task.steps_per_epoch
    windows = min(options.statistics_windows or epoch, epoch)
    plan = _Plan(model.to(device).eval(), task, options.segment or SEGMENT, windows)
    lrs = LRS if options.lr is None else (options.lr,)
    decays = DECAYS if options.decay is None else (options.decay,)
    pairs = len(lrs) * len(decays) if options.grid else 0
    work = [f"statistics over {windows:,} of {epoch:,} windows of the training text"]
    if pairs:
        work.append(
            f"{pairs} pairs of lr and decay on {plan.segments(task.corpus.validation):,} segments of validation"
        )
    work.append(f"{plan.segments(task.corpus.test):,} segments of the test")
    say(f"about {time_of(plan.seconds(pairs))}: {', '.join(work)}")

    with _progress("statistics", windows) as progress:
        statistics = plan.statistics(windows, progress)
    lr, decay = (_LR if options.lr is None else options.lr), (_DECAY if options.decay is None else options.decay)
    tried: list[dict[str, float]] = []
    if options.grid:
        best, tried = _chosen(plan, statistics, lrs, decays)
        lr, decay = best.lr, best.decay
    static = plan.measure(task.corpus.test, "test, static", statistics, 0.0, 0.0)
    dynamic = plan.measure(task.corpus.test, "test, dynamic", statistics, lr, decay)
    before, after = plan.value(static), plan.value(dynamic)
    rule = f"lr {lr:g}, decay {decay:g}" + (", chosen on validation" if options.grid else "")
    say(
        f"{about['recipe']}: {task.metric} {before:.6g} static, {after:.6g} dynamic ({_change(before, after)}), tokens "
        f"{static.tokens:,} in one stream, with {which}; {rule}, segments of {plan.segment}, statistics over "
        f"{windows:,} of {epoch:,} windows"
    )
    numbers: dict[str, Any] = {
        "metric": task.metric,
        "static": before,
        "dynamic": after,
        "tokens": static.tokens,
        "lr": lr,
        "decay": decay,
        "segment": plan.segment,
        "statistics_windows": windows,
        "windows_in_epoch": epoch,
    }
    write_numbers(options.out, {**about, "weights": which, **numbers, **({"grid": tried} if tried else {})})


def _chosen(
    plan: _Plan, statistics: dict[str, Tensor], lrs: tuple[float, ...], decays: tuple[float, ...]
) -> tuple[DynamicResult, list[dict[str, float]]]:
    """The best lr and decay on the validation text, and all results; prints a table."""
    split = plan.task.corpus.validation
    static = plan.measure(split, "validation, static", statistics, 0.0, 0.0)
    text = tokens_of(split)
    with _progress("validation, grid", len(lrs) * len(decays) * (len(text) - 1)) as progress:
        results = grid(plan.model, text, statistics, lrs=lrs, decays=decays, segment=plan.segment, progress=progress)
    # A pair that is no better than the model as it is, or diverged, is not taken
    best, metric = results[0] if results[0].loss < static.loss else static, plan.task.metric
    say(f"{'lr':>8}  {'decay':>6}  {metric} on validation")
    for result in results:
        note = "  chosen" if result is best else ""
        say(f"{result.lr:>8g}  {result.decay:>6g}  {plan.value(result):.6g}{note}")
    say(f"{'static':>16}  {plan.value(static):.6g}{'  chosen: no pair is better' if best is static else ''}")
    for name, value, values in (("lr", best.lr, lrs), ("decay", best.decay, decays)):
        if best is not static and len(values) > 1 and value > 0 and value in (min(values), max(values)):
            say(f"{name} {value:g} is at the end of the grid: one beyond it, with --{name}, may be better")
    tried = [finite({"lr": each.lr, "decay": each.decay, metric: plan.value(each)}) for each in (static, *results)]
    return best, tried


def _change(before: float, after: float) -> str:
    if not math.isfinite(after):
        return "diverged"
    return f"{abs(before - after) / before:.2%} {'lower' if after <= before else 'higher'}"


def _silent(done: int) -> None:
    """Show no progress."""


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, if there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
