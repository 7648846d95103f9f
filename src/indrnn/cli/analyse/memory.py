"""`indrnn analyse memory`: how many steps each neuron of a run remembers."""

from __future__ import annotations

from dataclasses import dataclass

from ...checks import check_count
from ...layers.options import EPSILON
from ..main import say
from .options import DataOptions, open_independent


@dataclass
class MemoryOptions(DataOptions):
    """Plot how many steps each neuron of a run remembers, by its recurrent weight and as measured on sequences."""

    items: int = 64
    """Minimum number of validation sequences to measure on; 0 for none, which needs no data."""
    epsilon: float = EPSILON
    """Threshold of influence: memory is the number of steps until a state's influence falls below it."""
    bounds: tuple[float, float] = (0.1, 0.5)
    """Where short memory ends and long memory begins, as fractions of the sequence length."""


def analyse(options: MemoryOptions) -> None:
    """Measure, write and print the memory of a run."""
    from ...analysis import memory, neurons
    from ...training.parallel import Processes, choose_device

    memory.check_epsilon(options.epsilon)
    memory.check_bounds(options.bounds)
    check_count("items", options.items, 0)
    run, results = open_independent(options, "memory")
    model, measure = run.best[0], None
    if options.items:
        task = run.task(options.data_dir)
        model = model.to(choose_device(options.device, Processes()))

        def measure() -> None:
            for _ in neurons.some(task, model, options.items):
                pass

    results.prepare()
    measured = memory.memory(model, epsilon=options.epsilon, bounds=options.bounds, run=measure)
    say(memory.write(measured, run.summary, results))
    say(memory.in_words(measured))
    say(results.drawn)
