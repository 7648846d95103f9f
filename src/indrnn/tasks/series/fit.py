"""`Fit`: the recipe of users' own series, read from a file, fitted by an estimator and scored on held-out series."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from ..._lazy import Lazy
from ...checks import check_fraction, check_seed
from ...words import rough_duration, value_of, words
from ..recipe import Answer, Confusion, Description, Extra, Pairs, Recipe, Samples, Say, recorded
from .defaults import MEMBERS, Core, Effort, check_options
from .reading import Reading

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from ...training import Task, Training
    from ..runs import Run
    from .collection import Collection
    from .estimators import Estimator, Fitting
else:
    np = Lazy("numpy")

try:
    from tyro.conf import Positional, arg
except ImportError:  # without a command line
    Positional, arg = Annotated[TypeVar("_T"), None], dict

_SHOWN = 12  # classes that are listed with their counts


@dataclass(frozen=True)
class FitEvaluation:
    """Options of `evaluate` for runs of `indrnn fit`."""

    data: Positional[Path | None] = None
    """File of labelled series, for runs of `indrnn fit`; None for the series held out for test."""
    resample: bool = False
    """Resample WAV files of another rate to that of training; with DATA."""


@dataclass(frozen=True)
class Fit(Recipe):
    """Fit a model to your own sequences, test it on held-out series, and write a run folder.

    DATA is an .npz file, a .ts file of UCR and UEA, a table (.csv, .tsv, .parquet) in long or wide form, or a folder of
    WAV files with a subfolder per class. A summary of the data is printed first; --dry-run stops there.
    """

    places: ClassVar[tuple[str, ...]] = ("data", "test")
    extras: ClassVar[tuple[Extra, ...]] = (
        Extra("evaluate", "runs of `indrnn fit`", FitEvaluation, f"{__name__}:evaluate"),
    )

    data: Positional[Path]
    """Data file or folder."""
    reading: Annotated[Reading, arg(name="")] = Reading()  # noqa: RUF009
    """Options of reading the data."""
    test: Path | None = None
    """Test file, of the same kind; NAME_TEST.ts beside NAME_TRAIN.ts is found automatically."""
    test_share: float = 0.2
    """Fraction held out for test if there is no test file or --test-where, by class or in whole groups; 0 for none."""
    kind: Annotated[Literal["auto", "classify", "regress"], arg(name="task")] = "auto"
    """Type of task. auto: targets that are text or few distinct whole numbers are classes, others are numbers."""
    effort: Effort = "default"
    """Training effort. quick: fewer steps; best: an ensemble."""
    core: Core = "indrnn"
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
    networks: Annotated[int | None, arg(name="members")] = None
    """Ensemble size: number of networks whose outputs are averaged."""
    seed: int = 0
    """Random seed of weights and training; the test series are the same for every seed."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""

    def check(self) -> None:
        check_seed(self.seed)
        check_fraction("test_share", self.test_share)
        check_options(vars(self) | {"members": self.networks})

    # ---- data, read once

    def at(self, folder: Path) -> Self:
        return replace(self, **{name: folder / path.name for name, path in self._paths.items()})  # type: ignore[arg-type]

    @property
    def _paths(self) -> dict[str, Path]:
        return {name: Path(path) for name in self.places if (path := getattr(self, name)) is not None}

    def available(self) -> bool:
        return all(path.exists() for path in self._paths.values())

    @cached_property
    def read(self) -> tuple[Collection, Reading, Path | None]:
        """Series of the file, how it was read, and the file of the test series."""
        from .reading.sources import read_with

        return read_with(Path(self.data), self.reading, test=self.test)

    @cached_property
    def series(self) -> tuple[Collection, bool]:
        """All series, with targets as classes or numbers, and whether they are classes."""
        return _typed_targets(self.read[0], self.kind)

    @cached_property
    def split(self) -> tuple[Collection, Collection | None, str]:
        """Series to train on, those held out for test (None if there are none), and how they were chosen."""
        from .collection import hold_out

        (data, classifies), (_, _, test_file) = self.series, self.read
        groups, group = data.groups, self.reading.group
        held, how = data.test, self.reading.test_where or (test_file.name if test_file else "")
        if held is not None and groups is not None and len(both := np.intersect1d(groups[held], groups[~held])):
            how += f"; {len(both)} groups of {group} are in both, so this says nothing of new ones"
        if held is None and self.test_share:
            assert data.y is not None
            by_class = classifies and data.y.ndim == 1 and data.y.dtype != object
            held = hold_out(len(data), self.test_share, classes=data.y if by_class else None, groups=groups)
            how = f"{self.test_share:.0%}, by class" if by_class else f"{self.test_share:.0%}"
            if groups is not None:
                how = f"whole groups of {group}: {', '.join(map(str, np.unique(groups[held]).tolist()[:8]))}"
        if held is None or not held.any():
            return data, None, "none kept for test"
        return data.select(~held), data.select(held), how

    def same_data(self, recorded: dict[str, Any], task: Task, *, to_begin: bool = False) -> None:
        """See `Recipe.same_data`: the run's test series may have been used in training if its data have changed."""
        described: Any = task
        if recorded["train"] != described.describe()["train"]:
            change = f"{self.data} has changed, or this version prepares it in another way"
            raise ValueError(f"{change}: its training series are not read as those")

    def for_record(self) -> Self:
        """The recipe with what follows from its data: paths in full, and how the file was read."""
        paths: dict[str, Any] = {name: path.resolve() for name, path in self._paths.items()}
        return replace(self, reading=self.read[1], **paths)

    # ---- training

    @cached_property
    def estimator(self) -> Estimator:
        from .estimators import IndRNNClassifier, IndRNNRegressor

        _, classifies = self.series
        shared = ("steps", "lr", "batch_size", "hidden_size", "layers", "validation", "core", "device", "threads")
        options: dict[str, Any] = {name: getattr(self, name) for name in shared}
        options |= {"per_step": self.reading.per_step, "random_state": self.seed, "members": self.networks}
        if classifies:
            return IndRNNClassifier(self.effort, class_weight="balanced" if self.balanced else None, **options)
        if self.balanced:
            raise ValueError("balanced is for classes, and the target holds numbers")
        return IndRNNRegressor(self.effort, **options)

    @cached_property
    def fitting(self) -> Fitting:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            fitting = self.estimator.fitting(self.split[0])
        return replace(fitting, notes=[str(warning.message) for warning in caught])

    @property
    def members(self) -> int:
        return self.networks or MEMBERS[self.effort]

    @property
    def training(self) -> Training:
        """Options of the training, chosen from the data."""
        return self.fitting.training

    def task(self, member: int = 0) -> Task:
        return self.fitting.task(member)

    def model_config(self, member: int = 0) -> Any:
        return self.fitting.model_config(member)

    def member_seed(self, member: int) -> int:
        return self.fitting.member_seed(member)

    def finish(self, folder: Path, models: Sequence[nn.Module]) -> list[str]:
        """See `Recipe.finish`: estimator.json, scores.json and the confusion matrix."""
        from ...training.folder import RunFolder, finite
        from .scores import score

        run, estimator, (train, test, how) = RunFolder(folder), self.estimator, self.split
        estimator.set_fitted(self.fitting, models)
        estimator.save_settings(folder)
        if test is None:
            return ["no series were kept for test, so there is no honest figure: --test-share, --test or --test-where"]
        lines, numbers, confusion = score(estimator, test, train)
        facts = {"run": folder.resolve().name, "data": Path(self.data).name, "split": how}
        content = finite({**facts, "train": len(train), "test": numbers})
        run.write_json(folder / "scores.json", content)
        if run.result.exists():  # of a single network, where `indrnn report` reads them
            figures = {name: value for name, value in content["test"].items() if isinstance(value, float)}
            run.write_json(run.result, run.read_json(run.result) | {"test": figures})
        if confusion is not None:
            confusion.write(folder, facts)
        return [f"\non {len(test):,} series that were not trained on:", *lines, ""]

    # ---- what is shown

    def summary(self) -> list[str]:
        """Data and training in lines, with notes on what is odd about the data; trains two steps for the cost."""
        (data, classifies), (train, test, how) = self.series, self.split
        cost, channels = self.fitting.estimate(), data.channels
        low, high = int(data.lengths.min()), int(data.lengths.max())
        steps = f"{low:,} steps" if low == high else f"{low:,} to {high:,} steps, mean {data.lengths.mean():,.0f}"
        named = "" if channels == tuple(map(str, range(len(channels)))) else f" ({', '.join(channels[:8])})"
        many = f"{len(channels):,} channel{'' if len(channels) == 1 else 's'}{named}"
        seconds, size = rough_duration(max(1, cost["seconds"])), f"{cost['bytes'] / 2**20:,.0f} MB"
        held = f"{len(test):,} for test" if test is not None else "none for test"
        return [
            f"data      {Path(self.data).name}: {len(data):,} series of {many}, {steps}",
            f"missing   {data.missing:.2%} of the values" if data.missing else "missing   no values",
            _target_line(data.y, classifies, self.reading.target),
            *([] if data.groups is None else [f"groups    {self.reading.group}: {len(np.unique(data.groups))}"]),
            f"split     {len(train):,} series to train on, {held} ({how})",
            f"network   {self.fitting.plan.describe()}",
            f"cost      about {seconds} here, {size} for a batch",
            *(f"note      {note}" for note in self.fitting.notes),
        ]

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        recorded, name = recorded or {}, Path(self.data).name
        parts = {"train": "to train on", "validation": "held back to choose the best weights by"}
        counts = [f"{recorded[part]['series']:,} {use}" for part, use in parts.items() if recorded.get(part)]
        features = recorded.get("train", {}).get("features")
        what = f"series of {features} features" if features else "series"
        metric = "accuracy" if recorded.get("kind") == "classes" else "loss"
        scores, compared = dict[str, Any](), list[str]()
        if folder is not None and (path := folder / "scores.json").exists():
            scores = json.loads(path.read_text(encoding="utf-8"))["test"]
            naive, interval = scores.pop("naive", {}), scores.pop("accuracy_interval", None)
            if interval is not None:
                scores["accuracy, 95 % interval"] = f"{interval[0]:.1%} to {interval[1]:.1%}"
            for answer, numbers in naive.items():
                first = next(iter(numbers))
                value = scores[f"{words(first)}, answering naively ({answer})"] = value_of(first, numbers[first])
                compared.append(f"answering naively ({answer}) gives {value}")
        task, data = f"{name}, by `indrnn fit`", f"{name}: {what}; {', '.join(counts) or 'sizes not known'}."
        measured = metric if "validation" in recorded else f"training_{metric}"
        higher = metric == "accuracy"
        return Description(task, data, measured, higher, compared=", ".join(compared), scores=scores or None)

    def answers(self, model: nn.Module, limit: int | None, run: Run) -> list[Answer]:
        """See `Recipe.answers`: `fit`'s confusion matrix, or a regressor's predictions, recomputed."""
        matrix = run.path / "confusion.json"
        if matrix.exists():
            content = json.loads(matrix.read_text(encoding="utf-8"))
            on = f"the series kept for test ({content['split']})"
            return [Confusion(content["counts"], list(content["classes"]), on)]
        test = self.split[1]
        if test is None:
            raise ValueError("no series were kept for test")
        _, estimator = load_fitted(run, "cpu")
        if estimator.target_.kind != "numbers":
            raise ValueError("several labels at once have no confusion matrix")
        right, predictions = (_flat(values).astype(np.float64).tolist() for values in (test.y, estimator.predict(test)))
        return [Pairs(list(zip(right, predictions, strict=True))[:limit], "numbers of series kept for test")]

    def samples(self, model: nn.Module) -> Samples:
        """See `Recipe.samples`: some of the test series, or of the training series if there are none."""
        (train, test, _), preparation, target = self.split, self.fitting.preparation, self.fitting.target
        data = train if test is None else test
        count = min(len(data), Samples.most)
        some = data.select(np.unique(np.linspace(0, len(data) - 1, count).round().astype(np.int64)))
        assert some.y is not None
        names = list(some.names or (f"series {number + 1}" for number in range(len(some))))
        right: list[Any] | None = None
        if not target.per_step and some.y.ndim == 1:
            right = list(map(str if target.kind == "classes" else float, some.y.tolist()))
            if target.kind == "classes":
                names = [f"{name}: {answer}" for name, answer in zip(names, right, strict=True)]
        which = "Training series" if test is None else "Series that were kept for test"
        note = f"{which}, standardised as the network reads them."
        sequences, classes = [preparation(one) for one in some.x], [str(name) for name in target.names] or None
        channels = [*data.channels, *(f"{data.channels[i]} is there" for i in preparation.masked)]
        samples = recorded(sequences, names, classes, note, right=right, channels=channels)
        samples.several = target.kind == "labels"
        samples.model = target.model_in_units(model) if target.kind == "numbers" else None
        return samples

    # ---- other files

    def read_like(self, estimator: Estimator, data: Path, *, resample: bool, target_needed: bool) -> Collection:
        """Read all series of another file as the data were read, and check that it has the same channels."""
        from .reading.sources import kind_of, read_with

        reading, trained, kind = self.reading, estimator.channels_, kind_of(data)
        if resample and reading.rate is None:
            raise ValueError("resample is for runs on WAV files")
        described = filter(None, (reading.group, reading.tested_column))  # no values, here as in training
        ignore = (*reading.ignore, *described)
        resample = resample or reading.resample
        reading = replace(reading, group=None, test_where=None, ignore=ignore, resample=resample).only_for(kind)
        features = tuple(name for name in trained if not (reading.time_differences and name == "dt"))
        if kind == "table" and reading.layout == "long" and not reading.features and features != ("0",):
            reading = replace(reading, features=features)  # by name: others may stand beside them
        collection, *_ = read_with(data, reading, target_needed=target_needed, alone=True)
        if (got := len(collection.channels)) != len(trained):
            names = ", ".join(trained[:8])
            raise ValueError(f"{data} must have the {len(trained)} channels of training ({names}), got {got}")
        return collection


# ---- a fitted run


def fit_of(run: Run) -> Fit:
    """The recipe of a run of `indrnn fit`."""
    if not isinstance(run.recipe, Fit):
        raise ValueError(f"run must be of `indrnn fit`, and {run.path} is not")
    return run.recipe


def load_fitted(run: Run, device: str) -> tuple[Fit, Estimator]:
    """The recipe and the estimator of a finished run of `indrnn fit`."""
    from ...training.parallel import choose_device
    from .estimators import FILE, load_estimator

    recipe = fit_of(run)
    if not (run.path / FILE).exists():
        again = shlex.join(["indrnn", "fit", "--resume", str(run.path)])
        raise ValueError(f"run must be finished, and {run.path} is not; resume it: {again}")
    return recipe, load_estimator(run.path, choose_device(device))


def evaluate(run: Run, options: FitEvaluation, *, data_dir: Path | None, device: str, say: Say) -> dict[str, Any]:
    """Evaluate a run of `indrnn fit`: on all series of a file, or again on its own test series."""
    from .scores import score

    if options.data is not None and data_dir is not None:
        raise ValueError("data_dir is for the data that the run was fitted to; DATA names another file")
    recipe, estimator = load_fitted(run, device)
    train: Collection | None = None
    if options.data is None:
        recipe = recipe if data_dir is None else recipe.at(data_dir)
        train, test, _ = recipe.split
        if test is None:
            again = shlex.join(["indrnn", "evaluate", str(run.path)])
            raise ValueError(f"{run.path} kept no series for test; name a file of them: {again} DATA")
        try:
            run.checked_task(recipe)
        except ValueError as error:
            raise ValueError(f"{error}, or name a file of test series, after RUN") from None
        on = f"{len(test):,} test series of {Path(recipe.data).name}"
    else:
        test = recipe.read_like(estimator, options.data, resample=options.resample, target_needed=True)
        if recipe.kind != "regress" and estimator.target_.kind != "numbers":
            test, _ = _typed_targets(test, "classify")
        on = f"{len(test):,} series of {options.data.name}"
    lines, numbers, _ = score(estimator, test, train)
    for line in (f"{run.path}: {on}", *lines):
        say(line)
    return {"on": on, "test": numbers}


# ---- targets and lines


def _flat(y: Any) -> Any:
    """All targets in one dimension, also those at every step."""
    return np.concatenate([np.ravel(values) for values in y])


def _typed_targets(data: Collection, kind: str) -> tuple[Collection, bool]:
    y = data.y
    assert y is not None
    values = _flat(y)
    text = values.dtype.kind not in "fiub"
    if text and kind == "regress":
        raise ValueError(f"task regress needs numbers in the target, got {str(values[0])!r}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        at = int(np.argmax(~np.isfinite(values)))
        raise ValueError(f"target must be known for each series, and number {at} of them is {values[at]}; leave it out")
    whole = not text and bool((values == np.floor(values)).all())
    few = len(np.unique(values)) <= max(2, min(100, len(values) // 2))
    classes = text or kind == "classify" or (kind == "auto" and whole and few)
    if classes and not text and not whole:
        raise ValueError("task classify needs text or whole numbers in the target, got others; use --task regress")
    return (replace(data, y=y.astype(np.int64)) if classes and y.dtype.kind == "f" else data), classes


def _target_line(y: Any, classifies: bool, name: str | None) -> str:
    of = f" of {name}" if name else ""
    values, at = (_flat(y), " at every step") if y.dtype == object else (y, "")
    if not classifies:
        numbers = np.asarray(values, dtype=np.float64)
        return f"target    numbers{of}{at}, {numbers.min():.4g} to {numbers.max():.4g}, mean {numbers.mean():.4g}"
    if values.ndim == 2:
        return f"target    {values.shape[1]} labels at once{of}"
    names, counts = np.unique(values, return_counts=True)
    listed = ", ".join(f"{label} ({count:,})" for label, count in list(zip(names, counts, strict=True))[:_SHOWN])
    return f"classes   {len(names)}{of}{at}: {listed}{', ...' if len(names) > _SHOWN else ''}"
