"""Writes files of the exact format of NTU RGB+D's `.skeleton` files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FIRST_ID = 72057594037931101
"""Two ids that follow each other are the same number in double precision."""


@dataclass
class Body:
    """A body in a frame."""

    joints: NDArray[np.float64]
    """(25, 3)."""
    id: int = FIRST_ID


def text_of(frames: Sequence[Sequence[Body]], *, seed: int = 0, newline: str = "\n") -> bytes:
    """The content of a file: bodies by frame."""
    random = np.random.default_rng(seed)
    lines = [str(len(frames))]
    for bodies in frames:
        lines.append(str(len(bodies)))
        for body in bodies:
            lean = random.normal(size=2)
            lines.append(f"{body.id} 0 1 1 1 1 0 {lean[0]:.7g} {lean[1]:.7g} 2")
            lines.append(str(len(body.joints)))
            others = random.normal(300, 100, size=(len(body.joints), 8))
            for (x, y, z), other in zip(body.joints, others, strict=True):
                rest = " ".join(f"{value:.7g}" for value in other)
                lines.append(f"{x:.7g} {y:.7g} {z:.7g} {rest} 2")
    return newline.join([*lines, ""]).encode()


def standing(x: float = 0.0, z: float = 3.0, seed: int = 0) -> NDArray[np.float64]:
    """A body that is 1.6 m tall and 0.4 m wide, at a place in the room: (25, 3)."""
    random = np.random.default_rng(seed)
    heights, widths = np.linspace(-0.8, 0.8, 25), random.uniform(-0.2, 0.2, 25)
    return np.stack([x + widths, heights, z + random.uniform(-0.1, 0.1, 25)], axis=1)


def moving(length: int, x: float = 0.0, by: float = 0.01, seed: int = 0) -> NDArray[np.float64]:
    """A body whose joints go to and fro by so many metres: (length, 25, 3)."""
    random = np.random.default_rng(seed + 1)
    phase = random.uniform(0, 2 * np.pi, (25, 3))
    return standing(x, seed=seed) + by * np.sin(np.arange(length)[:, None, None] / 5 + phase)
