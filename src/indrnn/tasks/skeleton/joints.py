"""Skeletons, as joints, bones and the lines of geometric features; and the options by which they are sampled."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from ...checks import check_count, check_fraction

Pair = tuple[int, int]
Feature = Literal["coordinates", "relative", "differences", "velocities", "bones", "distances"]
FEATURES: tuple[str, ...] = get_args(Feature)


@dataclass(frozen=True)
class Joints:
    """The joints of a skeleton, numbered from 0.

    A file of joints is a JSON object with these fields; only `count` is required.
    """

    count: int
    """Number of joints."""
    centre: int = 0
    """Joint that stands for the body's place, the hip's centre say."""
    bones: tuple[Pair, ...] = ()
    """Pairs of connected joints: what pictures draw, and bone vectors go along."""
    lines: tuple[Pair, ...] = ()
    """Pairs of joints whose lines the distances of all other joints are measured to."""
    up: Pair | None = None
    """Pair of joints of which the second is above the first, as along the spine."""
    across: Pair | None = None
    """Pair of joints along the camera's x axis for a body that faces it, as the hips."""

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise ValueError(f"count must be a whole number of at least 1, got {self.count!r}")
        if type(self.centre) is not int or self.centre not in range(self.count):
            raise ValueError(f"centre must be one of the joints 0 to {self.count - 1}, got {self.centre!r}")
        for name in ("bones", "lines"):
            pairs = getattr(self, name)
            if not isinstance(pairs, (list, tuple)):
                raise ValueError(f"{name} must be a list of pairs of joints, got {pairs!r}")
            object.__setattr__(self, name, tuple(self._pair(name, pair) for pair in pairs))
        for name in ("up", "across"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._pair(name, getattr(self, name)))

    def _pair(self, name: str, value: Any) -> Pair:
        pair = list(value) if isinstance(value, (list, tuple)) else []
        joints = {joint for joint in pair if type(joint) is int and joint in range(self.count)}
        if len(pair) != 2 or len(joints) != 2:
            raise ValueError(f"{name} must be of pairs of two of the joints 0 to {self.count - 1}, got {value!r}")
        return pair[0], pair[1]

    @property
    def distances(self) -> tuple[Pair, ...]:
        """The distances that are measured: pairs of a line's index and a joint that is not one of its two."""
        lines = enumerate(self.lines)
        return tuple((number, joint) for number, line in lines for joint in range(self.count) if joint not in line)


def lines_of(bones: tuple[Pair, ...], ends: tuple[int, ...]) -> tuple[Pair, ...]:
    """The lines of a skeleton's geometric features, whose bones form a tree.

    Every bone; from each end of the skeleton (head, hands, feet) to the joint after the next; between every two ends.
    """
    neighbours: dict[int, list[int]] = {}
    for one, two in bones:
        neighbours.setdefault(one, []).append(two)
        neighbours.setdefault(two, []).append(one)

    def inwards(joint: int, before: int | None = None) -> int:
        """The next joint: where a hand has finger tips too, the one that leads on."""
        return max((j for j in neighbours[joint] if j != before), key=lambda j: len(neighbours[j]))

    return (*bones, *((end, inwards(inwards(end), end)) for end in ends), *combinations(ends, 2))


def _bones(*chains: tuple[int, ...]) -> tuple[Pair, ...]:
    return tuple(bone for chain in chains for bone in pairwise(chain))


_NTU_BONES = _bones(
    (0, 1, 20, 2, 3),  # spine base, middle, shoulder, neck, head
    (20, 4, 5, 6, 7, 21),  # left shoulder, elbow, wrist, hand, its tip
    (20, 8, 9, 10, 11, 23),
    *((7, 22), (11, 24)),  # thumbs
    *((0, 12, 13, 14, 15), (0, 16, 17, 18, 19)),  # left hip, knee, ankle, foot; right ones
)
NTU = Joints(25, 0, _NTU_BONES, lines_of(_NTU_BONES, (3, 7, 11, 15, 19)), up=(0, 20), across=(12, 16))
"""Joints of NTU RGB+D, by Kinect's second version: 39 lines, 897 distances."""

# Hip centre, spine, shoulder centre, head; the others likewise, without tips and thumbs
_KINECT_BONES = _bones((3, 2, 1, 0), (1, 4, 5, 6, 7), (1, 8, 9, 10, 11), (3, 12, 13, 14, 15), (3, 16, 17, 18, 19))
KINECT = Joints(20, 3, _KINECT_BONES, lines_of(_KINECT_BONES, (0, 7, 11, 15, 19)), up=(3, 1), across=(12, 16))
"""Joints of Kinect's first version, in the order of UTD-MHAD: 34 lines, 612 distances."""


def joints_of(count: int, path: Path | None = None) -> Joints:
    """Joints for recordings with `count` of them: from a file, else known ones, else without bones and lines."""
    if path is None:
        return {25: NTU, 20: KINECT}.get(count, Joints(count))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"joints: {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"joints: {path} must be a file of JSON: {error}") from None
    names = [field.name for field in fields(Joints)]
    if not isinstance(content, dict) or "count" not in content or not content.keys() <= set(names):
        raise ValueError(f"joints: {path} must be an object with count, and of {', '.join(names[1:])} what there is")
    try:
        joints = Joints(**content)
    except ValueError as error:
        raise ValueError(f"joints: {path}: {error}") from None
    if joints.count != count:
        raise ValueError(f"joints: {path} has {joints.count} joints, and the recordings have {count}")
    return joints


@dataclass(frozen=True)
class Sampling:
    """Sampling of recordings: frames, features and data augmentation."""

    frames: int = 20
    """Frames per sample: the recording is divided into as many equal parts, and one frame drawn from each."""
    shortest: int | None = None
    """Minimum frames per sample, if each training batch draws the number, up to `longest`, in place of `frames`."""
    longest: int | None = None
    """Maximum frames per sample; see `shortest`."""
    features: tuple[Feature, ...] = ("coordinates",)
    """Input features. coordinates; relative: from the body's centre in each frame; differences: between frames;
    velocities: differences times the number of frames; bones: as vectors; distances: from joints to lines of joints."""
    align: bool = False
    """Rotate each recording so that its main body stands upright in its first frame and faces the camera."""
    resize: bool = False
    """Scale bodies to one size, by the mean bone length of the main body in the first frame."""
    turn: float = 0.0
    """Data augmentation: maximum random rotation about the vertical axis, in degrees either way."""
    tilt: float = 0.0
    """Data augmentation: maximum random rotation about each of the other two axes, in degrees either way."""
    scale: float = 0.0
    """Data augmentation: random scaling of sizes by a factor in 1 ± scale."""
    hide: float = 0.0
    """Data augmentation: probability that a joint is hidden (set to the origin) in all frames of a sample."""
    swing: float = 0.0
    """Data augmentation: random scaling of the movement about the mean pose by a factor in 1 ± swing."""
    draws: int = 20
    """Samples per recording at test, whose log-probabilities are averaged."""
    validation_draws: int = 5
    """Samples per recording in evaluations during training, averaged likewise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        for name in ("frames", "draws", "validation_draws"):
            check_count(name, getattr(self, name))
        if (self.shortest is None) != (self.longest is None):
            raise ValueError(f"shortest and longest must be given together, got {self.shortest!r} and {self.longest!r}")
        if self.shortest is not None and self.longest is not None:
            check_count("shortest", self.shortest)
            check_count("longest", self.longest, least=self.shortest)
        if not self.features or not set(self.features) <= set(FEATURES):
            raise ValueError(f"features must be some of {', '.join(FEATURES)}, got {self.features!r}")
        if len(set(self.features)) < len(self.features):
            raise ValueError(f"features must be named once each, got {self.features!r}")
        for name in ("turn", "tilt"):
            if not 0 <= getattr(self, name) <= 180:
                raise ValueError(f"{name} must be degrees from 0 to 180, got {getattr(self, name)!r}")
        for name in ("scale", "hide", "swing"):
            check_fraction(name, getattr(self, name))

    def check(self, joints: Joints) -> None:
        """Raise for options that these joints do not support."""
        needs = {
            "features: distances need the lines": "distances" in self.features and not joints.lines,
            "features: bones need the bones": "bones" in self.features and not joints.bones,
            "align needs up and across": self.align and None in (joints.up, joints.across),
            "resize needs the bones": self.resize and not joints.bones,
        }
        for need, lacking in needs.items():
            if lacking:
                raise ValueError(f"{need} of the joints; give a file of them (--joints)")


_SUFFIXES = {"relative": ", from the centre", "differences": ", change", "velocities": ", velocity"}


def names_of(features: tuple[Feature, ...], joints: Joints, bodies: int) -> list[str]:
    """The name of each number in a frame; joints, bones, lines and bodies are numbered from 1."""
    names = []
    for feature in features:
        if feature == "distances":
            of_body = [f"joint {joint + 1} to line {line + 1}" for line, joint in joints.distances]
        else:
            thing, count = ("bone", len(joints.bones)) if feature == "bones" else ("joint", joints.count)
            suffix = _SUFFIXES.get(feature, "")
            of_body = [f"{thing} {number + 1} {axis}{suffix}" for number in range(count) for axis in "xyz"]
        names += [f"{name}, body {body + 1}" if bodies > 1 else name for body in range(bodies) for name in of_body]
    return names
