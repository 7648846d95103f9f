"""`indrnn analyse KIND`: analyses of any run, and those that only one kind of recipe has."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...system import load_torch
from ...tasks.recipe import Extra
from ...tasks.rows import recipe_kinds, rows
from ..main import UsageError, say
from ..parse import Parser
from . import ablate, depth, gradients, memory, weights


@dataclass(frozen=True)
class Kind:
    """One kind of analysis of any run."""

    options: type
    """Dataclass of its options."""
    function: Callable[[Any], None]
    """Function that carries it out, given the options."""
    about: str
    """Line of the help."""
    takes: str = "RUN"
    """Arguments without a name."""


KINDS = {
    "gradients": Kind(
        gradients.GradientsOptions,
        gradients.analyse,
        "plot the gradient flow over time and depth in trained networks",
        "RUN ...",
    ),
    "depth": Kind(
        depth.DepthOptions,
        depth.analyse,
        "measure how gradients reach the first layers, of a run before and after training",
        "[RUN]",
    ),
    "memory": Kind(
        memory.MemoryOptions,
        memory.analyse,
        "plot how long each neuron remembers, by its weight and as measured",
    ),
    "weights": Kind(
        weights.WeightsOptions,
        weights.analyse,
        "plot histograms of the recurrent weights before and after training",
    ),
    "ablate": Kind(
        ablate.AblateOptions,
        ablate.analyse,
        "ablate neurons of short, middle or long memory of a run, layer by layer",
    ),
}
"""Analyses of any run, by name."""


def extras() -> dict[str, Extra]:
    """Analyses that only one kind of recipe has, by name."""
    return {extra.name: extra for kind in recipe_kinds() for extra in kind.extras if extra.command == "analyse"}


def analyse(arguments: list[str]) -> int:
    """Look into trained models."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in KINDS:
        options = Parser(f"analyse {name}", KINDS[name].options)(rest)
        load_torch()
        KINDS[name].function(options)
        return 0
    known = extras()
    if name in known:
        _analyse_extra(known[name], rest)
        return 0
    names = [*KINDS, *known]
    if name in ("--help", "-h"):
        say(f"usage: indrnn analyse {{{','.join(names)}}} [OPTIONS]\n")
        lines = [(f"{name} {kind.takes}", kind.about) for name, kind in KINDS.items()]
        lines += [(f"{name} RUN", extra.about) for name, extra in known.items()]
        for call, about in lines:
            say(f"  {call:<17}  {about}")
        return 0
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"analyse needs the name of an analysis: {', '.join(names)}{hint}")


def _analyse_extra(extra: Extra, arguments: list[str]) -> None:
    options = Parser(f"analyse {extra.name}", extra.options)(arguments)
    load_torch()
    from ...tasks.runs import open_run

    path: Path = options.run
    run = open_run(path)
    if extra not in run.recipe.extras:
        such = next(row.name for row in rows().values() if extra in row.recipe.extras)
        raise UsageError(f"run must be of a recipe such as {such}, and {path} is of {run.recipe_name or 'none'}")
    extra(run, options, arguments, say)
