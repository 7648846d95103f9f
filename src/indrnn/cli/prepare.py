"""`indrnn prepare`: published recordings to the arrays that training reads."""

from __future__ import annotations

from ..tasks.rows import extras
from .main import UsageError, say
from .parse import parse


def prepare(arguments: list[str]) -> None:
    """Turn recordings into arrays."""
    commands = extras("prepare")
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in ("--help", "-h"):
        say(f"usage: indrnn prepare {{{','.join(commands)}}} FOLDER ... --out DIR [OPTIONS]\n")
        for name, extra in commands.items():
            about = (extra.options.__doc__ or "").partition("\n")[0]
            say(f"  {name}  {about} `indrnn prepare {name} --help` shows the options")
    elif name not in commands:
        raise UsageError(f"prepare needs one of {', '.join(commands)}" + (f", got {name}" if name else ""))
    else:
        commands[name](parse(f"prepare {name}", commands[name].options, rest), say)
