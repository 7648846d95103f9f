"""The folder of a run: what was asked for, what was measured, and the weights."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch

from .checkpoint import Checkpoints, write_atomically


class RunFolder:
    """A run's files.

    config.json, metrics.jsonl, checkpoints/, and at the end result.json, weights.safetensors and model.json.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.weights = path / "weights.safetensors"
        self.model = path / "model.json"
        self.picture = path / "curve.png"
        self.checkpoints = Checkpoints(path / "checkpoints")

    @property
    def used(self) -> bool:
        """Whether something is there already."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out must be a folder, and {self.path} is a file")
        return self.path.is_dir() and any(self.path.iterdir())

    def prepare(self) -> None:
        """Make the folder and see that it can be written to, before any work is done."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".{os.getpid()}.tmp"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ValueError(f"out: cannot write to the folder {self.path}: {error.strerror}") from None

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else."""
        for path in (self.config, self.metrics, self.result, self.weights, self.model, self.picture):
            path.unlink(missing_ok=True)
        own = {self.checkpoints.folder: ("*.ckpt", "*.damaged", ".*.tmp"), self.path / "tensorboard": ("events.*",)}
        for folder, patterns in own.items():
            for path in [path for pattern in patterns for path in folder.glob(pattern)]:
                path.unlink()
            with contextlib.suppress(OSError):  # something else is in it
                folder.rmdir()

    def remove_temporary(self) -> None:
        """Remove what processes that were killed had half written."""
        files = (self.config, self.result, self.weights, self.model)
        for path in [path for file in files for path in self.path.glob(f".{file.name}.*.tmp")]:
            path.unlink(missing_ok=True)
        for path in self.checkpoints.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def write_json(self, path: Path, value: Any) -> None:
        """Write one of the files as JSON."""
        write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in self.metrics.read_text().splitlines()] if self.metrics.exists() else []


def machine() -> dict[str, str]:
    """Where and with what a run took place."""
    from indrnn import __version__

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return {
        "cpu": name,
        "cores": str(os.cpu_count()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "indrnn": __version__,
    }


def now() -> str:
    """The time, to the second, with its zone."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def command() -> list[str]:
    """How this program was called."""
    name = Path(sys.argv[0]).name
    return [*(["python", "-m", "indrnn"] if name == "__main__.py" else [name]), *sys.argv[1:]]


def plain(value: Any) -> Any:
    """Options as JSON can hold them; a dataclass carries its class's name."""
    if is_dataclass(value) and not isinstance(value, type):
        fields = {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value
