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
"""Of a file: the longest recordings have some 10 MB."""
_ZIP_TROUBLES = (
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    UnicodeDecodeError,
)


@dataclass(frozen=True)
class Source:
    """A file, or a member of an archive."""

    path: Path
    member: str | None
    size: int
    version: int
    """Changes when the content does: the time of the last change, or an archive's checksum."""

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"

    def read(self) -> bytes:
        """Read the content; raises `ValueError` if it is damaged, and `OSError` if the disk does not give it."""
        if self.size > MOST_BYTES:
            raise ValueError(f"it has {self.size:,} bytes, more than any recording")
        try:
            return self.path.read_bytes() if self.member is None else _archive(self.path).read(self.member)
        except OSError as error:
            if self.member is not None and error.errno is None:  # of bz2, for a damaged stream
                raise ValueError(f"it cannot be read from the archive: {error}") from None
            raise OSError(f"{self}: it cannot be read: {error.strerror or error}") from None
        except _ZIP_TROUBLES as error:
            raise ValueError(f"it cannot be read from the archive: {error}") from None


@functools.lru_cache(maxsize=4)
def _archive(path: Path) -> zipfile.ZipFile:
    """Open an archive, once per process, as reading its list of members takes longer than reading them."""
    return zipfile.ZipFile(path)


def close_archives() -> None:
    """Close the archives that this process has read from."""
    _archive.cache_clear()


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
    found: dict[str, dict[str, Source]] = {}
    wrong: dict[str, str] = {}
    for place in places:
        for source in _sources(place, wrong):
            name = _name_of(source.member or source.path.name)[: -len(SUFFIX)]
            if parts_of(name) is None:
                wrong[str(source)] = f"it must be named as {EXAMPLE}{SUFFIX}"
            else:
                found.setdefault(name, {})[str(source)] = source
    if not found and not wrong:
        raise ValueError(f"there is no {SUFFIX} file in {', '.join(map(str, places))}, nor in an archive there")
    samples = [Sample(name, tuple(of for _, of in sorted(found[name].items()))) for name in sorted(found)]
    return samples, wrong


def _sources(place: Path, wrong: dict[str, str]) -> Iterator[Source]:
    if not place.exists():
        raise FileNotFoundError(f"{place}: there is no such folder or archive")
    if not place.is_dir():
        if not place.is_file() or not zipfile.is_zipfile(place):
            raise ValueError(f"{place} must be a folder of {SUFFIX} files or a .zip of them")
        try:
            yield from _members(place.resolve())
        except (OSError, *_ZIP_TROUBLES) as error:
            raise ValueError(f"{place}: it cannot be read as an archive: {error}") from None
        return
    seen = set()
    for folder, folders, names in os.walk(place.resolve(), onerror=_refuse, followlinks=True):
        if (here := os.path.realpath(folder)) in seen:  # by a link
            folders.clear()
            continue
        seen.add(here)
        for name in names:
            path = Path(folder, name)
            if name.startswith("."):  # of the system, as ._S001...
                continue
            if name.lower().endswith(SUFFIX):
                try:
                    about = _about(path)
                except OSError as error:
                    wrong[str(path)] = f"it cannot be read: {error.strerror or error}"
                else:
                    yield Source(path, None, about.st_size, about.st_mtime_ns)
            elif name.lower().endswith(".zip"):
                try:
                    _about(path)
                    yield from _members(path)
                except (OSError, *_ZIP_TROUBLES) as error:
                    wrong[str(path)] = f"it cannot be read as an archive: {error}"


def _about(path: Path) -> os.stat_result:
    """Size and time of a file; raises `OSError` if it is not regular, as a pipe, which could block when opened."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError("it is not a regular file")
    return about


def _refuse(error: OSError) -> None:
    raise ValueError(f"cannot look into {error.filename}: {error.strerror or error}")


def _name_of(member: str) -> str:
    """The file name without folders; some programs separate these by backslashes."""
    return member.replace("\\", "/").rpartition("/")[2]


def _members(path: Path) -> Iterator[Source]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = _name_of(info.filename)
            if name.lower().endswith(SUFFIX) and not name.startswith("."):
                yield Source(path, info.filename, info.file_size, info.CRC)
