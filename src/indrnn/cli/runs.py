"""The commands that look at runs: evaluate, report, analyse."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from ..layers.bound import recurrent_weights
from ..models import from_plain, load_module
from ..recipes import Recipe
from ..recipes.skeleton import SkeletonRecipe
from ..recipes.types import TYPES
from ..training import RunFolder, Shard
from ..training.checkpoint import write_atomically
from ..training.evaluation import is_finished, load_best, measure
from ..training.folder import finite
from ..training.options import check_count
from ..training.processes import Processes, choose_device
from ..training.step import autocast
from .main import UsageError, say
from .parse import Parser

# ---- evaluate


@dataclass
class EvaluateOptions:
    """Measure the best weights of a run again, on the test data, in the precision it was trained in."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    data: tyro.conf.Positional[Path | None] = None
    """For a run of `indrnn fit`: a file with series and labels; those kept for test if none is given."""
    resample: bool = False
    """With DATA: change WAV files of another rate to that of training."""
    device: str = "auto"
    """cpu, cuda, ...; auto takes a GPU where there is one."""
    data_dir: Path | None = None
    """The folder of the data, where the run needs one; INDRNN_DATA or a cache if none is given."""
    test_batch: int | None = None
    """Streams that a language model reads side by side; as the run has it if none is given."""
    dynamic: bool = False
    """For a language model: go on learning from the text that was just predicted; the run is not changed."""
    lr: float | None = None
    """With --dynamic: the learning rate."""
    decay: float | None = None
    """With --dynamic: how fast weights go back to the trained ones."""
    segment: int | None = None
    """With --dynamic: tokens between two updates, 20 if none are given."""
    grid: bool = False
    """With --dynamic: choose the learning rate and the decay, but for one that is given, on the validation text."""
    statistics_windows: int | None = None
    """With --dynamic: windows of the training text that gradients are measured on; an epoch's if none is given."""
    out: Path | None = None
    """A file for the numbers and the command, in JSON; none is written if none is given."""


EVALUATE = Parser("evaluate", EvaluateOptions)


def evaluate(arguments: list[str]) -> int:
    """Measure a run's best weights again."""
    from .train import prepare_half_precision, told_numbers

    options = EVALUATE(arguments)
    _check_dynamic(options)
    if _is_fitted(options.run):
        return _evaluate_fitted(options, arguments)
    if options.data is not None or options.resample:
        raise UsageError(f"DATA and resample are for runs of `indrnn fit`, and {options.run} is of a recipe")
    recorded, recipe = recipe_of(options.run)
    recipe = _with_data(recipe, options.data_dir, options.run)
    about = {"recipe": recorded["recipe"], "command": shlex.join(["indrnn", "evaluate", *arguments])}
    if options.dynamic:
        from .language import evaluate_dynamically

        evaluate_dynamically(options, recipe, about)
        return 0
    if options.test_batch is not None:
        if not hasattr(recipe, "test_batch"):
            raise UsageError(f"test_batch: {options.run} is of no language model")
        recipe = replace(recipe, test_batch=options.test_batch)  # type: ignore[type-var]
    task = recipe.task()
    model, which = best_of(options.run, recipe)
    device = choose_device(options.device, Processes())
    precision = recipe.training.precision
    if precision == "fp16" and device.type == "cpu":
        precision, which = "float32", f"{which}, in float32 (it was trained in fp16, on a GPU)"
    prepare_half_precision(replace(recipe.training, device=options.device, precision=precision))
    model = model.to(device).eval()
    with torch.inference_mode(), autocast(precision, device):
        measured = measure(iter(task.test(model, Shard())), Processes(), task=task) or {}
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

    if options.dynamic or options.test_batch is not None or options.data_dir is not None:
        raise UsageError(
            f"dynamic, test_batch and data_dir are for runs of recipes, and {options.run} is of `indrnn fit`"
        )
    about = {"command": shlex.join(["indrnn", "evaluate", *arguments])}
    found = evaluate_fitted(options.run, options.data, device=options.device, about=about, resample=options.resample)
    write_numbers(options.out, found)
    return 0


def _check_dynamic(options: EvaluateOptions) -> None:
    """Raise for options that do not go together, and for a file that cannot be written."""
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
    """Write what was measured, where that was asked for."""
    if out is not None:
        write_atomically(out, (json.dumps(finite(numbers), indent=2) + "\n").encode())
        say(f"written to {out}")


def _with_data(recipe: Recipe, data_dir: Path | None, run: Path) -> Recipe:
    if data_dir is None:
        return recipe
    if not hasattr(recipe, "data_dir"):
        raise UsageError(f"data_dir: {run} makes its own data")
    changed: Recipe = replace(recipe, data_dir=data_dir)  # type: ignore[type-var]
    return changed


def recipe_of(run: Path) -> tuple[dict[str, Any], Recipe]:
    """What a run's config.json says, and the recipe in it."""
    folder = RunFolder(run)
    if not folder.config.exists():
        raise UsageError(f"run must be the folder of a run, and {run} holds no config.json")
    recorded = folder.read_json(folder.config)
    if "options" not in recorded:
        raise UsageError(
            f"{run} is not the run of a recipe: indrnn.training.evaluate(model, task, {str(run)!r}) measures it"
        )
    options = recorded["options"] | {"training": recorded["training"], "seed": recorded["seed"]}
    return recorded, from_plain(options, TYPES)


def best_of(run: Path, recipe: Recipe) -> tuple[torch.nn.Module, str]:
    """A run's best model, and which that is."""
    folder = RunFolder(run)
    if is_finished(folder):
        return load_module(run), "the finished run's weights"
    model = recipe.model_config().build()
    step, _ = load_best(model, folder)
    return model, f"the best weights so far, of step {step} (the run is not finished)"


# ---- report


@dataclass
class ReportOptions:
    """Gather runs of one task: a small JSON for each, and a picture of all in the folder; or with --html, one page.

    Runs that differ by their seeds alone are one row, with mean, standard deviation and number.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs, finished or not."""
    out: Path | None = None
    """Where the files go, results/adding or results/pixels if none is given; what is there is drawn too."""
    overwrite: bool = False
    """Replace the picture and what is kept of the same runs, or the page."""
    check: bool = False
    """Instead of gathering: compare the tables of README and docs with the files in results that they name."""
    html: Path | None = None
    """Instead of gathering: write one page about the runs, of any tasks, side by side, into this file."""
    full: bool = False
    """With --html: answers on all test data, and how gradients flow; takes minutes."""
    data_dir: Path | None = None
    """With --html: the folder of the data; INDRNN_DATA or a cache if none is given. Nothing is downloaded."""


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
    kinds = {kept.kind(run) for run in options.runs}
    by_type = {name: kind.page for name, kind in TYPES.items() if hasattr(kind, "page")}
    names = {by_type[kind].name if kind in by_type else kind for kind in kinds}
    if len(names) != 1 or not names <= {*_pages(), "own"}:
        raise UsageError(f"runs must be of one task, {', '.join(_pages())} or your own")
    first = kinds.pop()
    if first == "own":
        folder = RunFolder(options.runs[0])
        lines = folder.read_metrics()
        if not lines:
            raise UsageError(f"runs must have an evaluation at least; {options.runs[0]} has none")
        page = kept.own_page(lines)
    else:
        page = by_type[first]
    out = options.out or Path("results") / page.name
    say(kept.gather(page, options.runs, out, overwrite=options.overwrite))
    return 0


def _pages() -> dict[str, Any]:
    return {kind.page.name: kind for kind in TYPES.values() if hasattr(kind, "page")}


# ---- analyse


@dataclass
class GradientsOptions:
    """Draw how gradients flow back over time and depth, as the paper's figure 5, and write the numbers beside it.

    Each run's best weights see training batches as in training, and stay as they are.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs of recipes; those of one task at the same training accuracy, for a fair comparison."""
    out: Path = Path("results/gradients")
    """Where gradients.json and gradients.png go."""
    batches: int | None = None
    """Batches to take the mean over; an epoch if none is given, or 100 where the data have no end."""
    device: str = "auto"
    """cpu, cuda, ...; auto takes a GPU where there is one."""
    data_dir: Path | None = None
    """The folder of the data; INDRNN_DATA or a cache if none is given."""
    overwrite: bool = False
    """Replace what is there."""


@dataclass
class DepthOptions:
    """Measure the gradients at the first and last block of plain, residual and dense networks, untrained."""

    out: Path = Path("results/depth")
    """Where depth.json and depth.png go."""
    seeds: int = 5
    """Seeds to take the mean over."""
    overwrite: bool = False
    """Replace what is there."""


@dataclass
class SkeletonsOptions:
    """Draw samples of the recordings that a run was trained on, and which actions it takes for others at test."""

    run: tyro.conf.Positional[Path]
    """The folder of a run of a skeleton recipe."""
    out: Path = Path("results/skeleton")
    """Where samples.png, confusion.json and confusion.png go."""
    data_dir: Path | None = None
    """The folder of the data; INDRNN_DATA or a cache if none is given."""
    overwrite: bool = False
    """Replace what is there."""


GRADIENTS, DEPTH = Parser("analyse gradients", GradientsOptions), Parser("analyse depth", DepthOptions)
SKELETONS = Parser("analyse skeletons", SkeletonsOptions)


def analyse(arguments: list[str]) -> int:
    """Look into trained models."""
    from .insight import KINDS

    if arguments[:1] in (["--help"], ["-h"]):
        say(f"usage: indrnn analyse {{gradients,depth,skeletons,{','.join(KINDS)}}} [OPTIONS]\n")
        say("  gradients RUN ...  draw how gradients flow over time and depth in trained networks")
        say("  depth              measure how they reach the first layers of deep networks before any training")
        say("  skeletons RUN      draw sampled skeletons, and the confusion matrix of a run")
        for name, kind in KINDS.items():
            say(f"  {f'{name} {kind.takes}':<17}  {kind.about}")
        return 0
    if arguments and arguments[0] in KINDS:
        return KINDS[arguments[0]].run(arguments[1:])
    if arguments[:1] == ["depth"]:
        return _analyse_depth(arguments[1:])
    if arguments[:1] == ["skeletons"]:
        return _analyse_skeletons(arguments[1:])
    if arguments[:1] != ["gradients"]:
        known = ", ".join(KINDS)
        raise UsageError(
            f"analyse needs the name of an analysis: gradients, with the folders of runs, depth, skeletons, {known}"
        )
    options = GRADIENTS(arguments[1:])
    if not options.runs:
        raise UsageError("analyse gradients needs the folders of runs")
    from ..analysis import gradients

    if options.batches is not None:
        check_count("batches", options.batches)
    _check_free(options.out, "gradients", options.overwrite)
    flows = []
    for run in options.runs:
        recorded, recipe = recipe_of(run)
        model, _ = best_of(run, recipe)
        task: Any = _with_data(recipe, options.data_dir, run).task()
        model = model.to(choose_device(options.device, Processes()))
        batches = options.batches or getattr(task, "steps_per_epoch", 100)
        size = task.batch(0, Shard()).total
        say(f"{run}: {batches} batches of {size}")
        flow = gradients.gradient_flow(model, task, batches)
        about = {
            "name": run.name,
            "indrnn": next(recurrent_weights(model), None) is not None,
            "batches": batches,
            "batch_size": size,
        }
        flows.append({**about, "command": shlex.join(recorded["command"]), **flow})
    say(f"drawn in {gradients.write(flows, options.out)}")
    return 0


def _analyse_depth(arguments: list[str]) -> int:
    options = DEPTH(arguments)
    check_count("seeds", options.seeds)
    from ..analysis import depth

    _check_free(options.out, "depth", options.overwrite)
    RunFolder(options.out).prepare()
    say(depth.write(depth.measure(options.seeds), options.seeds, options.out))
    return 0


def _analyse_skeletons(arguments: list[str]) -> int:
    options = SKELETONS(arguments)
    from ..analysis import skeletons

    recorded, recipe = recipe_of(options.run)
    if not isinstance(recipe, SkeletonRecipe):
        raise UsageError(f"run must be of a skeleton recipe, and {options.run} is not")
    for name in ("samples", "confusion"):
        _check_free(options.out, name, options.overwrite)
    model, _ = best_of(options.run, recipe)
    task = replace(recipe, data_dir=options.data_dir).task()
    if "test" not in task.data:
        raise UsageError(f"run must have recordings for test, and {options.run} has none")
    RunFolder(options.out).prepare()
    drawn = ["confusion.png"]
    if task.joints.bones:
        skeletons.draw_samples(task, options.out / "samples.png")
        drawn.append("samples.png")
    counts = skeletons.confusion(task, model)
    about = {"run": options.run.name, "recipe": recorded["recipe"], "command": shlex.join(recorded["command"])}
    skeletons.write_confusion(counts, about, options.out)
    say(f"{counts.trace()} of {counts.sum()} recordings right; drawn in {options.out}: {', '.join(drawn)}")
    return 0


def _check_free(out: Path, name: str, overwrite: bool) -> None:
    there = [path.name for path in (out / f"{name}.json", out / f"{name}.png") if path.exists()]
    if there and not overwrite:
        raise UsageError(f"out: {out} holds {', '.join(there)} already; replace them with --overwrite")


__all__ = ["analyse", "evaluate", "report"]
