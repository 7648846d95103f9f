"""The commands around runs: demo, recipes, train, evaluate."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from .. import onednn
from ..memory import keep_memory
from ..models import Baseline, Transformer, from_plain, load
from ..recipes import ROWS, Recipe, Row, find
from ..recipes.adding import AddingRecipe
from ..recipes.pixels import PixelsRecipe
from ..recipes.types import TYPES
from ..tasks.adding import BASELINE
from ..training import Result, RunFolder, Task, Training
from ..training import train as run_training
from ..training.folder import plain
from ..training.options import check_count
from ..training.processes import Processes, choose_device
from .main import UsageError


def recipes(arguments: list[str]) -> int:
    """List every recipe: what it is in the paper, parameters and rough cost."""

    @dataclass
    class Options:
        """List every recipe: what it is in the paper, what the paper reports, parameters, rough cost on two cores."""

    tyro.cli(Options, args=arguments, prog="indrnn recipes")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("recipe", "in the paper", "reported there", "parameters", "cost"):
        table.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=True)
    for row in ROWS.values():
        table.add_row(row.name, row.paper, row.value, f"{parameters(row.recipe):,}", row.cost)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(table)
    return 0


def parameters(recipe: Recipe) -> int:
    """How many numbers are trained."""
    with torch.device("meta"):
        model = recipe.model_config().build()
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def train(arguments: list[str]) -> int:
    """Train a recipe."""
    if not arguments or arguments[0].startswith("-"):
        if arguments[:1] in (["--help"], ["-h"]):
            print("usage: indrnn train RECIPE [--FIELD VALUE ...] [--out DIR] [--resume] [--overwrite]\n")
            print("Train a recipe and leave a run in a folder. RECIPE is one of:\n")
            recipes([])
            print("\n`indrnn train RECIPE --help` shows all that can be changed, with its value.")
            return 0
        raise UsageError("train needs the name of a recipe; `indrnn recipes` lists them")
    row = find(arguments[0])
    options = _train_options(row, arguments[1:])
    recipe: Recipe = options.recipe
    out = Path("runs") / row.name if options.out is None else options.out
    again = [argument for argument in arguments if argument not in ("--resume", "--overwrite")]
    again = ["train", *again, "--resume"]
    result = run(row.name, recipe, out, resume=options.resume, overwrite=options.overwrite, again=again)
    return _told(result)


def _train_options(row: Row, arguments: list[str]) -> Any:
    recipe = row.recipe
    doc = f"{recipe.__doc__} In the paper: {row.paper}, {row.value}."
    options = make_dataclass(
        "Train",
        [
            ("recipe", Annotated[type(recipe), tyro.conf.arg(name="")], recipe),
            (
                "out",
                Annotated[Path | None, tyro.conf.arg(help="The run's folder; runs/RECIPE if none is given.")],
                None,
            ),
            ("resume", Annotated[bool, tyro.conf.arg(help="Go on from the last checkpoint in the folder.")], False),
            ("overwrite", Annotated[bool, tyro.conf.arg(help="Replace a run that is in the folder.")], False),
        ],
    )
    options.__doc__ = doc
    return tyro.cli(
        options,
        args=arguments,
        prog=f"indrnn train {row.name}",
        description=doc,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )


def run(
    name: str, recipe: Recipe, out: Path, *, resume: bool = False, overwrite: bool = False, again: list[str]
) -> Result:
    """Train a recipe into a folder, and draw its curve."""
    keep_memory()
    _prepare_half_precision(recipe.training)
    torch.manual_seed(recipe.seed)
    config = recipe.model_config()
    apart = ("training", "seed", "data_dir")  # the last may be another on another machine
    options = {key: value for key, value in plain(recipe).items() if key not in apart}
    result = run_training(
        model := config.build(),
        task := recipe.task(),
        recipe.training,
        out=out,
        seed=recipe.seed,
        resume=resume,
        overwrite=overwrite,
        config={"recipe": name, "options": options},
        model_config=plain(config),
        resume_command=_again(again),
    )
    if result.finished and result.main:
        _draw(result, recipe, task, model)
    return result


def _prepare_half_precision(training: Training) -> None:
    on_cpu = training.device == "cpu" or (training.device == "auto" and not torch.cuda.is_available())
    if training.precision == "float32" or not on_cpu:
        return
    done = onednn.limit_where_needed()
    if done is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"indrnn: {done}", file=sys.stderr)


def _again(arguments: list[str]) -> str:
    """The command that goes on with a run."""
    count, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if count > here:
        return "the same torchrun commands with --resume"
    start = ["torchrun", "--nproc-per-node", str(count), "-m", "indrnn"] if count > 1 else ["indrnn"]
    return shlex.join([*start, *arguments])


def _draw(result: Result, recipe: Recipe, task: Task, model: torch.nn.Module) -> None:
    from ..analysis.curves import draw_adding, draw_run

    folder = RunFolder(result.folder)
    try:
        if isinstance(recipe, AddingRecipe):
            draw_adding(folder, model, recipe.length, recipe.seed)
        else:
            draw_run(folder, task.metric, higher_is_better=task.higher_is_better)
    except ImportError:
        print("no picture was drawn: that needs matplotlib (pip install 'indrnn[report]')")


def _told(result: Result) -> int:
    if not result.finished:
        assert result.stopped_by is not None
        return 128 + result.stopped_by
    if not result.main:
        return 0
    best = ", ".join(f"{name} {value:.5g}" for name, value in result.test.items())
    print(f"{result.steps} steps in {_time(result.seconds)}: {best} with the best weights, of step {result.best_step}")
    print(f"saved in {result.folder}; indrnn.load({str(result.folder)!r}) gives the model")
    return 0


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def evaluate(arguments: list[str]) -> int:
    """Measure a run's best weights again."""

    @dataclass
    class Options:
        """Measure the best weights of a run again, on the test data."""

        run: tyro.conf.Positional[Path]
        """The run's folder."""
        device: str = "auto"
        """cpu, cuda, ...; auto takes a GPU where there is one."""
        data_dir: Path | None = None
        """The folder of the data, where the run needs one; INDRNN_DATA or a cache if none is given."""

    options = tyro.cli(Options, args=arguments, prog="indrnn evaluate")
    recorded, recipe = _recorded(options.run)
    if options.data_dir is not None:
        if not isinstance(recipe, PixelsRecipe):
            raise UsageError(f"data_dir: {options.run} makes its own data")
        recipe = replace(recipe, data_dir=options.data_dir)
    model, which = _best(options.run, recipe)
    model = model.to(choose_device(options.device, Processes())).eval()
    with torch.inference_mode():
        measured = recipe.task().test(model)
    print(f"{recorded['recipe']}: {', '.join(f'{name} {value:.6g}' for name, value in measured.items())} with {which}")
    return 0


def report(arguments: list[str]) -> int:
    """Gather runs into a page of results."""

    @dataclass
    class Options:
        """Gather runs of one task: a small JSON for each, and a picture of all in the folder; prints a table."""

        runs: tyro.conf.Positional[tuple[Path, ...]]
        """Folders of runs, finished or not."""
        out: Path | None = None
        """Where the files go, results/adding or results/pixels if none is given; what is there is drawn too."""

    options = tyro.cli(Options, args=arguments, prog="indrnn report")
    from ..analysis import adding, pixels
    from ..analysis.runs import kind

    tasks: dict[str, tuple[str, Any]] = {"AddingRecipe": ("adding", adding), "PixelsRecipe": ("pixels", pixels)}
    kinds = {kind(run) for run in options.runs}
    if len(kinds) != 1 or not kinds <= tasks.keys():
        raise UsageError(f"runs must be of one task, {' or '.join(name for name, _ in tasks.values())}")
    name, task = tasks[kinds.pop()]
    print(task.gather(options.runs, options.out or Path("results") / name))
    return 0


def analyse(arguments: list[str]) -> int:
    """Look into trained models."""

    @dataclass
    class Gradients:
        """Draw how gradients flow back over time and depth, as the paper's figure 5, and write the numbers beside it.

        Each run's best weights see training batches as in training, and stay as they are.
        """

        runs: tyro.conf.Positional[tuple[Path, ...]]
        """Folders of runs of sequential or permuted MNIST, at the same training accuracy for a fair comparison."""
        out: Path = Path("results/gradients")
        """Where gradients.json and gradients.png go."""
        batches: int | None = None
        """Batches to take the mean over; an epoch if none is given."""
        device: str = "auto"
        """cpu, cuda, ...; auto takes a GPU where there is one."""
        data_dir: Path | None = None
        """The folder of the data; INDRNN_DATA or a cache if none is given."""

    if arguments[:1] in (["--help"], ["-h"]):
        print("usage: indrnn analyse {gradients,depth} [OPTIONS]\n")
        print("  gradients RUN ...  draw how gradients flow over time and depth in trained networks")
        print("  depth              measure how they reach the first layers of deep networks before any training")
        return 0
    if arguments[:1] == ["depth"]:
        return _analyse_depth(arguments[1:])
    if arguments[:1] != ["gradients"]:
        raise UsageError("analyse needs the name of an analysis: gradients, with the folders of runs, or depth")
    options = tyro.cli(Gradients, args=arguments[1:], prog="indrnn analyse gradients")
    if not options.runs:
        raise UsageError("analyse gradients needs the folders of runs")
    from ..analysis import gradients

    if options.batches is not None:
        check_count("batches", options.batches)
    flows = []
    for run in options.runs:
        recorded, recipe = _recorded(run)
        if not isinstance(recipe, PixelsRecipe):
            raise UsageError(f"runs must be of sequential or permuted MNIST, and {run} is not")
        model, _ = _best(run, recipe)
        task = replace(recipe, data_dir=options.data_dir).task()
        model = model.to(choose_device(options.device, Processes()))
        batches = options.batches or task.steps_per_epoch
        print(f"{run}: {batches} batches of {task.batch_size}", flush=True)
        baseline = isinstance(recipe.model, (Baseline, Transformer))
        flow = gradients.gradient_flow(model, task, batches)
        about = {"name": run.name, "indrnn": not baseline, "batches": batches, "batch_size": task.batch_size}
        flows.append({**about, "command": shlex.join(recorded["command"]), **flow})
    print(f"drawn in {gradients.write(flows, options.out)}")
    return 0


def _analyse_depth(arguments: list[str]) -> int:
    @dataclass
    class Depth:
        """Measure the gradients at the first and last block of plain, residual and dense networks, untrained."""

        out: Path = Path("results/depth")
        """Where depth.json and depth.png go."""
        seeds: int = 5
        """Seeds to take the mean over."""

    options = tyro.cli(Depth, args=arguments, prog="indrnn analyse depth")
    check_count("seeds", options.seeds)
    from ..analysis import depth

    RunFolder(options.out).prepare()
    print(depth.write(depth.measure(options.seeds), options.seeds, options.out))
    return 0


def _recorded(run: Path) -> tuple[dict[str, Any], Recipe]:
    """What a run's config.json says, and the recipe in it."""
    config = RunFolder(run).config
    if not config.exists():
        raise UsageError(f"run must be the folder of a run, and {run} holds no config.json")
    try:
        recorded = json.loads(config.read_text())
    except ValueError as error:
        raise UsageError(f"{config} cannot be read: {error}") from None
    if "options" not in recorded:
        raise UsageError(f"{run} is not the run of a recipe; load its weights with your own program")
    options = recorded["options"] | {"training": recorded["training"], "seed": recorded["seed"]}
    return recorded, from_plain(options, TYPES)


def _best(run: Path, recipe: Recipe) -> tuple[torch.nn.Module, str]:
    """A run's best model, and which that is."""
    folder = RunFolder(run)
    if folder.weights.exists():
        return load(run), "the finished run's weights"
    state = folder.checkpoints.peek()
    if state is None or state["best_step"] is None:
        raise UsageError(f"{run} holds no weights and no checkpoint with an evaluation yet")
    model = recipe.model_config().build()
    model.load_state_dict(folder.checkpoints.load_best(state["best_step"])["model"])
    return model, f"the best weights so far, of step {state['best_step']} (the run is not finished)"


def demo(arguments: list[str]) -> int:
    """Learn the adding problem in about a minute."""

    @dataclass
    class Options:
        """Learn the adding problem in about a minute, and draw what was learnt."""

        out: Path = Path("runs/demo")
        """Where the run goes; an earlier demo there is replaced."""
        steps: int = 2_500
        """Updates of the weights."""

    options = tyro.cli(Options, args=arguments, prog="indrnn demo")
    row = find("adding-100-fast")
    assert isinstance(row.recipe, AddingRecipe)
    recipe = replace(row.recipe, training=replace(row.recipe.training, steps=options.steps))
    folder = RunFolder(options.out)
    if folder.used and not (folder.config.exists() and json.loads(folder.config.read_text()).get("recipe") == "demo"):
        raise UsageError(f"out: {options.out} holds something that is not an earlier demo; name another folder")
    print("The adding problem: 100 random numbers, two of them marked; the answer is the sum of those two.")
    print(f"A two-layer IndRNN of 128 neurons a layer learns it in {options.steps} steps; always answering 1 has an")
    print(f"error of {BASELINE:.3f}.")
    again = ["demo", "--steps", str(options.steps), "--out", str(options.out)]  # a minute: it starts over
    result = run("demo", recipe, options.out, overwrite=folder.used, again=again)
    if not result.finished:
        return 128 + (result.stopped_by or 0)
    error = result.test["test_mse"]
    verdict = "It learnt to add" if error < 0.01 else "It is on its way" if error < 0.1 else "It has not learnt it yet"
    print(
        f"{verdict}: mean squared error {error:.5f} on 1,000 fresh sequences after {_time(result.seconds)}. The run "
        f"and its picture are in {result.folder}/ (curve.png). Next: indrnn train adding-1000-fast"
    )
    return 0


__all__ = ["analyse", "demo", "evaluate", "recipes", "report", "train"]
