"""The commands `train`, `demo` and `recipes`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from ..checks import check_seed
from ..saving import from_json, to_json
from ..system import keep_memory, limit_onednn
from ..tasks.parameters import PARAMETERS
from ..tasks.rows import ROWS, Recipe, Row, find
from ..tasks.types import TYPES
from ..training import Result, RunFolder, Training
from ..training import train as train_model
from ..training.evaluation import load_best
from ..training.options import SCHEDULES
from ..training.resume import check_folder
from .main import UsageError, say
from .parse import Parser

APART = ("training", "seed", "data_dir")
"""Fields of a recipe that config.json has in other places; the last may be another on another machine."""


@dataclass
class RecipesOptions:
    """List recipes: place in the paper, reported result, parameters and approximate cost on two cores."""

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """Parts of names, such as mnist or fast: list only recipes that contain all of them."""


RECIPES = Parser("recipes", RecipesOptions)


def recipes(arguments: list[str]) -> int:
    """List recipes, grouped by task."""
    options = RECIPES(arguments)
    chosen = [row for row in ROWS.values() if all(_has(row.name, word) for word in options.words)]
    if not chosen:
        raise UsageError(f"no recipe has {' and '.join(options.words)} in its name; `indrnn recipes` lists all")
    groups = list(dict.fromkeys(row.name.partition("-")[0] for row in chosen))
    chosen.sort(key=lambda row: groups.index(row.name.partition("-")[0]))
    columns = ["recipe", "in the paper", "reported there", "parameters", "cost"]
    count = {name: f"{parameters:,}" for name, parameters in PARAMETERS.items()}
    cells = [[row.name, row.paper, row.value, count.get(row.name, "by data"), row.cost] for row in chosen]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    group = ""
    for row, line in zip([None, *chosen], [columns, *cells], strict=True):
        if row is not None and row.name.partition("-")[0] != group:
            group = row.name.partition("-")[0]
            say(f"\n{type(row.recipe).__doc__} ({group})")
        aligned = [f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)]
        aligned[3] = line[3].rjust(widths[3])
        say("  ".join(aligned).rstrip())
    return 0


def _has(name: str, word: str) -> bool:
    """Whether a name contains a word that starts at one of its parts: mnist is not in pmnist-6."""
    return f"-{word}" in f"-{name}" or word == name


# ---- train

HELP = """\
usage: indrnn train RECIPE [--FIELD VALUE ...] [--out DIR] [--resume] [--overwrite]
       indrnn train --resume RUN [--FIELD VALUE ...]
       indrnn train --config FILE [--FIELD VALUE ...]

Train a recipe into a run folder; resume a run, with the options stored in its checkpoint; or train from a
configuration file, such as a run's config.json. RECIPE is one of:
"""


def train(arguments: list[str]) -> int:
    """Train a recipe."""
    first, second = [*arguments, "", ""][:2]
    if first in ("--help", "-h"):
        say(HELP)
        recipes([])
        say("\n`indrnn train RECIPE --help` shows all options, with their defaults.")
        return 0
    if first in ("--resume", "--config") and second and not second.startswith("-"):
        recorded = _of_run(Path(second)) if first == "--resume" else _of_file(Path(second))
        rest = _schedule_first(arguments[2:])
        parser = train_parser(_with_schedule(_row(recorded), rest), out=Path(second) if first == "--resume" else None)
        return _train(parser(rest), {"recipe": "own"} | recorded, resume=first == "--resume")
    if not first or first.startswith("-"):
        raise UsageError("train needs the name of a recipe; `indrnn recipes` lists them")
    row = find_or_hint(first)
    rest = _schedule_first(arguments[1:])
    recorded = {"recipe": row.name}
    if "--config" in rest[:-1]:
        at = rest.index("--config")
        recorded = _of_file(Path(rest[at + 1])) | recorded
        row, rest = _row(recorded), rest[:at] + rest[at + 2 :]
    return _train(train_parser(_with_schedule(row, rest))(rest), recorded)


def find_or_hint(name: str) -> Row:
    """A recipe; if only the length differs from a known one, the error names the option."""
    parts = re.fullmatch(r"adding-(\d+)(-\w+)?", name)
    if name not in ROWS and parts is not None and f"adding-100{parts[2] or ''}" in ROWS:
        base = f"adding-100{parts[2] or ''}"
        raise UsageError(f"no such recipe: {name!r}; another length is an option: {base} --length {parts[1]}")
    return find(name)


def _schedule_first(arguments: list[str]) -> list[str]:
    """Split `--schedule=cosine` into two words."""
    return [part for word in arguments for part in (word.split("=", 1) if word.startswith("--schedule=") else [word])]


def _with_schedule(row: Row, arguments: list[str]) -> Row:
    """The recipe with the schedule given by --schedule, if any, so that its fields become options."""
    if "--schedule" not in arguments[:-1]:
        return row
    kind = arguments[arguments.index("--schedule") + 1]
    if kind not in SCHEDULES:
        raise UsageError(f"schedule must be one of {', '.join(SCHEDULES)}, got {kind}")
    training = replace(row.recipe.training, schedule=SCHEDULES[kind]())
    return replace(row, recipe=replace(row.recipe, training=training))  # type: ignore[type-var]


def train_parser(row: Row, out: Path | None = None) -> Parser:
    """The parser for a recipe and its run."""
    recipe = row.recipe
    schedule = next(name for name, kind in SCHEDULES.items() if kind is type(recipe.training.schedule))
    seeds = tyro.conf.arg(help="Train with each of these seeds, in folders OUT/seed-N.")
    more: list[tuple[str, Any, Any]] = [
        ("schedule", _arg(Literal[tuple(SCHEDULES)], "Learning rate schedule; --schedule.* are its fields."), schedule),
        ("out", _arg(Path | None, "The run's folder; None for runs/RECIPE."), out),
        ("resume", _arg(bool, "Resume from the last checkpoint in the folder."), False),
        ("overwrite", _arg(bool, "Replace an existing run in the folder."), False),
        ("init_from", _arg(Path | None, "Initialise with the best weights of this run."), None),
        ("seeds", Annotated[tuple[int, ...], seeds], ()),
        ("keep_memory", _arg(bool, "Keep freed memory in the process: faster, but uses more memory."), True),
    ]
    options = make_dataclass("Train", [("recipe", Annotated[type(recipe), tyro.conf.arg(name="")], recipe), *more])
    options.__doc__ = about = f"{recipe.__doc__} In the paper: {row.paper}, {row.value}."
    return Parser(f"train {row.name}", options, about, avoid_subcommands=True)


def _arg(kind: Any, about: str) -> Any:
    return Annotated[kind, tyro.conf.arg(help=about)]


def _of_run(run: Path) -> dict[str, Any]:
    """The stored options of a run: of its last valid checkpoint, else of config.json."""
    folder = RunFolder(run)
    if not folder.used:
        raise UsageError(f"run must be the folder of a run, and {run} holds nothing")
    state, troubles = folder.checkpoints.find()
    if state is None:
        what = "; ".join(troubles) or f"{run} holds no checkpoint"
        raise UsageError(f"cannot resume {run}: {what}; start over with its recipe and --overwrite")
    recorded: dict[str, Any] = state["config"] if "config" in state else folder.read_json(folder.config)
    if "options" not in recorded:
        raise UsageError(f"{run} is not the run of a recipe; go on with it in your own program, with resume=True")
    return recorded


def _of_file(path: Path) -> dict[str, Any]:
    recorded = RunFolder(path.parent).read_json(path)
    if not recorded.keys() & {"recipe", "options", "training"}:
        raise UsageError(f"config: {path} must name a recipe, options or training")
    return recorded


def _row(recorded: dict[str, Any]) -> Row:
    """The recipe in a config.json; options that it leaves out are those of the recipe of its name."""
    name = recorded.get("recipe")
    known = ROWS.get(str(name))
    if known is None and "options" not in recorded:
        raise UsageError(f"config: recipe must be one of `indrnn recipes`, got {name!r}")
    base: dict[str, Any] = {}
    if known is not None:
        base = {each.name: getattr(known.recipe, each.name) for each in fields(known.recipe)}  # type: ignore[arg-type]
    kind = TYPES[recorded["options"]["type"]] if "options" in recorded else type(known.recipe)  # type: ignore[union-attr]
    given = {key: from_json(value, TYPES) for key, value in recorded.get("options", {}).items() if key != "type"}
    if "training" in recorded:
        given["training"] = from_json({"type": "Training", **recorded["training"]}, TYPES)
    if "seed" in recorded:
        given["seed"] = recorded["seed"]
    try:
        recipe = kind(**base | given)
    except TypeError as error:
        raise UsageError(f"config: {error}") from None
    return replace(known, recipe=recipe) if known is not None else Row(str(name), recipe, "your own", "nothing", "")


def _train(options: Any, recorded: dict[str, Any], *, resume: bool = False) -> int:
    name = str(recorded["recipe"])
    out = Path("runs") / name if options.out is None else options.out
    for seed in options.seeds:
        check_seed(seed)
    more: dict[str, Any] = {"init_from": recorded["init_from"]} if "init_from" in recorded and resume else {}
    if options.init_from is not None:
        more = {"init_from": str(options.init_from)}
    code = 0
    for seed in options.seeds or (None,):
        recipe: Recipe = options.recipe if seed is None else replace(options.recipe, seed=seed)
        folder = out if seed is None else out / f"seed-{seed}"
        if options.keep_memory:
            keep_memory()
        again = ["train", "--resume", str(folder)]
        again += ["--data-dir", str(options.recipe.data_dir)] if getattr(recipe, "data_dir", None) else []
        again += [] if options.keep_memory else ["--no-keep-memory"]
        result = train_recipe(
            name, recipe, folder, resume=resume or options.resume, overwrite=options.overwrite, again=again, more=more
        )
        code = _told(result)
        if code:
            break
    return code


def train_recipe(
    name: str,
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    again: list[str],
    more: dict[str, Any] | None = None,
) -> Result:
    """Train a recipe into a run folder."""
    if os.environ.get("RANK", "0") == "0":  # before any data are read; of several processes, the one that opens it
        check_folder(RunFolder(out), resume=resume, overwrite=overwrite)
    prepare_half_precision(recipe.training)
    with torch.device("meta"):  # what is wrong with the network is said before any data are read
        recipe.model.sized(getattr(recipe, "embedding", 1), 2).build()
    task = recipe.task()  # before the model, which may be large: what is wrong with the data is said at once
    torch.manual_seed(recipe.seed)
    config = recipe.model_config()
    model = config.build()
    more = more or {}
    if "init_from" in more and not (resume and RunFolder(out).used):
        _initialise(model, task, Path(more["init_from"]))
    return train_model(
        model,
        task,
        recipe.training,
        out=out,
        seed=recipe.seed,
        resume=resume,
        overwrite=overwrite,
        config={"recipe": name, "options": _asked(recipe), **more},
        resume_command=_again(again),
        draw=recipe.draw,
    )


def _asked(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in to_json(recipe).items() if name not in APART}


def _initialise(model: torch.nn.Module, task: Any, run: Path) -> None:
    from .runs import check_data

    folder = RunFolder(run)
    if folder.config.exists():  # first: another vocabulary has weights of other shapes too
        check_data(folder.read_json(folder.config), task, run)
    try:
        load_best(model, folder)
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"init_from: {run} cannot be started from: {' '.join(str(error).split())}") from None


def prepare_half_precision(training: Training) -> None:
    """For half precision on a CPU, avoid instructions that the CPU reports but cannot run."""
    on_cpu = training.device == "cpu" or (training.device == "auto" and not torch.cuda.is_available())
    if training.precision == "float32" or not on_cpu:
        return
    done = limit_onednn()
    if done is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"indrnn: {done}", file=sys.stderr)


def _again(arguments: list[str]) -> str:
    """The command that resumes a run."""
    count, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if count > here:
        return "the same torchrun commands with --resume"
    start = ["torchrun", "--nproc-per-node", str(count), "-m", "indrnn"] if count > 1 else ["indrnn"]
    return shlex.join([*start, *arguments])


def _told(result: Result) -> int:
    if not result.finished:
        assert result.stopped_by is not None
        return 128 + result.stopped_by
    if result.main:
        found = told_numbers(result.test or result.best, 5)
        best = "the last weights" if result.best_step is None else f"the best weights, of step {result.best_step}"
        say(f"{result.steps} steps in {time_of(result.seconds)}: {found} with {best}")
        say(f"saved in {result.folder}; indrnn.load({str(result.folder)!r}) gives the model")
    return 0


def told_numbers(numbers: dict[str, float], digits: int) -> str:
    """Format names and values; integers in full."""
    each = {name: f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}" for name, value in numbers.items()}
    return ", ".join(f"{name} {value}" for name, value in each.items())


def time_of(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


# ---- demo


@dataclass
class DemoOptions:
    """Train on the adding problem for about a minute, and plot the result."""

    out: Path = Path("runs/demo")
    """The run's folder; an earlier demo there is replaced."""
    steps: int = 2_500
    """Number of training steps."""


DEMO = Parser("demo", DemoOptions)


def demo(arguments: list[str]) -> int:
    """Learn the adding problem in about a minute."""
    from ..tasks.adding import BASELINE

    options = DEMO(arguments)
    recipe: Any = find("adding-100-fast").recipe
    recipe = replace(recipe, training=replace(recipe.training, steps=options.steps))
    folder = RunFolder(options.out)
    if folder.used and not _is_demo(folder):
        raise UsageError(f"out: {options.out} holds something that is not an earlier demo; name another folder")
    say("The adding problem: 100 random numbers, two of them marked; the answer is the sum of those two.")
    say(f"A two-layer IndRNN of 128 neurons a layer learns it in {options.steps} steps; always answering 1 has an")
    say(f"error of {BASELINE:.3f}.")
    keep_memory()
    again = ["demo", "--steps", str(options.steps), "--out", str(options.out)]  # a minute: it starts over
    result = train_recipe("demo", recipe, options.out, overwrite=folder.used, again=again)
    if not result.finished:
        return 128 + (result.stopped_by or 0)
    error = result.test["test_mse"]
    verdict = "It learnt to add" if error < 0.01 else "It is on its way" if error < 0.1 else "It has not learnt it yet"
    say(
        f"{verdict}: mean squared error {error:.5f} on 1,000 fresh sequences after {time_of(result.seconds)}. The run "
        f"and its picture are in {result.folder}/ (curve.png). Next: indrnn train adding-1000-fast"
    )
    return 0


def _is_demo(folder: RunFolder) -> bool:
    if folder.config.exists():
        return bool(folder.read_json(folder.config).get("recipe") == "demo")
    state, _ = folder.checkpoints.find()  # stopped before config.json was there
    return state is not None and state.get("config", {}).get("recipe") == "demo"


__all__ = ["demo", "recipes", "train"]
