"""Options of the layers, without torch."""

from __future__ import annotations

from typing import TypedDict

EPSILON = 0.2
"""Default of `epsilon`: a long-memory neuron passes at least a fifth of a gradient over T steps (the value that the
paper's authors used for pixel-by-pixel MNIST)."""


class BoundOptions(TypedDict, total=False):
    """Options of a layer for its recurrent weights; see `RecurrentBound`."""

    gamma: float | None
    sequence_length: int | None
    epsilon: float
    lower_bound: bool
    bound: float | None
    long_memory: bool
    highest_start: float | None
