"""Freed memory stays where it is asked to; in processes of their own, for it holds for all of a process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch, indrnn.memory
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "keep":
    assert indrnn.memory.keep_memory() is True
before = resident()
tensors = [torch.ones(n * 2**20) for n in (5, 20) for _ in range(5)]  # 20 and 80 MiB each
del tensors
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc only")
def test_freed_memory_stays_where_asked() -> None:
    left = {
        mode: int(
            subprocess.run([sys.executable, "-c", PROGRAM, mode], check=True, capture_output=True, text=True).stdout
        )
        for mode in ("default", "keep")
    }
    assert left["keep"] > 450 * 2**20 > 50 * 2**20 > left["default"]
