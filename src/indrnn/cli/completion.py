"""`indrnn completion`: completion of commands, kinds, recipes and options, as the help of each command lists them."""

from __future__ import annotations

import contextlib
import importlib
import io
import re

from .main import COMMANDS, UsageError, say

SHELLS = ("bash", "zsh")

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


def completion(arguments: list[str]) -> int:
    """Print a script that completes commands, recipes and options."""
    if arguments in (["--help"], ["-h"]):
        say("usage: indrnn completion {bash,zsh}\n\nPrint a completion script. For bash, once:\n")
        say("  indrnn completion bash > ~/.local/share/bash-completion/completions/indrnn\n")
        say("For zsh, in ~/.zshrc:\n\n  source <(indrnn completion zsh)")
        return 0
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError("completion needs a shell: bash or zsh")
    if arguments == ["zsh"]:
        print("autoload -U +X bashcompinit && bashcompinit")
    # The more words a case has, the earlier it comes: "train adding-100" before "train"
    cases = sorted(_offers(), key=lambda offer: " " not in offer[0][0])
    lines = []
    for patterns, words in cases:
        match = "|".join(f'"{pattern}"' if " " in pattern else f'"{pattern} "*' for pattern in patterns)
        lines.append(f'      {match}) words="{" ".join(words)}" ;;')
    print(_BASH.format(commands=" ".join(COMMANDS), cases="\n".join(lines)), end="")
    return 0


def _offers() -> list[tuple[list[str], list[str]]]:
    """The completions after given words: ["train adding-100", ...]: --steps, --lr, ..."""
    offers = []
    for command in COMMANDS:
        text = _help(command)
        kinds = re.match(rf"usage: indrnn {command} \{{?([a-z][a-z,]*)", text)
        if command == "train":
            names, options = _recipes()
            offers += [*options, ([command], [*names, "--resume", "--config", "--help"])]
        elif kinds is None:
            offers.append(([command], _options_in(text)))
        else:
            names = kinds[1].split(",")
            offers.append(([command], names))
            if command != "completion":
                offers += [([f"{command} {name}"], _options_in(_help(command, name))) for name in names]
    return offers


def _recipes() -> tuple[list[str], list[tuple[list[str], list[str]]]]:
    """The names of recipes, and the options of those that have the same."""
    from ..saving import flat, to_json
    from ..tasks.rows import rows

    alike: dict[str, list[str]] = {}
    for row in rows().values():
        fields = flat(to_json(row.recipe))
        names = [name for name in fields if not name.endswith(".type")]
        switches = [value for value in fields.values() if value in (True, False)]  # on is turned off by another word
        alike.setdefault(repr((names, switches)), []).append(row.name)
    offers = [
        ([f"train {name}" for name in recipes], _options_in(_help("train", recipes[0]))) for recipes in alike.values()
    ]
    return list(rows()), offers


def _help(command: str, *kind: str) -> str:
    """The help of a command."""
    printed = io.StringIO()
    module = importlib.import_module(f".{command}", __package__)
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        getattr(module, command)([*kind, "--help"])
    return printed.getvalue()


def _options_in(text: str) -> list[str]:
    """The options that a help lists."""
    return list(dict.fromkeys(re.findall(r"(?:^|(?<=[\s│|]\s))(?:-h, )?(--[a-z][\w.-]*\w)", text, re.MULTILINE)))
