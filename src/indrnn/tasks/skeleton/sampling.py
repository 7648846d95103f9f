"""Options of skeleton samples: frames, features and data augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...checks import check_count, check_fraction
from .joints import Joints

Feature = Literal["coordinates", "relative", "differences", "velocities", "bones", "distances"]
FEATURES: tuple[str, ...] = get_args(Feature)


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
