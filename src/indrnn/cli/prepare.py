"""The command `indrnn prepare`: published recordings to the arrays that training reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from .main import UsageError, say
from .parse import Parser

SHOWN = 20
"""Broken files that are named on the screen; all are in the manifest."""


@dataclass
class NtuOptions:
    """Convert the .skeleton files of NTU RGB+D 60, 120 or both to the arrays that training reads.

    After an interruption, the same command resumes. Samples with missing skeletons are excluded, by the published
    lists. Broken files are reported, counted and excluded.
    """

    folder: tyro.conf.Positional[list[Path]]
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


NTU = Parser("prepare ntu", NtuOptions)
SETS = {"ntu": NTU}


def prepare(arguments: list[str]) -> int:
    """Turn recordings into arrays."""
    if arguments[:1] in (["--help"], ["-h"]):
        say("usage: indrnn prepare ntu FOLDER ... --out DIR [OPTIONS]\n")
        say("Convert recordings to the arrays that training reads. `indrnn prepare ntu --help` shows the options.")
        return 0
    if not arguments or arguments[0] not in SETS:
        given = f", got {arguments[0]}" if arguments else ""
        raise UsageError(f"prepare needs one of {', '.join(SETS)}{given}")
    options = NTU(arguments[1:])
    if not options.folder:
        raise UsageError("prepare ntu needs a folder of .skeleton files or a .zip of them")
    from ..tasks.skeleton.ntu.prepare import prepare as prepare_ntu
    from ..tasks.skeleton.ntu.splits import summary
    from ..tasks.skeleton.recordings import MANIFEST, read_prepared

    done = prepare_ntu(
        options.folder,
        options.out,
        strict=options.strict,
        workers=options.workers,
        overwrite=options.overwrite,
    )
    if not done.new:
        say(f"{options.out} is prepared from these files already; --overwrite does it again")
    for path, word in list(done.broken.items())[:SHOWN]:
        say(f"broken: {path}: {word}")
    if len(done.broken) > SHOWN:
        say(f"and {len(done.broken) - SHOWN:,} more, in {options.out / MANIFEST}")
    say(
        f"{options.out}: {done.samples:,} samples of {done.frames:,} frames; left out: {done.left_out:,} with missing "
        f"skeletons, {len(done.broken):,} broken"
    )
    for line in summary(read_prepared(options.out)):
        say(line)
    return 0
