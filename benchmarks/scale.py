"""Scaling of a training step's time and memory with T, batch, neurons, layers and threads, float32.

Forward and backward with a loss over all steps. Memory is torch's peak beyond the parameters and the input.
"""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path

import torch

from indrnn import IndRNN
from indrnn.cli.bench import training_step

from .command import Benchmark, start
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
Sizes = dict[int, tuple[int, int, int, int]]
"""By the value that grows: T, B, N and layers."""


def run(bench: Bench) -> None:
    """Measure everything."""
    _check_agreement(bench.device)
    steps = STEPS[:-2] if bench.quick else STEPS
    for recompute in (PIECE, None):  # the one of less memory first, for the process's peak
        title = "T" if recompute is None else f"T, {RECOMPUTED}"
        sizes: Sizes = {T: (T, 1, 128, 1) for T in steps if recompute is None or T > PIECE}
        raw = _measure(bench, title, sizes, recompute)
        _table(bench, title, "batch 1, 128 neurons, 1 layer" + (f", recompute={recompute}" if recompute else ""))
        _exponent(bench, title, raw)
        _longest(bench, title)
    end = -1 if bench.quick else None
    growing: dict[str, tuple[Sizes, str]] = {
        "batch": ({B: (512, B, 128, 1) for B in BATCHES[:end]}, "T = 512, 128 neurons, 1 layer"),
        "neurons": ({N: (512, 16, N, 1) for N in NEURONS[:end]}, "T = 512, batch 16, 1 layer"),
        "layers": ({layers: (512, 16, 128, layers) for layers in LAYERS[:end]}, "T = 512, batch 16, 128 neurons"),
    }
    for title, (sizes, fixed) in growing.items():
        _measure(bench, title, sizes)
        _table(bench, title, fixed)
    if bench.device.type == "cpu":
        most = torch.get_num_threads()
        for threads in dict.fromkeys((1, *(2**k for k in range(1, most.bit_length())), most)):
            torch.set_num_threads(threads)
            _measure(bench, "threads", {threads: (512, 64, 128, 2)})
        torch.set_num_threads(most)
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


def _measure(bench: Bench, title: str, sizes: Sizes, recompute: int | None = None) -> dict[str, list[float]]:
    """Time training steps of these sizes, interleaved, and then measure the memory of each.

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
        ms, peak = quantiles(raw[str(value)]), bench.peak_bytes(steps[str(value)])
        bench.keep(title=title, value=value, tensor_bytes=T * B * N * 4, ms=ms, peak_bytes=peak)
    return raw


def _table(bench: Bench, title: str, fixed: str) -> None:
    rows = bench.titles()[title]
    columns = ("time, smallest = 1 [20 %, 80 %]", "ms", "peak, in (T, B, N) tensors", "peak, MiB")
    bench.head(f"{title}: {fixed}", title.partition(",")[0], *columns)
    for row in rows:
        low, middle, high = (short(row["ms"][key] / rows[0]["ms"]["median"]) for key in ("low", "median", "high"))
        peak = row["peak_bytes"]
        cells = [f"{row['value']:,}", f"{middle} [{low}, {high}]", short(row["ms"]["median"])]
        bench.line(*cells, f"{peak / row['tensor_bytes']:.2f}", f"{peak / 2**20:.0f}")


def _exponent(bench: Bench, title: str, raw: dict[str, list[float]]) -> None:
    """Fit the exponent of T on logarithms in each round, by least squares, for tensors too large for any cache."""
    large = [row["value"] for row in bench.titles()[title] if row["tensor_bytes"] >= OUT_OF_CACHE]
    if len(large) < 2:
        bench.say("\nexponent of T: not fitted, for too few tensors are out of cache (without --quick they are)")
        return
    log_T = [math.log(T) for T in large]
    rounds = zip(*(map(math.log, raw[str(T)]) for T in large), strict=True)
    exponent = quantiles(statistics.linear_regression(log_T, log_ms).slope for log_ms in rounds)
    bench.say(f"\nexponent of T, fitted from T = {large[0]:,} on, in each round: {exponent}")
    bench.keep(**{"title": f"exponent of {title}", "exponent": exponent, "from": large[0]})


def _longest(bench: Bench, title: str) -> None:
    """Report the longest sequence's memory beyond that of inputs and outputs."""
    row = bench.titles()[title][-1]
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

    from indrnn.figures import new_figure, save_figure

    titles = bench.titles()
    names = ("T", "batch", "neurons", "layers", *(["threads"] if "threads" in titles else []))
    figure, panels = new_figure(len(names), width=3.0)
    for axes, name in zip(panels, names, strict=True):
        for title, style in ((name, "-"), (f"{name}, {RECOMPUTED}", "--")):
            rows = titles.get(title, [])
            across, label = [row["value"] for row in rows], title.removeprefix(name)
            time, memory = [row["ms"]["median"] for row in rows], [row["peak_bytes"] / 2**20 for row in rows]
            for what, values, colour in (("ms", time, "#1f6f8b"), ("MiB", memory, "#c26a2d")):
                if rows:
                    axes.plot(across, values, style, color=colour, marker="o", markersize=3, label=what + label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(name)
        axes.minorticks_off()
        ticks = [row["value"] for row in titles[name] if row["value"] not in (128_000, 512_000)]
        axes.set_xticks(ticks, [_brief(value) for value in ticks], fontsize=8)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("time (ms), peak of memory (MiB)")
    panels[0].legend(frameon=False, fontsize=7, handlelength=3.5)
    save_figure(figure, path)


def _brief(value: int) -> str:
    """A number as 64K or 1M."""
    return f"{value // 10**6}M" if value >= 10**6 else f"{value // 1000}K" if value >= 10**4 else f"{value}"


BENCHMARK = Benchmark("scale", 9, run, draw)
if __name__ == "__main__":
    start(BENCHMARK)
