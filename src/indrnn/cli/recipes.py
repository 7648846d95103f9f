"""`indrnn recipes`: the rows of the paper's tables and figures."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from ..tasks.rows import rows
from .main import UsageError, say
from .parse import Parser


@dataclass
class RecipesOptions:
    """List recipes: place in the paper, reported result, parameters and approximate cost on two cores."""

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """Parts of names, such as mnist or fast: list only recipes that contain all of them."""


RECIPES = Parser("recipes", RecipesOptions)


def recipes(arguments: list[str]) -> int:
    """List recipes, grouped by task."""
    options = RECIPES(arguments)
    chosen = [row for row in rows().values() if all(_has(row.name, word) for word in options.words)]
    if not chosen:
        raise UsageError(f"no recipe has {' and '.join(options.words)} in its name; `indrnn recipes` lists all")
    groups = list(dict.fromkeys(row.name.partition("-")[0] for row in chosen))
    chosen.sort(key=lambda row: groups.index(row.name.partition("-")[0]))
    columns = ["recipe", "in the paper", "reported there", "parameters", "cost"]
    counts = ["by data" if row.parameters is None else f"{row.parameters:,}" for row in chosen]
    cells = [[row.name, row.paper, row.value, count, row.cost] for row, count in zip(chosen, counts, strict=True)]
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
