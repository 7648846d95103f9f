"""Measured results of the estimators: `python -m indrnn.tasks.series.experiments classification`; files in results/fit.

Needs the extra dev (aeon, for its data sets and MiniRocket). Each number is written as soon as it is there, and what is
in the file already is not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...training.folder import machine
from .estimators import IndRNNClassifier

SETS = ("ItalyPowerDemand", "GunPoint", "BasicMotions", "ArrowHead", "JapaneseVowels", "OSULeaf")
COMPARED = SETS[:4] + SETS[5:]
"""Those of one length, which MiniRocket takes."""


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


def load(name: str) -> tuple[Any, Any, Any, Any]:
    """Load series and classes of the training and test splits from the files that aeon ships."""
    from aeon.datasets import load_classification

    X, y = load_classification(name, split="train")
    X_test, y_test = load_classification(name, split="test")
    return X, y, X_test, y_test


def classification(out: Path, methods: list[str], sets: list[str], seeds: int) -> None:
    """Accuracy on the given test split, and times to fit and predict, for each method, data set and seed."""
    path = out / "classification.json"
    content = json.loads(path.read_text()) if path.exists() else {"runs": []}
    done = {(run["method"], run["set"], run["seed"]) for run in content["runs"]}
    for method in methods:
        for name in sets:
            if method == "minirocket" and name not in COMPARED:
                continue
            X, y, X_test, y_test = load(name)
            for seed in range(seeds):
                if (method, name, seed) in done:
                    continue
                estimator = METHODS[method](seed)
                begun = time.perf_counter()
                estimator.fit(X, y)
                fitted = time.perf_counter()
                right = np.asarray(estimator.predict(X_test)) == y_test
                run = {
                    "method": method,
                    "set": name,
                    "seed": seed,
                    "accuracy": round(100 * float(right.mean()), 2),
                    "fit_seconds": round(fitted - begun, 1),
                    "predict_seconds": round(time.perf_counter() - fitted, 2),
                    "command": shlex.join(["python", "-m", "indrnn.tasks.series.experiments", *sys.argv[1:]]),
                }
                content["runs"].append(run)
                content["machine"] = machine() | {"threads": torch.get_num_threads()}
                out.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(content, indent=1) + "\n")
                (out / "classification.md").write_text(classification_table(content["runs"]))
                print(run, flush=True)


def classification_table(runs: list[dict[str, Any]]) -> str:
    """Format the runs as a Markdown page: mean and deviation over seeds per method and data set, and times."""
    methods = [name for name in METHODS if any(run["method"] == name for run in runs)]
    lines = [
        "# Classification with default settings",
        "",
        "Accuracy in % on the given test split, mean ± deviation over seeds (their number in brackets); data and "
        "MiniRocket from aeon. `lstm`: the same loop, width and steps without convolutions; `lstm-front`: behind the "
        'same convolutions; `best`: `effort="best"`.',
        "",
        "    python -m indrnn.tasks.series.experiments classification --out results/fit",
        "",
        "| set | " + " | ".join(methods) + " |",
        "|---|" + "---|" * len(methods),
    ]

    def of(method: str, name: str, key: str) -> list[float]:
        return [run[key] for run in runs if run["method"] == method and run["set"] == name]

    for name in SETS:
        cells = []
        for method in methods:
            values = of(method, name, "accuracy")
            cells.append(f"{_over_seeds(values)} ({len(values)})" if values else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    cells = []
    for method in methods:
        each = [of(method, name, "accuracy") for name in COMPARED]
        cells.append(f"{np.mean([np.mean(values) for values in each]):.1f}" if all(each) else "–")
    lines.append("| mean of the five of one length | " + " | ".join(cells) + " |")
    lines += ["", "Seconds to fit / to predict the test split, median over seeds:", ""]
    lines += ["| set | " + " | ".join(methods) + " |", "|---|" + "---|" * len(methods)]
    for name in SETS:
        cells = []
        for method in methods:
            fit, predict = (of(method, name, key) for key in ("fit_seconds", "predict_seconds"))
            cells.append(f"{np.median(fit):.1f} / {np.median(predict):.2f}" if fit else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _over_seeds(values: list[float]) -> str:
    """Format mean and standard deviation, or a single value without deviation."""
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values):.1f}" if len(values) > 1 else "")


def airline(out: Path, seeds: int) -> None:
    """Airline passengers: rolling forecasts of the last 36 months, horizon 12; error compared with naive forecasts."""
    from aeon.datasets import load_airline

    from .forecaster import IndRNNForecaster
    from .naive import naive, rolling_error, seasonal_naive

    y = np.asarray(load_airline(), dtype=np.float64).ravel()
    tested, horizon, period = 36, 12, 12
    rows = {
        "naive": [rolling_error(lambda past: naive(past, horizon), y, horizon, tested)],
        "seasonal naive": [rolling_error(lambda past: seasonal_naive(past, horizon, period), y, horizon, tested)],
        "IndRNNForecaster": [],
    }
    covered = []
    for seed in range(seeds):
        model = IndRNNForecaster(horizon, random_state=seed).fit(y[:-tested])
        for start in range(len(y) - tested, len(y) - horizon + 1):
            low, high = model.predict_interval(y[:start])
            actual = y[start : start + horizon]
            covered.append(float(((low[:, 0] <= actual) & (actual <= high[:, 0])).mean()))
        rows["IndRNNForecaster"].append(
            rolling_error(lambda past, model=model: model.predict(past)[:, 0], y, horizon, tested)  # type: ignore[misc]
        )
    command = shlex.join(["python", "-m", "indrnn.tasks.series.experiments", *sys.argv[1:]])
    out.mkdir(parents=True, exist_ok=True)
    intervals = {"asked": model.coverage, "covered": float(np.mean(covered))}
    content = {
        "mae": rows,
        "intervals": intervals,
        "tested": tested,
        "horizon": horizon,
        "command": command,
        "machine": machine(),
    }
    (out / "airline.json").write_text(json.dumps(content, indent=1) + "\n")
    table = [f"| {name} | {_over_seeds(each)} |" for name, each in rows.items()]
    page = [
        "# Airline: rolling forecasts",
        "",
        "Fitted once on the months before the last 36; then from each month on, as long as 12 more are there, the next "
        "12 are forecast from all months before. Mean absolute error over all forecasts, thousands of passengers; mean "
        f"± deviation over {seeds} seeds.",
        "",
        f"    {command}",
        "",
        "| forecast | error |",
        "|---|---|",
        *table,
        "",
        f"Intervals of {intervals['asked']:.0%}: {intervals['covered']:.1%} of the values lie within.",
    ]
    (out / "airline.md").write_text("\n".join(page) + "\n")
    print("\n".join(table), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    from .choices import CHANGES, SPOKEN, choices
    from .spoken import METHODS as HEARD
    from .spoken import speakers, stream

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("classification", "airline", "choices", "speakers", "stream"))
    parser.add_argument("--out", type=Path, default=Path("results/fit"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=None)
    parser.add_argument("--sets", nargs="+", choices=(*SETS, SPOKEN), default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=list(CHANGES), help="choices: of the defaults")
    parser.add_argument("--folds", type=int, default=4, help="choices: of the cross-validation")
    parser.add_argument("--steps", type=int, default=None, help="choices, speakers, stream: in place of the default")
    parser.add_argument("--data", type=Path, default=None, help="fsdd.npz, for speakers, stream, and choices on it")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "indrnn.tasks.series.experiments", *given])
    data = options.data or Path(os.environ.get("INDRNN_DATA", "data")) / "audio" / "fsdd.npz"
    if SPOKEN in options.sets and options.what != "choices":
        parser.error(f"{SPOKEN} is for choices; its official split is measured by `indrnn fit`")
    if options.what == "airline":
        airline(options.out, options.seeds)
    elif options.what == "classification":
        classification(options.out, options.methods or list(METHODS), options.sets, options.seeds)
    elif options.what == "choices":
        choices(options.out, options.sets, options.changes, options.steps, options.folds, command, data)
    elif options.what == "stream":
        stream(options.out, data, options.steps, command)
    else:
        unknown = [name for name in options.methods or () if name not in HEARD]
        if unknown:
            parser.error(f"--methods for speakers are {', '.join(HEARD)}; got {', '.join(unknown)}")
        speakers(options.out, data, options.methods or list(HEARD), options.steps, command)


if __name__ == "__main__":
    main()
