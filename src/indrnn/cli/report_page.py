"""`indrnn report RUN ... --html FILE`: an HTML page about runs, for readers new to them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..networks.tokeniser import NAMES
from ..saving import defaults, flat, to_json
from ..tasks.adding import BASELINE
from ..tasks.adding_recipe import AddingRecipe
from ..tasks.pixels import SIDE, TRAINING_IMAGES
from ..tasks.pixels_recipe import PixelsRecipe
from ..tasks.rows import ROWS, Recipe
from ..tasks.skeleton.recipe import SkeletonRecipe
from ..tasks.text.recipe import PennRecipe, TextRecipe
from .main import UsageError, say
from .opened import Fitted, Opened, distinct, open_run

if TYPE_CHECKING:
    from ..analysis.report import Reported

_TEST_IMAGES = 10_000
_QUIET = ("type", "data_dir", "input_size", "sequence_length")
"""Options that say nothing by themselves: places on a disk, and what a task says."""


def write(runs: tuple[Path, ...], out: Path, *, full: bool, data_dir: Path | None, overwrite: bool) -> None:
    """Write the HTML page."""
    from ..analysis.html import check_page, write_page
    from ..analysis.report import page_of

    if not runs:
        raise UsageError("runs must be the folders of runs, got none")
    check_page(out, overwrite=overwrite)
    names = distinct([run.resolve() for run in runs])
    reported = [_read(run, name, full, data_dir) for run, name in zip(runs, names, strict=True)]
    path = write_page(out, page_of(reported), overwrite=overwrite)
    say(f"{path}: {path.stat().st_size / 1e6:.2f} MB, to be opened in a browser")


def _read(run: Path, name: str, full: bool, data_dir: Path | None) -> Reported:
    from ..analysis.report import read_run
    from .report_answers import look_into

    opened = open_run(run)
    missing = []
    model: torch.nn.Module | None
    try:
        model, _ = opened.best
    except (OSError, ValueError) as error:  # of a run that has no weights yet
        model = None
        missing = [str(error)]
    reported = read_run(run, name=name, model=model, missing=missing, **_described(opened))
    if isinstance(opened, Fitted):
        scores, reported.compared = _scores(run)
        reported.result = {**reported.result, "test": scores}
    if model is not None:
        look_into(reported, opened, full, data_dir)
    return reported


def _described(opened: Opened) -> dict[str, Any]:
    """Task, data and metric of a run, in words."""
    from ..analysis.report import UNKNOWN
    from ..analysis.runs import own_page

    recipe, recorded = opened.recipe, opened.recorded
    if recipe is None:
        lines = opened.folder.read_metrics()
        about = {"metric": own_page(lines).metric if lines else "loss"}
        told = recorded.get("task")
        if isinstance(opened, Fitted):
            return {**about, **_of_fit(recorded["fit"], told or {})}
        data = f"As the task says of itself: {told}." if told else "The run says nothing of it."
        return {**about, "task": "a task of its own", "data": data}
    row = ROWS.get(str(recorded["recipe"]))
    page = recipe.page
    return {
        "recipe": recorded["recipe"],
        "metric": page.metric,
        "older": page.older,
        "paper": (row.value, row.paper.removesuffix(", quicker")) if row and row.value not in UNKNOWN else None,
        "changed": _changed(recipe, row.recipe if row else None),
        **_of_recipe(recipe, recorded),
    }


def _of_fit(asked: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    name = Path(asked["data"]).name
    parts = {"train": "to train on", "validation": "held back to choose the best weights by"}
    counts = [f"{told[part]['series']:,} {use}" for part, use in parts.items() if told.get(part)]
    features = told.get("train", {}).get("features")
    read = f" of {features} features" if features else ""
    return {
        "task": f"{name}, by `indrnn fit`",
        "changed": _asked(asked),
        "data": f"{name}: series{read}; {', '.join(counts) or 'sizes not known'}.",
    }


def _asked(asked: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Options of `fit` that are not defaults."""
    from .fit import FitOptions

    usual = {field.name: field.default for field in fields(FitOptions)}
    names = [name for name in asked if name not in ("data", "test", "reading") and asked[name] != usual.get(name)]
    return [
        (name, _shown(asked[name]), "by the data" if usual[name] is None else _shown(usual[name])) for name in names
    ]


def _scores(run: Path) -> tuple[dict[str, Any], str]:
    """The scores of `fit` on its test series, and those of naive baselines; empty without a test."""
    from ..analysis.report import value_of, words

    path = run / "scores.json"
    if not path.exists():
        return {}, ""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["test"]
    naive = found.pop("naive", {})
    low, high = found.pop("accuracy_interval", (None, None))
    if low is not None and high is not None:
        found["accuracy, 95 % interval"] = f"{low:.1%} to {high:.1%}"
    told = []
    for name, numbers in naive.items():
        first = next(iter(numbers))
        value = value_of(first, numbers[first])
        found[f"{words(first)}, answering naively ({name})"] = value
        told.append(f"answering naively ({name}) gives {value}")
    return found, ", ".join(told)


def _changed(recipe: Recipe, usual: Recipe | None) -> list[tuple[str, str, str]]:
    """Options that differ from the recipe of the run's name, or from the defaults if there is none."""
    here = flat(to_json(recipe))
    there = flat(to_json(usual) if usual is not None else defaults(recipe))
    names = [name for name in here if name.split(".")[-1] not in _QUIET]
    return [
        (name.removeprefix("training."), _shown(here[name]), _shown(there.get(name, "")))
        for name in names
        if here[name] != there.get(name)
    ]


def _shown(value: object) -> str:
    """An option's value, formatted for readers."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)


def _of_recipe(recipe: Recipe, recorded: dict[str, Any]) -> dict[str, Any]:
    if isinstance(recipe, PixelsRecipe):
        steps = (SIDE // recipe.shrink) ** 2
        order = "a fixed random order" if recipe.permuted else "rows from the top"
        trained = f"{TRAINING_IMAGES - recipe.validation:,}"
        return {
            "task": f"{'permuted' if recipe.permuted else 'sequential'} MNIST",
            "data": f"MNIST, one pixel a step: {steps} steps in {order}. {trained} images to train on, "
            f"{recipe.validation:,} kept back to choose the best weights by, {_TEST_IMAGES:,} for the test.",
        }
    if isinstance(recipe, AddingRecipe):
        return {
            "task": f"the adding problem, T = {recipe.length:,}",
            "data": f"Random numbers, {recipe.length:,} steps of which two are marked; their sum is the answer. Fresh "
            f"sequences in every batch of {recipe.batch_size}, and {recipe.test_sequences:,} others in each evaluation "
            "and in the test.",
            "reference": (BASELINE, "always answering 1"),
            "compared": f"always answering 1 gives {BASELINE:.3g}",
        }
    about = recorded.get("task") or {}
    if isinstance(recipe, SkeletonRecipe) and "train" in about:
        samples = recipe.samples
        parts = {
            "train": "to train on",
            "validation": "kept back to choose the best weights by",
            "test": "for the test",
        }
        counts = [f"{about[part]['items']:,} {use}" for part, use in parts.items() if part in about]
        return {
            "task": f"actions of skeletons ({recipe.title})",
            "data": f"{recipe.title}: {about['frames']['shape'][0]:,} frames of {about['joints']['count']} joints. "
            f"Recordings: {', '.join(counts)}. A sample is {samples.frames} frames of one, and the network reads "
            f"{', '.join(samples.features)}.",
        }
    if isinstance(recipe, (PennRecipe, TextRecipe)) and "train" in about:
        name = NAMES[recipe.unit]
        own = recipe.text.name if isinstance(recipe, TextRecipe) and recipe.text else "a text"
        text = "the Penn Treebank" if isinstance(recipe, PennRecipe) else own
        sizes = [about[part]["tokens"] for part in ("train", "validation", "test")]
        return {
            "task": f"the next {name} of {text}",
            "metric": "perplexity" if recipe.unit == "word" else "bpc",
            "data": f"{sizes[0]:,} {name}s of {text} to train on, {sizes[1]:,} kept back to choose the best weights, "
            f"{sizes[2]:,} for the test; a vocabulary of {about['classes']:,}. Read in {recipe.batch_size} streams "
            f"side by side, {recipe.length} {name}s at a time.",
        }
    data = f"As the task says of itself: {about}." if about else "The run says nothing more of it."
    return {"task": f"{recipe.page.name} ({type(recipe).__name__})", "data": data}
