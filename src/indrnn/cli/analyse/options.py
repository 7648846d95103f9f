"""Options that analyses share, and where an analysis of a run is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

if TYPE_CHECKING:
    from ...tasks.results import Results
    from ...tasks.runs import Run


@dataclass
class RunOptions:
    """Options of an analysis of one run."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output folder of KIND.json, KIND.md and KIND.png; None for results/insight/NAME."""
    overwrite: bool = False
    """Replace existing files."""


@dataclass
class DataOptions(RunOptions):
    """Options of an analysis of one run on its data."""

    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""


def open_independent(options: RunOptions, name: str) -> tuple[Run, Results]:
    """A run whose network has independent neurons, and the files of its analysis; raises if they are there."""
    from ...analysis.neurons import layers_of
    from ...tasks.results import Results, results_folder
    from ...tasks.runs import open_run

    run = open_run(options.run)
    results = Results(results_folder(options.run, options.out), name, overwrite=options.overwrite)
    try:
        layers_of(run.best[0])
    except ValueError as error:
        raise ValueError(f"run: {options.run}: {error}") from None
    return run, results
