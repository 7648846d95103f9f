"""`indrnn analyse gradients` and `depth`: how gradients flow over time, and reach the first layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from ...checks import check_count
from ..main import UsageError, say


@dataclass
class GradientsOptions:
    """Plot the gradient flow over time and depth, as in the paper's figure 5, and write its numbers.

    Gradients are measured for each run's best weights on training batches, in training mode; the weights do not change.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders; for a fair comparison, of one task and at the same training accuracy."""
    out: Path = Path("results/gradients")
    """Output folder of gradients.json and gradients.png."""
    batches: int | None = None
    """Number of batches to average over; None for an epoch, or 100 if the data are endless."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class DepthOptions:
    """Measure how gradients reach the first layers.

    With RUN: of its network on its task, layer by layer, before and after training. Without RUN: at the first and last
    block of untrained plain, residual and dense networks of 6 to 100 layers.
    """

    run: tyro.conf.Positional[Path | None] = None
    """The run's folder."""
    out: Path | None = None
    """Output folder; None for results/insight/NAME, or results/depth without RUN."""
    seeds: int = 5
    """Number of untrained networks to average over."""
    batches: int = 10
    """Number of training batches to average over; with RUN."""
    device: str = "auto"
    """Device, with RUN: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder, with RUN; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


def gradients(options: GradientsOptions) -> None:
    """Measure and draw the gradient flow of runs."""
    if not options.runs:
        raise UsageError("analyse gradients needs the folders of runs")
    from ...analysis import gradients as analysis
    from ...layers.bound import recurrent_weights
    from ...tasks.runs import distinct, open_run
    from ...tasks.table import Results
    from ...training import Shard

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
        flow = {"name": name, "indrnn": any(True for _ in recurrent_weights(model)), "batches": batches}
        flow |= {"batch_size": size, "command": run.summary["command"]}
        flows.append(flow | analysis.gradient_flow(model, task, batches))
    analysis.write(flows, results)
    say(results.drawn)


def depth(options: DepthOptions) -> None:
    """Measure, write and print gradient norms by depth."""
    check_count("seeds", options.seeds)
    check_count("batches", options.batches)
    from ...analysis import depth as analysis
    from ...analysis.gradients import input_weights
    from ...tasks.runs import open_run
    from ...tasks.table import Results, results_folder

    out = options.out or (Path("results/depth") if options.run is None else results_folder(options.run))
    results = Results(out, "depth", overwrite=options.overwrite)
    if options.run is None:
        results.prepare()
        say(analysis.write(analysis.measure(options.seeds), options.seeds, results))
        return
    run = open_run(options.run)
    if len(input_weights(run.best[0])) < 2:
        raise UsageError(f"run: depth needs two layers at least, and {options.run} has one")
    task, model = run.task(options.data_dir), run.best_on(options.device)
    before = [run.drawn(seed).to(next(model.parameters()).device) for seed in range(options.seeds)]
    results.prepare()
    rows = analysis.before_and_after(model, before, task, options.batches)
    about = {**run.summary, "seeds": options.seeds, "batches": options.batches}
    say(analysis.write_run(rows, about, results))
    say(results.drawn)
