"""`indrnn train`: a recipe into a run folder."""

from __future__ import annotations

import os
import re
import shlex
from argparse import ArgumentParser
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..checks import check_seed
from ..system import keep_memory, load_torch
from ..tasks.recipe import Recipe, Row
from ..tasks.rows import find, listed, rows
from ..training.options import SCHEDULES
from ..words import duration, numbers
from .main import UsageError, say
from .parse import option, parse

HELP = """\
usage: indrnn train RECIPE [--FIELD VALUE ...] [--out DIR] [--resume] [--overwrite]
       indrnn train --resume RUN [--FIELD VALUE ...]
       indrnn train --config FILE [--FIELD VALUE ...]

Train a recipe into a run folder; resume a run, with the options stored in its checkpoint; or train from a
configuration file, such as a run's config.json. RECIPE is one of:
"""


def train(arguments: list[str]) -> int:
    """Train a recipe."""
    first, *rest = arguments or [""]
    if first in ("--help", "-h"):
        say(HELP)
        for line in listed(rows().values()):
            say(line)
        say("\n`indrnn train RECIPE --help` shows all options, with their defaults.")
        return 0
    out, recorded = None, {}
    if first in ("--resume", "--config") and rest and not rest[0].startswith("-"):
        path = Path(rest.pop(0))
        out, recorded = (path, _of_run(path)) if first == "--resume" else (None, _of_file(path))
        row = _row(recorded)
    elif not first or first.startswith("-"):
        raise UsageError("train needs the name of a recipe; `indrnn recipes` lists them")
    else:
        row = _find_or_hint(first)
        if "--config" in rest[:-1]:
            at = rest.index("--config")
            recorded = _of_file(Path(rest[at + 1]))
            recorded["recipe"] = {**(recorded.get("recipe") or {}), "name": row.name}
            row, rest = _row(recorded), rest[:at] + rest[at + 2 :]
    options = _options(_with_schedule(row, rest), out, rest)
    if out is not None and options.init_from is None and "init_from" in recorded:
        options.init_from = Path(recorded["init_from"])
    options.resume |= out is not None
    return _train(options, row.name)


def _find_or_hint(name: str) -> Row:
    """A recipe; if only the length differs from a known one, the error names the option."""
    parts = re.fullmatch(r"(\w+)-(\d+)(-\w+)?", name)
    if parts and name not in rows() and (base := f"{parts[1]}-100{parts[3] or ''}") in rows():
        raise UsageError(f"no such recipe: {name!r}; another length is an option: {base} --length {parts[2]}")
    return find(name)


def _with_schedule(row: Row, arguments: list[str]) -> Row:
    """The recipe with the schedule given by --schedule, if any, so that its fields become options."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--schedule", nargs="?")
    kind = parser.parse_known_args(arguments)[0].schedule
    if kind is None:
        return row
    if kind not in SCHEDULES:
        raise UsageError(f"schedule must be one of {', '.join(SCHEDULES)}, got {kind}")
    training = replace(row.recipe.training, schedule=SCHEDULES[kind]())
    return replace(row, recipe=replace(row.recipe, training=training))  # type: ignore[call-arg]


def _options(row: Row, out: Path | None, arguments: list[str]) -> Any:
    """The options of a recipe and its run."""
    recipe = row.recipe
    schedule = next(name for name, kind in SCHEDULES.items() if kind is type(recipe.training.schedule))
    fields: list[tuple[str, Any, Any]] = [
        ("recipe", Annotated[type(recipe), tyro.conf.arg(name="")], recipe),
        ("schedule", option(Literal[tuple(SCHEDULES)], "Learning rate schedule; its fields: --schedule.*."), schedule),
        ("out", option(Path | None, "The run's folder; None for runs/RECIPE."), out),
        ("resume", option(bool, "Resume from the last checkpoint in the folder."), False),
        ("overwrite", option(bool, "Replace an existing run in the folder."), False),
        ("init_from", option(Path | None, "Initialise with the best weights of this run."), None),
        ("seeds", option(tuple[int, ...], "Train with each of these seeds, in folders OUT/seed-N."), ()),
        ("keep_memory", option(bool, "Keep freed memory in the process: faster, but uses more memory."), True),
    ]
    about = str(recipe.__doc__) + (f" In the paper: {row.value} ({row.paper})." if row.is_shown else "")
    options = make_dataclass("Train", fields, namespace={"__doc__": about})
    return parse(f"train {row.name}", options, arguments, about, avoid_subcommands=True)


def _of_run(path: Path) -> dict[str, Any]:
    """The stored options of a run: of its last valid checkpoint."""
    from ..training import RunFolder

    folder = RunFolder(path)
    if not folder.used:
        raise UsageError(f"run must be the folder of a run, and {path} holds nothing")
    recorded = folder.recorded()
    if not recorded.get("recipe"):
        raise UsageError(f"{path} is not the run of a recipe; resume it in your own program, with resume=True")
    return recorded


def _of_file(path: Path) -> dict[str, Any]:
    from ..training import RunFolder

    recorded = RunFolder(path.parent).read_json(path)
    if isinstance(recorded.get("recipe"), str):
        recorded["recipe"] = {"name": recorded["recipe"]}
    if not recorded.keys() & {"recipe", "training"}:
        raise UsageError(f"config: {path} must name a recipe or training")
    return recorded


def _row(recorded: dict[str, Any]) -> Row:
    """The recipe in a config.json; options that it leaves out are those of the recipe of its name."""
    from ..tasks.runs import restored_recipe

    entry = recorded.get("recipe") or {}
    name = entry.get("name")
    base = rows().get(str(name))
    if base is None and "type" not in entry:
        raise UsageError(f"config: recipe must be one of `indrnn recipes`, got {name!r}")
    recipe = restored_recipe(recorded, None if base is None else base.recipe)
    own = Row(str(name), recipe, "not in the paper", Row.NOT_SHOWN, "")
    return own if base is None else replace(base, recipe=recipe)


def _train(options: Any, name: str) -> int:
    load_torch()
    from ..tasks.runs import train_recipe
    from ..training import RunFolder

    for seed in options.seeds:
        check_seed(seed)
    if len(set(options.seeds)) < len(options.seeds):
        raise UsageError(f"seeds must be different, got {' '.join(map(str, options.seeds))}")
    if options.keep_memory:
        keep_memory()
    out = options.out or Path("runs") / name
    modes = {"resume": options.resume, "overwrite": options.overwrite}
    for seed in options.seeds or (None,):
        recipe: Recipe = options.recipe if seed is None else replace(options.recipe, seed=seed)
        folder = out if seed is None else out / f"seed-{seed}"
        if os.environ.get("RANK", "0") == "0":  # before any data are read; of several processes, the one that opens it
            RunFolder(folder).check(**modes)
        again = ["train", "--resume", str(folder)]
        again += ["--data-dir", str(options.recipe.data_dir)] if getattr(recipe, "data_dir", None) else []
        again += [] if options.keep_memory else ["--no-keep-memory"]
        command = _again(again)
        result, lines = train_recipe(name, recipe, folder, init_from=options.init_from, resume_command=command, **modes)
        if not result.finished:
            return 128 + (result.stopped_by or 0)
        if result.main:
            best = "the last weights" if result.best_step is None else f"the best weights, of step {result.best_step}"
            took, measured = duration(result.seconds), numbers(result.test or result.best)
            say(f"{result.steps} steps in {took}: {measured} with {best}")
            say(f"saved in {result.folder}; indrnn.load({str(result.folder)!r}) gives the model")
            for line in lines:
                say(line)
    return 0


def _again(arguments: list[str]) -> str:
    """The command that resumes a run."""
    count, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if count > here:
        return "the same torchrun commands with --resume"
    start = ["torchrun", "--nproc-per-node", str(count), "-m", "indrnn"] if count > 1 else ["indrnn"]
    return shlex.join([*start, *arguments])
