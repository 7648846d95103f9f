"""A run's best weights: of a finished run in its folder, of another in the checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checkpoint import BrokenCheckpointError
from .folder import RunFolder

if TYPE_CHECKING:
    from torch import nn


def is_finished(folder: RunFolder) -> bool:
    """Whether a run's saved weights belong to its last checkpoint, rather than to an end before it was resumed."""
    if not (folder.result.exists() and folder.weights.exists()):
        return False
    header, _ = folder.checkpoints.newest_header()
    return header is None or bool(header["step"] == folder.read_json(folder.result)["steps"])


def best_model(folder: RunFolder) -> tuple[nn.Module, str]:
    """A run's model with its best weights, in evaluation mode, and which they are; nothing in the folder changes.

    Raises:
        ValueError: if there are no weights yet, or they cannot be read.
    """
    from ..saving import load_module, new_module

    if not folder.config.exists():
        return load_module(folder.path), "the saved weights"
    if is_finished(folder):
        return load_module(folder.path), "the finished run's weights"
    model = new_module(folder.path)
    step = load_best(model, folder)
    return model.eval(), f"the best weights so far, of step {step} (the run is not finished)"


def load_best(model: nn.Module, folder: RunFolder) -> int | None:
    """Load the best weights of a run into a model, without changing the run's folder; returns their step.

    Raises:
        ValueError: if there are no weights yet, or they cannot be read.
    """
    if is_finished(folder):
        from safetensors.torch import load_model

        load_model(model, folder.weights)
        return folder.read_json(folder.result)["best_step"]  # type: ignore[no-any-return]
    header, problems = folder.checkpoints.newest_header()
    if header is None:
        raise ValueError("; ".join(problems) or f"{folder.path} holds no weights and no checkpoint")
    step: int | None = header["best_step"]
    if step is None:
        raise ValueError(f"{folder.path} holds no weights and no checkpoint with an evaluation yet")
    try:
        best = folder.checkpoints.load_best(step)
    except (BrokenCheckpointError, OSError) as error:
        raise ValueError(f"the best weights so far cannot be read: {error}") from None
    model.load_state_dict(best.get("weights", best["model"]))
    return step
