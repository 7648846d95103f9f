"""`indrnn report RUN ... --html FILE`: a page about runs, for someone who was not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..models import load_module
from ..recipes import ROWS, Recipe
from ..recipes.adding import AddingRecipe
from ..recipes.pixels import PixelsRecipe
from ..tasks.adding import BASELINE, adding_batch
from ..tasks.files import is_here
from ..tasks.pixels import CLASSES, MNIST, SIDE, TRAINING_IMAGES, Pixels
from ..training import RunFolder, generator
from ..training.folder import defaults, flat, plain
from .main import UsageError, say
from .runs import best_of, recipe_of

if TYPE_CHECKING:
    from ..analysis.report import Reported

_TEST_IMAGES = 10_000
_SOME = 1000  # test images without --full
_BATCHES = 10  # of training, for gradient flow
_QUIET = ("type", "data_dir", "input_size", "sequence_length")
"""Options that say nothing by themselves: places on a disk, and what a task says."""


def write(runs: tuple[Path, ...], out: Path, *, full: bool, data_dir: Path | None, overwrite: bool) -> None:
    """Write the page."""
    from ..analysis.html import check_page, write_page
    from ..analysis.report import page_of

    if not runs:
        raise UsageError("runs must be the folders of runs, got none")
    check_page(out, overwrite=overwrite)
    reported = [_read(run, full, data_dir) for run in runs]
    path = write_page(out, page_of(reported), overwrite=overwrite)
    say(f"{path}: {path.stat().st_size / 1e6:.2f} MB, to be opened in a browser")


def _read(run: Path, full: bool, data_dir: Path | None) -> Reported:
    from ..analysis.report import UNKNOWN, read_run
    from ..analysis.runs import own_page

    folder = RunFolder(run)
    name = run.resolve().name
    if not folder.config.exists():
        raise UsageError(f"runs must be folders of runs, and {run} holds no config.json")
    if "options" not in folder.read_json(folder.config):
        lines = folder.read_metrics()
        metric = own_page(lines).metric if lines else "loss"
        model = load_module(run) if folder.weights.exists() and folder.model.exists() else None
        about = folder.read_json(folder.config).get("task")
        data = f"As the task says of itself: {about}." if about else "The run says nothing of it."
        return read_run(run, name=name, task="a task of its own", data=data, metric=metric, model=model)
    recorded, recipe = recipe_of(run)
    row = ROWS.get(str(recorded["recipe"]))
    try:
        model, _ = best_of(run, recipe)
    except FileNotFoundError as error:  # of a run that has no weights yet
        model, missing = None, [str(error)]
    else:
        missing = []
    page = recipe.page
    reported = read_run(
        run,
        name=name,
        recipe=recorded["recipe"],
        metric=page.metric,
        older=page.older,
        model=model,
        paper=(row.value, row.paper.removesuffix(", quicker")) if row and row.value not in UNKNOWN else None,
        changed=_changed(recipe, row.recipe if row else None),
        missing=missing,
        **_described(recipe, recorded),
    )
    if model is not None:
        _look_into(reported, recipe, full, data_dir)
    return reported


def _changed(recipe: Recipe, usual: Recipe | None) -> list[tuple[str, str, str]]:
    """Options that differ from the recipe of the run's name, or from the defaults where there is none."""
    here = flat(plain(recipe))
    there = flat(plain(usual) if usual is not None else defaults(recipe))
    names = [name for name in here if name.split(".")[-1] not in _QUIET]
    return [
        (name.removeprefix("training."), str(here[name]), str(there.get(name, "")))
        for name in names
        if here[name] != there.get(name)
    ]


def _described(recipe: Recipe, recorded: dict[str, Any]) -> dict[str, Any]:
    """Task and data in words."""
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
        }
    about = recorded.get("task")
    data = f"As the task says of itself: {about}." if about else "The run says nothing more of it."
    return {"task": f"{recipe.page.name} ({type(recipe).__name__})", "data": data}


def _look_into(reported: Reported, recipe: Recipe, full: bool, data_dir: Path | None) -> None:
    """What a model answers, and how gradients flow in it, where the data is at hand."""
    from ..analysis.gradients import gradient_flow
    from ..analysis.report import confusion

    model = reported.model
    assert model is not None
    if isinstance(recipe, AddingRecipe):
        x, right = adding_batch(recipe.length, 200, generator(recipe.seed, "picture"))
        with torch.inference_mode():
            answers = torch.cat([model(part)[0].squeeze(-1) for part in x.split(50, dim=1)])
        reported.answers = list(zip(right.tolist(), answers.tolist(), strict=True))
        return
    if not isinstance(recipe, PixelsRecipe):
        reported.missing.append("Answers are shown for pixel and adding runs.")
        return
    given = data_dir if data_dir is not None else recipe.data_dir
    if not is_here(MNIST, given):
        reported.missing.append("The confusion matrix needs MNIST, which is not here (--data-dir, INDRNN_DATA).")
        return
    task = replace(recipe, data_dir=given).task()
    count = task._size("test") if full else min(_SOME, task._size("test"))
    right, answered = _answers(model, task, count)
    names = [str(digit) for digit in range(CLASSES)]
    rest = "" if full else "; all with --full"
    reported.confusion = confusion(right, answered, CLASSES), names, f"the first {count:,} test images{rest}"
    if full:
        reported.gradients = gradient_flow(model, task, min(_BATCHES, task.steps_per_epoch))


def _answers(model: torch.nn.Module, task: Pixels, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The right classes of the first test images, and the model's."""
    right, answered = [], []
    with torch.inference_mode():
        for items in torch.arange(count).split(250):
            batch = task._take("test", items, len(items), len(items))
            right.append(batch.target)
            answered.append(model(batch.inputs)[0].argmax(1))
    return torch.cat(right), torch.cat(answered)
