"""Rows of the paper's tables and figures by name, and all kinds of recipes: built in, and of other packages."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterable, Iterator, Sequence
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
    named = {row.name: row for row in every}
    for point in entry_points(group=GROUP):
        given = f"recipes of another package, the entry point {point.name} = {point.value}:"
        try:
            others = {row.name: row for row in point.load()}
        except Exception as error:  # another's code: whatever it raises
            raise ValueError(f"{given} cannot be loaded, {type(error).__name__}: {error}") from error
        if taken := named.keys() & others:
            raise ValueError(f"{given} {', '.join(sorted(taken))} must be names that no other recipe has")
        named |= others
    return named


def find(name: str) -> Row:
    """The recipe of this name; raises with a hint if there is none."""
    known = rows()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `indrnn recipes` lists them"
        raise ValueError(f"no such recipe: {name!r}{hint}")
    return known[name]


def listed(chosen: Iterable[Row]) -> Iterator[str]:
    """Lines of a table of recipes, grouped by task."""
    groups: dict[str, list[Row]] = {}
    for row in chosen:
        groups.setdefault(row.name.partition("-")[0], []).append(row)
    columns = ("recipe", "in the paper", "reported there", "parameters", "cost")
    cells = {
        row.name: (row.name, row.paper, row.value, f"{row.parameters:,}" if row.parameters else "by data", row.cost)
        for group in groups.values()
        for row in group
    }
    widths = [max(map(len, column)) for column in zip(columns, *cells.values(), strict=True)]

    def aligned(line: Sequence[str]) -> str:
        parts = [f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)]
        parts[3] = line[3].rjust(widths[3])
        return "  ".join(parts).rstrip()

    yield aligned(columns)
    for name, group in groups.items():
        yield f"\n{type(group[0].recipe).__doc__} ({name})"
        yield from (aligned(cells[row.name]) for row in group)


@functools.cache
def recipe_kinds() -> tuple[type[Recipe], ...]:
    """Every kind of recipe."""
    from .series.fit import Fit

    return tuple(dict.fromkeys([*(type(row.recipe) for row in rows().values()), Fit, Own]))


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
