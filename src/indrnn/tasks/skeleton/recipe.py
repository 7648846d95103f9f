"""Skeleton actions: recipes for the paper's tables of NTU RGB+D, the same networks on UTD-MHAD, and any other set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ...baselines import Baseline
from ...checks import check_choice, check_count, check_fraction, check_seed
from ...files import data_folder
from ...networks import Dense, Head, Plain, Residual
from ...networks.config import Pool
from ...system import note
from ...training import OneCycle, Plateau, Training
from ..recipe import Answer, AnyNetwork, Body, Confusion, Description, Extra, Flat, Loop, Recipe, Row, Samples, recorded
from ..table import Summary, Table, accuracy_columns, command_of, time_of
from .joints import Joints, Sampling, joints_of, names_of

with contextlib.suppress(ImportError):  # without a command line
    from tyro.conf import Positional

if TYPE_CHECKING:
    from torch import nn

    from ..runs import Run
    from .recordings import Recordings
    from .task import SkeletonTask

Protocol = Literal["own", "utd", "ntu60-cs", "ntu60-cv", "ntu120-cs", "ntu120-cv"]


@dataclass
class NtuOptions:
    """Convert the .skeleton files of NTU RGB+D 60, 120 or both to the arrays that training reads.

    After an interruption, the same command resumes. Samples with missing skeletons are excluded, by the published
    lists. Broken files are reported, counted and excluded.
    """

    folder: Positional[list[Path]]
    """Folders of .skeleton files, nested or not, or the published .zip archives, or folders of these."""
    out: Path
    """Output folder of frames.npy, index.csv and prepared.json.
    Needs disk space for the arrays twice, and once more with --overwrite."""
    strict: bool = False
    """Stop at the first broken file."""
    workers: int | None = None
    """Number of processes; None for the number of cores."""
    overwrite: bool = False
    """Replace existing prepared arrays."""


@dataclass
class SkeletonsOptions:
    """Plot samples of the recordings that a run was trained on, and its confusion matrix on the test set."""

    run: Positional[Path]
    """Folder of a run of a skeleton recipe."""
    out: Path = Path("results/skeleton")
    """Output folder of samples.png, confusion.json and confusion.png."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


class _Set(NamedTuple):
    """A data set before it is read: its path in the data folder; numbers of joints, bodies and classes; their names."""

    title: str
    path: str = ""
    sizes: tuple[int, int, int] = (0, 0, 0)
    actions: tuple[str, ...] = ()


_UTD_ACTIONS = (
    "swipe left", "swipe right", "wave", "clap", "throw", "cross arms", "basketball shot", "draw a cross",
    "clockwise circle", "anticlockwise circle", "draw a triangle", "bowl", "box", "baseball swing",
    "tennis forehand", "arm curl", "tennis serve", "push", "knock", "catch", "pick up and throw", "jog", "walk",
    "sit to stand", "stand to sit", "lunge", "squat",
)  # fmt: skip
_SETS = {
    "own": _Set("own recordings"),
    "utd": _Set("UTD-MHAD", "skeleton/utd_mhad.npz", (20, 1, 27), _UTD_ACTIONS),
}
for _size, _split in product((60, 120), ("cs", "cv")):
    _SETS[f"ntu{_size}-{_split}"] = _Set(f"NTU RGB+D {_size}, {_split.upper()}", "ntu", (25, 2, _size))


def _row(runs: list[Summary]) -> list[object]:
    first = runs[0]
    best, test = accuracy_columns(runs)
    if not (first["options"]["validation"] or first["options"]["validation_subjects"]):
        best = ""
    paper = next((row.value for row in ROWS if row.name == first["recipe"]), "")
    return [first["task"], first["recipe"], f"{first['steps']:,}", time_of(first), best, test, paper, command_of(first)]


@dataclass(frozen=True)
class SkeletonRecipe(Recipe):
    """Tell actions apart by the joints of skeletons."""

    table: ClassVar[Table] = Table(
        name="skeleton",
        metric="accuracy",
        without_validation="training_accuracy",
        higher_is_better=True,
        head="set, recipe, steps, time, validation, test, paper, command",
        summary=lambda run: {**run, "task": _SETS[run["options"]["protocol"]].title},
        row=_row,
        curve=lambda run: (run["task"], run["name"], [(step, 100 * value) for step, value in run["curve"]]),
        picture={"across": "training step", "up": "accuracy in evaluations (%)", "logarithmic": False},
    )
    extras: ClassVar[tuple[Extra, ...]] = (
        Extra("prepare", "ntu", NtuOptions, "indrnn.tasks.skeleton.ntu.prepare:run"),
        Extra("analyse", "skeletons", SkeletonsOptions, "indrnn.tasks.skeleton.pictures:analyse"),
    )
    files: ClassVar[tuple[str, ...]] = ("data", "joints")

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
    sampling: Flat[Sampling] = field(default_factory=Sampling)
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
        for name in ("test_subjects", "validation_subjects"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        super().__post_init__()

    def check(self) -> None:
        check_choice("protocol", self.protocol, tuple(_SETS))
        if self._is_ntu and (self.test_subjects or self.validation_subjects):
            raise ValueError(f"test_subjects and validation_subjects are not for {self.protocol}, which says them")
        if both := set(self.test_subjects) & set(self.validation_subjects):
            raise ValueError(f"validation_subjects must not be test_subjects, got {sorted(both)} in both")
        check_fraction("validation", self.validation)
        check_count("batch_size", self.batch_size)
        check_fraction("label_smoothing", self.label_smoothing)
        check_seed(self.seed)
        check_seed(self.split_seed, "split_seed")

    @property
    def _is_ntu(self) -> bool:
        return self.protocol.startswith("ntu")

    def _moved(self, path: Path) -> Path:
        """The path of a file, which may have moved to the data folder."""
        moved = path if self.data_dir is None else self.data_dir / path.name
        return moved if moved.exists() and not path.exists() else path

    @property
    def _path(self) -> Path | None:
        """Path of the recordings; None if it must be given."""
        if self.data is not None:
            return self._moved(self.data)
        return None if self.protocol == "own" else data_folder(self.data_dir) / _SETS[self.protocol].path

    def available(self) -> bool:
        return self._path is not None and self._path.exists()

    def recordings(self) -> Recordings:
        """All recordings, read and checked."""
        path = self._path
        if path is None:
            raise ValueError("data must be given: a .npz file of recordings, or the folder of `indrnn prepare`")
        if self.data is None and not path.exists():
            how = "made by `indrnn prepare ntu`" if self._is_ntu else "not downloaded"
            raise FileNotFoundError(
                f"data: {_SETS[self.protocol].title} is not at {path}, and is {how}; name the folder it is in "
                "with --data-dir or INDRNN_DATA, or its place with --data of `indrnn train`"
            )
        fields = ("frames_field", "lengths_field", "label_field", "subject_field")
        changed = path.stat().st_mtime_ns if path.exists() else 0
        return _read(path, changed, **{name: getattr(self, name) for name in fields})

    def actions(self, count: int) -> list[str]:
        """Names of the `count` classes, in order."""
        actions = _SETS[self.protocol].actions
        if len(actions) == count:
            return [f"{number} {name}" for number, name in enumerate(actions, 1)]
        labels = self.recordings().fields.get(self.label_field) if self.protocol == "own" else None
        names = range(1, count + 1) if labels is None else sorted(set(labels.tolist()))
        return [name if isinstance(name, str) else f"action {name}" for name in names]

    def _sizes(self) -> tuple[Joints, int, int]:  # and the bodies and classes
        count, bodies, classes = _SETS[self.protocol].sizes
        if self.protocol == "own":
            bodies, count = self.recordings().frames.shape[1:3]
            classes = int(self.recordings().label.max()) + 1
        return joints_of(count, None if self.joints is None else self._moved(self.joints)), bodies, classes

    def same_data(self, recorded: dict[str, Any], task: Any, *, to_begin: bool = False) -> None:
        now = task.describe()
        if not to_begin and any(name in recorded and recorded[name] != now.get(name) for name in ("test", "frames")):
            raise ValueError("the recordings are no longer those")

    def task(self, member: int = 0) -> SkeletonTask:
        from .ntu.splits import ntu_split
        from .task import SkeletonTask, split_by_subject

        recordings = self.recordings()
        joints, bodies, classes = self._sizes()
        if self.protocol == "own" and self.joints is None and joints.bones:
            order = "NTU RGB+D" if joints.count == 25 else "UTD-MHAD"
            note(f"{joints.count} joints are taken to be in the order of {order}; --joints names a file of others")
        validation, seed = self.validation_subjects or self.validation, self.split_seed
        if self._is_ntu:
            protocol = self.protocol.removeprefix("ntu")
            parts = ntu_split(recordings, protocol, validation=self.validation, seed=seed, say=note)
        else:
            parts = split_by_subject(recordings, test=self.test_subjects, validation=validation, seed=seed)
        _, has_bodies, has_joints, _ = recordings.frames.shape
        has_classes = 1 + max(recordings.label[part].max(initial=0) for part in parts)
        if (has_joints, has_bodies) != (joints.count, bodies) or has_classes > classes:
            raise ValueError(
                f"data: {_SETS[self.protocol].title} has {joints.count} joints, {bodies} bodies and {classes} classes, "
                f"got {has_joints}, {has_bodies} and {has_classes}"
            )
        options: dict[str, Any] = {name: getattr(self, name) for name in ("batch_size", "label_smoothing", "seed")}
        return SkeletonTask(recordings, *parts, joints=joints, samples=self.sampling, **options)

    def model_config(self, member: int = 0) -> Head:
        joints, bodies, classes = self._sizes()
        self.sampling.check(joints)
        size = len(names_of(self.sampling.features, joints, bodies))
        return Head(self.model.sized(size, self.sampling.frames), classes, pool=self.pool)

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        title = _SETS[self.protocol].title
        data = f"{title}."
        if recorded:
            judged = "kept back to choose the best weights by"
            uses = {"train": "to train on", "validation": judged, "test": "for the test"}
            counts = [f"{recorded[part]['items']:,} {use}" for part, use in uses.items() if part in recorded]
            data = (
                f"{title}: {recorded['frames']['shape'][0]:,} frames of {recorded['joints']['count']} joints. "
                f"Recordings: {', '.join(counts)}. A sample is {self.sampling.frames} frames of one, and the network "
                f"reads {', '.join(self.sampling.features)}."
            )
        metric = "accuracy" if self.validation or self.validation_subjects else "training_accuracy"
        return Description(f"actions of skeletons ({title})", data, metric, higher_is_better=True)

    def answers(self, model: nn.Module, limit: int | None, run: Run) -> list[Answer]:
        from .pictures import confusion

        task = self.task()
        split = next((name for name in ("test", "validation") if task.size(name)), None)
        if split is None:
            raise ValueError("no recordings were kept back")
        counts = confusion(task, model, split)
        on = f"{task.size(split):,} recordings for {split}, by the mean of {task.draws[split]} samples of each"
        return [Confusion(counts.tolist(), self.actions(len(counts)), on)]

    def samples(self, model: nn.Module) -> Samples:
        """See `Recipe.samples`: held-out recordings, or training recordings if there are none, of each action."""
        import torch

        head: Any = model
        task, actions = self.task(), self.actions(head.config.outputs)
        split = next(name for name in ("validation", "test", "train") if task.size(name))
        _, labels = task.data[split]
        of_action = [(labels == label).nonzero().flatten().tolist() for label in labels.unique().tolist()]
        most = Samples.most
        items = [numbers[turn] for turn in range(most) for numbers in of_action if turn < len(numbers)][:most]
        batch = task.batch_of(split, torch.tensor(items))
        right = [actions[label] for label in batch.target.tolist()]
        bodies = task.recordings.frames.shape[1]
        drawn = self.sampling.features[0] == "coordinates" and task.joints.bones
        return recorded(
            list(batch.inputs.unbind(1)),
            [f"recording {number}: {action}" for number, action in enumerate(right, 1)],
            actions,
            f"Samples of {self.sampling.frames} frames of recordings for {split}.",
            right=right,
            channels=names_of(self.sampling.features, task.joints, bodies),
            body=Body(task.joints.count, task.joints.bones, bodies) if drawn else None,
        )


@lru_cache(maxsize=1)
def _read(path: Path, changed: int, **fields: str) -> Recordings:
    """Read a set once, unless the file changes."""
    from .recordings import read_npz, read_prepared

    return read_prepared(path) if path.is_dir() else read_npz(path, **fields)


_EPOCH = {"ntu60-cs": 298, "ntu60-cv": 280, "ntu120-cs": 468, "ntu120-cv": 405}
"""Number of steps of 128 samples in 95 % of the training recordings."""


def _setup(protocol: Protocol, model: AnyNetwork, *, lr: float = 0.0, augmented: bool = False) -> SkeletonRecipe:
    """The paper's training for NTU RGB+D; for a set of some hundred recordings, one of minutes (docs/skeleton.md)."""
    if epoch := _EPOCH.get(protocol):
        options: dict[str, Any] = {"validation": 0.05}
        sampling = Sampling(20, 10, 30, ("coordinates", "differences", "distances"))
        training = Training(steps=500 * epoch, lr=lr or 2e-4, schedule=Plateau(5, 100), evaluate_every=epoch)
    else:
        options = {"validation": 0.1, "batch_size": 32, "pool": "mean"}
        if protocol == "utd":  # of which none are held out: the last weights are taken as the best
            options |= {"validation": 0.0, "label_field": "action", "test_subjects": (2, 4, 6, 8)}
        sampling = Sampling(20, 10, 30, ("coordinates", "velocities"), turn=30.0, scale=0.2, hide=0.1)
        training = Training(steps=3000, lr=lr or 2e-3, schedule=OneCycle(), evaluate_every=500)
    options |= {"sampling": sampling if augmented else Sampling(), "training": replace(training, weight_decay=1e-4)}
    return SkeletonRecipe(protocol, model=model, **options)


_BOUND: dict[str, Any] = {"gamma": 5.0, "long_memory": True}
_SIX = Plain(hidden_size=512, layers=6, dropout=0.4, **_BOUND)
_FOUR = replace(_SIX, layers=4)
_SIX_TANH, _FOUR_TANH = (replace(model, nonlinearity="tanh", dropout=0.3) for model in (_SIX, _FOUR))
_HUNDRED = Residual(hidden_size=512, blocks=49, dropout=0.4, **_BOUND)
_DENSE = Dense(
    growth_rate=48, first_dropout=0.5, dense_dropout=0.5, bottleneck_dropout=0.1, transition_dropout=0.3, **_BOUND
)
_RNN = {layers: Baseline("rnn", hidden_size=512, layers=layers, dropout=0.5) for layers in (1, 2, 4, 6)}
_LSTM = {layers: Baseline("lstm", hidden_size=128, layers=layers, dropout=0.5) for layers in (1, 2, 4, 6)}


def _ntu(
    size: int, name: str, model: AnyNetwork, values: tuple[str, str], cost: str, parameters: int, **options: Any
) -> Iterator[Row]:
    """A row for cross-subject and one for cross-view (of NTU RGB+D 120, cross-setup)."""
    table = "Table 8" if size == 120 else "Table 6" if "augmented" in options else "Table 5"
    for split, value in zip(("cs", "cv"), values, strict=True):
        protocol: Any = f"ntu{size}-{split}"
        yield Row(f"{protocol}-{name}", _setup(protocol, model, **options), table, value, cost, parameters)


_GAMMAS = {"1": (1.0, "80.82 %"), "2": (2.0, "80.68 %"), "10": (10.0, "80.43 %"), "none": (None, "80.24 %")}


def _utd(name: str, model: AnyNetwork, cost: str, parameters: int, augmented: int, **options: Any) -> tuple[Row, Row]:
    """A row with coordinates only, and one with more features, random rotations and scales; and their parameters."""
    plain, aug = (_setup("utd", model, augmented=more, **options) for more in (False, True))
    return (
        Row(f"utd-{name}", plain, "as Table 5", Row.NOT_SHOWN, cost, parameters),
        Row(f"utd-{name}-aug", aug, "as Table 6", Row.NOT_SHOWN, cost, augmented),
    )


_UTD_SIX = replace(_SIX, hidden_size=256, dropout=0.3)
_UTD_FOUR = replace(_UTD_SIX, layers=4)
_UTD_RESIDUAL = Residual(hidden_size=128, blocks=10, dropout=0.1, **_BOUND)
_UTD_DENSE = replace(_DENSE, growth_rate=24, first_dropout=0.2, dense_dropout=0.2, transition_dropout=0.1)

ROWS = (
    *_ntu(60, "4", _FOUR, ("77.23 %", "88.30 %"), "6 h", 902_204),
    *_ntu(60, "6", _SIX, ("80.44 %", "89.45 %"), "9 h", 1_430_588),
    *_ntu(60, "4-tanh", _FOUR_TANH, ("76.56 %", "85.32 %"), "6 h", 902_204),
    *_ntu(60, "6-tanh", _SIX_TANH, ("80.36 %", "88.61 %"), "9 h", 1_430_588),
    *_ntu(60, "res100", _HUNDRED, ("83.26 %", "92.00 %"), "7 days", 26_000_444, lr=6e-4),
    *_ntu(60, "dense", _DENSE, ("83.38 %", "91.81 %"), "16 h", 2_314_428),
    *_ntu(60, "dense-aug", _DENSE, ("86.70 %", "93.97 %"), "20 h", 2_874_300, augmented=True),
    *_ntu(60, "rnn-1", _RNN[1], ("57.84 %", "64.28 %"), "3 h", 370_236),
    *_ntu(60, "rnn-2", _RNN[2], ("62.17 %", "71.00 %"), "6 h", 895_036),
    *_ntu(60, "rnn-4", _RNN[4], ("61.78 %", "68.28 %"), "13 h", 1_944_636),
    *_ntu(60, "rnn-6", _RNN[6], ("58.23 %", "63.49 %"), "20 h", 2_994_236),
    *_ntu(60, "lstm-1", _LSTM[1], ("66.01 %", "73.87 %"), "1 h", 150_588),
    *_ntu(60, "lstm-2", _LSTM[2], ("67.93 %", "77.55 %"), "2 h", 282_172),
    *_ntu(60, "lstm-4", _LSTM[4], ("66.02 %", "69.12 %"), "5 h", 545_340),
    *_ntu(60, "lstm-6", _LSTM[6], ("58.50 %", "67.42 %"), "7 h", 808_508),
    *(
        Row(f"ntu60-cs-6-gamma{key}", _setup("ntu60-cs", replace(_SIX, gamma=most)), "Table 7", value, "9 h", 1_430_588)
        for key, (most, value) in _GAMMAS.items()
    ),
    *_ntu(120, "4", _FOUR, ("70.01 %", "72.05 %"), "10 h", 932_984),
    *_ntu(120, "6", _SIX, ("72.39 %", "75.04 %"), "14 h", 1_461_368),
    *_ntu(120, "dense", _DENSE, ("74.62 %", "77.37 %"), "1 day", 2_329_608),
    *_ntu(120, "dense-aug", _DENSE, ("76.55 %", "79.18 %"), "1 day", 2_889_480, augmented=True),
    *_utd("4", _UTD_FOUR, "2 min", 223_003, 238_363),
    *_utd("6", _UTD_SIX, "2 min", 356_123, 371_483),
    *_utd("4-tanh", replace(_UTD_FOUR, nonlinearity="tanh"), "2 min", 223_003, 238_363),
    *_utd("6-tanh", replace(_UTD_SIX, nonlinearity="tanh"), "2 min", 356_123, 371_483),
    *_utd("res21", _UTD_RESIDUAL, "4 min", 349_595, 357_275),
    *_utd("res99", replace(_UTD_RESIDUAL, blocks=49), "18 min", 1_667_483, 1_675_163),
    *_utd("dense", _UTD_DENSE, "7 min", 581_589, 590_229),
    *_utd("rnn-1", _RNN[1], "2 min", 307_227, 337_947, lr=5e-4),
    *_utd("rnn-2", _RNN[2], "4 min", 832_027, 862_747, lr=5e-4),
    *_utd("rnn-4", _RNN[4], "9 min", 1_881_627, 1_912_347, lr=5e-4),
    *_utd("rnn-6", _RNN[6], "14 min", 2_931_227, 2_961_947, lr=5e-4),
    *_utd("lstm-1", _LSTM[1], "1 min", 100_251, 130_971),
    *_utd("lstm-2", _LSTM[2], "2 min", 231_835, 262_555),
    *_utd("lstm-4", _LSTM[4], "3 min", 495_003, 525_723),
    *_utd("lstm-6", _LSTM[6], "4 min", 758_171, 788_891),
    *(
        _utd(f"6-gamma{name}", replace(_UTD_SIX, gamma=gamma), "2 min", 356_123, 371_483)[1]
        for name, (gamma, _) in _GAMMAS.items()
    ),
    Row("skeleton-4", _setup("own", _UTD_FOUR), "as Table 5", Row.NOT_SHOWN, "2 min"),
    Row("skeleton-6", _setup("own", _UTD_SIX), "as Table 5", Row.NOT_SHOWN, "2 min"),
    Row("skeleton-6-aug", _setup("own", _UTD_SIX, augmented=True), "as Table 6", Row.NOT_SHOWN, "2 min"),
    Row("skeleton-dense", _setup("own", _UTD_DENSE), "as Table 5", Row.NOT_SHOWN, "7 min"),
    Row("skeleton-dense-aug", _setup("own", _UTD_DENSE, augmented=True), "as Table 6", Row.NOT_SHOWN, "7 min"),
)
