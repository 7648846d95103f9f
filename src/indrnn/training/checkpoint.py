"""Checkpoints that survive a kill at any moment, a damaged file and a full disk.

`last.ckpt` and `previous.ckpt` are two generations of the whole state of a run; `best-STEP.ckpt` holds the best weights
that one of them refers to. A file is a line that names it, the checksums of its two parts, a line of JSON (the header,
which is read without torch) and what torch has written of all else.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from ..files import flush_folder, write_atomically

FORMAT = 3
"""Number of the form of a checkpoint."""

_MAGIC = b"indrnn training state\n"
_CHECKSUM = 65  # bytes of a checksum, with the end of its line


class BrokenCheckpointError(Exception):
    """A checkpoint is damaged, or not a checkpoint."""


class OtherFormatError(ValueError):
    """A checkpoint is of another version of this package."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint; "step", "best_step" and "config" of the state stand in its header."""
    import torch

    content = {name: state[name] for name in ("step", "best_step", "config") if name in state}
    header = (json.dumps({"format": FORMAT, **content}) + "\n").encode()
    payload = {name: value for name, value in state.items() if name not in content}

    def write(file: IO[bytes]) -> None:
        file.write(_MAGIC + _checksum(io.BytesIO(header)) + bytes(_CHECKSUM) + header)
        start = file.tell()
        torch.save(payload, file)
        file.seek(start)
        checksum = _checksum(file)
        file.seek(len(_MAGIC) + _CHECKSUM)
        file.write(checksum)

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)


def load(path: Path, *, header_only: bool = False, verify: bool = True) -> dict[str, Any]:
    """Read one checkpoint, or its header alone: step, best step, configuration; `verify` the payload's checksum too."""
    with path.open("rb") as file:
        magic, own, rest, header = file.read(len(_MAGIC)), file.read(_CHECKSUM), file.read(_CHECKSUM), file.readline()
        if magic != _MAGIC or not header:
            size = os.fstat(file.fileno()).st_size
            raise BrokenCheckpointError(f"{path} is not a checkpoint, or only the start of one ({size} bytes)")
        damaged = BrokenCheckpointError(f"{path} is damaged: its checksum does not match")
        if _checksum(io.BytesIO(header)) != own:
            raise damaged
        content: dict[str, Any] = json.loads(header)
        number = content.pop("format")
        if number != FORMAT:
            raise OtherFormatError(f"{path} has format {number}, this version reads {FORMAT}")
        start = file.tell()
        if verify and _checksum(file) != rest:
            raise damaged
        if header_only:
            return content
        import torch

        from ..networks import State  # noqa: F401 - whose module lets torch load a network's state

        file.seek(start)
        payload: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
        return content | payload


def _checksum(file: IO[bytes]) -> bytes:
    """The SHA-256 of a file from where it stands, as a line."""
    return hashlib.file_digest(file, "sha256").hexdigest().encode() + b"\n"  # type: ignore[arg-type]


class Checkpoints:
    """The checkpoints of a run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.next, self.last, self.previous = (folder / f"{name}.ckpt" for name in ("next", "last", "previous"))

    def best(self, step: int) -> Path:
        """The file of best weights from this step."""
        return self.folder / f"best-{step}.ckpt"

    @property
    def any(self) -> bool:
        """Whether there is any checkpoint, intact or damaged."""
        return any(self.folder.glob("*.ckpt")) or any(self.folder.glob("*.damaged*"))

    def save(self, state: dict[str, Any]) -> None:
        """Write a new generation; `state["best_step"]` is the step of its best weights, or None."""
        save(self.next, state)
        # From here on nothing is written, only renamed: a full disk does not matter, nor a kill in between.
        self._rename_next()
        flush_folder(self.folder)
        self._remove_unused()

    def save_best(self, step: int, state: dict[str, Any]) -> None:
        """Write the best weights so far."""
        save(self.best(step), state)
        self._remove_unused(step)  # but these, which the next generation will refer to

    def _rename_next(self) -> None:
        """The last generation becomes the previous one, and the next one the last."""
        if self.last.exists():
            self.last.replace(self.previous)
        self.next.replace(self.last)

    def _remove_unused(self, *steps: int) -> None:
        """Remove best weights that no generation refers to, except those of the given steps."""
        try:
            headers = [
                load(path, header_only=True, verify=False) for path in (self.last, self.previous) if path.exists()
            ]
        except (BrokenCheckpointError, OtherFormatError, OSError):
            return  # better to keep too much
        used = {*steps, *(header["best_step"] for header in headers)}
        for path in {*self.folder.glob("best-*.ckpt")} - {self.best(step) for step in used}:
            path.unlink(missing_ok=True)

    def newest(self, *, header_only: bool = False) -> tuple[dict[str, Any] | None, dict[Path, str]]:
        """The newest intact generation, None if there is none, and what is wrong with others, by their paths.

        Each generation is read once, and no file is moved; with `header_only`, no payload is read.
        """
        state: dict[str, Any] | None = None
        problems: dict[Path, str] = {}
        for path in (self.next, self.last, self.previous):
            try:
                if state is None:
                    state = load(path, header_only=header_only, verify=not header_only)
                elif not header_only:
                    load(path, header_only=True)
            except FileNotFoundError:
                continue
            except (BrokenCheckpointError, OSError) as error:
                problems[path] = str(error)
        return state, problems

    def set_aside(self, damaged: Iterable[Path]) -> None:
        """Rename damaged generations, and one that a killed process had not renamed to `last.ckpt`."""
        for path in damaged:
            names = (path.with_suffix(f".damaged{number}") for number in itertools.chain([""], itertools.count(2)))
            path.replace(next(name for name in names if not name.exists()))
        if self.next.exists():
            self._rename_next()
