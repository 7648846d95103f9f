"""`hold_out`: the split of series, for validation and for test."""

from __future__ import annotations

import numpy as np

from .collection import Array


def hold_out(
    count: int,
    share: float,
    *,
    classes: Array | None = None,
    groups: Array | None = None,
    seed: int = 0,
    expected: bool = False,
) -> Array:
    """Mask of the series to hold out, (n,): whole groups if there are any, else a share of each class.

    Args:
        count: number of series.
        share: fraction to hold out; 0 for none. One series or group is left at least, of each class.
        classes: classes of the series, (n,); None to ignore them.
        groups: groups of the series, (n,); `classes` is then ignored.
        seed: seed of the random choice.
        expected: hold out this share of a class on average, rounded up or down at random, instead of the nearest number
            of series, at least one.
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share to hold out must be a number from 0 to less than 1, got {share!r}")
    held = np.zeros(count, dtype=bool)
    if not share:
        return held
    draw = np.random.default_rng(seed % 2**63)
    if groups is not None:
        names = np.unique(groups)
        if len(names) < 2:
            raise ValueError(f"group must have at least two values to hold one of them out, got one, {names[0]!r}")
        return np.asarray(np.isin(groups, draw.permutation(names)[: _nearest(share, len(names))]), dtype=bool)
    classes = np.zeros(count) if classes is None else classes
    for name in np.unique(classes):
        members = np.flatnonzero(classes == name)
        number = _nearest(share, len(members))
        if expected:
            wanted = share * len(members)
            number = min(len(members) - 1, int(wanted) + int(draw.random() < wanted - int(wanted)))
        held[draw.permutation(members)[:number]] = True
    return held


def _nearest(share: float, count: int) -> int:
    return min(count - 1, max(1, round(share * count)))
