"""Help and lists need no torch, whose import takes seconds; in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from indrnn.cli import main

try:
    main(sys.argv[1:])
finally:
    print([name for name in ("torch", "numpy", "matplotlib") if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        *("recipes", "--help", "train --help", "train mnist-6-fast --help", "train text-char --help"),
        *("train skeleton-6 --help", "fit --help", "predict --help", "generate --help", "evaluate --help"),
        *("report --help", "explore --help", "analyse --help", "analyse memory --help", "analyse distil --help"),
        *("prepare --help", "prepare ntu --help", "demo --help", "bench --help", "completion --help"),
    ],
)
def test_help_imports_no_torch(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *command.split()], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 2
    assert done.stderr == "[]\n"
