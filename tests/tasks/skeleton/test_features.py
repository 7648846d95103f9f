"""Frames inside their parts, and features against slow loops of the plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from indrnn.tasks.skeleton.joints import KINECT, NTU, Feature, Joints, names_of
from indrnn.tasks.skeleton.task import (
    aligned,
    features_of,
    place,
    present,
    random_turns,
    sample_frames,
    sized,
    swung,
)
from indrnn.training import generator

SMALL = Joints(5, centre=1, bones=((0, 1), (1, 4)), lines=((0, 1), (3, 2), (4, 0)), up=(1, 0), across=(2, 3))


def bodies(*shape: int, seed: int = 0) -> Tensor:
    """Points about 3 m before the camera."""
    return torch.randn(*shape, 3, generator=generator(seed, "bodies")) * 0.4 + torch.tensor([0.1, -0.2, 3.0])


def rotation(seed: int = 0) -> Tensor:
    """Any rotation."""
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator(seed, "rotation"), dtype=torch.float64))
    turn: Tensor = q * torch.linalg.det(q)
    return turn.float()


# ---- frames


@pytest.mark.parametrize("steps", [1, 7, 20])
@pytest.mark.parametrize("length", [1, 2, 13, 19, 20, 21, 60, 125])
def test_each_frame_is_inside_its_part(length: int, steps: int) -> None:
    where = torch.rand(steps, 500, generator=generator(0, "where"), dtype=torch.float64)
    where[:, 0], where[:, 1] = 0.0, math.nextafter(1.0, 0.0)
    frames = sample_frames(torch.full((500,), length), where)
    assert frames.dtype == torch.int64
    for t in range(steps):
        first, end = t * length / steps, (t + 1) * length / steps
        assert math.floor(first) <= int(frames[t].min())
        assert int(frames[t].max()) < math.ceil(end)
    assert bool((frames.diff(dim=0) >= 0).all())
    assert (int(frames.min()), int(frames.max())) == (0, length - 1 if steps > 1 or length == 1 else int(frames.max()))


def test_frames_of_a_part_are_equally_likely() -> None:
    count = 30_000
    where = torch.rand(4, count, generator=generator(1, "where"), dtype=torch.float64)
    frames = sample_frames(torch.full((count,), 24), where)
    for t in range(4):
        found = torch.bincount(frames[t], minlength=24)
        assert int(found[6 * t : 6 * t + 6].sum()) == count
        # Five deviations of a binomial
        assert float((found[6 * t : 6 * t + 6] - count / 6).abs().max()) < 5 * math.sqrt(count * 5 / 36)


def test_a_frame_on_the_border_of_two_parts_is_shared_by_them() -> None:
    """Three frames in two parts: the middle one is a third of what each part takes."""
    count = 30_000
    where = torch.rand(2, count, generator=generator(2, "where"), dtype=torch.float64)
    frames = sample_frames(torch.full((count,), 3), where)
    for t, ends in ((0, 0), (1, 2)):
        assert set(frames[t].tolist()) == {1, ends}
        assert float((frames[t] == 1).double().mean()) == pytest.approx(1 / 3, abs=5 * math.sqrt(2 / 9 / count))


def test_recordings_of_a_batch_have_lengths_of_their_own() -> None:
    lengths = torch.tensor([1, 5, 40, 300])
    where = torch.rand(9, 4, generator=generator(3, "where"), dtype=torch.float64)
    together = sample_frames(lengths, where)
    for i in range(4):
        assert torch.equal(together[:, i : i + 1], sample_frames(lengths[i : i + 1], where[:, i : i + 1]))


# ---- features


def distance(point: np.ndarray, one: np.ndarray, two: np.ndarray) -> float:
    """Of a point to a line, by the foot of the perpendicular."""
    along = two - one
    foot = one + along * np.dot(point - one, along) / np.dot(along, along)
    return float(np.linalg.norm(point - foot))


@pytest.mark.parametrize("joints", [SMALL, KINECT, NTU], ids=["small", "kinect", "ntu"])
def test_distances_to_lines_by_a_slow_loop(joints: Joints) -> None:
    x = bodies(3, 2, 2, joints.count)
    found = features_of(x, joints, ("distances",)).unflatten(-1, (2, -1))
    for t, b, m in np.ndindex(3, 2, 2):
        p = x[t, b, m].double().numpy()
        expected = [
            distance(p[joint], p[one], p[two])
            for one, two in joints.lines
            for joint in range(joints.count)
            if joint not in (one, two)
        ]
        np.testing.assert_allclose(found[t, b, m].numpy(), expected, rtol=2e-5, atol=2e-6)


def test_distances_do_not_change_with_place_and_direction() -> None:
    x = bodies(4, 3, 1, 5)
    moved = x @ rotation().t() + torch.tensor([2.0, -1.0, 0.5])
    torch.testing.assert_close(
        features_of(x, SMALL, ("distances",)), features_of(moved, SMALL, ("distances",)), rtol=1e-5, atol=1e-5
    )


def test_a_body_that_is_not_there_has_no_distances_and_joints_that_coincide_none_to_their_line() -> None:
    x = bodies(1, 1, 2, 5)
    x[:, :, 1] = 0
    x[:, :, 0, 3] = x[:, :, 0, 2]
    found = features_of(x, SMALL, ("distances",)).view(2, 3, 3)
    assert bool((found[1] == 0).all())
    assert bool((found[0, 1] == 0).all())
    assert bool((found[0, 0] > 0).all())


def test_differences_are_forward_and_none_in_the_last_frame() -> None:
    x = bodies(4, 3, 1, 5)
    found = features_of(x, SMALL, ("differences",)).view(4, 3, 1, 5, 3)
    for t in range(3):
        assert torch.equal(found[t], x[t + 1] - x[t])
    assert bool((found[3] == 0).all())


def test_velocities_are_the_same_with_any_number_of_frames() -> None:
    start, along = bodies(1, 3, 1, 5), bodies(1, 3, 1, 5)
    for frames in (4, 9):  # a body that moves by `along` in the time of the recording
        x = start + along * (torch.arange(frames) / frames).view(-1, 1, 1, 1, 1)
        found = features_of(x, SMALL, ("velocities",)).view(frames, 3, 1, 5, 3)
        assert_close(found[:-1], along.expand(frames - 1, -1, -1, -1, -1), rtol=0, atol=1e-5)
        assert bool((found[-1] == 0).all())


def test_a_body_that_comes_or_goes_has_not_moved() -> None:
    x = bodies(5, 1, 2, 5)
    x[:2, :, 1] = 0
    x[4, :, 1] = 0
    found = features_of(x, SMALL, ("differences",)).view(5, 1, 2, 5, 3)
    assert [bool((found[t, 0, 1] != 0).any()) for t in range(5)] == [False, False, True, False, False]
    assert torch.equal(found[2, :, 1], x[3, :, 1] - x[2, :, 1])
    assert all(bool((found[t, 0, 0] != 0).any()) for t in range(4))


def test_bones_and_relative_coordinates() -> None:
    x = bodies(2, 3, 1, 5)
    bones = features_of(x, SMALL, ("bones",)).view(2, 3, 2, 3)
    assert torch.equal(bones[..., 0, :], x[:, :, 0, 1] - x[:, :, 0, 0])
    assert torch.equal(bones[..., 1, :], x[:, :, 0, 4] - x[:, :, 0, 1])
    relative = features_of(x, SMALL, ("relative",)).view(2, 3, 5, 3)
    assert torch.equal(relative, x[:, :, 0] - x[:, :, 0, 1:2])


def test_features_stand_beside_each_other_in_their_order() -> None:
    x = bodies(3, 2, 2, 5)
    names: tuple[Feature, ...] = ("differences", "distances", "coordinates", "bones", "velocities", "relative")
    found = features_of(x, SMALL, names)
    assert found.shape == (3, 2, len(names_of(names, SMALL, 2))) == (3, 2, 2 * (15 + 9 + 15 + 6 + 15 + 15))
    assert torch.equal(found, torch.cat([features_of(x, SMALL, (name,)) for name in names], dim=-1))


# ---- place and direction


def test_the_main_bodys_first_centre_is_the_origin() -> None:
    x, first = bodies(3, 2, 2, 5), bodies(2, 5, seed=1)
    x[1:, 0, 1] = 0
    found = place(x, first, SMALL)
    for t, b, m in np.ndindex(3, 2, 2):
        there = bool((x[t, b, m] != 0).any())
        assert torch.equal(found[t, b, m], x[t, b, m] - first[b, 1] if there else torch.zeros(5, 3))
    assert torch.equal(present(x).flatten(), (x != 0).any(-1).any(-1).flatten())


def test_points_are_turned_by_their_own_matrix() -> None:
    x, first = bodies(3, 2, 2, 5), bodies(2, 5, seed=1)
    turns = torch.stack([rotation(1), 2 * rotation(2)])
    found = place(x, first, SMALL, turns)
    for t, b, m, j in np.ndindex(3, 2, 2, 5):
        torch.testing.assert_close(found[t, b, m, j], turns[b] @ (x[t, b, m, j] - first[b, 1]))


def test_aligned_bodies_stand_upright_and_face_the_camera() -> None:
    first = bodies(9, 5)
    turned = first @ aligned(first, SMALL).transpose(1, 2)
    up, across = turned[:, 0] - turned[:, 1], turned[:, 3] - turned[:, 2]
    assert bool((up[:, 1] > 0).all())
    assert float(up[:, [0, 2]].abs().max()) < 1e-5
    assert bool((across[:, 0] > 0).all())
    assert float(across[:, 2].abs().max()) < 1e-5
    torch.testing.assert_close(torch.linalg.det(aligned(first, SMALL)), torch.ones(9))


def test_aligned_recordings_do_not_depend_on_where_they_were_seen_from() -> None:
    x, first = bodies(4, 3, 1, 5), bodies(3, 5, seed=1)
    seen = place(x, first, SMALL, aligned(first, SMALL))
    other = torch.tensor([1.0, 2.0, 3.0])
    x, first = x @ rotation(5).t() + other, first @ rotation(5).t() + other
    torch.testing.assert_close(place(x, first, SMALL, aligned(first, SMALL)), seen, rtol=1e-4, atol=1e-5)


def test_a_body_without_a_direction_is_not_turned() -> None:
    first = torch.zeros(2, 5, 3)
    first[1] = bodies(5)
    first[1, 3] = first[1, 2]
    assert torch.equal(aligned(first, SMALL), torch.eye(3).expand(2, 3, 3))


def test_bodies_of_one_size() -> None:
    first = bodies(4, 5)
    factor = sized(first, SMALL)
    for b in range(4):
        one, two = ((factor[b] * (first[b, i] - first[b, j])).norm() for i, j in SMALL.bones)
        assert float((one + two) / 2) == pytest.approx(0.25, rel=1e-5)
    torch.testing.assert_close(sized(first * 3, SMALL), factor / 3)
    assert float(sized(torch.zeros(1, 5, 3), SMALL)) == 1.0


def test_a_body_that_comes_late_swings_about_its_own_frames() -> None:
    x = bodies(7, 2, 2, 5)
    x[:3, :, 1] = 0
    found = swung(x, torch.tensor([1.5, 0.5]))
    assert torch.equal(found[:3, :, 1], torch.zeros(3, 2, 5, 3))
    for sample, factor in enumerate((1.5, 0.5)):
        for body, frames in ((0, slice(0, 7)), (1, slice(3, 7))):
            one = x[frames, sample, body].double().numpy()
            mean = sum(one) / len(one)
            expected = torch.from_numpy(mean + factor * (one - mean)).float()
            assert_close(found[frames, sample, body], expected)


def test_random_turns_are_within_what_is_asked_for() -> None:
    turns = random_turns(2000, 40.0, 0.0, 0.25, generator(0, "turns"))
    scale = torch.linalg.det(turns).pow(1 / 3)
    assert 0.75 <= float(scale.min()) < 0.76
    assert 1.24 < float(scale.max()) <= 1.2501
    rotations = turns / scale[:, None, None]
    torch.testing.assert_close(rotations @ rotations.transpose(1, 2), torch.eye(3).expand(2000, 3, 3))
    torch.testing.assert_close(rotations[:, 1, 1], torch.ones(2000))  # the vertical axis stays
    angle = torch.rad2deg(torch.atan2(rotations[:, 0, 2], rotations[:, 0, 0]))
    assert -40.001 <= float(angle.min()) < -39
    assert 39 < float(angle.max()) <= 40.001


def test_tilts_turn_the_vertical_axis() -> None:
    turns = random_turns(2000, 0.0, 15.0, 0.0, generator(0, "turns"))
    lean = torch.rad2deg(torch.acos(turns[:, 1, 1].clamp(-1, 1)))
    assert 15 < float(lean.max()) < math.degrees(math.acos(math.cos(math.radians(15)) ** 2)) + 1e-3
    torch.testing.assert_close(torch.linalg.det(turns), torch.ones(2000))
