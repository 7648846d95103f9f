"""The benchmarks run, and the memory they report is what is promised. Their timings are not tested."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from indrnn import IndRNN

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("input_size", [2, 64], ids=["narrow", "wide"])
def test_a_step_keeps_one_tensor_a_layer_and_holds_two_more_at_its_peak(
    layers: int, input_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In (T, B, N) tensors; the gradient that comes back to the output counts as one of the two."""
    T, B, N = 256, 8, 64
    model, x, weights = IndRNN(input_size, N, num_layers=layers), torch.rand(T, B, input_size), torch.rand(T * B * N)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
            kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    def step() -> tuple[Tensor, ...]:
        output, _ = model(x)
        return torch.autograd.grad(torch.dot(output.flatten(), weights), list(model.parameters()))

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        output, _ = model(x)
    assert sorted(kept.values())[-layers:] == [T * B * N] * layers
    assert sum(kept.values()) < (layers + 0.5) * T * B * N
    del output
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    peak = importlib.import_module("measure").peak_bytes(step) / (T * B * N * 4)
    assert layers < peak < layers + 2.5


@pytest.mark.slow
def test_the_layer_benchmark_runs_and_writes_its_numbers(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "layer.py"), "--rounds", "2", "--json", str(tmp_path / "layer.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "IndRNN, 2 layers" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["layer.json"]
