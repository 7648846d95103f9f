"""Runs opened for analysis, of every kind: of recipes, of `indrnn fit`, and of a user's own tasks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..layers.config import config_of
from ..saving import load_module
from ..tasks.rows import Recipe
from ..training import RunFolder, Task
from ..training.evaluation import is_finished, load_best
from .main import UsageError
from .runs import best_of, recipe_of, with_data

if TYPE_CHECKING:
    from ..tasks.series.fitting import Fitting
    from .fit import Fit
    from .forecast import Forecast


class Opened:
    """A run of a user's own task, or a model saved by `indrnn.save`: its data are not known here.

    Args:
        run: the run folder.
    """

    recipe: Recipe | None = None

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, RunFolder(run)
        self.recorded: dict[str, Any] = self.folder.read_json(self.folder.config) if self.folder.config.exists() else {}

    @property
    def about(self) -> dict[str, str]:
        """Name and command, for the files of an analysis."""
        return {"run": self.run.resolve().name, "command": shlex.join(self.recorded.get("command", []))}

    @cached_property
    def best(self) -> tuple[nn.Module, str]:
        """The model with its best weights, and which they are."""
        return load_module(self.run), "the saved weights"

    def task(self, data_dir: Path | None = None) -> Task:
        """Its task; reads the data."""
        raise UsageError(
            f"run: the data of {self.run} are known to its own program alone; the functions of indrnn.analysis take "
            "its task"
        )

    def untrained(self) -> nn.Module | None:
        """The model with its initial weights; None if they are not known."""
        return None

    def drawn(self, seed: int) -> nn.Module:
        """The same model, initialised anew from `seed`."""
        from ..analysis.weights import untrained

        return untrained(config_of(self.best[0]), seed)


class OfRecipe(Opened):
    """A run of a recipe."""

    recipe: Recipe

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.recorded, self.recipe = recipe_of(run)

    @cached_property
    def best(self) -> tuple[nn.Module, str]:
        """See `Opened`."""
        return best_of(self.run, self.recipe)

    def task(self, data_dir: Path | None = None) -> Task:
        """See `Opened`."""
        return with_data(self.recipe, data_dir, self.run).task()

    def untrained(self) -> nn.Module | None:
        """See `Opened`."""
        from ..analysis.weights import untrained

        return None if "init_from" in self.recorded else untrained(self.recipe.model_config(), self.recipe.seed)


class Fitted(Opened):
    """A run of `indrnn fit`, or one network of an ensemble."""

    @cached_property
    def fit(self) -> Fit | Forecast:
        """The fit with its data, read again, and its test series."""
        from .fit import ResumeOptions, fit_for, resumed

        return fit_for(resumed(ResumeOptions(self.run)))

    @cached_property
    def fitting(self) -> Fitting:
        """Its data and settings."""
        found: Fitting = self.fit.estimator().fitting(self.fit.train)
        return found

    @property
    def member(self) -> int:
        """Its index in the ensemble."""
        found = re.fullmatch(r"member-(\d+)", self.run.resolve().name)
        return int(found[1]) if found else 0

    @cached_property
    def best(self) -> tuple[nn.Module, str]:
        """See `Opened`."""
        if is_finished(self.folder):
            return load_module(self.run), "the finished run's weights"
        model = self.fitting.model(self.member)
        step, _ = load_best(model, self.folder)
        return model, f"the best weights so far, of step {step} (the run is not finished)"

    def task(self, data_dir: Path | None = None) -> Task:
        """See `Opened`."""
        if data_dir is not None:
            raise UsageError(
                f"data_dir: {self.run} is of `indrnn fit`, and has its data at {self.recorded['fit']['data']}"
            )
        return self.fitting.task(self.member)

    def untrained(self) -> nn.Module | None:
        """See `Opened`."""
        return self.fitting.model(self.member)


def open_run(run: Path, *, saved: bool = False) -> Opened:
    """Open a run by its folder; with `saved`, also a model saved by `indrnn.save`."""
    folder = RunFolder(run)
    if not folder.config.exists():
        members = sorted(run.glob("member-*"))
        if members:
            raise UsageError(
                f"run must be of one network, and {run} is an ensemble of {len(members)}; take {members[0]}"
            )
        if saved:
            return Opened(run)
        raise UsageError(f"run must be the folder of a run, and {run} holds no config.json")
    recorded = folder.read_json(folder.config)
    return OfRecipe(run) if "options" in recorded else Fitted(run) if "fit" in recorded else Opened(run)


def check_free(out: Path, name: str, overwrite: bool) -> None:
    """Raise if files of an analysis exist already and are not to be replaced."""
    there = [each for each in (f"{name}.json", f"{name}.md", f"{name}.png") if (out / each).exists()]
    if there and not overwrite:
        raise UsageError(f"out: {out} holds {', '.join(there)} already; replace them with --overwrite")


def distinct(runs: Sequence[Path]) -> list[str]:
    """Distinct names of runs: the folder's name, with as many parent folders as needed."""
    for depth in range(1, max((len(run.parts) for run in runs), default=1) + 1):
        names = ["/".join(run.parts[-depth:]) for run in runs]
        if len(set(names)) == len(set(runs)):
            break
    return names
