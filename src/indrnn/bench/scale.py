"""Scaling of a training step's time and memory with T, batch, neurons, layers and threads, float32.

Forward and backward with a loss over all steps. Memory is torch's peak beyond the parameters and the input.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from .. import IndRNN
from .layer import training_step
from .measure import Bench, quantiles, short

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

INPUTS, PIECE = 2, 4096
STEPS = (1000, 4000, 16_000, 64_000, 128_000, 256_000, 512_000, 1_000_000)
BATCHES, NEURONS, LAYERS = (1, 4, 16, 64, 256), (32, 128, 512, 2048), (1, 2, 4, 8, 16, 32)
OUT_OF_CACHE = 120 * 10**6  # bytes of one (T, B, N) tensor: four times a large cache
RECOMPUTED = "with recomputation"


def run(bench: Bench) -> None:
    """Measure everything."""
    _check_agreement(bench.device)
    steps = STEPS[:-2] if bench.quick else STEPS
    for recompute in (PIECE, None):  # the one of less memory first, for the process's peak
        title = "T" if recompute is None else f"T, {RECOMPUTED}"
        sizes = {T: (T, 1, 128, 1) for T in steps if recompute is None or T > PIECE}
        raw = _measure(bench, title, sizes, recompute)
        _table(bench, title, "batch 1, 128 neurons, 1 layer" + (f", recompute={recompute}" if recompute else ""))
        _exponent(bench, title, raw)
        _longest(bench, title)
    end = -1 if bench.quick else None
    _measure(bench, "batch", {B: (512, B, 128, 1) for B in BATCHES[:end]})
    _table(bench, "batch", "T = 512, 128 neurons, 1 layer")
    _measure(bench, "neurons", {N: (512, 16, N, 1) for N in NEURONS[:end]})
    _table(bench, "neurons", "T = 512, batch 16, 1 layer")
    _measure(bench, "layers", {layers: (512, 16, 128, layers) for layers in LAYERS[:end]})
    _table(bench, "layers", "T = 512, batch 16, 128 neurons")
    if bench.device.type == "cpu":
        given = torch.get_num_threads()
        for threads in dict.fromkeys((1, *(2**k for k in range(1, given.bit_length())), given)):
            torch.set_num_threads(threads)
            _measure(bench, "threads", {threads: (512, 64, 128, 2)})
        torch.set_num_threads(given)
        _table(bench, "threads", "T = 512, batch 64, 128 neurons, 2 layers")


def _check_agreement(device: torch.device) -> None:
    """Check output and gradients with recomputation."""
    whole, pieces = IndRNN(INPUTS, 128, device=device), IndRNN(INPUTS, 128, recompute=100, device=device)
    pieces.load_state_dict(whole.state_dict())
    x, weights = torch.rand(1050, 1, INPUTS, device=device), torch.rand(1050 * 128, device=device)
    for model in (whole, pieces):
        training_step(model, x, weights)()
    torch.testing.assert_close(pieces(x)[0], whole(x)[0])
    for a, b in zip(pieces.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4 * b.detach().abs().max().item())


def _measure(
    bench: Bench, title: str, sizes: dict[int, tuple[int, int, int, int]], recompute: int | None = None
) -> dict[str, list[float]]:
    """Time training steps of these sizes (T, B, N and layers), interleaved, and then measure the memory of each.

    Returns:
        The milliseconds, by size and round.
    """
    weights = torch.rand(max(T * B * N for T, B, N, _ in sizes.values()), device=bench.device)
    steps = {}
    for value, (T, B, N, layers) in sizes.items():
        model = IndRNN(INPUTS, N, layers, recompute=recompute, device=bench.device)
        steps[str(value)] = training_step(model, torch.rand(T, B, INPUTS, device=bench.device), weights[: T * B * N])
    raw = bench.interleaved(steps)
    for value, (T, B, N, _) in sizes.items():
        took, peak = quantiles(raw[str(value)]), bench.peak_bytes(steps[str(value)])
        row = {"title": title, "value": value, "tensor_bytes": T * B * N * 4, "ms": asdict(took), "peak_bytes": peak}
        bench.rows.append(row)
    return raw


def _table(bench: Bench, title: str, about: str) -> None:
    rows = [row for row in bench.rows if row["title"] == title]
    first = rows[0]
    bench.say(f"\n{title}: {about}\n")
    memory = "peak, in (T, B, N) tensors | peak, MiB"
    bench.say(f"| {title.partition(',')[0]} | time, smallest = 1 [20 %, 80 %] | ms | {memory} |\n|---|---|---|---|---|")
    for row in rows:
        low, middle, high = (row["ms"][key] / first["ms"]["median"] for key in ("low", "median", "high"))
        peak = row["peak_bytes"]
        cells = [f"{row['value']:,}", f"{short(middle)} [{short(low)}, {short(high)}]", short(row["ms"]["median"])]
        cells += [f"{peak / row['tensor_bytes']:.2f}", f"{peak / 2**20:.0f}"]
        bench.say(f"| {' | '.join(cells)} |")


def _exponent(bench: Bench, title: str, raw: dict[str, list[float]]) -> None:
    """Fit the exponent of T on logarithms in each round, by least squares, for tensors too large for any cache."""
    rows = [row for row in bench.rows if row["title"] == title and row["tensor_bytes"] >= OUT_OF_CACHE]
    if len(rows) < 2:
        bench.say("\nexponent of T: not fitted, for too few tensors are out of cache (without --quick they are)")
        return
    log_T = [math.log(row["value"]) for row in rows]
    rounds = zip(*(raw[str(row["value"])] for row in rows), strict=True)
    slopes = [statistics.linear_regression(log_T, [math.log(ms) for ms in each]).slope for each in rounds]
    exponent = quantiles(slopes)
    bench.say(f"\nexponent of T, fitted from T = {rows[0]['value']:,} on, in each round: {exponent}")
    bench.rows.append({"title": f"exponent of {title}", "exponent": asdict(exponent), "from": rows[0]["value"]})


def _longest(bench: Bench, title: str) -> None:
    """Report the longest sequence's memory beyond that of inputs and outputs."""
    row = [row for row in bench.rows if row["title"] == title][-1]
    row["beyond_bytes"] = row["peak_bytes"] - 2 * row["tensor_bytes"]
    beyond = f"{row['beyond_bytes'] / 1e6:.0f} MB beyond input, output and the output's gradient"
    whole = ""
    if resource is not None and bench.device.type == "cpu":
        units = 1 if sys.platform == "darwin" else 1024
        row["process_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * units
        whole = f"; the whole process at its peak {row['process_peak_bytes'] / 2**30:.2f} GiB"
    bench.say(f"T = {row['value']:,}: {beyond}{whole}")


def draw(bench: Bench, path: Path) -> None:
    """Draw time and memory over each, both axes logarithmic."""
    from matplotlib.ticker import LogLocator

    from ..figures import new_figure, save_figure

    titles = [title for title in dict.fromkeys(row["title"] for row in bench.rows) if "," not in title]
    titles = [title for title in titles if not title.startswith("exponent")]
    figure, panels = new_figure(len(titles), width=3.0)
    for axes, title in zip(panels, titles, strict=True):
        for kind, style in ((title, "-"), (f"{title}, {RECOMPUTED}", "--")):
            rows = [row for row in bench.rows if row["title"] == kind]
            label = "" if kind == title else f", {RECOMPUTED}"
            for what, colour, scale in (("ms", "#1f6f8b", 1.0), ("MiB", "#c26a2d", 2.0**20)):
                values = [row["ms"]["median"] if what == "ms" else row["peak_bytes"] / scale for row in rows]
                if values:
                    across = [row["value"] for row in rows]
                    axes.plot(across, values, style, color=colour, marker="o", markersize=3, label=what + label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(title)
        values = [row["value"] for row in bench.rows if row["title"] == title]
        axes.minorticks_off()
        values = [value for value in values if len(values) < 7 or value not in (128_000, 512_000)]
        axes.set_xticks(values, [_brief(value) for value in values], fontsize=8)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("time (ms), peak of memory (MiB)")
    panels[0].legend(frameon=False, fontsize=7, handlelength=3.5)
    save_figure(figure, path)


def _brief(value: int) -> str:
    """A number as 64K or 1M."""
    return f"{value // 10**6}M" if value >= 10**6 else f"{value // 1000}K" if value >= 10**4 else f"{value}"
