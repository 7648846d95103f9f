"""What the explorer shows of a run: samples of its data, and facts about it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ...tasks.recipe import Samples
from ...tasks.runs import Run
from ...tasks.samples import recorded
from ...words import headline, rough_duration, value_of, words
from ..reported import described, sizes
from .program import Program, network_of


def samples_of(run: Run, data_dir: Path | None) -> Samples:
    """Samples of a run's own data; noise if they are not known."""
    try:
        samples = run.at(data_dir).samples(run.best[0])
    except FileNotFoundError as error:
        raise ValueError(f"the samples of this page need the run's data: {error}") from None
    if samples is not None:
        return samples
    size = int(network_of(run.best[0]).input_size)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(0)
    noise = [torch.randn(100, size, generator=random) for _ in range(4)]
    remark = "Normally distributed noise: the data of this run is not known here."
    samples = recorded(noise, [f"noise {number}" for number in range(1, 5)], note=remark)
    samples.note = (
        "the run's own data is not known here, so that the page has noise in its place; see "
        "indrnn.analysis.explorer.explore to give it samples"
    )
    return samples


def facts_of(run: Run, model: nn.Module, which: str) -> tuple[str, list[tuple[str, str, str]]]:
    """A line about a run, and its facts: name, value, and what stands beside it."""
    reported = described(run)
    facts: list[tuple[str, str, str]] = []
    if reached := headline(reported.scores):
        paper = f"paper: {reported.paper[0]}" if reported.paper else ""
        facts.append((f"test {words(reached[0].removeprefix('test_'))}", value_of(*reached), paper))
    facts += [(name, value, "") for name, value in sizes(model, Program(model).layers).items()]
    if lines := reported.lines:
        facts.append(("training", rough_duration(lines[-1].get("seconds")), f"{reported.steps:,} steps"))
    kind = reported.description.task if run.recipe_name else type(model).__name__
    kind = f"Recipe {reported.recipe}" if reported.recipe else kind
    return f"{kind}, with {which}. Give it something to read, and see what every neuron keeps of it.", facts
