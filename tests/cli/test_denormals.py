"""Denormal numbers are zero in the program, and as they were where its main is called; in processes of their own."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy, torch
import indrnn.cli.bench, indrnn.tasks.runs, indrnn.tasks.series.fit
from indrnn.cli import main

def left(threads):
    torch.set_num_threads(threads)
    numbers = torch.full((2**20,), 71362, dtype=torch.int32).view(torch.float32)  # 1e-40
    return int(numbers.mul(1).view(torch.int32).count_nonzero())

def look(*args, **kwargs):
    print(left(3))
    str(numpy.finfo(numpy.float32))  # it has a warning about that
    sys.exit(0)

indrnn.tasks.runs.train_recipe = indrnn.tasks.runs.open_run = indrnn.cli.bench.check_agreement = look
indrnn.tasks.runs.open_group = indrnn.tasks.series.fit.Fit.summary = look
"""
COMMANDS = ["train adding-100-fast", "fit data.npz", "predict run data.npz", "generate run", "bench", "explore run"]
COMMANDS += ["analyse weights run"]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="not every CPU can take them as zero")
@pytest.mark.parametrize("program", [True, False])
@pytest.mark.parametrize("command", COMMANDS)
def test_denormals_are_zero_in_all_threads_of_the_program(command: str, program: bool, tmp_path: Path) -> None:
    start = "main()" if program else "main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + start, *command.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[-2:] == ["0" if program else str(2**20), ""]
