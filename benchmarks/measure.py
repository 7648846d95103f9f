"""Timing and memory, the same way for every benchmark: interleaved rounds, medians with quantiles, ratios."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler says on every use that it starts and stops

import torch
from torch.profiler import ProfilerActivity, profile

import indrnn


@dataclass
class Timing:
    """Milliseconds of one candidate: the median and the 20 % and 80 % quantiles over rounds."""

    median: float
    low: float
    high: float


def interleaved(
    candidates: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 3
) -> tuple[dict[str, Timing], dict[str, list[float]]]:
    """Run each candidate once a round, so that whatever else the machine does falls on all alike.

    Returns:
        The timings, and the raw milliseconds, round by round, for ratios within a round.
    """
    raw: dict[str, list[float]] = {name: [] for name in candidates}
    for i in range(warm_up + rounds):
        for name, run in candidates.items():
            _wait()
            start = time.perf_counter()
            run()
            _wait()
            elapsed = (time.perf_counter() - start) * 1e3
            if i >= warm_up:
                raw[name].append(elapsed)
    return {name: quantiles(values) for name, values in raw.items()}, raw


def _wait() -> None:
    """Until a GPU has done what it was given."""
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def kernel_time(run: Callable[[], object], times: int = 20) -> float:
    """Seconds that a GPU's kernels take in `run`, without what the host does between them."""
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / times / 1e6


def quantiles(values: list[float]) -> Timing:
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return Timing(statistics.median(values), fifths[0], fifths[3])


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that torch held at once during `run`, above what it held before."""
    run()
    gc.collect()
    if torch.get_default_device().type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def write_json(path: Path | None, **content: object) -> None:
    """Write the numbers, with the machine they are from, if there is a place for them; never half of them."""
    if path is None:
        return
    partial = path.with_name(f".partial-{path.name}")
    partial.write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":", 1)[1].strip() for line in info.open() if line.startswith("model name")), cpu)
    threads = torch.get_num_threads()
    gpu = torch.get_default_device().type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if gpu else f"{threads} CPU threads",
        "cpu": cpu,
        "threads": str(threads),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "indrnn": indrnn.__version__,
    }
