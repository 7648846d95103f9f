"""`indrnn analyse KIND`: analyses of any run, and those that only one kind of recipe has."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from ...system import load_torch
from ...tasks.recipe import Extra
from ...tasks.rows import extras, rows
from ..main import UsageError, say
from ..parse import parse
from .options import AblateOptions, DepthOptions, GradientsOptions, MemoryOptions, WeightsOptions


class Kind(NamedTuple):
    """One kind of analysis of any run: its options, the line of the help, and arguments without a name."""

    options: type
    about: str
    arguments: str = "RUN"


KINDS = {
    "gradients": Kind(GradientsOptions, "plot the gradient flow over time and depth in trained networks", "RUN ..."),
    "depth": Kind(
        DepthOptions, "measure how gradients reach the first layers, of a run before and after training", "[RUN]"
    ),
    "memory": Kind(MemoryOptions, "plot how long each neuron remembers, by its weight and as measured"),
    "weights": Kind(WeightsOptions, "plot histograms of the recurrent weights before and after training"),
    "ablate": Kind(AblateOptions, "ablate neurons of short, middle or long memory of a run, layer by layer"),
}
"""Analyses of any run, by name; `measures` has the function of each."""


def analyse(arguments: list[str]) -> int:
    """Look into trained models."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    kinds: dict[str, Kind | Extra] = KINDS | extras("analyse")
    if name in ("--help", "-h"):
        say(f"usage: indrnn analyse {{{','.join(kinds)}}} [OPTIONS]\n")
        for name, kind in kinds.items():
            call = f"{name} {kind.arguments if isinstance(kind, Kind) else 'RUN'}"
            say(f"  {call:<17}  {kind.about}")
        return 0
    if name not in kinds:
        close = difflib.get_close_matches(name, kinds, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"analyse needs the name of an analysis: {', '.join(kinds)}{hint}")
    kind = kinds[name]
    options = parse(f"analyse {name}", kind.options, rest)
    load_torch()
    if isinstance(kind, Kind):
        from . import measures

        getattr(measures, f"analyse_{name}")(options)
        return 0
    from ...tasks.runs import open_run

    run = open_run(options.run)
    if kind not in run.recipe.extras:
        such = next(row.name for row in rows().values() if kind in row.recipe.extras)
        raise UsageError(f"run must be of a recipe such as {such}, and {run.path} is of {run.recipe_name or 'none'}")
    kind(run, options, rest, say)
    return 0
