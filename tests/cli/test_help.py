"""Help and lists need no torch, whose import takes seconds; in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
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


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        *((f"train mnist-6-fast --{name}", name) for name in ("keep-memory", "tensorboard", "curve", "overwrite")),
        *((f"train mnist-6-fast --{name}", name) for name in ("model.long-memory", "model.fused")),
        ("train ptb-char-dense --model.first-layer", "model.first-layer"),
        ("fit data.csv --dry-run", "dry-run"),
    ],
)
def test_the_help_of_a_flag_stands_beside_its_positive_name(command: str, flag: str) -> None:
    *words, _ = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "indrnn", *words, "--help"], capture_output=True, text=True, check=True
    )
    *group, name = flag.split(".")
    both = f"--{flag}, --{'.'.join([*group, f'no-{name}'])}"
    assert f"│ {both} " in done.stdout
    assert f"│ --{'.'.join([*group, f'no-{name}'])} " not in done.stdout


def test_a_flag_that_a_configuration_turned_off_is_accepted_both_ways(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"recipe": "adding-100", "training": {"tensorboard": false}}')
    for flag in ("--tensorboard", "--no-tensorboard"):
        command = ["train", "--config", str(config), flag, "--steps", "nonsense"]
        done = subprocess.run([sys.executable, "-m", "indrnn", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "nonsense" in done.stdout + done.stderr
        assert "Unrecognized" not in done.stdout + done.stderr
