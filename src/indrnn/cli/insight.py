"""`indrnn analyse memory`, `weights`, `ablate`, `complexity`: what the neurons of trained networks remember."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro

from ..layers.bound import EPSILON
from ..recipes import Recipe
from ..training import RunFolder, Task
from ..training.options import check_count
from ..training.processes import Processes, choose_device
from .main import UsageError, say
from .parse import Parser
from .runs import _check_free, _with_data, best_of, recipe_of

Bounds = tuple[float, float]


@dataclass
class MemoryOptions:
    """Draw how many steps each neuron of a run remembers, by its recurrent weight and as measured on sequences."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Where memory.json, memory.md and memory.png go; results/insight/NAME if none is given."""
    items: int = 64
    """Validation sequences to measure on, at least; 0 for none, and no data is needed."""
    epsilon: float = EPSILON
    """What counts as an influence: memory is the steps until a state's influence is below it."""
    bounds: Bounds = (0.1, 0.5)
    """Where short memory ends and long memory begins, as shares of a sequence."""
    device: str = "auto"
    """cpu, cuda, ...; auto takes a GPU where there is one."""
    data_dir: Path | None = None
    """The folder of the data; INDRNN_DATA or a cache if none is given."""
    overwrite: bool = False
    """Replace what is there."""


@dataclass
class WeightsOptions:
    """Draw histograms of a run's recurrent weights, layer by layer, before and after training."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Where weights.json and weights.png go; results/insight/NAME if none is given."""
    bins: int = 40
    """Of each histogram."""
    overwrite: bool = False
    """Replace what is there."""


@dataclass
class AblateOptions:
    """Measure a run without the neurons of short, middle and long memory, layer by layer: which does the task need?

    On validation data, with silenced neurons giving zero; the run stays as it is.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Where ablate.json, ablate.md and ablate.png go; results/insight/NAME if none is given."""
    items: int = 500
    """Validation items to measure on, at least."""
    controls: int = 1
    """Random draws of as many neurons to compare each group with."""
    epsilon: float = EPSILON
    """What counts as an influence: memory is the steps until a state's influence is below it."""
    bounds: Bounds = (0.1, 0.5)
    """Where short memory ends and long memory begins, as shares of a sequence."""
    device: str = "auto"
    """cpu, cuda, ...; auto takes a GPU where there is one."""
    data_dir: Path | None = None
    """The folder of the data; INDRNN_DATA or a cache if none is given."""
    overwrite: bool = False
    """Replace what is there."""


@dataclass
class ComplexityOptions:
    """Draw the time of a training step over the length of a sequence, from what `indrnn bench layer` measured."""

    measured: tyro.conf.Positional[Path] = Path("results/bench/layer.json")
    """The file that it wrote."""
    out: Path = Path("results/insight")
    """Where complexity.json and complexity.png go."""
    overwrite: bool = False
    """Replace what is there."""


def _memory(arguments: list[str]) -> int:
    options = MEMORY(arguments)
    from ..analysis import memory, neurons

    memory.check_epsilon(options.epsilon)
    memory.check_bounds(options.bounds)
    check_count("items", options.items, 0)
    opened = _Opened(options.run, options.out, "memory", options.overwrite)
    measures = None
    if options.items:
        task = opened.task(options.data_dir)
        model = opened.model.to(choose_device(options.device, Processes()))

        def measures() -> None:
            for _ in neurons.some(task, model, options.items):
                pass

    opened.prepare()
    found = memory.memory(opened.model, epsilon=options.epsilon, bounds=options.bounds, run=measures)
    say(memory.write(found, opened.about, opened.out))
    return opened.say_drawn("memory")


def _weights(arguments: list[str]) -> int:
    options = WEIGHTS(arguments)
    check_count("bins", options.bins)
    from ..analysis import weights

    opened = _Opened(options.run, options.out, "weights", options.overwrite)
    opened.prepare()
    before: torch.nn.Module | None = weights.untrained(opened.recipe.model_config(), opened.recipe.seed)
    if "init_from" in opened.recorded:
        before = None
        say(f"{options.run} began with the weights of {opened.recorded['init_from']}: shown after training alone")
    say(weights.write(weights.weights(opened.model, before, bins=options.bins), opened.about, opened.out))
    return opened.say_drawn("weights")


def _ablate(arguments: list[str]) -> int:
    options = ABLATE(arguments)
    from ..analysis import ablate, memory

    memory.check_epsilon(options.epsilon)
    memory.check_bounds(options.bounds)
    check_count("items", options.items)
    check_count("controls", options.controls, 0)
    opened = _Opened(options.run, options.out, "ablate", options.overwrite)
    task = opened.task(options.data_dir)
    opened.prepare()
    found = ablate.ablate(
        opened.model.to(choose_device(options.device, Processes())),
        task,
        items=options.items,
        epsilon=options.epsilon,
        bounds=options.bounds,
        controls=options.controls,
    )
    say(ablate.write(found, opened.about, opened.out))
    return opened.say_drawn("ablate")


def _complexity(arguments: list[str]) -> int:
    options = COMPLEXITY(arguments)
    from ..analysis import complexity

    found = complexity.curves(options.measured)
    _check_free(options.out, "complexity", options.overwrite)
    RunFolder(options.out).prepare()
    say(complexity.write(found, {"from": options.measured.name}, options.out))
    say(f"drawn in {options.out / 'complexity.png'}")
    return 0


class _Opened:
    """A run of independent neurons, and the folder that is to be written to."""

    recorded: dict[str, Any]
    recipe: Recipe

    def __init__(self, run: Path, out: Path | None, name: str, overwrite: bool) -> None:
        from ..analysis.neurons import layers_of

        self.run = run
        self.recorded, self.recipe = recipe_of(run)
        self.out = out or Path("results/insight") / run.resolve().name
        _check_free(self.out, name, overwrite)
        self.model, _ = best_of(run, self.recipe)
        try:
            layers_of(self.model)
        except ValueError as error:
            raise UsageError(f"run: {run}: {error}") from None
        self.about = {"run": run.resolve().name, "command": shlex.join(self.recorded["command"])}

    def task(self, data_dir: Path | None) -> Task:
        """Its data."""
        return _with_data(self.recipe, data_dir, self.run).task()

    def prepare(self) -> None:
        """Make the folder, once everything else is there and before any work is done."""
        RunFolder(self.out).prepare()

    def say_drawn(self, name: str) -> int:
        """Where the picture is."""
        say(f"drawn in {self.out / name}.png")
        return 0


MEMORY, WEIGHTS = Parser("analyse memory", MemoryOptions), Parser("analyse weights", WeightsOptions)
ABLATE, COMPLEXITY = Parser("analyse ablate", AblateOptions), Parser("analyse complexity", ComplexityOptions)


@dataclass(frozen=True)
class Kind:
    """One analysis of the command line."""

    parser: Parser
    run: Callable[[list[str]], int]
    about: str
    takes: str = field(default="RUN")


KINDS = {
    "memory": Kind(MEMORY, _memory, "draw how long each neuron remembers, by its weight and as measured"),
    "weights": Kind(WEIGHTS, _weights, "draw histograms of the recurrent weights before and after training"),
    "ablate": Kind(ABLATE, _ablate, "measure a run without the neurons of a range of memory, layer by layer"),
    "complexity": Kind(COMPLEXITY, _complexity, "draw the time against LSTM over T, from `indrnn bench layer`", "FILE"),
}
"""By name."""
