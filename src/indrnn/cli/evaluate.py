"""`indrnn evaluate`: the best weights of a run on the test set."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..files import write_atomically
from ..system import load_torch
from ..tasks.recipe import Extra
from ..tasks.rows import extras
from ..words import numbers
from .main import UsageError, say
from .parse import parse

if TYPE_CHECKING:
    from ..tasks.runs import Run


@dataclass
class EvaluateOptions:
    """Evaluate the best weights of a run on the test set, in the precision that it was trained in."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder, if needed; None for INDRNN_DATA or, if unset, the user's cache."""
    out: Path | None = None
    """JSON file for the results and the command; None to write no file."""


def evaluate(arguments: list[str]) -> None:
    """Measure a run's best weights again; the options are those of all kinds of recipes."""
    kinds = extras("evaluate").values()
    parts = [("own", EvaluateOptions), *((f"extra_{i}", extra.options) for i, extra in enumerate(kinds))]
    everything = make_dataclass("Evaluate", [(name, Annotated[kind, tyro.conf.arg(name="")]) for name, kind in parts])
    options, *others = vars(parse("evaluate", everything, arguments, EvaluateOptions.__doc__)).values()
    if options.out is not None:
        if options.out.exists():
            raise UsageError(f"out must be a new file, and {options.out} is there already")
        if not options.out.absolute().parent.is_dir():
            raise UsageError(f"out must be a file in a folder, and {options.out.parent} is none")
    load_torch()
    from ..saving import as_bytes
    from ..tasks.runs import open_group
    from ..training.folder import finite

    run = open_group(options.run)
    command = {"recipe": run.recipe_name, "command": shlex.join(["indrnn", "evaluate", *arguments])}
    extra, more = _chosen(zip(kinds, others, strict=True), run)
    if extra is not None:
        measured = extra(run, more, data_dir=options.data_dir, device=options.device, say=say)
    elif run.recipe_name is None:
        instead = f"indrnn.training.evaluate(model, task, {str(run.path)!r}) measures it"
        raise UsageError(f"{run.path} is not the run of a recipe: {instead}")
    else:
        test, which = run.evaluate(run.at(options.data_dir), options.device)
        say(f"{run.recipe_name}: {numbers(test, 6)} with {which}")
        measured = {"weights": which, "test": test}
    if options.out is not None:
        write_atomically(options.out, as_bytes(finite({**command, **measured})))
        say(f"written to {options.out}")


def _chosen(options: Iterable[tuple[Extra, Any]], run: Run) -> tuple[Extra | None, Any]:
    """The part of the options that is for this kind of recipe; raises if another's is used."""
    chosen: tuple[Extra | None, Any] = None, None
    for extra, more in options:
        if extra in run.recipe.extras:
            chosen = extra, more
        elif changed := [option.name for option in fields(more) if getattr(more, option.name) != option.default]:
            raise UsageError(f"{changed[0]} is for {extra.name}, and {run.path} is of {run.recipe_name or 'none'}")
    return chosen
