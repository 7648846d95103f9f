"""Files of data sets: location, verification and download."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import io
import os
import ssl
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "INDRNN_DATA"
_TIMEOUT = 30  # seconds without an answer, or between two pieces of one
_PIECE = 1 << 18
_MORE = 1 << 16  # bytes that compressing may add to a content that cannot be compressed


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, identified by its content, whether compressed by gzip or not."""

    name: str
    """Its name as it is published, ending in .gz."""
    sha256: str
    """Of the content."""
    size: int = 1 << 30
    """Bytes of the content, or the most that it may have: a download or an archive that is larger is broken off."""


@dataclass(frozen=True)
class DataSet:
    """Files that belong together."""

    name: str
    """Also the name of the folder they are in."""
    files: tuple[DataFile, ...]
    mirrors: tuple[str, ...]
    """Addresses of folders that hold them, tried in turn."""


def data_folder(data_dir: Path | None) -> Path:
    """The folder of data sets: `data_dir` if given, else INDRNN_DATA, else a folder of the user's cache."""
    if data_dir is not None:
        return data_dir
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return cache_folder()


def cache_folder() -> Path:
    """The user's cache folder, whose content can be made or downloaded again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "indrnn"


def read(data: DataSet, data_dir: Path | None = None, say: Callable[[str], None] | None = None) -> dict[str, bytes]:
    """Read all files of a data set, downloading those that are missing.

    Args:
        data: the data set.
        data_dir: the folder that holds the files, directly or in a subfolder of the data set's name; None for
            INDRNN_DATA or, without that, the user's cache.
        say: called with messages about downloads; None for standard error.

    Returns:
        The content of each file, by its name, verified.

    Raises:
        ValueError: if a file differs from the published one. It is not changed, and none is read in its place.
        FileNotFoundError: if a file is missing and cannot be downloaded.
    """
    folder = data_folder(data_dir)
    contents = {}
    for file in data.files:
        try:
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"data_dir must be a folder, and {folder} is a file")
            path = _find(file, folder, data.name)
        except OSError as error:  # it is where we may not look
            raise ValueError(f"data_dir: cannot look into {folder} ({error.strerror or error})") from None
        if path is not None:
            contents[file.name] = _checked(file, path)
        else:
            target = folder / data.name / file.name
            contents[file.name] = _download(file, data, target, say or _say)
    return contents


def is_here(data: DataSet, data_dir: Path | None = None) -> bool:
    """Whether all files of a data set are present, so that `read` would download nothing."""
    folder = data_folder(data_dir)
    try:
        return all(_find(file, folder, data.name) is not None for file in data.files)
    except OSError:
        return False


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _find(file: DataFile, folder: Path, subfolder: str) -> Path | None:
    for place in (folder / subfolder, folder):
        for name in (file.name, file.name.removesuffix(".gz")):
            if (place / name).is_file():
                return place / name
    return None


def _checked(file: DataFile, path: Path) -> bytes:
    """The content of a file, or an error that names it."""
    try:
        return _content(file, path.read_bytes(), compressed=path.suffix == ".gz")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(
            f"{path} is corrupt, or not the published file: {error}. Delete it, and it is downloaded anew"
        ) from None


def _content(file: DataFile, raw: bytes, *, compressed: bool = True) -> bytes:
    if compressed:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as archive:
                raw = archive.read(file.size + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(str(error) or type(error).__name__) from None
    if len(raw) > file.size:
        raise ValueError(f"its content is larger than {file.size} bytes")
    if hashlib.sha256(raw).hexdigest() != file.sha256:
        raise ValueError("its content has another checksum")
    return raw


# ---- download


def _download(file: DataFile, data: DataSet, target: Path, say: Callable[[str], None]) -> bytes:
    """Download a file from the first mirror that has it, under a temporary name until it is verified."""
    part = target.with_name(target.name + ".part")
    troubles = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.with_name(target.name + ".lock")):
            if target.exists():  # another process was quicker
                return _checked(file, target)
            for mirror in data.mirrors:
                address = mirror.rstrip("/") + "/" + file.name
                try:
                    content = _fetched(file, address, part, say)
                except _TROUBLES as error:
                    troubles.append(f"{address}: {getattr(error, 'reason', None) or error}")
                    continue
                part.replace(target)
                return content
    except OSError as error:
        raise ValueError(
            f"data_dir: cannot write to {target.parent} ({error.strerror or error}); name a folder that can be written "
            f"to, or one that holds {target.name}, with --data-dir or {VARIABLE}"
        ) from None
    names = ", ".join(each.name for each in data.files)
    raise FileNotFoundError(
        f"{data.name}: {file.name} is not in {target.parent} and cannot be downloaded ({'; '.join(troubles)}). Put "
        f"{names} into {target.parent}, or point --data-dir or {VARIABLE} at a folder that holds them"
    )


# Of a mirror, and not of the disk: most are OSErrors too
_TROUBLES = (
    urllib.error.URLError,
    http.client.HTTPException,
    TimeoutError,
    ConnectionError,
    ssl.SSLError,
    ValueError,
)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock for one process at a time, if the system has locks; the others find the file when their turn comes."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_open(path, file.fileno()):  # removed while we waited: who comes now locks a new one
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_open(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _fetched(file: DataFile, address: str, part: Path, say: Callable[[str], None]) -> bytes:
    """Download and verify; starts over if a resumed download turns out to be wrong."""
    while True:
        resumed = _fetch(address, part, file.size + _MORE, say)
        try:
            return _content(file, part.read_bytes())
        except ValueError:
            part.unlink()
            if not resumed:
                raise


def _fetch(address: str, part: Path, most: int, say: Callable[[str], None]) -> bool:
    """Download to a file, resuming an earlier attempt if possible; returns whether it was resumed."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        return True  # there is nothing after what we have
    with answer:
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        left = int(answer.headers.get("Content-Length") or 0)
        if have + left > most:
            raise http.client.HTTPException(f"it has {have + left} bytes, more than the {most} that it may have")
        say(f"{'going on with' if resumed else 'downloading'} {address} ({(have + left) / 1e6:.1f} MB)")
        with part.open("ab" if resumed else "wb") as file, progress(have, have + left) as advance:
            received = 0
            while piece := answer.read(_PIECE):
                file.write(piece)
                received += len(piece)
                if have + received > most:
                    file.truncate(0)
                    raise http.client.HTTPException(f"it has more than the {most} bytes that it may have")
                advance(len(piece))
        if received < left:
            raise http.client.HTTPException(f"it broke off after {have + received} of {have + left} bytes")
    return bool(resumed)


@contextlib.contextmanager
def progress(done: int, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, in a terminal with rich installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
    except ImportError:
        yield lambda _: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total or None, completed=done)
        yield lambda size: bar.advance(task, size)
