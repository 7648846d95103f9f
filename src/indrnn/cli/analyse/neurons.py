"""`indrnn analyse memory`, `weights` and `ablate`: the neurons of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from ...checks import check_count
from ...layers.options import EPSILON
from ..main import say

if TYPE_CHECKING:
    from torch import nn

    from ...tasks.runs import Run
    from ...tasks.table import Results


@dataclass
class RunOptions:
    """Options of an analysis of one run."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output folder of the numbers, the table and the figure; None for results/insight/NAME."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class MemoryOptions(RunOptions):
    """Plot how many steps each neuron of a run remembers, by its recurrent weight and as measured on sequences."""

    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    items: int = 64
    """Minimum number of validation sequences to measure on; 0 for none, which needs no data."""
    epsilon: float = EPSILON
    """Threshold of influence: memory is the number of steps until a state's influence falls below it."""
    bounds: tuple[float, float] = (0.1, 0.5)
    """End of short memory and start of long memory, as fractions of the sequence length."""


@dataclass
class AblateOptions(MemoryOptions):
    """Ablation: measure a run without its neurons of short, middle and long memory, layer by layer.

    On validation data; ablated neurons output zero. The run is not changed.
    """

    items: int = 500
    """Minimum number of validation items to measure on."""
    controls: int = 1
    """Number of random controls per group: draws of as many neurons."""


@dataclass
class WeightsOptions(RunOptions):
    """Plot histograms of a run's recurrent weights, layer by layer, before and after training."""

    bins: int = 40
    """Number of bins of each histogram."""


def memory(options: MemoryOptions) -> None:
    """Measure, write and print the memory of a run."""
    from ...analysis import memory as analysis
    from ...analysis import neurons

    analysis.check_settings(options.epsilon, options.bounds)
    check_count("items", options.items, 0)
    run, results = _open(options, "memory")
    model = run.best[0]
    measure: partial[Any] | None = None
    if options.items:
        task, model = run.task(options.data_dir), run.best_on(options.device)
        measure = partial(list, neurons.some(task, model, options.items))
    results.prepare()
    measured = analysis.memory(model, epsilon=options.epsilon, bounds=options.bounds, run=measure)
    say(analysis.write(measured, run.summary, results))
    say(analysis.in_words(measured))
    say(results.drawn)


def weights(options: WeightsOptions) -> None:
    """Count, write and print the recurrent weights of a run."""
    from ...analysis import weights as analysis

    check_count("bins", options.bins)
    run, results = _open(options, "weights")
    results.prepare()
    counted = analysis.weights(run.best[0], _before(run), bins=options.bins)
    say(analysis.write(counted, run.summary, results))
    say(results.drawn)


def ablate(options: AblateOptions) -> None:
    """Measure, write and print a run without some of its neurons."""
    from ...analysis import ablate as analysis
    from ...analysis.memory import check_settings

    check_settings(options.epsilon, options.bounds)
    check_count("items", options.items)
    check_count("controls", options.controls, 0)
    run, results = _open(options, "ablate")
    task = run.task(options.data_dir)
    results.prepare()
    settings = {name: getattr(options, name) for name in ("items", "epsilon", "bounds", "controls")}
    say(analysis.write(analysis.ablate(run.best_on(options.device), task, **settings), run.summary, results))
    say(results.drawn)


def _open(options: RunOptions, name: str) -> tuple[Run, Results]:
    """A run whose network has independent neurons, and the files of its analysis; raises if they are there."""
    from ...analysis.neurons import layers_of
    from ...tasks.runs import open_run
    from ...tasks.table import Results, results_folder

    run = open_run(options.run)
    results = Results(results_folder(options.run, options.out), name, overwrite=options.overwrite)
    try:
        layers_of(run.best[0])
    except ValueError as error:
        raise ValueError(f"run: {options.run}: {error}") from None
    return run, results


def _before(run: Run) -> nn.Module | None:
    """The model before training; None, after a line that says why, if it is not known."""
    reason = "what it began with is known to its own program alone"
    if "init_from" in run.recorded:
        reason = f"{run.path} began with the weights of {run.recorded['init_from']}"
    else:
        try:
            if (before := run.untrained()) is not None:
                return before
        except OSError as error:
            reason = f"what it began with follows from its data ({error})"
    say(f"shown after training alone: {reason}")
    return None
