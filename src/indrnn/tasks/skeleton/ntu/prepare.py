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
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import numpy as np

from ....checks import check_count
from ....files import progress, write_atomically
from ....training.folder import RunFolder
from ..recordings import COLUMNS, FORMAT, FRAMES, INDEX, MANIFEST
from .bodies import SLOTS, arrange
from .parser import JOINTS, parse
from .sources import EXAMPLE, SUFFIX, Sample, UnreadError, close_archives, find
from .splits import missing, parts_of

PARTS = ".parts"
"""Folder of what is done, until all is."""
PART_SAMPLES = 128
RULES = 2
"""Version of what makes frames of files: parts that were made by another are made anew."""


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`.

    Args:
        samples: number of samples in the arrays.
        frames: number of their frames.
        left_out: number of samples left out as they are in the lists of missing skeletons.
        broken: files that were left out, and why, by location.
        new: whether anything was done; False if the folder holds the same already.
    """

    samples: int
    frames: int
    left_out: int
    broken: dict[str, str]
    new: bool = True


def prepare(
    places: list[Path],
    out: Path,
    *,
    strict: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
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
        ValueError: for invalid options, missing or invalid files, or a folder that holds other files.
        FileNotFoundError: if a place does not exist.
    """
    if workers is not None:
        check_count("workers", workers)
    samples, broken = find(places)
    _check_strict(strict, broken)
    kept = [sample for sample in samples if sample.name not in missing()]
    if not kept:
        reason = next((f"{path}: {word}" for path, word in broken.items()), "all are in the lists of missing skeletons")
        raise ValueError(f"there is no sample to prepare; {reason}")
    folder = RunFolder(out)
    _check_place(out)
    folder.prepare()
    with folder.locked():
        _remove_temporary(out)
        if (out / MANIFEST).exists() and not overwrite:
            finished = _finished(out)
            if finished["sources"] not in (_digest(kept), _unread(kept)):
                raise ValueError(f"out: {out} is prepared from other files; --overwrite replaces it")
            if finished["sources"] == _digest(kept):
                broken |= _broken_of(kept, finished["broken"])
                _check_strict(strict, broken)
                _clear_parts(out)
                return _result(finished | {"left_out": len(samples) - len(kept), "broken": broken}, new=False)
        (out / PARTS).mkdir(exist_ok=True)
        parts = [_Part(out, i // PART_SAMPLES, kept[i : i + PART_SAMPLES]) for i in range(0, len(kept), PART_SAMPLES)]
        try:
            _make(parts, strict, workers)
        finally:
            close_archives()
        made = [part.read() for part in parts]
        for each in made:
            broken |= each["broken"]
        rows = [row for each in made for row in each["rows"]]
        if not rows:
            _clear_parts(out)
            path, word = next(iter(broken.items()))
            raise ValueError(f"none of {len(broken)} files can be read; {path}: {word}")
        (out / MANIFEST).unlink(missing_ok=True)  # it says that the others are there
        manifest = _write(out, parts, rows) | {"left_out": len(samples) - len(kept), "broken": broken}
        all_read = not any(each["unread"] for each in made)
        manifest["sources"] = _digest(kept) if all_read else _unread(kept)
        write_atomically(out / MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
        if all_read:
            _clear_parts(out)
        return _result(manifest)


def _check_strict(strict: bool, broken: dict[str, str]) -> None:
    if strict and broken:
        path, word = next(iter(broken.items()))
        raise ValueError(f"{path}: {word}")


def _broken_of(samples: list[Sample], before: dict[str, str]) -> dict[str, str]:
    """The broken files of an earlier call that belong to these samples, by their present location."""
    places = {sample.name: str(sample.sources[0]) for sample in samples}
    end = len(SUFFIX)
    names = {path[-len(EXAMPLE) - end : -end]: word for path, word in before.items()}
    return {places[name]: word for name, word in names.items() if name in places}


def _result(manifest: dict[str, Any], *, new: bool = True) -> Prepared:
    return Prepared(manifest["samples"], manifest["frames"], manifest["left_out"], manifest["broken"], new)


def _digest(samples: list[Sample]) -> str:
    """Checksum of what the arrays are made from, independent of its location."""
    facts = [RULES, *([sample.name, [(each.size, each.version) for each in sample.sources]] for sample in samples)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _unread(samples: list[Sample]) -> str:
    """Replaces `_digest` if the disk failed to read some files: the next call tries these again."""
    return f"unread {_digest(samples)}"


# ---- the folder


def _check_place(out: Path) -> None:
    """Raise if a folder holds anything that is not from an earlier call."""
    try:
        if out.exists() and not out.is_dir():
            raise ValueError(f"out must be a folder, and {out} is a file")
        names = {path.name for path in out.iterdir() if path.suffix != ".tmp"} if out.exists() else set()
    except OSError as error:
        raise ValueError(f"out: cannot look into {out}: {error.strerror or error}") from None
    others = names - {".lock", FRAMES, INDEX, MANIFEST, PARTS}
    if not others and not names & {MANIFEST, PARTS}:
        others = names - {".lock"}
    if others:
        raise ValueError(f"out: {out} holds something else ({min(others)}); name a new or an empty folder")


def _finished(out: Path) -> dict[str, Any]:
    """Read the manifest of an earlier call that finished."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        sound = manifest["format"] == FORMAT and all((out / name).is_file() for name in (FRAMES, INDEX))
        sound = sound and {"sources", "samples", "frames", "left_out", "broken", "files"} <= manifest.keys()
    except (OSError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise ValueError(f"out: {out} is damaged, or prepared by another version; --overwrite replaces it")
    return dict(manifest)


def _clear_parts(out: Path) -> None:
    shutil.rmtree(out / PARTS, ignore_errors=True)


def _remove_temporary(out: Path) -> None:
    """Remove partial files of processes that were killed."""
    for name in (FRAMES, INDEX, MANIFEST):
        for path in out.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)


# ---- parts


@dataclass(frozen=True)
class _Part:
    """Successive samples, made together: frames in one file, and rows of the index in another that is written last."""

    out: Path
    number: int
    samples: list[Sample]

    @property
    def size(self) -> int:
        return sum(sample.size for sample in self.samples)

    def path(self, suffix: str) -> Path:
        """Path of a file of the part; its name depends on what it is made from, so that parts are not confused."""
        return self.out / PARTS / f"{self.number:05}-{_digest(self.samples)[:16]}{suffix}"

    def read(self) -> dict[str, Any]:
        """Rows of the index and broken files."""
        return dict(json.loads(self.path(".json").read_text(encoding="utf-8")))

    def is_done(self) -> bool:
        with contextlib.suppress(OSError, ValueError, KeyError):
            about = self.read()
            return bool(not about["unread"] and about["bytes"] == self.path(".frames").stat().st_size)
        return False

    def make(self) -> dict[str, str]:
        """Read its files and write it; returns what is broken."""
        rows, frames, broken, unread = [], [], {}, False
        for sample in self.samples:
            try:
                sequence = arrange(parse(sample.read()))
            except ValueError as error:
                broken[str(sample.sources[0])] = str(error)
                unread |= isinstance(error, UnreadError)
                continue
            parts = parts_of(sample.name)
            assert parts is not None
            row = {**parts, "length": len(sequence.frames)}
            row |= {f"body_{slot + 1}": int(id) for slot, id in enumerate(sequence.ids)}
            rows.append([sample.name, *(row[column] for column in COLUMNS)])
            frames.append(sequence.frames)
        content = b"".join(each.astype("<f4", copy=False).tobytes() for each in frames)
        write_atomically(self.path(".frames"), content)
        about = {"rows": rows, "broken": broken, "unread": unread, "bytes": len(content)}
        write_atomically(self.path(".json"), json.dumps(about).encode())
        return broken


def _make(parts: list[_Part], strict: bool, workers: int | None) -> None:
    """Make the parts that are not done, in parallel."""
    left = []
    for part in parts:
        if part.is_done():
            _check_strict(strict, part.read()["broken"])
        else:
            left.append(part)
    total, to_do = (sum(part.size for part in some) for some in (parts, left))
    with progress(total, total - to_do) as advance:
        if (count := min(_cores() if workers is None else workers, len(left))) <= 1:
            for part in left:
                _check_strict(strict, part.make())
                advance(part.size)
            return
        with _pool(count) as pool:
            with _on_interrupt(signal.SIG_IGN):  # for milliseconds: what is started in them ignores it from the first
                futures: dict[Future[dict[str, str]], _Part] = {pool.submit(part.make): part for part in left}
            for future in as_completed(futures):
                _check_strict(strict, future.result())
                advance(futures[future].size)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    """Processes that Ctrl-C ends at once, without output; raises `KeyboardInterrupt` when they are gone."""
    context = multiprocessing.get_context("spawn")
    end, alive = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(end,))
    interrupted = False

    def stop(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        alive.close()

    try:
        with _on_interrupt(stop):
            try:
                yield pool
            finally:
                pool.shutdown(cancel_futures=True)
    except BrokenProcessPool:
        if not interrupted:
            raise OSError(
                "a process was killed, for want of memory perhaps; call again to go on, with fewer --workers"
            ) from None
    finally:
        alive.close()
        end.close()
    if interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _on_interrupt(handler: Callable[..., None] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # has no say in it
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(end: Connection) -> None:
    """Leave Ctrl-C to the parent process, and exit with it or when it asks for that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        with contextlib.suppress(EOFError, OSError):
            end.recv()  # nothing comes: the other side is closed, or gone
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


# ---- the arrays


def _write(out: Path, parts: list[_Part], rows: list[list[Any]]) -> dict[str, Any]:
    """Write frames and index; returns their entries of the manifest."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("name", *COLUMNS), *rows])
    frames = sum(row[1 + COLUMNS.index("length")] for row in rows)

    def pieces() -> Iterator[bytes]:
        head = io.BytesIO()
        shape = (frames, SLOTS, JOINTS, 3)
        np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
        yield head.getvalue()
        for part in parts:
            yield part.path(".frames").read_bytes()

    files = {
        FRAMES: _write_file(out / FRAMES, pieces),
        INDEX: _write_file(out / INDEX, lambda: iter([text.getvalue().encode()])),
    }
    return {"format": FORMAT, "samples": len(rows), "frames": frames, "files": files}


def _write_file(path: Path, pieces: Callable[[], Iterator[bytes]]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0

    def write(file: IO[bytes]) -> None:
        nonlocal size
        for piece in pieces():
            file.write(piece)
            digest.update(piece)
            size += len(piece)

    write_atomically(path, write)
    return {"bytes": size, "sha256": digest.hexdigest()}
