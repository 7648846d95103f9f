"""Skeleton samples: choice of frames, translation, rotation and scaling of bodies, and their features.

Shapes: T frames of a sample, B samples, M bodies, J joints.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Literal, get_args

from ..._lazy import Lazy
from .joints import Joints

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")

Feature = Literal["coordinates", "relative", "differences", "velocities", "bones", "distances"]
FEATURES: tuple[str, ...] = get_args(Feature)


def sample_frames(lengths: Tensor, where: Tensor) -> Tensor:
    """Indices (T, B) of one frame from each of T equal parts of recordings (B,): ⌊(t + r_t) · length / T⌋.

    In a recording shorter than T frames, frames are taken more than once. `where`, (T, B) in [0, 1), is r: the position
    of each frame within its part.
    """
    steps = where.shape[0]
    time = torch.arange(steps).unsqueeze(1)
    last = ((time + 1) * lengths - 1) // steps  # where t + r was rounded up, the part's last frame
    return torch.minimum(((time + where) * lengths / steps).long(), last)


_SUFFIXES = {"relative": ", from the centre", "differences": ", change", "velocities": ", velocity"}


def names_of(features: tuple[Feature, ...], joints: Joints, bodies: int) -> list[str]:
    """The name of each number in a frame; joints, bones, lines and bodies are numbered from 1."""
    names = []
    for feature in features:
        if feature == "distances":
            of_body = [f"joint {joint + 1} to line {line + 1}" for line, joint in joints.distances]
        else:
            thing, count = ("bone", len(joints.bones)) if feature == "bones" else ("joint", joints.count)
            suffix = _SUFFIXES.get(feature, "")
            of_body = [f"{thing} {number + 1} {axis}{suffix}" for number in range(count) for axis in "xyz"]
        names += [f"{name}, body {body + 1}" if bodies > 1 else name for body in range(bodies) for name in of_body]
    return names


def features_of(x: Tensor, joints: Joints, features: tuple[Feature, ...], shown: Tensor | None = None) -> Tensor:
    """The features of samples (T, B, M, J, 3), in which an absent body is all zeros, concatenated: (T, B, features).

    relative is to the body's centre in each frame; differences are x_{t+1} − x_t, zero in the last frame and where the
    body is missing in one of the two; velocities, the differences times T, are on the scale of the coordinates,
    whatever T is; bones are vectors from a bone's first joint to its second; distances are of joints to `joints.lines`.
    Joints that are not `shown`, (B, J), are set to the origin.
    """
    here = present(x)  # before joints are hidden, all of them perhaps
    x = x if shown is None else x * shown[:, None, :, None]
    return torch.cat([_MAKE[feature](x, joints, here).flatten(2) for feature in features], dim=-1)


def _relative(x: Tensor, joints: Joints, here: Tensor) -> Tensor:
    return x - x[..., joints.centre : joints.centre + 1, :]


def _differences(x: Tensor, joints: Joints, here: Tensor) -> Tensor:
    moved = torch.zeros_like(x)
    torch.sub(x[1:], x[:-1], out=moved[:-1])
    if x.shape[3] > 1:  # a single joint may well be at the origin
        moved[:-1] *= here[1:] & here[:-1]
    return moved


def _bones(x: Tensor, joints: Joints, here: Tensor) -> Tensor:
    first, second = torch.tensor(joints.bones).unbind(1)
    return x[..., second, :] - x[..., first, :]


def _distances(x: Tensor, joints: Joints, here: Tensor) -> Tensor:
    """|(p − a) × d| for a line through a along d, |d| = 1: linear in (p, 1), so one small product for each body."""
    first, second = torch.tensor(joints.lines).unbind(1)
    line, joint = torch.tensor(joints.distances).unbind(1)
    x = _relative(x, joints, here)  # the numbers below are then no larger than a body
    body = x.flatten(0, 2)  # (T B M, J, 3)
    a = body[:, first]  # (T B M, lines, 3)
    d = F.normalize(body[:, second] - a, dim=-1)
    dx, dy, dz = d.unbind(-1)
    mx, my, mz = torch.linalg.cross(a, d).neg_().unbind(-1)
    zero = torch.zeros_like(dx)
    # Rows that multiply (p_x, p_y, p_z, 1) to the three components of p × d − a × d
    rows = [torch.stack(row, -1) for row in ((zero, dz, -dy, mx), (-dz, zero, dx, my), (dy, -dx, zero, mz))]
    lines = torch.cat(rows, dim=1)  # (T B M, 3 lines, 4)
    points = F.pad(body, (0, 1), value=1.0).transpose(1, 2)  # (T B M, 4, J)
    result = x.new_empty(len(body), len(line))
    parts = (tensor.split(_AT_ONCE) for tensor in (lines, points, result))
    for line_part, point_part, part in zip(*parts, strict=True):
        cross = (line_part @ point_part).unflatten(1, (3, -1))
        distance = cross.square_().sum(1).sqrt_().flatten(1)  # (T B M, lines J)
        torch.index_select(distance, 1, line * joints.count + joint, out=part)
    return result.view(*x.shape[:3], -1)


_AT_ONCE = 128  # bodies whose distances are computed together: what is in between stays in cache

_MAKE = {
    "coordinates": lambda x, joints, here: x,
    "relative": _relative,
    "differences": _differences,
    "velocities": lambda x, joints, here: _differences(x, joints, here) * len(x),
    "bones": _bones,
    "distances": _distances,
}


def present(x: Tensor) -> Tensor:
    """Whether a body is in a frame: (T, B, M, 1, 1)."""
    return (x != 0).flatten(-2).any(-1)[..., None, None]


def place(x: Tensor, first: Tensor, joints: Joints, turn: Tensor | None = None) -> Tensor:
    """Move samples (T, B, M, J, 3) so that the centre of `first` is the origin; then each point p becomes `turn` p.

    `first`, (B, J, 3), is the main body in the first frame in which it is present. An absent body stays zero.
    """
    moved = x - first[:, None, joints.centre : joints.centre + 1]
    if turn is not None:
        moved = torch.matmul(moved.flatten(2, 3), turn.transpose(1, 2)).view(x.shape)
    return moved.mul_(present(x))


def aligned(first: Tensor, joints: Joints) -> Tensor:
    """Rotations (B, 3, 3) that bring `up` of the first frame (B, J, 3) onto y, and `across` into the xy plane."""
    assert joints.up is not None
    assert joints.across is not None
    up = first[:, joints.up[1]] - first[:, joints.up[0]]
    across = first[:, joints.across[1]] - first[:, joints.across[0]]
    y = F.normalize(up, dim=1)
    x = F.normalize(across - (across * y).sum(1, keepdim=True) * y, dim=1)
    rotation = torch.stack([x, y, torch.linalg.cross(x, y)], dim=1)
    usable = (rotation.norm(dim=2) > 0.5).all(1)[:, None, None]  # a body whose joints fall together stays as it is
    return torch.where(usable, rotation, torch.eye(3))


def sized(first: Tensor, joints: Joints) -> Tensor:
    """Scale factors (B, 1, 1) after which bodies have a mean bone length of 1/4 in the first frame."""
    one, two = torch.tensor(joints.bones).unbind(1)
    mean = (first[:, one] - first[:, two]).norm(dim=2).mean(1)
    return torch.where(mean > 0, 0.25 / mean, 1.0)[:, None, None]


def swung(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the movement of samples (T, B, M, J, 3) about their mean pose by a factor (B,).

    An absent body stays zero, and is left out of the mean.
    """
    here = present(x)
    # Frame by frame: torch's sum over a dimension rounds by the size of the others; pieces of a batch are the same bits
    total = functools.reduce(torch.add, x.unbind(0))
    mean = total / here.sum(0).clamp_min(1)  # (B, M, J, 3)
    return (mean + (x - mean) * factor[:, None, None, None]) * here


def random_turns(count: int, turn: float, tilt: float, scale: float, source: torch.Generator) -> Tensor:
    """Random matrices, (count, 3, 3), with uniform angles and factors.

    They rotate by at most `turn` degrees either way about y, the vertical axis, and `tilt` about x and z; and scale by
    a factor in 1 ± scale.
    """
    numbers = torch.rand(4, count, generator=source).mul_(2).sub_(1)
    about_y, about_x, about_z = (numbers[i] * math.radians(most) for i, most in enumerate((turn, tilt, tilt)))
    rotation = _rotations(about_z, 2) @ _rotations(about_x, 0) @ _rotations(about_y, 1)
    return rotation * (1 + scale * numbers[3])[:, None, None]


def _rotations(angle: Tensor, axis: int) -> Tensor:
    """Rotations about an axis, (count, 3, 3)."""
    result = torch.zeros(len(angle), 3, 3)
    one, two = (axis + 1) % 3, (axis + 2) % 3
    result[:, axis, axis] = 1
    result[:, one, one] = result[:, two, two] = angle.cos()
    result[:, two, one] = angle.sin()
    result[:, one, two] = -angle.sin()
    return result
