"""The published protocols of NTU RGB+D 60 and 120: training samples, test samples and excluded samples."""

from __future__ import annotations

import functools
import json
import re
from importlib.resources import files
from typing import Any

import numpy as np

from ....checks import check_choice, check_fraction, check_seed
from ...recipe import Say
from ..recordings import Recordings
from ..task import Indices, held_out

_NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})", re.ASCII)
_MOST = {"setup": 32, "camera": 3, "performer": 106, "replication": 2, "action": 120}
_PUBLISHED: dict[str, Any] = json.loads((files(__package__) / "splits.json").read_text(encoding="utf-8"))
"""Missing samples, and of each protocol the field that divides, its values for training and the sizes."""


@functools.cache
def missing() -> frozenset[str]:
    """Names of samples with missing or incomplete skeletons: 302 of NTU RGB+D 60; 535 of 120, including those."""
    return frozenset(_PUBLISHED["missing"])


def parts_of(name: str) -> dict[str, int] | None:
    """Setup, camera, performer, replication and action from the name of a sample; None if the name is not valid."""
    match = _NAME.fullmatch(name)
    parts = dict(zip(_MOST, map(int, match.groups()), strict=True)) if match else {}
    return parts if parts and all(1 <= number <= _MOST[key] for key, number in parts.items()) else None


def ntu_split(
    recordings: Recordings, protocol: str, *, validation: float = 0.05, seed: int = 0, say: Say | None = None
) -> tuple[Indices, Indices, Indices]:
    """Indices of the recordings for training, validation and test, divided as published; in ascending order.

    `recordings` are those of `indrnn prepare ntu`, of 60, 120 or both; `protocol` is 60-cs, 60-cv, 120-cs or 120-xset,
    which is also called 120-cv. Protocols of 60 leave out samples that are in 120 only; all leave out samples with
    missing skeletons. The fraction `validation` of the training samples is held out at random. `say` is called with a
    message if samples are missing.

    Raises:
        ValueError: if there are fewer than two samples for training or none for test, or if none is missing and their
            numbers differ from the published ones.
    """
    check_fraction("validation", validation)
    check_seed(seed)
    check_choice("protocol", protocol, (*_PUBLISHED["protocols"], "120-cv"))
    train, test, lack = _divided(recordings, "120-xset" if protocol == "120-cv" else protocol)
    if len(train) < 2 or len(test) == 0:
        raise ValueError(f"{protocol}: there are {len(train):,} samples to train with and {len(test):,} to test with")
    if lack and say is not None:
        say(f"{protocol} is not complete: {lack}")
    return *held_out(train, validation, seed), test


def summary(recordings: Recordings) -> list[str]:
    """For each protocol with samples, the numbers of training, test and missing samples; errors as `ntu_split`."""
    divided = {protocol: _divided(recordings, protocol) for protocol in _PUBLISHED["protocols"]}
    return [
        f"{protocol}: {len(train):,} train, {len(test):,} test ({lack or 'complete'})"
        for protocol, (train, test, lack) in divided.items()
        if len(train) or len(test)
    ]


def _divided(recordings: Recordings, protocol: str) -> tuple[Indices, Indices, str]:
    """Indices of the training and of the test samples, and how many of the published ones lack, if any do."""
    fields, published = recordings.fields, _PUBLISHED["protocols"][protocol]
    without = {"name", "setup", "camera", "performer"} - set(fields)
    if without:
        raise ValueError(f"recordings must be those of NTU RGB+D, with the field {min(without)}")
    used = ~np.isin(fields["name"], list(missing()))
    if protocol.startswith("60"):
        used &= fields["setup"] <= 17
    trains = np.isin(fields[published["by"]], published["train"])
    train, test = np.flatnonzero(used & trains), np.flatnonzero(used & ~trains)
    sizes, expected = [len(train), len(test)], published["samples"]  # to train and test, or only both together
    lacking = sum(expected) - sum(sizes)
    if lacking < 0 or (lacking == 0 and len(expected) == 2 and sizes != expected):
        numbers = " and ".join(f"{number:,}" for number in expected) + " in all" * (len(expected) == 1)
        raise ValueError(f"{protocol}: {sizes[0]:,} samples train and {sizes[1]:,} test, and published are {numbers}")
    return train, test, f"{lacking:,} of {sum(expected):,} samples lack" if lacking else ""
