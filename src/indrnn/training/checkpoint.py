"""Checkpoints that survive a kill at any moment, a torn file and a full disk.

`last.ckpt` and `previous.ckpt` are two generations of the whole state of a run; `best-STEP.ckpt` holds the best weights
that one of them speaks of. Each is written under another name, flushed to the disk and renamed; each starts with a
checksum of the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

_MAGIC = b"indrnn checkpoint 1\n"


class BrokenCheckpointError(Exception):
    """A checkpoint that is not what was written."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at every moment either the old or the new content is there in full."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """A rename is safe from a power cut when the folder is on the disk too; not every system can say so."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    write_atomically(path, _MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint; `BrokenCheckpointError` says what is wrong with it."""
    content = path.read_bytes()
    header = len(_MAGIC) + 65
    if len(content) < header or not content.startswith(_MAGIC):
        raise BrokenCheckpointError(f"{path} is not a checkpoint, or only the start of one ({len(content)} bytes)")
    payload = content[header:]
    if hashlib.sha256(payload).hexdigest().encode() + b"\n" != content[len(_MAGIC) : header]:
        raise BrokenCheckpointError(f"{path} is damaged: its checksum does not match")
    return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")  # type: ignore[no-any-return]


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.previous = folder / "last.ckpt", folder / "previous.ckpt"
        self._kept: dict[Path, int | None] = {}  # generation: the step of its best

    def best(self, step: int) -> Path:
        """The file of the best weights, of this step."""
        return self.folder / f"best-{step}.ckpt"

    def save(self, state: dict[str, Any]) -> None:
        """Write a new generation; `state["best_step"]` is the step of its best, or None."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / "next.ckpt"
        save(fresh, state)
        # From here on nothing is written, only renamed: a full disk does not matter, nor a kill in between.
        if self.last.exists():
            self.last.replace(self.previous)
            self._kept[self.previous] = self._kept.get(self.last)
        fresh.replace(self.last)
        _flush_folder(self.folder)
        self._kept[self.last] = state["best_step"]
        self._tidy(state["best_step"])

    def save_best(self, step: int, state: dict[str, Any]) -> None:
        """Write the best weights so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save(self.best(step), state)
        self._tidy(step)

    def _tidy(self, best_step: int | None) -> None:
        """Remove best weights that no generation speaks of."""
        if self.last.exists() and self.last not in self._kept:
            return  # of an earlier process, and not read: better to keep too much
        wanted = {self.best(step) for step in (*self._kept.values(), best_step) if step is not None}
        for path in self.folder.glob("best-*.ckpt"):
            if path not in wanted:
                path.unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Read the newest generation that is whole, with its best weights there.

        Returns:
            The state, None where there is none; and what was wrong on the way to it.
        """
        fresh = self.folder / "next.ckpt"
        troubles: list[str] = []
        whole: dict[Path, dict[str, Any]] = {}
        for path in (fresh, self.last, self.previous):
            if not path.exists():
                continue
            try:
                state = load(path)
                if not whole and state["best_step"] is not None:
                    load(self.best(state["best_step"]))
                whole[path] = state
            except (BrokenCheckpointError, OSError) as error:
                troubles.append(str(error))
                with contextlib.suppress(OSError):  # out of the way, or it would take the place of a good one
                    path.replace(path.with_suffix(".damaged"))
        found = next(iter(whole.values()), None)
        if fresh in whole:  # its process ended before it was renamed
            if self.last in whole:
                self.last.replace(self.previous)
                whole[self.previous] = whole[self.last]
            fresh.replace(self.last)
            whole[self.last] = whole.pop(fresh)
        self._kept = {path: state["best_step"] for path, state in whole.items()}
        return found, troubles

    def peek(self) -> dict[str, Any] | None:
        """As `load`, and move nothing: for a run that another process may be at work on."""
        for path in (self.folder / "next.ckpt", self.last, self.previous):
            with contextlib.suppress(BrokenCheckpointError, OSError):
                state = load(path)
                if state["best_step"] is not None:
                    load(self.best(state["best_step"]))
                return state
        return None

    def load_best(self, step: int) -> dict[str, Any]:
        """Read the best weights of this step."""
        return load(self.best(step))
