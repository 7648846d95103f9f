"""Opening of a run's folder: checks before a run starts, and the state from which it is resumed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from ..saving import flat, to_json
from .checkpoint import FORMAT, BrokenCheckpointError, verify
from .errors import RunError
from .folder import RunFolder
from .listeners import Listeners
from .options import FREE_ON_RESUME

# What config.json says beside what was asked for
_OF_THIS_TIME = ("processes", "fused", "command", "started", "threads", "machine", "resumed")


def check_folder(folder: RunFolder, *, resume: bool, overwrite: bool) -> bool:
    """Whether a folder holds something; raises if it does, and neither `resume` nor `overwrite` is set."""
    used = folder.used
    if used and not (resume or overwrite):
        raise ValueError(
            f"out: {folder.path} holds something already; go on with it (resume), replace it (overwrite), or name "
            "another folder"
        )
    return used


@dataclass
class Opening:
    """Opens a run's folder, in the main process."""

    folder: RunFolder
    asked: dict[str, Any]
    """What was asked for: a run is only resumed by its equal."""
    processes: int
    tell: Listeners

    def open(self, stack: contextlib.ExitStack, resume: bool, overwrite: bool) -> dict[str, Any] | None:
        """Lock the folder; returns the state to resume from, or None for a new run."""
        folder = self.folder
        used = check_folder(folder, resume=resume, overwrite=overwrite)
        folder.prepare()
        stack.enter_context(folder.locked())
        if overwrite:
            folder.clear()
        state = self._found() if resume and used else None
        if resume and not used:
            self.tell("on_note", f"nothing to resume in {folder.path}: starting")
        folder.remove_temporary()
        return state

    def _found(self) -> dict[str, Any]:
        """The state to resume from. Raises if there is none: a run is never restarted by itself."""
        folder = self.folder
        state, troubles = folder.checkpoints.find()
        if state is None:
            if not folder.checkpoints.any and not folder.config.exists():
                raise ValueError(f"out: {folder.path} holds something that is no run of indrnn; name another folder")
            what = "; ".join(troubles) or f"{folder.checkpoints.folder} holds no checkpoint"
            raise RunError(
                f"cannot resume {folder.path}: {what}. Nothing was changed: put the checkpoint back from a copy, or "
                "start over with overwrite (--overwrite), which throws this run away"
            )
        if state.get("format", 1) > FORMAT:
            raise RunError(
                f"cannot resume {folder.path}: its checkpoint has format {state['format']}, of a later version of "
                f"indrnn; this one reads up to {FORMAT}"
            )
        # The checkpoint's options have a checksum; in the first format they are in config.json alone.
        self._compare(state["config"] if "config" in state else folder.read_json(folder.config))
        if state["processes"] != self.processes:
            raise ValueError(
                f"this run must be resumed by as many processes as began it, {state['processes']}, got {self.processes}"
            )
        folder.checkpoints.settle()
        for trouble in troubles:
            self.tell("on_note", f"{trouble}; it is set aside")
        self._see_to_best(state)
        self.tell("on_note", f"resuming at step {state['step']}")
        short = folder.cut_metrics(state["metrics_bytes"])
        if short:
            self.tell("on_note", short)
        return state

    def _see_to_best(self, state: dict[str, Any]) -> None:
        """Replace lost best weights by those of the finished run, else by the best from here on."""
        step = state["best_step"]
        if step is None:
            return
        folder = self.folder
        path = folder.checkpoints.best(step)
        try:
            verify(path)
            return
        except (BrokenCheckpointError, OSError) as error:
            about = str(error)
        if path.exists():
            path.replace(path.with_suffix(".damaged"))
        with contextlib.suppress(Exception):
            if folder.read_json(folder.result)["best_step"] == step:
                from safetensors.torch import load_file

                weights = load_file(folder.weights)
                if weights.keys() == state["model"].keys():
                    folder.checkpoints.save_best(step, {"model": weights})
                    self.tell("on_note", f"{about}; the best weights are taken from {folder.weights}")
                    return
        self.tell("on_note", f"{about}; the best weights of step {step} are lost, and the best are sought from here on")
        folder.checkpoints.forget_best()
        state["best_step"], state["best"], state["since_best"] = None, {}, 0

    def _compare(self, earlier: dict[str, Any]) -> None:
        """Raise if this run differs from the earlier one in more than the options `FREE_ON_RESUME`."""
        new = flat(to_json(self.asked))
        old = flat({name: value for name, value in earlier.items() if name not in _OF_THIS_TIME})
        differences = []
        for name in sorted({*new, *old}):
            if name.startswith("training.") and name.removeprefix("training.") in FREE_ON_RESUME:
                continue
            if old.get(name) != new.get(name):
                differences.append(f"{name} was {old.get(name)!r} and is now {new.get(name)!r}")
        if differences:
            raise ValueError(f"cannot resume {self.folder.path} with other options: {'; '.join(differences)}")
