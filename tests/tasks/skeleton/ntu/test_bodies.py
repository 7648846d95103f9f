"""Bodies over time: each rule by a written file in which it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from indrnn.tasks.skeleton.ntu.bodies import SHORTEST, arrange, parse

from .writer import FIRST_ID, Body, moving, standing, text_of

Positions = NDArray[np.float64]
OTHER_ID = FIRST_ID + 1


class Arranged(NamedTuple):
    frames: NDArray[np.float32]
    ids: NDArray[np.int64]


def read(frames: Sequence[Sequence[Body]]) -> Arranged:
    return Arranged(*arrange(parse(text_of(frames))))


def as_written(joints: Positions) -> NDArray[np.float32]:
    """With the digits that are in the file."""
    return np.array([float(f"{value:.7g}") for value in joints.flat]).astype(np.float32).reshape(joints.shape)


def is_slot(arranged: Arranged, slot: int, joints: Positions) -> bool:
    return np.array_equal(arranged.frames[:, slot], as_written(joints))


def lively(length: int, x: float = 0.0) -> Positions:
    return moving(length, x, by=0.05, seed=1)


def calm(length: int, x: float = 1.0) -> Positions:
    return moving(length, x, by=0.01, seed=2)


def test_one_body_is_in_the_first_slot_and_the_second_is_zero() -> None:
    person = lively(17)
    arranged = read([[Body(joints)] for joints in person])
    assert arranged.frames.shape == (17, 2, 25, 3)
    assert arranged.frames.dtype == np.float32
    assert is_slot(arranged, 0, person)
    assert not arranged.frames[:, 1].any()
    assert arranged.ids.tolist() == [FIRST_ID, 0]


def test_two_bodies_are_ranked_by_motion() -> None:
    a, b = calm(20), lively(20)
    arranged = read([[Body(x), Body(y, OTHER_ID)] for x, y in zip(a, b, strict=True)])
    assert is_slot(arranged, 0, b)
    assert is_slot(arranged, 1, a)
    assert arranged.ids.tolist() == [OTHER_ID, FIRST_ID]


def test_order_in_the_file_may_swap_from_frame_to_frame() -> None:
    a, b, random = lively(40), calm(40), np.random.default_rng(0)
    frames = [[Body(x), Body(y, OTHER_ID)] for x, y in zip(a, b, strict=True)]
    swapped = [bodies[:: random.choice([-1, 1])] for bodies in frames]
    arranged = read(swapped)
    assert is_slot(arranged, 0, a)
    assert is_slot(arranged, 1, b)


def test_ids_may_swap() -> None:
    """Positions say who is who, and the ids are exchanged half way."""
    a, b = lively(30), calm(30)
    ids = [(FIRST_ID, OTHER_ID)] * 15 + [(OTHER_ID, FIRST_ID)] * 15
    arranged = read([[Body(x, i), Body(y, j)] for x, y, (i, j) in zip(a, b, ids, strict=True)])
    assert is_slot(arranged, 0, a)
    assert is_slot(arranged, 1, b)


def test_ids_may_change() -> None:
    a, b = lively(30), calm(30)
    arranged = read([[Body(x, 100 + t), Body(y, 200 + t // 7)] for t, (x, y) in enumerate(zip(a, b, strict=True))])
    assert is_slot(arranged, 0, a)
    assert is_slot(arranged, 1, b)
    assert arranged.ids.tolist() == [100, 200]


def test_one_who_walks_behind_another_is_matched_to_the_least_sum() -> None:
    """The one behind comes nearer to where the other was than to their own place: only the sum says who is who."""
    way = 0.2 * np.arange(20)[:, None, None] * np.array([1.0, 0, 0])
    a, b = standing() + way, standing(0.25) + way
    arranged = read([[Body(x, 1), Body(y, 2)][:: 1 - 2 * (t % 2)] for t, (x, y) in _timed(a, b)])
    slot = int(is_slot(arranged, 1, a))  # neither moves more than the other
    assert is_slot(arranged, slot, a)
    assert is_slot(arranged, 1 - slot, b)


def test_someone_who_comes_back_is_the_same() -> None:
    """Under another id, near where they were, for a time in which someone new would be a ghost."""
    a, b = lively(34), calm(34)
    gap = range(20, 26)
    arranged = read([[Body(y, 5), *([] if t in gap else [Body(x, 7 + (t > 25))])] for t, (x, y) in _timed(a, b)])
    a[list(gap)] = 0
    assert is_slot(arranged, 0, a)
    assert is_slot(arranged, 1, b)


def test_two_who_come_back_are_matched_with_the_nearest() -> None:
    """Both are near enough to both places."""
    a, b, third = lively(50), moving(50, 0.3, by=0.03, seed=1), calm(50, 4.0)
    gap = range(20, 23)
    frames = []
    for t in range(50):
        both = [] if t in gap else [Body(a[t], 2 * t), Body(b[t], 2 * t + 1)]
        frames.append([Body(third[t], 999), *both[:: 1 if t < 20 else -1]])
    arranged = read(frames)
    seen = [t for t in range(50) if t not in gap]  # in the gap there is nobody but the third
    assert is_slot(arranged, 0, a[seen])
    assert is_slot(arranged, 1, b[seen])


def test_someone_who_is_found_elsewhere_is_known_by_the_id() -> None:
    """Two are found far from where they were, and the one who was calm is now the lively one: motion would mix them."""
    a, b = np.concatenate([lively(30), calm(30, 2.5)]), np.concatenate([calm(30), lively(30, -0.7)])
    arranged = read([[Body(x, 1), Body(y, 2)][:: 1 if t < 30 else -1] for t, (x, y) in _timed(a, b)])
    assert is_slot(arranged, 0, a)
    assert is_slot(arranged, 1, b)


def test_a_jump_is_another_body_and_goes_where_there_is_room() -> None:
    """A body that is lost at once and found two metres away under another id: never two at a time, so one slot."""
    person = lively(40)
    person[20:] += [2.0, 0, 0]
    arranged = read([[Body(joints, 1 + (t >= 20))] for t, joints in enumerate(person)])
    assert is_slot(arranged, 0, person)
    assert not arranged.frames[:, 1].any()


def test_a_jump_beside_another_keeps_the_slots_apart() -> None:
    a, b = lively(40), calm(40)
    a[20:] += [-2.0, 0, 0]
    arranged = read([[Body(x, 1 + (t >= 20)), Body(y, 5)] for t, (x, y) in _timed(a, b)])
    assert is_slot(arranged, 0, a)
    assert is_slot(arranged, 1, b)


def test_three_bodies_two_are_kept() -> None:
    a, b, c = lively(30), calm(30), moving(30, 2.5, by=0.03, seed=9)
    arranged = read([[Body(y, 1), Body(x, 2), Body(z, 3)] for x, y, z in zip(a, b, c, strict=True)])
    assert is_slot(arranged, 0, a)
    assert is_slot(arranged, 1, c)
    assert arranged.ids.tolist() == [2, 3]


@pytest.mark.parametrize("count", [4, 5, 6])
def test_a_crowd_two_are_kept(count: int) -> None:
    people = [moving(25, 2.0 * k, by=0.01 * (k + 1), seed=k) for k in range(count)]
    random = np.random.default_rng(1)
    frames = [[Body(people[k][t], int(random.integers(2**60))) for k in random.permutation(count)] for t in range(25)]
    arranged = read(frames)
    assert is_slot(arranged, 0, people[-1])
    assert is_slot(arranged, 1, people[-2])


def test_frames_without_a_body_are_dropped() -> None:
    person = lively(20)
    arranged = read([[Body(joints)] if t % 3 else [] for t, joints in enumerate(person)])
    assert is_slot(arranged, 0, person[np.arange(20) % 3 != 0])


def test_a_body_whose_joints_are_all_at_the_origin_is_none() -> None:
    person, nobody = lively(20), np.zeros((25, 3))
    arranged = read(
        [[Body(nobody, OTHER_ID), Body(joints)] if t % 3 else [Body(nobody)] for t, joints in enumerate(person)]
    )
    assert is_slot(arranged, 0, person[np.arange(20) % 3 != 0])
    assert arranged.ids.tolist() == [FIRST_ID, 0]


def test_no_body_at_all() -> None:
    with pytest.raises(ValueError, match="none of its 2 frames has a body"):
        read([[Body(np.zeros((25, 3)))]] * 2)
    with pytest.raises(ValueError, match="none of its 4 frames has a body"):
        read([[], [], [], []])
    with pytest.raises(ValueError, match="none of its 0 frames has a body"):
        read([])


@pytest.mark.parametrize(("length", "is_kept"), [(SHORTEST - 1, False), (SHORTEST, True)])
def test_ghosts_that_are_seen_too_shortly_are_dropped(length: int, is_kept: bool) -> None:
    person, ghost = calm(30), moving(length, -2.0, by=0.3, seed=4)
    arranged = read([[Body(x), *([Body(ghost[t], OTHER_ID)] if t < length else [])] for t, x in enumerate(person)])
    assert bool(arranged.frames[:, 1].any()) == is_kept
    assert is_slot(arranged, 1 if is_kept else 0, person)


def test_frames_with_a_ghost_alone_are_dropped() -> None:
    person, ghost = calm(30), moving(5, -2.0, seed=4)
    frames = [[Body(joints, OTHER_ID)] for joints in ghost] + [[Body(joints)] for joints in person]
    arranged = read(frames)
    assert len(arranged.frames) == 30
    assert is_slot(arranged, 0, person)


def flattened(joints: Positions) -> Positions:
    """Wider than it is high: 0.4 by 0.32 m."""
    flat: Positions = joints * np.array([1.0, 0.2, 1.0])
    return flat


def test_ghosts_that_are_too_flat_are_dropped() -> None:
    person, chair = calm(30), flattened(moving(30, -2.0, by=0.05, seed=4))
    arranged = read([[Body(y, 1), Body(x, 2)] for x, y in zip(person, chair, strict=True)])
    assert is_slot(arranged, 0, person)
    assert not arranged.frames[:, 1].any()


def test_someone_who_lies_down_for_some_time_is_no_ghost() -> None:
    person, faller = calm(30), lively(30, -2.0)
    faller[15:] = flattened(faller[15:])
    arranged = read([[Body(x, 1), Body(y, 2)] for x, y in zip(person, faller, strict=True)])
    assert is_slot(arranged, 0, faller)


def test_a_rule_that_would_leave_nobody_is_not_applied() -> None:
    short = lively(SHORTEST - 3)
    assert is_slot(read([[Body(joints)] for joints in short]), 0, short)
    both = read([[Body(x), Body(y, OTHER_ID)] for x, y in zip(short, calm(SHORTEST - 3), strict=True)])
    assert both.frames.any((0, 2, 3)).tolist() == [True, True]
    a, b = flattened(lively(30)), flattened(calm(30))
    lying = read([[Body(x), Body(y, OTHER_ID)] for x, y in zip(a, b, strict=True)])
    assert is_slot(lying, 0, a)
    assert is_slot(lying, 1, b)


def _timed(a: Positions, b: Positions) -> list[tuple[int, tuple[Positions, Positions]]]:
    return list(enumerate(zip(a, b, strict=True)))
