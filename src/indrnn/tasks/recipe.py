"""The protocol of recipes: all that a command or an analysis knows of a task, and the types that pass between them.

A recipe holds all settings of a run but its folder: a frozen dataclass whose fields are the options of the command
line. The paper's rows are recipes with values, `indrnn fit` is one, a user's own is one; a run that was started from
Python has `Own`. docs/task.md adds one in a user's own package.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from ..baselines import QRNN, Baseline, Transformer
from ..networks import Dense, Plain, Residual
from ..training import Training
from .table import Table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..training import Task
    from .runs import Run

_T = TypeVar("_T")
try:
    from tyro.conf import arg

    Flat = Annotated[_T, arg(name="")]  # --lr and not --training.lr
except ImportError:  # without a command line
    Flat = Annotated[_T, None]  # type: ignore[misc]
Loop = Flat[Training]

AnyNetwork = Plain | Residual | Dense | Baseline | QRNN | Transformer
"""Networks that a recipe's `model` may be."""


# ---- what passes between rooms


@dataclass(frozen=True)
class Description:
    """A task and its data in words, for reports and dry runs."""

    task: str
    data: str
    """Sentences on the data."""
    metric: str
    """Metric of the evaluations."""
    higher_is_better: bool
    reference: tuple[float, str] | None = None
    """Value of the metric without any skill, and what reaches it, such as always answering 1."""
    compared: str = ""
    """Sentence on what the result is compared with."""
    scores: dict[str, Any] | None = None
    """Test scores to show in place of those in result.json; None for those."""


@dataclass(frozen=True)
class Confusion:
    """Predictions of classes."""

    counts: list[list[int]]
    """Number of items of each true class (rows) and predicted class (columns)."""
    classes: list[str]
    on: str
    """Items that were counted."""


@dataclass(frozen=True)
class Pairs:
    """Predictions of numbers."""

    pairs: list[tuple[float, float]]
    """Target and prediction of each item."""
    on: str
    """Items that were predicted."""


@dataclass(frozen=True)
class Written:
    """Text that a model generated."""

    text: str
    how: str
    """Length, temperature and seed."""


Answer = Confusion | Pairs | Written
"""Predictions of one kind, drawn by their type."""


@dataclass
class Samples:
    """Sequences for the explorer's page, and how its reader enters others."""

    most: ClassVar[int] = 20
    """Most sequences of a page."""
    kind: str
    """Kind of input, of `Inputs` in inputs.js."""
    length: int
    """Steps of a sequence, which memory is compared with."""
    input: dict[str, Any]
    """Options for the code of this kind of input; "samples" are the recorded ones, with a "label" each."""
    sequences: list[Tensor] = field(default_factory=list)
    """Recorded sequences as the model reads them, (T, features) each: what neurons do in them is measured."""
    classes: list[str] | None = None
    """Names of the classes; numbers if None."""
    several: bool = False
    """Flag of labels, of which several may hold at once, in place of classes."""
    note: str | None = None
    """Remark printed for the user."""
    model: nn.Module | None = None
    """Model to show in place of the run's own, such as one whose outputs are in the units of the data."""


def fit_into_page(length: int, features: int) -> int:
    """Number of sequences of this size that fit into a page."""
    numbers = 200_000  # of all recorded sequences together: 2 MB as text
    return max(1, min(Samples.most, numbers // (length * features)))


@dataclass(frozen=True)
class Body:
    """Skeletons in the first features of a sequence: x, y and z of each joint, body after body."""

    joints: int
    bones: tuple[tuple[int, int], ...]
    bodies: int = 1


def recorded(
    sequences: Sequence[Tensor],
    labels: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    note: str = "",
    *,
    right: Sequence[str | float] | None = None,
    channels: Sequence[str] | None = None,
    body: Body | None = None,
) -> Samples:
    """Sequences of any data, (T, features) each, with their names; as many as fit into a page are taken.

    Args:
        sequences: at least one.
        labels: name of each sequence; None to number them.
        classes: names of the model's classes, if it has any.
        note: a remark shown on the page.
        right: the target of each, which the page shows next to the prediction: a class's name, or a number.
        channels: names of the features.
        body: the skeleton whose joint coordinates the features begin with, which the page draws.
    """
    if not sequences:
        raise ValueError("sequences must be at least one, got none")
    for name, values in (("labels", labels), ("right", right)):
        if values is not None and len(values) != len(sequences):
            raise ValueError(f"{name} must be as many as sequences, {len(sequences)}, got {len(values)}")
    features = sequences[0].shape[-1]
    for number, sequence in enumerate(sequences):
        if sequence.dim() != 2 or not sequence.numel():
            raise ValueError(f"sequences must be (T, features), got {tuple(sequence.shape)} for number {number}")
        if not sequence.isfinite().all():
            raise ValueError(f"sequences must hold finite numbers, got others in number {number}")
        if sequence.shape[1] != features:
            raise ValueError(
                f"sequences must have {features} features as the first, got {sequence.shape[1]} in {number}"
            )
    if channels is not None and len(channels) != features:
        raise ValueError(f"channels must be as many as features, {features}, got {len(channels)}")
    if body is not None and 3 * body.joints * body.bodies > features:
        raise ValueError(f"body must have at most {features // 3} joints for {features} features, got {body.joints}")
    count = fit_into_page(max(map(len, sequences)), features)
    shown = [sequence.detach().cpu().float() for sequence in sequences[:count]]
    samples: list[dict[str, Any]] = []
    for number, sequence in enumerate(shown):
        values = [round(value, 6) for value in sequence.flatten().tolist()]
        sample = {"label": labels[number] if labels else f"sequence {number + 1}", "values": values}
        samples.append(sample | ({"right": right[number]} if right else {}))
    page = {
        "features": features,
        "samples": samples,
        "note": note,
        "channels": None if channels is None else [*channels],
        "body": None if body is None else {**vars(body), "bones": [[*bone] for bone in body.bones]},
    }
    return Samples("recorded", max(map(len, shown)), page, shown, None if classes is None else [*classes])


@dataclass(frozen=True)
class Extra:
    """A command, or further options of `evaluate`, that only one kind of recipe has."""

    command: Literal["evaluate", "analyse", "prepare"]
    name: str
    """Word after `analyse` or `prepare`; for `evaluate`, what its options are for, such as language models."""
    options: type
    """Dataclass of the options, whose first line is shown by `--help`; one for `analyse` has a positional `run`."""
    function: str
    """Function as MODULE:NAME, imported when it is used. For `evaluate`: (run, options, device, say) -> numbers for the
    output file; for `analyse`: (run, options, arguments, say); for `prepare`: (options, say)."""

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Call the function."""
        return pkgutil.resolve_name(self.function)(*arguments, **more)


Say = Callable[[str], None]
"""Function that prints a line."""


# ---- recipes


@dataclass(frozen=True)
class Recipe:
    """Base of recipes: a frozen dataclass, whose docstring and fields are the help and options of the command line.

    A subclass has at least the fields `training: Loop` and `seed: int`, and `task` and `model_config`.
    """

    table: ClassVar[Table]
    """Columns of the table of its runs; without one, columns that fit any metric."""
    extras: ClassVar[tuple[Extra, ...]] = ()
    places: ClassVar[tuple[str, ...]] = ("data_dir",)
    """Options that say where data are: they may differ from machine to machine, and a report leaves them out."""
    files: ClassVar[tuple[str, ...]] = ()
    """Options that are files, whose paths are made absolute: a run is resumed from any folder."""
    _no_folder: ClassVar[str] = "this recipe makes its own data"

    @property
    def members(self) -> int:
        """Networks that are trained: more than one for an ensemble, each in a folder of its own."""
        return 1

    if TYPE_CHECKING:

        @property
        def seed(self) -> int:
            """Seed of weights and data."""

        @property
        def training(self) -> Training:
            """Options of the training loop."""

    def __post_init__(self) -> None:
        for name in self.files:
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(path).absolute())
        self.check()

    def check(self) -> None:
        """Raise for wrong options; reads no data and loads no torch."""

    # ---- data

    def at(self, folder: Path) -> Self:
        """The recipe with its data in another folder."""
        if not hasattr(self, "data_dir"):
            raise ValueError(f"data_dir: {self._no_folder}")
        return replace(self, data_dir=folder)  # type: ignore[call-arg]

    def available(self) -> bool:
        """Whether the data are there; nothing is downloaded."""
        return True

    def same_data(self, recorded: dict[str, Any], task: Task, *, to_begin: bool = False) -> None:
        """Raise if the data of this recipe's task are not those of a run, whose config.json has `recorded` of its task.

        With `to_begin` the run's weights are only what another begins with, on other data of the same form.
        """

    # ---- training

    def task(self, member: int = 0) -> Task:
        """The task to train on; reads the data."""
        raise NotImplementedError

    def model_config(self, member: int = 0) -> Any:
        """Configuration of the model."""
        raise NotImplementedError

    def member_seed(self, member: int) -> int:
        """Seed of one network of an ensemble."""
        return self.seed

    def trial_config(self) -> Any:
        """Configuration of the network with made-up sizes, built without memory before data are read; None for none."""
        network = getattr(self, "model", None)
        return None if network is None else network.sized(1, 2)

    def finish(self, folder: Path, models: Sequence[nn.Module]) -> list[str]:
        """Write what belongs to a finished run beside its models; returns lines to print."""
        return []

    # ---- what is shown

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        """Task and data in words; reads no data. Of a run, `recorded` is the task's description in its config.json."""
        data = f"The task describes itself as {recorded}." if recorded else "The run says nothing more about it."
        return Description(type(self).__name__, data, self.table.metric, self.table.higher_is_better)

    def answers(self, model: nn.Module, limit: int | None, run: Run) -> list[Answer]:
        """Predictions of a run's best model, on at most `limit` items; raises OSError or ValueError without any."""
        raise ValueError("this recipe shows none")

    def samples(self, model: nn.Module) -> Samples | None:
        """Sequences for the explorer; None for noise. Nothing is downloaded."""
        return None


@dataclass(frozen=True)
class Own(Recipe):
    """The recipe of a run that was started from Python: its data are known to its own program alone."""

    training: Loop = field(default_factory=Training)
    seed: int = 0
    _no_folder = "the data of this run are known to its own program alone"

    def task(self, member: int = 0) -> Task:
        raise ValueError(f"run: {self._no_folder}; the functions of indrnn.analysis take its task")

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        data = f"The task describes itself as {recorded}." if recorded else "The run says nothing about it."
        return Description("a task of its own", data, "loss", higher_is_better=False)


@dataclass(frozen=True)
class Row:
    """A recipe with its name and the paper's result."""

    NOT_SHOWN: ClassVar = "not shown"
    """Value of a row for which the paper reports no result."""
    name: str
    recipe: Recipe
    paper: str
    """Table or figure of the paper."""
    value: str
    """Result that the paper reports in that table or figure; NOT_SHOWN if there is none."""
    cost: str
    """Approximate duration on two cores."""
    parameters: int | None = None
    """Number of parameters; None if the data decide it."""
    begins: str = ""
    """Steps after which learning was seen to begin, and where, if it stands still before; empty if nothing is known."""

    @property
    def is_shown(self) -> bool:
        """Whether the paper reports a result."""
        return self.value != self.NOT_SHOWN
