"""Opening of a run's folder: checks before a run starts, and the state from which it is resumed."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

from ..saving import flat
from .checkpoint import BrokenCheckpointError, OtherFormatError, load
from .errors import RunError
from .folder import RunFolder
from .listeners import Listeners
from .options import MAY_DIFFER


def check_folder(folder: RunFolder, *, resume: bool, overwrite: bool) -> bool:
    """Whether a folder holds something; raises if it does, and neither `resume` nor `overwrite` is set."""
    used = folder.used
    if used and not (resume or overwrite):
        raise ValueError(
            f"out: {folder.path} holds something already; resume it (resume, --resume), replace it (overwrite, "
            "--overwrite), or name another folder"
        )
    return used


def open_folder(
    folder: RunFolder, config: dict[str, Any], tell: Listeners, stack: ExitStack, resume: bool, overwrite: bool
) -> dict[str, Any] | None:
    """Lock a run's folder, until `stack` is closed; returns the state to resume from, or None for a new run."""
    used = check_folder(folder, resume=resume, overwrite=overwrite)
    folder.prepare()
    stack.enter_context(folder.locked())
    if overwrite:
        folder.clear()
    state = _state_to_resume(folder, config, tell) if resume and used else None
    if resume and not used:
        tell("on_note", f"nothing to resume in {folder.path}: starting")
    folder.remove_temporary()
    return state


def _state_to_resume(folder: RunFolder, config: dict[str, Any], tell: Listeners) -> dict[str, Any]:
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
        tell("on_note", f"{problem}; it is set aside")
    _restore_best_weights(folder, state, tell)
    tell("on_note", f"resuming at step {state['step']}")
    if lost := folder.cut_metrics(state["metrics_bytes"]):
        tell("on_note", f"{folder.metrics} lacks {lost} bytes that it had at the checkpoint; it goes on without them")
    return state


def _compare(folder: RunFolder, earlier: dict[str, Any], config: dict[str, Any]) -> None:
    """Raise if a run differs from the earlier one in more than the options `MAY_DIFFER`."""
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


def _restore_best_weights(folder: RunFolder, state: dict[str, Any], tell: Listeners) -> None:
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
    with suppress(Exception):
        from safetensors.torch import load_file

        weights = load_file(folder.weights)
        if folder.read_json(folder.result)["best_step"] == step and weights.keys() == state["model"].keys():
            checkpoints.save_best(step, {"model": weights})
            tell("on_note", f"{problem}; the best weights are taken from {folder.weights}")
            return
    tell("on_note", f"{problem}; the best weights of step {step} are lost, and the best are sought from here on")
    state["best_step"], state["best"], state["since_best"] = None, {}, 0
