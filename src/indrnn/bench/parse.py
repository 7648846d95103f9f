"""Speed of reading skeleton files: text of NTU RGB+D to arrays, on one core and on more."""

from __future__ import annotations

import io
import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..tasks.skeleton.ntu.bodies import arrange
from ..tasks.skeleton.ntu.parser import parse, parse_in_python
from .measure import Bench, quantiles, short

FRAMES, BODIES = 100, 2
CORES = (1, 2)
OURS, REFERENCE = "indrnn", "numpy.loadtxt"


def file_text(frames: int = FRAMES, bodies: int = BODIES) -> bytes:
    """A file in the `.skeleton` format, with as many digits as the published files."""
    random = np.random.default_rng(0)
    joints = random.normal(size=(bodies, 25, 3)) + np.array([0, 0, 3])
    lines = [str(frames)]
    for _ in range(frames):
        joints = joints + random.normal(size=joints.shape) / 100
        lines.append(str(bodies))
        for body in range(bodies):
            lines += [f"{72057594037931101 + body} 0 1 1 1 1 0 0.02764709 0.05745083 2", "25"]
            others = random.normal(300, 100, size=(25, 8))
            for row in np.concatenate([joints[body], others], axis=1):
                lines.append(" ".join(f"{value:.7g}" for value in row) + " 2")
    return ("\n".join(lines) + "\n").encode()


def in_plain_python(text: bytes) -> list[list[float]]:
    """The joints by a Python loop, for a file known to be valid."""
    lines = iter(text.split(b"\n"))
    rows = []
    for _ in range(int(next(lines))):
        for _ in range(int(next(lines))):
            next(lines)
            rows += [[float(word) for word in next(lines).split()[:3]] for _ in range(int(next(lines)))]
    return rows


def by_loadtxt(text: bytes) -> NDArray[np.float32]:
    """The joints by NumPy, which needs lines of equal length: these are selected first."""
    rows = [line for line in text.split(b"\n") if line.count(b" ") == 11]
    return np.loadtxt(io.BytesIO(b"\n".join(rows)), usecols=(0, 1, 2), dtype=np.float32)


def to_arrays(text: bytes) -> object:
    """All processing of a file's content by `indrnn prepare ntu`."""
    return arrange(parse(text))


CANDIDATES: dict[str, Callable[[bytes], object]] = {
    OURS: parse,
    "indrnn, with bodies in slots": to_arrays,
    "indrnn without the C++ kernel": parse_in_python,
    REFERENCE: by_loadtxt,
    "plain Python": in_plain_python,
}


def check_agreement(text: bytes) -> None:
    """Check that all read the same joints."""
    expected = np.array(in_plain_python(text)).astype(np.float32)
    for found in (parse(text).joints, parse_in_python(text).joints, by_loadtxt(text)):
        np.testing.assert_array_equal(found.reshape(-1, 3), expected)


def run(bench: Bench) -> None:
    """Measure everything."""
    text = file_text(20) if bench.quick else file_text()
    check_agreement(text)
    raw = bench.interleaved({name: lambda read=read: read(text) for name, read in CANDIDATES.items()})  # type: ignore[misc]
    bench.say(f"\nA file of {len(text):,} bytes in memory, on one core\n")
    bench.say(f"| | MB/s [20 %, 80 %] | as a multiple of {REFERENCE} |\n|---|---|---|")
    for name, took in raw.items():
        speed = quantiles([len(text) / each / 1e3 for each in took])
        ratio = quantiles([a / b for a, b in zip(raw[REFERENCE], took, strict=True)])
        bench.say(f"| {name} | {speed} | {short(ratio.median)} |")
        bench.rows.append({"title": "one core", "name": name, "mb_per_s": asdict(speed), "ratio": asdict(ratio)})
    bench.say("\nSeveral processes; a loop of Python shows what the machine gives to as many\n")
    bench.say("| | processes | MB/s [20 %, 80 %] |\n|---|---|---|")
    for name, times in {"indrnn, with bodies in slots": 200, "plain Python": 30}.items():
        speeds = _together(CANDIDATES[name], text, bench.rounds, times // 10 if bench.quick else times)
        for count, values in speeds.items():
            speed = quantiles(values)
            bench.say(f"| {name} | {count} | {speed} |")
            bench.rows.append({"title": f"{count} processes", "name": name, "mb_per_s": asdict(speed)})


def _together(read: Callable[[bytes], object], text: bytes, rounds: int, times: int) -> dict[int, list[float]]:
    """MB/s by number of processes and round; they start together, and each reads the file `times` times."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(max(CORES) + 1)
    processes = [
        context.Process(target=_work, args=(which, read, text, rounds, times, barrier)) for which in range(max(CORES))
    ]
    for process in processes:
        process.start()
    speeds: dict[int, list[float]] = {count: [] for count in CORES}
    for _ in range(rounds):
        for count in CORES:
            barrier.wait()
            start = time.perf_counter()
            barrier.wait()
            speeds[count].append(count * times * len(text) / (time.perf_counter() - start) / 1e6)
    for process in processes:
        process.join()
    return speeds


def _work(
    which: int, read: Callable[[bytes], object], text: bytes, rounds: int, times: int, barrier: threading.Barrier
) -> None:
    """One of the processes; it waits in rounds with fewer processes."""
    read(text)
    for _ in range(rounds):
        for count in CORES:
            barrier.wait()
            for _ in range(times if which < count else 0):
                read(text)
            barrier.wait()


def draw(bench: Bench, path: Path) -> None:
    """Draw the speeds on one core."""
    from ..figures import new_figure, save_figure

    rows = [row for row in bench.rows if row["title"] == "one core"]
    figure, (axes,) = new_figure(1, width=6)
    axes.barh(range(len(rows)), [row["mb_per_s"]["median"] for row in rows], color="#1f6f8b")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("MB/s, one core")
    save_figure(figure, path)
