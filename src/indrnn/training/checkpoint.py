"""Checkpoints that survive a kill at any moment, a damaged file and a full disk.

`last.ckpt` and `previous.ckpt` are two generations of the whole state of a run; `best-STEP.ckpt` holds the best weights
that one of them refers to. Each is written under a temporary name, flushed to disk and renamed, and starts with a
checksum of the rest. A run can be resumed from a generation even without its best weights.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import IO, Any

import torch

from ..files import flush_folder, write_atomically
from ..networks import state as _state  # noqa: F401 - which lets torch load a network's state

_MAGIC = b"indrnn checkpoint 1\n"
_HEADER = len(_MAGIC) + 65  # the checksum's digits and a line's end
_PIECE = 1 << 20

FORMAT = 2
"""Of the state in a checkpoint; 1 had no options in it."""


class BrokenCheckpointError(Exception):
    """A checkpoint is damaged, or not a checkpoint."""


class _Hashed(io.RawIOBase):
    """Writes to a file and computes the checksum, so that a checkpoint is never in memory as a whole."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.checksum = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.checksum.update(content)
        return self.file.write(content)


class _Payload(io.RawIOBase):
    """The content of a checkpoint after its header, as a file of its own."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self.file.seek(offset + (_HEADER if whence == os.SEEK_SET else 0), whence) - _HEADER

    def tell(self) -> int:
        return self.file.tell() - _HEADER

    def readinto(self, buffer: Any) -> int:
        return self.file.readinto(buffer)  # type: ignore[attr-defined,no-any-return]


def save(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint."""

    def write(file: IO[bytes]) -> None:
        file.write(_MAGIC + b"0" * 64 + b"\n")
        hashed: Any = _Hashed(file)
        torch.save(state, hashed)
        file.seek(len(_MAGIC))
        file.write(hashed.checksum.hexdigest().encode())

    write_atomically(path, write)


def _verify(file: IO[bytes], path: Path) -> None:
    header = file.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        size = os.fstat(file.fileno()).st_size
        raise BrokenCheckpointError(f"{path} is not a checkpoint, or only the start of one ({size} bytes)")
    checksum = hashlib.sha256()
    while piece := file.read(_PIECE):
        checksum.update(piece)
    if checksum.hexdigest().encode() + b"\n" != header[len(_MAGIC) :]:
        raise BrokenCheckpointError(f"{path} is damaged: its checksum does not match")


def verify(path: Path) -> None:
    """Raise `BrokenCheckpointError` or `OSError` unless a checkpoint is intact."""
    with path.open("rb") as file:
        _verify(file, path)


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint; raises `BrokenCheckpointError`, with the reason, if it is damaged."""
    with path.open("rb") as file:
        _verify(file, path)
        payload: Any = _Payload(file)
        state = torch.load(payload, weights_only=True, map_location="cpu")
    if not isinstance(state, dict):
        raise BrokenCheckpointError(f"{path} holds no state of a run")
    return state


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: folder of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.next, self.last, self.previous = (folder / f"{name}.ckpt" for name in ("next", "last", "previous"))
        self._kept: dict[Path, int | None] = {}  # generation: the step of its best
        self._broken: list[Path] = []

    def best(self, step: int) -> Path:
        """The file of best weights from this step."""
        return self.folder / f"best-{step}.ckpt"

    @property
    def any(self) -> bool:
        """Whether there is any checkpoint, intact or damaged."""
        return any(self.folder.glob("*.ckpt")) or any(self.folder.glob("*.damaged*"))

    def save(self, state: dict[str, Any]) -> None:
        """Write a new generation; `state["best_step"]` is the step of its best weights, or None."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save(self.next, state)
        # From here on nothing is written, only renamed: a full disk does not matter, nor a kill in between.
        if self.last.exists():
            self.last.replace(self.previous)
            self._kept[self.previous] = self._kept.get(self.last)
        self.next.replace(self.last)
        flush_folder(self.folder)
        self._kept[self.last] = state["best_step"]
        self._tidy(state["best_step"])

    def save_best(self, step: int, state: dict[str, Any]) -> None:
        """Write the best weights so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save(self.best(step), state)
        self._tidy(step)

    def _tidy(self, best_step: int | None) -> None:
        """Remove best weights that no generation refers to."""
        if self.last.exists() and self.last not in self._kept:
            return  # of an earlier process, and not read: better to keep too much
        wanted = {self.best(step) for step in (*self._kept.values(), best_step) if step is not None}
        for path in self.folder.glob("best-*.ckpt"):
            if path not in wanted:
                path.unlink(missing_ok=True)

    def find(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Read the newest intact generation, without moving files.

        Returns:
            The state, or None if there is none; and what is wrong with the others.
        """
        found: Path | None = None
        state: dict[str, Any] | None = None
        troubles: list[str] = []
        self._kept, self._broken = {}, []
        for path in (self.previous, self.last, self.next):  # the newest is read last: one is in memory at a time
            if not path.exists():
                continue
            state = None
            try:
                state = load(path)
                self._kept[path] = state["best_step"]
                found = path
            except (BrokenCheckpointError, OSError, KeyError) as error:
                troubles.insert(0, str(error) if not isinstance(error, KeyError) else f"{path} lacks {error}")
                self._broken.append(path)
        if found is not None and state is None:
            state = load(found)
        return state, troubles

    def settle(self) -> list[Path]:
        """Rename files after `find`: damaged ones aside, one that a killed process had not renamed to `last.ckpt`.

        Returns:
            The new paths of the damaged files.
        """
        aside = []
        for path in self._broken:
            target = path.with_suffix(".damaged")
            number = 1
            while target.exists():
                number += 1
                target = path.with_suffix(f".damaged{number}")
            path.replace(target)
            aside.append(target)
        if self.next in self._kept:
            if self.last in self._kept:
                self.last.replace(self.previous)
                self._kept[self.previous] = self._kept[self.last]
            self.next.replace(self.last)
            self._kept[self.last] = self._kept.pop(self.next)
        return aside

    def forget_best(self) -> None:
        """Remove references to the last generation's best weights, which are lost, from all generations."""
        lost = self._kept.get(self.last)
        self._kept = {path: None if step == lost else step for path, step in self._kept.items()}

    def load_best(self, step: int) -> dict[str, Any]:
        """Read the best weights of this step."""
        return load(self.best(step))
