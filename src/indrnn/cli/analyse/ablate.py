"""`indrnn analyse ablate`: a run without its neurons of short, middle and long memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...checks import check_count
from ...layers.options import EPSILON
from ..main import say
from .options import DataOptions, open_independent


@dataclass
class AblateOptions(DataOptions):
    """Ablation: measure a run without its neurons of short, middle and long memory, layer by layer.

    On validation data; ablated neurons output zero. The run is not changed.
    """

    items: int = 500
    """Minimum number of validation items to measure on."""
    controls: int = 1
    """Number of random controls per group: draws of as many neurons."""
    epsilon: float = EPSILON
    """Threshold of influence: memory is the number of steps until a state's influence falls below it."""
    bounds: tuple[float, float] = (0.1, 0.5)
    """Where short memory ends and long memory begins, as fractions of the sequence length."""


def analyse(options: AblateOptions) -> None:
    """Measure, write and print a run without some of its neurons."""
    from ...analysis import ablate, memory
    from ...training.parallel import Processes, choose_device

    memory.check_epsilon(options.epsilon)
    memory.check_bounds(options.bounds)
    check_count("items", options.items)
    check_count("controls", options.controls, 0)
    run, results = open_independent(options, "ablate")
    task = run.task(options.data_dir)
    results.prepare()
    measured = ablate.ablate(
        run.best[0].to(choose_device(options.device, Processes())),
        task,
        items=options.items,
        epsilon=options.epsilon,
        bounds=options.bounds,
        controls=options.controls,
    )
    say(ablate.write(measured, run.summary, results))
    say(results.drawn)
