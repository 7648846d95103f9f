"""What `indrnn analyse` does with any run: measure, write the numbers with a figure, and print a table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ...analysis import ablate, depth, gradients, memory, neurons, weights
from ...checks import check_count
from ...layers.bound import recurrent_weights
from ...tasks.runs import Run, distinct, open_run
from ...tasks.table import Results, results_folder
from ...training import Shard
from ..main import UsageError, say
from .options import AblateOptions, DepthOptions, GradientsOptions, MemoryOptions, RunOptions, WeightsOptions


def analyse_gradients(options: GradientsOptions) -> None:
    """Measure and draw the gradient flow of runs."""
    if not options.runs:
        raise UsageError("analyse gradients needs the folders of runs")
    if options.batches is not None:
        check_count("batches", options.batches)
    results = Results(options.out, "gradients", overwrite=options.overwrite)
    runs = [open_run(path) for path in options.runs]
    flows = []
    for run, name in zip(runs, distinct([path.resolve() for path in options.runs]), strict=True):
        model = run.best_on(options.device)
        task: Any = run.task(options.data_dir)
        results.prepare()  # before any work is done, and not where the data are missing
        batches = getattr(task, "steps_per_epoch", 100) if options.batches is None else options.batches
        size = task.batch(0, Shard()).total
        say(f"{run.path}: {batches} batch{'' if batches == 1 else 'es'} of {size}")
        about = {"name": name, "indrnn": any(True for _ in recurrent_weights(model)), "batches": batches}
        about |= {"batch_size": size, "command": run.summary["command"]}
        flows.append(about | gradients.gradient_flow(model, task, batches))
    gradients.write(flows, results)
    say(results.drawn)


def analyse_depth(options: DepthOptions) -> None:
    """Measure gradient norms by depth, of a run or of untrained networks."""
    check_count("seeds", options.seeds)
    check_count("batches", options.batches)
    out = options.out or (Path("results/depth") if options.run is None else results_folder(options.run))
    results = Results(out, "depth", overwrite=options.overwrite)
    if options.run is None:
        results.prepare()
        say(depth.write(depth.measure(options.seeds), options.seeds, results))
        return
    run = open_run(options.run)
    if len(gradients.input_weights(run.best[0])) < 2:
        raise UsageError(f"run: depth needs two layers at least, and {options.run} has one")
    task, model = run.task(options.data_dir), run.best_on(options.device)
    before = [run.drawn(seed).to(next(model.parameters()).device) for seed in range(options.seeds)]
    results.prepare()
    rows = depth.before_and_after(model, before, task, options.batches)
    say(depth.write_run(rows, {**run.summary, "seeds": options.seeds, "batches": options.batches}, results))
    say(results.drawn)


def analyse_memory(options: MemoryOptions) -> None:
    """Measure the memory of a run."""
    memory.check_settings(options.epsilon, options.bounds)
    check_count("items", options.items, 0)
    run, results = _open(options, "memory")
    model = run.best[0]
    measure: partial[Any] | None = None
    if options.items:
        task, model = run.task(options.data_dir), run.best_on(options.device)
        measure = partial(list, neurons.some(task, model, options.items))
    results.prepare()
    measured = memory.memory(model, epsilon=options.epsilon, bounds=options.bounds, run=measure)
    say(memory.write(measured, run.summary, results))
    say(memory.in_words(measured))
    say(results.drawn)


def analyse_weights(options: WeightsOptions) -> None:
    """Count the recurrent weights of a run."""
    check_count("bins", options.bins)
    run, results = _open(options, "weights")
    results.prepare()
    counted = weights.weights(run.best[0], _before(run), bins=options.bins)
    say(weights.write(counted, run.summary, results))
    say(results.drawn)


def analyse_ablate(options: AblateOptions) -> None:
    """Measure a run without some of its neurons."""
    memory.check_settings(options.epsilon, options.bounds)
    check_count("items", options.items)
    check_count("controls", options.controls, 0)
    run, results = _open(options, "ablate")
    task = run.task(options.data_dir)
    results.prepare()
    settings = {name: getattr(options, name) for name in ("items", "epsilon", "bounds", "controls")}
    say(ablate.write(ablate.ablate(run.best_on(options.device), task, **settings), run.summary, results))
    say(results.drawn)


def _open(options: RunOptions, name: str) -> tuple[Run, Results]:
    """A run whose network has independent neurons, and the files of its analysis; raises if they are there."""
    run = open_run(options.run)
    results = Results(results_folder(options.run, options.out), name, overwrite=options.overwrite)
    try:
        neurons.layers_of(run.best[0])
    except ValueError as error:
        raise ValueError(f"run: {options.run}: {error}") from None
    return run, results


def _before(run: Run) -> nn.Module | None:
    """The model before training; None, after a line that says why, if it is not known."""
    reason = "what it began with is known to its own program alone"
    try:
        if (before := run.untrained()) is not None:
            return before
    except OSError as error:
        reason = f"what it began with follows from its data ({error})"
    if "init_from" in run.recorded:
        reason = f"{run.path} began with the weights of {run.recorded['init_from']}"
    say(f"shown after training alone: {reason}")
    return None
