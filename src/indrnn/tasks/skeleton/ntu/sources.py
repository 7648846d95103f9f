"""Search for the `.skeleton` files of NTU RGB+D, in folders, nested in any way, and in zip archives as published."""

from __future__ import annotations

import functools
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it; zipfile says so then
    LZMAError = EOFError  # type: ignore[assignment, misc]

from .splits import parts_of

SUFFIX, EXAMPLE = ".skeleton", "S001C001P001R001A001"
MOST_BYTES = 1 << 28
"""Most bytes of a file: the longest recordings have some 10 MB."""
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError, NotImplementedError, UnicodeError)


@functools.lru_cache(maxsize=4)
def archive(path: Path) -> zipfile.ZipFile:
    """Open an archive, once per process, as reading its list of members takes longer than reading them."""
    return zipfile.ZipFile(path)


@dataclass(frozen=True)
class Source:
    """A file, or a member of an archive."""

    path: Path
    member: str | None
    size: int
    version: int
    """Number that changes with the content: the time of the last change, or an archive's checksum."""

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"

    def read(self) -> bytes:
        """Read the content; raises `ValueError` if it is damaged, and `OSError` if the disk does not give it."""
        if self.size > MOST_BYTES:
            raise ValueError(f"it has {self.size:,} bytes, more than any recording")
        try:
            return self.path.read_bytes() if self.member is None else archive(self.path).read(self.member)
        except (OSError, *_ZIP_ERRORS) as error:
            if isinstance(error, OSError) and (self.member is None or error.errno is not None):
                raise OSError(f"{self}: it cannot be read: {error.strerror or error}") from None
            raise ValueError(f"it cannot be read from the archive: {error}") from None  # bz2 raises OSError for damage


@dataclass(frozen=True)
class Sample:
    """A recording and its sources; more than one if there are copies, which must be identical."""

    name: str
    sources: tuple[Source, ...]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(source.size for source in self.sources)

    def read(self) -> bytes:
        """Read the content; raises `ValueError` with the reason if that fails."""
        content = self.sources[0].read()
        for other in self.sources[1:]:
            if other.read() != content:
                raise ValueError(f"{other} has the same name and another content")
        return content


def find(places: Iterable[Path]) -> tuple[list[Sample], dict[str, str]]:
    """All `.skeleton` files in folders and archives, and archives in folders.

    Args:
        places: folders and `.zip` files.

    Returns:
        The samples, sorted by name, and what is wrong with other files, by location.

    Raises:
        ValueError: if a place is neither, or there is no such file at all.
        FileNotFoundError: if a place does not exist.
    """
    places = list(places)
    by_name: dict[str, dict[str, Source]] = {}
    wrong: dict[str, str] = {}
    for source in (source for place in places for source in _sources(place, wrong)):
        name = _file_name(source.member or source.path.name)[: -len(SUFFIX)]
        if parts_of(name) is None:
            wrong[str(source)] = f"it must be named as {EXAMPLE}{SUFFIX}"
        else:
            by_name.setdefault(name, {})[str(source)] = source
    if not by_name and not wrong:
        raise ValueError(f"there is no {SUFFIX} file in {', '.join(map(str, places))}, nor in an archive there")
    samples = [Sample(name, tuple(by_name[name][key] for key in sorted(by_name[name]))) for name in sorted(by_name)]
    return samples, wrong


def _sources(place: Path, wrong: dict[str, str]) -> Iterator[Source]:
    if not place.exists():
        raise FileNotFoundError(f"{place}: there is no such folder or archive")
    if not place.is_dir():
        if not place.is_file() or not zipfile.is_zipfile(place):
            raise ValueError(f"{place} must be a folder of {SUFFIX} files or a .zip of them")
        try:
            yield from _members(place.resolve())
        except (OSError, *_ZIP_ERRORS) as error:
            raise ValueError(f"{place}: it cannot be read as an archive: {error}") from None
        return
    for path in _files(place):
        is_archive = path.suffix.lower() == ".zip"
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe, say, which could block when it is opened
                raise OSError("it is not a regular file")
            if is_archive:
                yield from _members(path)
            else:
                yield Source(path, None, status.st_size, status.st_mtime_ns)
        except (OSError, *_ZIP_ERRORS) as error:
            reason = getattr(error, "strerror", None) or error
            wrong[str(path)] = f"it cannot be read{' as an archive' * is_archive}: {reason}"


def _files(place: Path) -> Iterator[Path]:
    """The recordings and archives in a folder and those below it, each folder once."""

    def refuse(error: OSError) -> None:
        raise ValueError(f"cannot look into {error.filename}: {error.strerror or error}")

    seen = set()
    for folder, folders, names in os.walk(place.resolve(), onerror=refuse, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # by a link
            folders.clear()
            continue
        seen.add(real)
        for name in names:
            if name.lower().endswith((SUFFIX, ".zip")) and not name.startswith("."):  # of the system, as ._S001...
                yield Path(folder, name)


def _members(path: Path) -> Iterator[Source]:
    with zipfile.ZipFile(path) as opened:
        for info in opened.infolist():
            name = _file_name(info.filename)
            if name.lower().endswith(SUFFIX) and not name.startswith("."):
                yield Source(path, info.filename, info.file_size, info.CRC)


def _file_name(member: str) -> str:
    """The file name without folders; some programs separate these by backslashes."""
    return member.replace("\\", "/").rpartition("/")[2]
