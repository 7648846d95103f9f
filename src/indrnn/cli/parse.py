"""Parsing of options with tyro; the help of an option is the docstring of its field, or the comment beside it."""

from __future__ import annotations

from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

_REGISTRY = ConstructorRegistry()


def whole(text: str) -> int:
    """A whole number, also as 1e4 or 2.5e3."""
    try:
        return int(text)
    except ValueError:
        if not (number := float(text)).is_integer():
            raise
        return int(number)


@_REGISTRY.primitive_rule
def _whole_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def option(kind: Any, text: str) -> Any:
    """A type whose option has this help."""
    return Annotated[kind, tyro.conf.arg(help=text)]


def parse(
    name: str,
    kind: Any,
    arguments: list[str],
    about: str | None = None,
    *,
    avoid_subcommands: bool = False,
    program: str = "indrnn",
) -> Any:
    """The options of a command, of type `kind`; for wrong arguments or --help, print the error or the help and exit."""
    config = [tyro.conf.AvoidSubcommands] if avoid_subcommands else []  # a flag is --flag and --no-flag
    name = f"{program} {name}"
    return tyro.cli(kind, prog=name, description=about, args=arguments, config=config, registry=_REGISTRY)
