"""Our own experiments on the estimators: `python -m benchmarks.experiments classification`; files in results/fit.

Needs the extra dev (aeon, for its data sets and MiniRocket). Each number is written as soon as it is there, and what is
in the file already is not computed again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tyro.conf import Positional

from indrnn import IndRNNClassifier
from indrnn.tasks.series.collection import Array

from . import spoken
from .command import command_line, options_of, start
from .results import Results, Run, pivot

SETS = ("ItalyPowerDemand", "GunPoint", "BasicMotions", "ArrowHead", "JapaneseVowels", "OSULeaf")
COMPARED = SETS[:4] + SETS[5:]
"""Those of one length, which MiniRocket takes."""
SPOKEN = "FreeSpokenDigits"
"""Divided by the number of the clip, as its official split is: 0 to 4 are for test, and 5 to 9 are held back here."""


def _minirocket(seed: int) -> Any:
    from aeon.classification.convolution_based import MiniRocketClassifier

    return MiniRocketClassifier(random_state=seed, n_jobs=1)


METHODS: dict[str, Callable[[int], Any]] = {
    "indrnn": lambda seed: IndRNNClassifier(random_state=seed),
    "minirocket": _minirocket,
    "lstm": lambda seed: IndRNNClassifier(random_state=seed, core="lstm", front=False),
    "lstm-front": lambda seed: IndRNNClassifier(random_state=seed, core="lstm"),
    "best": lambda seed: IndRNNClassifier("best", random_state=seed),
}
"""By name: defaults, aeon's MiniRocket, an LSTM of the same width and steps, the same behind our convolutions, and an
ensemble of five."""
CHANGES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "convolutions": {"front": True},
    "no convolutions": {"front": False},
    "lr 3e-3": {"lr": 3e-3},
    "lr 3e-4": {"lr": 3e-4},
    "no augmentation": {"augment": False},
    "batches of 32, lr 1e-3": {"batch_size": 32, "lr": 1e-3},
    "stride 64": {"front": 64},
    "dropout 0.3": {"dropout": 0.3},
    "1 recurrent layer": {"layers": 1},
    "4 recurrent layers": {"layers": 4},
    "width 128": {"hidden_size": 128},
    "last step": {"pool": "last"},
    "forward only": {"bidirectional": False},
}
"""By name: what is not left to the defaults."""


@dataclass
class Options:
    """Measure the estimators with default settings, and the choice of these."""

    experiment: Positional[Literal["classification", "choices", "speakers", "stream"]]
    """Accuracy on test splits; cross-validation of changed defaults on training splits; accuracy on spoken digits of
    unseen speakers; predictions while a digit is spoken."""
    out: Path = Path("results/fit")
    """Output folder."""
    methods: tuple[str, ...] = ()
    """For classification and speakers: estimators; none for all."""
    sets: tuple[str, ...] = SETS
    """For classification and choices: data sets."""
    seeds: int = 3
    """For classification: number of seeds."""
    changes: tuple[str, ...] = tuple(CHANGES)
    """For choices: changes of the defaults."""
    folds: int = 4
    """For choices: number of folds of the cross-validation."""
    steps: int | None = None
    """For choices, speakers and stream: training steps; None for the estimator's default."""
    data: Path = Path(os.environ.get("INDRNN_DATA", "data")) / "audio" / "fsdd.npz"
    """File of spoken digits, for speakers, stream and choices on FreeSpokenDigits."""


def _split(name: str, split: str) -> tuple[Any, Array]:
    from aeon.datasets import load_classification

    X, y = load_classification(name, split=split)
    return X, np.asarray(y)


def classification(options: Options, command: str) -> None:
    """Accuracy on the given test split, and times to fit and predict, for each method, data set and seed."""
    results = Results(options.out, "classification", command, classification_page)
    for method in options.methods or METHODS:
        for name in options.sets:
            if method == "minirocket" and name not in COMPARED:
                continue
            for seed in range(options.seeds):

                def measure(name: str = name, method: str = method, seed: int = seed) -> Run:
                    return tested(METHODS[method](seed), _split(name, "train"), _split(name, "test"))

                results.add(measure, method=method, set=name, seed=seed)


def tested(estimator: Any, train: tuple[Any, Array], test: tuple[Any, Array]) -> Run:
    """Fit, and measure accuracy and times."""
    begin = time.perf_counter()
    estimator.fit(*train)
    fitted = time.perf_counter()
    right = np.asarray(estimator.predict(test[0])) == test[1]
    return {
        "accuracy": round(100 * float(right.mean()), 2),
        "fit_seconds": round(fitted - begin, 1),
        "predict_seconds": round(time.perf_counter() - fitted, 2),
    }


def classification_page(runs: list[Run]) -> list[str]:
    """Mean and deviation over seeds per method and data set, and times."""

    def accuracy(some: list[Run]) -> str:
        values = [run["accuracy"] for run in some]
        deviation = f" ± {np.std(values):.1f}" if len(values) > 1 else ""
        return f"{np.mean(values):.1f}{deviation} ({len(values)})"

    def mean(some: list[Run]) -> str:
        sets = [[run["accuracy"] for run in some if run["set"] == name] for name in COMPARED]
        return f"{np.mean([np.mean(values) for values in sets]):.1f}" if all(sets) else "–"

    def seconds(some: list[Run]) -> str:
        fit, predict = (np.median([run[f"{what}_seconds"] for run in some]) for what in ("fit", "predict"))
        return f"{fit:.1f} / {predict:.2f}"

    settings = (("set", SETS), ("method", METHODS))
    return [
        "# Classification with default settings",
        "Accuracy in % on the given test split, mean ± deviation over seeds (their number in brackets); data and "
        "MiniRocket from aeon. `lstm`: the same loop, width and steps without convolutions; `lstm-front`: behind the "
        'same convolutions; `best`: `effort="best"`.',
        "    python -m benchmarks.experiments classification --out results/fit",
        pivot(runs, *settings, accuracy, total=("mean of the five of one length", mean)),
        "Seconds to fit / to predict the test split, median over seeds:",
        pivot(runs, *settings, seconds),
    ]


def choices(options: Options, command: str) -> None:
    """Cross-validated accuracy for each change of the defaults and each data set; no test series takes part."""
    results = Results(options.out, "choices", command, choices_page)
    for change in options.changes:
        for name in options.sets:

            def measure(name: str = name, change: str = change) -> Run:
                split = training_split(name, options.folds, options.data)
                return cross_validated(*split, {"steps": options.steps} | CHANGES[change])

            results.add(measure, change=change, set=name, steps=options.steps, folds=options.folds)


def folds(y: Array, count: int, seed: int = 0) -> Array:
    """Return the fold of each series, (n,), with each class divided as evenly as possible."""
    fold = np.empty(len(y), dtype=np.int64)
    draw = np.random.default_rng(seed)
    begin = 0
    for label in np.unique(y):
        members = draw.permutation(np.flatnonzero(y == label))
        fold[members] = (begin + np.arange(len(members))) % count
        begin += len(members)
    return fold


def training_split(name: str, count: int, data: Path) -> tuple[Any, Array, Array, int]:
    """Return series and classes of a training split, the fold of each, and the number of folds to measure."""
    if name == SPOKEN:
        index = np.load(data)["index"]
        clips = spoken.load(data).select(index >= 5)
        return clips.x, np.asarray(clips.y), index[index >= 5] // 5 - 1, 1
    X, y = _split(name, "train")
    return X, y, folds(y, count), count


def cross_validated(X: Any, y: Array, fold: Array, count: int, options: Run) -> Run:
    """Correct predictions, number of series and mean loss when held out, on the first `count` folds."""
    right, losses = 0, []
    for number in range(count):
        kept, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        model = IndRNNClassifier(random_state=number, **options).fit([X[i] for i in kept], y[kept])
        probabilities = model.predict_proba([X[i] for i in held])
        numbers = np.searchsorted(model.classes_, y[held])
        right += int((probabilities.argmax(1) == numbers).sum())
        losses += (-np.log(np.maximum(probabilities[np.arange(len(held)), numbers], 1e-12))).tolist()
    return {"right": right, "series": len(losses), "loss": float(np.mean(losses))}


def choices_page(runs: list[Run]) -> list[str]:
    """A table for each number of steps and folds."""

    def accuracy(some: list[Run]) -> str:
        loss = f" ({some[0]['loss']:.3f})" if "loss" in some[0] else ""
        return f"{100 * some[0]['right'] / some[0]['series']:.1f}{loss}"

    parts = [
        "# Choice of the defaults",
        "Accuracy in % in cross-validation on the training split of each set, one seed; in brackets the mean loss, "
        "where kept. Of Free Spoken Digits the clips 5 to 9 of each speaker and digit are held back, and those from "
        "10 on are trained on. Test series take no part.",
    ]
    for steps, count in sorted({(run["steps"] or 0, run["folds"]) for run in runs}):
        some = [run for run in runs if ((run["steps"] or 0), run["folds"]) == (steps, count)]
        names = {f"{run['set']} ({run['series']})": run["set"] for run in some}
        columns = sorted(names, key=lambda name: (*SETS, SPOKEN).index(names[name]))
        labelled = [run | {"set": f"{run['set']} ({run['series']})"} for run in some]
        parts += [
            f"{count} folds, {f'{steps} steps' if steps else 'steps by default'}:",
            "\n".join(f"    {command}" for command in dict.fromkeys(run["command"] for run in some)),
            pivot(labelled, ("change", CHANGES), ("set", columns), accuracy),
        ]
    return parts


def main(arguments: list[str]) -> int:
    """Run one of the experiments."""
    options: Options = options_of("experiments", Options, arguments)
    known = spoken.METHODS if options.experiment == "speakers" else METHODS
    _check("methods", options.methods, tuple(known))
    _check("sets", options.sets, (*SETS, SPOKEN) if options.experiment == "choices" else SETS)
    _check("changes", options.changes, tuple(CHANGES))
    kinds = {"classification": classification, "choices": choices, "speakers": spoken.speakers, "stream": spoken.stream}
    kinds[options.experiment](options, command_line("experiments", arguments))
    return 0


def _check(name: str, values: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [value for value in values if value not in known]:
        raise ValueError(f"{name} must be of {', '.join(known)}; got {', '.join(unknown)}")


if __name__ == "__main__":
    start(main)
