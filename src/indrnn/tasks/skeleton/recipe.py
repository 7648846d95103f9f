"""Skeleton actions: recipes for the paper's tables of NTU RGB+D, the same networks on UTD-MHAD, and any other set."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from ...baselines import Baseline
from ...checks import check_count, check_fraction, check_seed
from ...files import data_folder
from ...networks import Dense, Head, Plain, Residual
from ...networks.config import Pool
from ...training import OneCycle, Plateau, Training
from ..recipe import Answer, AnyNetwork, Confusion, Description, Loop, Recipe, Row, Samples
from ..samples import SHOWN, Body, recorded
from ..table import Table, command_of, mean, time_of
from .features import names_of
from .joints import Joints, joints_of
from .task import Sampling, SkeletonTask, split_by_subject

if TYPE_CHECKING:
    from torch import nn

    from ..runs import Run
    from .recordings import Recordings

try:
    from tyro.conf import arg

    SamplingOptions = Annotated[Sampling, arg(name="")]  # --frames and not --sampling.frames
except ImportError:  # without a command line
    SamplingOptions = Sampling  # type: ignore[misc]

Protocol = Literal["own", "utd", "ntu60-cs", "ntu60-cv", "ntu120-cs", "ntu120-cv"]

_TITLES = {"own": "own recordings", "utd": "UTD-MHAD"} | {
    f"ntu{size}-{split}": f"NTU RGB+D {size}, {split.upper()}" for size in (60, 120) for split in ("cs", "cv")
}


def _summary(run: dict[str, Any]) -> dict[str, Any]:
    return {**run, "task": _TITLES[run["options"]["protocol"]]}


def _row(runs: list[dict[str, Any]]) -> list[object]:
    first = runs[0]
    test = "not finished"
    if all(run["finished"] for run in runs):
        test = mean([100 * run["test"]["accuracy"] for run in runs], "{:.2f}", " %") if first["test"] else ""
    best = ""
    if _validates(first["options"]):
        best = mean([100 * run["best"][1] for run in runs], "{:.2f}", " %")
    paper = next((row.value for row in ROWS if row.name == first["recipe"]), "")
    columns = [first["task"], first["recipe"], f"{first['steps']:,}", time_of(first), best, test]
    return [*columns, paper, command_of(first)]


def _validates(options: dict[str, Any]) -> bool:
    return bool(options["validation"] or options["validation_subjects"])


_TABLE = Table(
    name="skeleton",
    metric="accuracy",
    without_validation="training_accuracy",
    higher_is_better=True,
    head="set, recipe, steps, time, validation, test, paper, command",
    summary=_summary,
    order=lambda run: (run["task"], run["recipe"], json.dumps(run["options"]), run["lr"]),
    row=_row,
    curve=lambda run: (run["task"], run["name"], [(step, 100 * value) for step, value in run["curve"]]),
    picture={"across": "training step", "up": "accuracy in evaluations (%)", "logarithmic": False},
)


@dataclass(frozen=True)
class _Set:
    """What is known of a data set before reading it."""

    path: str
    """In the folder of data sets."""
    joints: int
    bodies: int
    classes: int
    actions: tuple[str, ...] = ()
    """What the classes are called, where that is known; their numbers, from 1, are in the data."""


_NTU = _Set("ntu", 25, 2, 60)
_UTD_ACTIONS = (
    "swipe left", "swipe right", "wave", "clap", "throw", "cross arms", "basketball shot", "draw a cross",
    "clockwise circle", "anticlockwise circle", "draw a triangle", "bowl", "box", "baseball swing",
    "tennis forehand", "arm curl", "tennis serve", "push", "knock", "catch", "pick up and throw", "jog", "walk",
    "sit to stand", "stand to sit", "lunge", "squat",
)  # fmt: skip
_SETS = {
    "utd": _Set("skeleton/utd_mhad.npz", 20, 1, 27, _UTD_ACTIONS),
    "ntu60-cs": _NTU,
    "ntu60-cv": _NTU,
    "ntu120-cs": replace(_NTU, classes=120),
    "ntu120-cv": replace(_NTU, classes=120),
}


@dataclass(frozen=True)
class SkeletonRecipe(Recipe):
    """Tell actions apart by the joints of skeletons."""

    table: ClassVar[Table] = _TABLE

    protocol: Protocol = "own"
    """Data set and its training and test split; own: any other set, split by subject."""
    data: Path | None = None
    """A .npz file, or a folder written by `indrnn prepare`; None for a named set's place in the data folder."""
    label_field: str = "label"
    """Name of the label array in a .npz file."""
    subject_field: str = "subject"
    """Name of the subject array in a .npz file."""
    frames_field: str = "frames"
    """Name of the frame array in a .npz file."""
    lengths_field: str = "lengths"
    """Name of the length array in a .npz file."""
    test_subjects: tuple[int, ...] = ()
    """Subjects of the test set."""
    validation_subjects: tuple[int, ...] = ()
    """Subjects held out for validation, which selects the best weights."""
    validation: float = 0.0
    """Fraction of the training recordings held out for validation, if no validation subjects are given."""
    joints: Path | None = None
    """JSON file with the bones and lines of the joints; NTU's 25 and Kinect's 20 joints are built in."""
    sampling: SamplingOptions = field(default_factory=Sampling)
    """Sampling of recordings."""
    batch_size: int = 128
    """Batch size."""
    label_smoothing: float = 0.0
    """Label smoothing: share of the target that is spread over all classes."""
    model: AnyNetwork = field(default_factory=lambda: Plain(long_memory=True))
    """The network."""
    pool: Pool = "last"
    """Pooling over time before the classifier: the last step, or the mean."""
    training: Loop = field(default_factory=Training)
    """Training options."""
    seed: int = 0
    """Random seed of weights, dropout, data order and sampling."""
    split_seed: int = 0
    """Random seed of the validation split."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""

    def __post_init__(self) -> None:
        for name in ("data", "joints", "data_dir"):
            if getattr(self, name) is not None:  # text of config.json; a run may be gone on with from elsewhere
                path = Path(getattr(self, name))
                object.__setattr__(self, name, path if name == "data_dir" else path.absolute())
        for name in ("test_subjects", "validation_subjects"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        super().__post_init__()

    def check(self) -> None:
        """See `Recipe.check`."""
        if self.protocol not in _TITLES:
            raise ValueError(f"protocol must be one of {', '.join(_TITLES)}, got {self.protocol!r}")
        if self._ntu and (self.test_subjects or self.validation_subjects):
            raise ValueError(f"test_subjects and validation_subjects are not for {self.protocol}, which says them")
        both = set(self.test_subjects) & set(self.validation_subjects)
        if both:
            raise ValueError(f"validation_subjects must not be test_subjects, got {sorted(both)} in both")
        check_fraction("validation", self.validation)
        check_count("batch_size", self.batch_size)
        check_fraction("label_smoothing", self.label_smoothing)
        check_seed(self.seed)
        check_seed(self.split_seed, "split_seed")

    @property
    def title(self) -> str:
        """Name of the data set."""
        return _TITLES[self.protocol]

    def actions(self, count: int) -> list[str]:
        """Names of the `count` classes, in order."""
        known = _SETS[self.protocol].actions if self.protocol in _SETS else ()
        if len(known) == count:
            return [f"{number} {name}" for number, name in enumerate(known, 1)]
        labels = self.recordings().fields.get(self.label_field) if self.protocol == "own" else None
        if labels is not None:
            return [each if isinstance(each, str) else f"action {each}" for each in np.unique(labels).tolist()]
        return [f"action {number}" for number in range(1, count + 1)]

    @property
    def _ntu(self) -> bool:
        return self.protocol.startswith("ntu")

    def recordings(self) -> Recordings:
        """All recordings, read and checked."""
        path = self.data
        if path is None:
            if self.protocol == "own":
                raise ValueError("data must be given: a .npz file of recordings, or the folder of `indrnn prepare`")
            path = data_folder(self.data_dir) / _SETS[self.protocol].path
            if not path.exists():
                how = "made by `indrnn prepare ntu`" if self._ntu else "not downloaded"
                raise FileNotFoundError(
                    f"data: {_TITLES[self.protocol]} is not at {path}, and is {how}; name the folder it is in "
                    "with --data-dir or INDRNN_DATA, or its place with --data of `indrnn train`"
                )
        path = self._found(path)
        changed = path.stat().st_mtime_ns if path.exists() else 0
        names = (self.frames_field, self.lengths_field, self.label_field, self.subject_field)
        return _read(path, names, changed)

    def _found(self, path: Path) -> Path:
        """The current path of a file, which may have moved to the data folder."""
        if not path.exists() and self.data_dir is not None and (self.data_dir / path.name).exists():
            return self.data_dir / path.name
        return path

    def _sizes(self) -> tuple[Joints, int, int]:
        """The joints, bodies and classes."""
        known = _SETS.get(self.protocol)
        if known is None:
            read = self.recordings()
            known = _Set("", read.frames.shape[2], read.frames.shape[1], int(read.label.max()) + 1)
        joints = None if self.joints is None else self._found(self.joints)
        return joints_of(known.joints, joints), known.bodies, known.classes

    def model_config(self, member: int = 0) -> Head:
        """The model."""
        joints, bodies, classes = self._sizes()
        self.sampling.check(joints)
        size = self.sampling.input_size(joints, bodies)
        return Head(self.model.sized(size, self.sampling.frames), classes, pool=self.pool)

    def task(self, member: int = 0) -> SkeletonTask:
        """The data, read and checked."""
        recordings = self.recordings()
        joints, bodies, classes = self._sizes()
        if self.protocol == "own" and self.joints is None and joints.bones:
            known = "NTU RGB+D" if joints.count == 25 else "UTD-MHAD"
            _say(f"{joints.count} joints are taken to be in the order of {known}; --joints names a file of others")
        if self._ntu:
            from .ntu.splits import ntu_split

            train, validation, test = ntu_split(
                recordings, self.protocol[3:], validation=self.validation, seed=self.split_seed, say=_say
            )
        else:
            train, validation, test = split_by_subject(
                recordings,
                test=self.test_subjects,
                validation=self.validation_subjects or self.validation,
                seed=self.split_seed,
            )
        highest = max(int(recordings.label[part].max(initial=0)) for part in (train, validation, test))
        found = (recordings.frames.shape[2], recordings.frames.shape[1])
        if found != (joints.count, bodies) or highest >= classes:
            raise ValueError(
                f"data: {_TITLES[self.protocol]} has {joints.count} joints, {bodies} bodies and {classes} classes, got "
                f"{found[0]}, {found[1]} and {highest + 1}"
            )
        return SkeletonTask(
            recordings,
            train,
            validation,
            test,
            joints=joints,
            samples=self.sampling,
            batch_size=self.batch_size,
            label_smoothing=self.label_smoothing,
            seed=self.seed,
        )

    def available(self) -> bool:
        """See `Recipe.available`."""
        path = self.data or (data_folder(self.data_dir) / _SETS[self.protocol].path if self.protocol in _SETS else None)
        return path is not None and self._found(path).exists()

    def same_data(self, recorded: dict[str, Any], task: Any, *, to_begin: bool = False) -> None:
        """See `Recipe.same_data`."""
        now = json.loads(json.dumps(task.describe()))
        for name in () if to_begin else ("test", "frames"):
            if name in recorded and recorded[name] != now.get(name):
                raise ValueError("the recordings are no longer those")

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        """See `Recipe.describe`."""
        data = f"{self.title}."
        if recorded:
            uses = {
                "train": "to train on",
                "validation": "kept back to choose the best weights by",
                "test": "for the test",
            }
            counts = [f"{recorded[part]['items']:,} {use}" for part, use in uses.items() if part in recorded]
            data = (
                f"{self.title}: {recorded['frames']['shape'][0]:,} frames of {recorded['joints']['count']} joints. "
                f"Recordings: {', '.join(counts)}. A sample is {self.sampling.frames} frames of one, and the network "
                f"reads {', '.join(self.sampling.features)}."
            )
        metric = "accuracy" if self.validation or self.validation_subjects else "training_accuracy"
        return Description(f"actions of skeletons ({self.title})", data, metric, higher_is_better=True)

    def answers(self, model: nn.Module, limit: int | None, run: Run) -> list[Answer]:
        """See `Recipe.answers`."""
        from .pictures import confusion

        task = self.task()
        split = "test" if task.size("test") else "validation" if task.size("validation") else ""
        if not split:
            raise ValueError("no recordings were kept back")
        counts = confusion(task, model, split)
        draws = task.samples.draws if split == "test" else task.samples.validation_draws
        on = f"{task.size(split):,} recordings for {split}, by the mean of {draws} samples of each"
        return [Confusion(counts.tolist(), self.actions(len(counts)), on)]

    def samples(self, model: nn.Module) -> Samples:
        """See `Recipe.samples`: held-out recordings, or training recordings if there are none, of each action."""
        head: Any = model
        task, actions = self.task(), self.actions(head.config.outputs)
        split = next(name for name in ("validation", "test", "train") if task.size(name))
        _, labels = task.data[split]
        of_action = [(labels == label).nonzero().flatten().tolist() for label in labels.unique().tolist()]
        items = [own[round_] for round_ in range(SHOWN) for own in of_action if round_ < len(own)][:SHOWN]
        batch = task.batch_of(split, torch.tensor(items))
        right = [actions[label] for label in batch.target.tolist()]
        bodies = task.recordings.frames.shape[1]
        body = None
        if self.sampling.features[0] == "coordinates" and task.joints.bones:
            body = Body(task.joints.count, task.joints.bones, bodies)
        return recorded(
            list(batch.inputs.unbind(1)),
            [f"recording {number + 1}: {action}" for number, action in enumerate(right)],
            actions,
            f"Samples of {self.sampling.frames} frames of recordings for {split}.",
            right=right,
            channels=names_of(self.sampling.features, task.joints, bodies),
            body=body,
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@functools.lru_cache(maxsize=1)
def _read(path: Path, names: tuple[str, str, str, str], changed: int) -> Recordings:
    """Read a set once for its sizes and content, unless the file changes."""
    from .recordings import read_npz, read_prepared

    if path.is_dir():
        return read_prepared(path)
    fields = ("frames_field", "lengths_field", "label_field", "subject_field")
    return read_npz(path, **dict(zip(fields, names, strict=True)))


# ---- the paper's tables

_EPOCH = {"ntu60-cs": 298, "ntu60-cv": 280, "ntu120-cs": 468, "ntu120-cv": 405}
"""Steps of 128 samples in 95 % of the training recordings"""
_AUGMENTED: tuple[Any, ...] = ("coordinates", "differences", "distances")


def _paper(protocol: Protocol, model: AnyNetwork, *, lr: float = 2e-4, augmented: bool = False) -> SkeletonRecipe:
    """The paper's training: batches of 128, the learning rate divided by 5 on plateaus; 5 % held out.

    The paper does not give the training length: 500 epochs at most here, and the plateaus decide. The bound is 5^(1/20)
    and the weight decay 1e-4.
    """
    epoch = _EPOCH[protocol]
    sampling = Sampling(features=_AUGMENTED, shortest=10, longest=30) if augmented else Sampling()
    return SkeletonRecipe(
        protocol,
        validation=0.05,
        sampling=sampling,
        model=model,
        training=Training(steps=500 * epoch, lr=lr, schedule=Plateau(5, 100), weight_decay=1e-4, evaluate_every=epoch),
    )


_SIX = Plain(hidden_size=512, layers=6, dropout=0.4, gamma=5.0, long_memory=True)
_DENSE = Dense(
    growth_rate=48,
    gamma=5.0,
    long_memory=True,
    first_dropout=0.5,
    dense_dropout=0.5,
    bottleneck_dropout=0.1,
    transition_dropout=0.3,
)
_FOUR = replace(_SIX, layers=4)
_HUNDRED = Residual(hidden_size=512, blocks=49, dropout=0.4, gamma=5.0, long_memory=True)


def _tanh(model: Plain) -> Plain:
    return replace(model, nonlinearity="tanh", dropout=0.3)


def _rnn(layers: int) -> Baseline:
    return Baseline("rnn", hidden_size=512, layers=layers, dropout=0.5)


def _lstm(layers: int) -> Baseline:
    return Baseline("lstm", hidden_size=128, layers=layers, dropout=0.5)


def _both(
    size: int, name: str, model: AnyNetwork, table: str, values: Sequence[str], cost: str, **options: Any
) -> list[Row]:
    """A row for cross-subject and one for cross-view (of NTU RGB+D 120, cross-setup)."""
    protocols: tuple[Any, Any] = (f"ntu{size}-cs", f"ntu{size}-cv")
    return [
        Row(f"{protocol}-{name}", _paper(protocol, model, **options), table, value, cost)
        for protocol, value in zip(protocols, values, strict=True)
    ]


_ntu60, _ntu120 = functools.partial(_both, 60), functools.partial(_both, 120)

_RNNS = {
    1: ("57.84 %", "64.28 %", "3 h"),
    2: ("62.17 %", "71.00 %", "6 h"),
    4: ("61.78 %", "68.28 %", "13 h"),
    6: ("58.23 %", "63.49 %", "20 h"),
}
_LSTMS = {
    1: ("66.01 %", "73.87 %", "1 h"),
    2: ("67.93 %", "77.55 %", "2 h"),
    4: ("66.02 %", "69.12 %", "5 h"),
    6: ("58.50 %", "67.42 %", "7 h"),
}
_GAMMAS: dict[str, tuple[float | None, str]] = {
    "1": (1.0, "80.82 %"),
    "2": (2.0, "80.68 %"),
    "10": (10.0, "80.43 %"),
    "none": (None, "80.24 %"),
}

_NTU_ROWS = (
    *_ntu60("4", _FOUR, "Table 4", ("77.23 %", "88.30 %"), "6 h"),
    *_ntu60("6", _SIX, "Table 4", ("80.44 %", "89.45 %"), "9 h"),
    *_ntu60("4-tanh", _tanh(_FOUR), "Table 4", ("76.56 %", "85.32 %"), "6 h"),
    *_ntu60("6-tanh", _tanh(_SIX), "Table 4", ("80.36 %", "88.61 %"), "9 h"),
    *_ntu60("res100", _HUNDRED, "Table 4", ("83.26 %", "92.00 %"), "7 days", lr=6e-4),
    *_ntu60("dense", _DENSE, "Table 4", ("83.38 %", "91.81 %"), "16 h"),
    *_ntu60("dense-aug", _DENSE, "Table 5", ("86.70 %", "93.97 %"), "20 h", augmented=True),
    *(row for n, (*values, cost) in _RNNS.items() for row in _ntu60(f"rnn-{n}", _rnn(n), "Table 4", values, cost)),
    *(row for n, (*values, cost) in _LSTMS.items() for row in _ntu60(f"lstm-{n}", _lstm(n), "Table 4", values, cost)),
    *(
        Row(f"ntu60-cs-6-gamma{name}", _paper("ntu60-cs", replace(_SIX, gamma=gamma)), "Table 6", value, "9 h")
        for name, (gamma, value) in _GAMMAS.items()
    ),
    *_ntu120("4", _FOUR, "Table 7", ("70.01 %", "72.05 %"), "10 h"),
    *_ntu120("6", _SIX, "Table 7", ("72.39 %", "75.04 %"), "14 h"),
    *_ntu120("dense", _DENSE, "Table 7", ("74.62 %", "77.37 %"), "1 day"),
    *_ntu120("dense-aug", _DENSE, "Table 7", ("76.55 %", "79.18 %"), "1 day", augmented=True),
)


# ---- UTD-MHAD, and any other set


def _short(model: AnyNetwork, *, augmented: bool = False, steps: int = 3000, lr: float = 2e-3) -> SkeletonRecipe:
    """Training in minutes, for a set of some hundred recordings; docs/skeleton.md has the alternatives tried.

    No recordings are held out: the learning rate falls to zero, and the last weights are taken as the best.
    """
    sampling = Sampling()
    if augmented:
        features: tuple[Any, ...] = ("coordinates", "velocities")
        sampling = Sampling(features=features, shortest=10, longest=30, turn=30.0, scale=0.2, hide=0.1)
    return SkeletonRecipe(
        "utd",
        label_field="action",
        test_subjects=(2, 4, 6, 8),
        sampling=sampling,
        batch_size=32,
        model=model,
        pool="mean",
        training=Training(steps=steps, lr=lr, schedule=OneCycle(), weight_decay=1e-4, evaluate_every=500),
    )


def _utd(name: str, model: AnyNetwork, cost: str, **options: Any) -> tuple[Row, Row]:
    """A row with coordinates only, and one with more features, random rotations and scales."""
    augmented = _short(model, augmented=True, **options)
    return (
        Row(f"utd-{name}", _short(model, **options), "as Table 4", "not shown", cost),
        Row(f"utd-{name}-aug", augmented, "as Table 5", "not shown", cost),
    )


_UTD_SIX = replace(_SIX, hidden_size=256, dropout=0.3)
_UTD_FOUR = replace(_UTD_SIX, layers=4)
_UTD_RESIDUAL = Residual(hidden_size=128, blocks=10, dropout=0.1, gamma=5.0, long_memory=True)
_UTD_DENSE = replace(
    _DENSE, growth_rate=24, first_dropout=0.2, dense_dropout=0.2, bottleneck_dropout=0.1, transition_dropout=0.1
)

_RNN_MINUTES, _LSTM_MINUTES = {1: 2, 2: 4, 4: 9, 6: 14}, {1: 1, 2: 2, 4: 3, 6: 4}

_UTD_ROWS = (
    *_utd("4", _UTD_FOUR, "2 min"),
    *_utd("6", _UTD_SIX, "2 min"),
    *_utd("4-tanh", _tanh(_UTD_FOUR), "2 min"),
    *_utd("6-tanh", _tanh(_UTD_SIX), "2 min"),
    *_utd("res21", _UTD_RESIDUAL, "4 min"),
    *_utd("res99", replace(_UTD_RESIDUAL, blocks=49), "18 min"),
    *_utd("dense", _UTD_DENSE, "7 min"),
    *(row for n, minutes in _RNN_MINUTES.items() for row in _utd(f"rnn-{n}", _rnn(n), f"{minutes} min", lr=5e-4)),
    *(row for n, minutes in _LSTM_MINUTES.items() for row in _utd(f"lstm-{n}", _lstm(n), f"{minutes} min")),
    *(_utd(f"6-gamma{name}", replace(_UTD_SIX, gamma=gamma), "2 min")[1] for name, (gamma, _) in _GAMMAS.items()),
)


def _own(name: str, model: AnyNetwork, cost: str, *, augmented: bool = False) -> Row:
    recipe = replace(
        _short(model, augmented=augmented), protocol="own", label_field="label", test_subjects=(), validation=0.1
    )
    return Row(f"skeleton-{name}", recipe, "as Table 5" if augmented else "as Table 4", "your own", cost)


ROWS = (
    *_NTU_ROWS,
    *_UTD_ROWS,
    _own("4", _UTD_FOUR, "2 min"),
    _own("6", _UTD_SIX, "2 min"),
    _own("6-aug", _UTD_SIX, "2 min", augmented=True),
    _own("dense", _UTD_DENSE, "7 min"),
    _own("dense-aug", _UTD_DENSE, "7 min", augmented=True),
)
