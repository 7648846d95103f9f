"""Results of an analysis in a folder: NAME.json, NAME.md and NAME.png."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..figures import need_matplotlib, save_figure
from ..files import write_atomically
from ..training.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def results_folder(run: Path, out: Path | None = None) -> Path:
    """The output folder of an analysis: `out`, or results/insight/NAME for a run called NAME."""
    return out or Path("results/insight") / run.resolve().name


class Results:
    """The files of one analysis, named after it; raises if they are there already and may not be replaced."""

    def __init__(self, folder: Path, name: str, *, overwrite: bool = False) -> None:
        self.folder, self.name = folder, name
        there = [path.name for path in map(self.path, ("json", "md", "png")) if path.exists()]
        if there and not overwrite:
            raise ValueError(
                f"out: {folder} holds {', '.join(there)} already; replace them with overwrite (--overwrite)"
            )

    def path(self, suffix: str) -> Path:
        """The file with this suffix."""
        return self.folder / f"{self.name}.{suffix}"

    def prepare(self) -> None:
        """Create the folder and check that all can be written, before any work is done."""
        need_matplotlib()
        RunFolder(self.folder).prepare()

    def write(self, numbers: Any, figure: Figure, table: str = "") -> str:
        """Write numbers as JSON, a figure as PNG and a table, if any, as Markdown; returns the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path("json"), (json.dumps(numbers, ensure_ascii=False) + "\n").encode())
        save_figure(figure, self.path("png"))
        if table:
            write_atomically(self.path("md"), (table + "\n").encode())
        return table

    @property
    def drawn(self) -> str:
        """Line that names the figure."""
        return f"drawn in {self.path('png')}"
