"""`indrnn fit`: a model of your own sequences, from a file to a run folder."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from ..system import load_torch
from ..tasks.series.fit import Fit, fit_of
from .main import UsageError, say
from .parse import option, parse

FitOptions = make_dataclass(
    "FitOptions",
    [
        ("recipe", Annotated[Fit, tyro.conf.arg(name="")]),
        ("out", option(Path | None, "The run's folder; None for runs/fit-NAME."), None),
        ("resume", option(bool, "Resume from the last checkpoint in the folder."), False),
        ("overwrite", option(bool, "Replace an existing run in the folder."), False),
        ("dry_run", option(bool, "Print how the data are read and what would be trained; write nothing."), False),
    ],
)


ResumeOptions = make_dataclass(
    "ResumeOptions",
    [
        ("resume", option(Path, "The run's folder.")),
        ("data", option(Path | None, "New location of its data, if they were moved."), None),
        ("test", option(Path | None, "New location of its test file, if it was moved."), None),
        ("device", option(str, "Device: cpu, cuda, ...; auto: cuda if available, else cpu."), "auto"),
        ("threads", option(int | None, "Number of CPU threads; None for PyTorch's default."), None),
    ],
)


def fit(arguments: list[str]) -> int:
    """Fit a model to series in a file."""
    if arguments[:1] == ["--resume"] and len(arguments) > 1 and not arguments[1].startswith("-"):
        from ..tasks.runs import open_group

        about = "Resume a run of `indrnn fit`, with the options stored in it."
        options = parse("fit --resume", ResumeOptions, arguments, about)
        recipe = fit_of(open_group(options.resume))
        places = {name: path for name in recipe.places if (path := getattr(options, name)) is not None}
        recipe = replace(recipe, device=options.device, threads=options.threads, **places)
        return _fit(recipe, options.resume, resume=True)
    if not arguments:
        raise UsageError("fit needs DATA: a .npz, .ts, .csv or .parquet file, or a folder of WAV files by class")
    options = parse("fit", FitOptions, arguments, inspect.getdoc(Fit))
    data = Path(options.recipe.data)
    if options.resume and ((data / "config.json").exists() or (data / "member-0").exists()):
        raise UsageError(f"resume: {data} is a run; put it first: indrnn fit --resume {data} ...")
    out = options.out or Path("runs") / f"fit-{data.resolve().name.partition('.')[0] or 'data'}"
    return _fit(options.recipe, out, resume=options.resume, overwrite=options.overwrite, dry_run=options.dry_run)


def _fit(recipe: Fit, out: Path, *, resume: bool, overwrite: bool = False, dry_run: bool = False) -> int:
    """Print a summary of the data, train and evaluate."""
    load_torch()
    from ..tasks.runs import open_group, recorded_recipe, runs_in
    from ..training import RunFolder
    from ..training.listeners import progress
    from ..training.parallel import choose_device

    if not dry_run:
        RunFolder(out).check(resume=resume, overwrite=overwrite)
    choose_device(recipe.device)
    for line in recipe.summary():
        say(line)
    if dry_run:
        return 0
    entry = recorded_recipe(recipe.for_record(), "fit")
    if resume and (RunFolder(out).config.exists() or runs_in(out)):  # its checksum tells moved data from others
        recorded = open_group(out).recorded["recipe"]
        entry |= {name: recorded[name] for name in recipe.places}
    again, modes = shlex.join(["indrnn", "fit", "--resume", str(out)]), {"resume": resume, "overwrite": overwrite}
    estimator = recipe.estimator.fit(
        recipe.fitting, out=out, listeners=[progress()], config={"recipe": entry}, resume_command=again, **modes
    )
    last = estimator.results_[-1]
    if not last.finished:
        return 128 + (last.stopped_by or 0)
    for line in recipe.finish(out, estimator.models_):
        say(line)
    use = f"indrnn predict {shlex.quote(str(out))} DATA gives answers"
    say(f"saved in {out}; {use}, indrnn.load({str(out)!r}) the model")
    return 0
