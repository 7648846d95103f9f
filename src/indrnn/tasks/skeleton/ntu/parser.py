"""Parser of NTU RGB+D `.skeleton` files, which names the line of what it refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

JOINTS = 25
MOST_BODIES = 6
"""Number of bodies that a Kinect tracks at once."""
_BODY_FIELDS, _JOINT_FIELDS = 10, 12
_NOT_TEXT = re.compile(rb"[^\t\n\r -~]")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Skeletons:
    """The parsed content of a `.skeleton` file.

    Args:
        counts: (frames,) int64, number of bodies in each frame.
        ids: (bodies,) int64, Kinect's id of each body, frame after frame.
        joints: (bodies, 25, 3) float32, x, y and z in metres.
        tracked: (bodies, 25) uint8, Kinect's tracking state of each joint: 0 not tracked, 1 inferred, 2 tracked.
    """

    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    joints: NDArray[np.float32]
    tracked: NDArray[np.uint8]


def parse(text: bytes) -> Skeletons:
    """Read the content of a `.skeleton` file.

    Raises:
        ValueError: if the content is not valid; the message names the line.
    """
    binary = _NOT_TEXT.search(text)
    if binary:
        line = text.count(b"\n", 0, binary.start()) + 1
        raise ValueError(f"line {line}: the byte 0x{binary[0][0]:02x} is not text")
    lines = _lines(text)
    counts, ids = [], []
    numbers, positions, states = [], [], []  # of the joints: in which lines, and the words there
    for _ in range(_count(lines, "frames")):
        counts.append(_count(lines, "bodies", f"at most {MOST_BODIES}", range(MOST_BODIES + 1)))
        for _ in range(counts[-1]):
            number, body = _fields(lines, "a body", _BODY_FIELDS)
            ids.append(_whole(number, "bodyID", body[0], range(2**63)))
            _count(lines, "joints", f"{JOINTS}", range(JOINTS, JOINTS + 1))
            for _ in range(JOINTS):
                number, joint = _fields(lines, "a joint", _JOINT_FIELDS)
                numbers.append(number)
                positions += joint[:3]
                states.append(joint[11])
    for number, _ in lines:
        raise ValueError(f"line {number}: more than the frames that the file says it has")
    known = {word: _whole(numbers[states.index(word)], "trackingState", word, range(256)) for word in set(states)}
    return Skeletons(
        np.array(counts, dtype=np.int64),
        np.array(ids, dtype=np.int64),
        _coordinates(numbers, positions).astype(np.float32).reshape(-1, JOINTS, 3),
        np.array([known[word] for word in states], dtype=np.uint8).reshape(-1, JOINTS),
    )


def _lines(text: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """The words of each line that has any, with its number."""
    for number, line in enumerate(text.split(b"\n"), 1):
        words = line.split()
        if words:
            yield number, words


def _fields(lines: Iterator[tuple[int, list[bytes]]], what: str, count: int) -> tuple[int, list[bytes]]:
    number, words = next(lines, (0, []))
    if not words:
        raise ValueError(f"it breaks off: {what} was expected")
    if len(words) != count:
        raise ValueError(f"line {number}: expected {count} field{'s' * (count > 1)} for {what}, got {len(words)}")
    return number, words


def _count(
    lines: Iterator[tuple[int, list[bytes]]], what: str, allowed: str = "a whole number", values: range = range(10**18)
) -> int:
    number, words = _fields(lines, f"the number of {what}", 1)
    return _whole(number, f"the number of {what}", words[0], values, allowed)


def _whole(number: int, what: str, word: bytes, values: range, allowed: str = "a whole number") -> int:
    if word.isdigit() and len(word) < 20 and int(word) in values:
        return int(word)
    raise ValueError(f"line {number}: {what} must be {allowed}, got {_quoted(word)}")


def _coordinates(numbers: list[int], words: list[bytes]) -> NDArray[np.float64]:
    try:
        values = np.array(list(map(float, words)), dtype=np.float64)
        fast = b"_" not in b"".join(words)  # which Python takes in a number
    except ValueError:
        fast = False
    if not fast:
        values = np.array(list(map(_coordinate, words)), dtype=np.float64)
    wrong = ~(np.abs(values) <= _LARGEST)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(
            f"line {numbers[at // 3]}: a joint's position must be three finite numbers, got {_quoted(words[at])}"
        )
    return values


def _coordinate(word: bytes) -> float:
    try:
        return math.nan if b"_" in word else float(word)
    except ValueError:
        return math.nan


def _quoted(word: bytes) -> str:
    return repr(word.decode() if len(word) <= 40 else word[:40].decode() + "…")
