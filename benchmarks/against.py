"""Comparison of two installed versions of indrnn, in alternating rounds, as a machine's speed drifts between runs.

Each version runs `worker.py` in its own process, with its own Python interpreter, on the same inputs and weights and
with the same number of threads. One computes while the other waits; which goes first alternates (A B B A ...), and
ratios are taken within a round.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import indrnn
from indrnn.training import RunError

from .measure import Bench, Quantiles, quantiles, ratios, short

WORKER = Path(__file__).with_name("worker.py")
PYTHON = Path(".venv/Scripts/python.exe" if os.name == "nt" else ".venv/bin/python")
LIMIT = 1.03
"""Ratio from which a case is named at the end."""
PAUSE = 0.05
"""Seconds before each measurement. OpenMP's threads spin for some milliseconds after their last work, on cores that the
other process needs."""
LEAST_MS, MOST_CALLS = 40.0, 1000
"""Time that a measurement takes at least, by several calls of what takes less; and the most calls."""
ENOUGH = 15
"""Rounds with which a verdict on time comes without a warning."""
PATIENCE = 10.0
"""Seconds for a process that answers no more to end."""
FULL, HALF, DEEP, DEEPEST = 1e-4, 1e-2, 3e-3, 2e-2
"""How far results may be from the other version's, relative to the largest number of the tensor: in float32, in
bfloat16, and in float32 through 6 to 11 and through 40 layers with norms, where other orders of summation differ by a
quarter of that already (the backends native and scan of one version do)."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    title: str
    """Title of the row."""
    make: str
    """Function of `cases.py` that makes it."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of that function."""
    tolerance: float = FULL
    """Largest relative difference of results."""
    quick: bool = False
    """Whether `--quick` includes it."""


_OP = {"T": 784, "B": 32, "N": 128}
_SHORT, _MIDDLE, _LONG = ({"T": T, "B": 50, "N": 128, "inputs": 2} for T in (256, 512, 1024))
_PLAIN, _RESIDUAL, _DENSE = ({"network": name, "T": 784, "B": 32} for name in ("plain", "residual", "dense"))
CASES: dict[str, tuple[Case, ...]] = {
    "layer": (
        Case("2 → 128, batch 50, T = 256", "layer", _SHORT, quick=True),
        Case("2 → 128, batch 50, T = 512", "layer", _MIDDLE),
        Case("2 → 128, batch 50, T = 1024", "layer", _LONG),
        Case("2 → 128, batch 50, T = 1024, 2 layers", "layer", {**_LONG, "layers": 2}),
        Case("2 → 128, batch 50, T = 1024, lengths", "layer", {**_LONG, "lengths": True}),
        Case("2 → 128, batch 50, T = 1024, tanh", "layer", {**_LONG, "nonlinearity": "tanh"}),
        Case("128 → 128, batch 32, T = 784, input's gradient", "layer", {**_OP, "inputs": 128, "input_gradient": True}),
        Case("32 → 32, batch 8, T = 20", "layer", {"T": 20, "B": 8, "N": 32, "inputs": 32}, quick=True),
        Case("512 → 512, batch 1, T = 400", "layer", {"T": 400, "B": 1, "N": 512, "inputs": 512}),
        Case("one step of a stream, IndRNN, 128 units", "stream", {"N": 128, "cell": False}),
        Case("one step of a stream, IndRNNCell, 128 units", "stream", {"N": 128, "cell": True}, quick=True),
        Case("the op, (784, 32, 128), forward", "op", {**_OP, "backward": False}),
        Case("the op, (784, 32, 128)", "op", _OP, quick=True),
        Case("the op, (784, 32, 128), bfloat16", "op", {**_OP, "dtype": "bfloat16"}, HALF),
        Case("the op, (400, 1, 512)", "op", {"T": 400, "B": 1, "N": 512}),
    ),
    "network": (
        Case("plain, 6 layers of 128", "training", _PLAIN, DEEP, quick=True),
        Case("plain, dropout", "training", {**_PLAIN, "dropout": True}, DEEP),
        Case("plain, evaluation", "evaluation", _PLAIN, DEEP, quick=True),
        Case("residual, 5 blocks of two, 128", "training", _RESIDUAL, DEEP),
        Case("residual, dropout", "training", {**_RESIDUAL, "dropout": True}, DEEP),
        Case("dense, k = 16", "training", _DENSE, DEEPEST),
        Case("dense, dropout", "training", {**_DENSE, "dropout": True}, DEEPEST),
    ),
}
"""Cases of each benchmark that compares versions."""
UNLESS_SAID = {
    "layer": "forward and backward, unless said",
    "network": "training steps with batch 32 and T = 784, unless said",
}


class CaseError(Exception):
    """A version cannot do what a case asks for."""


class Version:
    """A version of indrnn in a process of its own.

    Args:
        name: its name in messages.
        python: its interpreter.
        log: the file for its stderr.
        arguments: arguments of `worker.py`.
    """

    def __init__(self, name: str, python: Path, log: Path, arguments: list[str]) -> None:
        self.name, self.python, self._log = name, python, log
        self.about: dict[str, Any] = {}
        self.package = Path()
        # -P and no PYTHONPATH: indrnn is the one that is installed, and nothing beside the program is imported for it.
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        with log.open("wb") as stderr:
            try:
                self._process = subprocess.Popen(
                    [python, "-P", WORKER, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=environment,
                    text=True,
                )
            except OSError as error:
                raise ValueError(f"against: {python} cannot be run: {error.strerror}") from None

    def ask(self, request: str, doing: str, **arguments: object) -> Any:
        """Send a request to `worker.Worker`; return its answer.

        Raises:
            CaseError: if it cannot be done.
            RunError: if the process died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([request, arguments]) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            fate = self._fate()
            raise RunError(f"against: the process of {self.name} {fate} at {doing}: {self._last_words()}") from None
        if "error" in answer:
            raise CaseError(f"{self.name}: {answer['error']}")
        return answer["answer"]

    def greet(self, within: Path) -> None:
        """Ask for its version, and check that it is the one in this folder."""
        try:
            self.about = self.ask("hello", "its start")
        except RunError:
            raise ValueError(f"against: {self.python} cannot import indrnn: {self._last_words()}") from None
        self.package = Path(self.about.pop("file")).resolve().parent
        if not self.package.is_relative_to(within.resolve()):
            raise ValueError(f"against: {self.python} imports indrnn from {self.package}, which is not in {within}")
        self.about["revision"] = _revision(self.package)

    def close(self) -> None:
        """Kill the process, whatever it does: it holds nothing that is needed."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # of what was not sent yet
                pipe.close()

    def _fate(self) -> str:
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "gave no answer"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


class Pair(NamedTuple):
    """The two versions compared."""

    this: Version
    other: Version


@contextmanager
def versions(checkout: Path, device: torch.device, *, keep_memory: bool = False) -> Iterator[Pair]:
    """This version and that of a checkout, each in its own process; both processes are ended on exit."""
    if not checkout.is_dir():
        raise ValueError(f"against: no such folder: {checkout}")
    python = (checkout / PYTHON).absolute()
    if not python.is_file():
        raise ValueError(f"against: {checkout} has no {PYTHON}: make it ready with `make -C {checkout} .venv/.ready`")
    arguments = [str(device), str(torch.get_num_threads()), "keep" if keep_memory else "free"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started: list[Version] = []
        for name, interpreter in (("this version", Path(sys.executable)), (str(checkout), python)):
            started.append(Version(name, interpreter, folder / f"{len(started)}.txt", arguments))
            stack.callback(started[-1].close)
        pair = Pair(*started)
        pair.this.greet(Path(indrnn.__file__).parent)
        pair.other.greet(checkout)
        yield pair


def compare(bench: Bench, name: str, pair: Pair) -> None:
    """Measure every case of a benchmark, and report at the end which became slower or larger."""
    for label, version in zip(("this version", "the other"), pair, strict=True):
        bench.say(f"{label}: " + ", ".join(f"{key} {value}" for key, value in version.about.items()))
    if pair.this.package == pair.other.package:
        bench.say("both are the same installation: ratios show how far the measurement itself spreads")
    columns = ["", "ms, this", "ms, other", "this / other [20 %, 80 %]"]
    columns += ["peak MiB, this", "peak MiB, other", "this / other", "results differ by", "allowed"]
    bench.head(f"{name}, this version beside the other: {UNLESS_SAID[name]}", *columns)
    remarks = []
    for case in CASES[name]:
        if bench.quick and not case.quick:
            continue
        try:
            row = bench.keep(**measure(case, pair, bench.rounds))
        except CaseError as error:
            remarks.append(f"left out: {case.title}: {error}")
            continue
        peak = row["peak_bytes"]
        cells = [short(row["ms"][side]["median"]) for side in peak]
        cells += [Quantiles(**row["ratio"]).thousandths(), *(short(size / 2**20) for size in peak.values())]
        cells += [f"{peak['this'] / peak['other']:.3f}" if peak["other"] else "–", _difference(row)]
        bench.line(case.title, *cells, f"{case.tolerance:.0e}")
    if bench.rounds < ENOUGH:
        remarks.append(f"{bench.rounds} rounds are too few to tell some per cent of time")
    bench.say("\n" + "\n".join([*remarks, *verdict(bench.rows)]))


def measure(case: Case, pair: Pair, rounds: int) -> dict[str, Any]:
    """Compare the results of a case, time it, and measure its peak memory."""
    doing = f'"{case.title}"'
    for version in pair:
        version.ask("make", doing, name=case.make, sizes=dict(case.sizes))
    difference = differ(*(_results(version, doing) for version in pair))

    def timed(version: Version, calls: int) -> float:
        time.sleep(PAUSE)
        return float(version.ask("time", doing, calls=calls))

    fastest = min(timed(version, 1) for version in pair)
    calls = min(MOST_CALLS, max(1, math.ceil(LEAST_MS / max(fastest, 1e-3))))
    raw: dict[Version, list[float]] = {version: [] for version in pair}
    for i in range(rounds + 1):  # the first is warm-up
        for version in pair if i % 2 == 0 else reversed(pair):
            ms = timed(version, calls)
            if i > 0:
                raw[version].append(ms)
    return {
        "title": case.title,
        "ms": {side: asdict(quantiles(raw[version])) for side, version in pair._asdict().items()},
        "ratio": asdict(ratios(raw[pair.this], raw[pair.other])),
        "calls": calls,
        "peak_bytes": {side: int(version.ask("peak", doing)) for side, version in pair._asdict().items()},
        "difference": difference,
        "tolerance": case.tolerance,
        "agree": not isinstance(difference, str) and difference <= case.tolerance,
    }


def _results(version: Version, doing: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results")
        version.ask("results", doing, path=str(path))
        results: dict[str, Tensor] = torch.load(path, weights_only=True)
    return results


def differ(this: dict[str, Tensor], other: dict[str, Tensor]) -> float | str:
    """The largest difference of results, relative to the tensor's largest number; or why they cannot be compared."""
    if this.keys() != other.keys():
        return f"one alone has {', '.join(sorted(this.keys() ^ other.keys()))}"
    largest = 0.0
    for name, a in this.items():
        b = other[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} is {tuple(a.shape)} {a.dtype} here and {tuple(b.shape)} {b.dtype} there"
        if not (a.isfinite().all() and b.isfinite().all()):
            return f"{name} is not finite"
        difference, scale = (a.double() - b.double()).abs().max().item(), b.double().abs().max().item()
        if difference > 0 and scale == 0:
            return f"{name} is zero there and not here"
        largest = max(largest, difference / scale if difference > 0 else 0.0)
    return largest


def verdict(rows: list[dict[str, Any]]) -> list[str]:
    """Lines on what disagrees or is slower or larger by more than the limit; the last says if nothing is."""
    more = f"by more than {LIMIT - 1:.0%}".replace("%", " %")
    parts: dict[str, list[str]] = {
        "results disagree": [
            f"{row['title']} ({_difference(row)}, allowed {row['tolerance']:.0e})" for row in rows if not row["agree"]
        ],
        f"slower {more} in the median, not beyond the spread of rounds": [],
        f"larger {more}": [],
        f"slower {more}": [],
    }
    _, perhaps, larger, slower = parts.values()
    for row in rows:
        ratio, peak = Quantiles(**row["ratio"]), row["peak_bytes"]
        if ratio.median > LIMIT:
            (slower if ratio.low > LIMIT else perhaps).append(f"{row['title']} ({ratio.thousandths()})")
        if peak["this"] > LIMIT * peak["other"]:
            larger.append(f"{row['title']} ({peak['other']:,} → {peak['this']:,} bytes)")
    lines = [f"{what}: {'; '.join(cases)}" for what, cases in parts.items() if cases]
    if not (perhaps or larger or slower):
        lines.append(f"of {len(rows)} cases, none is slower or larger {more}")
    return lines


def _difference(row: dict[str, Any]) -> str:
    return row["difference"] if isinstance(row["difference"], str) else f"{row['difference']:.0e}"


def _revision(folder: Path) -> str:
    """The git revision of the checkout of this folder."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"
