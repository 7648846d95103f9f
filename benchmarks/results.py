"""Results of experiments: runs in a JSON file, of which none is repeated, and pages of tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from indrnn.files import write_atomically
from indrnn.training.folder import machine

from .measure import write_json

Run = dict[str, Any]
"""Settings and numbers of a run."""


class Results:
    """Runs in NAME.json, and a page of them in NAME.md.

    Args:
        out: the folder.
        name: name of the files.
        command: the command of new runs.
        page: makes the parts of the page.
    """

    def __init__(self, out: Path, name: str, command: str, page: Callable[[list[Run]], list[str]]) -> None:
        self.out, self.name, self.command, self.page = out, name, command, page
        path = out / f"{name}.json"
        self.runs: list[Run] = json.loads(path.read_text())["runs"] if path.exists() else []

    def add(self, measure: Callable[[], Run], **settings: Any) -> None:
        """Measure a run and keep it, unless one of these settings is there."""
        if any(settings.items() <= run.items() for run in self.runs):
            return
        run = settings | measure()
        self.runs.append(run | {"command": self.command})
        write(self.out, self.name, {"runs": self.runs}, self.page(self.runs))
        print(run, flush=True)


def write(out: Path, name: str, content: dict[str, Any], page: list[str]) -> None:
    """Write NAME.json, with the machine, and NAME.md; neither is ever partial."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", content | {"machine": machine() | {"threads": torch.get_num_threads()}})
    write_atomically(out / f"{name}.md", ("\n\n".join(page) + "\n").encode())


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    columns = list(columns)
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(columns)}", *lines[1:]])


def pivot(
    runs: list[Run],
    rows: tuple[str, Iterable[str]],
    columns: tuple[str, Iterable[str]],
    cell: Callable[[list[Run]], str],
    *,
    total: tuple[str, Callable[[list[Run]], str]] | None = None,
) -> str:
    """A table of runs by two of their settings.

    Args:
        runs: the runs.
        rows: a setting, and its values in order; those that occur become rows.
        columns: likewise for columns.
        cell: makes a cell of one or more runs.
        total: name and cell of a last row, of all runs of a column; None for no such row.
    """
    down, across = ([name for name in names if any(run[key] == name for run in runs)] for key, names in (rows, columns))
    of_column = {name: [run for run in runs if run[columns[0]] == name] for name in across}
    lines = []
    for name in down:
        cells = ([run for run in some if run[rows[0]] == name] for some in of_column.values())
        lines.append([name, *(cell(some) if some else "–" for some in cells)])
    if total is not None:
        lines.append([total[0], *map(total[1], of_column.values())])
    return table([rows[0], *across], lines)
