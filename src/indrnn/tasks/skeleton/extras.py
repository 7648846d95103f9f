"""Commands that only skeletons have: `indrnn prepare ntu` and `indrnn analyse skeletons`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from ..recipe import Extra

with contextlib.suppress(ImportError):  # without a command line
    from tyro.conf import Positional


@dataclass
class NtuOptions:
    """Convert the .skeleton files of NTU RGB+D 60, 120 or both to the arrays that training reads.

    After an interruption, the same command resumes. Samples with missing skeletons are excluded, by the published
    lists. Broken files are reported, counted and excluded.
    """

    folder: Positional[list[Path]]
    """Folders of .skeleton files, nested or not, or the published .zip archives, or folders of these."""
    out: Path
    """Output folder of frames.npy, index.csv and prepared.json.
    Needs disk space for the arrays twice, and once more with --overwrite."""
    strict: bool = False
    """Stop at the first broken file."""
    workers: int | None = None
    """Number of processes; None for the number of cores."""
    overwrite: bool = False
    """Replace existing prepared arrays."""


@dataclass
class SkeletonsOptions:
    """Plot samples of the recordings that a run was trained on, and its confusion matrix on the test set."""

    run: Positional[Path]
    """Folder of a run of a skeleton recipe."""
    out: Path = Path("results/skeleton")
    """Output folder of samples.png, confusion.json and confusion.png."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""
    overwrite: bool = False
    """Replace existing files."""


_HERE = "indrnn.tasks.skeleton"
EXTRAS = (
    Extra(
        "prepare",
        "ntu",
        NtuOptions,
        f"{_HERE}.ntu.prepare:run",
        "convert the recordings of NTU RGB+D to the arrays that training reads",
    ),
    Extra(
        "analyse",
        "skeletons",
        SkeletonsOptions,
        f"{_HERE}.pictures:analyse",
        "plot sampled skeletons, and the confusion matrix of a run",
    ),
)
