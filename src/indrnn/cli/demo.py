"""`indrnn demo`: the adding problem in a minute."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from ..system import keep_memory, load_torch
from ..tasks.adding import BASELINE
from ..tasks.rows import find
from ..training import RunFolder
from ..words import duration
from .main import UsageError, say
from .parse import parse


@dataclass
class DemoOptions:
    """Train on the adding problem for about a minute, and plot the result."""

    out: Path = Path("runs/demo")
    """The run's folder; an earlier demo there is replaced."""
    steps: int = 2_500
    """Number of training steps."""


def _is_demo(folder: RunFolder) -> bool:
    """Whether a folder holds an earlier demo, even if that was stopped before config.json was there."""
    try:
        config = folder.read_json(folder.config) if folder.config.exists() else folder.recorded()
    except ValueError:
        return False
    return bool((config.get("recipe") or {}).get("name") == "demo")


def demo(arguments: list[str]) -> int:
    """Learn the adding problem in about a minute."""
    options: DemoOptions = parse("demo", DemoOptions, arguments)
    load_torch()
    from ..tasks.runs import train_recipe

    recipe = find("adding-100-fast").recipe
    recipe = replace(recipe, training=replace(recipe.training, steps=options.steps))  # type: ignore[call-arg]
    folder = RunFolder(options.out)
    if folder.used and not _is_demo(folder):
        raise UsageError(f"out: {options.out} holds something that is not an earlier demo; name another folder")
    say("The adding problem: 100 random numbers, two of them marked; the answer is the sum of those two.")
    say(f"A two-layer IndRNN of 128 neurons a layer learns it in {options.steps} steps; always answering 1 has an")
    say(f"error of {BASELINE:.3f}.")
    keep_memory()
    # A minute: it starts over
    again = shlex.join(["indrnn", "demo", "--steps", str(options.steps), "--out", str(options.out)])
    result, _ = train_recipe("demo", recipe, options.out, overwrite=folder.used, resume_command=again)
    if not result.finished:
        return 128 + (result.stopped_by or 0)
    error = result.test["test_mse"]
    verdict = "It learnt to add" if error < 0.01 else "It is on its way" if error < 0.1 else "It has not learnt it yet"
    say(f"{verdict}: mean squared error {error:.5f} on 1,000 fresh sequences after {duration(result.seconds)}.")
    picture = ", its picture in curve.png" if (options.out / "curve.png").exists() else ""
    say(f"The run is in {result.folder}/{picture}. Next: indrnn train adding-1000-fast")
    return 0
