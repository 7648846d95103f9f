"""Time of a layer's training step: the paper's complexity figure, with every comparable layer available.

Forward and backward with a loss over all steps, float32. Also: the layer compared with one without recurrence, the op's
backends with the reference, and memory; on a GPU, the kernels alone with the predictions of docs/gpu.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import IndRNN, backends, recurrence
from ..ops.scan import cost
from .measure import Bench, kernel_time
from .peers import OUR_SRU, PEERS, THEIR_SRU, Loop, same_as_sru_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIDDEN, BATCH = 128, 50
LENGTHS, LONG, COMPILED = (256, 512, 1024), 4096, 64
LSTM = "torch.nn.LSTM"
TOO_SLOW = 4
OURS = ("IndRNN, 1 layer", "IndRNN, 2 layers")
ORDER = (LSTM, "torch.nn.GRU", "torch.nn.RNN", *PEERS, "IndRNN in a Python loop", *OURS)
COLOURS = ("#3c3c3c", "#777777", "#b0b0b0", "#b5561c", "#d0783f", "#e8b48a", "#8a63a8", "#9fd0c4", "#1f6f8b", "#4fa3bf")


class LinearReLU(nn.Module):
    """The layer without its recurrence.

    Args:
        size: features of input and output.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Every step's output, and no state."""
        return torch.relu(self.linear(x)), None


def training_step(model: nn.Module, x: Tensor, weights: Tensor) -> Callable[[], None]:
    """A training step: forward, a loss over all steps, backward."""

    def run() -> None:
        x.grad = None
        model.zero_grad(set_to_none=True)
        output = model(x)[0]
        torch.dot(output.flatten(), weights).backward()

    return run


def check_agreement(device: torch.device) -> None:
    """Check the layer against torch's RNN with a diagonal recurrent matrix and a Python loop, forward and backward."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # here numbers are compared; what is timed is as a user finds it
    ours, theirs = IndRNN(2, HIDDEN, device=device), nn.RNN(2, HIDDEN, nonlinearity="relu", device=device)
    w, u, b = (p.detach() for p in ours.parameters())
    theirs.load_state_dict(
        {"weight_ih_l0": w, "weight_hh_l0": torch.diag(u), "bias_ih_l0": b, "bias_hh_l0": torch.zeros_like(b)}
    )
    looped = IndRNN(2, HIDDEN, device=device)
    looped.load_state_dict(ours.state_dict())
    x, weights = torch.rand(256, BATCH, 2, device=device), torch.rand(256 * BATCH * HIDDEN, device=device)
    for model in (ours, theirs, loop := Loop(looped)):
        training_step(model, x, weights)()
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])
    torch.testing.assert_close(ours(x)[0], loop(x)[0])
    for mine, other, of_loop in zip(ours.parameters(), theirs.parameters(), looped.parameters(), strict=False):
        assert other.grad is not None
        expected = other.grad.diagonal() if mine is ours.weight_hh_l0 else other.grad
        torch.testing.assert_close(mine.grad, expected, rtol=1e-4, atol=0.0)
        torch.testing.assert_close(mine.grad, of_loop.grad, rtol=1e-4, atol=0.0)
    torch.backends.cudnn.allow_tf32 = allowed


def run(bench: Bench) -> None:
    """Measure everything."""
    check_agreement(bench.device)
    _lengths(bench)
    if not bench.quick:
        _compiled(bench)
    _without_recurrence(bench)
    _backends(bench)
    _memory(bench)
    if bench.device.type == "cuda":
        _kernels(bench)


def _lengths(bench: Bench) -> None:
    device = bench.device
    models: dict[str, nn.Module] = {
        LSTM: nn.LSTM(2, HIDDEN, device=device),
        "torch.nn.GRU": nn.GRU(2, HIDDEN, device=device),
        "torch.nn.RNN": nn.RNN(2, HIDDEN, device=device),
    }
    made = {name: make(device, HIDDEN) for name, make in PEERS.items()}
    for name, peer in made.items():
        if isinstance(peer, str):
            bench.say(f"left out: {name}: {peer}")
        else:
            models[name] = peer
    ours, theirs = made[OUR_SRU], made[THEIR_SRU]
    if not isinstance(ours, str) and not isinstance(theirs, str):
        same_as_sru_package(ours, theirs)
    loop = Loop(IndRNN(2, HIDDEN, device=device))
    models |= {
        "IndRNN in a Python loop": loop,
        "IndRNN, 1 layer": IndRNN(2, HIDDEN, device=device),
        "IndRNN, 2 layers": IndRNN(2, HIDDEN, num_layers=2, device=device),
    }
    for T in LENGTHS[:2] if bench.quick else (*LENGTHS, LONG):
        x, weights = torch.rand(T, BATCH, 2, device=device), torch.rand(T * BATCH * HIDDEN, device=device)
        steps = {name: training_step(model, x, weights) for name, model in models.items()}
        bench.compare(f"T = {T}: training step, 2 → {HIDDEN}, batch {BATCH}", LSTM, steps)
        for row in bench.rows[-len(steps) :]:
            if row["name"] != LSTM and row["ratio"]["median"] < 1 / TOO_SLOW:
                bench.say(f"\nleft out of longer sequences, {TOO_SLOW} times slower than {LSTM}: {row['name']}")
                del models[row["name"]]


def _compiled(bench: Bench) -> None:
    """Time a compiled loop; a short one, as it is unrolled and compile time grows faster than quadratically in T."""
    x = torch.rand(COMPILED, BATCH, 2, device=bench.device)
    weights = torch.rand(COMPILED * BATCH * HIDDEN, device=bench.device)
    ours = IndRNN(2, HIDDEN, device=bench.device)
    candidates = {
        "torch.nn.LSTM": training_step(nn.LSTM(2, HIDDEN, device=bench.device), x, weights),
        "IndRNN in a Python loop": training_step(Loop(ours), x, weights),
        "IndRNN, 1 layer": training_step(ours, x, weights),
    }
    try:
        compiled: Any = torch.compile(Loop(ours))
        torch.testing.assert_close(compiled(x)[0], ours(x)[0])
        candidates["IndRNN in a loop under torch.compile"] = training_step(compiled, x, weights)
        candidates["IndRNN in a loop under torch.compile"]()
    except Exception as error:  # a compiler that is missing, for one
        bench.say(f"\nleft out: the loop under torch.compile: {type(error).__name__}")
        candidates.pop("IndRNN in a loop under torch.compile", None)
    bench.compare(f"T = {COMPILED}: training step, 2 → {HIDDEN}, batch {BATCH}", LSTM, candidates)


def _without_recurrence(bench: Bench) -> None:
    weights = torch.rand(784 * 32 * HIDDEN, device=bench.device)
    for input_gradient in (True, False):
        x = torch.rand(784, 32, HIDDEN, device=bench.device, requires_grad=input_gradient)
        kind = "with the input's gradient, as inside a network" if input_gradient else "without the input's gradient"
        bench.compare(
            f"{HIDDEN} → {HIDDEN}, batch 32, T = 784, {kind}",
            "Linear + ReLU",
            {
                "Linear + ReLU": training_step(LinearReLU(HIDDEN).to(bench.device), x, weights),
                "IndRNN": training_step(IndRNN(HIDDEN, HIDDEN, device=bench.device), x, weights),
            },
            slower=True,
        )


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
    unit = T * B * HIDDEN * 4
    gradient, x = torch.rand(T, B, HIDDEN, device=bench.device), torch.rand(T, B, 2, device=bench.device)
    bench.say(f"\nmemory of a training step beyond input and parameters, T = {T}, batch {B}\n")
    bench.say("| IndRNN | peak, in (T, B, N) tensors |\n|---|---|")
    for layers in (1, 2, 4):
        model = IndRNN(2, HIDDEN, num_layers=layers, device=bench.device)

        def run(model: nn.Module = model) -> None:
            torch.autograd.grad(model(x)[0], list(model.parameters()), gradient)

        peak = bench.peak_bytes(run) / unit
        bench.say(f"| {layers} layer{'s' if layers > 1 else ''} | {peak:.2f} |")
        bench.rows.append({"title": "memory", "name": f"IndRNN, {layers} layers", "tensors": peak})


def _kernels(bench: Bench) -> None:
    """Time the kernels alone, forward and backward without autograd, compared with the predictions of docs/gpu.md."""
    bench.say(f"\nkernels alone, forward and backward, {HIDDEN} neurons, batch {BATCH}\n")
    bench.say("| T | backend | µs | predicted for an A100 | for an H100 |\n|---|---|---|---|---|")
    forward, backward = torch.ops.indrnn.recurrence, torch.ops.indrnn.recurrence_backward
    options = (None, None, None, "relu", False)
    for T in LENGTHS:
        x, u = torch.rand(T, BATCH, HIDDEN, device=bench.device), torch.rand(HIDDEN, device=bench.device)
        for i, name in enumerate(("triton", "scan")):

            def run(name: str = name, x: Tensor = x, u: Tensor = u) -> None:
                h, _ = forward(x, u, None, *options, name)
                backward(x, None, h, u, *options, name)

            predicted = [cost.estimate(T, BATCH * HIDDEN, 4, device)[i] * 1e6 for device in (cost.A100, cost.H100)]
            took = kernel_time(run) * 1e6
            bench.say(f"| {T} | {name} | {took:.1f} | {predicted[0]:.0f} | {predicted[1]:.0f} |")
            bench.rows.append({"title": "kernels", "name": name, "T": T, "us": took, "predicted_us": predicted})


def draw(bench: Bench, path: Path) -> None:
    """Draw the paper's bar chart: time by length, and how many times faster than LSTM."""
    from ..figures import new_figure, save_figure

    rows = [row for row in bench.rows if row["title"].startswith("T = ") and f"T = {COMPILED}:" not in row["title"]]
    titles = list(dict.fromkeys(row["title"] for row in rows))
    names = list(dict.fromkeys(row["name"] for row in rows))
    figure, (left, right) = new_figure(2, width=5.6)
    for axes, what in ((left, "ms"), (right, "ratio")):
        _bars(axes, {(row["title"], row["name"]): row for row in rows}, titles, names, what)
    left.set_ylabel("ms for a training step")
    right.set_ylabel(f"times faster than {LSTM}")
    right.axhline(1, color="0.4", linewidth=0.8, linestyle="--")
    about = bench.machine()
    where = f"{about['threads']} CPU threads" if bench.device.type == "cpu" else about["gpu"]
    figure.suptitle(f"Training step, 2 → {HIDDEN}, batch {BATCH}, float32, {where}", fontsize=10)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    save_figure(figure, path)


def _bars(
    axes: Axes, rows: dict[tuple[str, str], dict[str, Any]], titles: list[str], names: list[str], what: str
) -> None:
    width = 0.85 / len(names)
    for i, name in enumerate(names):
        at = [k for k, title in enumerate(titles) if (title, name) in rows]
        values = [rows[titles[k], name][what] for k in at]
        middle = [v["median"] for v in values]
        spread = [[v["median"] - v["low"] for v in values], [v["high"] - v["median"] for v in values]]
        across = [k + (i - len(names) / 2 + 0.5) * width for k in at]
        colour = COLOURS[ORDER.index(name)]
        bars = axes.bar(across, middle, width, yerr=spread, color=colour, label=name, error_kw={"linewidth": 0.7})
        if what == "ratio" and name in OURS:
            axes.bar_label(bars, [f"{value:.0f}×" for value in middle], fontsize=7, padding=2)
    axes.set_yscale("log")
    axes.set_xticks(range(len(titles)), [title.partition(":")[0] for title in titles])
