"""Rows of the paper's tables and figures by name, and all kinds of recipes: built in, and of other packages."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import typing
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

from .recipe import Extra, Own, Recipe, Row


@functools.cache
def rows() -> dict[str, Row]:
    """Every recipe by its name."""
    from . import adding, pixels
    from .skeleton import recipe as skeleton
    from .text import recipe as text

    every = [*adding.ROWS, *pixels.ROWS, *text.ROWS, *skeleton.ROWS]
    named = {row.name: row for row in every}
    for point in entry_points(group="indrnn.recipes"):  # of other packages: each names a sequence of `Row`
        source = f"recipes of another package, the entry point {point.name} = {point.value}:"
        try:
            others = {row.name: row for row in point.load()}
        except Exception as error:  # another's code: whatever it raises
            raise ValueError(f"{source} cannot be loaded, {type(error).__name__}: {error}") from error
        if taken := named.keys() & others:
            raise ValueError(f"{source} {', '.join(sorted(taken))} must be names that no other recipe has")
        named |= others
    return named


def find(name: str) -> Row:
    """The recipe of this name; raises with a hint if there is none."""
    if name not in rows():
        close = difflib.get_close_matches(name, rows(), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `indrnn recipes` lists them"
        raise ValueError(f"no such recipe: {name!r}{hint}")
    return rows()[name]


def listed(chosen: Iterable[Row]) -> Iterator[str]:
    """Lines of a table of recipes, grouped by task."""
    head = ("recipe", "in the paper", "reported there", "parameters", "cost")
    groups: dict[str, list[tuple[str, ...]]] = {}  # by title
    begins: dict[str, str] = {}
    for row in chosen:
        begins[row.name] = f"\n  learning begins: {row.begins}" if row.begins else ""
        title = f"{type(row.recipe).__doc__} ({row.name.partition('-')[0]})"
        parameters = f"{row.parameters:,}" if row.parameters else "by data"
        groups.setdefault(title, []).append((row.name, row.paper, row.value, parameters, row.cost))
    widths = [max(map(len, column)) for column in zip(head, *itertools.chain(*groups.values()), strict=True)]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<<><", widths, strict=True))
    yield form.format(*head).rstrip()
    for title, lines in groups.items():
        yield f"\n{title}"
        yield from (form.format(*line).rstrip() + begins[line[0]] for line in lines)


@functools.cache
def recipe_kinds() -> tuple[type[Recipe], ...]:
    """Every kind of recipe."""
    from .series.fit import Fit

    return tuple(dict.fromkeys([*(type(row.recipe) for row in rows().values()), Fit, Own]))


@functools.cache
def extras(command: str) -> dict[str, Extra]:
    """What only some kinds of recipes have of a command, by name."""
    return {extra.name: extra for kind in recipe_kinds() for extra in kind.extras if extra.command == command}


@functools.cache
def kinds() -> dict[str, type]:
    """Types of recipes and of their options, by the name that stands in a config.json."""
    return {name: kind for recipe in recipe_kinds() for name, kind in _dataclasses(recipe).items()}


def _dataclasses(hint: Any) -> dict[str, type]:
    """The dataclasses in a type, and those among the types of their fields."""
    types, parts = {}, typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        types, parts = {hint.__name__: hint}, tuple(hints[field.name] for field in dataclasses.fields(hint))
    return types | {name: kind for part in parts for name, kind in _dataclasses(part).items()}
