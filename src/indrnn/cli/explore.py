"""`indrnn explore`: an HTML page to inspect a run's network."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from ..networks import LanguageModel
from ..networks.tokeniser import Tokeniser
from ..tasks.adding_recipe import AddingRecipe
from ..tasks.pixels_recipe import PixelsRecipe
from ..tasks.rows import ROWS
from ..tasks.skeleton.recipe import SkeletonRecipe
from ..training.folder import RunFolder
from .main import UsageError, say
from .opened import Fitted, Opened, open_run
from .parse import Parser
from .runs import with_data


@dataclass
class ExploreOptions:
    """Write an HTML page to inspect a run's network neuron by neuron, and to try it on digits or numbers.

    A single HTML file that works offline in any browser: it contains the run's weights, and the network runs in the
    page.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output HTML file; None for explore-NAME.html, for a run called NAME."""
    data_dir: Path | None = None
    """Data folder, for samples; None for INDRNN_DATA or, if unset, the user's cache. Nothing is downloaded."""
    overwrite: bool = False
    """Replace an existing file."""


EXPLORE = Parser("explore", ExploreOptions)


def explore(arguments: list[str]) -> int:
    """Write the explorer's page of a run."""
    from ..analysis import explorer
    from ..analysis.explorer.program import network_of
    from ..analysis.html import check_page

    options = EXPLORE(arguments)
    name = options.run.resolve().name
    out = options.out or Path(f"explore-{name}.html")
    check_page(out, overwrite=options.overwrite)
    opened = open_run(options.run, saved=True)
    model, which = opened.best
    network_of(model)  # or raises, before data is read
    samples = _samples_of(opened, model, options.data_dir)
    if isinstance(opened, Fitted):
        model = _in_units(model, opened)
    about, facts = _about(opened, model, which)
    path = explorer.explore(model, samples, out, title=name, about=about, facts=facts, overwrite=options.overwrite)
    if samples.note:
        say(samples.note)
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
    return 0


def _samples_of(opened: Opened, model: torch.nn.Module, data_dir: Path | None) -> Any:
    from ..analysis import explorer

    recipe = opened.recipe
    if isinstance(opened, Fitted):
        return _of_series(opened, data_dir)
    if recipe is None:
        return _noise(model)
    recipe = recipe if data_dir is None else with_data(recipe, data_dir, opened.run)
    if isinstance(recipe, PixelsRecipe):
        names = ("permuted", "shrink", "validation", "split_seed", "permutation_seed", "data_dir")
        return explorer.pixels(**{name: getattr(recipe, name) for name in names})
    if isinstance(recipe, AddingRecipe):
        return explorer.adding(recipe.length, recipe.seed)
    if isinstance(model, LanguageModel):
        tokeniser, path = model.tokeniser, RunFolder(opened.run).tokeniser
        if not isinstance(tokeniser, Tokeniser) and path.exists():  # of a run that is not finished
            tokeniser = Tokeniser.from_json(path.read_text(encoding="utf-8"))
        if not isinstance(tokeniser, Tokeniser):
            raise UsageError(f"explore: {opened.run} holds no {path.name}")
        return explorer.text(tokeniser, recipe.length)  # type: ignore[attr-defined]
    if not isinstance(recipe, SkeletonRecipe):
        raise UsageError(f"explore: runs of {type(recipe).__name__} are not supported")
    try:
        head: Any = model
        return explorer.skeletons(recipe.task(), recipe.actions(head.config.outputs))
    except FileNotFoundError as error:
        raise UsageError(f"the samples of this page need the run's data: {error}") from None


def _of_series(opened: Fitted, data_dir: Path | None) -> Any:
    """Some of the test series, or of the training series if there are none."""
    from ..analysis import explorer

    if data_dir is not None:
        at = opened.recorded["fit"]["data"]
        raise UsageError(f"data_dir: {opened.run} is of `indrnn fit`, and has its data at {at}")
    try:
        fit, fitting = opened.fit, opened.fitting
    except OSError as error:
        raise UsageError(f"the samples of this page need the run's data: {error}") from None
    target, preparation = fitting.target, fitting.preparation
    data = fitting.data if fit.test is None else fit.test  # of a forecast: windows of its series
    some = data.take(_spread(len(data)))
    assert some.y is not None
    names = list(some.names or (f"series {number + 1}" for number in range(len(some))))
    right: list[str | float] | None = None
    if not target.per_step and some.y.ndim == 1:
        right = [str(each) if target.kind == "classes" else float(each) for each in some.y.tolist()]
    if right is not None and target.kind == "classes":
        names = [f"{name}: {answer}" for name, answer in zip(names, right, strict=True)]
    which = "Training series" if fit.test is None else "Series that were kept for test"
    samples = explorer.recorded(
        [preparation(one) for one in some.x],
        names,
        None if target.classes is None else [str(each) for each in target.classes.tolist()],
        f"{which}, standardised as the network reads them.",
        right=right,
        channels=preparation.names(data.channels),
    )
    samples.several = target.kind == "labels"
    return samples


def _spread(count: int, most: int = 20) -> Any:
    """Indices of at most `most` of `count` items, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _in_units(model: torch.nn.Module, opened: Fitted) -> torch.nn.Module:
    """The model with outputs in the units of the data: a regressor's own outputs are standardised."""
    target = opened.fitting.target
    if target.kind != "numbers":
        return model
    model = copy.deepcopy(model)
    output: Any = model.output
    with torch.no_grad():
        scale, mean = (torch.tensor(each, dtype=output.weight.dtype) for each in (target.scale, target.mean))
        output.weight.mul_(scale.unsqueeze(1))
        output.bias.mul_(scale).add_(mean)
    return model


def _noise(model: torch.nn.Module) -> Any:
    from ..analysis import explorer
    from ..analysis.explorer.program import network_of

    size = int(network_of(model).input_size)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(0)
    noise = [torch.randn(100, size, generator=random) for _ in range(4)]
    labels = [f"noise {number + 1}" for number in range(4)]
    samples = explorer.recorded(
        noise, labels, note="Normally distributed noise: the data of this run is not known here."
    )
    samples.note = "the run's own data is not known here, so that the page has noise in its place; see "
    samples.note += "indrnn.analysis.explorer.explore to give it samples"
    return samples


def _about(opened: Opened, model: torch.nn.Module, which: str) -> tuple[str, list[tuple[str, str, str]]]:
    """A line about a run, and its facts."""
    from ..analysis.explorer.program import program_of
    from ..analysis.report import UNKNOWN, duration, headline, value_of, words

    layers = program_of(model).layers
    recorded, folder = opened.recorded, opened.folder
    row = ROWS.get(str(recorded.get("recipe")))
    facts: list[tuple[str, str, str]] = []
    scores = opened.run / "scores.json"  # of `indrnn fit`
    measured = scores if scores.exists() else folder.result
    test = folder.read_json(measured).get("test") if measured.exists() else None
    if reached := headline(test or {}):
        paper = f"paper: {row.value}" if row and row.value not in UNKNOWN else ""
        facts.append((f"test {words(reached[0].removeprefix('test_'))}", value_of(*reached), paper))
    neurons = sum(layer.size for layer in layers)
    facts.append(("recurrent layers", f"{len(layers)}", ""))
    facts.append(("neurons", f"{neurons:,}", ""))
    facts.append(("parameters", f"{sum(each.numel() for each in model.parameters()):,}", ""))
    if lines := folder.read_metrics():
        facts.append(("training", duration(lines[-1].get("seconds")), f"{lines[-1]['step']:,} steps"))
    kind = f"Recipe {recorded['recipe']}" if recorded.get("recipe") else type(model).__name__
    if isinstance(opened, Fitted):
        kind = f"`indrnn fit` of {Path(recorded['fit']['data']).name}"
    return f"{kind}, with {which}. Give it something to read, and see what every neuron keeps of it.", facts
