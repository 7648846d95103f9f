"""Tracking of bodies: the same person in the same slot over time, two at most, without ghosts (false detections)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from .parser import JOINTS, Skeletons

SLOTS = 2
REACH = 0.5
"""Metres: the most that the joints of a body move, in the mean, from a frame to the next that it is seen in."""
SHORTEST = 12
"""Frames: a body that is seen in fewer is a ghost."""
FLAT, FLAT_SHARE = 0.8, 0.7
"""A body wider than this share of its height, in at least this share of its frames, is a ghost: a chair, say."""

Track = NDArray[np.int64]
"""One body over time: its places among all bodies of a file, in order of time."""


@dataclass(frozen=True)
class Sequence:
    """The bodies of a recording.

    Args:
        frames: (T, 2, 25, 3) float32, the body that moves most in the first slot; zero where there is none.
        ids: (2,) int64, Kinect's first id of the body in each slot; 0 for none.
    """

    frames: NDArray[np.float32]
    ids: NDArray[np.int64]


def arrange(skeletons: Skeletons) -> Sequence:
    """Keep each body in one slot over time.

    1. Frames without a body are dropped; a body whose joints are all at the origin does not count.
    2. Bodies of successive frames are matched by position, with the least sum of distances. Kinect's ids, which change
       and swap, are not used. A body that would move by `REACH` or more is not matched.
    3. A body that reappears after a gap is matched with the nearest of those that disappeared, if it is nearer than
       `REACH` or has the same id.
    4. Ghosts are dropped: bodies that are seen too briefly, then those that are too flat. A rule that would drop all
       bodies is not applied.
    5. The rest are ranked by motion, the sum over time of squared distances from the mean posture. In this order, each
       is put into the first of two slots that is free in all of its frames; if neither is free, it is dropped.
    6. Frames in which both slots are empty are dropped.

    Raises:
        ValueError: if no frame has a body.
    """
    seen = skeletons.joints.any((1, 2))
    if not seen.any():
        raise ValueError(f"none of its {len(skeletons.counts)} frames has a body")
    joints, body_ids = skeletons.joints[seen], skeletons.ids[seen]
    frame = np.repeat(np.arange(len(skeletons.counts)), skeletons.counts)[seen]
    _, at, counts = np.unique(frame, return_inverse=True, return_counts=True)  # at: the frame of each body
    tracks = _joined(_links(joints, counts, at), joints, body_ids, at)
    tracks = [track for track in tracks if len(track) >= SHORTEST] or tracks
    tracks = [track for track in tracks if not _is_flat(joints[track])] or tracks
    tracks.sort(key=lambda track: -_motion(joints[track]))
    frames, ids = np.zeros((len(counts), SLOTS, JOINTS, 3), dtype=np.float32), np.zeros(SLOTS, dtype=np.int64)
    used = np.zeros((SLOTS, len(counts)), dtype=bool)
    for track in tracks:
        slot = next((slot for slot in range(SLOTS) if not used[slot, at[track]].any()), None)
        if slot is not None:
            ids[slot] = ids[slot] if used[slot].any() else body_ids[track[0]]
            frames[at[track], slot] = joints[track]
            used[slot, at[track]] = True
    return Sequence(frames[used.any(0)], ids)


def _links(joints: NDArray[np.float32], counts: NDArray[np.int64], at: NDArray[np.int64]) -> list[Track]:
    """Tracks without gaps: bodies of successive frames that are matched."""
    T, most = len(counts), int(counts.max())
    first = np.cumsum(counts) - counts
    padded = np.zeros((T, most, JOINTS, 3), dtype=np.float32)
    padded[at, np.arange(len(joints)) - first[at]] = joints
    there = np.arange(most) < counts[:, None]
    apart = _distance(padded[:-1, :, None], padded[1:, None])  # (T - 1, most, most)
    # No body is as far as can be, so that a match with none costs as much as one that is too far.
    apart = np.where(there[:-1, :, None] & there[1:, None], np.minimum(apart, REACH), REACH)
    orders = _orders(most)
    after = orders[apart[:, np.arange(most), orders].sum(2).argmin(1)]  # (T - 1, most), from the sums (T - 1, orders)
    near = np.take_along_axis(apart, after[:, :, None], 2)[:, :, 0] < REACH
    track_of = np.arange(len(joints))  # the track of each body, by the first body in it
    t, i = np.nonzero(near)  # in order of time
    for before, behind in zip((first[t] + i).tolist(), (first[t + 1] + after[t, i]).tolist(), strict=True):
        track_of[behind] = track_of[before]
    return [np.flatnonzero(track_of == track) for track in np.unique(track_of)]


@functools.cache
def _orders(count: int) -> NDArray[np.int64]:
    """All permutations of `count` numbers, (count!, count)."""
    return np.array(list(permutations(range(count))))


def _joined(
    tracks: list[Track], joints: NDArray[np.float32], ids: NDArray[np.int64], at: NDArray[np.int64]
) -> list[Track]:
    """Tracks with gaps: each that starts is joined to one that ended before, the nearest pairs first."""
    begun: list[list[Track]] = []  # the parts of each
    for start in sorted({int(at[track[0]]) for track in tracks}):
        new = [track for track in tracks if at[track[0]] == start]
        pairs = []
        for i, track in enumerate(new):
            for k, parts in enumerate(begun):
                last, body = parts[-1][-1], track[0]
                distance = float(_distance(joints[last], joints[body]))
                if at[last] < start and (distance < REACH or ids[last] == ids[body]):
                    pairs.append((distance, i, k))
        matched: dict[int, int] = {}
        for _, i, k in sorted(pairs):
            if i not in matched and k not in matched.values():
                matched[i] = k
                begun[k].append(new[i])
        begun += [[track] for i, track in enumerate(new) if i not in matched]
    return [np.concatenate(parts) for parts in begun]


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean distance between the joints of two bodies, (..., 25, 3)."""
    squares = (a - b) ** 2
    mean: NDArray[np.float32] = np.sqrt(squares[..., 0] + squares[..., 1] + squares[..., 2]).mean(-1)
    return mean


def _is_flat(joints: NDArray[np.float32]) -> bool:
    x, y = joints[:, :, 0].T.copy(), joints[:, :, 1].T.copy()  # frames side by side: five times faster than joints
    return bool((np.ptp(x, axis=0) > FLAT * np.ptp(y, axis=0)).mean() >= FLAT_SHARE)


def _motion(joints: NDArray[np.float32]) -> float:
    return float(np.square(joints - joints.mean(0)).sum(dtype=np.float64))
