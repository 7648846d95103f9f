"""`indrnn predict`: predictions for the series of a file, by a run of `indrnn fit`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from ..system import load_torch
from .main import UsageError, say
from .parse import parse


@dataclass
class PredictOptions:
    """Predict the series of a file with a fitted run; the file is read like the data of the run.

    The output has a line per series: its name or number, the prediction, and the probability of each class; with a
    target per step, a line per step. DATA needs no labels.
    """

    run: tyro.conf.Positional[Path]
    """Folder of a finished run of `indrnn fit`."""
    data: tyro.conf.Positional[Path]
    """Data file or folder."""
    out: Path = Path("predictions.csv")
    """Output file, CSV."""
    overwrite: bool = False
    """Replace an existing file."""
    resample: bool = False
    """Resample WAV files of another rate to that of training."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""


def predict(arguments: list[str]) -> int:
    """Write answers for the series of a file."""
    options: PredictOptions = parse("predict", PredictOptions, arguments)
    if options.out.exists() and not options.overwrite:
        raise UsageError(f"out must be a new file, and {options.out} is there already; --overwrite replaces it")
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        raise UsageError(f"out must be a file in a folder that is there, got {options.out}")
    load_torch()
    from ..files import write_atomically
    from ..tasks.runs import open_group
    from ..tasks.series.fit import load_fitted

    recipe, estimator = load_fitted(open_group(options.run), options.device)
    data = recipe.read_like(estimator, options.data, resample=options.resample, target_needed=False)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_rows(estimator, data))
    write_atomically(options.out, text.getvalue().encode())
    say(f"{len(data):,} series of {options.data.name}: answers in {options.out}")
    return 0


def _rows(estimator: Any, data: Any) -> Iterator[list[Any]]:
    """Head and rows of the output: each network runs once."""
    import numpy as np

    target, outputs = estimator.target_, estimator.outputs(data)
    predictions = estimator.decode(outputs)
    head, keys = ["series"], [[name] for name in data.names or map(str, range(len(data)))]
    if target.per_step:
        head = ["series", "step"]
        keys = [[*key, i] for key, steps in zip(keys, outputs, strict=True) for i in range(len(steps))]
        predictions, outputs = np.concatenate(list(predictions)), np.concatenate(outputs)
    several = [f"prediction {i}" for i in range(predictions.shape[1])] if predictions.ndim == 2 else ["prediction"]
    probabilities = target.kind != "numbers"
    yield [*head, *several, *(f"p({name})" for name in (target.classes.tolist() if probabilities else ()))]
    for key, prediction, output in zip(keys, predictions, outputs, strict=True):
        values = prediction if np.ndim(prediction) else [prediction]
        shown = [f"{value:.7g}" if isinstance(value, (float, np.floating)) else value for value in values]
        yield [*key, *shown, *(f"{share:.6f}" for share in (output if probabilities else ()))]
