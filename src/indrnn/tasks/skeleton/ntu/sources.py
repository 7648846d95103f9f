"""Search for the `.skeleton` files of NTU RGB+D, in folders, nested in any way, and in zip archives as published."""

from __future__ import annotations

import functools
import os
import stat
import zipfile
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from .splits import parts_of

SUFFIX, EXAMPLE = ".skeleton", "S001C001P001R001A001"


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
