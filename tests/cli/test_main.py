"""`indrnn` itself: help, version, what is refused, errors, and missing extras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import indrnn
from indrnn.cli import main
from indrnn.cli.main import UsageError
from indrnn.tasks.adding import Adding
from indrnn.tasks.rows import rows
from indrnn.training import RunError

from .calls import (
    COMMANDS,
    FILES,
    TRAIN,
    Call,
    assert_done,
    assert_refused,
    options_of,
)

# ---- help and version


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]], ids=" ".join)
def test_help_names_every_command(arguments: list[str], call: Call) -> None:
    said = assert_done(call(*arguments))
    for command in COMMANDS:
        assert re.search(rf"^  {command}\b", said.out, re.MULTILINE)
    assert "--version" in said.out
    assert "--debug" in said.out


def test_without_a_command_the_help_is_shown_and_nothing_was_done(call: Call) -> None:
    said = call()
    assert said.code == 2
    assert said.out == call("--help").out


def test_version(call: Call) -> None:
    assert assert_done(call("--version")).out == f"indrnn {indrnn.__version__}\n"


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "indrnn", "--version"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"indrnn {indrnn.__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "mentioned"),
    [
        ("demo", ["--out", "--steps", "runs/demo", "2500"]),
        ("recipes", ["List recipes", "Parts of names"]),
        ("evaluate", ["--device", "The run's folder"]),
        ("train", ["RECIPE", "--out", "--resume", "--overwrite", *rows()]),
        ("completion", ["bash", "zsh"]),
    ],
    ids=["demo", "recipes", "evaluate", "train", "completion"],
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command_mentions_its_options(flag: str, command: str, mentioned: list[str], call: Call) -> None:
    said = assert_done(call(command, flag))
    for part in mentioned:
        assert part in said.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_with_its_name(command: str, call: Call) -> None:
    assert assert_done(call(command, "--help")).out.startswith(f"usage: indrnn {command}")


@pytest.mark.parametrize(
    ("recipe", "own"),
    [
        ("adding-1000", {"--model.gamma", "--model.nonlinearity", "--schedule.every", "--schedule.by"}),
        ("adding-100-lstm", {"--model.kind", "--model.dropout", "--schedule.every"}),
        ("adding-100-fast", {"--model.gamma", "--model.epsilon", "--schedule.warm-up"}),
    ],
    ids=["the paper's", "a baseline", "a quick one"],
)
def test_help_of_a_recipe_lists_all_that_can_be_changed_with_its_value(recipe: str, own: set[str], call: Call) -> None:
    everywhere = {"--out", "--resume", "--overwrite", "--length", "--batch-size", "--test-sequences", "--seed"}
    everywhere |= {"--steps", "--lr", "--weight-decay", "--clip", "--accumulate", "--evaluate-every", "--precision"}
    everywhere |= {"--checkpoint-every", "--device", "--threads", "--compile"}
    everywhere |= {"--model.hidden-size", "--model.layers"}
    assert options_of(call, "train", recipe) >= everywhere | own
    said = call("train", recipe, "--help").out
    row = rows()[recipe]
    assert row.paper in said
    for value in (row.recipe.training.steps, row.recipe.training.lr, row.recipe.length):  # type: ignore[attr-defined]
        assert f"(default: {value})" in said


# ---- what is refused

REFUSED = {
    "trian": ["no such command: trian", "did you mean train?"],
    "frobnicate": ["no such command: frobnicate", "demo", "recipes", "train", "evaluate"],
    "--frobnicate": ["no such command: --frobnicate"],
    "train": ["train needs the name of a recipe", "`indrnn recipes`"],
    "train --steps 3": ["train needs the name of a recipe", "`indrnn recipes`"],
    "train ading-100-lstm": ["'ading-100-lstm'", "did you mean adding-100-lstm"],
    "train mnist": ["'mnist'", "did you mean mnist-6"],
    "train speech": ["'speech'", "`indrnn recipes`"],
    "train mnist-6 --shrink 3": ["shrink must divide the 28 pixels of an image's side, got 3"],
    "train mnist-6 --model.gamma -2": ["gamma must be a positive number or None, got -2.0"],
    "train pmnist-res12 --model.blocks 0": ["blocks must be at least 1, got 0"],
    "train mnist-dense --model.first-dropout 2": ["first_dropout must be a number in [0, 1], got 2.0"],
    "train adding-100 --lenght 7": ["--lenght", "--length"],
    "train adding-100 --hidden-size 7": ["--hidden-size", "--model.hidden-size"],
    "train adding-100 adding-500": ["adding-500"],
    "train adding-100 --steps": ["--steps"],
    "train adding-100 --length -7": ["length must be at least 2, got -7"],
    "train adding-100 --length 7.5": ["--length", "7.5"],
    "train adding-100 --batch-size 0": ["batch_size must be at least 1, got 0"],
    "train adding-100 --model.dropout 1.5": ["dropout must be a number in [0, 1], got 1.5"],
    "train adding-100 --model.hidden-size 0": ["hidden_size must be at least 1, got 0"],
    "train adding-100 --model.gamma -2": ["gamma must be a positive number or None, got -2.0"],
    "train adding-100 --model.nonlinearity rleu": ["--model.nonlinearity", "'relu'"],
    "train adding-100 --steps 0": ["steps must be at least 1, got 0"],
    "train adding-100 --lr nan": ["lr must be a positive number, got nan"],
    "train adding-100 --lr fast": ["--lr", "'fast'"],
    "train adding-100 --schedule.every 0": ["schedule.every must be at least 1, got 0"],
    "train adding-100 --schedule.warm-up 0.1": ["--schedule.warm-up"],
    "train adding-100-fast --schedule.warm-up 1.5": ["schedule.warm_up must be a number in [0, 1)"],
    "train adding-100-rnn --model.kind lsmt": ["--model.kind", "'lstm'"],
    "train adding-100 --threads 0": ["threads must be at least 1, got 0"],
    "train adding-100 --seed 99999999999999999999999": ["seed must", "99999999999999999999999"],
    "train adding-100 --device gpu": ["device must be auto, cpu, cuda or cuda:NUMBER, got 'gpu'"],
    "train adding-100 --resume --overwrite": ["resume and overwrite cannot both be asked for"],
    "recipes speech": ["no recipe has speech in its name"],
    "train adding-200": ["'adding-200'", "adding-100 --length 200"],
    "train adding-250-lstm": ["adding-100-lstm --length 250"],
    "train adding-100 --threads 100000": ["threads must be at most 1024, got 100000"],
    "train adding-100 --steps 1.5": ["--steps", "1.5"],
    "train adding-100 --steps 1e400": ["--steps", "1e400"],
    "train adding-100 --schedule linear": [
        "schedule must be one of constant, steps, plateau, cosine, one-cycle, got linear"
    ],
    "train adding-100 --precision fp16": ["precision fp16 needs a GPU"],
    "train --resume nowhere": ["run must be the folder of a run, and nowhere holds nothing"],
    "train --config nowhere.json": ["nowhere.json cannot be read: No such file"],
    "train adding-100 --init-from nowhere": ["init_from must be the folder of a run, and nowhere holds no config.json"],
    "evaluate": ["The run's folder"],
    "evaluate nowhere": ["nowhere", "config.json"],
    "generate nowhere --prompt a": ["nowhere"],
    "demo --steps 0": ["steps must be at least 1, got 0"],
    "demo --length 7": ["--length"],
    "completion": ["bash or zsh"],
    "completion tcsh": ["bash or zsh"],
}
"""What is typed after `indrnn`, and parts of the answer."""


@pytest.mark.parametrize(("typed", "parts"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_is_answered_in_a_line_and_nothing_is_done(typed: str, parts: list[str], call: Call) -> None:
    said = call(*typed.split())
    assert_refused(said, *parts)
    assert said.out == ""
    assert not list(Path().iterdir())


def test_a_name_that_is_too_long(call: Call) -> None:
    for more in ([], ["--resume"], ["--overwrite"]):
        assert_refused(call(*TRAIN, "--out", "x" * 300, *more), "out: ", "File name too long")
    assert_refused(call("demo", "--out", "x" * 300), "File name too long")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is such a GPU")
def test_a_gpu_of_apple_that_is_not_there(call: Call) -> None:
    assert_refused(call(*TRAIN, "--device", "mps"), "device 'mps' was asked for, and PyTorch finds no such GPU here")
    assert not list(Path().iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(call: Call) -> None:
    assert_refused(call(*TRAIN, "--device", "cuda"), "device 'cuda' was asked for, and PyTorch finds no GPU here")
    assert not list(Path().iterdir())


def unwritable(folder: Path) -> Path:
    """A folder in which none can be made: not even by root, for whom permissions are nothing."""
    if os.geteuid() == 0:
        folder.write_text("a file")
    else:
        folder.mkdir(mode=0o500)
    return folder / "run"


@pytest.mark.parametrize("command", [[*TRAIN, "--steps", "3"], ["demo", "--steps", "3"]], ids=["train", "demo"])
def test_a_folder_that_cannot_be_written(command: list[str], call: Call, tmp_path: Path) -> None:
    out = unwritable(tmp_path / "locked")
    said = call(*command, "--out", out)
    assert_refused(said, "out: cannot write to the folder", str(out))
    assert "step 1/" not in said.out


@pytest.mark.parametrize(
    "command",
    [
        [*TRAIN, "--steps", "3"],
        [*TRAIN, "--steps", "3", "--resume"],
        [*TRAIN, "--steps", "3", "--overwrite"],
        ["demo", "--steps", "3"],
    ],
    ids=["train", "resume", "overwrite", "demo"],
)
def test_a_file_where_the_folder_should_be(command: list[str], call: Call, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert_refused(call(*command, "--out", file), "out", str(file), "is a file")
    assert file.read_text() == "mine"


def test_a_folder_that_holds_something_is_left_alone(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("mine")
    for command in ([*TRAIN, "--steps", "3"], ["demo", "--steps", "3"]):
        assert_refused(call(*command, "--out", folder), f"out: {folder} holds something")
    assert [path.name for path in folder.iterdir()] == ["chapter.txt"]


# ---- errors of runs, and what is shown of errors


def test_a_run_that_breaks_ends_with_a_line_that_says_where(call: Call, tmp_path: Path) -> None:
    said = call(*TRAIN, "--steps", "20", "--lr", "1e30", "--out", tmp_path / "run")
    assert_refused(said, "step 2: the loss became", "network.", "checkpoint", code=1)
    assert not (tmp_path / "run" / "result.json").exists()
    assert not (tmp_path / "run" / "curve.png").exists()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["trian"], UsageError),
        (["train", "mnist"], ValueError),
        ([*TRAIN, "--steps", "3", "--model.weight-std", "1e30"], RunError),
    ],
    ids=["usage", "value", "run"],
)
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_with_debug_an_error_is_raised(first: bool, arguments: list[str], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        main(["--debug", *arguments] if first else [*arguments, "--debug"])


def test_the_installed_program_shows_a_traceback_with_debug(tmp_path: Path) -> None:
    program = [str(Path(sys.executable).parent / "indrnn"), "train", "mnist", "--debug"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("Traceback")
    assert "'mnist'" in done.stderr


def test_an_error_in_the_program_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wrong(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Adding, "batch", wrong)
    with pytest.raises(ZeroDivisionError):
        main([*TRAIN, "--steps", "3", "--out", str(tmp_path / "run")])


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """As in `indrnn train adding-100 --help | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    program = [sys.executable, "-m", "indrnn", "completion", "bash"]
    done = subprocess.run(program, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""


# ---- without the extras


@pytest.mark.parametrize("missing", ["rich", "tyro"])
@pytest.mark.parametrize("arguments", [["recipes"], ["train", "adding-100", "--help"], ["trian"]], ids=" ".join)
def test_without_the_extras_a_line_says_how_to_get_them(
    arguments: list[str], missing: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    said = call(*arguments)
    assert_refused(said, missing, "pip install 'indrnn[cli]'")
    assert said.out == ""
    assert assert_done(call("--version")).out == f"indrnn {indrnn.__version__}\n"
    assert_done(call("--help"))


def test_without_matplotlib_a_run_is_whole_but_for_its_picture(
    call: Call, once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = assert_done(call(*TRAIN, "--steps", "20", "--out", tmp_path / "run"))
    assert "matplotlib" in said.out
    assert "pip install 'indrnn[report]'" in said.out
    assert {path.name for path in (tmp_path / "run").iterdir()} - {"tensorboard"} == FILES - {"curve.png"}
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() == (once / "weights.safetensors").read_bytes()
    kinds: list[list[Any]] = [
        ["memory", once, "--items", "0"],
        *([kind, once] for kind in ("weights", "depth", "gradients", "ablate")),
    ]
    commands: list[list[Any]] = [
        ["report", once],
        ["report", once, "--html", tmp_path / "page.html"],
        *(["analyse", *kind] for kind in kinds),
    ]
    for words in commands:
        assert_refused(call(*words, "--out", tmp_path / "out"), "pip install 'indrnn[report]'")
        assert not (tmp_path / "out").exists()
