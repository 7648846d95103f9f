"""`indrnn report`: runs of one task as small files, a figure and a table; or runs of any task in one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..system import load_torch
from .main import UsageError, say
from .parse import Parser


@dataclass
class ReportOptions:
    """Collect runs of one task in a folder: a small JSON file per run and a figure of all; or with --html, one page.

    Runs that differ only in their seeds form one row, with mean, standard deviation and number.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, finished or not."""
    out: Path | None = None
    """Output folder; None for results/TASK, such as results/adding. Runs already there are plotted too."""
    overwrite: bool = False
    """Replace the figure and the files of the same runs, or the page."""
    html: Path | None = None
    """Instead of collecting: write one HTML page that compares the runs, of any tasks, to this file."""
    full: bool = False
    """Predictions for all test data, and gradients over ten batches instead of one, with --html; takes minutes."""
    data_dir: Path | None = None
    """Data folder, with --html; None for INDRNN_DATA or, if unset, the user's cache. Nothing is downloaded."""


def report(arguments: list[str]) -> int:
    """Gather runs into a table or a page."""
    options: ReportOptions = Parser("report", ReportOptions)(arguments)
    load_torch()
    if options.html is not None:
        return _page(options)
    from ..analysis import runs as summaries
    from ..tasks.runs import runs_in

    runs = []
    for path in options.runs:
        members = runs_in(path)
        if members:
            say(f"{path} is an ensemble: the rows are of its {len(members)} networks, its own figures in scores.json")
        runs += members or [path]
    if not runs:
        raise UsageError("runs must be the folders of runs, got none")
    tables = {table.name: table for table in map(summaries.table_of_run, reversed(runs))}  # that of the first run
    if len(tables) != 1:
        raise UsageError(f"runs must be of one task, got {', '.join(tables)}")
    (table,) = tables.values()
    out = options.out or Path("results") / table.name
    say(summaries.gather(table, runs, out, overwrite=options.overwrite))
    return 0


def _page(options: ReportOptions) -> int:
    from ..analysis.html import check_page, write_page
    from ..analysis.report import page_of
    from ..analysis.reported import read_run
    from ..figures import need_matplotlib
    from ..tasks.runs import distinct

    assert options.html is not None
    if not options.runs:
        raise UsageError("runs must be the folders of runs, got none")
    check_page(options.html, overwrite=options.overwrite)
    need_matplotlib()
    names = distinct([run.resolve() for run in options.runs])
    reported = [
        read_run(run, name, full=options.full, data_dir=options.data_dir)
        for run, name in zip(options.runs, names, strict=True)
    ]
    path = write_page(options.html, page_of(reported), overwrite=options.overwrite)
    say(f"{path}: {path.stat().st_size / 1e6:.2f} MB, to be opened in a browser")
    return 0
