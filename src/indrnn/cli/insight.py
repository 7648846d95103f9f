"""`indrnn analyse memory`, `weights`, `ablate`, `distil`: the memory of trained networks."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from ..baselines import BaselineRNN
from ..checks import check_count, check_positive, check_seed
from ..layers.options import EPSILON
from ..networks import Plain
from ..tasks.adding import adding_batch
from ..tasks.adding_recipe import AddingRecipe
from ..training import RunFolder, Shard, generator
from ..training.evaluation import measure
from ..training.folder import machine
from ..training.parallel import Processes, choose_device
from .main import UsageError, say
from .opened import check_free, open_run
from .parse import Parser

Bounds = tuple[float, float]


@dataclass
class MemoryOptions:
    """Plot how many steps each neuron of a run remembers, by its recurrent weight and as measured on sequences."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output folder of memory.json, memory.md and memory.png; None for results/insight/NAME."""
    items: int = 64
    """Minimum number of validation sequences to measure on; 0 for none, which needs no data."""
    epsilon: float = EPSILON
    """Threshold of influence: memory is the number of steps until a state's influence falls below it."""
    bounds: Bounds = (0.1, 0.5)
    """Where short memory ends and long memory begins, as fractions of the sequence length."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class WeightsOptions:
    """Plot histograms of a run's recurrent weights, layer by layer, before and after training."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output folder of weights.json, weights.md and weights.png; None for results/insight/NAME."""
    bins: int = 40
    """Number of bins of each histogram."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class AblateOptions:
    """Ablation: measure a run without its neurons of short, middle and long memory, layer by layer.

    On validation data; ablated neurons output zero. The run is not changed.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output folder of ablate.json, ablate.md and ablate.png; None for results/insight/NAME."""
    items: int = 500
    """Minimum number of validation items to measure on."""
    controls: int = 1
    """Number of random controls per group: draws of as many neurons."""
    epsilon: float = EPSILON
    """Threshold of influence: memory is the number of steps until a state's influence falls below it."""
    bounds: Bounds = (0.1, 0.5)
    """Where short memory ends and long memory begins, as fractions of the sequence length."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class DistilOptions:
    """Distil a run's RNN (or LSTM, GRU) on the adding problem into an IndRNN, and compare the two.

    The error is the relative difference of the outputs over all steps, on sequences not trained on. Also reported: the
    errors of both networks on the run's test sequences, with the run's own output layer.
    """

    run: tyro.conf.Positional[Path]
    """Folder of a finished run of a recurrent baseline on the adding problem."""
    out: Path | None = None
    """Output folder of distil.json and distil.png; None for results/insight/NAME."""
    layers: int = 3
    """Number of layers of the IndRNN."""
    hidden_size: int = 128
    """Neurons per layer."""
    steps: int = 3000
    """Number of training steps."""
    lr: float = 2e-3
    """Peak learning rate."""
    seed: int = 0
    """Random seed of weights and sequences."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""
    overwrite: bool = False
    """Replace existing files."""


def _memory(arguments: list[str]) -> int:
    options = MEMORY(arguments)
    from ..analysis import memory, neurons

    memory.check_epsilon(options.epsilon)
    memory.check_bounds(options.bounds)
    check_count("items", options.items, 0)
    output = _Output(options.run, options.out, "memory", options.overwrite)
    measures = None
    if options.items:
        task = output.opened.task(options.data_dir)
        model = output.model.to(choose_device(options.device, Processes()))

        def measures() -> None:
            for _ in neurons.some(task, model, options.items):
                pass

    output.prepare()
    found = memory.memory(output.model, epsilon=options.epsilon, bounds=options.bounds, run=measures)
    say(memory.write(found, output.about, output.out))
    say(memory.in_words(found))
    return output.say_drawn("memory")


def _weights(arguments: list[str]) -> int:
    options = WEIGHTS(arguments)
    check_count("bins", options.bins)
    from ..analysis import weights

    output = _Output(options.run, options.out, "weights", options.overwrite)
    output.prepare()
    before = None
    if "init_from" in output.opened.recorded:
        say(
            f"{options.run} began with the weights of {output.opened.recorded['init_from']}: shown after training alone"
        )
    else:
        try:
            before = output.opened.untrained()
        except OSError as error:
            say(f"shown after training alone: what it began with follows from its data ({error})")
        else:
            if before is None:
                say("shown after training alone: what it began with is known to its own program alone")
    say(weights.write(weights.weights(output.model, before, bins=options.bins), output.about, output.out))
    return output.say_drawn("weights")


def _ablate(arguments: list[str]) -> int:
    options = ABLATE(arguments)
    from ..analysis import ablate, memory

    memory.check_epsilon(options.epsilon)
    memory.check_bounds(options.bounds)
    check_count("items", options.items)
    check_count("controls", options.controls, 0)
    output = _Output(options.run, options.out, "ablate", options.overwrite)
    task = output.opened.task(options.data_dir)
    output.prepare()
    found = ablate.ablate(
        output.model.to(choose_device(options.device, Processes())),
        task,
        items=options.items,
        epsilon=options.epsilon,
        bounds=options.bounds,
        controls=options.controls,
    )
    say(ablate.write(found, output.about, output.out))
    return output.say_drawn("ablate")


def _distil(arguments: list[str]) -> int:
    options = DISTIL(arguments)
    for name in ("layers", "hidden_size", "steps"):
        check_count(name, getattr(options, name))
    if options.threads is not None:
        check_count("threads", options.threads)
    check_seed(options.seed)
    check_positive("lr", options.lr)
    opened = open_run(options.run)
    if not isinstance(opened.recipe, AddingRecipe):
        raise UsageError(f"run must be of the adding problem, and {options.run} is not; indrnn.distil takes any data")
    out = options.out or Path("results/insight") / options.run.resolve().name
    check_free(out, "distil", options.overwrite)
    teacher: Any = opened.best[0]
    if not isinstance(teacher.network, BaselineRNN):
        raise UsageError(
            f"run must be of an RNN, LSTM or GRU, and {options.run} is of {type(teacher.network).__name__}"
        )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    RunFolder(out).prepare()
    about = {**opened.about, "asked": shlex.join(["indrnn", "analyse", "distil", *arguments])}
    say(_distilled(teacher, opened.recipe, options, about, out))
    say(f"drawn in {out / 'distil.png'}")
    return 0


def _distilled(teacher: Any, recipe: AddingRecipe, options: DistilOptions, about: dict[str, Any], out: Path) -> str:
    from ..analysis.distillation import InPlace, distil, write

    def data(number: int) -> tuple[Tensor, Tensor]:
        return adding_batch(recipe.length, recipe.batch_size, generator(options.seed, "distil", number))

    def readout(h: Tensor) -> Tensor:
        answer: Tensor = teacher.output(h[-1]).squeeze(-1)
        return answer

    # As the recipes' IndRNN: the neurons of the last layer begin with a memory of the whole sequence
    config = Plain(hidden_size=options.hidden_size, layers=options.layers, norm=None)
    config = replace(config, gamma=2.0, long_memory=True, epsilon=0.5)
    given: dict[str, Any] = {"steps": options.steps, "lr": options.lr, "seed": options.seed}
    found = distil(teacher.network, data, config=config, readout=readout, **given)
    rows: list[dict[str, Any]] = []
    for name, network, error in (("RNN", teacher.network, None), ("IndRNN", found.model, found.error)):
        with torch.no_grad():
            test = measure(recipe.task().test(InPlace(network, teacher.output), Shard()), Processes()) or {}
        count = sum(each.numel() for each in network.parameters() if each.requires_grad)
        rows.append({"network": name, "parameters": count, "error": error, "test_MSE": test["test_mse"]})
    sizes = {"layers": options.layers, "hidden_size": options.hidden_size}
    return write(found, rows, {**about, **sizes, **given, "machine": machine()}, out)


class _Output:
    """A run with independent neurons, and the output folder of its analysis."""

    def __init__(self, run: Path, out: Path | None, name: str, overwrite: bool) -> None:
        from ..analysis.neurons import layers_of

        self.opened = open_run(run)
        self.out = out or Path("results/insight") / run.resolve().name
        check_free(self.out, name, overwrite)
        self.model, _ = self.opened.best
        self.about = self.opened.about
        try:
            layers_of(self.model)
        except ValueError as error:
            raise UsageError(f"run: {run}: {error}") from None

    def prepare(self) -> None:
        """Make the folder, after all inputs are found and before any work is done."""
        RunFolder(self.out).prepare()

    def say_drawn(self, name: str) -> int:
        """Print the path of the figure."""
        say(f"drawn in {self.out / name}.png")
        return 0


MEMORY, WEIGHTS = Parser("analyse memory", MemoryOptions), Parser("analyse weights", WeightsOptions)
DISTIL = Parser("analyse distil", DistilOptions)
ABLATE = Parser("analyse ablate", AblateOptions)


@dataclass(frozen=True)
class Kind:
    """One kind of analysis on the command line."""

    parser: Parser
    run: Callable[[list[str]], int]
    about: str


KINDS = {
    "memory": Kind(MEMORY, _memory, "plot how long each neuron remembers, by its weight and as measured"),
    "weights": Kind(WEIGHTS, _weights, "plot histograms of the recurrent weights before and after training"),
    "ablate": Kind(ABLATE, _ablate, "ablate neurons of short, middle or long memory of a run, layer by layer"),
    "distil": Kind(DISTIL, _distil, "distil a run's RNN on the adding problem into an IndRNN"),
}
"""By name."""
