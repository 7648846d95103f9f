"""How long one training step of a layer takes, beside LSTM, beside no recurrence at all, and beside the reference.

Forward and backward with a loss over all steps, float32. Run `python benchmarks/layer.py`; `--json FILE` keeps what
it measured. With `--device cuda` it is the GPU's kernels beside cuDNN's LSTM.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from measure import Timing, interleaved, kernel_time, machine, peak_bytes, quantiles, write_json
from torch import Tensor, nn

from indrnn import IndRNN, backends, keep_memory, recurrence
from indrnn.ops import scan

HIDDEN = 128
LENGTHS = (256, 512, 1024)


class LinearReLU(nn.Module):
    """The layer without its recurrence."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, hidden_size)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Every step's output, and no state."""
        return torch.relu(self.linear(x)), None


def training_step(model: nn.Module, x: Tensor, weights: Tensor) -> Callable[[], None]:
    """Forward, a loss to which every step's output adds, backward."""

    def run() -> None:
        x.grad = None
        model.zero_grad(set_to_none=True)
        output = model(x)[0]
        torch.dot(output.flatten(), weights).backward()

    return run


def check_agreement() -> None:
    """The layer equals torch's RNN with a diagonal recurrent matrix, forward and backward, at a benchmark's size."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # here numbers are compared; what is timed is as a user finds it
    ours, theirs = IndRNN(2, HIDDEN), nn.RNN(2, HIDDEN, nonlinearity="relu")
    w, u, b = (p.detach() for p in ours.parameters())
    theirs.load_state_dict(
        {"weight_ih_l0": w, "weight_hh_l0": torch.diag(u), "bias_ih_l0": b, "bias_hh_l0": torch.zeros(HIDDEN)}
    )
    x, weights = torch.rand(256, 50, 2), torch.rand(256 * 50 * HIDDEN)
    for model in (ours, theirs):
        training_step(model, x, weights)()
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=False):
        assert other.grad is not None
        expected = other.grad.diagonal() if mine is ours.weight_hh_l0 else other.grad
        torch.testing.assert_close(mine.grad, expected, rtol=1e-4, atol=0.0)
    torch.backends.cudnn.allow_tf32 = allowed


class Report:
    """Prints ratios as they are measured, and keeps them."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.rows: list[dict[str, Any]] = []

    def compare(self, title: str, base: str, candidates: dict[str, Callable[[], object]], slower: bool = False) -> None:
        """Measure all, and give `base`'s time over each other's (with `slower`, each other's over `base`'s)."""
        timings, raw = interleaved(candidates, self.rounds)
        print(f"\n{title}")
        for name, timing in timings.items():
            pairs = list(zip(raw[base], raw[name], strict=True))
            ratio = quantiles([b / a if slower else a / b for a, b in pairs])
            shown = "" if name == base else f"   {self._ratio(ratio)} {'its time' if slower else 'faster'}"
            print(f"  {name:34} {timing.median:8.2f} ms  [{timing.low:.2f}, {timing.high:.2f}]{shown}")
            self.rows.append({"title": title, "name": name, "base": base, "ms": asdict(timing), "ratio": asdict(ratio)})

    @staticmethod
    def _ratio(ratio: Timing) -> str:
        return f"{ratio.median:6.2f}× [{ratio.low:.2f}, {ratio.high:.2f}]"


def measure(report: Report) -> None:
    for T in LENGTHS:
        x, weights = torch.rand(T, 50, 2), torch.rand(T * 50 * HIDDEN)
        models = {
            "torch.nn.LSTM, 1 layer": nn.LSTM(2, HIDDEN),
            "IndRNN, 1 layer": IndRNN(2, HIDDEN),
            "IndRNN, 2 layers": IndRNN(2, HIDDEN, num_layers=2),
        }
        report.compare(
            f"2 → 128, batch 50, T = {T}: training step against a one-layer LSTM",
            "torch.nn.LSTM, 1 layer",
            {name: training_step(model, x, weights) for name, model in models.items()},
        )
    weights = torch.rand(784 * 32 * HIDDEN)
    for input_gradient in (True, False):
        x = torch.rand(784, 32, HIDDEN, requires_grad=input_gradient)
        kind = "with the input's gradient, as inside a network" if input_gradient else "without the input's gradient"
        report.compare(
            f"128 → 128, batch 32, T = 784, {kind}: against no recurrence",
            "Linear + ReLU",
            {
                "Linear + ReLU": training_step(LinearReLU(HIDDEN, HIDDEN), x, weights),
                "IndRNN": training_step(IndRNN(HIDDEN, HIDDEN), x, weights),
            },
            slower=True,
        )
    x, u = torch.rand(784, 32, HIDDEN, requires_grad=True), torch.rand(HIDDEN, requires_grad=True)

    def op(backend: str) -> Callable[[], object]:
        def run() -> object:
            h, _ = recurrence(x, u, backend=backend)
            return torch.autograd.grad(torch.dot(h.flatten(), weights), (x, u))

        return run

    names = [name for name, backend in backends(x).items() if backend.available]
    for name in names:
        for a, b in zip(op(name)(), op("reference")(), strict=True):  # type: ignore[call-overload]
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * b.abs().max().item())
    report.compare(
        "the op alone, 128 neurons, batch 32, T = 784: each backend against the reference",
        "reference",
        {name: op(name) for name in names},
    )


def measure_kernels() -> None:
    """What docs/gpu.md predicts: the time of the kernels alone, forward and backward, without autograd around them."""
    print("\nkernels alone, forward and backward, 128 neurons, batch 50, µs (predicted for an A100 and an H100)")
    forward, backward = torch.ops.indrnn.recurrence, torch.ops.indrnn.recurrence_backward
    options = (None, None, None, "relu", False)
    for T in LENGTHS:
        x, u = torch.rand(T, 50, HIDDEN), torch.rand(HIDDEN)
        for i, name in enumerate(("triton", "scan")):

            def run(name: str = name, x: Tensor = x, u: Tensor = u) -> None:
                h, _ = forward(x, u, None, *options, name)
                backward(x, None, h, u, *options, name)

            predicted = [scan.estimate(T, 50 * HIDDEN, 4, device)[i] * 1e6 for device in (scan.A100, scan.H100)]
            print(f"  T = {T}, {name:8} {kernel_time(run) * 1e6:8.1f}   ({predicted[0]:.0f}, {predicted[1]:.0f})")


def measure_memory() -> None:
    """In units of one (T, B, N) tensor; the gradient that comes back to the output is one of them."""
    T, B = 512, 32
    unit = T * B * HIDDEN * 4
    gradient = torch.rand(T, B, HIDDEN)
    print(f"\nmemory of a training step beyond input and parameters, in (T, B, N) tensors (T = {T}, batch {B})")
    for layers in (1, 2, 4):
        model, x = IndRNN(2, HIDDEN, num_layers=layers), torch.rand(T, B, 2)

        def run(model: nn.Module = model, x: Tensor = x) -> None:
            torch.autograd.grad(model(x)[0], list(model.parameters()), gradient)

        print(f"  IndRNN, {layers} layer{'s' if layers > 1 else ' '}  peak {peak_bytes(run) / unit:.2f}")


def draw(report: Report, path: Path) -> None:
    """Draw the ratios to the LSTM, with their quantiles."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.0), layout="constrained")
    for place, (name, colour) in enumerate({"IndRNN, 1 layer": "#1f6f8b", "IndRNN, 2 layers": "#99c1d0"}.items()):
        ratios = [row["ratio"] for row in report.rows if row["name"] == name]
        across = [i + 0.4 * place for i in range(len(ratios))]
        heights = [r["median"] for r in ratios]
        spread = [[r["median"] - r["low"] for r in ratios], [r["high"] - r["median"] for r in ratios]]
        bars = axes.bar(across, heights, 0.36, yerr=spread, color=colour, ecolor="#444444", capsize=3, label=name)
        axes.bar_label(bars, [f"{height:.0f}×" for height in heights], label_type="center", color="white")
    axes.axhline(1, color="#444444", linewidth=0.8, linestyle="--", label="torch.nn.LSTM, 1 layer")
    axes.set_xticks([i + 0.2 for i in range(3)], [f"T = {T}" for T in LENGTHS])
    axes.set_ylabel("times faster than LSTM")
    axes.set_title(f"Training step, 2 → 128, batch 50, float32, {machine()['device']}", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    partial = path.with_name(f".partial-{path.name}")
    figure.savefig(partial, dpi=150)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="rounds of interleaved timing (default 25)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--figure", type=Path, help="draw the comparison with LSTM here (.png or .svg)")
    parser.add_argument("--device", default="cpu", help="where to measure: cpu, cuda (default cpu)")
    options = parser.parse_args()
    try:
        torch.set_default_device(options.device)
        torch.zeros(1)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {options.device} cannot be used: {str(error).splitlines()[0]}")
    torch.manual_seed(0)
    keep_memory()  # for all that is measured here alike
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    check_agreement()
    report = Report(options.rounds)
    measure(report)
    measure_memory()
    if torch.get_default_device().type == "cuda":
        measure_kernels()
    if options.figure is not None:
        draw(report, options.figure)
    write_json(options.json, rounds=options.rounds, rows=report.rows)


if __name__ == "__main__":
    main()
