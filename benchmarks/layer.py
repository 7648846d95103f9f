"""Time of a layer's training step: the paper's complexity figure, with every comparable layer available.

Forward and backward with a loss over all steps, float32. Also: the layer compared with one without recurrence, the op's
backends with the reference, and memory; on a GPU, the kernels alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from indrnn import IndRNN, backends, recurrence
from indrnn.cli.bench import check_agreement, training_step

from .command import Benchmark, start
from .measure import Bench, kernel_time
from .peers import OUR_SRU, PEERS, THEIR_SRU, Loop, OutputOnly, same_as_sru_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIDDEN, BATCH = 128, 50
LENGTHS, LONG, COMPILED = (256, 512, 1024), 4096, 64
LSTM, LOOP = "torch.nn.LSTM", "IndRNN in a Python loop"
TOO_SLOW = 4
OURS = ("IndRNN, 1 layer", "IndRNN, 2 layers")
ORDER = (LSTM, "torch.nn.GRU", "torch.nn.RNN", *PEERS, LOOP, *OURS)
COLOURS = ("#3c3c3c", "#777777", "#b0b0b0", "#b5561c", "#d0783f", "#e8b48a", "#8a63a8", "#9fd0c4", "#1f6f8b", "#4fa3bf")


def run(bench: Bench) -> None:
    """Measure everything."""
    layer, (x, _) = IndRNN(2, HIDDEN, device=bench.device), _data(256, bench.device)
    check_agreement(layer, x)
    torch.testing.assert_close(layer(x)[0], Loop(layer)(x)[0])
    _lengths(bench)
    if not bench.quick:
        _compiled(bench)
    _without_recurrence(bench)
    _backends(bench)
    _memory(bench)
    if bench.device.type == "cuda":
        _kernels(bench)


def _models(bench: Bench) -> dict[str, nn.Module]:
    """All layers that can be measured here; says which cannot."""
    device = bench.device
    peers = {name: make(device, HIDDEN) for name, make in PEERS.items()}
    for name, peer in peers.items():
        if isinstance(peer, str):
            bench.say(f"left out: {name}: {peer}")
    ours, theirs = peers[OUR_SRU], peers[THEIR_SRU]
    if not isinstance(ours, str) and not isinstance(theirs, str):
        same_as_sru_package(ours, theirs)
    return {
        LSTM: nn.LSTM(2, HIDDEN, device=device),
        "torch.nn.GRU": nn.GRU(2, HIDDEN, device=device),
        "torch.nn.RNN": nn.RNN(2, HIDDEN, device=device),
        **{name: peer for name, peer in peers.items() if not isinstance(peer, str)},
        LOOP: Loop(IndRNN(2, HIDDEN, device=device)),
        OURS[0]: IndRNN(2, HIDDEN, device=device),
        OURS[1]: IndRNN(2, HIDDEN, num_layers=2, device=device),
    }


def _data(T: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Sequences, and the weights of all outputs in the loss."""
    return torch.rand(T, BATCH, 2, device=device), torch.rand(T * BATCH * HIDDEN, device=device)


def _title(T: int) -> str:
    return f"T = {T}: training step, 2 → {HIDDEN}, batch {BATCH}"


def _lengths(bench: Bench) -> None:
    models = _models(bench)
    for T in LENGTHS[:2] if bench.quick else (*LENGTHS, LONG):
        data = _data(T, bench.device)
        ratios = bench.compare(_title(T), LSTM, {name: training_step(model, *data) for name, model in models.items()})
        for name, ratio in ratios.items():
            if name != LSTM and ratio.median < 1 / TOO_SLOW:
                bench.say(f"\nleft out of longer sequences, {TOO_SLOW} times slower than {LSTM}: {name}")
                del models[name]


def _compiled(bench: Bench) -> None:
    """Time a compiled loop; a short one, as it is unrolled and compile time grows faster than quadratically in T."""
    data, name = _data(COMPILED, bench.device), "IndRNN in a loop under torch.compile"
    ours = IndRNN(2, HIDDEN, device=bench.device)
    models = {LSTM: nn.LSTM(2, HIDDEN, device=bench.device), LOOP: Loop(ours), OURS[0]: ours}
    candidates = {name: training_step(model, *data) for name, model in models.items()}
    try:
        compiled: Any = torch.compile(Loop(ours))
        torch.testing.assert_close(compiled(data[0])[0], ours(data[0])[0])
        step = training_step(compiled, *data)
        step()
        candidates[name] = step
    except Exception as error:  # a compiler that is missing, for one
        bench.say(f"\nleft out: the loop under torch.compile: {type(error).__name__}")
    bench.compare(_title(COMPILED), LSTM, candidates)


def _without_recurrence(bench: Bench) -> None:
    weights = torch.rand(784 * 32 * HIDDEN, device=bench.device)
    for input_gradient in (True, False):
        x = torch.rand(784, 32, HIDDEN, device=bench.device, requires_grad=input_gradient)
        kind = "with the input's gradient, as inside a network" if input_gradient else "without the input's gradient"
        models = {
            "Linear + ReLU": OutputOnly(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU())).to(bench.device),
            "IndRNN": IndRNN(HIDDEN, HIDDEN).to(bench.device),
        }
        steps = {name: training_step(model, x, weights) for name, model in models.items()}
        bench.compare(f"{HIDDEN} → {HIDDEN}, batch 32, T = 784, {kind}", "Linear + ReLU", steps, slower=True)


def _backends(bench: Bench) -> None:
    x = torch.rand(784, 32, HIDDEN, device=bench.device, requires_grad=True)
    u = torch.rand(HIDDEN, device=bench.device, requires_grad=True)
    weights = torch.rand(784 * 32 * HIDDEN, device=bench.device)

    def op(backend: str) -> Callable[[], Any]:
        def run() -> Any:
            h, _ = recurrence(x, u, backend=backend)
            return torch.autograd.grad(torch.dot(h.flatten(), weights), (x, u))

        return run

    interpreted = "triton" if os.environ.get("TRITON_INTERPRET") == "1" else ""
    names = [name for name, backend in backends(x).items() if backend.available and name != interpreted]
    for name in names:
        for a, b in zip(op(name)(), op("reference")(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * b.abs().max().item())
    title = f"the op alone, {HIDDEN} neurons, batch 32, T = 784: its backends"
    bench.compare(title, "reference", {name: op(name) for name in names})


def _memory(bench: Bench) -> None:
    """Peak memory in units of one (T, B, N) tensor, one of which is the gradient of the output."""
    T, B = 512, 32
    gradient, x = torch.rand(T, B, HIDDEN, device=bench.device), torch.rand(T, B, 2, device=bench.device)
    title = f"memory of a training step beyond input and parameters, T = {T}, batch {B}"
    bench.head(title, "IndRNN", "peak, in (T, B, N) tensors")
    for layers in (1, 2, 4):
        model = IndRNN(2, HIDDEN, num_layers=layers, device=bench.device)

        def run(model: nn.Module = model) -> None:
            torch.autograd.grad(model(x)[0], list(model.parameters()), gradient)

        peak = bench.peak_bytes(run) / gradient.nbytes
        bench.line(f"{layers} layer{'s' if layers > 1 else ''}", f"{peak:.2f}")
        bench.keep(title="memory", name=f"IndRNN, {layers} layers", tensors=peak)


def _kernels(bench: Bench) -> None:
    """Time a GPU's kernels alone, forward and backward without autograd."""
    bench.head(f"kernels alone, forward and backward, {HIDDEN} neurons, batch {BATCH}", "T", "backend", "µs")
    forward, backward = torch.ops.indrnn.recurrence, torch.ops.indrnn.recurrence_backward
    options = (None, None, None, "relu", False)
    for T in LENGTHS:
        x, u = torch.rand(T, BATCH, HIDDEN, device=bench.device), torch.rand(HIDDEN, device=bench.device)
        for name in ("triton", "scan"):

            def run(name: str = name, x: Tensor = x, u: Tensor = u) -> None:
                h, _ = forward(x, u, None, *options, name)
                backward(x, None, h, u, *options, name)

            took = kernel_time(run) * 1e6
            bench.line(T, name, f"{took:.1f}")
            bench.keep(title="kernels", name=name, T=T, us=took)


def draw(bench: Bench, path: Path) -> None:
    """Draw the paper's bar chart: time by length, and how many times faster than LSTM."""
    from indrnn.figures import new_figure, save_figure

    titles = {title: rows for title, rows in bench.titles().items() if title.startswith("T = ")}
    titles.pop(_title(COMPILED), None)
    figure, panels = new_figure(2, width=5.6)
    for axes, value, label in zip(
        panels, ("ms", "ratio"), ("ms for a training step", f"times faster than {LSTM}"), strict=True
    ):
        _bars(axes, list(titles.values()), value)
        axes.set(yscale="log", ylabel=label)
        axes.set_xticks(range(len(titles)), [title.partition(":")[0] for title in titles])
    panels[1].axhline(1, color="0.4", linewidth=0.8, linestyle="--")
    about = bench.machine()
    where = f"{about['threads']} CPU threads" if bench.device.type == "cpu" else about["gpu"]
    figure.suptitle(f"Training step, 2 → {HIDDEN}, batch {BATCH}, float32, {where}", fontsize=10)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    save_figure(figure, path)


def _bars(axes: Axes, groups: list[list[dict[str, Any]]], value: str) -> None:
    """Draw a group of bars for each length, and one colour for each layer."""
    names = [name for name in ORDER if any(row["name"] == name for rows in groups for row in rows)]
    width = 0.85 / len(names)
    for i, name in enumerate(names):
        bars = {k: row[value] for k, rows in enumerate(groups) for row in rows if row["name"] == name}
        middle = [bar["median"] for bar in bars.values()]
        spread = [[abs(bar[end] - bar["median"]) for bar in bars.values()] for end in ("low", "high")]
        across = [k + (i - len(names) / 2 + 0.5) * width for k in bars]
        style: dict[str, Any] = {"color": COLOURS[ORDER.index(name)], "error_kw": {"linewidth": 0.7}}
        drawn = axes.bar(across, middle, width, yerr=spread, label=name, **style)
        if value == "ratio" and name in OURS:
            axes.bar_label(drawn, [f"{ratio:.0f}×" for ratio in middle], fontsize=7, padding=2)


BENCHMARK = Benchmark("layer", 15, run, draw)
if __name__ == "__main__":
    start(BENCHMARK)
