"""What the tests of the command line share."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indrnn.cli.main import COMMANDS as KNOWN

SIZES = ["--length", "5", "--batch-size", "3", "--test-sequences", "11", "--model.hidden-size", "7"]
TRAIN = ["train", "adding-100-fast", *SIZES, "--threads", "1", "--evaluate-every", "8"]
"""A run of a second; the number of steps and the folder are to be added."""
FILES = {"config.json", "metrics.jsonl", "checkpoints", "result.json", "weights.safetensors", "model.json", "curve.png"}
COMMANDS = list(KNOWN)
DIGITS = ["train", "mnist-6-fast", "--model.hidden-size", "5", "--model.layers", "2", "--shrink", "4", "--batch-size"]
DIGITS += ["7", "--validation", "10", "--threads", "1"]
"""The number of steps and the folders are to be added."""

SMALL = ["--batch-size", "3", "--length", "5", "--embedding", "6", "--model.hidden-size", "6", "--model.blocks", "1"]
LOOP = ["--threads", "1", "--steps", "20", "--evaluate-every", "8"]
TEXT = "the cat sat on the mat and the rat sat on the cat\n" * 12


def train_text(unit: str) -> list[str]:
    """A run of a second on TEXT; its file and the folder are to be added."""
    tied = ["--model.last-transition", "6", "--jitter", "1"] if unit == "word" else []
    return ["train", f"text-{unit}", *SMALL, *tied, *LOOP]


@dataclass
class Said:
    """What came of a call."""

    code: int | str | None
    out: str
    err: str


Call = Callable[..., Said]


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


def to_go_on(said: str) -> list[str]:
    """The arguments of the command that an interrupted run says it goes on with."""
    found = re.search(r"to go on: (.*)$", said, re.MULTILINE)
    assert found is not None, said
    program, *arguments = shlex.split(found[1])
    assert program == "indrnn"
    return arguments


def options_of(call: Call, *command: str) -> set[str]:
    """The options that a command's help lists."""
    said = assert_done(call(*command, "--help"))
    return set(re.findall(r"(?:^|(?<=[\s│|]\s)|(?<=, ))(--[a-z][\w.-]*\w)", said.out, re.MULTILINE))
