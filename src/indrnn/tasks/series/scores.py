"""Metrics: accuracy with its interval, balanced accuracy, confusion matrix, errors; and naive baselines."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...files import write_atomically
from .collection import Array, Collection

SHOWN = 12
"""Classes that a confusion matrix in text has at most; of more, the most frequent confusions are listed."""
_Z = 1.959964  # 95 % of a normal distribution


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a proportion, by Wilson's score: within 0 and 1, and accurate for small counts too."""
    share, square = right / count, _Z * _Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _Z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    # Exactly 0 and 1 at the ends, where rounding would leave a little
    return (0.0 if right == 0 else max(0.0, middle - half)), (1.0 if right == count else min(1.0, middle + half))


@dataclass(frozen=True)
class ClassScores:
    """Confusion matrix of true and predicted classes, with the metrics computed from it."""

    classes: tuple[str, ...]
    counts: Array
    """(classes, classes): rows are the right ones, columns the answers."""

    @classmethod
    def of(cls, right: Array, answers: Array, classes: Array) -> ClassScores:
        """Count predictions; a class in `right` that is not among the classes gets a row of its own, at the end."""
        names = [str(each) for each in classes.tolist()]
        names += [name for name in map(str, np.unique(right).tolist()) if name not in names]
        number = {name: i for i, name in enumerate(names)}
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        rows, columns = ([number[str(each)] for each in array.tolist()] for array in (right, answers))
        np.add.at(counts, (rows, columns), 1)
        return cls(tuple(names), counts)

    @property
    def accuracy(self) -> float:
        """Fraction of correct predictions."""
        return float(self.counts.trace() / self.counts.sum())

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the classes that occur."""
        sizes = self.counts.sum(1)
        there = sizes > 0
        return float((self.counts.diagonal()[there] / sizes[there]).mean())

    def numbers(self) -> dict[str, Any]:
        """Return the metrics as a JSON-serialisable dictionary."""
        low, high = wilson(int(self.counts.trace()), int(self.counts.sum()))
        return {
            "accuracy": self.accuracy,
            "accuracy_interval": [low, high],
            "balanced_accuracy": self.balanced_accuracy,
            "series": int(self.counts.sum()),
        }

    def lines(self) -> list[str]:
        """Return the metrics as lines of text."""
        low, high = wilson(int(self.counts.trace()), int(self.counts.sum()))
        return [
            f"accuracy           {self.accuracy:.1%}, 95 % interval {low:.1%} to {high:.1%} "
            f"({self.counts.trace()} of {self.counts.sum()})",
            f"balanced accuracy  {self.balanced_accuracy:.1%}",
        ]

    def table(self) -> list[str]:
        """Confusion matrix as text (rows: true, columns: predicted); for many classes, the most frequent confusions."""
        if len(self.classes) > SHOWN:
            wrong = self.counts - np.diag(self.counts.diagonal())
            order = np.argsort(-wrong, axis=None, kind="stable")[:10]
            pairs = [tuple(int(i) for i in np.unravel_index(at, wrong.shape)) for at in order if wrong.flat[at]]
            told = [f"  {self.classes[a]} taken for {self.classes[b]}: {wrong[a, b]}" for a, b in pairs]
            return ["most frequent confusions:", *told] if told else ["no confusions"]
        names = [name if len(name) <= 16 else f"{name[:15]}…" for name in self.classes]
        corner = "right / answer"
        left = max(len(corner), *map(len, names))
        wide = [max(len(name), len(str(column.max()))) for name, column in zip(names, self.counts.T, strict=True)]
        lines = [f"{corner:{left}}  " + "  ".join(f"{n:>{w}}" for n, w in zip(names, wide, strict=True))]
        for name, row in zip(names, self.counts.tolist(), strict=True):
            cells = "  ".join(f"{value or '·':>{w}}" for value, w in zip(row, wide, strict=True))
            lines.append(f"{name:{left}}  {cells}")
        return lines

    def write(self, out: Path, about: dict[str, Any]) -> None:
        """Write confusion.json and, where matplotlib is installed, confusion.png into a folder."""
        content = {**about, "classes": self.classes, "counts": self.counts.tolist()}
        write_atomically(out / "confusion.json", (json.dumps(content, ensure_ascii=False) + "\n").encode())
        try:
            from ...figures import named, new_figure, save_figure

            figure, (axes,) = new_figure(1, width=5.2)
        except ImportError:
            return
        figure.set_figheight(4.6)
        picture = axes.imshow(self.counts / self.counts.sum(1, keepdims=True).clip(1), cmap="Blues", vmin=0, vmax=1)
        for set_ticks in (axes.set_xticks, axes.set_yticks):
            names = [named(name, 24) for name in self.classes]
            set_ticks(range(len(names)), names, fontsize=8 if len(names) <= SHOWN else 5)
        axes.tick_params(axis="x", rotation=90)
        axes.set_xlabel("answer")
        axes.set_ylabel("right")
        figure.colorbar(picture, label="share of the class's series")
        save_figure(figure, out / "confusion.png")


@dataclass(frozen=True)
class NumberScores:
    """True and predicted numbers, (n,) or (n, outputs), with the metrics computed from them."""

    right: Array
    answers: Array

    def numbers(self) -> dict[str, Any]:
        """Return the metrics as a JSON-serialisable dictionary."""
        errors = self.answers.astype(np.float64) - self.right
        spread = float(np.square(self.right - self.right.mean(0)).sum())
        return {
            "mean_absolute_error": float(np.abs(errors).mean()),
            "root_mean_squared_error": float(np.sqrt(np.square(errors).mean())),
            "r2": 1 - float(np.square(errors).sum()) / spread if spread else math.nan,
            "series": len(self.right),
        }

    def lines(self) -> list[str]:
        """Return the metrics as lines of text."""
        found = self.numbers()
        return [
            f"mean absolute error      {found['mean_absolute_error']:.5g}",
            f"root mean squared error  {found['root_mean_squared_error']:.5g}",
            f"R²                       {found['r2']:.4f}",
        ]


def naive_classes(train: Collection, test: Collection, classes: Array) -> dict[str, ClassScores]:
    """Scores of baselines that ignore the order of steps: the most frequent class, and the nearest class mean.

    The second standardises each channel's mean and deviation over time, and the logarithm of the length, and predicts
    the class whose mean is nearest.
    """
    assert train.y is not None
    assert test.y is not None
    values, counts = np.unique(train.y, return_counts=True)
    most = np.repeat(values[np.argmax(counts)], len(test))
    known, asked = _summaries(train), _summaries(test)
    middle, scale = known.mean(0), known.std(0)
    scale[scale == 0] = 1
    known, asked = (known - middle) / scale, (asked - middle) / scale
    centres = np.stack([known[train.y == each].mean(0) for each in values])
    nearest = np.array([values[np.square(centres - one).sum(1).argmin()] for one in asked])
    return {
        f"always {values[np.argmax(counts)]}": ClassScores.of(test.y, most, classes),
        "nearest by mean and deviation of channels": ClassScores.of(test.y, nearest, classes),
    }


def _summaries(series: Collection) -> Array:
    """(n, 2 channels + 1): means and deviations over time, 0 if no value is present, and the log of the length."""
    found = []
    for one in series.x:
        there = ~np.isnan(one)
        count = there.sum(1).clip(1)
        mean = np.where(there, one, 0).sum(1, dtype=np.float64) / count
        square = np.where(there, one - mean[:, None], 0)
        found.append(np.r_[mean, np.sqrt(np.square(square).sum(1) / count), np.log(one.shape[1])])
    return np.stack(found)


def naive_numbers(train: Collection, test: Collection) -> NumberScores:
    """Scores of a baseline that predicts the mean of the training targets."""
    assert train.y is not None
    assert test.y is not None
    mean = np.asarray(train.y, dtype=np.float64).mean(0)
    return NumberScores(np.asarray(test.y, dtype=np.float64), np.broadcast_to(mean, test.y.shape))


def hold_out(series: Collection, share: float, *, by_class: bool, seed: int = 0) -> Array:
    """Select test series, (n,) bool: whole groups if there are groups, else a share of each class.

    A class keeps at least one series for training; of two or more series, at least one is for test.
    """
    if not 0 < share < 1:
        raise ValueError(f"test_share must be a number between 0 and 1, got {share!r}")
    draw = np.random.default_rng(seed)
    held = np.zeros(len(series), dtype=bool)
    if series.groups is not None:
        known = np.unique(series.groups)
        if len(known) < 2:
            raise ValueError(f"group must have at least two values to hold one of them out, got one, {known[0]!r}")
        count = min(len(known) - 1, max(1, round(share * len(known))))
        return np.asarray(np.isin(series.groups, draw.permutation(known)[:count]), dtype=bool)
    labels = series.y if by_class and series.y is not None else np.zeros(len(series))
    for each in np.unique(labels):
        members = np.flatnonzero(labels == each)
        count = min(len(members) - 1, max(1, round(share * len(members))))
        held[draw.permutation(members)[:count]] = True
    return held
