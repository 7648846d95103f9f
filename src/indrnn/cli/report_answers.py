"""The predictions shown in a report: a confusion matrix, numbers against their targets, or generated text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..files import is_here
from ..networks import LanguageModel
from ..networks.tokeniser import NAMES, Tokeniser
from ..tasks.adding import adding_batch
from ..tasks.adding_recipe import AddingRecipe
from ..tasks.pixels import CLASSES, MNIST, Pixels
from ..tasks.pixels_recipe import PixelsRecipe
from ..tasks.skeleton.recipe import SkeletonRecipe
from ..training import generator
from .opened import Fitted, Opened

if TYPE_CHECKING:
    from ..analysis.report import Reported

_SOME = 1000  # test images without --full
_BATCHES = 10  # of training, for gradient flow
_WRITTEN = {"char": 400, "byte": 400, "word": 80}
"""Tokens that a language model writes for its page."""


def look_into(reported: Reported, opened: Opened, full: bool, data_dir: Path | None) -> None:
    """Add a model's predictions and gradient flow if its data are available; otherwise, say what is missing."""
    recipe = opened.recipe
    given = data_dir if data_dir is not None else getattr(recipe, "data_dir", None)
    if recipe is None and not isinstance(opened, Fitted):
        reported.missing.append("Answers are not shown: the data of this run are known to its own program alone.")
        reported.no_gradients = "Not measured: the data of this run are known to its own program alone."
        return
    if isinstance(recipe, PixelsRecipe) and not is_here(MNIST, given):  # which would be downloaded
        reported.missing.append("The confusion matrix needs MNIST, which is not here (--data-dir, INDRNN_DATA).")
        reported.no_gradients = "Not measured: it needs MNIST, which is not here (--data-dir, INDRNN_DATA)."
        return
    try:
        _answers(reported, opened, given, full)
    except (OSError, ValueError) as error:  # data that are not here, or are others now
        reported.missing.append(f"Answers are not shown: {error}")
    try:
        _flow(reported, opened.task(data_dir if hasattr(recipe, "data_dir") else None), full)
    except (OSError, ValueError, RuntimeError) as error:  # also of a network whose gradients cannot be taken
        reported.no_gradients = f"Not measured: {error}"


def _answers(reported: Reported, opened: Opened, data_dir: Path | None, full: bool) -> None:
    model, recipe = reported.model, opened.recipe
    assert model is not None
    if isinstance(recipe, AddingRecipe):
        _adding(reported, model, recipe)
    elif isinstance(recipe, PixelsRecipe):
        _pixels(reported, model, replace(recipe, data_dir=data_dir).task(), full)
    elif isinstance(recipe, SkeletonRecipe):
        _skeletons(reported, model, replace(recipe, data_dir=data_dir))
    elif isinstance(model, LanguageModel):
        _written(reported, model)
    elif isinstance(opened, Fitted):
        _fitted(reported, opened)


def _flow(reported: Reported, task: Any, full: bool) -> None:
    from ..analysis.gradients import gradient_flow

    assert reported.model is not None
    most = min(_BATCHES, getattr(task, "steps_per_epoch", _BATCHES))
    batches = most if full else 1
    reported.gradients = gradient_flow(reported.model, task, batches)
    rest = f"; {most} with --full" if batches < most else ""
    reported.gradients_on = f"{batches} training batch{'' if batches == 1 else 'es'}{rest}"


def _adding(reported: Reported, model: nn.Module, recipe: AddingRecipe) -> None:
    x, right = adding_batch(recipe.length, 200, generator(recipe.seed, "picture"))
    with torch.inference_mode():
        answers = torch.cat([model(part)[0].squeeze(-1) for part in x.split(50, dim=1)])
    reported.answers = list(zip(right.tolist(), answers.tolist(), strict=True)), "fresh sequences"


def _pixels(reported: Reported, model: nn.Module, task: Pixels, full: bool) -> None:
    from ..analysis.report import confusion

    count = task.size("test") if full else min(_SOME, task.size("test"))
    right: list[Tensor] = []
    answered: list[Tensor] = []
    with torch.inference_mode():
        for items in torch.arange(count).split(250):
            batch = task.take("test", items)
            right.append(batch.target)
            answered.append(model(batch.inputs)[0].argmax(1))
    names = [str(digit) for digit in range(CLASSES)]
    rest = "" if full else "; all with --full"
    counts = confusion(torch.cat(right), torch.cat(answered), CLASSES)
    reported.confusion = counts, names, f"the first {count:,} test images{rest}"


def _skeletons(reported: Reported, model: nn.Module, recipe: SkeletonRecipe) -> None:
    from ..analysis.skeletons import confusion

    task = recipe.task()
    split = "test" if task.size("test") else "validation" if task.size("validation") else ""
    if not split:
        reported.missing.append("No recordings were kept back, so that there are no answers to show.")
        return
    counts = confusion(task, model, split)
    names = recipe.actions(len(counts))
    draws = task.samples.draws if split == "test" else task.samples.validation_draws
    on = f"{task.size(split):,} recordings for {split}, by the mean of {draws} samples of each"
    reported.confusion = counts.tolist(), names, on


def _written(reported: Reported, model: LanguageModel) -> None:
    """Add two texts that the model generates after a line end."""
    tokeniser = model.tokeniser
    if not isinstance(tokeniser, Tokeniser):
        reported.missing.append("The run has no tokeniser.json yet, so that its model cannot write.")
        return
    first = _line_end(tokeniser)
    length = _WRITTEN[tokeniser.unit]
    for seed in range(2):
        drawn = model.stream(torch.tensor([first]), length, temperature=0.8, seed=seed)
        text = "".join(tokeniser.decode_each(int(token) for token in drawn))
        how = f"{length} {NAMES[tokeniser.unit]}s, temperature 0.8, seed {seed}"
        reported.samples.append((text, how))


def _line_end(tokeniser: Tokeniser) -> int:
    """The end-of-line token; the first token of the vocabulary if it has none."""
    if tokeniser.unit == "byte":
        return ord("\n")
    wanted = "<eos>" if tokeniser.unit == "word" else "\n"
    return tokeniser.tokens.index(wanted) if wanted in tokeniser.tokens else 0


def _fitted(reported: Reported, opened: Fitted) -> None:
    """Add `fit`'s confusion matrix, or a regressor's predictions, recomputed."""
    matrix = opened.run / "confusion.json"
    if matrix.exists():
        found = json.loads(matrix.read_text(encoding="utf-8"))
        on = f"the series kept for test ({found['split']})"
        reported.confusion = found["counts"], list(found["classes"]), on
        return
    fit = opened.fit
    if fit.test is None or not (opened.run / "estimator.json").exists():
        reported.missing.append(
            "No series were kept for test, or the run is not finished: there are no answers to show."
        )
        return
    from .predict import estimator_of

    estimator = estimator_of(opened.run, "cpu")
    if estimator.target_.kind != "numbers":
        reported.missing.append("Several labels at once have no confusion matrix.")
        return
    assert fit.test.y is not None
    right, answers = (
        np.concatenate([np.ravel(one) for one in each]).astype(np.float64)
        for each in (fit.test.y, estimator.predict(fit.test))
    )
    pairs = list(zip(right.tolist(), answers.tolist(), strict=True))[:_SOME]
    reported.answers = pairs, "numbers of series kept for test"
