"""Figures of skeletons: the samples that a run's network reads, and its confusion matrix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...figures import draw_confusion, need_matplotlib, new_figure, save_figure
from ...files import write_atomically
from ...training import RunFolder, Shard, generator
from ..recipe import Say
from ..runs import Run
from .recipe import SkeletonsOptions
from .task import SkeletonTask


def analyse(run: Run, options: SkeletonsOptions, arguments: list[str], say: Say) -> None:
    """The command `indrnn analyse skeletons`."""
    for name in ("samples.png", "confusion.json", "confusion.png"):
        if (options.out / name).exists() and not options.overwrite:
            raise ValueError(f"out: {options.out} holds {name} already; replace them with --overwrite")
    recipe: Any = run.at(options.data_dir)
    task: Any = run.checked_task(recipe)
    if not task.size("test"):
        raise ValueError(f"run must have recordings for test, and {run.path} has none")
    need_matplotlib()
    RunFolder(options.out).prepare()
    counts = confusion(task, run.best[0])
    names = recipe.actions(len(counts))
    if task.joints.bones:
        draw_samples(task, names, options.out / "samples.png")
    content = json.dumps({**run.summary, "recipe": run.recipe_name, "classes": names, "counts": counts.tolist()}) + "\n"
    write_atomically(options.out / "confusion.json", content.encode())
    numbers = [match[1] for match in (re.fullmatch(r"(?:action )?(-?\d+)(?:\s.*)?", name) for name in names) if match]
    draw_confusion(options.out / "confusion.png", counts, names, numbers if len(set(numbers)) == len(names) else None)
    drawn = "confusion.png, samples.png" if task.joints.bones else "confusion.png"
    say(f"{counts.trace()} of {counts.sum()} recordings right; drawn in {options.out}: {drawn}")


def confusion(task: SkeletonTask, model: nn.Module, split: str = "test") -> NDArray[np.int64]:
    """Confusion matrix: recordings by true action (rows) and predicted action (columns), by the mean of the draws."""
    model.eval()
    with torch.inference_mode():
        batches = list(task.log_probabilities(model, split, Shard()))
    classes = batches[0][0].shape[1]
    pairs = torch.cat([target * classes + mean.argmax(1) for mean, target in batches])
    return pairs.bincount(minlength=classes * classes).view(classes, classes).cpu().numpy()


def draw_samples(task: SkeletonTask, names: list[str], path: Path, *, rows: int = 4, frames: int = 10) -> None:
    """Draw evenly spaced frames of samples of training recordings, each of another action in a row of its own."""
    items, labels = task.data["train"]
    classes = torch.unique(labels)
    chosen = classes[torch.linspace(0, len(classes) - 1, min(rows, len(classes))).round().long()]
    picked = torch.stack([items[labels == label][0] for label in chosen])
    where = torch.rand(task.samples.frames, len(picked), generator=generator(0, "picture"), dtype=torch.float64)
    x = task.bodies(picked, where)[:, :, 0].numpy()  # (T, rows, J, 3)
    shown = np.linspace(0, len(x) - 1, min(frames, len(x))).round().astype(int)
    figure, (axes,) = new_figure(1, 1.0 * len(shown) + 0.6, 1.5 * len(picked) + 0.3)
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
