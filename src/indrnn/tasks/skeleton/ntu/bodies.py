"""Bodies in NTU RGB+D's `.skeleton` files: parsed, and tracked into two slots, without ghosts (false detections)."""

from __future__ import annotations

import contextlib
import re
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

JOINTS, SLOTS = 25, 2
MOST_BODIES = 6
"""Number of bodies that a Kinect tracks at once."""
_NOT_TEXT = re.compile(rb"[^\t\n\r -~]")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LARGEST = float(np.finfo(np.float32).max)
REACH = 0.5
"""Largest mean movement of a body's joints from a frame to the next that it is seen in, in metres."""
SHORTEST = 12
"""Least number of frames of a body; one that is seen in fewer is a ghost."""
FLAT, FLAT_SHARE = 0.8, 0.7
"""Share of its height that a ghost, such as a chair, is wider than, in at least this share of its frames."""

Numbers = NDArray[np.int64]
Joints = NDArray[np.float32]
Skeletons = tuple[Numbers, Numbers, Joints]
"""Number of bodies in each frame, (frames,); Kinect's id of each body, frame after frame, (bodies,); and its joints, x,
y and z in metres, (bodies, 25, 3)."""
Track = Numbers  # one body over time: its places among all bodies of a file, in order of time


def parse(text: bytes) -> Skeletons:
    """Read the content of a `.skeleton` file; what is not valid is a `ValueError` that names the line."""
    if binary := _NOT_TEXT.search(text):
        line = text.count(b"\n", 0, binary.start()) + 1
        raise ValueError(f"line {line}: the byte 0x{binary[0][0]:02x} is not text")
    split = ((number, line.split()) for number, line in enumerate(text.split(b"\n"), 1))
    lines = ((number, words) for number, words in split if words)

    def read(what: str, fields: int) -> tuple[int, list[bytes]]:
        number, words = next(lines, (0, []))
        if not words:
            raise ValueError(f"it breaks off: {what} was expected")
        if len(words) != fields:
            raise ValueError(f"line {number}: expected {fields} field{'s' * (fields > 1)} for {what}, got {len(words)}")
        return number, words

    def count(what: str, values: range, allowed: str = "a whole number") -> int:
        number, words = read(f"the number of {what}", 1)
        return _whole(number, f"the number of {what}", words[0], values, allowed)

    counts, ids = [], []
    numbers: list[int] = []  # of the lines of joints
    positions: list[bytes] = []  # words of these lines
    states: dict[bytes, int] = {}  # tracking states, with a line of each
    for _ in range(count("frames", range(10**18))):
        counts.append(count("bodies", range(MOST_BODIES + 1), f"at most {MOST_BODIES}"))
        for _ in range(counts[-1]):
            number, body = read("a body", 10)
            ids.append(_whole(number, "bodyID", body[0], range(2**63)))
            count("joints", range(JOINTS, JOINTS + 1), f"{JOINTS}")
            for _ in range(JOINTS):
                number, joint = read("a joint", 12)
                numbers.append(number)
                positions += joint[:3]
                states.setdefault(joint[11], number)
    for number, _ in lines:
        raise ValueError(f"line {number}: more than the frames that the file says it has")
    for state, number in states.items():
        _whole(number, "trackingState", state, range(256))
    return np.array(counts, dtype=np.int64), np.array(ids, dtype=np.int64), _coordinates(numbers, positions)


def _whole(number: int, what: str, word: bytes, values: range, allowed: str = "a whole number") -> int:
    if word.isdigit() and len(word) < 20 and int(word) in values:
        return int(word)
    raise _refused(number, f"{what} must be {allowed}", word)


def _coordinates(numbers: list[int], words: list[bytes]) -> Joints:
    """Three words in each of these lines, as numbers."""
    with contextlib.suppress(ValueError):
        values = np.array(list(map(float, words)), dtype=np.float64)
        if b"_" not in b"".join(words) and (np.abs(values) <= _LARGEST).all():  # Python takes 1_0 for a number
            return values.astype(np.float32).reshape(-1, JOINTS, 3)
    at = [bool(_NUMBER.fullmatch(word)) and abs(float(word)) <= _LARGEST for word in words].index(False)
    raise _refused(numbers[at // 3], "a joint's position must be three finite numbers", words[at])


def _refused(number: int, expected: str, word: bytes) -> ValueError:
    return ValueError(f"line {number}: {expected}, got {word[:40].decode() + '…' * (len(word) > 40)!r}")


def arrange(skeletons: Skeletons) -> tuple[Joints, Numbers]:
    """Keep each body in one slot over time, by the six rules of docs/skeleton-ntu.md.

    Returns frames (T, 2, 25, 3), the body that moves most in the first slot, zero where there is none; and Kinect's
    first id of the body in each slot, (2,), 0 for none.
    """
    counts, ids, joints = skeletons
    seen = joints.any((1, 2))  # rule 1
    if not seen.any():
        raise ValueError(f"none of its {len(counts)} frames has a body")
    frame = np.repeat(np.arange(len(counts)), counts)[seen]
    _, at, counts = np.unique(frame, return_inverse=True, return_counts=True)  # at: the frame of each body
    joints, ids = joints[seen], ids[seen]
    tracks = _joined(_links(joints, counts, at), joints, ids, at)
    tracks = [track for track in tracks if len(track) >= SHORTEST] or tracks  # rule 4
    tracks = [track for track in tracks if not _is_flat(joints[track])] or tracks
    tracks.sort(key=lambda track: -np.square(joints[track] - joints[track].mean(0)).sum(dtype=np.float64))  # rule 5
    frames, first_ids = np.zeros((len(counts), SLOTS, JOINTS, 3), np.float32), np.zeros(SLOTS, np.int64)
    used = np.zeros((SLOTS, len(counts)), dtype=bool)
    for track in tracks:
        free = [slot for slot in range(SLOTS) if not used[slot, at[track]].any()]
        for slot in free[:1]:
            first_ids[slot] = first_ids[slot] if used[slot].any() else ids[track[0]]
            frames[at[track], slot] = joints[track]
            used[slot, at[track]] = True
    return frames[used.any(0)], first_ids  # rule 6


def _links(joints: Joints, counts: Numbers, at: Numbers) -> list[Track]:
    """Tracks without gaps: bodies of successive frames that are matched (rule 2)."""
    T, most = len(counts), int(counts.max())
    first = np.cumsum(counts) - counts
    padded = np.zeros((T, most, JOINTS, 3), dtype=np.float32)
    padded[at, np.arange(len(joints)) - first[at]] = joints
    there = np.arange(most) < counts[:, None]
    apart = _distance(padded[:-1, :, None], padded[1:, None])  # (T - 1, most, most)
    # No body is as far as can be, so that a match with none costs as much as one that is too far.
    apart = np.where(there[:-1, :, None] & there[1:, None], np.minimum(apart, REACH), REACH)
    orders = np.array(list(permutations(range(most))))
    after = orders[apart[:, np.arange(most), orders].sum(2).argmin(1)]  # (T - 1, most), from the sums (T - 1, orders)
    near = np.take_along_axis(apart, after[:, :, None], 2)[:, :, 0] < REACH
    track_of = np.arange(len(joints))  # the track of each body, by the first body in it
    t, i = np.nonzero(near)  # in order of time
    for before, behind in zip((first[t] + i).tolist(), (first[t + 1] + after[t, i]).tolist(), strict=True):
        track_of[behind] = track_of[before]
    return [np.flatnonzero(track_of == track) for track in np.unique(track_of)]


def _joined(tracks: list[Track], joints: Joints, ids: Numbers, at: Numbers) -> list[Track]:
    """Tracks with gaps: each that starts is joined to one that ended before, the nearest pairs first (rule 3)."""
    begun: list[list[Track]] = []  # the parts of each
    for start in sorted({int(at[track[0]]) for track in tracks}):
        new = {int(track[0]): track for track in tracks if at[track[0]] == start}
        pairs = []
        for body, (k, parts) in product(new, enumerate(begun)):
            last = parts[-1][-1]
            distance = float(_distance(joints[last], joints[body]))
            if at[last] < start and (distance < REACH or ids[last] == ids[body]):
                pairs.append((distance, body, k))
        for _, body, k in sorted(pairs):
            if body in new and at[begun[k][-1][-1]] < start:  # neither is joined by now
                begun[k].append(new.pop(body))
        begun += [[track] for track in new.values()]
    return [np.concatenate(parts) for parts in begun]


def _distance(a: Joints, b: Joints) -> Joints:
    """Mean distance between the joints of two bodies, (..., 25, 3)."""
    squares = (a - b) ** 2
    mean: Joints = np.sqrt(squares[..., 0] + squares[..., 1] + squares[..., 2]).mean(-1)
    return mean


def _is_flat(joints: Joints) -> bool:
    x, y = joints[:, :, 0].T.copy(), joints[:, :, 1].T.copy()  # frames side by side: five times faster than joints
    return bool((np.ptp(x, axis=0) > FLAT * np.ptp(y, axis=0)).mean() >= FLAT_SHARE)
