"""`indrnn analyse KIND`: analyses of any run, and those that only one kind of recipe has."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...system import load_torch
from ...tasks.recipe import Extra
from ...tasks.rows import extras, rows
from ..main import UsageError, say
from ..parse import Parser
from . import gradients, neurons


@dataclass(frozen=True)
class Kind:
    """One kind of analysis of any run."""

    options: type
    """Dataclass of its options."""
    function: Callable[[Any], None]
    """Function of the options that carries the analysis out."""
    about: str
    """Line of the help."""
    takes: str = "RUN"
    """Arguments without a name."""


KINDS = {
    "gradients": Kind(
        gradients.GradientsOptions,
        gradients.gradients,
        "plot the gradient flow over time and depth in trained networks",
        "RUN ...",
    ),
    "depth": Kind(
        gradients.DepthOptions,
        gradients.depth,
        "measure how gradients reach the first layers, of a run before and after training",
        "[RUN]",
    ),
    "memory": Kind(
        neurons.MemoryOptions, neurons.memory, "plot how long each neuron remembers, by its weight and as measured"
    ),
    "weights": Kind(
        neurons.WeightsOptions,
        neurons.weights,
        "plot histograms of the recurrent weights before and after training",
    ),
    "ablate": Kind(
        neurons.AblateOptions,
        neurons.ablate,
        "ablate neurons of short, middle or long memory of a run, layer by layer",
    ),
}
"""Analyses of any run, by name."""


def analyse(arguments: list[str]) -> int:
    """Look into trained models."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    special = extras("analyse")
    if name in ("--help", "-h"):
        say(f"usage: indrnn analyse {{{','.join((*KINDS, *special))}}} [OPTIONS]\n")
        lines = {f"{name} {kind.takes}": kind.about for name, kind in KINDS.items()}
        lines |= {f"{name} RUN": extra.about for name, extra in special.items()}
        for call, about in lines.items():
            say(f"  {call:<17}  {about}")
        return 0
    kind = KINDS.get(name) or special.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, (*KINDS, *special), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"analyse needs the name of an analysis: {', '.join((*KINDS, *special))}{hint}")
    options = Parser(f"analyse {name}", kind.options)(rest)
    load_torch()
    if isinstance(kind, Kind):
        kind.function(options)
    else:
        _analyse_extra(kind, options, rest)
    return 0


def _analyse_extra(extra: Extra, options: Any, arguments: list[str]) -> None:
    from ...tasks.runs import open_run

    run = open_run(options.run)
    if extra not in run.recipe.extras:
        such = next(row.name for row in rows().values() if extra in row.recipe.extras)
        raise UsageError(f"run must be of a recipe such as {such}, and {run.path} is of {run.recipe_name or 'none'}")
    extra(run, options, arguments, say)
