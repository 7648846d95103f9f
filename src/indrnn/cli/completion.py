"""`indrnn completion`: completion of commands, kinds, recipes and options, as the help of each command lists them."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Iterable, Iterator

from ..tasks.rows import rows
from .main import COMMANDS, UsageError, say

_BASH = """\
_indrnn() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} --help --version"
  else
    case "${{COMP_WORDS[1]}} $([ "$COMP_CWORD" -gt 2 ] && echo "${{COMP_WORDS[2]}}")" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _indrnn indrnn
"""


def completion(arguments: list[str]) -> None:
    """Print a script that completes commands, recipes and options."""
    if arguments in (["--help"], ["-h"]):
        say("usage: indrnn completion {bash,zsh}\n\nPrint a completion script. For bash, once:\n")
        say("  indrnn completion bash > ~/.local/share/bash-completion/completions/indrnn\n")
        say("For zsh, in ~/.zshrc:\n\n  source <(indrnn completion zsh)")
        return
    if arguments not in (["bash"], ["zsh"]):
        raise UsageError("completion needs a shell: bash or zsh")
    if arguments == ["zsh"]:
        print("autoload -U +X bashcompinit && bashcompinit")
    lines = []
    # The more words a case has, the earlier it comes: "train adding-100" before "train"
    for before, words in sorted(_offers(), key=lambda offer: " " not in offer[0][0]):
        match = "|".join(f'"{typed}"' if " " in typed else f'"{typed} "*' for typed in before)
        lines.append(f'      {match}) words="{" ".join(words)}" ;;')
    print(_BASH.format(commands=" ".join(COMMANDS), cases="\n".join(lines)), end="")


def _offers() -> Iterator[tuple[list[str], list[str]]]:
    """The completions after any of some words: ["train adding-100", ...]: --steps, --lr, ..."""
    for command in COMMANDS:
        text = _help(command)
        kinds = re.match(rf"usage: indrnn {command} \{{?([a-z][a-z,]*)", text)
        if command == "train":
            for names in _alike():
                yield [f"train {name}" for name in names], _options_in(_help("train", names[0]))
            yield [command], [*rows(), "--resume", "--config", "--help"]
        elif kinds is None:
            yield [command], _options_in(text)
        else:
            names = kinds[1].split(",")
            yield [command], names
            for name in names if command != "completion" else ():
                yield [f"{command} {name}"], _options_in(_help(command, name))


def _alike() -> Iterable[list[str]]:
    """The names of recipes, those with the same options together."""
    from ..saving import flat, to_json

    alike: dict[str, list[str]] = {}
    for row in rows().values():
        fields = flat(to_json(row.recipe))
        names = [name for name in fields if not name.endswith(".type")]
        alike.setdefault(repr(names), []).append(row.name)
    return alike.values()


def _help(command: str, *kind: str) -> str:
    """The help of a command."""
    printed = io.StringIO()
    module = importlib.import_module(f".{command}", __package__)
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        getattr(module, command)([*kind, "--help"])
    return printed.getvalue()


def _options_in(text: str) -> list[str]:
    """The options that a help lists."""
    return list(dict.fromkeys(re.findall(r"(?:^|(?<=[\s│|]\s)|(?<=, ))(--[a-z][\w.-]*\w)", text, re.MULTILINE)))
