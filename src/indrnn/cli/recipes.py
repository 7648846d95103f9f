"""`indrnn recipes`: the rows of the paper's tables and figures."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from ..tasks.rows import listed, rows
from .main import UsageError, say
from .parse import parse


@dataclass
class RecipesOptions:
    """List recipes: place in the paper, reported result, parameters and approximate cost on two cores."""

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """Parts of names, such as mnist or fast: list only recipes that contain all of them."""


def recipes(arguments: list[str]) -> None:
    """List recipes, grouped by task."""
    options: RecipesOptions = parse("recipes", RecipesOptions, arguments)
    # A word begins a part of the name: mnist is not in pmnist-6
    chosen = [row for row in rows().values() if all(f"-{word}" in f"-{row.name}" for word in options.words)]
    if not chosen:
        raise UsageError(f"no recipe has {' and '.join(options.words)} in its name; `indrnn recipes` lists all")
    for line in listed(chosen):
        say(line)
