"""What a recipe is: a row of the paper, as options that can be changed and run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from torch import nn

from ..analysis.runs import Page
from ..models import AnyNetwork, Head, Language
from ..training import RunFolder, Task, Training

try:
    from tyro.conf import arg

    Loop = Annotated[Training, arg(name="")]  # --lr and not --training.lr
except ImportError:  # without a command line
    Loop = Training  # type: ignore[misc]


class Recipe(Protocol):
    """Everything of a run but its folder. A frozen dataclass, whose fields are the options of the command line."""

    page: ClassVar[Page]
    """How runs of it are summed up."""

    @property
    def model(self) -> AnyNetwork:
        """The network in the model; its sizes may follow from the data."""

    @property
    def training(self) -> Training:
        """The loop."""

    @property
    def seed(self) -> int:
        """Of the weights and all data."""

    def model_config(self) -> Head | Language:
        """The model."""

    def task(self) -> Task:
        """What it learns."""

    def draw(self, run: RunFolder, model: nn.Module) -> None:
        """Draw a finished run's curve.png."""


@dataclass(frozen=True)
class Row:
    """A recipe with its name and what the paper says."""

    name: str
    recipe: Recipe
    paper: str
    """The table or figure."""
    value: str
    """What the paper reports there."""
    cost: str
    """Roughly how long it takes on two cores."""
