"""The explorer's page, a model's weights, the engine and the views in one HTML file; and what it shows of a run."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...layers import EPSILON
from ...networks.network import FrontNetwork
from ...tasks.recipe import Samples, recorded
from ...tasks.runs import Run
from ...training.folder import finite
from ...words import headline, rough_duration, value_of, words
from ..html import embedded_json, escape, fill, source, write_page
from ..memory import BOUNDS, steps_of
from ..runs import described, sizes
from .program import Program, network_of, recurrent_states

LARGEST = 4_000_000  # parameters that a page takes: 21 MB as text
_SCRIPTS = ("engine", "digits", "plots", "inputs", "app", "neurons")

Fact = tuple[str, str] | tuple[str, str, str]  # a name, a value, and what stands beside it


def explore(
    model: nn.Module,
    samples: Samples,
    path: Path | str,
    *,
    title: str = "IndRNN",
    about: str = "",
    facts: Sequence[Fact] = (),
    overwrite: bool = False,
) -> Path:
    """Write an HTML page to inspect a trained model neuron by neuron: a single file, for any browser.

    The model is a classifier, regressor or language model around a plain, residual or dense IndRNN, or an IndRNN layer.
    Its inputs are `samples`; see `recorded`. `about` is a line below the title, and `facts` are names and values at the
    top. With `overwrite`, an existing file may be replaced.

    Example:
        explore(model, recorded(list(x)), "model.html")
    """
    return write_page(Path(path), page_of(model, samples, title, about, facts), overwrite=overwrite)


def page_of(model: nn.Module, samples: Samples, title: str, about: str = "", facts: Sequence[Fact] = ()) -> str:
    """The page as text; see `explore`."""
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        raise ValueError(f"model must have at most {LARGEST:,} parameters to be explored in a page, got {count:,}")
    program = Program(model)
    activity = program.reference(_activity(model, samples.sequences)) if samples.sequences else None
    output, classes = program.plain["output"], None
    if output["classes"]:
        outputs = output["weight"]["shape"][0]
        classes = samples.classes or [*map(str, range(outputs))]
        if len(classes) != outputs:
            raise ValueError(f"classes must be as many as the model's, {outputs}, got {len(classes)}")
    if samples.several:
        output["several"] = True
    network = network_of(model)
    # A strided front leaves fewer steps, which memory is compared with
    length = network.config.steps(samples.length) if isinstance(network, FrontNetwork) else samples.length
    data = {
        "title": title,
        "about": about,
        "facts": [[*fact, *[""] * (3 - len(fact))] for fact in facts],
        "kind": samples.kind,
        "length": length,
        "bounds": [bound * length for bound in BOUNDS],
        "input": samples.input,
        "classes": classes,
        "activity": activity,
        "program": program.plain,
        "memory": [[*map(finite, steps_of(u).tolist())] for u in program.layers.values()],
    }
    content = b"".join(array.astype("<f4").tobytes() for array in program.numbers)
    size = f"{len(content) / 1e6:.1f} MB" if len(content) >= 1e6 else f"{len(content) / 1e3:.0f} kB"
    return fill(
        source("explorer/page.html"),
        style=source("explorer/style.css"),
        script="\n".join(source(f"explorer/{name}.js") for name in _SCRIPTS),
        data=embedded_json(data),
        numbers=base64.b64encode(content).decode(),
        share=f"{EPSILON:.0%}",
        epsilon=f"{EPSILON:g}",
        made=escape(f"{count:,} parameters, {size} of numbers."),
    )


def _activity(model: nn.Module, sequences: Sequence[Tensor]) -> Tensor:
    """The mean of |h| over time for every neuron, (sequences, neurons), layer after layer."""
    like = next(model.parameters())
    first = 0 if getattr(getattr(model, "network", None), "batch_first", False) else 1
    rows = []
    for sequence in sequences:
        states = recurrent_states(model, sequence.to(like).unsqueeze(first))
        rows.append(torch.cat([state.float().abs().mean(0).squeeze(0) for state in states]))
    return torch.stack(rows).cpu()


def samples_of(run: Run, data_dir: Path | None) -> Samples:
    """Samples of a run's own data; noise if they are not known."""
    try:
        samples = run.at(data_dir).samples(run.best[0])
    except FileNotFoundError as error:
        raise ValueError(f"the samples of this page need the run's data: {error}") from None
    if samples is not None:
        return samples
    network: Any = network_of(run.best[0])
    random = torch.Generator().manual_seed(0)
    noise = {f"noise {number}": torch.randn(100, network.input_size, generator=random) for number in range(1, 5)}
    remark = "Normally distributed noise: the data of this run is not known here."
    samples = recorded([*noise.values()], [*noise], note=remark)
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
    task = reported.description.task if run.recipe_name else type(model).__name__
    kind = f"Recipe {reported.recipe}" if reported.recipe else task
    return f"{kind}, with {which}. Give it something to read, and see what every neuron keeps of it.", facts
