"""Timing, memory, tables and files, shared by all benchmarks."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from indrnn.cli.bench import interleaved
from indrnn.files import write_atomically
from indrnn.training.folder import machine

from .worker import peak_bytes

Candidates = Mapping[str, Callable[[], object]]
"""What is timed, by name."""


@dataclass
class Quantiles:
    """The median and the 20 % and 80 % quantiles of a time or a ratio over rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.median)} [{short(self.low)}, {short(self.high)}]"

    def thousandths(self) -> str:
        """Format with three decimals, where differences of a few per cent matter."""
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def short(value: float) -> str:
    """Three digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def quantiles(values: Iterable[float]) -> Quantiles:
    """Median and 20 % and 80 % quantiles of values."""
    values = list(values)
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return Quantiles(statistics.median(values), fifths[0], fifths[3])


def ratios(over: Iterable[float], under: Iterable[float]) -> Quantiles:
    """Quantiles of the ratios within each round."""
    return quantiles(a / b for a, b in zip(over, under, strict=True))


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

    def head(self, title: str, *columns: str) -> None:
        """Print the title and the head of a table."""
        self.say(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")

    def line(self, *cells: object) -> None:
        """Print a row of a table."""
        self.say(f"| {' | '.join(map(str, cells))} |")

    def compare(
        self, title: str, base: str, candidates: Candidates, *, slower: bool = False, rounds: int | None = None
    ) -> dict[str, Quantiles]:
        """Time all candidates, and return the time of `base` over each one's (with `slower`, each one's over `base`'s).

        `rounds` is for candidates that take long; None for the benchmark's own number.
        """
        raw = self.interleaved(candidates, rounds)
        what = f"time, as a multiple of {base}" if slower else f"times faster than {base}"
        self.head(title, "", f"{what} [20 %, 80 %]", "ms")
        found = {}
        for name, ms in raw.items():
            found[name] = ratios(ms, raw[base]) if slower else ratios(raw[base], ms)
            time = quantiles(ms)
            self.line(name, 1 if name == base else found[name], short(time.median))
            self.keep(title=title, name=name, base=base, ms=time, ratio=found[name])
        return found

    def keep(self, **row: Any) -> dict[str, Any]:
        """Keep a row of numbers for the JSON file."""
        plain = {name: asdict(value) if isinstance(value, Quantiles) else value for name, value in row.items()}
        self.rows.append(plain)
        return plain

    def interleaved(self, candidates: Candidates, rounds: int | None = None) -> dict[str, list[float]]:
        """Milliseconds of each candidate, round by round."""
        ms = interleaved(list(candidates.values()), self.rounds if rounds is None else rounds, self.wait)
        return dict(zip(candidates, ms, strict=True))

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
        write_json(self.out / f"{self.name}.json", content)
        text = "\n".join([f"`{command}`", "", *self._text, ""])
        write_atomically(self.out / f"{self.name}.md", text.encode())

    def titles(self) -> dict[str, list[dict[str, Any]]]:
        """The kept rows by their titles."""
        titles: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            titles.setdefault(row["title"], []).append(row)
        return titles


def write_json(path: Path, content: object) -> None:
    """Write numbers to a file, which is never partial."""
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def kernel_time(run: Callable[[], object], times: int = 20) -> float:
    """Seconds that a GPU's kernels take in `run`, without the host's work between them."""
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / times / 1e6
