"""Runs of recipes: trained, and opened again by their folder."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import torch
from torch import nn

from ..layers.config import config_of
from ..saving import from_json, to_json
from ..system import limit_onednn, note
from ..training import Result, RunFolder, Shard, Task, Training, train
from ..training.evaluation import best_model, load_best, measure
from ..training.parallel import choose_device
from ..training.update import autocast

if TYPE_CHECKING:
    from .recipe import Recipe
    from .series.estimators import Fitting


# ---- recorded


def recorded_recipe(recipe: Recipe, name: str) -> dict[str, Any]:
    """The entry of config.json that a recipe is restored from."""
    # In other places of config.json; data_dir may be another on another machine
    elsewhere = ("training", "device", "threads", "seed", "data_dir")
    options = {key: value for key, value in to_json(recipe).items() if key not in elsewhere}
    return {"name": name, **options}


def restored_recipe(recorded: dict[str, Any], base: Recipe | None = None) -> Recipe:
    """The recipe in a config.json; options that it leaves out are those of `base`, else defaults."""
    from .recipe import Own  # where it is used: recipes bring in the command line's package, and estimators do not
    from .rows import kinds

    entry = {key: value for key, value in (recorded.get("recipe") or {}).items() if key != "name"}
    types = kinds()
    kind: type[Recipe] = Own if base is None else type(base)
    if "type" in entry:
        if entry["type"] not in types:
            raise ValueError(f"recipe: no such kind of recipe is installed: {entry['type']!r}")
        kind = types[entry.pop("type")]
    options = {} if base is None else {field.name: getattr(base, field.name) for field in fields(base) if field.init}
    options |= {key: from_json(value, types) for key, value in entry.items()}
    if "training" in recorded and any(field.name == "training" for field in fields(kind)):
        options["training"] = from_json({"type": "Training", **recorded["training"]}, types)
    if "seed" in recorded:
        options["seed"] = recorded["seed"]
    hints = get_type_hints(kind)
    try:
        return kind(**{name: _as_hinted(value, hints.get(name)) for name, value in options.items()})
    except TypeError as error:
        raise ValueError(f"config: {error}") from None


def _as_hinted(value: Any, hint: Any) -> Any:
    """A value read from JSON, which has text for a path and a list for a tuple."""
    for kind in (hint, *get_args(hint)):
        if kind is Path and isinstance(value, str) and str not in get_args(hint):
            return Path(value)
        if get_origin(kind) is tuple and isinstance(value, list):
            return tuple(value)
    return value


# ---- trained


def new_model(recipe: Recipe | Fitting, member: int = 0) -> nn.Module:
    """Build a network of a recipe with its initial weights."""
    return seeded_model(recipe.model_config(member), recipe.member_seed(member))


def seeded_model(config: Any, seed: int) -> nn.Module:
    """Build a model with the initial weights of a seed; no other random number changes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = config.build()
    return model


def member_folders(out: Path, members: int) -> list[Path]:
    """The folders of a run's networks: the run's own, or one for each of an ensemble."""
    return [out] if members == 1 else [out / f"member-{member}" for member in range(members)]


def train_members(
    recipe: Recipe | Fitting,
    out: Path | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    init_from: Run | None = None,
    **options: Any,
) -> tuple[list[nn.Module], list[Result]]:
    """Train each network of a recipe, or of an estimator's fit; an ensemble stops with the first that is stopped.

    `out` is the folder of the run, or of the member-NUMBER folders of an ensemble; None to write nothing. `overwrite`
    deletes an earlier run there, of any number of networks. The networks begin with the best weights of `init_from`.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite cannot both be asked for")
    if out is not None and overwrite:
        _clear(out)
    models, results = [], []
    for member, home in enumerate(member_folders(out, recipe.members) if out else [None] * recipe.members):
        task = recipe.task(member)  # before the model, which may be large: what is wrong with the data is said at once
        model = new_model(recipe, member)
        if init_from is not None and not (resume and home is not None and RunFolder(home).used):
            init_from.initialise(model, task)
        options |= {"seed": recipe.member_seed(member), "resume": resume, "overwrite": overwrite}
        results.append(train(model, task, recipe.training, out=home, **options))
        models.append(model)
        if not results[-1].finished:
            break
    return models, results


def _clear(out: Path) -> None:
    """Remove the files of an earlier run, of any number of networks, and nothing else."""
    folders = [folder for folder in map(RunFolder, (out, *_used_members(out))) if folder.used]
    with contextlib.ExitStack() as locks:
        for folder in folders:  # all of them, before any is cleared
            locks.enter_context(folder.locked())
        for folder in folders:
            folder.clear()


def train_recipe(
    name: str,
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    init_from: Path | None = None,
    resume_command: str | None = None,
) -> tuple[Result, list[str]]:
    """Train a recipe into a run folder; returns the result, of an ensemble the last, and lines to print."""
    prepare_half_precision(recipe.training)
    if (trial := recipe.trial_config()) is not None:  # what is wrong with the network is said before any data are read
        with torch.device("meta"):
            trial.build()
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "resume_command": resume_command}
    config: dict[str, Any] = {"recipe": recorded_recipe(recipe, name)}
    if init_from is not None:
        config["init_from"] = str(init_from)
        options["init_from"] = open_run(init_from, saved=True, name="init_from")
    models, results = train_members(recipe, out, config=config, **options)
    last = results[-1]
    return last, recipe.finish(out, models) if last.finished and last.main else []


def prepare_half_precision(training: Training) -> None:
    """For half precision on a CPU, avoid instructions that the CPU reports but cannot run."""
    on_cpu = training.device == "cpu" or (training.device == "auto" and not torch.cuda.is_available())
    if on_cpu and training.precision != "float32" and (done := limit_onednn()) is not None:
        note(f"indrnn: {done}")


# ---- opened


class Run:
    """A run in its folder, of any recipe, or a model saved by `indrnn.save`; `home` is a network of an ensemble."""

    def __init__(self, path: Path, home: Path | None = None) -> None:
        self.path, self.folder = path, RunFolder(home or path)
        self.recorded: dict[str, Any] = self.folder.read_json(self.folder.config) if self.folder.config.exists() else {}
        self.recipe = restored_recipe(self.recorded)

    @property
    def recipe_name(self) -> str | None:
        """Name of its recipe; None for a run that was started from Python."""
        name = (self.recorded.get("recipe") or {}).get("name")
        return None if name is None else str(name)

    @property
    def summary(self) -> dict[str, str]:
        """Name and command, for the files of an analysis."""
        return {"run": self.path.resolve().name, "command": shlex.join(self.recorded.get("command", []))}

    @property
    def result(self) -> dict[str, Any]:
        """Content of result.json; empty for a run that has not finished."""
        return self.folder.read_json(self.folder.result) if self.folder.result.exists() else {}

    @property
    def member(self) -> int:
        """Its number in an ensemble."""
        head, _, number = self.path.resolve().name.partition("-")
        return int(number) if head == "member" and number.isdigit() and self.recipe.members > 1 else 0

    @cached_property
    def best(self) -> tuple[nn.Module, str]:
        """The model with its best weights, and which they are."""
        return best_model(self.folder)

    def best_on(self, device: str) -> nn.Module:
        """The model with its best weights, on a device: cpu, cuda, ..., or auto."""
        return self.best[0].to(choose_device(device))

    def at(self, data_dir: Path | None) -> Recipe:
        """Its recipe, with its data in another folder if one is given."""
        try:
            return self.recipe if data_dir is None else self.recipe.at(data_dir)
        except ValueError as error:
            raise ValueError(f"{error}, for {self.path}") from None

    def task(self, data_dir: Path | None = None) -> Task:
        """Its task; reads the data."""
        return self.at(data_dir).task(self.member)

    def checked_task(self, recipe: Recipe) -> Task:
        """The task of its recipe, perhaps with other paths; raises if the data are not those of the run."""
        task = recipe.task(self.member)
        self._check_data(recipe, task)
        return task

    def _check_data(self, recipe: Recipe, task: Task, *, to_begin: bool = False) -> None:
        try:
            recipe.same_data(self.recorded.get("task") or {}, task, to_begin=to_begin)
        except ValueError as error:
            raise ValueError(f"data: {error} of {self.path}; give the files that it was trained with") from None

    def untrained(self) -> nn.Module | None:
        """The model with its initial weights; None if they are not known."""
        if self.recipe_name is None or "init_from" in self.recorded:
            return None
        return new_model(self.recipe, self.member).eval()

    def drawn(self, seed: int) -> nn.Module:
        """The same model, initialised anew from `seed`."""
        return seeded_model(config_of(self.best[0]), seed).eval()

    def initialise(self, model: nn.Module, task: Task) -> None:
        """Load the run's best weights into a new model, trained on a task of the same form."""
        self._check_data(self.recipe, task, to_begin=True)  # first: another vocabulary has weights of other shapes too
        try:
            load_best(model, self.folder)
        except (RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"init_from: {self.path} cannot be started from: {reason}") from None

    def evaluate(self, recipe: Recipe, device: str) -> tuple[dict[str, float], str]:
        """Measure the best weights on the test data; returns the measurements, and which weights they are of."""
        task = self.checked_task(recipe)
        (model, which), where, precision = self.best, choose_device(device), recipe.training.precision
        if precision == "fp16" and where.type == "cpu":
            precision, which = "float32", f"{which}, in float32 (it was trained in fp16, on a GPU)"
        prepare_half_precision(replace(recipe.training, device=device, precision=precision))
        model.to(where)
        with torch.inference_mode(), autocast(precision, where):
            measured = measure(task.test(model, Shard()), task=task)
        if not measured:
            raise ValueError(f"run must have data for a test, and {self.path} has none")
        return measured, which


def open_run(path: Path, *, saved: bool = False, name: str = "run") -> Run:
    """Open a run of one network by its folder, which errors call `name`; with `saved`, also a saved model."""
    folder = RunFolder(path)
    if folder.config.exists() or (saved and folder.model.exists()):
        return Run(path)
    if members := runs_in(path):
        count = len(members)
        raise ValueError(f"{name} must be of one network, and {path} is an ensemble of {count}; take {members[0]}")
    raise ValueError(f"{name} must be the folder of a run, and {path} holds no {folder.config.name}")


def open_group(path: Path) -> Run:
    """Open a run of any number of networks by its folder."""
    members = runs_in(path)
    return Run(path, members[0]) if members else open_run(path)


def runs_in(path: Path) -> list[Path]:
    """The folders of the networks of an ensemble, in order; none for a run of one network."""
    return [] if RunFolder(path).config.exists() else _used_members(path)


def _used_members(path: Path) -> list[Path]:
    homes = [home for home in path.glob("member-*") if home.name[7:].isdigit() and home.is_dir()]
    return sorted((home for home in homes if RunFolder(home).used), key=lambda home: int(home.name[7:]))


def distinct(runs: Sequence[Path]) -> list[str]:
    """Distinct names of runs: the folder's name, with as many parent folders as needed."""
    depths = range(1, max((len(run.parts) for run in runs), default=1) + 1)
    names = [["/".join(run.parts[-depth:]) for run in runs] for depth in depths]
    return next((of_depth for of_depth in names if len(set(of_depth)) == len(set(runs))), names[-1])
