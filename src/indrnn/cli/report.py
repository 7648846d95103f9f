"""`indrnn report`: runs of one task as small files, a figure and a table; or runs of any task in one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..system import load_torch
from .main import UsageError, say
from .parse import parse


@dataclass
class ReportOptions:
    """Collect runs of one task in a folder: a small JSON file per run and a figure of all; or with --html, one page.

    Runs that differ only in their seeds form one row, with mean, standard deviation and number.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, finished or not."""
    out: Path | None = None
    """Output folder; None for results/TASK. Runs already there are plotted too."""
    overwrite: bool = False
    """Replace the figure and the files of the same runs, or the page."""
    html: Path | None = None
    """HTML file to write instead: one page that compares the runs, of any tasks."""
    full: bool = False
    """Predictions for all test data, and gradients over ten batches instead of one, with --html; takes minutes."""
    data_dir: Path | None = None
    """Data folder, with --html; None for INDRNN_DATA or, if unset, the user's cache. Nothing is downloaded."""


def report(arguments: list[str]) -> None:
    """Gather runs into a table or a page."""
    options: ReportOptions = parse("report", ReportOptions, arguments)
    load_torch()
    if not options.runs:
        raise UsageError("runs must be the folders of runs, got none")
    say(_gather(options) if options.html is None else _write_page(options, options.html))


def _gather(options: ReportOptions) -> str:
    from ..analysis.runs import gather, table_of_run
    from ..tasks.runs import runs_in

    runs = []
    for path in options.runs:
        if members := runs_in(path):
            say(f"{path} is an ensemble: the rows are of its {len(members)} networks, its own figures in scores.json")
        runs += members or [path]
    tables = {table.name: table for table in map(table_of_run, reversed(runs))}  # that of the first run
    if len(tables) != 1:
        raise UsageError(f"runs must be of one task, got {', '.join(tables)}")
    (table,) = tables.values()
    return gather(table, runs, options.out or Path("results") / table.name, overwrite=options.overwrite)


def _write_page(options: ReportOptions, html: Path) -> str:
    from ..analysis.html import check_page, write_page
    from ..analysis.report import page_of
    from ..analysis.runs import read_run
    from ..figures import need_matplotlib
    from ..tasks.runs import distinct

    check_page(html, overwrite=options.overwrite)
    need_matplotlib()
    named = zip(options.runs, distinct([run.resolve() for run in options.runs]), strict=True)
    reported = [read_run(run, name, full=options.full, data_dir=options.data_dir) for run, name in named]
    write_page(html, page_of(reported), overwrite=options.overwrite)
    return f"{html}: {html.stat().st_size / 1e6:.2f} MB, to be opened in a browser"
