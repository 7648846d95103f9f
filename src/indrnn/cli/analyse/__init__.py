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
    """One kind of analysis of any run: its options, and arguments without a name."""

    options: type
    arguments: str = "RUN"


KINDS = {
    "gradients": Kind(GradientsOptions, "RUN ..."),
    "depth": Kind(DepthOptions, "[RUN]"),
    "memory": Kind(MemoryOptions),
    "weights": Kind(WeightsOptions),
    "ablate": Kind(AblateOptions),
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
            about = (kind.options.__doc__ or "").partition("\n")[0]
            say(f"  {call:<17}  {about}")
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
