"""Recipes: the rows of the paper's tables and figures, by name."""

from __future__ import annotations

import difflib

from . import adding_recipe as adding
from . import pixels_recipe as pixels
from .recipe import Recipe, Row
from .skeleton import recipe as skeleton
from .text import recipe as language

ROWS: dict[str, Row] = {row.name: row for row in (*adding.ROWS, *pixels.ROWS, *language.ROWS, *skeleton.ROWS)}
"""Every recipe."""


def find(name: str) -> Row:
    """The recipe of this name; raises with a hint if there is none."""
    if name not in ROWS:
        close = difflib.get_close_matches(name, ROWS, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `indrnn recipes` lists them"
        raise ValueError(f"no such recipe: {name!r}{hint}")
    return ROWS[name]


__all__ = ["ROWS", "Recipe", "Row", "find"]
