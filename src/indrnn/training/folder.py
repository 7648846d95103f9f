"""The folder of a run: configuration, metrics, weights and lock; and its opening, with the state that is resumed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..files import LockedError, locked, write_atomically
from .checkpoint import BrokenCheckpointError, Checkpoints, OtherFormatError, load
from .options import MAY_DIFFER

Say = Callable[[str], None]


class RunError(RuntimeError):
    """A run cannot continue; the message says why, in one line."""


class RunFolder:
    """A run's files, of which result.json, weights.safetensors and curve.png are written at its end."""

    def __init__(self, path: Path) -> None:
        names = ("config", "result", "model", "tokeniser")
        self.config, self.result, self.model, self.tokeniser = (path / f"{name}.json" for name in names)
        self.path, self.lock, self.checkpoints = path, path / ".lock", Checkpoints(path / "checkpoints")
        self.metrics, self.picture = path / "metrics.jsonl", path / "curve.png"
        self.weights = path / "weights.safetensors"
        self._replaced = (self.config, self.result, self.weights, self.model, self.tokeniser)

    @property
    def used(self) -> bool:
        """Whether the folder holds more than a lock, partial files and an empty folder of checkpoints."""
        try:
            if not self.path.exists():
                return False
            if not self.path.is_dir():
                raise ValueError(f"out must be a folder, and {self.path} is a file")
            entries = [path for path in self.path.iterdir() if path != self.lock and path.suffix != ".tmp"]
            return entries not in ([], [self.checkpoints.folder]) or self.checkpoints.any
        except OSError as error:  # a name that is too long, a folder that is closed to us
            raise ValueError(f"out: cannot look into {self.path}: {error.strerror or error}") from None

    def check(self, *, resume: bool, overwrite: bool) -> bool:
        """Whether the folder holds something; raises if it does, and neither `resume` nor `overwrite` is set."""
        if (used := self.used) and not (resume or overwrite):
            raise ValueError(
                f"out: {self.path} holds something already; resume it (resume, --resume), replace it (overwrite, "
                "--overwrite), or name another folder"
            )
        return used

    def prepare(self) -> None:
        """Create the folder and check that it is writable, before any work is done."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise ValueError(f"out: cannot write to the folder {self.path}: {error.strerror}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process, as `files.locked`; a `ValueError`, with its holder, if it is locked."""
        try:
            with locked(self.lock, wait=False):
                yield
        except LockedError as error:
            raise ValueError(f"out: {self.path} is in use by {error}") from None

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else."""
        of_estimators = ("estimator.json", "scores.json", "confusion.json", "confusion.png")
        for path in (*self._replaced, self.metrics, self.picture, *(self.path / name for name in of_estimators)):
            path.unlink(missing_ok=True)
        own = {self.checkpoints.folder: ("*.ckpt", "*.damaged*", ".*.tmp"), self.path / "tensorboard": ("events.*",)}
        for folder, patterns in own.items():
            for path in [path for pattern in patterns for path in folder.glob(pattern)]:
                path.unlink()
            with contextlib.suppress(OSError):  # something else is in it
                folder.rmdir()

    def remove_temporary(self) -> None:
        """Remove partial files of processes that were killed."""
        partial = [path for file in self._replaced for path in self.path.glob(f".{file.name}.*.tmp")]
        for path in (*partial, *self.checkpoints.folder.glob(".*.tmp")):
            path.unlink(missing_ok=True)

    def write_json(self, path: Path, value: Any) -> None:
        """Write one of the files as JSON."""
        write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self, path: Path) -> dict[str, Any]:
        """Read one of the files; raises `ValueError`, with its path, if it is missing or damaged."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise ValueError(f"{path} is torn: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path} must hold a JSON object")
        return value

    def recorded(self) -> dict[str, Any]:
        """The configuration that a run would be resumed with: of its newest checkpoint, which has a checksum."""
        header, problems = self.checkpoints.newest(header_only=True)
        if header is None:
            what = "; ".join(problems.values()) or f"{self.path} holds no checkpoint"
            raise ValueError(f"cannot resume {self.path}: {what}; start over with its recipe and --overwrite")
        return header["config"]  # type: ignore[no-any-return]

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; damaged ones are left out."""
        lines: list[Any] = []
        for text in self.metrics.read_bytes().splitlines() if self.metrics.exists() else ():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
        return [line for line in lines if isinstance(line, dict) and "step" in line]

    def append_metrics(self, numbers: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics.open("ab") as file:
            file.write((json.dumps(finite(numbers)) + "\n").encode())

    def flush_metrics(self) -> int:
        """Flush metrics.jsonl to disk; returns its size."""
        if not self.metrics.exists():
            return 0
        with self.metrics.open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def cut_metrics(self, size: int) -> int:
        """Truncate metrics.jsonl to its size at a checkpoint; returns how many bytes it lacks."""
        with self.metrics.open("a+b") as file:
            file.seek(0)
            end = file.read(size).rfind(b"\n") + 1
            file.truncate(end)
        return size - end


def machine() -> dict[str, str]:
    """Hardware and software versions, for the record of a run."""
    import torch

    from indrnn import __version__

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "indrnn": __version__,
    }


def command() -> list[str]:
    """How this program was called."""
    name = Path(sys.argv[0]).name
    return [*(["python", "-m", "indrnn"] if name == "__main__.py" else [name]), *sys.argv[1:]]


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not support (NaN, infinity) by None."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- opened for a run


def open_folder(
    folder: RunFolder, config: dict[str, Any], note: Say, stack: contextlib.ExitStack, resume: bool, overwrite: bool
) -> dict[str, Any] | None:
    """Lock a run's folder, until `stack` is closed; returns the state to resume from, or None for a new run."""
    used = folder.check(resume=resume, overwrite=overwrite)
    folder.prepare()
    stack.enter_context(folder.locked())
    if overwrite:
        folder.clear()
    state = _state_to_resume(folder, config, note) if resume and used else None
    if resume and not used:
        note(f"nothing to resume in {folder.path}: starting")
    folder.remove_temporary()
    return state


def _state_to_resume(folder: RunFolder, config: dict[str, Any], note: Say) -> dict[str, Any]:
    """The newest intact state. Raises if there is none: a run is never restarted by itself."""
    checkpoints = folder.checkpoints
    try:
        state, problems = checkpoints.newest()
    except OtherFormatError as error:
        raise RunError(f"cannot resume {folder.path}: {error}") from None
    if state is None:
        if not checkpoints.any and not folder.config.exists():
            raise ValueError(f"out: {folder.path} holds something that is no run of indrnn; name another folder")
        what = "; ".join(problems.values()) or f"{checkpoints.folder} holds no checkpoint"
        raise RunError(
            f"cannot resume {folder.path}: {what}. Nothing was changed: put the checkpoint back from a copy, or "
            "start over with overwrite (--overwrite), which throws this run away"
        )
    _compare(folder, state["config"], config)
    checkpoints.set_aside(problems)
    for problem in problems.values():
        note(f"{problem}; it is set aside")
    _restore_best_weights(folder, state, note)
    note(f"resuming at step {state['step']}")
    if lost := folder.cut_metrics(state["metrics_bytes"]):
        note(f"{folder.metrics} lacks {lost} bytes that it had at the checkpoint; it goes on without them")
    return state


def _compare(folder: RunFolder, earlier: dict[str, Any], config: dict[str, Any]) -> None:
    """Raise if a run differs from the earlier one in more than the options `MAY_DIFFER`."""
    from ..saving import flat

    old, new = flat(earlier), flat(config)
    free = {"processes", *(f"training.{name}" for name in MAY_DIFFER)}
    differences = [
        f"{name} was {old.get(name)!r} and is now {new.get(name)!r}"
        for name in sorted({*new, *old} - free)
        if old.get(name) != new.get(name)
    ]
    if differences:
        raise ValueError(f"cannot resume {folder.path} with other options: {'; '.join(differences)}")
    began, resumed = earlier["processes"], config["processes"]
    if began != resumed:
        raise ValueError(f"this run must be resumed by as many processes as began it, {began}, got {resumed}")


def _restore_best_weights(folder: RunFolder, state: dict[str, Any], note: Say) -> None:
    """Replace lost best weights by those of the finished run, else by the best from here on."""
    step, checkpoints = state["best_step"], folder.checkpoints
    if step is None:
        return
    path = checkpoints.best(step)
    try:
        load(path, header_only=True)
        return
    except (BrokenCheckpointError, OtherFormatError, OSError) as error:
        problem = str(error)
    if path.exists():
        path.replace(path.with_suffix(".damaged"))
    with contextlib.suppress(Exception):
        from safetensors.torch import load_file

        weights = load_file(folder.weights)
        if folder.read_json(folder.result)["best_step"] == step and weights.keys() == state["model"].keys():
            checkpoints.save_best(step, {"model": weights})
            note(f"{problem}; the best weights are taken from {folder.weights}")
            return
    note(f"{problem}; the best weights of step {step} are lost, and the best are sought from here on")
    state["best_step"], state["best"], state["since_best"] = None, {}, 0
