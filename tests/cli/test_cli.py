"""The command line as a user meets it: what is printed, what is on the disk after it, and the exit code."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import indrnn
from indrnn.cli import main
from indrnn.cli.main import UsageError, commands
from indrnn.recipes import ROWS
from indrnn.tasks import pixels
from indrnn.tasks.adding import Adding
from indrnn.tasks.files import DataFile
from indrnn.training import RunError

SIZES = ["--length", "5", "--batch-size", "3", "--test-sequences", "11", "--model.hidden-size", "7"]
TRAIN = ["train", "adding-100-fast", *SIZES, "--threads", "1", "--evaluate-every", "8"]
"""A run of a second; the number of steps and the folder are to be added."""
COMMANDS = list(commands())
FILES = {"config.json", "metrics.jsonl", "checkpoints", "result.json", "weights.safetensors", "model.json", "curve.png"}


@dataclass
class Said:
    """What came of a call."""

    code: int | str | None
    out: str
    err: str


Call = Callable[..., Said]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with lines as long as they like to be."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line, in this process."""

    def call_main(*arguments: str | Path) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return Said(end.value.code, printed.out, printed.err)

    return call_main


def assert_done(said: Said) -> Said:
    assert said.code == 0, said
    assert said.err == ""
    return said


def assert_refused(said: Said, *parts: str, code: int = 2) -> None:
    """One line that says what is wrong; or the box of the argument parser."""
    assert said.code == code, said
    if said.err.startswith("indrnn: "):
        assert said.err.count("\n") == 1
        assert said.err.endswith("\n")
    else:
        assert "For full helptext" in said.err
    for part in parts:
        assert part in said.err


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 20 steps."""
    folder = tmp_path_factory.mktemp("runs") / "once"
    with pytest.raises(SystemExit) as end:
        main([*TRAIN, "--steps", "20", "--out", str(folder)])
    assert end.value.code == 0
    return folder


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    """A finished run of 20 steps, to do with as one likes."""
    return Path(shutil.copytree(once, tmp_path / "run"))


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have Ctrl-C pressed once, in the step after so many."""

    def interrupt_at(at: int) -> None:
        make = Adding.batch
        pressed: list[int] = []

        def batch(self: Adding, step: int, shard: Any) -> Any:
            if step == at and not pressed:
                pressed.append(step)
                signal.raise_signal(signal.SIGINT)
            return make(self, step, shard)

        monkeypatch.setattr(Adding, "batch", batch)

    return interrupt_at


def to_go_on(said: str) -> list[str]:
    """The arguments of the command that an interrupted run says it goes on with."""
    found = re.search(r"to go on: (.*)$", said, re.MULTILINE)
    assert found is not None, said
    program, *arguments = shlex.split(found[1])
    assert program == "indrnn"
    return arguments


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
        ("recipes", ["List every recipe"]),
        ("evaluate", ["--device", "The run's folder"]),
        ("train", ["RECIPE", "--out", "--resume", "--overwrite", *ROWS]),
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


def options_of(call: Call, *command: str) -> set[str]:
    """The options that a command's help lists, in one column or two."""
    said = assert_done(call(*command, "--help"))
    return set(re.findall(r"(?:^|  )\W*(?:-h, )?(--[a-z][\w.-]*)", said.out, re.MULTILINE))


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
    row = ROWS[recipe]
    assert row.paper in said
    for value in (row.recipe.training.steps, row.recipe.training.lr, row.recipe.length):  # type: ignore[attr-defined]
        assert f"(default: {value})" in said


# ---- recipes


def test_recipes_lists_every_recipe_with_its_parameters(call: Call) -> None:
    heading, *listed = assert_done(call("recipes")).out.rstrip("\n").split("\n")
    assert re.split(r"\s{2,}", heading.strip())[:2] == ["recipe", "in the paper"]
    rows = [re.split(r"\s{2,}", line.strip()) for line in listed]
    assert [row[0] for row in rows] == list(ROWS)
    for name, paper, value, parameters, cost in rows:
        model = ROWS[name].recipe.model_config().build()
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        assert parameters == f"{count:,}"
        assert (paper, value, cost) == (ROWS[name].paper, ROWS[name].value, ROWS[name].cost)


def test_recipes_fit_into_a_terminal_of_80_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    said = assert_done(call("recipes"))
    shown = re.sub(r"\x1b\[[\d;]*m", "", said.out).split("\n")
    assert "\x1b" in said.out
    assert max(map(len, shown)) <= 80
    for row, line in zip(ROWS.values(), shown[1:], strict=False):
        for part in (row.name, row.paper, row.value, row.cost):
            assert part in line
    assert "…" not in said.out


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
    "train adding-100 --length -7": ["length must be a whole number of at least 2, got -7"],
    "train adding-100 --length 7.5": ["--length", "7.5"],
    "train adding-100 --batch-size 0": ["batch_size must be a whole number of at least 1, got 0"],
    "train adding-100 --model.dropout 1.5": ["dropout must be a number in [0, 1], got 1.5"],
    "train adding-100 --model.hidden-size 0": ["hidden_size must be at least 1, got 0"],
    "train adding-100 --model.gamma -2": ["gamma must be a positive number or None, got -2.0"],
    "train adding-100 --model.nonlinearity rleu": ["--model.nonlinearity", "'relu'"],
    "train adding-100 --steps 0": ["steps must be a whole number of at least 1, got 0"],
    "train adding-100 --lr nan": ["lr must be a positive number, got nan"],
    "train adding-100 --lr fast": ["--lr", "'fast'"],
    "train adding-100 --schedule.every 0": ["schedule.every must be a whole number"],
    "train adding-100 --schedule.warm-up 0.1": ["--schedule.warm-up"],
    "train adding-100-fast --schedule.warm-up 1.5": ["schedule.warm_up must be a number in [0, 1)"],
    "train adding-100-rnn --model.kind lsmt": ["--model.kind", "'lstm'"],
    "train adding-100 --threads 0": ["threads must be a whole number of at least 1, got 0"],
    "train adding-100 --seed 99999999999999999999999": ["seed must", "99999999999999999999999"],
    "train adding-100 --device gpu": ["device must be auto, cpu, cuda or cuda:NUMBER, got 'gpu'"],
    "train adding-100 --resume --overwrite": ["resume and overwrite cannot both be asked for"],
    "recipes adding-100": ["adding-100"],
    "evaluate": ["The run's folder"],
    "evaluate nowhere": ["nowhere", "config.json"],
    "demo --steps 0": ["steps must be a whole number of at least 1, got 0"],
    "demo --length 7": ["--length"],
    "completion": ["bash or zsh"],
    "completion fish": ["bash or zsh"],
}
"""What is typed after `indrnn`, and parts of the answer."""


@pytest.mark.parametrize(("typed", "parts"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_is_answered_in_a_line_and_nothing_is_done(typed: str, parts: list[str], call: Call) -> None:
    said = call(*typed.split())
    assert_refused(said, *parts)
    assert said.out == ""
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


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """As in `indrnn train adding-100 --help | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    program = [sys.executable, "-m", "indrnn", "completion", "bash"]
    done = subprocess.run(program, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""


# ---- train


def test_a_run_leaves_its_files(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} - {"tensorboard"} == FILES
    assert (finished / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [line["step"] for line in lines(finished)] == [8, 16, 20]
    result = read(finished, "result.json")
    assert result["steps"] == 20
    assert result["best_step"] in (8, 16, 20)
    assert result["best"]["test_mse"] == min(line["test_mse"] for line in lines(finished))
    config = read(finished, "config.json")
    assert (config["recipe"], config["seed"]) == ("adding-100-fast", 0)
    model = indrnn.load(finished)
    assert_close(model.state_dict(), load_file(finished / "weights.safetensors"), rtol=0, atol=0)
    assert model(torch.rand(5, 2, 2))[0].shape == (2, 1)


def test_what_is_printed_says_where_the_run_is_and_how_it_went(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "a run"
    said = assert_done(call(*TRAIN, "--steps", "8", "--out", out))
    assert "step 8/8" in said.out
    assert f"{read(out, 'result.json')['test']['test_mse']:.5g}" in said.out
    assert f"saved in {out}" in said.out
    loaded = re.search(r"indrnn\.load\((.*)\)", said.out)
    assert loaded is not None
    assert loaded[1] == repr(str(out))


def test_without_out_a_run_goes_to_runs(call: Call) -> None:
    assert_done(call(*TRAIN, "--steps", "1"))
    assert {path.name for path in Path("runs/adding-100-fast").iterdir()} >= FILES


def test_a_run_is_not_overwritten_unasked(finished: Path, call: Call) -> None:
    before = contents(finished)
    said = call(*TRAIN, "--steps", "20", "--out", finished)
    assert_refused(said, f"out: {finished} holds something already", "resume", "overwrite")
    assert contents(finished) == before


def test_overwrite_starts_again(finished: Path, call: Call) -> None:
    (finished / "notes.txt").write_text("mine")
    assert_done(call(*TRAIN, "--steps", "9", "--seed", "1", "--out", finished, "--overwrite"))
    assert [line["step"] for line in lines(finished)] == [8, 9]
    assert read(finished, "result.json")["steps"] == 9
    assert read(finished, "config.json")["seed"] == 1
    assert (finished / "notes.txt").read_text() == "mine"


def test_resuming_a_finished_run_changes_nothing(finished: Path, call: Call) -> None:
    weights, measured = (finished / "weights.safetensors").read_bytes(), lines(finished)
    test = read(finished, "result.json")["test"]
    said = assert_done(call(*TRAIN, "--steps", "20", "--out", finished, "--resume"))
    assert "resuming at step 20" in said.out
    assert (finished / "weights.safetensors").read_bytes() == weights
    assert lines(finished) == measured
    assert read(finished, "result.json")["test"] == test


def test_a_finished_run_goes_on_for_more_steps(finished: Path, call: Call) -> None:
    earlier = lines(finished)
    said = assert_done(call(*TRAIN, "--steps", "30", "--out", finished, "--resume"))
    assert "resuming at step 20" in said.out
    assert lines(finished)[:3] == earlier
    assert [line["step"] for line in lines(finished)] == [8, 16, 20, 24, 30]
    assert read(finished, "result.json")["steps"] == 30


def test_resume_of_nothing_starts(call: Call, tmp_path: Path) -> None:
    said = assert_done(call(*TRAIN, "--steps", "3", "--out", tmp_path / "new", "--resume"))
    assert "nothing to resume" in said.out
    assert {path.name for path in (tmp_path / "new").iterdir()} >= FILES


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--lr", "0.5"], "lr was 0.001 and is now 0.5"),
        (["--length", "6"], "length was 5 and is now 6"),
        (["--seed", "1"], "seed was 0 and is now 1"),
        (["--model.layers", "3"], "layers was 2 and is now 3"),
        (["--schedule.warm-up", "0.5"], "warm_up was 0.05 and is now 0.5"),
    ],
    ids=["lr", "length", "seed", "layers", "warm up"],
)
def test_a_run_is_not_resumed_as_another(options: list[str], part: str, finished: Path, call: Call) -> None:
    before = contents(finished)
    said = call(*TRAIN, "--steps", "30", "--out", finished, "--resume", *options)
    assert_refused(said, "cannot resume", str(finished), part)
    assert contents(finished) == before


def test_options_arrive(call: Call, tmp_path: Path) -> None:
    changed = {
        "--model.hidden-size": "9",
        "--model.layers": "3",
        "--model.norm": "batch",
        "--model.norm-place": "before",
        "--batch-size": "4",
        "--lr": "0.0125",
        "--schedule.warm-up": "0.25",
        "--seed": "5",
        "--clip": "None",
        "--accumulate": "2",
    }
    words = [word for option in changed.items() for word in option]
    assert_done(call(*TRAIN, "--steps", "8", "--out", tmp_path / "run", *words))
    config = read(tmp_path / "run", "config.json")
    options, training = config["options"], config["training"]
    assert config["seed"] == 5
    assert (options["length"], options["batch_size"], options["test_sequences"]) == (5, 4, 11)
    assert options["model"]["type"] == "Plain"
    assert (options["model"]["hidden_size"], options["model"]["layers"]) == (9, 3)
    assert (options["model"]["norm"], options["model"]["norm_place"]) == ("batch", "before")
    assert options["model"]["gamma"] == 2.0
    assert (training["steps"], training["lr"], training["clip"], training["accumulate"]) == (8, 0.0125, None, 2)
    assert training["schedule"] == {"type": "Cosine", "warm_up": 0.25}
    of_the_task = {"input_size": 2, "sequence_length": 5}
    assert read(tmp_path / "run", "model.json")["network"] == options["model"] | of_the_task
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert [weights[f"network.blocks.{i}.unit.weight_hh"].shape for i in range(3)] == [(9,)] * 3
    assert 0 < lines(tmp_path / "run")[-1]["lr"] < 0.0125


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--no-tensorboard", ("training", "tensorboard", False)),
        ("--model.no-long-memory", ("model", "long_memory", False)),
    ],
    ids=["tensorboard", "long memory"],
)
def test_what_is_on_can_be_turned_off(option: str, expected: tuple[str, str, bool], call: Call, tmp_path: Path) -> None:
    assert_done(call(*TRAIN, "--steps", "1", "--out", tmp_path / "run", option))
    config = read(tmp_path / "run", "config.json")
    part, name, value = expected
    assert (config["training"] if part == "training" else config["options"][part])[name] is value


def test_a_baseline_trains_too(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call("train", "adding-100-rnn", *SIZES, "--steps", "2", "--model.kind", "gru", "--out", out))
    assert read(out, "model.json")["network"]["kind"] == "gru"
    assert_done(call("evaluate", out))


def test_the_seed_decides(call: Call, once: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    assert_done(call(*TRAIN, "--steps", "20", "--out", same))
    assert_done(call(*TRAIN, "--steps", "20", "--out", other, "--seed", "1"))
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (once, same, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


# ---- Ctrl-C


@pytest.mark.parametrize("at", [3, 8, 18])
def test_an_interrupted_run_goes_on_with_the_command_it_prints(
    at: int, interrupt: Callable[[int], None], call: Call, once: Path, tmp_path: Path
) -> None:
    """To the bit, as if it had never been interrupted; also from a folder whose name a shell would take apart."""
    out = tmp_path / "it's a run; $(true)"
    interrupt(at)
    said = call(*TRAIN, "--steps", "20", "--out", out)
    assert said.code == 130
    assert said.err == ""
    assert f"stopped at step {at + 1}" in said.out or f"stopped at step {at + 2}" in said.out
    assert not (out / "result.json").exists()
    assert not (out / "curve.png").exists()
    said = assert_done(call(*to_go_on(said.out)))
    assert "resuming at step" in said.out
    assert (out / "weights.safetensors").read_bytes() == (once / "weights.safetensors").read_bytes()
    assert {path.name for path in out.iterdir()} >= FILES
    kept = [{k: v for k, v in line.items() if k != "seconds"} for line in lines(out)]
    assert kept == [{k: v for k, v in line.items() if k != "seconds"} for line in lines(once)]


@pytest.mark.parametrize("how", ["--resume", "--overwrite"])
def test_a_run_that_was_resumed_or_overwritten_prints_the_right_command_too(
    how: str, interrupt: Callable[[int], None], finished: Path, call: Call
) -> None:
    interrupt(25 if how == "--resume" else 5)
    said = call(*TRAIN, how, "--steps", "30", "--out", finished)
    assert said.code == 130
    assert_done(call(*to_go_on(said.out)))
    assert [line["step"] for line in lines(finished)] == ([8, 16, 20, 24, 30] if how == "--resume" else [8, 16, 24, 30])


def test_a_demo_prints_a_command_that_goes_on(interrupt: Callable[[int], None], call: Call, tmp_path: Path) -> None:
    out = tmp_path / "a demo"
    interrupt(1)
    said = call("demo", "--steps", "5", "--out", out)
    assert said.code == 130
    assert_done(call(*to_go_on(said.out)))
    assert read(out, "result.json")["steps"] == 5
    assert {path.name for path in out.iterdir()} >= FILES


def test_ctrl_c_of_a_process(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "indrnn"]
    command = [*program, *TRAIN, "--steps", "300", "--evaluate-every", "100", "--out", "my run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=120)
    assert first.startswith("step 1/300")
    assert process.returncode == 130, rest + err
    assert err == ""
    stopped = re.search(r"stopped at step (\d+), and saved", rest)
    assert stopped is not None

    again = [*program, *to_go_on(rest)]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"resuming at step {stopped[1]}\n" in done.stdout
    assert [line["step"] for line in lines(tmp_path / "my run")] == [100, 200, 300]
    assert read(tmp_path / "my run", "result.json")["steps"] == 300


# ---- evaluate


def test_evaluate_measures_a_finished_run_again(finished: Path, call: Call) -> None:
    before = contents(finished)
    said = assert_done(call("evaluate", finished))
    measured = re.search(r"^adding-100-fast: test_mse ([\d.e-]+) with", said.out)
    assert measured is not None, said.out
    assert float(measured[1]) == pytest.approx(read(finished, "result.json")["test"]["test_mse"], rel=1e-5)
    assert "not finished" not in said.out
    assert contents(finished) == before


def test_evaluate_measures_the_best_weights_of_an_unfinished_run(
    interrupt: Callable[[int], None], call: Call, once: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    interrupt(17)
    assert call(*TRAIN, "--steps", "20", "--out", out).code == 130
    said = assert_done(call("evaluate", out))
    earlier = [line for line in lines(once) if line["step"] < 18]
    best = min(earlier, key=lambda line: line["test_mse"])["step"]
    assert f"of step {best} (the run is not finished)" in said.out
    assert re.search(r"test_mse \d", said.out)


def test_evaluate_moves_nothing_in_a_run_that_may_still_be_going_on(
    interrupt: Callable[[int], None], call: Call, tmp_path: Path
) -> None:
    """There, a checkpoint that is written and not yet in its place belongs to the process that trains."""
    out = tmp_path / "run"
    interrupt(17)
    assert call(*TRAIN, "--steps", "20", "--out", out).code == 130
    shutil.copy(out / "checkpoints" / "last.ckpt", out / "checkpoints" / "next.ckpt")
    before = contents(out)
    assert_done(call("evaluate", out))
    assert contents(out) == before


def test_evaluate_before_the_first_evaluation(interrupt: Callable[[int], None], call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    interrupt(2)
    assert call(*TRAIN, "--steps", "20", "--out", out).code == 130
    assert_refused(call("evaluate", out), str(out), "no checkpoint with an evaluation yet")


def test_evaluate_of_what_is_no_run_of_a_recipe(call: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"training": {"type": "Training"}, "seed": 0}))
    assert_refused(call("evaluate", tmp_path), str(tmp_path), "not the run of a recipe")


def test_evaluate_on_a_device_that_is_none(finished: Path, call: Call) -> None:
    assert_refused(call("evaluate", finished, "--device", "gpu"), "device must be auto, cpu, cuda or cuda:NUMBER")


def test_evaluate_of_a_run_whose_weights_are_of_another_size(finished: Path, call: Call) -> None:
    model = read(finished, "model.json")
    model["network"]["hidden_size"] = 8
    (finished / "model.json").write_text(json.dumps(model))
    assert_refused(call("evaluate", finished), "weights.safetensors", "does not fit the model")


def test_evaluate_of_a_run_whose_config_is_torn(finished: Path, call: Call) -> None:
    config = finished / "config.json"
    config.write_text(config.read_text()[:50])
    assert_refused(call("evaluate", finished), "config.json")


# ---- recipes that read files

DIGITS = ["train", "mnist-6-fast", "--model.hidden-size", "5", "--model.layers", "2", "--shrink", "4", "--batch-size"]
DIGITS += ["7", "--validation", "10", "--threads", "1"]
"""The number of steps and the folders are to be added."""


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mirror where nothing listens, in the place of MNIST's; and no data of the user's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        mirror = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(pixels, "MNIST", replace(pixels.MNIST, mirrors=(mirror,)))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("INDRNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd().parent / "cache"))
    return mirror


@pytest.fixture
def few_digits(unreachable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a set of 40 and 12 images in the place of MNIST."""
    folder = tmp_path / "data"
    folder.mkdir()
    files = []
    for file in pixels.MNIST.files:
        count = 40 if file.name.startswith("train") else 12
        if "images" in file.name:
            content = bytes([0, 0, 8, 3, *(0, 0, 0, count), *(0, 0, 0, 28), *(0, 0, 0, 28)])
            content += bytes(torch.randint(0, 256, (count * 784,)).tolist())
        else:
            content = bytes([0, 0, 8, 1, *(0, 0, 0, count), *(i % 10 for i in range(count))])
        (folder / file.name).write_bytes(gzip.compress(content, 1))
        files.append(DataFile(file.name, hashlib.sha256(content).hexdigest()))
    monkeypatch.setattr(pixels, "MNIST", replace(pixels.MNIST, files=tuple(files)))
    return folder


def test_without_data_and_network_a_line_says_what_to_do(unreachable: str, call: Call, tmp_path: Path) -> None:
    empty, out = tmp_path / "empty", tmp_path / "run"
    empty.mkdir()
    said = call("train", "mnist-6", "--data-dir", empty, "--out", out)
    names = [file.name for file in pixels.MNIST.files]
    assert_refused(said, *names, str(empty / "mnist"), "--data-dir", "INDRNN_DATA", unreachable)
    assert said.out == ""
    assert not out.exists()
    assert [path for path in empty.rglob("*") if path.is_file()] == []


def test_a_corrupt_file_is_named(few_digits: Path, call: Call, tmp_path: Path) -> None:
    labels = few_digits / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-9])
    said = call(*DIGITS, "--data-dir", few_digits, "--out", tmp_path / "run")
    assert_refused(said, f"{labels} is corrupt")
    assert not (tmp_path / "run").exists()


def test_data_that_is_a_file_or_too_small(few_digits: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = call(*DIGITS, "--data-dir", tmp_path / "file", "--out", tmp_path / "run")
    assert_refused(said, "data_dir must be a folder", "is a file")
    said = call(*DIGITS, "--data-dir", few_digits, "--validation", "40", "--out", tmp_path / "run")
    assert_refused(said, "validation must be fewer than the", "got 40")
    assert not (tmp_path / "run").exists()


def test_digits_are_learnt_measured_and_gone_on_with(
    few_digits: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the data lies elsewhere the next time."""
    out = tmp_path / "run"
    assert_done(call(*DIGITS, "--data-dir", few_digits, "--steps", "2", "--out", out))
    assert {path.name for path in out.iterdir()} - {"tensorboard"} == FILES
    config = read(out, "config.json")
    assert (config["options"]["validation"], config["options"]["shrink"]) == (10, 4)
    assert "data_dir" not in config["options"]
    assert [line["step"] for line in lines(out)] == [2]
    assert 0 <= lines(out)[0]["accuracy"] <= 1
    assert indrnn.load(out)(torch.rand(49, 3, 1))[0].shape == (3, 10)

    elsewhere = few_digits.rename(tmp_path / "elsewhere")
    said = assert_done(call("evaluate", out, "--data-dir", elsewhere))
    measured = re.search(r"^mnist-6-fast: .*accuracy ([\d.e-]+) with", said.out)
    assert measured is not None, said.out
    assert float(measured[1]) == pytest.approx(read(out, "result.json")["test"]["accuracy"], rel=1e-5)
    said = assert_done(call(*DIGITS, "--data-dir", elsewhere, "--steps", "4", "--out", out, "--resume"))
    assert "resuming at step 2" in said.out
    assert [line["step"] for line in lines(out)] == [2, 4]
    assert_refused(call("evaluate", out), "--data-dir", "INDRNN_DATA")
    monkeypatch.setenv("INDRNN_DATA", str(elsewhere))
    assert_done(call("evaluate", out))
    said = call(*DIGITS, "--steps", "4", "--split-seed", "1", "--out", out, "--resume")
    assert_refused(said, "cannot resume", "split_seed was 0 and is now 1")


def test_evaluate_of_a_run_that_makes_its_own_data(finished: Path, call: Call, tmp_path: Path) -> None:
    assert_refused(call("evaluate", finished, "--data-dir", tmp_path), "data_dir", "makes its own data")


# ---- what is made of runs


def test_runs_of_the_adding_problem_are_gathered(finished: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "results"
    said = assert_done(call("report", finished, "--out", out))
    kept = read(out, f"{finished.name}.json")
    result = read(finished, "result.json")
    assert (kept["model"], kept["length"], kept["steps"]) == ("indrnn", 5, result["steps"])
    assert kept["test_mse"] == result["test"]["test_mse"]
    assert kept["curve"] == [[line["step"], line["test_mse"]] for line in lines(finished)]
    assert kept["command"] in said.out
    assert (out / "adding.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_digits_are_gathered_and_looked_into(few_digits: Path, call: Call, tmp_path: Path) -> None:
    runs = [tmp_path / "indrnn", tmp_path / "lstm"]
    short = ["--data-dir", few_digits, "--steps", "2"]
    assert_done(call(*DIGITS, *short, "--out", runs[0]))
    recipe = ["train", "mnist-lstm-6", *DIGITS[2:]]
    assert_done(call(*recipe, *short, "--permuted", "--out", runs[1]))
    out = tmp_path / "results"
    assert_done(call("report", runs[0], "--out", out))
    said = assert_done(call("report", runs[1], "--out", out))  # and what is there
    rows = [row.split(" | ") for row in said.out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| permuted MNIST, 7×7 pixels", "| sequential MNIST, 7×7 pixels"]
    for row, run in zip(rows, reversed(runs), strict=True):
        assert f"{100 * read(run, 'result.json')['test']['accuracy']:.2f} %" in row
        assert f"{100 * lines(run)[0]['accuracy']:.2f} %" in row
    assert {path.name for path in out.iterdir()} == {"indrnn.json", "lstm.json", "pixels.png"}

    said = assert_done(call("analyse", "gradients", *runs, "--data-dir", few_digits, "--batches", "2", "--out", out))
    assert str(out / "gradients.png") in said.out
    flows = read(out, "gradients.json")
    assert [(flow["name"], flow["indrnn"]) for flow in flows] == [("indrnn", True), ("lstm", False)]
    assert [(len(flow["time"]), len(flow["depth"])) for flow in flows] == [(49, 1), (49, 1)]
    assert_done(call("report", runs[0], "--out", out))  # takes gradients.json for no run


def test_runs_that_cannot_be_gathered(finished: Path, few_digits: Path, call: Call, tmp_path: Path) -> None:
    digits = tmp_path / "digits"
    assert_done(call(*DIGITS, "--data-dir", few_digits, "--steps", "2", "--out", digits))
    assert_refused(call("report", finished, digits), "runs must be of one task")
    assert_refused(call("report", tmp_path), "holds no config.json")
    assert_refused(call("report"), "runs must be of one task")
    assert_refused(call("analyse", "gradients", finished), "runs must be of sequential or permuted MNIST")
    assert_refused(call("analyse", "gradients", digits, "--batches", "0"), "batches must")
    assert_refused(call("analyse", "gradients"), "needs the folders of runs")
    assert_refused(call("analyse", "width", digits), "analyse needs the name of an analysis")


# ---- demo


def test_demo(call: Call) -> None:
    for _ in range(2):  # the second takes the place of the first
        said = assert_done(call("demo", "--steps", "2", "--out", "show"))
        out = Path("show")
        assert {path.name for path in out.iterdir()} - {"tensorboard"} == FILES
        assert [line["step"] for line in lines(out)] == [2]
        assert f"mean squared error {read(out, 'result.json')['test']['test_mse']:.5f}" in said.out
        assert "curve.png" in said.out
        assert "0.167" in said.out
        assert_refused(call("train", "adding-100-fast", "--out", out), "holds something already")
    assert_done(call("evaluate", "show"))
    assert [path.name for path in Path().iterdir()] == ["show"]


def test_demo_does_not_take_the_place_of_another_run(finished: Path, call: Call) -> None:
    before = contents(finished)
    assert_refused(call("demo", "--steps", "2", "--out", finished), f"out: {finished} holds something")
    assert contents(finished) == before


# ---- completion


@pytest.fixture
def script(call: Call, tmp_path: Path) -> Path:
    path = tmp_path / "completion.bash"
    path.write_text(assert_done(call("completion", "bash")).out)
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
    assert completed(script, "indrnn", "train", "") == list(ROWS)
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
        *(command for command in COMMANDS if command not in ("train", "analyse", "bench", "completion")),
        *(f"analyse {kind}" for kind in ("gradients", "depth")),
        *(f"bench {kind}" for kind in ("layer", "network", "stream", "scale")),
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
