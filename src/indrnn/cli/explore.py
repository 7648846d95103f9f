"""`indrnn explore`: an HTML page to inspect a run's network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..system import load_torch
from .main import say
from .parse import parse


@dataclass
class ExploreOptions:
    """Write an HTML page to inspect a run's network neuron by neuron, and to try it on digits or numbers.

    A single HTML file that works offline in any browser: it contains the run's weights, and runs the network.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Output HTML file; None for explore-NAME.html, for a run called NAME."""
    data_dir: Path | None = None
    """Data folder, for samples; None for INDRNN_DATA or, if unset, the user's cache. Nothing is downloaded."""
    overwrite: bool = False
    """Replace an existing file."""


def explore(arguments: list[str]) -> None:
    """Write the explorer's page of a run."""
    options: ExploreOptions = parse("explore", ExploreOptions, arguments)
    load_torch()
    from ..analysis import explorer
    from ..analysis.html import check_page
    from ..tasks.runs import open_run

    name, overwrite = options.run.resolve().name, options.overwrite
    out = options.out or Path(f"explore-{name}.html")
    check_page(out, overwrite=overwrite)
    run = open_run(options.run, saved=True)
    model, which = run.best
    explorer.network_of(model)  # or raises, before data is read
    samples = explorer.samples_of(run, options.data_dir)
    about, facts = explorer.facts_of(run, model, which)
    explorer.explore(samples.model or model, samples, out, title=name, about=about, facts=facts, overwrite=overwrite)
    if samples.note:
        say(samples.note)
    say(f"{out}: {out.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
