"""Scores of predictions on held-out series: accuracy with its interval, confusion matrix, errors; naive baselines."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...figures import draw_confusion
from ...files import write_atomically
from .collection import Array, Collection
from .preparation import Target, moments

if TYPE_CHECKING:
    from .estimators import Estimator

SHOWN = 12  # classes of a confusion matrix in text; of more, the most frequent confusions are listed
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
    counts: Array  # series of each true class (rows) and predicted class (columns), (classes, classes)

    @classmethod
    def of(cls, right: Array, predictions: Array, classes: Array) -> ClassScores:
        """Count predictions; a class in `right` that is not among the classes gets a row of its own, at the end."""
        names = tuple(dict.fromkeys(map(str, [*classes.tolist(), *np.unique(right).tolist()])))
        index = {name: i for i, name in enumerate(names)}
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, tuple([index[str(name)] for name in array.tolist()] for array in (right, predictions)), 1)
        return cls(names, counts)

    def numbers(self) -> dict[str, Any]:
        """Return the metrics as a JSON-serialisable dictionary; balanced accuracy is of the classes that occur."""
        right, sizes = self.counts.diagonal(), self.counts.sum(1)
        balanced = float((right[sizes > 0] / sizes[sizes > 0]).mean())
        return _accuracies(int(right.sum()), int(sizes.sum()), balanced)

    def table(self) -> list[str]:
        """Confusion matrix as text (rows: true, columns: predicted); for many classes, the most frequent confusions."""
        if len(self.classes) > SHOWN:
            wrong = self.counts - np.diag(self.counts.diagonal())
            order = np.argsort(-wrong, axis=None, kind="stable")[:10]
            pairs = [divmod(at, len(wrong)) for at in order.tolist() if wrong.flat[at]]
            listed = [f"  {self.classes[a]} taken for {self.classes[b]}: {wrong[a, b]}" for a, b in pairs]
            return ["most frequent confusions:", *listed] if listed else ["no confusions"]
        names = [name if len(name) <= 16 else f"{name[:15]}…" for name in self.classes]
        rows = [["right / answer", *names]]
        rows += [[name, *(str(n or "·") for n in row)] for name, row in zip(names, self.counts.tolist(), strict=True)]
        left, *wide = (max(map(len, column)) for column in zip(*rows, strict=True))
        cells = [[f"{cell:>{width}}" for cell, width in zip(row[1:], wide, strict=True)] for row in rows]
        return ["  ".join([f"{row[0]:{left}}", *texts]) for row, texts in zip(rows, cells, strict=True)]

    def write(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write confusion.json, with facts about the run, and, where matplotlib is installed, confusion.png."""
        content = {**facts, "classes": self.classes, "counts": self.counts.tolist()}
        write_atomically(folder / "confusion.json", (json.dumps(content, ensure_ascii=False) + "\n").encode())
        with contextlib.suppress(ImportError):
            draw_confusion(folder / "confusion.png", self.counts, self.classes)


def _accuracies(right: int, count: int, balanced: float) -> dict[str, Any]:
    interval = list(wilson(right, count))
    return {"accuracy": right / count, "accuracy_interval": interval, "balanced_accuracy": balanced, "series": count}


def _accuracy_lines(numbers: dict[str, Any], name: str, of: str = "") -> list[str]:
    (low, high), count = numbers["accuracy_interval"], numbers["series"]
    right = f"{round(numbers['accuracy'] * count)} of {count}"
    first = f"{name:18} {numbers['accuracy']:.1%}, 95 % interval {low:.1%} to {high:.1%} ({right})"
    return [first, f"balanced accuracy  {numbers['balanced_accuracy']:.1%}{of}"]


def _naive_line(numbers: dict[str, Any], name: str) -> str:
    return f"naive baseline     {numbers['accuracy']:.1%}, balanced {numbers['balanced_accuracy']:.1%}: {name}"


def number_scores(right: Array, predictions: Array) -> dict[str, Any]:
    """Errors of predicted numbers, (n,) or (n, outputs), as a JSON-serialisable dictionary."""
    errors = predictions.astype(np.float64) - right
    spread = float(np.square(right - right.mean(0)).sum())
    return {
        "mean_absolute_error": float(np.abs(errors).mean()),
        "root_mean_squared_error": float(np.sqrt(np.square(errors).mean())),
        "r2": 1 - float(np.square(errors).sum()) / spread if spread else math.nan,
        "series": len(right),
    }


def nearest_class(train: Collection, test: Collection, truth: Array, classes: Array) -> ClassScores:
    """Scores of predicting the class nearest by mean and deviation of each channel, and logarithm of the length."""
    assert train.y is not None
    summaries = [np.stack([np.r_[(*moments(x), np.log(x.shape[1]))] for x in data.x]) for data in (train, test)]
    middle, scale = summaries[0].mean(0), summaries[0].std(0)
    scale[scale == 0] = 1
    known, others = ((summary - middle) / scale for summary in summaries)
    names = np.unique(train.y)
    centres = np.stack([known[train.y == name].mean(0) for name in names])
    nearest = names[[np.square(centres - row).sum(1).argmin() for row in others]]
    return ClassScores.of(truth, nearest, classes)


# ---- an estimator on series with targets

Scores = tuple[list[str], dict[str, Any], ClassScores | None]  # to print, for files, and of classes their matrix


def score(estimator: Estimator, test: Collection, train: Collection | None = None) -> Scores:
    """Evaluate an estimator on series with targets; given the training series, compare it with naive baselines."""
    target = estimator.target_
    _check_targets(target, test.y)

    def flat(y: Any) -> Array:  # all steps, series after series
        return np.concatenate([np.ravel(steps) for steps in y]) if target.per_step else np.asarray(y)

    truth, predictions = flat(test.y), flat(estimator.predict(test))
    known = None if train is None else flat(train.y)
    if target.kind == "labels":
        return _of_labels(truth.astype(np.int64), predictions, known)
    if target.kind == "numbers":
        return _of_numbers(truth.astype(np.float64), predictions, known)
    classes = target.classes
    truth = truth.astype(classes.dtype) if truth.dtype.kind == "f" and classes.dtype.kind in "iu" else truth
    scores = ClassScores.of(truth, predictions, classes)
    lines, naive = _accuracy_lines(scores.numbers(), "accuracy"), dict[str, Any]()
    if known is not None:
        values, counts = np.unique(known, return_counts=True)
        most = values[np.argmax(counts)]
        naive[f"always {most}"] = ClassScores.of(truth, np.repeat(most, len(truth)), classes).numbers()
    if target.per_step:
        lines.append("over all steps; those of one series are not independent, and the interval is too narrow")
    elif train is not None:
        naive["nearest by mean and deviation of channels"] = nearest_class(train, test, truth, classes).numbers()
    lines += [_naive_line(numbers, name) for name, numbers in naive.items()]
    return [*lines, "", *scores.table()], {**scores.numbers(), "naive": naive}, scores


def _check_targets(target: Target, y: Any) -> None:
    if target.per_step:
        return
    shape = (len(y), target.outputs) if target.kind == "labels" or not target.flat else (len(y),)
    if np.shape(y) != shape:
        raise ValueError(f"target must have the shape {shape}, as in training, got {np.shape(y)}")
    values = [] if target.kind == "classes" else np.ravel(y).tolist()
    if target.kind == "labels" and (wrong := set(values) - {0, 1}):
        raise ValueError(f"target of several labels must hold 0 and 1, got {min(wrong)!r}")
    for value in values:
        if not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise ValueError(f"target must hold finite numbers, as in training, got {value!r}")


def _of_labels(truth: Array, predictions: Array, known: Array | None) -> Scores:
    """Scores of multi-label targets: how often all labels are right, and each by itself."""

    def numbers_of(answers: Array) -> dict[str, Any]:
        labels = [ClassScores.of(truth[:, i], answers[:, i], np.arange(2)) for i in range(truth.shape[1])]
        rows = [{**label.numbers(), "counts": label.counts.tolist()} for label in labels]
        balanced = float(np.mean([row["balanced_accuracy"] for row in rows]))
        return {**_accuracies(int((answers == truth).all(1).sum()), len(truth), balanced), "labels": rows}

    numbers = numbers_of(predictions)
    lines = _accuracy_lines(numbers, "all labels right", ", the mean over labels")
    if known is not None:
        naive = numbers_of(np.broadcast_to((known.mean(0) > 0.5).astype(np.int64), truth.shape))
        numbers["naive"] = {"most frequent answer of each label": naive}
        lines.append(_naive_line(naive, "each label's most frequent answer"))
    lines += ["", f"{'label':>5}  {'right':>6}  {'series':>6}  {'found':>6}  {'missed':>6}  {'wrongly':>7}"]
    for number, label in enumerate(numbers["labels"]):
        (_, wrongly), (missed, there) = label["counts"]
        counts = f"{missed + there:>6}  {there:>6}  {missed:>6}  {wrongly:>7}"
        lines.append(f"{number:>5}  {label['accuracy']:>6.1%}  {counts}")
    return lines, numbers, None


def _of_numbers(truth: Array, predictions: Array, known: Array | None) -> Scores:
    numbers, naive = number_scores(truth, predictions), dict[str, Any]()
    error, root, r2, _ = numbers.values()
    lines = [f"mean absolute error      {error:.5g}", f"root mean squared error  {root:.5g}"]
    lines.append(f"R²                       {r2:.4f}")
    if known is not None:
        mean = np.broadcast_to(known.astype(np.float64).mean(0), truth.shape)
        naive["mean of training"] = number_scores(truth, mean)
        error, root, *_ = naive["mean of training"].values()
        lines.append(f"naive baseline           {error:.5g} and {root:.5g}: always the mean of training")
    return lines, {**numbers, "naive": naive}, None
