"""`indrnn explore`: a page in which a run's network can be looked into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from ..models import load_module
from ..networks import LanguageModel
from ..recipes import ROWS, Recipe
from ..recipes.adding import AddingRecipe
from ..recipes.pixels import PixelsRecipe
from ..tokeniser import Tokeniser
from ..training import RunFolder, Shard
from .main import UsageError, say
from .parse import Parser
from .runs import best_of, recipe_of, with_data


@dataclass
class ExploreOptions:
    """Write a page in which a run's network can be looked into, neuron by neuron, and given digits or numbers.

    One HTML file, which needs no network and opens in any browser: the run's weights are in it, and the network runs in
    the page.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """The HTML file; explore-NAME.html for a run called NAME if none is given."""
    data_dir: Path | None = None
    """The folder of the data, for samples; INDRNN_DATA or a cache if none is given. Nothing is downloaded."""
    overwrite: bool = False
    """Replace a file that is there."""


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
    folder = RunFolder(options.run)
    recorded = folder.read_json(folder.config) if folder.config.exists() else {}
    if "options" in recorded:
        recorded, recipe = recipe_of(options.run)
        recipe = recipe if options.data_dir is None else with_data(recipe, options.data_dir, options.run)
        model, which = best_of(options.run, recipe)
        network_of(model)  # or raises, before data is read
        samples = _samples_of(recipe, model)
    else:  # a run of one's own task, or a saved model
        model, which = load_module(options.run), "the saved weights"
        samples = _noise(model)
    about, facts = _about(recorded, folder, model, which)
    path = explorer.explore(model, samples, out, title=name, about=about, facts=facts, overwrite=options.overwrite)
    if samples.note:
        say(samples.note)
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
    return 0


def _samples_of(recipe: Recipe, model: torch.nn.Module) -> Any:
    from ..analysis import explorer

    if isinstance(recipe, PixelsRecipe):
        names = ("permuted", "shrink", "validation", "split_seed", "permutation_seed", "data_dir")
        return explorer.pixels(**{name: getattr(recipe, name) for name in names})
    if isinstance(recipe, AddingRecipe):
        return explorer.adding(recipe.length, recipe.seed)
    if isinstance(model, LanguageModel):
        tokeniser = getattr(model, "tokeniser", None)
        if not isinstance(tokeniser, Tokeniser):
            raise UsageError("explore: the run has no tokeniser.json, which is written when it is finished")
        return explorer.text(tokeniser, recipe.length)  # type: ignore[attr-defined]
    try:
        task = recipe.task()
        batch = task.batch(0, Shard())
    except FileNotFoundError as error:
        raise UsageError(f"the samples of this page need the run's data: {error}") from None
    if not batch.inputs.is_floating_point() or batch.inputs.dim() != 3:
        raise UsageError(
            f"explore: runs of {type(recipe).__name__} are not supported yet; pixel and adding runs, and runs on "
            "sequences of numbers, are"
        )
    inputs = batch.inputs.transpose(0, 1) if not model.network.batch_first else batch.inputs  # type: ignore[union-attr]
    lengths = [inputs.shape[1]] * len(inputs) if batch.lengths is None else batch.lengths.tolist()
    labels = [f"{number + 1}: class {target}" for number, target in enumerate(batch.target.tolist())]
    sequences = [each[:length] for each, length in zip(inputs, lengths, strict=True)]
    labels = labels if batch.target.dim() == 1 and not batch.target.is_floating_point() else None  # type: ignore[assignment]
    return explorer.recorded(sequences, labels, note="Sequences of the first training batch.")


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


def _about(
    recorded: dict[str, Any], folder: RunFolder, model: torch.nn.Module, which: str
) -> tuple[str, list[tuple[str, str, str]]]:
    """A line about a run, and its facts."""
    from ..analysis.explorer.program import program_of
    from ..analysis.report import UNKNOWN, duration, headline, value_of

    layers = program_of(model).layers
    row = ROWS.get(str(recorded.get("recipe")))
    facts: list[tuple[str, str, str]] = []
    test = folder.read_json(folder.result).get("test") if folder.result.exists() else None
    if reached := headline(test or {}):
        paper = f"paper: {row.value}" if row and row.value not in UNKNOWN else ""
        facts.append((f"test {reached[0].removeprefix('test_')}", value_of(*reached), paper))
    neurons = sum(layer.size for layer in layers)
    facts.append(("recurrent layers", f"{len(layers)}", ""))
    facts.append(("neurons", f"{neurons:,}", ""))
    facts.append(("parameters", f"{sum(each.numel() for each in model.parameters()):,}", ""))
    if lines := folder.read_metrics():
        facts.append(("training", duration(lines[-1].get("seconds")), f"{lines[-1]['step']:,} steps"))
    kind = recorded.get("recipe") or type(model).__name__
    return f"Recipe {kind}, with {which}. Give it something to read, and see what every neuron keeps of it.", facts
