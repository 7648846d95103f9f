"""Checkpoints that survive a kill at any moment, a damaged file and a full disk.

`last.ckpt` and `previous.ckpt` are two generations of the whole state of a run; `best-STEP.ckpt` holds the best weights
that one of them refers to. Each is written under a temporary name, flushed to disk and renamed. A run can be resumed
from a generation even without its best weights.

A file is one line that names it, the checksums of its two parts, a line of JSON (format, step, best step,
configuration) and what torch has written of all else. The first part is read without the second, and without torch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import IO, Any

from ..files import flush_folder, write_atomically

FORMAT = 3
"""Number of the form of a checkpoint."""

_MAGIC = b"indrnn training state\n"
_CHECKSUM = 65  # bytes of a checksum, with the end of its line
_IN_HEADER = ("step", "best_step", "config")


class BrokenCheckpointError(Exception):
    """A checkpoint is damaged, or not a checkpoint."""


class OtherFormatError(ValueError):
    """A checkpoint is of another version of this package."""


# ---- one file


def save(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint; "step", "best_step" and "config" of the state stand in its header."""
    import torch

    content = {name: state[name] for name in _IN_HEADER if name in state}
    header = (json.dumps({"format": FORMAT, **content}) + "\n").encode()
    payload = {name: value for name, value in state.items() if name not in content}

    def write(file: IO[bytes]) -> None:
        file.write(_MAGIC + _line_of(hashlib.sha256(header)) + bytes(_CHECKSUM) + header)
        start = file.tell()
        torch.save(payload, file)
        file.seek(start)
        checksum = _checksum_of_rest(file)
        file.seek(len(_MAGIC) + _CHECKSUM)
        file.write(checksum)

    write_atomically(path, write)


def _line_of(checksum: Any) -> bytes:
    return checksum.hexdigest().encode() + b"\n"  # type: ignore[no-any-return]


def _checksum_of_rest(file: IO[bytes]) -> bytes:
    return _line_of(hashlib.file_digest(file, "sha256"))  # type: ignore[arg-type]


def _read_header(file: IO[bytes], path: Path) -> tuple[dict[str, Any], bytes]:
    """The header, verified, and the payload's checksum; the file then stands at the payload."""
    magic, own, payload, header = file.read(len(_MAGIC)), file.read(_CHECKSUM), file.read(_CHECKSUM), file.readline()
    if magic != _MAGIC or not header:
        size = os.fstat(file.fileno()).st_size
        raise BrokenCheckpointError(f"{path} is not a checkpoint, or only the start of one ({size} bytes)")
    if _line_of(hashlib.sha256(header)) != own:
        raise BrokenCheckpointError(f"{path} is damaged: its checksum does not match")
    content: dict[str, Any] = json.loads(header)
    number = content.pop("format")
    if number != FORMAT:
        raise OtherFormatError(f"{path} has format {number}, this version reads {FORMAT}")
    return content, payload


def _verify(file: IO[bytes], path: Path) -> dict[str, Any]:
    """The header; the whole file is verified, and then stands at the payload."""
    header, expected = _read_header(file, path)
    start = file.tell()
    if _checksum_of_rest(file) != expected:
        raise BrokenCheckpointError(f"{path} is damaged: its checksum does not match")
    file.seek(start)
    return header


def read_header(path: Path) -> dict[str, Any]:
    """The step, best step and configuration of a checkpoint; its payload is not read."""
    with path.open("rb") as file:
        return _read_header(file, path)[0]


def verify(path: Path) -> dict[str, Any]:
    """The header of a checkpoint; raises `BrokenCheckpointError` or `OSError` unless all of it is intact."""
    with path.open("rb") as file:
        return _verify(file, path)


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint; raises `BrokenCheckpointError`, with the reason, if it is damaged."""
    import torch

    from ..networks import State  # noqa: F401 - whose module lets torch load a network's state

    with path.open("rb") as file:
        header = _verify(file, path)
        payload: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    return header | payload


# ---- those of a run


class Checkpoints:
    """The checkpoints of a run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.next, self.last, self.previous = (folder / f"{name}.ckpt" for name in ("next", "last", "previous"))
        self._damaged: list[Path] = []

    def best(self, step: int) -> Path:
        """The file of best weights from this step."""
        return self.folder / f"best-{step}.ckpt"

    @property
    def any(self) -> bool:
        """Whether there is any checkpoint, intact or damaged."""
        return any(self.folder.glob("*.ckpt")) or any(self.folder.glob("*.damaged*"))

    # ---- written

    def save(self, state: dict[str, Any]) -> None:
        """Write a new generation; `state["best_step"]` is the step of its best weights, or None."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save(self.next, state)
        # From here on nothing is written, only renamed: a full disk does not matter, nor a kill in between.
        self._rename_next()
        flush_folder(self.folder)
        self._remove_unused()

    def save_best(self, step: int, state: dict[str, Any]) -> None:
        """Write the best weights so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save(self.best(step), state)
        self._remove_unused(step)  # but these, which the next generation will refer to

    def _rename_next(self) -> None:
        """The last generation becomes the previous one, and the next one the last."""
        if self.last.exists():
            self.last.replace(self.previous)
        self.next.replace(self.last)

    def _remove_unused(self, *steps: int) -> None:
        """Remove best weights that no generation refers to, except those of the given steps."""
        generations = filter(Path.exists, (self.last, self.previous))
        try:
            used = {*steps, *(read_header(path)["best_step"] for path in generations)}
        except (BrokenCheckpointError, OtherFormatError, OSError):
            return  # better to keep too much
        for path in {*self.folder.glob("best-*.ckpt")} - {self.best(step) for step in used}:
            path.unlink(missing_ok=True)

    # ---- read

    def load_best(self, step: int) -> dict[str, Any]:
        """Read the best weights of this step."""
        return load(self.best(step))

    def newest_header(self) -> tuple[dict[str, Any] | None, list[str]]:
        """The header of the newest generation, None if there is none; and what is wrong with newer ones."""
        problems: list[str] = []
        for path in (self.next, self.last, self.previous):
            try:
                return read_header(path), problems
            except FileNotFoundError:
                continue
            except (BrokenCheckpointError, OSError) as error:
                problems.append(str(error))
        return None, problems

    def find(self) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest intact generation, None if there is none, and what is wrong with the others.

        Each generation is read once, and no file is moved.
        """
        state: dict[str, Any] | None = None
        problems: list[str] = []
        self._damaged = []
        for path in filter(Path.exists, (self.next, self.last, self.previous)):
            try:
                if state is None:
                    state = load(path)
                else:
                    verify(path)
            except (BrokenCheckpointError, OSError) as error:
                problems.append(str(error))
                self._damaged.append(path)
        return state, problems

    def set_aside(self) -> None:
        """Rename files after `find`: damaged ones, and one that a killed process had not renamed to `last.ckpt`."""
        for path in self._damaged:
            names = (path.with_suffix(f".damaged{number}") for number in itertools.chain([""], itertools.count(2)))
            path.replace(next(name for name in names if not name.exists()))
        if self.next.exists():
            self._rename_next()
