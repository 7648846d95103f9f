"""The interface of recipes: a row of the paper, as options that can be changed and run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from torch import nn

from ..analysis.runs import Page
from ..baselines import QRNN, Baseline, Transformer
from ..networks import Dense, Head, Language, Plain, Residual
from ..training import RunFolder, Task, Training

try:
    from tyro.conf import arg

    Loop = Annotated[Training, arg(name="")]  # --lr and not --training.lr
except ImportError:  # without a command line
    Loop = Training  # type: ignore[misc]


AnyNetwork = Plain | Residual | Dense | Baseline | QRNN | Transformer
"""The networks that a recipe's `model` may be."""


class Recipe(Protocol):
    """All settings of a run but its folder: a frozen dataclass, whose fields are the options of the command line."""

    page: ClassVar[Page]
    """How runs of it are summed up."""

    @property
    def model(self) -> AnyNetwork:
        """The network in the model; its sizes may be derived from the data."""

    @property
    def training(self) -> Training:
        """The loop's options."""

    @property
    def seed(self) -> int:
        """Seed of the weights and all data."""

    def model_config(self) -> Head | Language:
        """The configuration."""

    def task(self) -> Task:
        """The task to train on."""

    def draw(self, run: RunFolder, model: nn.Module) -> None:
        """Draw a finished run's curve.png."""


@dataclass(frozen=True)
class Row:
    """A recipe with its name and the paper's result."""

    name: str
    recipe: Recipe
    paper: str
    """The table or figure."""
    value: str
    """What the paper reports there."""
    cost: str
    """Roughly how long it takes on two cores."""
