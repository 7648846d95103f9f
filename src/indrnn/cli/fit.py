"""`indrnn fit`: a model of your own sequences, from a file to a run folder."""

from __future__ import annotations

import json
import shlex
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from ..checks import check_count, check_fraction, check_positive, check_seed
from ..files import write_atomically
from ..tasks.series.collection import Array, Collection
from ..tasks.series.fitting import members_of
from ..tasks.series.reading import Reading
from ..training.folder import RunFolder, finite
from ..training.parallel import Processes, choose_device
from .main import UsageError, say
from .parse import Parser

if TYPE_CHECKING:
    from .forecast import Forecast

SHOWN = 12
"""Classes that are listed with their counts."""
_PLANNED = ("steps", "lr", "batch_size", "hidden_size", "layers", "validation", "members")


@dataclass
class FitOptions:
    """Fit a model to your own sequences, test it on held-out series, and write a run folder.

    DATA is an .npz file, a .ts file of UCR or UEA, a table (.csv, .tsv, .parquet) in long or wide form, or a folder of
    WAV files with a subfolder per class. A summary of the data is printed first; --dry-run stops there. With --forecast
    no labels are needed: the model learns the next steps of the series.
    """

    data: tyro.conf.Positional[Path]
    """Data file or folder."""
    reading: Annotated[Reading, tyro.conf.arg(name="")] = Reading()  # noqa: RUF009
    """How the data are read."""
    test: Path | None = None
    """Test file, of the same kind; NAME_TEST.ts beside NAME_TRAIN.ts is found automatically."""
    test_share: float = 0.2
    """Fraction held out for test if there is no test file or --test-where, by class or in whole groups; 0 for none."""
    forecast: int | None = None
    """Forecast horizon in steps. A table then has a row per step (--time orders them, --id separates the series,
    --features names the columns) or, with --layout wide, a row per series."""
    period: int | None = None
    """With --forecast: seasonal period in steps, 1 for none; None to detect it in the series."""
    task: Literal["auto", "classify", "regress"] = "auto"
    """Type of task. auto: targets that are text or few distinct whole numbers are classes, others are numbers."""
    effort: Literal["quick", "default", "best"] = "default"
    """Training effort. quick: fewer steps; best: an ensemble."""
    core: Literal["indrnn", "lstm", "gru"] = "indrnn"
    """Type of the recurrent layers."""
    balanced: bool = False
    """Weight classes inversely to their frequency."""
    steps: int | None = None
    """Number of training steps; None to choose by the size of the data, as for the next five options."""
    lr: float | None = None
    """Learning rate."""
    batch_size: int | None = None
    """Batch size."""
    hidden_size: int | None = None
    """Neurons per layer."""
    layers: int | None = None
    """Number of recurrent layers."""
    validation: float | None = None
    """Fraction of the training series held out for validation, which selects the best weights."""
    members: int | None = None
    """Ensemble size: number of networks whose outputs are averaged."""
    seed: int = 0
    """Random seed of weights and training; the test series are the same for every seed."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""
    out: Path | None = None
    """The run's folder; None for runs/fit-NAME."""
    resume: bool = False
    """Resume from the last checkpoint in the folder."""
    overwrite: bool = False
    """Replace an existing run in the folder."""
    dry_run: bool = False
    """Print how the data are read and what would be trained, then stop; nothing is written."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.test_share:
            check_fraction("test_share", self.test_share)
        for name in ("forecast", "period", "steps", "batch_size", "hidden_size", "layers", "members", "threads"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.lr is not None:
            check_positive("lr", self.lr)
        if self.validation is not None:
            check_fraction("validation", self.validation)
        if self.period is not None and self.forecast is None:
            raise ValueError("period is for --forecast")

    @property
    def folder(self) -> Path:
        """The run folder."""
        name = self.data.resolve().name.partition(".")[0] or "data"
        return self.out or Path("runs") / f"fit-{name}"

    def recorded(self) -> dict[str, Any]:
        """The options stored in config.json: all that a run depends on, and the paths of its data."""
        names = ("test_share", "forecast", "period", "task", "effort", "core", "balanced", *_PLANNED, "seed")
        paths = {name: None if path is None else str(path.resolve()) for name, path in _paths(self).items()}
        return {**paths, "reading": asdict(self.reading), **{name: getattr(self, name) for name in names}}


def _paths(options: FitOptions) -> dict[str, Path | None]:
    return {"data": options.data, "test": options.test}


@dataclass
class ResumeOptions:
    """Resume a run of `indrnn fit`, with the options stored in its checkpoint."""

    resume: Path
    """The run's folder."""
    data: Path | None = None
    """New location of its data, if they were moved."""
    test: Path | None = None
    """New location of its test file, if it was moved."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""


FIT, RESUME = Parser("fit", FitOptions), Parser("fit --resume", ResumeOptions)


def fit(arguments: list[str]) -> int:
    """Fit a model to series in a file."""
    if arguments[:1] == ["--resume"] and len(arguments) > 1 and not arguments[1].startswith("-"):
        options = resumed(RESUME(arguments))
    elif not arguments:
        raise UsageError("fit needs DATA: a .npz, .ts, .csv or .parquet file, or a folder of WAV files by class")
    else:
        options = FIT(arguments)
        if options.resume and homes(options.data):
            raise UsageError(f"resume: {options.data} is a run; put it first: indrnn fit --resume {options.data} ...")
    return fit_for(options).run()


def fit_for(options: FitOptions) -> Fit | Forecast:
    """The fit given by the options: of targets, or a forecast."""
    if options.forecast is None:
        return Fit(options)
    from .forecast import Forecast

    return Forecast(options)


def resumed(given: ResumeOptions) -> FitOptions:
    """The options of an existing run."""
    known = fit_of(given.resume)
    reading = Reading.from_plain(known["reading"])
    test = given.test or (Path(known["test"]) if known["test"] else None)
    rest = {name: value for name, value in known.items() if name not in ("data", "test", "reading")}
    return FitOptions(
        given.data or Path(known["data"]),
        reading,
        test,
        device=given.device,
        threads=given.threads,
        out=given.resume,
        resume=True,
        **rest,
    )


def homes(run: Path) -> list[Path]:
    """The folders of a run's networks: the run itself, or the members of an ensemble."""
    if (run / "config.json").exists() or (run / "checkpoints").exists():
        return [run]
    return members_of(run)


def fit_of(run: Path) -> dict[str, Any]:
    """The stored options of a run of `fit`."""
    for home in homes(run)[:1]:
        folder = RunFolder(home)
        state, _ = folder.checkpoints.find()
        config = state["config"] if state is not None and "config" in state else folder.read_json(folder.config)
        if "fit" in config:
            found: dict[str, Any] = config["fit"]
            return found
        raise UsageError(f"run must be of `indrnn fit`, and {run} is not")
    raise UsageError(f"run must be the folder of a run of `indrnn fit`, and {run} is none")


class Fit:
    """A fit: its data, its estimator and its output."""

    def __init__(self, options: FitOptions) -> None:
        from ..tasks.series.sources import read_with

        check_folder(options)
        self.read = read_with(options.data, options.reading, test=options.test)
        self.options = replace(options, reading=self.read.reading)
        self.data, self.classifies = targeted(self.read.collection, options.task)
        self.train, self.test, self.how = self._split()

    def _split(self) -> tuple[Collection, Collection | None, str]:
        from ..tasks.series.scores import hold_out

        data, options = self.data, self.options
        held, how = data.test, options.reading.test_where or (self.read.test.name if self.read.test else "")
        if held is None and options.test_share:
            by_class = self.classifies and data.y is not None and data.y.ndim == 1 and data.y.dtype != object
            held = hold_out(data, options.test_share, by_class=by_class)
            how = f"{options.test_share:.0%}, by class" if by_class else f"{options.test_share:.0%}"
            if data.groups is not None:
                names = ", ".join(str(each) for each in np.unique(data.groups[held]).tolist()[:8])
                how = f"whole groups of {options.reading.group}: {names}"
        if held is None or not held.any():
            return data, None, "none kept for test"
        if data.groups is not None and data.test is not None:
            both = np.intersect1d(data.groups[held], data.groups[~held])
            if len(both):
                how += f"; {len(both)} groups of {options.reading.group} are in both, so this says nothing of new ones"
        return data.take(~held), data.take(held), how

    def run(self) -> int:
        """Print a summary of the data, train and evaluate."""
        choose_device(self.options.device, Processes())
        estimator = self.estimator()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            fitting = estimator.fitting(self.train)
        for line in self.understood(fitting):
            say(line)
        for each in caught:
            say(f"note      {each.message}")
        if self.options.dry_run:
            return 0
        return self._train(estimator, fitting)

    def estimator(self) -> Any:
        """The estimator for the options."""
        from ..tasks.series.estimators import IndRNNClassifier, IndRNNRegressor

        options = self.options
        chosen = {name: getattr(options, name) for name in (*_PLANNED, "core", "device", "threads")}
        chosen |= {"per_step": options.reading.per_step, "random_state": options.seed}
        if self.classifies:
            return IndRNNClassifier(options.effort, class_weight="balanced" if options.balanced else None, **chosen)
        if options.balanced:
            raise UsageError("balanced is for classes, and the target holds numbers")
        return IndRNNRegressor(options.effort, **chosen)

    def understood(self, fitting: Any) -> list[str]:
        """A summary of the data and the training."""
        data, options = self.data, self.options
        lines = [
            said_of(data, options.data.name),
            f"missing   {data.missing:.2%} of the values" if data.missing else "missing   no values",
        ]
        lines.append(_target_line(data.y, self.classifies, options.reading.target))
        if data.groups is not None:
            lines.append(f"groups    {options.reading.group}: {len(np.unique(data.groups))}")
        tested = f"{len(self.test):,} for test" if self.test is not None else "none for test"
        lines.append(f"split     {len(self.train):,} series to train on, {tested} ({self.how})")
        cost = fitting.estimate()
        lines.append(f"network   {fitting.plan.describe()}")
        lines.append(f"cost      about {take_time(cost['seconds'])} here, {cost['bytes'] / 2**20:,.0f} MB for a batch")
        return lines

    def _train(self, estimator: Any, fitting: Any) -> int:
        from ..tasks.series.files import save_estimator

        options, out = self.options, self.options.folder
        again = ["indrnn", "fit", "--resume", str(out)]
        models, results = fitting.train(
            out=out,
            resume=options.resume,
            overwrite=options.overwrite,
            config=config_of(options),
            resume_command=shlex.join(again),
            quiet=False,
        )
        if not results[-1].finished:
            return 128 + (results[-1].stopped_by or 0)
        estimator.take(fitting, models, results)
        estimator.n_features_in_ = len(self.data.channels)
        save_estimator(estimator, out)
        self._measure(estimator, out)
        use = f"indrnn predict {shlex.quote(str(out))} DATA gives answers"
        say(f"saved in {out}; {use}, indrnn.load({str(out)!r}) the model")
        return 0

    def _measure(self, estimator: Any, out: Path) -> None:
        if self.test is None:
            say("no series were kept for test, so there is no honest figure: --test-share, --test or --test-where")
            return
        from .scoring import score

        scored = score(estimator, self.test, self.train)
        say(f"\non {len(self.test):,} series that were not trained on:")
        for line in scored.lines:
            say(line)
        say("")
        about = {"run": out.resolve().name, "data": self.options.data.name, "split": self.how}
        write_scores(out, {**about, "train": len(self.train), "test": scored.numbers})
        scored.write(out, about)


def check_folder(options: FitOptions) -> None:
    """Raise if a run cannot be written to its folder."""
    if not options.dry_run and RunFolder(options.folder).used and not (options.resume or options.overwrite):
        raise UsageError(
            f"out: {options.folder} holds something already; go on with it (--resume), replace it (--overwrite), or "
            "name another folder (--out)"
        )


def config_of(options: FitOptions) -> dict[str, Any]:
    """The content of the run's config.json."""
    out, config = options.folder, {"fit": options.recorded()}
    if options.resume and homes(out):  # the data may have been moved: their checksum is in the task's description
        known = fit_of(out)
        config["fit"] |= {name: known[name] for name in ("data", "test")}
    return config


def write_scores(out: Path, scores: dict[str, Any]) -> None:
    """Write scores.json, and a single network's scores also where `indrnn report` reads them."""
    content = finite(scores)
    write_atomically(out / "scores.json", (json.dumps(content, indent=2) + "\n").encode())
    folder = RunFolder(out)
    if folder.result.exists():
        figures = {name: value for name, value in content["test"].items() if isinstance(value, float)}
        folder.write_json(folder.result, folder.read_json(folder.result) | {"test": figures})


def without_column(data: Collection) -> Collection:
    """The collection with targets (n, 1) as (n,)."""
    y = data.y
    return data if y is None or y.ndim != 2 or y.shape[1] != 1 else replace(data, y=y[:, 0])


def targeted(data: Collection, task: str) -> tuple[Collection, bool]:
    """The collection, with targets as classes or numbers, and whether they are classes."""
    data = without_column(data)
    y = data.y
    assert y is not None
    values = np.concatenate([np.ravel(one) for one in y]) if y.dtype == object else np.ravel(y)
    text = values.dtype.kind not in "fiub"
    if text and task == "regress":
        raise UsageError(f"task regress needs numbers in the target, got {str(values[0])!r}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        at = int(np.argmax(~np.isfinite(values)))
        raise UsageError(f"target must be known for each series, and number {at} of them is {values[at]}; leave it out")
    whole = not text and bool((values == np.floor(values)).all())
    few = len(np.unique(values)) <= max(2, min(100, len(values) // 2))
    classes = text or task == "classify" or (task == "auto" and whole and few)
    if classes and not text and not whole:
        raise UsageError(
            "task classify needs text or whole numbers in the target, got others; --task regress takes these"
        )
    if classes and y.dtype.kind == "f":
        data = replace(data, y=y.astype(np.int64))
    return data, classes


def said_of(data: Collection, name: str) -> str:
    """The line that summarises the data."""
    lengths = data.lengths
    low, high = int(lengths.min()), int(lengths.max())
    steps = f"{low:,} steps" if low == high else f"{low:,} to {high:,} steps, mean {lengths.mean():,.0f}"
    channels = len(data.channels)
    named = "" if data.channels == tuple(map(str, range(channels))) else f" ({', '.join(data.channels[:8])})"
    return f"data      {name}: {len(data):,} series of {_many(channels, 'channel')}{named}, {steps}"


def _target_line(y: Array | None, classifies: bool, name: str | None) -> str:
    assert y is not None
    of = f" of {name}" if name else ""
    values = np.concatenate([np.ravel(one) for one in y]) if y.dtype == object else y
    at = " at every step" if y.dtype == object else ""
    if not classifies:
        numbers = np.asarray(values, dtype=np.float64)
        return f"target    numbers{of}{at}, {numbers.min():.4g} to {numbers.max():.4g}, mean {numbers.mean():.4g}"
    if values.ndim == 2:
        return f"target    {values.shape[1]} labels at once{of}"
    known, counts = np.unique(values, return_counts=True)
    listed = ", ".join(f"{each} ({count:,})" for each, count in list(zip(known, counts, strict=True))[:SHOWN])
    return f"classes   {len(known)}{of}{at}: {listed}{', ...' if len(known) > SHOWN else ''}"


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def take_time(seconds: float) -> str:
    """A duration in s or min."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


__all__ = ["fit"]
