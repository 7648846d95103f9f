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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import IO, Any

import numpy as np

from ....checks import check_count
from ....files import checksum, progress, write_atomically
from ....training.folder import RunFolder
from ...recipe import Say
from ..extras import NtuOptions
from ..recordings import COLUMNS, FORMAT, FRAMES, INDEX, MANIFEST, read_manifest, read_prepared
from .bodies import SLOTS, arrange
from .parser import JOINTS, parse
from .sources import EXAMPLE, SUFFIX, Sample, archive, find
from .splits import missing, parts_of, summary

PARTS = ".parts"
"""Folder of the finished parts, until all are finished."""
PART_SAMPLES = 128
RULES = 3
"""Version of what makes frames of files: parts that were made by another are made anew."""
_SHOWN = 20  # broken files that are printed; all are in the manifest


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
    """Flag of new arrays; False if the folder held the same already."""


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
    _check_out(out)
    folder = RunFolder(out)
    folder.prepare()
    with folder.locked():
        for name in (FRAMES, INDEX, MANIFEST):
            for path in out.glob(f".{name}.*.tmp"):  # of processes that were killed
                path.unlink(missing_ok=True)
        manifest = None if overwrite else _finished(out, used)
        new = manifest is None
        if manifest is None:
            (out / PARTS).mkdir(exist_ok=True)
            divided = [used[at : at + PART_SAMPLES] for at in range(0, len(used), PART_SAMPLES)]
            parts = {out / PARTS / f"{_digest(part)[:24]}.npz": part for part in divided}  # named by what is in them
            _make(parts, strict, workers)
            manifest = _write(out, [*parts], broken) | {"left_out": len(samples) - len(used), "sources": _digest(used)}
            write_atomically(out / MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
        else:
            broken |= manifest["broken"]
            _check_strict(strict, broken)
        shutil.rmtree(out / PARTS, ignore_errors=True)
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


def _check_out(out: Path) -> None:
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


def _digest(samples: list[Sample]) -> str:
    """Checksum of what the arrays are made from, independent of its location."""
    facts = [[sample.name, [(source.size, source.version) for source in sample.sources]] for sample in samples]
    return hashlib.sha256(json.dumps([RULES, *facts]).encode()).hexdigest()


def _finished(out: Path, samples: list[Sample]) -> dict[str, Any] | None:
    """The manifest of an earlier call that finished with these samples; None if there was none."""
    if not (out / MANIFEST).exists():
        return None
    try:
        manifest = read_manifest(out)
        sound = all((out / name).is_file() for name in (FRAMES, INDEX))
        sound = sound and {"sources", "samples", "frames", "broken"} <= manifest.keys()
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"out: {out} is damaged, or prepared by another version; --overwrite replaces it")
    if manifest["sources"] != _digest(samples):
        raise ValueError(f"out: {out} is prepared from other files; --overwrite replaces it")
    place_of = {sample.name: str(sample.sources[0]) for sample in samples}  # which may have moved since
    names = {path[: -len(SUFFIX)][-len(EXAMPLE) :]: why for path, why in manifest["broken"].items()}
    return manifest | {"broken": {place_of[name]: why for name, why in names.items() if name in place_of}}


# ---- parts: frames, rows of the index, and broken files of successive samples


def _make_part(path: Path, samples: list[Sample]) -> None:
    """Read samples and write the file of their part."""
    rows, frames, broken = [], [np.empty((0, SLOTS, JOINTS, 3), np.float32)], {}
    for sample in samples:
        try:
            sequence = arrange(parse(sample.read()))
        except ValueError as error:
            broken[str(sample.sources[0])] = str(error)
            continue
        parts = parts_of(sample.name) or {}
        rows.append([sample.name, *parts.values(), len(sequence.frames), *sequence.ids.tolist()])
        frames.append(sequence.frames)
    joined = np.concatenate(frames).astype("<f4", copy=False)
    texts = np.array(json.dumps(rows)), np.array(json.dumps(broken))
    write_atomically(path, lambda file: np.savez(file, frames=joined, rows=texts[0], broken=texts[1]))


def _load(path: Path, name: str) -> Any:
    """The frames of a part as an array, or its rows or broken files."""
    with np.load(path) as file:
        return file[name] if name == "frames" else json.loads(str(file[name]))


def _write(out: Path, parts: list[Path], broken: dict[str, str]) -> dict[str, Any]:
    """Write frames and index; returns what the manifest says of them. Broken files are added to `broken`."""
    rows = []
    for part in parts:
        broken |= _load(part, "broken")
        rows += _load(part, "rows")
    if not rows:
        shutil.rmtree(out / PARTS, ignore_errors=True)
        path, why = next(iter(broken.items()))
        raise ValueError(f"none of {len(broken)} files can be read; {path}: {why}")
    frames = sum(row[1 + COLUMNS.index("length")] for row in rows)

    def write(file: IO[bytes]) -> None:
        shape = (frames, SLOTS, JOINTS, 3)
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for part in parts:
            file.write(_load(part, "frames"))

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("name", *COLUMNS), *rows])
    (out / MANIFEST).unlink(missing_ok=True)  # it says that the others are there
    write_atomically(out / FRAMES, write)
    write_atomically(out / INDEX, text.getvalue().encode())
    files = {name: {"bytes": (out / name).stat().st_size, "sha256": checksum(out / name)} for name in (FRAMES, INDEX)}
    return {"format": FORMAT, "samples": len(rows), "frames": frames, "files": files, "broken": broken}


# ---- processes


def _make(parts: dict[Path, list[Sample]], strict: bool, workers: int | None) -> None:
    """Make the parts that are not there: in processes, and here what these leave, if for an error."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = {path: sum(sample.size for sample in samples) for path, samples in parts.items()}
    left, lacking = dict(parts), {path: samples for path, samples in parts.items() if not path.exists()}
    count = min(workers or cores, len(lacking))
    with progress(sum(sizes.values())) as advance, _processes(lacking, count) as processes:
        while left:
            at_work = any(process.is_alive() for process in processes)
            for path in [path for path in left if path.exists()]:
                del left[path]
                _check_strict(strict, _load(path, "broken"))
                advance(sizes[path])
            if left and not at_work:
                _make_part(*next(iter(left.items())))
            time.sleep(0.02 if at_work else 0)
    archive.cache_clear()


@contextlib.contextmanager
def _processes(parts: dict[Path, list[Sample]], count: int) -> Iterator[list[Any]]:
    """Make parts in `count` processes, none if it is 1; they end with the block."""
    context = multiprocessing.get_context("spawn")
    shares = [[*parts.items()][first::count] for first in range(count)] if count > 1 else []
    processes = [context.Process(target=_work, args=(share,), daemon=True) for share in shares]
    try:
        with _no_interrupts():  # which processes inherit: Ctrl-C ends them by way of this one
            for process in processes:
                process.start()
        yield processes
    finally:
        with _no_interrupts():
            for process in processes:
                process.terminate()
                process.join()
            time.sleep(0.1 if processes else 0)  # while Ctrl-C is held down


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Put off Ctrl-C until the end of the block; on Windows it is not."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it is started with a process, and unblocks what is blocked here
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(parts: list[tuple[Path, list[Sample]]]) -> None:
    """Make parts in a process, until all are made, one of them fails, or the process that started it is gone."""
    parent = multiprocessing.parent_process()
    with contextlib.suppress(OSError):
        for path, samples in parts:
            if parent is not None and parent.is_alive():
                _make_part(path, samples)
