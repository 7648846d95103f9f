"""Denormal numbers are zero while the program trains or measures; in processes of their own, as threads keep it."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy, torch
import indrnn.bench.layer, indrnn.cli.train
from indrnn.cli import main

def left(threads):
    torch.set_num_threads(threads)
    numbers = torch.full((2**20,), 71362, dtype=torch.int32).view(torch.float32)  # 1e-40
    return int(numbers.mul(1).view(torch.int32).count_nonzero())

def look(*args, **kwargs):
    print("meanwhile", left(3))
    str(numpy.finfo(numpy.float32))  # it has a warning about that
    sys.exit(0)

indrnn.cli.train.train_recipe = indrnn.bench.layer.run = look
try:
    main(sys.argv[1:])
finally:
    print("afterwards", left(1))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="not every CPU can take them as zero")
@pytest.mark.parametrize("command", [("train", "adding-100-fast"), ("bench", "layer", "--quick")], ids=" ".join)
def test_denormals_are_zero_in_all_threads_meanwhile(command: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[-3:] == ["meanwhile 0", f"afterwards {2**20}", ""]
