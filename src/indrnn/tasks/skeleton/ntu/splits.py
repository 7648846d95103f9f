"""The published protocols of NTU RGB+D 60 and 120: training samples, test samples and excluded samples."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from ....checks import check_choice, check_fraction, check_seed
from ..recordings import Recordings
from ..task import Indices, held_out

_NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})", re.ASCII)
_MOST = {"setup": 32, "camera": 3, "performer": 106, "replication": 2, "action": 120}
_SETUPS_OF_60 = 17
_SAMPLES = {60: 56_880 - 302, 120: 114_480 - 535}
"""Number of samples of each data set without those whose skeletons are missing."""
_SIZES = {"60-cs": (40_091, 16_487), "60-cv": (37_646, 18_932)}
"""Published numbers of training and test samples."""


@dataclass(frozen=True)
class Protocol:
    """A division of the samples into training and test.

    Args:
        name: its name.
        actions: number of actions in the data set, 60 or 120.
        by: the field that divides the samples: performer, camera or setup.
        train: its values for training; all others are for test.
    """

    name: str
    actions: int
    by: str
    train: frozenset[int]

    def divide(self, recordings: Recordings) -> tuple[Indices, Indices, int]:
        """Indices of the training and of the test samples, and the number of missing samples.

        Raises:
            ValueError: if the recordings are of another set, or none is missing and the numbers are not the published.
        """
        fields = recordings.fields
        without = {"name", "setup", "camera", "performer"} - set(fields)
        if without:
            raise ValueError(f"recordings must be those of NTU RGB+D, with the field {min(without)}")
        used = ~np.isin(fields["name"], list(missing()))
        if self.actions == 60:
            used &= fields["setup"] <= _SETUPS_OF_60
        trains = np.isin(fields[self.by], list(self.train))
        train, test = np.flatnonzero(used & trains), np.flatnonzero(used & ~trains)
        sizes, total = (len(train), len(test)), _SAMPLES[self.actions]
        if sum(sizes) > total or (sum(sizes) == total and sizes != _SIZES.get(self.name, sizes)):
            published = "{:,} and {:,}".format(*_SIZES[self.name]) if self.name in _SIZES else f"{total:,} in all"
            raise ValueError(
                f"{self.name}: {sizes[0]:,} samples train and {sizes[1]:,} test, and published are {published}"
            )
        return train, test, total - sum(sizes)


class Split(NamedTuple):
    """Indices of the samples among the recordings, int64, in ascending order."""

    train: Indices
    validation: Indices
    test: Indices


@functools.cache
def _published() -> dict[str, Any]:
    published: dict[str, Any] = json.loads((files(__package__) / "splits.json").read_text(encoding="utf-8"))
    return published


@functools.cache
def protocols() -> dict[str, Protocol]:
    """Protocols by name: cross-subject and cross-view of 60, cross-subject and cross-setup (the paper's CV) of 120."""
    by_name = {
        name: Protocol(name, int(name.partition("-")[0]), by, frozenset(values))
        for name, train in _published()["train"].items()
        for by, values in train.items()
    }
    return {**by_name, "120-cv": by_name["120-xset"]}


@functools.cache
def missing() -> frozenset[str]:
    """Names of samples with missing or incomplete skeletons: 302 of NTU RGB+D 60; 535 of 120, including those."""
    return frozenset(_published()["missing"])


def parts_of(name: str) -> dict[str, int] | None:
    """Setup, camera, performer, replication and action from the name of a sample; None if the name is not valid."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    parts = dict(zip(_MOST, map(int, match.groups()), strict=True))
    return parts if all(1 <= parts[key] <= most for key, most in _MOST.items()) else None


def ntu_split(
    recordings: Recordings,
    protocol: str,
    *,
    validation: float = 0.05,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Split:
    """Divide the samples of NTU RGB+D as published.

    Args:
        recordings: the output of `indrnn prepare ntu`, of 60, 120 or both. Protocols of 60 leave out samples that are
            in 120 only; all protocols leave out samples with missing skeletons.
        protocol: 60-cs, 60-cv, 120-cs or 120-xset, which is also called 120-cv.
        validation: fraction of the training samples held out for validation, at random.
        seed: seed of this choice.
        say: called with a message if samples are missing; None for no message.

    Raises:
        ValueError: if there are fewer than two samples for training or none for test, or if none is missing and their
            numbers differ from the published ones.
    """
    check_fraction("validation", validation)
    check_seed(seed)
    check_choice("protocol", protocol, tuple(protocols()))
    chosen = protocols()[protocol]
    train, test, lacking = chosen.divide(recordings)
    if len(train) < 2 or len(test) == 0:
        raise ValueError(f"{protocol}: there are {len(train):,} samples to train with and {len(test):,} to test with")
    if lacking and say is not None:
        say(f"{protocol} is not complete: {lacking:,} of {_SAMPLES[chosen.actions]:,} samples lack")
    return Split(*held_out(train, validation, seed), test)


def summary(recordings: Recordings) -> list[str]:
    """For each protocol with samples: the numbers of training, test and missing samples.

    Raises:
        ValueError: if none is missing and their numbers differ from the published ones.
    """
    lines = []
    for protocol in dict.fromkeys(protocols().values()):
        train, test, lacking = protocol.divide(recordings)
        total = _SAMPLES[protocol.actions]
        if lacking < total:
            word = f"{lacking:,} of {total:,} samples lack" if lacking else "complete"
            lines.append(f"{protocol.name}: {len(train):,} train, {len(test):,} test ({word})")
    return lines
