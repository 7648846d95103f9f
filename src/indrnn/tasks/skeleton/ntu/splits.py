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
import torch
from numpy.typing import NDArray

from ....checks import check_fraction, check_seed
from ....training.task import generator
from ..recordings import Recordings

NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})")
"""Setup, camera, performer, replication and action, in the name of a sample."""
_MOST = {"setup": 32, "camera": 3, "performer": 106, "replication": 2, "action": 120}
_SETUPS_OF_60 = 17
_SAMPLES = {60: 56_880 - 302, 120: 114_480 - 535}
"""That there are without those whose skeletons are missing."""


@dataclass(frozen=True)
class Protocol:
    """A division of the samples into training and test.

    Args:
        actions: number of actions in the data set, 60 or 120.
        by: the field that divides the samples: performer, camera or setup.
        train: its values for training; all others are for test.
        sizes: numbers of training and test samples in the complete set, if published.
    """

    actions: int
    by: str
    train: frozenset[int]
    sizes: tuple[int, int] | None = None


class Split(NamedTuple):
    """Indices of the samples among the recordings, int64, in ascending order."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


@functools.cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((files(__package__) / "splits.json").read_text(encoding="utf-8"))
    return facts


@functools.cache
def protocols() -> dict[str, Protocol]:
    """Protocols by name: cross-subject and cross-view of 60, cross-subject and cross-setup (the paper's CV) of 120."""
    sizes = {"60-cs": (40_091, 16_487), "60-cv": (37_646, 18_932)}
    found = {}
    for name, given in _facts()["train"].items():
        ((by, train),) = given.items()
        found[name] = Protocol(int(name.partition("-")[0]), by, frozenset(train), sizes.get(name))
    return {**found, "120-cv": found["120-xset"]}


@functools.cache
def missing() -> frozenset[str]:
    """Names of samples with missing or incomplete skeletons: 302 of NTU RGB+D 60; 535 of 120, including those."""
    return frozenset(_facts()["missing"])


def parts_of(name: str) -> dict[str, int] | None:
    """Setup, camera, performer, replication and action from the name of a sample; None if the name is not valid."""
    match = NAME.fullmatch(name)
    if match is None or not name.isascii():
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
    chosen = protocols().get(protocol)
    if chosen is None:
        raise ValueError(f"protocol must be one of {', '.join(protocols())}, got {protocol!r}")
    train, test = _divided(recordings, chosen)
    lacking = _lacking(protocol, chosen, len(train), len(test))
    if len(train) < 2 or len(test) == 0:
        raise ValueError(f"{protocol}: there are {len(train):,} samples to train with and {len(test):,} to test with")
    if lacking and say is not None:
        say(f"{protocol} is not complete: {lacking:,} of {_SAMPLES[chosen.actions]:,} samples lack")
    order = torch.randperm(len(train), generator=generator(seed, "split")).numpy()
    kept = max(1, round(validation * len(train))) if validation else 0
    if kept == len(train):
        raise ValueError(f"validation must leave samples to train with, and {validation} of {len(train):,} leaves none")
    return Split(np.sort(train[order[kept:]]), np.sort(train[order[:kept]]), test)


def summary(recordings: Recordings) -> list[str]:
    """For each protocol with samples: the numbers of training, test and missing samples.

    Raises:
        ValueError: if none is missing and their numbers differ from the published ones.
    """
    lines = []
    for name, protocol in protocols().items():
        train, test = _divided(recordings, protocol)
        lacking = _lacking(name, protocol, len(train), len(test))
        all_of_them = _SAMPLES[protocol.actions]
        if name != "120-cv" and lacking < all_of_them:
            word = f"{lacking:,} of {all_of_them:,} samples lack" if lacking else "complete"
            lines.append(f"{name}: {len(train):,} train, {len(test):,} test ({word})")
    return lines


def _divided(recordings: Recordings, protocol: Protocol) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the training samples and of the test samples."""
    fields = recordings.fields
    lacking = {"name", "setup", "camera", "performer"} - set(fields)
    if lacking:
        raise ValueError(f"recordings must be those of NTU RGB+D, with the field {min(lacking)}")
    used = ~np.isin(fields["name"], list(missing()))
    if protocol.actions == 60:
        used &= fields["setup"] <= _SETUPS_OF_60
    trains = np.isin(fields[protocol.by], list(protocol.train))
    return np.flatnonzero(used & trains), np.flatnonzero(used & ~trains)


def _lacking(name: str, protocol: Protocol, train: int, test: int) -> int:
    """Number of missing samples; raises if none is missing and the numbers differ from the published ones."""
    lacking = _SAMPLES[protocol.actions] - train - test
    if lacking < 0 or (lacking == 0 and protocol.sizes not in (None, (train, test))):
        published = f"{_SAMPLES[protocol.actions]:,} in all"
        if protocol.sizes is not None:
            published = f"{protocol.sizes[0]:,} and {protocol.sizes[1]:,}"
        raise ValueError(f"{name}: {train:,} samples train and {test:,} test, and published are {published}")
    return lacking
