"""`indrnn analyse weights`: the recurrent weights of a run before and after training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...checks import check_count
from ..main import say
from .options import RunOptions, open_independent

if TYPE_CHECKING:
    from torch import nn

    from ...tasks.runs import Run


@dataclass
class WeightsOptions(RunOptions):
    """Plot histograms of a run's recurrent weights, layer by layer, before and after training."""

    bins: int = 40
    """Number of bins of each histogram."""


def analyse(options: WeightsOptions) -> None:
    """Count, write and print the recurrent weights of a run."""
    from ...analysis import weights

    check_count("bins", options.bins)
    run, results = open_independent(options, "weights")
    results.prepare()
    counted = weights.weights(run.best[0], _before(run), bins=options.bins)
    say(weights.write(counted, run.summary, results))
    say(results.drawn)


def _before(run: Run) -> nn.Module | None:
    """The model before training; None, after a line that says why, if it is not known."""
    if "init_from" in run.recorded:
        say(f"{run.path} began with the weights of {run.recorded['init_from']}: shown after training alone")
        return None
    try:
        before = run.untrained()
    except OSError as error:
        say(f"shown after training alone: what it began with follows from its data ({error})")
        return None
    if before is None:
        say("shown after training alone: what it began with is known to its own program alone")
    return before
