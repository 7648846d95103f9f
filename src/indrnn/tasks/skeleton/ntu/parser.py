"""Parser of NTU RGB+D `.skeleton` files, which names the line of what it refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

JOINTS = 25
MOST_BODIES = 6
"""Number of bodies that a Kinect tracks at once."""
_NOT_TEXT = re.compile(rb"[^\t\n\r -~]")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Skeletons:
    """The parsed content of a `.skeleton` file.

    Args:
        counts: (frames,) int64, number of bodies in each frame.
        ids: (bodies,) int64, Kinect's id of each body, frame after frame.
        joints: (bodies, 25, 3) float32, x, y and z in metres.
    """

    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    joints: NDArray[np.float32]


def parse(text: bytes) -> Skeletons:
    """Read the content of a `.skeleton` file.

    Raises:
        ValueError: if the content is not valid; the message names the line.
    """
    binary = _NOT_TEXT.search(text)
    if binary:
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
    joints = _coordinates(numbers, positions).reshape(-1, JOINTS, 3)
    return Skeletons(np.array(counts, dtype=np.int64), np.array(ids, dtype=np.int64), joints)


def _whole(number: int, what: str, word: bytes, values: range, allowed: str = "a whole number") -> int:
    if word.isdigit() and len(word) < 20 and int(word) in values:
        return int(word)
    raise ValueError(f"line {number}: {what} must be {allowed}, got {_quoted(word)}")


def _coordinates(numbers: list[int], words: list[bytes]) -> NDArray[np.float32]:
    """Three words in each of these lines, as numbers."""
    try:
        values = np.array(list(map(float, words)), dtype=np.float64)
        if b"_" not in b"".join(words) and (np.abs(values) <= _LARGEST).all():
            return values.astype(np.float32)
    except ValueError:
        pass
    number, word = next((numbers[at // 3], word) for at, word in enumerate(words) if not _is_coordinate(word))
    raise ValueError(f"line {number}: a joint's position must be three finite numbers, got {_quoted(word)}")


def _is_coordinate(word: bytes) -> bool:
    try:
        return abs(float(word)) <= _LARGEST and b"_" not in word  # which Python takes in a number
    except ValueError:
        return False


def _quoted(word: bytes) -> str:
    return repr(word.decode() if len(word) <= 40 else word[:40].decode() + "…")
