"""Completion for shells: of commands, recipes and options, which no argument parser knows all together."""

from __future__ import annotations

from .main import UsageError

_SCRIPT = """\
_indrnn() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} --help --version"
  else
    case "${{COMP_WORDS[1]}}" in
      train)
        if [ "$COMP_CWORD" -eq 2 ]; then words="{recipes}"; else
          case "${{COMP_WORDS[2]}}" in
{options}
          esac
        fi ;;
      demo) words="--out --steps" ;;
      evaluate) words="--device --data-dir" ;;
      report) words="--out" ;;
      analyse)
        case "$COMP_CWORD ${{COMP_WORDS[2]}}" in
          "2 "*) words="gradients depth" ;;
          *" gradients") words="--out --batches --device --data-dir" ;;
          *" depth") words="--out --seeds" ;;
        esac ;;
      bench)
        if [ "$COMP_CWORD" -eq 2 ]; then words="layer network stream scale"; else
          words="--out --quick --rounds --device --threads --keep-memory --against"
        fi ;;
      completion) words="bash zsh" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _indrnn indrnn
"""


def completion(arguments: list[str]) -> int:
    """Print a script that completes commands, recipes and options."""
    if arguments in (["--help"], ["-h"]):
        print("usage: indrnn completion {bash,zsh}\n\nPrint a completion script. For bash, once:\n")
        print("  indrnn completion bash > ~/.local/share/bash-completion/completions/indrnn\n")
        print("For zsh, in ~/.zshrc:\n\n  source <(indrnn completion zsh)")
        return 0
    if arguments not in (["bash"], ["zsh"]):
        raise UsageError("completion needs a shell, bash or zsh")
    from ..recipes import ROWS
    from ..training.folder import plain
    from .main import commands

    names: dict[str, list[str]] = {}  # options: the recipes that have them
    for row in ROWS.values():
        options = [*_names(plain(row.recipe)), "out", "resume", "overwrite"]
        names.setdefault(" ".join(f"--{option.replace('_', '-')}" for option in options), []).append(row.name)
    cases = "\n".join(f'            {"|".join(recipes)}) words="{options}" ;;' for options, recipes in names.items())
    if arguments == ["zsh"]:
        print("autoload -U +X bashcompinit && bashcompinit")
    print(_SCRIPT.format(commands=" ".join(commands()), recipes=" ".join(ROWS), options=cases), end="")
    return 0


def _names(options: dict[str, object], prefix: str = "") -> list[str]:
    result = []
    for name, value in options.items():
        if isinstance(value, dict):
            result += _names(value, "" if name == "training" else f"{prefix}{name}.")
        elif name != "type":
            result.append(f"{prefix}no_{name}" if value is True else prefix + name)  # what is on can be turned off
    return result
