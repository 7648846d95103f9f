"""Parser of NTU RGB+D `.skeleton` files, which names the line of what it refuses."""

from __future__ import annotations

import contextlib
import re

import numpy as np
from numpy.typing import NDArray

JOINTS = 25
MOST_BODIES = 6
"""Number of bodies that a Kinect tracks at once."""
_NOT_TEXT = re.compile(rb"[^\t\n\r -~]")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LARGEST = float(np.finfo(np.float32).max)

Numbers = NDArray[np.int64]
Joints = NDArray[np.float32]
Skeletons = tuple[Numbers, Numbers, Joints]
"""Number of bodies in each frame, (frames,); Kinect's id of each body, frame after frame, (bodies,); and its joints, x,
y and z in metres, (bodies, 25, 3)."""


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
