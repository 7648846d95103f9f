"""`indrnn analyse`: dispatch, and gradients, depth and skeletons; the others are in insight.py."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from ..analysis.gradients import input_weights
from ..checks import check_count
from ..layers.bound import recurrent_weights
from ..tasks.skeleton.recipe import SkeletonRecipe
from ..training import RunFolder, Shard
from ..training.parallel import Processes, choose_device
from .insight import KINDS
from .main import UsageError, say
from .opened import check_free, distinct, open_run
from .parse import Parser
from .runs import best_of, check_data, recipe_of, with_data


@dataclass
class GradientsOptions:
    """Plot the gradient flow over time and depth, as in the paper's figure 5, and write its numbers.

    Gradients are measured for each run's best weights on training batches, in training mode; the weights do not change.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders; for a fair comparison, of one task and at the same training accuracy."""
    out: Path = Path("results/gradients")
    """Output folder of gradients.json and gradients.png."""
    batches: int | None = None
    """Number of batches to average over; None for an epoch, or 100 if the data are endless."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class DepthOptions:
    """Measure how gradients reach the first layers.

    With RUN: of its network on its task, layer by layer, before and after training. Without RUN: at the first and last
    block of untrained plain, residual and dense networks of 6 to 100 layers.
    """

    run: tyro.conf.Positional[Path | None] = None
    """The run's folder."""
    out: Path | None = None
    """Output folder of depth.json and depth.png; None for results/insight/NAME, or results/depth without RUN."""
    seeds: int = 5
    """Number of untrained networks to average over."""
    batches: int = 10
    """With RUN: number of training batches to average over."""
    device: str = "auto"
    """With RUN: device, cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """With RUN: data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class SkeletonsOptions:
    """Plot samples of the recordings that a run was trained on, and its confusion matrix on the test set."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of a skeleton recipe."""
    out: Path = Path("results/skeleton")
    """Output folder of samples.png, confusion.json and confusion.png."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


GRADIENTS, DEPTH = Parser("analyse gradients", GradientsOptions), Parser("analyse depth", DepthOptions)
SKELETONS = Parser("analyse skeletons", SkeletonsOptions)


def analyse(arguments: list[str]) -> int:
    """Look into trained models."""
    if arguments[:1] in (["--help"], ["-h"]):
        say(f"usage: indrnn analyse {{gradients,depth,skeletons,{','.join(KINDS)}}} [OPTIONS]\n")
        say("  gradients RUN ...  plot the gradient flow over time and depth in trained networks")
        say("  depth [RUN]        measure how gradients reach the first layers, of a run before and after training")
        say("  skeletons RUN      plot sampled skeletons, and the confusion matrix of a run")
        for name, kind in KINDS.items():
            say(f"  {f'{name} RUN':<17}  {kind.about}")
        return 0
    if arguments and arguments[0] in KINDS:
        return KINDS[arguments[0]].run(arguments[1:])
    if arguments[:1] == ["depth"]:
        return _analyse_depth(arguments[1:])
    if arguments[:1] == ["skeletons"]:
        return _analyse_skeletons(arguments[1:])
    if arguments[:1] != ["gradients"]:
        known = ", ".join(KINDS)
        raise UsageError(
            f"analyse needs the name of an analysis: gradients, with the folders of runs, depth, skeletons, {known}"
        )
    options = GRADIENTS(arguments[1:])
    if not options.runs:
        raise UsageError("analyse gradients needs the folders of runs")
    from ..analysis import gradients

    if options.batches is not None:
        check_count("batches", options.batches)
    check_free(options.out, "gradients", options.overwrite)
    every = [open_run(run) for run in options.runs]
    names = distinct([run.resolve() for run in options.runs])
    flows = []
    for run, name, opened in zip(options.runs, names, every, strict=True):
        model, _ = opened.best
        task: Any = opened.task(options.data_dir)
        RunFolder(options.out).prepare()  # before any work is done, and not where the data are missing
        model = model.to(choose_device(options.device, Processes()))
        batches = options.batches or getattr(task, "steps_per_epoch", 100)
        size = task.batch(0, Shard()).total
        say(f"{run}: {batches} batch{'' if batches == 1 else 'es'} of {size}")
        flow = gradients.gradient_flow(model, task, batches)
        about = {
            "name": name,
            "indrnn": next(recurrent_weights(model), None) is not None,
            "batches": batches,
            "batch_size": size,
            "command": opened.about["command"],
        }
        flows.append({**about, **flow})
    say(f"drawn in {gradients.write(flows, options.out)}")
    return 0


def _analyse_depth(arguments: list[str]) -> int:
    options = DEPTH(arguments)
    check_count("seeds", options.seeds)
    check_count("batches", options.batches)
    from ..analysis import depth

    usual = Path("results/depth") if options.run is None else Path("results/insight") / options.run.resolve().name
    out = options.out or usual
    check_free(out, "depth", options.overwrite)
    if options.run is None:
        RunFolder(out).prepare()
        say(depth.write(depth.measure(options.seeds), options.seeds, out))
        return 0
    opened = open_run(options.run)
    model, _ = opened.best
    if len(input_weights(model)) < 2:
        raise UsageError(f"run: depth needs two layers at least, and {options.run} has one")
    task = opened.task(options.data_dir)
    device = choose_device(options.device, Processes())
    before = [opened.drawn(seed).to(device) for seed in range(options.seeds)]
    RunFolder(out).prepare()
    found = depth.before_and_after(model.to(device), before, task, options.batches)
    about = {**opened.about, "seeds": options.seeds, "batches": options.batches}
    say(depth.write_run(found, about, out))
    say(f"drawn in {out / 'depth.png'}")
    return 0


def _analyse_skeletons(arguments: list[str]) -> int:
    options = SKELETONS(arguments)
    from ..analysis import skeletons

    recorded, recipe = recipe_of(options.run)
    if not isinstance(recipe, SkeletonRecipe):
        raise UsageError(f"run must be of a skeleton recipe, and {options.run} is not")
    for name in ("samples", "confusion"):
        check_free(options.out, name, options.overwrite)
    model, _ = best_of(options.run, recipe)
    recipe = with_data(recipe, options.data_dir, options.run)
    assert isinstance(recipe, SkeletonRecipe)
    task = recipe.task()
    check_data(recorded, task, options.run, ("test", "frames"))
    if "test" not in task.data:
        raise UsageError(f"run must have recordings for test, and {options.run} has none")
    RunFolder(options.out).prepare()
    drawn = ["confusion.png"]
    counts = skeletons.confusion(task, model)
    names = recipe.actions(len(counts))
    if task.joints.bones:
        skeletons.draw_samples(task, names, options.out / "samples.png")
        drawn.append("samples.png")
    about = {"run": options.run.name, "recipe": recorded["recipe"], "command": shlex.join(recorded["command"])}
    skeletons.write_confusion(counts, names, about, options.out)
    say(f"{counts.trace()} of {counts.sum()} recordings right; drawn in {options.out}: {', '.join(drawn)}")
    return 0


__all__ = ["analyse"]
