"""Conversion of the recordings of NTU RGB+D to arrays on disk: in parallel, and resumed after a stop."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import IO, Any

import numpy as np

from ....checks import check_count
from ....files import checksum, progress, write_atomically
from ....training.folder import RunFolder
from ...recipe import Say
from ..extras import NtuOptions
from ..recordings import COLUMNS, FORMAT, FRAMES, INDEX, MANIFEST, read_prepared
from .bodies import SLOTS, arrange
from .parser import JOINTS, parse
from .sources import EXAMPLE, SUFFIX, Sample, close_archives, find
from .splits import missing, parts_of, summary

PARTS = ".parts"
"""Folder of the finished parts, until all are finished."""
PART_SAMPLES = 128
_SHOWN = 20  # broken files that are printed; all are in the manifest
RULES = 3
"""Version of what makes frames of files: parts that were made by another are made anew."""


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`."""

    samples: int
    """Number of samples in the arrays."""
    frames: int
    """Number of their frames."""
    left_out: int
    """Number of samples left out as they are in the lists of missing skeletons."""
    broken: dict[str, str]
    """Files that were left out, and why, by location."""
    new: bool
    """Whether anything was done; False if the folder holds the same already."""


def prepare(
    places: list[Path], out: Path, *, strict: bool = False, workers: int | None = None, overwrite: bool = False
) -> Prepared:
    """Read `.skeleton` files and write the arrays that `read_prepared` reads.

    Finished work is saved in parts, so that a call after a stop continues where the last one ended, and produces the
    same bytes. The disk needs space for twice the arrays, and once more for those that are replaced.

    Args:
        places: folders and `.zip` files, see `sources.find`. Samples in the lists of missing skeletons are left out.
        out: output folder, which must be new, empty or from an earlier call.
        strict: whether a broken file is an error; else it is left out, and listed in the result and in `out`.
        workers: number of processes; None for the number of cores, 1 for this process only. Other processes import the
            main module, so a script needs `if __name__ == "__main__":` around the call.
        overwrite: whether to replace the result of an earlier call that finished.

    Raises:
        ValueError: for invalid options, missing or invalid files, a file that the disk does not give, or a folder that
            holds other files.
        FileNotFoundError: if a place does not exist.
    """
    if workers is not None:
        check_count("workers", workers)
    samples, broken = find(places)
    _check_strict(strict, broken)
    used = [sample for sample in samples if sample.name not in missing()]
    if not used:
        reason = next((f"{path}: {why}" for path, why in broken.items()), "all are in the lists of missing skeletons")
        raise ValueError(f"there is no sample to prepare; {reason}")
    _check_place(out)
    folder = RunFolder(out)
    folder.prepare()
    with folder.locked():
        for name in (FRAMES, INDEX, MANIFEST):
            for path in out.glob(f".{name}.*.tmp"):  # of processes that were killed
                path.unlink(missing_ok=True)
        manifest = None if overwrite else _finished(out, used)
        new = manifest is None
        if manifest is None:
            parts = [
                _Part(out, at // PART_SAMPLES, used[at : at + PART_SAMPLES]) for at in range(0, len(used), PART_SAMPLES)
            ]
            _make(parts, strict, workers)
            manifest = _write(out, parts, broken) | {"left_out": len(samples) - len(used), "sources": _digest(used)}
            write_atomically(out / MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
        else:
            broken |= _broken_of(used, manifest["broken"])
            _check_strict(strict, broken)
        _clear_parts(out)
    return Prepared(manifest["samples"], manifest["frames"], len(samples) - len(used), broken, new)


def run(options: NtuOptions, say: Say) -> None:
    """The command `indrnn prepare ntu`."""
    if not options.folder:
        raise ValueError("prepare ntu needs a folder of .skeleton files or a .zip of them")
    out = options.out
    done = prepare(options.folder, out, strict=options.strict, workers=options.workers, overwrite=options.overwrite)
    if not done.new:
        say(f"{out} is prepared from these files already; --overwrite does it again")
    for path, why in list(done.broken.items())[:_SHOWN]:
        say(f"broken: {path}: {why}")
    if len(done.broken) > _SHOWN:
        say(f"and {len(done.broken) - _SHOWN:,} more, in {out / MANIFEST}")
    say(
        f"{out}: {done.samples:,} samples of {done.frames:,} frames; left out: {done.left_out:,} with missing "
        f"skeletons, {len(done.broken):,} broken"
    )
    for line in summary(read_prepared(out)):
        say(line)


def _check_strict(strict: bool, broken: dict[str, str]) -> None:
    if strict and broken:
        path, why = next(iter(broken.items()))
        raise ValueError(f"{path}: {why}")


def _check_place(out: Path) -> None:
    """Raise if a folder holds anything that is not from an earlier call."""
    try:
        if out.exists() and not out.is_dir():
            raise ValueError(f"out must be a folder, and {out} is a file")
        names = {path.name for path in out.iterdir() if path.suffix != ".tmp"} if out.exists() else set()
    except OSError as error:
        raise ValueError(f"out: cannot look into {out}: {error.strerror or error}") from None
    others = names - {".lock"} - ({FRAMES, INDEX, MANIFEST, PARTS} if names & {MANIFEST, PARTS} else set())
    if others:
        raise ValueError(f"out: {out} holds something else ({min(others)}); name a new or an empty folder")


def _finished(out: Path, samples: list[Sample]) -> dict[str, Any] | None:
    """The manifest of an earlier call that finished with these samples; None if there was none."""
    if not (out / MANIFEST).exists():
        return None
    try:
        manifest: dict[str, Any] = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        sound = manifest["format"] == FORMAT and all((out / name).is_file() for name in (FRAMES, INDEX))
        sound = sound and {"sources", "samples", "frames", "broken", "files"} <= manifest.keys()
    except (OSError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise ValueError(f"out: {out} is damaged, or prepared by another version; --overwrite replaces it")
    if manifest["sources"] != _digest(samples):
        raise ValueError(f"out: {out} is prepared from other files; --overwrite replaces it")
    return manifest


def _broken_of(samples: list[Sample], before: dict[str, str]) -> dict[str, str]:
    """The broken files of an earlier call that belong to these samples, by their present location."""
    places = {sample.name: str(sample.sources[0]) for sample in samples}
    end = len(SUFFIX)
    names = {path[-len(EXAMPLE) - end : -end]: why for path, why in before.items()}
    return {places[name]: why for name, why in names.items() if name in places}


def _digest(samples: list[Sample]) -> str:
    """Checksum of what the arrays are made from, independent of its location."""
    facts = [RULES, *([sample.name, [(each.size, each.version) for each in sample.sources]] for sample in samples)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _clear_parts(out: Path) -> None:
    shutil.rmtree(out / PARTS, ignore_errors=True)


def _write(out: Path, parts: list[_Part], broken: dict[str, str]) -> dict[str, Any]:
    """Write frames and index; returns what the manifest says of them. Broken files are added to `broken`."""
    rows = []
    for part in parts:
        broken |= part.load("broken")
        rows += part.load("rows")
    if not rows:
        _clear_parts(out)
        path, why = next(iter(broken.items()))
        raise ValueError(f"none of {len(broken)} files can be read; {path}: {why}")
    frames = sum(row[1 + COLUMNS.index("length")] for row in rows)

    def write(file: IO[bytes]) -> None:
        shape = (frames, SLOTS, JOINTS, 3)
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for part in parts:
            file.write(part.load("frames"))

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("name", *COLUMNS), *rows])
    (out / MANIFEST).unlink(missing_ok=True)  # it says that the others are there
    write_atomically(out / FRAMES, write)
    write_atomically(out / INDEX, text.getvalue().encode())
    files = {name: {"bytes": (out / name).stat().st_size, "sha256": checksum(out / name)} for name in (FRAMES, INDEX)}
    return {"format": FORMAT, "samples": len(rows), "frames": frames, "files": files, "broken": broken}


# ---- parts


@dataclass(frozen=True)
class _Part:
    """Successive samples, made together and kept in one file: frames, rows of the index, and broken files."""

    out: Path
    number: int
    samples: list[Sample]

    @property
    def size(self) -> int:
        return sum(sample.size for sample in self.samples)

    @property
    def path(self) -> Path:
        """Path of its file, whose name depends on what it is made from, so that parts are not confused."""
        return self.out / PARTS / f"{self.number:05}-{_digest(self.samples)[:16]}.npz"

    def load(self, name: str) -> Any:
        """Load its frames as an array, or its rows or broken files."""
        with np.load(self.path) as file:
            return file[name] if name == "frames" else json.loads(str(file[name]))

    def make(self) -> dict[str, str]:
        """Read its samples and write its file; returns what is broken."""
        rows, frames, broken = [], [np.empty((0, SLOTS, JOINTS, 3), np.float32)], {}
        for sample in self.samples:
            try:
                sequence = arrange(parse(sample.read()))
            except ValueError as error:
                broken[str(sample.sources[0])] = str(error)
                continue
            row: dict[str, Any] = {**(parts_of(sample.name) or {}), "length": len(sequence.frames)}
            row |= {f"body_{slot + 1}": int(id) for slot, id in enumerate(sequence.ids)}
            rows.append([sample.name, *(row[column] for column in COLUMNS)])
            frames.append(sequence.frames)
        joined = np.concatenate(frames).astype("<f4", copy=False)
        texts = np.array(json.dumps(rows)), np.array(json.dumps(broken))
        write_atomically(self.path, lambda file: np.savez(file, frames=joined, rows=texts[0], broken=texts[1]))
        return broken


def _make(parts: list[_Part], strict: bool, workers: int | None) -> None:
    """Make the parts that are not finished, in parallel."""
    (parts[0].out / PARTS).mkdir(exist_ok=True)
    left = [part for part in parts if not part.path.exists()]
    for part in parts:
        if part not in left:
            _check_strict(strict, part.load("broken"))
    total, to_do = (sum(part.size for part in some) for some in (parts, left))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with progress(total, total - to_do) as advance, _processes(left, min(workers or cores, len(left))) as at_work:
        while left:
            waits = at_work()
            if not waits:  # alone, or what processes did not make: if for an error, it is met here
                left[0].make()
            for part in [part for part in left if part.path.exists()]:
                left.remove(part)
                _check_strict(strict, part.load("broken"))
                advance(part.size)
            if waits:
                time.sleep(0.02)


@contextlib.contextmanager
def _processes(parts: list[_Part], count: int) -> Iterator[Callable[[], bool]]:
    """Make parts in `count` processes, none if it is 1; yields a function that says whether any is still at work.

    Ctrl-C ends them at once and without output: the function raises `KeyboardInterrupt` then.
    """
    context = multiprocessing.get_context("spawn")
    shares = [parts[first::count] for first in range(count)] if count > 1 else []
    processes = [context.Process(target=_work, args=(share,), daemon=True) for share in shares]
    interrupts: list[int] = []

    def at_work() -> bool:
        if interrupts:
            raise KeyboardInterrupt
        return any(process.is_alive() for process in processes)

    handles = bool(processes) and threading.current_thread() is threading.main_thread()  # which alone may do so
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number)) if handles else None
    try:
        for process in processes:
            _start(process)
        yield at_work
    finally:
        for process in processes:
            process.terminate()
            process.join()
        close_archives()
        if handles:
            time.sleep(0.1 if interrupts else 0)  # while Ctrl-C is held down
            signal.signal(signal.SIGINT, before)


def _start(process: SpawnProcess) -> None:
    """Start a process that is deaf to Ctrl-C; here it is heard when the process has started."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        process.start()
        return
    resource_tracker.ensure_running()  # else it is started with the process, and unblocks what is blocked here
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(parts: list[_Part]) -> None:
    """Make parts in a process, until all are made, one of them fails, or the process that started it is gone."""
    parent = multiprocessing.parent_process()
    with contextlib.suppress(OSError):
        for part in parts:
            if parent is not None and parent.is_alive():
                part.make()
