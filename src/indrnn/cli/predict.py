"""`indrnn predict`, and `indrnn evaluate` for runs of `indrnn fit`: predictions for series in files."""

from __future__ import annotations

import csv
import io
import shlex
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from ..files import write_atomically
from ..tasks.series.collection import Collection
from ..tasks.series.reading import USED, Reading, tested_column
from ..training.folder import RunFolder
from . import forecast
from .fit import fit_of, homes, targeted, without_column
from .main import UsageError, say
from .parse import Parser


@dataclass
class PredictOptions:
    """Predict the series of a file with a fitted run; the file is read like the data of the run.

    The output has a line per series: its name or number, the prediction, and the probability of each class; with a
    target per step, a line per step. DATA needs no labels. For a run of `fit --forecast`, the output holds the steps
    after the end of each series, with the bounds of their prediction intervals.
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


PREDICT = Parser("predict", PredictOptions)


def predict(arguments: list[str]) -> int:
    """Write answers for the series of a file."""
    options = PREDICT(arguments)
    if options.out.exists() and not options.overwrite:
        raise UsageError(f"out must be a new file, and {options.out} is there already; --overwrite replaces it")
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        raise UsageError(f"out must be a file in a folder that is there, got {options.out}")
    estimator = estimator_of(options.run, options.device)
    known = fit_of(options.run)
    data, _ = read_like(known, estimator, options.data, resample=options.resample, target_needed=False)
    table = forecast.table if known.get("forecast") else _table
    write_atomically(options.out, table(estimator, data).encode())
    say(f"{len(data):,} series of {options.data.name}: answers in {options.out}")
    return 0


def estimator_of(run: Path, device: str = "auto") -> Any:
    """The estimator of a finished run."""
    from .. import load
    from ..training.parallel import Processes, choose_device

    fit_of(run)
    if not (run / "estimator.json").exists():
        again = shlex.join(["indrnn", "fit", "--resume", str(run)])
        raise UsageError(f"run must be finished, and {run} is not; go on with it: {again}")
    return load(run, device=choose_device(device, Processes()))


def read_like(
    known: dict[str, Any],
    estimator: Any,
    data: Path,
    *,
    test: Path | None = None,
    resample: bool = False,
    target_needed: bool,
    split: bool = False,
) -> tuple[Collection, Reading]:
    """Read a file as the data of a run were read, and check that it has the same channels.

    With `split`, apply the run's test split; else use every series of the file.
    """
    from ..tasks.series.sources import kind_of, read_with

    reading = Reading.from_plain(known["reading"])
    if not split:
        described = (reading.group, tested_column(reading.test_where))  # no values, here as in training
        ignore = (*reading.ignore, *(name for name in described if name is not None))
        reading = replace(reading, group=None, test_where=None, ignore=ignore)
    if resample:
        if reading.rate is None:
            raise UsageError("resample is for runs on WAV files")
        reading = replace(reading, resample=True)
    kind = kind_of(data)
    usual = Reading()
    unused = {name: getattr(usual, name) for name in Reading.__dataclass_fields__ if name not in USED.get(kind, ())}
    reading = replace(reading, **unused)
    channels = [name for name in estimator.channels_ if not (reading.time_differences and name == "dt")]
    if kind == "table" and reading.layout == "long" and not reading.features and channels != ["0"]:
        reading = replace(reading, features=tuple(channels))  # by name: others may stand beside them
    found = read_with(data, reading, test=test, target_needed=target_needed, alone=not split).collection
    wanted = len(estimator.channels_)
    if len(found.channels) != wanted:
        raise UsageError(
            f"{data} must have the {wanted} channels of training ({', '.join(estimator.channels_[:8])}), got "
            f"{len(found.channels)}"
        )
    return found, reading


def _table(estimator: Any, data: Collection) -> str:
    """Predictions as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = data.names or tuple(str(i) for i in range(len(data)))
    kind, per_step = estimator.target_.kind, estimator.target_.per_step
    shares = estimator.predict_proba(data) if kind != "numbers" else None
    classes = [] if shares is None else [f"p({each})" for each in estimator.classes_.tolist()]
    answers = estimator.predict(data)
    if per_step:
        writer.writerow(["series", "step", "prediction", *classes])
        for i, name in enumerate(names):
            for step, answer in enumerate(answers[i]):
                writer.writerow([name, step, _plain(answer), *([] if shares is None else _told(shares[i][step]))])
        return text.getvalue()
    several = np.ndim(answers) == 2
    heads = [f"prediction {i}" for i in range(np.shape(answers)[1])] if several else ["prediction"]
    writer.writerow(["series", *heads, *classes])
    for i, name in enumerate(names):
        row = [_plain(each) for each in answers[i]] if several else [_plain(answers[i])]
        writer.writerow([name, *row, *([] if shares is None else _told(shares[i]))])
    return text.getvalue()


def _plain(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, (float, np.floating)) else value


def _told(shares: Any) -> list[str]:
    return [f"{share:.6f}" for share in shares]


def evaluate_fitted(
    run: Path, data: Path | None, *, moved: Path | None, device: str, about: dict[str, Any], resample: bool
) -> dict[str, Any]:
    """Evaluate a run of `fit`: on all series of a file, or again on its own test series.

    Args:
        run: the run folder.
        data: the file; None for the run's test series.
        moved: new folder of the run's data, if they were moved.
        device: the device to compute on.
        about: further entries of the result.
        resample: see `indrnn predict`.
    """
    from .scoring import score

    known, estimator = fit_of(run), estimator_of(run, device)
    if known.get("forecast"):
        if data is None:
            raise UsageError(f"{run} is trained on all of its data; name a file with later steps, after RUN")
        found, _ = read_like(known, estimator, data, target_needed=False)
        lines, numbers = forecast.score(estimator, found)
        told = f"{len(found):,} series of {data.name}"
    elif data is None:
        from .fit import Fit, ResumeOptions, resumed

        place, test = (moved / Path(known[name]).name if moved and known[name] else None for name in ("data", "test"))
        again = Fit(resumed(ResumeOptions(run, place, test)))
        if again.test is None:
            raise UsageError(
                f"{run} kept no series for test; name a file of them: indrnn evaluate {shlex.quote(str(run))} DATA"
            )
        _check_unchanged(run, again)
        scored = score(estimator, again.test, again.train)
        told = f"{len(again.test):,} test series of {again.options.data.name}"
        lines, numbers = scored.lines, scored.numbers
    else:
        found, _ = read_like(known, estimator, data, resample=resample, target_needed=True)
        found = without_column(found)
        if known["task"] != "regress" and estimator.target_.kind != "numbers":
            found, _ = targeted(found, "classify")
        scored = score(estimator, found)
        told = f"{len(found):,} series of {data.name}"
        lines, numbers = scored.lines, scored.numbers
    say(f"{run}: {told}")
    for line in lines:
        say(line)
    return {**about, "on": told, "test": numbers}


def _check_unchanged(run: Path, again: Any) -> None:
    """Raise if the run's data have changed: its test series may then have been used in training."""
    folder = RunFolder(homes(run)[0])
    before = folder.read_json(folder.config)["task"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they were said when it was fitted
        now = again.estimator().fitting(again.train).task().describe()
    if before["train"] != now["train"]:
        raise UsageError(
            f"data: {again.options.data} is not read as when {run} was fitted: it has changed, or this version "
            "prepares it in another way; name a file of test series, after RUN"
        )


__all__ = ["predict"]
