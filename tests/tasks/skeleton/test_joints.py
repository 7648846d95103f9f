"""Skeletons: the built-in ones, and those of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indrnn.tasks.skeleton.joints import KINECT, NTU, Joints, joints_of, lines_of

skeletons = pytest.mark.parametrize("joints", [NTU, KINECT], ids=["ntu", "kinect"])


@skeletons
def test_bones_are_a_tree_over_all_joints(joints: Joints) -> None:
    assert len(joints.bones) == joints.count - 1
    reached = {joints.centre}
    while more := {joint for bone in joints.bones for joint in bone if set(bone) & reached} - reached:
        reached |= more
    assert reached == set(range(joints.count))


@skeletons
def test_lines_are_different_and_leave_all_other_joints_a_distance(joints: Joints) -> None:
    lines = {frozenset(line) for line in joints.lines}
    assert len(lines) == len(joints.lines)
    assert {frozenset(bone) for bone in joints.bones} < lines
    assert len(joints.distances) == len(joints.lines) * (joints.count - 2)
    assert all(joint not in joints.lines[line] for line, joint in joints.distances)


def test_the_published_number_of_distances() -> None:
    assert (len(NTU.lines), len(NTU.distances)) == (39, 897)
    assert (len(KINECT.lines), len(KINECT.distances)) == (34, 612)


def test_lines_by_hand() -> None:
    """0-1-2-3, and 4 beside 0: the way inwards from 0 is along the chain."""
    lines = lines_of(((0, 1), (1, 2), (2, 3), (0, 4)), (0, 3))
    assert lines == ((0, 1), (1, 2), (2, 3), (0, 4), (0, 2), (3, 1), (0, 3))


def test_known_and_unknown_skeletons() -> None:
    assert joints_of(25) is NTU
    assert joints_of(20) is KINECT
    assert joints_of(7) == Joints(7)


def test_a_file_of_joints(tmp_path: Path) -> None:
    path = tmp_path / "joints.json"
    path.write_text(json.dumps({"count": 4, "centre": 2, "bones": [[0, 1]], "lines": [[0, 3], [1, 2]], "up": [2, 0]}))
    joints = joints_of(4, path)
    assert joints == Joints(4, 2, ((0, 1),), ((0, 3), (1, 2)), (2, 0))
    assert joints.distances == ((0, 1), (0, 2), (1, 0), (1, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a file of JSON"),
        pytest.param("[" * 100_000, "must be a file of JSON", id="deep"),
        ("[1]", "must be an object with count"),
        ({"bones": []}, "must be an object with count"),
        ({"count": 4, "knees": 2}, "must be an object with count"),
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"count": True}, "count must be a whole number"),
        ({"count": 4, "centre": 4}, "centre must be one of the joints 0 to 3, got 4"),
        ({"count": 4, "lines": [[0, 4]]}, r"lines must be of pairs of two of the joints 0 to 3, got \[0, 4\]"),
        ({"count": 4, "lines": [[1, 1]]}, "lines must be of pairs of two"),
        ({"count": 4, "bones": [[1]]}, "bones must be of pairs"),
        ({"count": 4, "bones": 3}, "bones must be a list of pairs"),
        ({"count": 4, "up": [0, 1.5]}, "up must be of pairs"),
        ({"count": 5}, "has 5 joints, and the recordings have 4"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_file_is_said(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "joints.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=message) as raised:
        joints_of(4, path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"joints: .* cannot be read"):
        joints_of(4, tmp_path / "none.json")
