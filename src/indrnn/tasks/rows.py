"""Rows of the paper's tables and figures by name, and all kinds of recipes: built in, and of other packages."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from importlib.metadata import entry_points

from .recipe import Own, Recipe, Row

GROUP = "indrnn.recipes"
"""Entry points of other packages: each names a sequence of `Row`."""


@functools.cache
def rows() -> dict[str, Row]:
    """Every recipe by its name."""
    from . import adding, pixels
    from .skeleton import recipe as skeleton
    from .text import recipe as text

    every = [*adding.ROWS, *pixels.ROWS, *text.ROWS, *skeleton.ROWS]
    for point in entry_points(group=GROUP):
        every += point.load()
    return {row.name: row for row in every}


def find(name: str) -> Row:
    """The recipe of this name; raises with a hint if there is none."""
    known = rows()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `indrnn recipes` lists them"
        raise ValueError(f"no such recipe: {name!r}{hint}")
    return known[name]


@functools.cache
def recipe_kinds() -> tuple[type[Recipe], ...]:
    """Every kind of recipe."""
    return tuple(dict.fromkeys([*(type(row.recipe) for row in rows().values()), Own]))


@functools.cache
def kinds() -> dict[str, type]:
    """Types of recipes and of their options, by the name that stands in a config.json."""
    return {name: kind for recipe in recipe_kinds() for name, kind in _dataclasses(recipe).items()}


def _dataclasses(kind: type) -> dict[str, type]:
    """A dataclass, and the dataclasses among the types of its fields."""
    known = {kind.__name__: kind}
    hints = typing.get_type_hints(kind, include_extras=True)
    waiting = [hints[field.name] for field in dataclasses.fields(kind)]
    while waiting:
        hint = waiting.pop()
        waiting += [part for part in typing.get_args(hint) if part is not hint]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint.__name__ not in known:
            known |= _dataclasses(hint)
    return known
