"""The commands `evaluate` and `report`, for existing runs."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from ..checks import check_count
from ..files import write_atomically
from ..saving import from_json, load_module
from ..tasks.rows import Recipe
from ..tasks.series.fitting import members_of
from ..tasks.types import TYPES
from ..training import RunFolder, Shard
from ..training.evaluation import is_finished, load_best, measure
from ..training.folder import finite
from ..training.processes import Processes, choose_device
from ..training.update import autocast
from .main import UsageError, say
from .parse import Parser

# ---- evaluate


@dataclass
class EvaluateOptions:
    """Evaluate the best weights of a run on the test set, in the precision that it was trained in."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    data: tyro.conf.Positional[Path | None] = None
    """Runs of `indrnn fit`: file of labelled series; None for the series held out for test."""
    resample: bool = False
    """With DATA: resample WAV files of another rate to that of training."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder, if the run needs one; None for INDRNN_DATA or, if unset, the user's cache."""
    test_batch: int | None = None
    """Language models: batch size (parallel streams) in the test; None for that of the run."""
    dynamic: bool = False
    """Language models: dynamic evaluation, which keeps learning from the text just predicted; the run is unchanged."""
    lr: float | None = None
    """With --dynamic: learning rate."""
    decay: float | None = None
    """With --dynamic: rate at which weights decay back to the trained ones."""
    segment: int | None = None
    """With --dynamic: tokens between two updates; None for 20."""
    grid: bool = False
    """With --dynamic: grid search over learning rate and decay, unless given, on the validation text."""
    statistics_windows: int | None = None
    """With --dynamic: training windows for the gradient statistics; None for an epoch."""
    out: Path | None = None
    """JSON file for the results and the command; None to write no file."""


EVALUATE = Parser("evaluate", EvaluateOptions)


def evaluate(arguments: list[str]) -> int:
    """Measure a run's best weights again."""
    from .train import prepare_half_precision, told_numbers

    options = EVALUATE(arguments)
    _check_dynamic(options)
    if _is_fitted(options.run):
        return _evaluate_fitted(options, arguments)
    recorded, recipe = recipe_of(options.run)
    if options.data is not None or options.resample:
        raise UsageError(f"DATA and resample are for runs of `indrnn fit`, and {options.run} is of a recipe")
    recipe = with_data(recipe, options.data_dir, options.run)
    about = {"recipe": recorded["recipe"], "command": shlex.join(["indrnn", "evaluate", *arguments])}
    if options.dynamic:
        from .language import evaluate_dynamically

        evaluate_dynamically(options, recipe, recorded, about)
        return 0
    if options.test_batch is not None:
        if not hasattr(recipe, "test_batch"):
            raise UsageError(f"test_batch: {options.run} is of no language model")
        recipe = replace(recipe, test_batch=options.test_batch)  # type: ignore[type-var]
    task = recipe.task()
    check_data(recorded, task, options.run, ("test", "frames"))
    model, which = best_of(options.run, recipe)
    device = choose_device(options.device, Processes())
    precision = recipe.training.precision
    if precision == "fp16" and device.type == "cpu":
        precision, which = "float32", f"{which}, in float32 (it was trained in fp16, on a GPU)"
    prepare_half_precision(replace(recipe.training, device=options.device, precision=precision))
    model = model.to(device).eval()
    with torch.inference_mode(), autocast(precision, device):
        measured = measure(iter(task.test(model, Shard())), Processes(), task=task) or {}
    if not measured:
        raise UsageError(f"run must have data for a test, and {options.run} has none")
    say(f"{recorded['recipe']}: {told_numbers(measured, 6)} with {which}")
    write_numbers(options.out, {**about, "weights": which, "test": measured})
    return 0


def _is_fitted(run: Path) -> bool:
    """Whether it is a run of `indrnn fit`, or of an ensemble of such."""
    for home in (run, run / "member-0"):
        folder = RunFolder(home)
        if folder.config.exists():
            return "fit" in folder.read_json(folder.config)
    return False


def _evaluate_fitted(options: EvaluateOptions, arguments: list[str]) -> int:
    from .predict import evaluate_fitted

    if options.dynamic or options.test_batch is not None:
        raise UsageError(f"dynamic and test_batch are for runs of recipes, and {options.run} is of `indrnn fit`")
    if options.data is not None and options.data_dir is not None:
        raise UsageError("data_dir is for the data that the run was fitted to; DATA names another file")
    about = {"command": shlex.join(["indrnn", "evaluate", *arguments])}
    found = evaluate_fitted(
        options.run,
        options.data,
        moved=options.data_dir,
        device=options.device,
        about=about,
        resample=options.resample,
    )
    write_numbers(options.out, found)
    return 0


def _check_dynamic(options: EvaluateOptions) -> None:
    """Raise for incompatible options, and for an output file that cannot be written."""
    given = {name: getattr(options, name) for name in ("lr", "decay", "segment", "statistics_windows")}
    wrong = [name for name, value in {**given, "grid": options.grid or None}.items() if value is not None]
    if wrong and not options.dynamic:
        raise UsageError(f"{wrong[0]} is for --dynamic")
    if options.dynamic and options.test_batch is not None:
        raise UsageError("test_batch is not for --dynamic, which reads the text as one stream")
    for name in ("segment", "statistics_windows"):
        if given[name] is not None:
            check_count(name, given[name])
    for name in ("lr", "decay"):
        if given[name] is not None and not 0 <= given[name] < math.inf:
            raise UsageError(f"{name} must be a number of at least 0, got {given[name]}")
    if options.out is not None:
        if options.out.exists():
            raise UsageError(f"out must be a new file, and {options.out} is there already")
        if not options.out.absolute().parent.is_dir():
            raise UsageError(f"out must be a file in a folder, and {options.out.parent} is none")


def write_numbers(out: Path | None, numbers: dict[str, Any]) -> None:
    """Write the measurements to a file, if one is given."""
    if out is not None:
        write_atomically(out, (json.dumps(finite(numbers), indent=2) + "\n").encode())
        say(f"written to {out}")


def with_data(recipe: Recipe, data_dir: Path | None, run: Path) -> Recipe:
    """A recipe that reads its data from this folder, if one is given."""
    if data_dir is None:
        return recipe
    if not hasattr(recipe, "data_dir"):
        raise UsageError(f"data_dir: {run} makes its own data")
    changed: Recipe = replace(recipe, data_dir=data_dir)  # type: ignore[type-var]
    return changed


def recipe_of(run: Path) -> tuple[dict[str, Any], Recipe]:
    """The content of a run's config.json, and the recipe in it."""
    folder = RunFolder(run)
    if not folder.config.exists():
        raise UsageError(f"run must be the folder of a run, and {run} holds no config.json")
    recorded = folder.read_json(folder.config)
    if "options" not in recorded:
        raise UsageError(
            f"{run} is not the run of a recipe: indrnn.training.evaluate(model, task, {str(run)!r}) measures it"
        )
    options = recorded["options"] | {"training": recorded["training"], "seed": recorded["seed"]}
    return recorded, from_json(options, TYPES)


def check_data(recorded: dict[str, Any], task: Any, run: Path, parts: Sequence[str] = ()) -> None:
    """Raise if the data that a run was trained or is evaluated with have changed.

    Args:
        recorded: the run's config.json.
        task: the task of a language model or of skeletons; no other is checked.
        run: the run.
        parts: parts of `task.describe()` to compare; a language model's vocabulary always is.
    """
    before = recorded.get("task") or {}
    if before.keys().isdisjoint({"tokeniser", "frames"}):
        return
    now = json.loads(json.dumps(task.describe()))
    for name in ("tokeniser", *parts):
        if name in before and before[name] != now.get(name):
            what = "vocabulary" if name == "tokeniser" else f"{name} text"
            changed = f"{what} is no longer that" if "tokeniser" in before else "recordings are no longer those"
            raise UsageError(f"data: the {changed} of {run}; give the files that it was trained with")


def best_of(run: Path, recipe: Recipe) -> tuple[torch.nn.Module, str]:
    """A run's best model, and which weights it has."""
    folder = RunFolder(run)
    if is_finished(folder):
        return load_module(run), "the finished run's weights"
    model = recipe.model_config().build()
    step, _ = load_best(model, folder)
    return model, f"the best weights so far, of step {step} (the run is not finished)"


# ---- report


@dataclass
class ReportOptions:
    """Collect runs of one task in a folder: a small JSON file per run and a figure of all; or with --html, one page.

    Runs that differ only in their seeds form one row, with mean, standard deviation and number.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, finished or not."""
    out: Path | None = None
    """Output folder; None for results/TASK, such as results/adding. Runs already there are plotted too."""
    overwrite: bool = False
    """Replace the figure and the files of the same runs, or the page."""
    check: bool = False
    """Instead of collecting: compare the tables of README and docs with the files in results that they name."""
    html: Path | None = None
    """Instead of collecting: write one HTML page that compares the runs, of any tasks, to this file."""
    full: bool = False
    """With --html: predictions for all test data, and gradients over ten batches instead of one; takes minutes."""
    data_dir: Path | None = None
    """With --html: data folder; None for INDRNN_DATA or, if unset, the user's cache. Nothing is downloaded."""


REPORT = Parser("report", ReportOptions)


def report(arguments: list[str]) -> int:
    """Gather runs into a page of results, or check the pages."""
    from ..analysis import runs as kept

    options = REPORT(arguments)
    if options.html is not None:
        from . import report_page

        given = {"full": options.full, "data_dir": options.data_dir, "overwrite": options.overwrite}
        report_page.write(options.runs, options.html, **given)
        return 0
    if options.check:
        from ..analysis.pages import check

        pages = [path for path in (Path("README.md"), *sorted(Path("docs").glob("*.md"))) if path.exists()]
        wrong, tables = check(pages, {name: kind.page for name, kind in _pages().items()})
        for line in wrong:
            say(line)
        say(f"{tables} tables on {len(pages)} pages, {len(wrong)} differences")
        return 1 if wrong else 0
    runs = [home for run in options.runs for home in _homes(run)]
    kinds = {kept.kind(run) for run in runs}
    by_type = {name: kind.page for name, kind in TYPES.items() if hasattr(kind, "page")}
    names = {by_type[kind].name if kind in by_type else kind for kind in kinds}
    if len(names) != 1 or not names <= {*_pages(), "own"}:
        raise UsageError(f"runs must be of one task, {', '.join(_pages())} or your own")
    first = kinds.pop()
    if first == "own":
        folder = RunFolder(runs[0])
        lines = folder.read_metrics()
        if not lines:
            raise UsageError(f"runs must have an evaluation at least; {runs[0]} has none")
        page = kept.own_page(lines)
    else:
        page = by_type[first]
    out = options.out or Path("results") / page.name
    say(kept.gather(page, runs, out, overwrite=options.overwrite))
    return 0


def _homes(run: Path) -> list[Path]:
    """The run itself, or, for an ensemble, its networks, each of which is a run."""
    members = [] if RunFolder(run).config.exists() else [each for each in members_of(run) if RunFolder(each).used]
    if members:
        say(f"{run} is an ensemble: the rows are of its {len(members)} networks, its own figures in scores.json")
    return members or [run]


def _pages() -> dict[str, Any]:
    return {kind.page.name: kind for kind in TYPES.values() if hasattr(kind, "page")}


__all__ = ["evaluate", "report"]
