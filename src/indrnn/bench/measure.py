"""Timing and memory, shared by all benchmarks: interleaved rounds, medians with quantiles, ratios."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..files import write_atomically
from ..training.folder import machine
from .worker import peak_bytes


@dataclass
class Quantiles:
    """The median and the 20 % and 80 % quantiles of a time or a ratio over rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.median)} [{short(self.low)}, {short(self.high)}]"


def short(value: float) -> str:
    """Three digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def quantiles(values: list[float]) -> Quantiles:
    """Median and 20 % and 80 % quantiles of values."""
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return Quantiles(statistics.median(values), fifths[0], fifths[3])


class Bench:
    """A benchmark: measures, prints tables as it goes, and keeps the results.

    Args:
        name: name of the benchmark and of its files.
        out: the output folder.
        device: the device to measure on.
        rounds: how often each candidate is timed.
        quick: whether it should take less than a minute.
    """

    def __init__(self, name: str, out: Path, device: torch.device, rounds: int, *, quick: bool = False) -> None:
        self.name, self.out, self.device, self.rounds, self.quick = name, out, device, rounds, quick
        self.rows: list[dict[str, Any]] = []
        self._text: list[str] = []

    def say(self, text: str = "") -> None:
        """Print a line, and keep it for the Markdown file."""
        print(text, flush=True)
        self._text.append(text)

    def start(self) -> None:
        """Print what it is measured on."""
        self.say(", ".join(f"{key} {value}" for key, value in self.machine().items()))

    def compare(
        self,
        title: str,
        base: str,
        candidates: Mapping[str, Callable[[], object]],
        *,
        slower: bool = False,
        rounds: int | None = None,
    ) -> dict[str, Quantiles]:
        """Time all candidates, and return the time of `base` over each one's (with `slower`, each one's over `base`'s).

        `rounds` is for candidates that take long; None for the benchmark's own number.

        Returns:
            The ratios.
        """
        raw = self.interleaved(candidates, rounds=rounds)
        head = f"time, as a multiple of {base}" if slower else f"times faster than {base}"
        self.say(f"\n{title}\n\n| | {head} [20 %, 80 %] | ms |\n|---|---|---|")
        ratios = {}
        for name, values in raw.items():
            pairs = zip(raw[base], values, strict=True)
            ratio = ratios[name] = quantiles([b / a if slower else a / b for a, b in pairs])
            took = quantiles(values)
            self.say(f"| {name} | {'1' if name == base else ratio} | {short(took.median)} |")
            self.rows.append({"title": title, "name": name, "base": base, "ms": asdict(took), "ratio": asdict(ratio)})
        return ratios

    def interleaved(
        self, candidates: Mapping[str, Callable[[], object]], warm_up: int = 2, *, rounds: int | None = None
    ) -> dict[str, list[float]]:
        """Milliseconds, round by round: each runs once a round, so that other load on the machine affects all alike."""
        raw: dict[str, list[float]] = {name: [] for name in candidates}
        for i in range(warm_up + (self.rounds if rounds is None else rounds)):
            for name, run in candidates.items():
                self.wait()
                start = time.perf_counter()
                run()
                self.wait()
                if i >= warm_up:
                    raw[name].append((time.perf_counter() - start) * 1e3)
        return raw

    def wait(self) -> None:
        """Wait for an accelerator to finish its work."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Peak of the memory that torch allocated during `run`."""
        return peak_bytes(run, self.device)

    def machine(self) -> dict[str, str]:
        """What the numbers are measured on."""
        about = machine()
        if self.device.type == "cuda":
            about["gpu"] = torch.cuda.get_device_name(self.device)
        return {"device": str(self.device), "threads": str(torch.get_num_threads()), **about}

    def write(self, command: str, **more: object) -> None:
        """Write NAME.json and NAME.md into the folder."""
        content = {"command": command, "machine": self.machine(), "rounds": self.rounds, **more, "rows": self.rows}
        text = "\n".join([f"`{command}`", "", *self._text, ""])
        write_atomically(self.out / f"{self.name}.json", (json.dumps(content, indent=1) + "\n").encode())
        write_atomically(self.out / f"{self.name}.md", text.encode())


def kernel_time(run: Callable[[], object], times: int = 20) -> float:
    """Seconds that a GPU's kernels take in `run`, without the host's work between them."""
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / times / 1e6
