"""The Triton backend: its settings, and its results in Triton's interpreter, without a GPU (triton_interpreted.py)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from indrnn.ops import triton_backend

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_the_interpreter(which: str) -> None:
    """In a process of its own: Triton looks at the variable as it is imported."""
    tests = Path(__file__).with_name("triton_interpreted.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(tests)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("B", "N"), [(1, 1), (50, 128), (32, 128), (128, 2000), (1000, 3)])
@pytest.mark.parametrize("lanes", [32, 64])
def test_settings(B: int, N: int, dtype: torch.dtype, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "LANES", lanes)
    block, warps = triton_backend.blocks(B * N, N, dtype)
    assert block & (block - 1) == 0, "Triton takes powers of two"
    assert block == warps * lanes


def test_a_small_problem_is_spread_over_more_programs_than_a_gpu_has_multiprocessors() -> None:
    block, _ = triton_backend.blocks(50 * 128, 128, torch.float32)
    assert 50 * 128 // block >= 132


@pytest.mark.parametrize(("T", "chains"), [(0, 5), (1, 1), (5000, 6400), (784, 256000), (10**7, 1)])
def test_time_is_divided_into_parts_that_cover_it(T: int, chains: int) -> None:
    parts, span = triton_backend._parts(T, chains, 16)
    assert span % 16 == 0
    assert (parts - 1) * span <= max(T - 1, 0) < parts * span
    assert parts == 1 or parts * chains <= 2**18


def test_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "TRITON_INTERPRET=1" in (triton_backend.why_not(torch.zeros(1), "relu") or "")
    assert "not meta" in (triton_backend.why_not(torch.zeros(1, device="meta"), "relu") or "")


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", None)
    triton_backend._import_error.cache_clear()
    try:
        assert "Triton cannot be imported" in (triton_backend.why_not(torch.zeros(1), "relu") or "")
    finally:
        triton_backend._import_error.cache_clear()
