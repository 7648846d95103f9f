"""Conversion of the recordings of NTU RGB+D to arrays on disk: found in folders and archives, in parallel, resumed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import stat
import time
import zipfile
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path, PureWindowsPath
from typing import IO, Any, NamedTuple

import numpy as np

from ....checks import check_count
from ....files import checksum, progress, write_atomically
from ....training.folder import RunFolder
from ...recipe import Say
from ..recipe import NtuOptions
from ..recordings import COLUMNS, FORMAT, FRAMES, INDEX, MANIFEST, read_manifest, read_prepared
from .bodies import JOINTS, SLOTS, arrange, parse
from .splits import missing, parts_of, summary

PARTS = ".parts"
"""Folder of the finished parts, until all are finished: frames, rows of the index and broken files of each."""
PART_SAMPLES = 128
RULES = 3
"""Version of what makes frames of files: parts that were made by another are made anew."""
SUFFIX, EXAMPLE = ".skeleton", "S001C001P001R001A001"
_SHOWN = 20  # broken files that are printed; all are in the manifest


class Source(NamedTuple):
    """A file, or a member of an archive."""

    path: Path
    member: str | None
    size: int
    version: int
    """Number that changes with the content: the time of the last change, or an archive's checksum."""

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"


Samples = dict[str, list[Source]]
"""The sources of each sample, by its name: more than one if there are copies, which must be identical."""


def prepare(options: NtuOptions) -> dict[str, Any]:
    """Read `.skeleton` files and write the arrays that `read_prepared` reads.

    Finished work is saved in parts, so that a call after a stop continues where the last one ended, and produces the
    same bytes. With more than one worker, a script needs `if __name__ == "__main__":` around the call.

    Returns:
        The manifest: the numbers of "samples", of their "frames" and of samples "left_out" with missing skeletons, the
        "broken" files with the error of each, by location; and "new", False if the folder held the same already.
    """
    out, strict, workers = options.out, options.strict, options.workers
    if not options.folder:
        raise ValueError("prepare ntu needs a folder of .skeleton files or a .zip of them")
    if workers is not None:
        check_count("workers", workers)
    named, broken = find(options.folder)
    _check_strict(strict, broken)
    samples = {name: sources for name, sources in named.items() if name not in missing()}
    if not samples:
        reason = next((f"{path}: {why}" for path, why in broken.items()), "all are in the lists of missing skeletons")
        raise ValueError(f"there is no sample to prepare; {reason}")
    folder = RunFolder(out)
    names = {path.name for path in out.iterdir() if path.suffix != ".tmp"} if folder.used else set()
    others = names - {".lock"} - ({FRAMES, INDEX, MANIFEST, PARTS} if names & {MANIFEST, PARTS} else set())
    if others:  # which are not from an earlier call
        raise ValueError(f"out: {out} holds something else ({min(others)}); name a new or an empty folder")
    folder.prepare()
    with folder.locked():
        for name in (FRAMES, INDEX, MANIFEST):
            for path in out.glob(f".{name}.*.tmp"):  # of processes that were killed
                path.unlink(missing_ok=True)
        earlier = None if options.overwrite else _finished(out, samples)
        manifest = earlier or _convert(out, samples, strict, workers)
        manifest |= {"broken": broken | manifest["broken"], "left_out": len(named) - len(samples)}
        if earlier is None:
            write_atomically(out / MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
        shutil.rmtree(out / PARTS, ignore_errors=True)
    _check_strict(strict, manifest["broken"])
    return manifest | {"new": earlier is None}


def run(options: NtuOptions, say: Say) -> None:
    """The command `indrnn prepare ntu`."""
    out, done = options.out, prepare(options)
    broken = done["broken"]
    if not done["new"]:
        say(f"{out} is prepared from these files already; --overwrite does it again")
    for path, why in list(broken.items())[:_SHOWN]:
        say(f"broken: {path}: {why}")
    if len(broken) > _SHOWN:
        say(f"and {len(broken) - _SHOWN:,} more, in {out / MANIFEST}")
    say(
        f"{out}: {done['samples']:,} samples of {done['frames']:,} frames; left out: {done['left_out']:,} with missing "
        f"skeletons, {len(broken):,} broken"
    )
    for line in summary(read_prepared(out)):
        say(line)


def _check_strict(strict: bool, broken: dict[str, str]) -> None:
    if strict and broken:
        path, why = next(iter(broken.items()))
        raise ValueError(f"{path}: {why}")


def _digest(samples: Samples) -> str:
    """Checksum of what the arrays are made from, independent of its location."""
    facts = [[name, [(source.size, source.version) for source in sources]] for name, sources in samples.items()]
    return hashlib.sha256(json.dumps([RULES, *facts]).encode()).hexdigest()


def _finished(out: Path, samples: Samples) -> dict[str, Any] | None:
    """The manifest of an earlier call that finished with these samples; None if there was none."""
    if not (out / MANIFEST).exists():
        return None
    try:
        read_prepared(out)
        manifest = read_manifest(out)
    except ValueError:
        raise ValueError(f"out: {out} is damaged, or prepared by another version; --overwrite replaces it") from None
    if manifest["sources"] != _digest(samples):
        raise ValueError(f"out: {out} is prepared from other files; --overwrite replaces it")
    names = {path[: -len(SUFFIX)][-len(EXAMPLE) :]: why for path, why in manifest["broken"].items()}
    broken = {str(samples[name][0]): why for name, why in names.items() if name in samples}  # they may have moved
    return manifest | {"broken": broken}


def _convert(out: Path, samples: Samples, strict: bool, workers: int | None) -> dict[str, Any]:
    """Write frames and index, from parts; returns what the manifest says of them."""
    (out / PARTS).mkdir(exist_ok=True)
    items = list(samples.items())
    divided = [dict(items[at : at + PART_SAMPLES]) for at in range(0, len(items), PART_SAMPLES)]
    parts = {out / PARTS / f"{_digest(part)[:24]}.npz": part for part in divided}  # named by what is in them
    rows, broken = _make(parts, strict, workers)
    if not rows:
        shutil.rmtree(out / PARTS, ignore_errors=True)
        path, why = next(iter(broken.items()))
        raise ValueError(f"none of {len(broken)} files can be read; {path}: {why}")
    frames = sum(row[1 + COLUMNS.index("length")] for row in rows)

    def join(file: IO[bytes]) -> None:
        shape = (frames, SLOTS, JOINTS, 3)
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for path in parts:
            with np.load(path) as part:
                file.write(part["frames"])

    (out / MANIFEST).unlink(missing_ok=True)  # it says that the others are there
    write_atomically(out / FRAMES, join)
    lines = [",".join(map(str, row)) + "\n" for row in (["name", *COLUMNS], *rows)]
    write_atomically(out / INDEX, "".join(lines).encode())
    files = {name: {"bytes": (out / name).stat().st_size, "sha256": checksum(out / name)} for name in (FRAMES, INDEX)}
    about = {"format": FORMAT, "samples": len(rows), "frames": frames, "files": files}
    return about | {"broken": broken, "sources": _digest(samples)}


def _make_part(path: Path, samples: Samples) -> None:
    rows, frames, broken = [], [np.empty((0, SLOTS, JOINTS, 3), np.float32)], {}
    for name, sources in samples.items():
        try:
            bodies, ids = arrange(parse(read(sources)))
        except ValueError as error:
            broken[str(sources[0])] = str(error)
            continue
        rows.append([name, *(parts_of(name) or {}).values(), len(bodies), *ids.tolist()])
        frames.append(bodies)
    joined = np.concatenate(frames).astype("<f4", copy=False)
    write_atomically(path, lambda file: np.savez(file, frames=joined, rows=json.dumps(rows), broken=json.dumps(broken)))


def _make(parts: dict[Path, Samples], strict: bool, workers: int | None) -> tuple[list[list[Any]], dict[str, str]]:
    """Make the parts that are not there, in processes, and here what these leave; returns all rows and broken files."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = [sum(source.size for sources in samples.values() for source in sources) for samples in parts.values()]
    lacking = [(path, samples) for path, samples in parts.items() if not path.exists()]
    count = min(workers or cores, len(lacking))
    rows: list[list[Any]] = []
    broken: dict[str, str] = {}
    processes: list[SpawnProcess] = []
    resource_tracker.ensure_running()  # else it is started with a process, and unblocks what is blocked here
    try:
        _block_interrupts(True)  # which processes inherit: Ctrl-C ends them by way of this one
        for first in range(count if count > 1 else 0):
            process = SpawnProcess(target=_work, args=(lacking[first::count],), daemon=True)
            process.start()
            processes.append(process)
        _block_interrupts(False)
        with progress(sum(sizes)) as advance:
            for (path, samples), size in zip(parts.items(), sizes, strict=True):
                while not path.exists() and any(process.is_alive() for process in processes):
                    time.sleep(0.02)
                if not path.exists():
                    _make_part(path, samples)
                with np.load(path) as part:
                    rows += json.loads(str(part["rows"]))
                    broken |= json.loads(str(part["broken"]))
                _check_strict(strict, broken)
                advance(size)
    finally:
        _block_interrupts(True)
        for process in processes:
            process.terminate()
            process.join()
        time.sleep(0.1 if processes else 0)  # while Ctrl-C is held down
        archive.cache_clear()
        _block_interrupts(False)
    return rows, broken


def _block_interrupts(blocked: bool) -> None:
    """Put off Ctrl-C until it is no longer blocked; on Windows it is not."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, {signal.SIGINT})


def _work(parts: list[tuple[Path, Samples]]) -> None:
    """Make parts in a process, until all are made, one of them fails, or the process that started it is gone."""
    parent = multiprocessing.parent_process()
    with contextlib.suppress(OSError):
        for path, samples in parts:
            if parent is not None and parent.is_alive():
                _make_part(path, samples)


@functools.lru_cache(maxsize=4)
def archive(path: Path) -> zipfile.ZipFile:
    """Open an archive, once per process, as reading its list of members takes longer than reading them."""
    return zipfile.ZipFile(path)


def read(sources: list[Source]) -> bytes:
    """Read a sample; a ValueError if a source is damaged or differs from the first, an OSError if the disk fails."""
    contents = []
    for source in sources:
        path, member = source.path, source.member
        try:
            contents.append(path.read_bytes() if member is None else archive(path).read(member))
        except MemoryError:
            raise
        except Exception as error:  # whatever zipfile and its decompressors raise for damage
            if isinstance(error, OSError) and error.errno is not None:  # bz2 raises one without a number, for damage
                raise OSError(f"{source}: it cannot be read: {error.strerror or error}") from None
            raise ValueError(f"it cannot be read from the archive: {error}") from None
        if contents[-1] != contents[0]:
            raise ValueError(f"{source} has the same name and another content")
    return contents[0]


def find(places: list[Path]) -> tuple[Samples, dict[str, str]]:
    """The samples in folders, `.zip` files and those in folders, by name, and what is wrong with other files."""
    sources: dict[str, Source] = {}  # by location, which two places may share
    wrong: dict[str, str] = {}
    for place in places:
        for path in _files(place):
            try:
                sources.update((str(source), source) for source in _sources(path))
            except Exception as error:  # whatever the disk and zipfile raise
                what = "" if path.suffix.lower() == SUFFIX else " as an archive"
                wrong[str(path)] = f"it cannot be read{what}: {getattr(error, 'strerror', None) or error}"
                if not place.is_dir():
                    raise ValueError(f"{place}: {wrong[str(path)]}") from None
    samples: Samples = {}
    for location, source in sorted(sources.items()):
        name = PureWindowsPath(source.member or source.path.name).name[: -len(SUFFIX)]
        if parts_of(name) is None:
            wrong[location] = f"it must be named as {EXAMPLE}{SUFFIX}"
        else:
            samples.setdefault(name, []).append(source)
    if not sources and not wrong:
        raise ValueError(f"there is no {SUFFIX} file in {', '.join(map(str, places))}, nor in an archive there")
    return dict(sorted(samples.items())), wrong


def _files(place: Path) -> list[Path]:
    """The archive that a place is, or the recordings and archives in it and in folders below it, each folder once."""
    if not place.exists():
        raise FileNotFoundError(f"{place}: there is no such folder or archive")
    if not place.is_dir():
        if not place.is_file() or not zipfile.is_zipfile(place):
            raise ValueError(f"{place} must be a folder of {SUFFIX} files or a .zip of them")
        return [place.resolve()]
    paths: list[Path] = []
    errors: list[OSError] = []
    folders: set[str] = set()
    for folder, below, names in os.walk(place.resolve(), onerror=errors.append, followlinks=True):
        if (real := os.path.realpath(folder)) in folders:  # by a link
            below.clear()
        else:
            paths += [Path(folder, name) for name in names if _is_named(name, SUFFIX, ".zip")]
        folders.add(real)
    if errors:
        raise ValueError(f"cannot look into {errors[0].filename}: {errors[0].strerror or errors[0]}")
    return paths


def _sources(path: Path) -> list[Source]:
    """The recordings of an archive, or the one of a file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe, say, which could block when it is opened
        raise OSError("it is not a regular file")
    if path.suffix.lower() == SUFFIX:
        return [Source(path, None, status.st_size, status.st_mtime_ns)]
    with zipfile.ZipFile(path) as opened:
        members = [member for member in opened.infolist() if _is_named(member.filename, SUFFIX)]
    return [Source(path, member.filename, member.file_size, member.CRC) for member in members]


def _is_named(path: str, *suffixes: str) -> bool:
    name = PureWindowsPath(path).name  # some programs separate folders in archives by backslashes
    return name.lower().endswith(suffixes) and not name.startswith(".")  # of the system, as ._S001...
