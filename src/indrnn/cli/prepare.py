"""`indrnn prepare`: published recordings to the arrays that training reads."""

from __future__ import annotations

import functools

from ..tasks.recipe import Extra
from ..tasks.rows import recipe_kinds
from .main import UsageError, say
from .parse import Parser


@functools.cache
def _extras() -> dict[str, Extra]:
    """What can be prepared, by name."""
    return {extra.name: extra for kind in recipe_kinds() for extra in kind.extras if extra.command == "prepare"}


def parsers() -> dict[str, Parser]:
    """The options of each, by its name."""
    return {name: Parser(f"prepare {name}", extra.options) for name, extra in _extras().items()}


def prepare(arguments: list[str]) -> int:
    """Turn recordings into arrays."""
    extras = _extras()
    if arguments[:1] in (["--help"], ["-h"]):
        say(f"usage: indrnn prepare {{{','.join(extras)}}} FOLDER ... --out DIR [OPTIONS]\n")
        for name, extra in extras.items():
            say(f"  {name}  {extra.about}; `indrnn prepare {name} --help` shows the options")
        return 0
    if not arguments or arguments[0] not in extras:
        given = f", got {arguments[0]}" if arguments else ""
        raise UsageError(f"prepare needs one of {', '.join(extras)}{given}")
    extras[arguments[0]](parsers()[arguments[0]](arguments[1:]), say)
    return 0
