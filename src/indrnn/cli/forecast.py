"""`indrnn fit --forecast`: forecasts of series in a file; also `predict` and `evaluate` for such runs."""

from __future__ import annotations

import csv
import io
import shlex
from dataclasses import MISSING, fields, replace
from typing import Any

from ..tasks.series.collection import Collection
from ..tasks.series.reading import Reading
from .fit import FitOptions, check_folder, config_of, said_of, take_time, write_scores
from .main import UsageError, say

NAMES = {"indrnn": "IndRNN", "naive": "the last value again", "seasonal_naive": "the last season again"}
"""What the errors of a forecaster are of."""
_OF_LABELS = ("test", "test_share", "task", "balanced", "batch_size", "validation")
_READ_OF_LABELS = ("target", "group", "test_where", "per_step", "time_differences")


class Forecast:
    """A fit of a forecaster: its data, its estimator and its output. Used in place of `indrnn.cli.fit.Fit`."""

    test = None
    """No series is kept for test: the last steps are held back instead."""

    def __init__(self, options: FitOptions) -> None:
        from ..tasks.series.sources import kind_of, read_with

        check_folder(options)
        for kind, given, names in ((FitOptions, options, _OF_LABELS), (Reading, options.reading, _READ_OF_LABELS)):
            usual = {each.name: each.default for each in fields(kind) if each.default is not MISSING}
            wrong = [name for name in names if getattr(given, name) != usual[name]]
            if wrong:
                raise UsageError(
                    f"{wrong[0]} is not for --forecast: it has no labels, and forecasts the columns themselves "
                    "(--features names them); the last steps are held back to measure it"
                )
        reading = options.reading
        if reading.layout == "auto" and kind_of(options.data) == "table":
            # One series has no identifiers, by which the long form is known elsewhere
            reading = replace(reading, layout="long")
        self.read = read_with(options.data, reading, target_needed=False, alone=True)
        self.options = replace(options, reading=self.read.reading)
        self.train: Collection = self.read.collection

    def estimator(self) -> Any:
        """The estimator for the options."""
        from ..tasks.series.forecaster import IndRNNForecaster

        options = self.options
        assert options.forecast is not None
        names = ("period", "effort", "hidden_size", "layers", "steps", "lr", "members", "core", "device", "threads")
        chosen = {name: getattr(options, name) for name in names}
        return IndRNNForecaster(options.forecast, random_state=options.seed, **chosen)

    def run(self) -> int:
        """Print a summary of the data, train and evaluate."""
        options, out = self.options, self.options.folder
        estimator = self.estimator()
        fitting = estimator.fitting(self.train)
        say(said_of(self.train, options.data.name))
        season = f"a season of {estimator.period_}" if estimator.period_ > 1 else "no season"
        found = "given" if options.period else "found in the series"
        say(f"forecast  {estimator.horizon} steps from the {estimator.context_} before them; {season} ({found})")
        say(f"network   {fitting.plan.describe()}")
        cost = fitting.estimate()  # twice: once without the last steps, to measure it
        say(f"cost      about {take_time(2 * cost['seconds'])} here, {cost['bytes'] / 2**20:,.0f} MB for a batch")
        if options.dry_run:
            return 0
        estimator.fit(
            self.train,
            out=out,
            resume=options.resume,
            overwrite=options.overwrite,
            config=config_of(options),
            resume_command=shlex.join(["indrnn", "fit", "--resume", str(out)]),
        )
        last = estimator.results_[-1]
        if not last.finished:
            return 128 + (last.stopped_by or 0)
        content = {"run": out.resolve().name, "data": options.data.name, "split": "the last steps were held back"}
        write_scores(out, {**content, "train": len(fitting.data), "test": _numbers(estimator.errors_)})
        use = f"indrnn predict {shlex.quote(str(out))} DATA gives the next steps"
        say(f"saved in {out}; {use}, indrnn.load({str(out)!r}) the forecaster")
        return 0


def _numbers(errors: dict[str, float]) -> dict[str, Any]:
    """The errors as numbers for a file, like other scores."""
    naive = {NAMES[name]: {"mean_absolute_error": errors[name]} for name in ("naive", "seasonal_naive")}
    covered = {"covered": errors["covered"]} if "covered" in errors else {}
    return {"mean_absolute_error": errors["indrnn"], **covered, "naive": naive}


def score(estimator: Any, data: Collection) -> tuple[list[str], dict[str, Any]]:
    """Measure forecasts of the last steps of each series from those before: lines to print, and numbers for a file."""
    errors = estimator.measure(data)
    lines = []
    if all(estimator.is_known(one) for one in data.x):
        lines.append("these steps were trained on, so this is no test")
    lines += [f"mean absolute error of the last {estimator.horizon} steps, forecast from those before them:"]
    lines += [f"  {name:22s}  {errors[key]:.5g}" for key, name in NAMES.items()]
    lines.append(f"intervals of {estimator.coverage:.0%}: {errors['covered']:.1%} of the values lie within")
    return lines, {**_numbers(errors), "series": len(data)}


def table(estimator: Any, data: Collection) -> str:
    """The next steps of each series as CSV, with their prediction intervals."""
    shape = len(data), estimator.horizon, -1
    answers = [estimator.predict(data), *estimator.predict_interval(data)]
    middle, low, high = (each.reshape(shape) for each in answers)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [head for name in estimator.channels_ for head in (name, f"{name} low", f"{name} high")]
    writer.writerow(["series", "step", *heads])
    names = data.names or tuple(str(i) for i in range(len(data)))
    for i, name in enumerate(names):
        for step in range(estimator.horizon):
            ends = zip(middle[i, step], low[i, step], high[i, step], strict=True)
            writer.writerow([name, step + 1, *(f"{value:.7g}" for each in ends for value in each)])
    return text.getvalue()
