"""Shell completion of commands, recipes and options, as listed by the argument parsers."""

from __future__ import annotations

from .main import COMMANDS, UsageError, say

SHELLS = ("bash", "zsh", "fish")

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
        say("usage: indrnn completion {bash,zsh,fish}\n\nPrint a completion script. For bash, once:\n")
        say("  indrnn completion bash > ~/.local/share/bash-completion/completions/indrnn\n")
        say("For fish, once:\n\n  indrnn completion fish > ~/.config/fish/completions/indrnn.fish\n")
        say("For zsh, in ~/.zshrc:\n\n  source <(indrnn completion zsh)")
        return 0
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError("completion needs a shell: bash, zsh or fish")
    if arguments == ["fish"]:
        print(_fish(), end="")
        return 0
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
    from ..saving import flat, to_json
    from ..tasks.rows import ROWS, Row
    from .analyse import DEPTH, GRADIENTS, SKELETONS
    from .bench import BENCH
    from .explore import EXPLORE
    from .fit import FIT
    from .generate import GENERATE
    from .insight import KINDS
    from .predict import PREDICT
    from .prepare import NTU
    from .runs import EVALUATE, REPORT
    from .train import DEMO, RECIPES, train_parser

    alike: dict[str, list[Row]] = {}  # recipes that have the same options; what is on is turned off by another word
    for row in ROWS.values():
        fields = flat(to_json(row.recipe))
        same = (
            [name for name in fields if not name.endswith(".type")],
            [v for v in fields.values() if v in (True, False)],
        )
        alike.setdefault(repr(same), []).append(row)
    offers = [([f"train {row.name}" for row in rows], train_parser(rows[0]).words()) for rows in alike.values()]
    offers += [(["analyse gradients"], GRADIENTS.words()), (["analyse depth"], DEPTH.words())]
    offers += [([f"analyse {name}"], kind.parser.words()) for name, kind in KINDS.items()]
    offers += [
        (["analyse"], ["gradients", "depth", "skeletons", *KINDS]),
        (["train"], [*ROWS, "--resume", "--config", "--help"]),
    ]
    offers += [(["analyse skeletons"], SKELETONS.words()), (["prepare ntu"], NTU.words()), (["prepare"], ["ntu"])]
    for parser in (DEMO, RECIPES, FIT, PREDICT, EVALUATE, EXPLORE, GENERATE, REPORT, BENCH):
        offers.append(([parser.name], parser.words()))
    return [*offers, (["completion"], list(SHELLS))]


def _fish() -> str:
    lines = ["complete -c indrnn -f -n '__fish_use_subcommand' -a '" + " ".join(COMMANDS) + "'"]
    lines.append("complete -c indrnn -f -n '__fish_use_subcommand' -l help")
    for patterns, words in _offers():
        seen = {pattern.partition(" ")[0] for pattern in patterns}
        names = [pattern.partition(" ")[2] for pattern in patterns]
        condition = f"__fish_seen_subcommand_from {' '.join(sorted(seen))}"
        if names[0]:
            condition += f"; and __fish_seen_subcommand_from {' '.join(names)}"
        options = [word.removeprefix("--") for word in words if word.startswith("--")]
        values = [word for word in words if not word.startswith("--")]
        lines += [f"complete -c indrnn -n '{condition}' -l {option}" for option in options]
        if values:
            lines.append(f"complete -c indrnn -f -n '{condition}' -a '{' '.join(values)}'")
    return "\n".join(lines) + "\n"
