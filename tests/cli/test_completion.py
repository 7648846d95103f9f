"""`indrnn completion`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from indrnn.cli.analyse import KINDS
from indrnn.tasks.rows import extras, rows

from .calls import (
    COMMANDS,
    Call,
    assert_done,
    assert_refused,
    options_of,
)

# ---- completion


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: it takes seconds, as the options of every recipe are in it."""
    path = tmp_path_factory.mktemp("completion") / "completion.bash"
    path.write_bytes(subprocess.check_output([sys.executable, "-m", "indrnn", "completion", "bash"]))
    return path


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    typed = " ".join(map(shlex.quote, words))
    code = f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _indrnn; "
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line for line in done.stdout.split("\n") if line]


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_bash
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_is_one(shell: str, call: Call, tmp_path: Path) -> None:
    path = tmp_path / "completion"
    path.write_text(assert_done(call("completion", shell)).out)
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("bashcompinit" in path.read_text()) == (shell == "zsh")


@needs_bash
def test_commands_are_completed(script: Path) -> None:
    assert set(completed(script, "indrnn", "")) >= {*COMMANDS, "--help", "--version"}
    assert completed(script, "indrnn", "tr") == ["train"]
    assert completed(script, "indrnn", "xyz") == []
    assert completed(script, "indrnn", "completion", "") == ["bash", "zsh"]


@needs_bash
def test_recipes_are_completed(script: Path) -> None:
    assert [word for word in completed(script, "indrnn", "train", "") if "--" not in word] == list(rows())
    assert completed(script, "indrnn", "train", "adding-100-i") == ["adding-100-irnn"]


@needs_bash
@pytest.mark.parametrize("recipe", ["adding-500", "adding-1000-lstm", "adding-100-fast"])
def test_options_of_a_recipe_are_completed(recipe: str, script: Path, call: Call) -> None:
    """All that its help lists, and none that it does not have."""
    offered = completed(script, "indrnn", "train", recipe, "--")
    assert len(set(offered)) == len(offered)
    assert set(offered) | {"--help"} == options_of(call, "train", recipe) | {"--help"}
    assert completed(script, "indrnn", "train", recipe, "--length", "7", "--model.hid") == ["--model.hidden-size"]


@needs_bash
@pytest.mark.parametrize(
    "command",
    [
        *(command for command in COMMANDS if command not in ("train", "prepare", "analyse", "completion")),
        "prepare ntu",
        *(f"analyse {kind}" for kind in (*KINDS, *extras("analyse"))),
    ],
)
def test_options_of_a_command_are_completed(command: str, script: Path, call: Call) -> None:
    first, *kind = command.split()
    if kind:
        assert kind[0] in completed(script, "indrnn", first, "")
    offered = completed(script, "indrnn", *command.split(), "--")
    assert set(offered) | {"--help"} == options_of(call, *command.split()) | {"--help"}


@needs_bash
@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_completion_takes_no_folder_name_apart_and_runs_none(command: str, script: Path) -> None:
    """What it does not complete itself, bash does."""
    names = ["a run", "$(touch ran)", "`touch ran`", "runs"]
    for name in names:
        Path(name).mkdir()
    for typed in ("", "a", "$"):
        offered = completed(script, "indrnn", command, typed)
        assert {word for word in offered if not word.startswith("--")} <= set(names)
        assert sorted(path.name for path in Path().iterdir()) == sorted(names)


def test_shells_that_are_refused(call: Call) -> None:
    for arguments in ([], ["fish"], ["bash", "zsh"]):
        assert_refused(call("completion", *arguments), "completion needs a shell: bash or zsh")
