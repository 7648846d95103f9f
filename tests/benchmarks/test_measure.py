"""How it is measured, and that the memory of a step is what is promised. Timings are not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.measure import Bench, Quantiles, quantiles
from benchmarks.worker import peak_bytes
from indrnn import IndRNN


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("input_size", [2, 64], ids=["narrow", "wide"])
def test_a_step_keeps_one_tensor_a_layer_and_holds_two_more_at_its_peak(layers: int, input_size: int) -> None:
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
    peak = peak_bytes(step) / (T * B * N * 4)
    assert layers < peak < layers + 2.5


def test_ratios_are_taken_within_a_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that only the candidates move, one three times as far as the other."""
    now = 0.0
    monkeypatch.setattr("indrnn.cli.bench.time.perf_counter", lambda: now)

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds

    bench = Bench("name", tmp_path, torch.device("cpu"), rounds=3)
    ratios = bench.compare("a title", "short", {"short": lambda: take(1.0), "long": lambda: take(3.0)})
    assert ratios["long"] == Quantiles(1 / 3, 1 / 3, 1 / 3)
    assert ratios["short"] == Quantiles(1.0, 1.0, 1.0)
    assert bench.rows[1]["ms"]["median"] == 3000.0
    bench.write("python -m benchmarks.name")
    kept = json.loads((tmp_path / "name.json").read_text())
    assert kept["rounds"] == 3
    assert kept["machine"]["torch"] == torch.__version__
    assert [row["name"] for row in kept["rows"]] == ["short", "long"]
    text = (tmp_path / "name.md").read_text()
    assert text.startswith("`python -m benchmarks.name`")
    assert capsys.readouterr().out.strip() in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name.json", "name.md"]


def test_quantiles() -> None:
    assert quantiles([5.0, 1.0, 2.0, 3.0, 4.0, 6.0]) == Quantiles(3.5, 2.0, 5.0)
    assert str(Quantiles(123.4, 12.34, 1.234)) == "123 [12.3, 1.23]"


def test_peak_of_memory_is_what_was_held_at_once() -> None:
    def run() -> None:
        first = torch.empty(1000, dtype=torch.float64)
        del first
        torch.empty(500, dtype=torch.float64)

    assert peak_bytes(run) == 8000


@pytest.mark.slow
def test_peak_of_memory_does_not_depend_on_what_an_earlier_run_left() -> None:
    """As a training step leaves its gradients, which the next one frees."""
    left: list[Tensor] = []

    def run() -> None:
        left.clear()
        first = torch.empty(3000, dtype=torch.float64)
        left.append(torch.empty(1000, dtype=torch.float64))
        del first

    assert {peak_bytes(run) for _ in range(12)} == {32000}
