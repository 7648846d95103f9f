"""Figures for skeleton tasks: the samples that a run's network reads, and its confusion matrix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...figures import new_figure, save_figure
from ...files import write_atomically
from ...training import generator
from .task import SkeletonTask


def draw_samples(task: SkeletonTask, names: list[str], path: Path, *, rows: int = 4, frames: int = 10) -> None:
    """Draw frames of samples of training recordings, one recording per row, before features are computed.

    Args:
        task: the task; its joints have bones.
        names: names of its classes.
        path: the output file.
        rows: number of recordings, each of another action.
        frames: number of frames of a sample, evenly spaced.
    """
    items, labels = task.data["train"]
    classes = torch.unique(labels)
    chosen = classes[torch.linspace(0, len(classes) - 1, min(rows, len(classes))).round().long()]
    picked = torch.stack([items[labels == label][0] for label in chosen])
    where = torch.rand(task.samples.frames, len(picked), generator=generator(0, "picture"), dtype=torch.float64)
    x = task.bodies(picked, where)[:, :, 0].numpy()  # (T, rows, J, 3)
    shown = np.linspace(0, len(x) - 1, min(frames, len(x))).round().astype(int)
    figure, (axes,) = new_figure(1, width=1.0 * len(shown) + 0.6)
    figure.set_figheight(1.5 * len(picked) + 0.3)
    step = 1.15 * max(float(np.ptp(x[..., axis], axis=-1).max()) for axis in (0, 1))
    for row, label in enumerate(chosen.tolist()):
        for column, frame in enumerate(shown):
            across = x[frame, row, :, 0] + 0.8 * step * column
            up = x[frame, row, :, 1] - step * row
            for one, two in task.joints.bones:
                axes.plot(across[[one, two]], up[[one, two]], color=f"C{row}", linewidth=1.2)
            axes.scatter(across, up, s=3, color="0.2", zorder=3)
        axes.text(-0.6 * step, -step * row, names[label], ha="right", va="center")
    for column, frame in enumerate(shown):
        axes.text(0.8 * step * column, -step * (len(picked) - 0.35), f"{frame + 1}", ha="center", va="top", color="0.4")
    axes.set_aspect("equal")
    axes.axis("off")
    save_figure(figure, path)


def confusion(task: SkeletonTask, model: nn.Module, split: str = "test") -> np.ndarray[Any, np.dtype[np.int64]]:
    """Confusion matrix: recordings by true action (rows) and predicted action (columns), by the mean of the draws.

    Args:
        task: the recordings.
        model: the model, on the device to run on.
        split: "test", or "validation" with the draws of an evaluation.
    """
    model.eval()
    size = task.size(split)
    draws = task.samples.draws if split == "test" else task.samples.validation_draws
    counts = None
    with torch.inference_mode():
        for number in range(-(-size // task.batch_size)):
            mean, target = task.log_probabilities(model, split, number, draws)
            if counts is None:
                counts = np.zeros((mean.shape[1], mean.shape[1]), dtype=np.int64)
            np.add.at(counts, (target.cpu().numpy(), mean.argmax(1).cpu().numpy()), 1)
    assert counts is not None
    return counts


def write_confusion(
    counts: np.ndarray[Any, np.dtype[np.int64]], names: list[str], about: dict[str, Any], out: Path
) -> None:
    """Write confusion.json and confusion.png into a folder; columns are labelled by the names' numbers, if any."""
    figure, (axes,) = new_figure(1, width=6.2)
    figure.set_figheight(4.8)
    share = counts / counts.sum(1, keepdims=True).clip(1)
    picture = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    numbers = [match[1] for match in (re.fullmatch(r"(?:action )?(-?\d+)(?:\s.*)?", name) for name in names) if match]
    short = numbers if len(set(numbers)) == len(names) else names
    axes.set_xticks(range(len(counts)), short, fontsize=6, rotation=90 if short is names else 0)
    axes.set_yticks(range(len(counts)), names, fontsize=6)
    axes.set_xlabel("answer")
    axes.set_ylabel("action")
    figure.colorbar(picture, label="share of the action's recordings")
    write_atomically(
        out / "confusion.json", (json.dumps({**about, "classes": names, "counts": counts.tolist()}) + "\n").encode()
    )
    save_figure(figure, out / "confusion.png")
