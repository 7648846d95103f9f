"""`indrnn analyse gradients`: gradient flow over time and depth in trained networks."""

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


def analyse(options: GradientsOptions) -> None:
    """Measure and draw the gradient flow of runs."""
    if not options.runs:
        raise UsageError("analyse gradients needs the folders of runs")
    from ...analysis import gradients
    from ...layers.bound import recurrent_weights
    from ...tasks.results import Results
    from ...tasks.runs import distinct, open_run
    from ...training import Shard
    from ...training.parallel import Processes, choose_device

    if options.batches is not None:
        check_count("batches", options.batches)
    results = Results(options.out, "gradients", overwrite=options.overwrite)
    runs = [open_run(path) for path in options.runs]
    names = distinct([path.resolve() for path in options.runs])
    flows = []
    for run, name in zip(runs, names, strict=True):
        model, _ = run.best
        task: Any = run.task(options.data_dir)
        results.prepare()  # before any work is done, and not where the data are missing
        model = model.to(choose_device(options.device, Processes()))
        batches = getattr(task, "steps_per_epoch", 100) if options.batches is None else options.batches
        size = task.batch(0, Shard()).total
        say(f"{run.path}: {batches} batch{'' if batches == 1 else 'es'} of {size}")
        flow = {
            "name": name,
            "indrnn": next(recurrent_weights(model), None) is not None,
            "batches": batches,
            "batch_size": size,
            "command": run.summary["command"],
        }
        flows.append(flow | gradients.gradient_flow(model, task, batches))
    gradients.write(flows, results)
    say(results.drawn)
