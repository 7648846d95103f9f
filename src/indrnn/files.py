"""Files: written whole, locked, checksums, and data sets that are found on the disk or downloaded."""

from __future__ import annotations

import contextlib
import datetime
import functools
import gzip
import hashlib
import http.client
import os
import socket
import sys
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

VARIABLE = "INDRNN_DATA"
_TIMEOUT = 30  # seconds without an answer, or between two pieces of one


def write_atomically(path: Path, write: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write the content, or what a function writes, to a file that at every moment holds all of the old or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            file.write(write) if isinstance(write, bytes) else write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a rename survives a power cut; skipped on systems that cannot do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def new_folder(out: Path, content: str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder to write to, which comes into its place when everything is in it, and is never there in part.

    With `overwrite`, it replaces a folder that holds a file of the name `content`.
    """
    if out.exists() and not (overwrite and (out / content).is_file()):
        what = f"holds no {content}" if overwrite else "is there already; --overwrite replaces it"
        raise ValueError(f"out must be a new folder, and {out} {what}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        yield new
        old = Path(scratch) / "old"
        if out.exists():
            out.rename(old)
        try:
            new.rename(out)
        except BaseException:  # the scratch is removed, and what was there before must not go with it
            if old.exists():
                old.rename(out)
            raise


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """The time, to the second, with its zone."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


# ---- locks


class LockedError(Exception):
    """Another process has the lock; the message says which."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock for one process at a time; a killed process releases its lock.

    The lock's file says who holds it, and is removed at the end. If the lock is not free, wait for it, or without
    `wait` raise `LockedError`. On systems without such locks (not Linux, not macOS), nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                file.seek(0)
                raise LockedError(file.read().strip() or "another process") from None
            if not _is_open(path, file):  # its last holder has removed it: others now lock a new one
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}, started {now()}")
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_open(path: Path, file: IO[str]) -> bool:
    """Whether an open file is the one at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


# ---- data sets


@dataclass(frozen=True)
class DataSet:
    """Files that belong together."""

    name: str
    """Name of the data set and of its folder."""
    files: Mapping[str, str]
    """SHA-256 of each file's content by its published name, ending in .gz; on the disk it may be unpacked."""
    mirrors: tuple[str, ...]
    """Addresses of folders that hold the files, tried in turn."""


def data_folder(data_dir: Path | None) -> Path:
    """The folder of data sets: `data_dir` if given, else INDRNN_DATA, else a folder of the user's cache."""
    return data_dir or Path(os.environ.get(VARIABLE) or cache_folder())


def cache_folder() -> Path:
    """The user's cache folder, whose content can be made or downloaded again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "indrnn"


def read(data: DataSet, data_dir: Path | None = None, say: Callable[[str], object] | None = None) -> dict[str, bytes]:
    """The verified content of each file of a data set, by its name; files that are missing are downloaded.

    They are in `data_folder(data_dir)` or a subfolder of the data set's name. `say` is called with messages about
    downloads; None writes them to standard error.

    Raises:
        ValueError: if a file differs from the published one. It is not changed, and none is read in its place.
        FileNotFoundError: if a file is missing and cannot be downloaded.
    """
    folder, say = data_folder(data_dir), say or functools.partial(print, file=sys.stderr)
    contents = {}
    for name, sha256 in data.files.items():
        try:
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"data_dir must be a folder, and {folder} is a file")
            path = _find(name, folder, data.name)
        except OSError as error:  # it is where we may not look
            raise ValueError(f"data_dir: cannot look into {folder} ({error.strerror or error})") from None
        contents[name] = _download(name, data, folder / data.name, say) if path is None else _read(path, sha256)
    return contents


def is_here(data: DataSet, data_dir: Path | None = None) -> bool:
    """Whether all files of a data set are present, so that `read` would download nothing."""
    folder = data_folder(data_dir)
    try:
        return all(_find(name, folder, data.name) is not None for name in data.files)
    except OSError:
        return False


def _find(name: str, folder: Path, subfolder: str) -> Path | None:
    paths = (place / either for place in (folder / subfolder, folder) for either in (name, Path(name).stem))
    return next((path for path in paths if path.is_file()), None)


def _read(path: Path, sha256: str) -> bytes:
    """The content of a file, or an error that names it."""
    try:
        return _content(path.read_bytes(), sha256, compressed=path.suffix == ".gz")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(
            f"{path} is corrupt, or not the published file: {error}. Delete it, and it is downloaded anew"
        ) from None


def _content(raw: bytes, sha256: str, *, compressed: bool = True) -> bytes:
    if compressed:
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(str(error) or type(error).__name__) from None
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise ValueError("its content has another checksum")
    return raw


def _download(name: str, data: DataSet, folder: Path, say: Callable[[str], object]) -> bytes:
    """Download a file from the first mirror that has it; it is written when it is verified."""
    target, sha256, problems = folder / name, data.files[name], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{name}.lock"):
            if target.exists():  # another process was quicker
                return _read(target, sha256)
            for mirror in data.mirrors:
                address = mirror.rstrip("/") + "/" + name
                try:
                    content = _content(packed := _fetch(address, say), sha256)
                except ValueError as error:
                    problems.append(f"{address}: {error}")
                    continue
                write_atomically(target, packed)
                return content
    except OSError as error:
        raise ValueError(
            f"data_dir: cannot write to {folder} ({error.strerror or error}); name a folder that can be written to, or "
            f"one that holds {name}, with --data-dir or {VARIABLE}"
        ) from None
    raise FileNotFoundError(
        f"{data.name}: {name} is not in {folder} and cannot be downloaded ({'; '.join(problems)}). Put "
        f"{', '.join(data.files)} into {folder}, or point --data-dir or {VARIABLE} at a folder that holds them"
    )


def _fetch(address: str, say: Callable[[str], object]) -> bytes:
    """The answer of a mirror; a ValueError if it has none."""
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            size = int(answer.headers.get("Content-Length") or 0)
            say(f"downloading {address} ({size / 1e6:.1f} MB)")
            content: bytes = answer.read(size or None)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(getattr(error, "reason", None) or error) from None
    if len(content) < size:
        raise ValueError(f"it broke off after {len(content)} of {size} bytes")
    return content


@contextlib.contextmanager
def progress(size: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A progress bar over so many bytes, of which some are done; in a terminal with rich installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
    except ImportError:
        yield lambda _: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=size, completed=done)
        yield lambda count: bar.advance(task, count)
