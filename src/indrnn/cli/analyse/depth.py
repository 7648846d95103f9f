"""`indrnn analyse depth`: how gradients reach the first layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ...checks import check_count
from ..main import UsageError, say


@dataclass
class DepthOptions:
    """Measure how gradients reach the first layers.

    With RUN: of its network on its task, layer by layer, before and after training. Without RUN: at the first and last
    block of untrained plain, residual and dense networks of 6 to 100 layers.
    """

    run: tyro.conf.Positional[Path | None] = None
    """The run's folder."""
    out: Path | None = None
    """Output folder of depth.json and depth.png; None for results/insight/NAME, or results/depth without RUN."""
    seeds: int = 5
    """Number of untrained networks to average over."""
    batches: int = 10
    """With RUN: number of training batches to average over."""
    device: str = "auto"
    """With RUN: device, cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """With RUN: data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


def analyse(options: DepthOptions) -> None:
    """Measure, write and print gradient norms by depth."""
    check_count("seeds", options.seeds)
    check_count("batches", options.batches)
    from ...analysis import depth
    from ...analysis.gradients import input_weights
    from ...tasks.results import Results, results_folder
    from ...tasks.runs import open_run
    from ...training.parallel import Processes, choose_device

    out = options.out or (Path("results/depth") if options.run is None else results_folder(options.run))
    results = Results(out, "depth", overwrite=options.overwrite)
    if options.run is None:
        results.prepare()
        say(depth.write(depth.measure(options.seeds), options.seeds, results))
        return
    run = open_run(options.run)
    model, _ = run.best
    if len(input_weights(model)) < 2:
        raise UsageError(f"run: depth needs two layers at least, and {options.run} has one")
    task = run.task(options.data_dir)
    device = choose_device(options.device, Processes())
    before = [run.drawn(seed).to(device) for seed in range(options.seeds)]
    results.prepare()
    rows = depth.before_and_after(model.to(device), before, task, options.batches)
    settings = {"seeds": options.seeds, "batches": options.batches}
    say(depth.write_run(rows, run.summary | settings, results))
    say(results.drawn)
