"""Scores of an estimator's predictions on held-out series, for `fit` and `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..tasks.series.collection import Array, Collection
from ..tasks.series.scores import ClassScores, NumberScores, naive_classes, naive_numbers, wilson
from .main import UsageError


@dataclass(frozen=True)
class Scored:
    """Scores, as lines to print and numbers for files."""

    lines: list[str]
    numbers: dict[str, Any]
    classes: ClassScores | None = None

    def write(self, out: Path, about: dict[str, Any]) -> None:
        """Write the confusion matrix, if there is one."""
        if self.classes is not None:
            self.classes.write(out, about)


def _check_targets(target: Any, y: Any) -> None:
    """Raise if the targets are of another kind than those of training."""
    if target.per_step:
        return
    shape = (len(y), target.outputs) if target.kind == "labels" or not target.flat else (len(y),)
    if np.shape(y) != shape:
        raise UsageError(f"target must have the shape {shape}, as in training, got {np.shape(y)}")
    if target.kind == "numbers" and not (y.dtype.kind in "biuf" and np.isfinite(y).all()):
        wrong = next(
            each for each in np.ravel(y) if not (isinstance(each, (int, float, np.number)) and np.isfinite(each))
        )
        raise UsageError(f"target must hold finite numbers, as in training, got {wrong!r}")


def score(estimator: Any, test: Collection, train: Collection | None = None) -> Scored:
    """Evaluate an estimator on series with targets; given the training series, compare it with naive baselines."""
    assert test.y is not None
    kind, per_step = estimator.target_.kind, estimator.target_.per_step
    _check_targets(estimator.target_, test.y)
    answers = estimator.predict(test)
    if kind == "labels":
        return _of_labels(np.asarray(answers), test, train)
    if kind == "numbers":
        return _of_numbers(answers, test, train, per_step)
    truth = _flat(test.y) if per_step else test.y
    known = estimator.classes_
    truth = truth.astype(known.dtype) if truth.dtype.kind == "f" and known.dtype.kind in "iu" else truth
    found = ClassScores.of(truth, _flat(answers) if per_step else answers, known)
    lines = found.lines()
    naive: dict[str, ClassScores] = {}
    if train is not None and train.y is not None:
        if per_step:
            values, counts = np.unique(_flat(train.y), return_counts=True)
            most = values[counts.argmax()]
            naive = {f"always {most}": ClassScores.of(truth, np.repeat(most, len(truth)), known)}
        else:
            naive = naive_classes(train, replace(test, y=truth), known)
    if per_step:
        lines.append("over all steps; those of one series are not independent, and the interval is too narrow")
    for name, each in naive.items():
        lines.append(f"naive baseline     {each.accuracy:.1%}, balanced {each.balanced_accuracy:.1%}: {name}")
    baselines = {name: each.numbers() for name, each in naive.items()}
    return Scored([*lines, "", *found.table()], {**found.numbers(), "naive": baselines}, found)


def _of_labels(answers: Array, test: Collection, train: Collection | None) -> Scored:
    """Scores of multi-label targets: how often all labels are right, and each by itself."""
    truth = np.asarray(test.y)
    if not np.isin(truth, (0, 1)).all():
        raise UsageError(f"target of several labels must hold 0 and 1, got {truth[~np.isin(truth, (0, 1))][0]!r}")
    truth = truth.astype(np.int64)

    def numbers(given: Array) -> dict[str, Any]:
        right = int((given == truth).all(1).sum())
        low, high = wilson(right, len(truth))
        each = [ClassScores.of(truth[:, i], given[:, i], np.arange(2)) for i in range(truth.shape[1])]
        return {
            "accuracy": right / len(truth),
            "accuracy_interval": [low, high],
            "balanced_accuracy": float(np.mean([one.balanced_accuracy for one in each])),
            "series": len(truth),
            "labels": [{**one.numbers(), "counts": one.counts.tolist()} for one in each],
        }

    found = numbers(answers)
    low, high = found["accuracy_interval"]
    lines = [
        f"all labels right   {found['accuracy']:.1%}, 95 % interval {low:.1%} to {high:.1%} "
        f"({round(found['accuracy'] * len(truth))} of {len(truth)})",
        f"balanced accuracy  {found['balanced_accuracy']:.1%}, the mean over labels",
    ]
    if train is not None and train.y is not None:
        most = (np.asarray(train.y).mean(0) > 0.5).astype(np.int64)
        naive = numbers(np.broadcast_to(most, truth.shape))
        found["naive"] = {"most frequent answer of each label": naive}
        lines.append(
            f"naive baseline     {naive['accuracy']:.1%}, balanced {naive['balanced_accuracy']:.1%}: each label's most "
            "frequent answer"
        )
    lines += ["", f"{'label':>5}  {'right':>6}  {'series':>6}  {'found':>6}  {'missed':>6}  {'wrongly':>7}"]
    for label, one in enumerate(found["labels"]):
        (_, wrongly), (missed, there) = one["counts"]
        lines.append(f"{label:>5}  {one['accuracy']:>6.1%}  {missed + there:>6}  {there:>6}  {missed:>6}  {wrongly:>7}")
    return Scored(lines, found)


def _of_numbers(answers: Any, test: Collection, train: Collection | None, per_step: bool) -> Scored:
    assert test.y is not None
    truth = _flat(test.y) if per_step else np.asarray(test.y, dtype=np.float64)
    scores = NumberScores(truth.astype(np.float64), _flat(answers) if per_step else np.asarray(answers))
    lines, naive = scores.lines(), {}
    if train is not None and train.y is not None:
        if per_step:
            mean = _flat(train.y).astype(np.float64).mean()
            beside = NumberScores(scores.right, np.full(len(truth), mean))
        else:
            beside = naive_numbers(train, replace(test, y=truth))
        naive = {"mean of training": beside.numbers()}
        error, root = (beside.numbers()[name] for name in ("mean_absolute_error", "root_mean_squared_error"))
        lines.append(f"naive baseline           {error:.5g} and {root:.5g}: always the mean of training")
    return Scored(lines, {**scores.numbers(), "naive": naive})


def _flat(each: Any) -> Array:
    return np.concatenate([np.ravel(one) for one in each])
