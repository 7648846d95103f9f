"""Skeleton action recognition: samples of a few frames, drawn anew each time from recordings of any length.

Shapes: T frames of a sample, B samples, M bodies, J joints.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ...checks import check_fraction, check_seed
from ...training.task import Batch, Measured, Shard, TensorTask, generator, rows_of
from .joints import Feature, Joints, Pair, Sampling
from .recordings import Recordings

Indices = NDArray[np.int64]
_AT_ONCE = 128  # bodies whose distances are computed together: what is in between stays in cache


class SkeletonTask(TensorTask):
    """Classification of skeleton recordings by samples of their frames.

    All randomness of a training batch derives from the seed and the step; that of an evaluation, from the seed and the
    batch. Frames are read in place, and may be a memory map.

    Without validation recordings the best weights are those with the lowest loss on the training recordings, as nearly
    all of these are classified correctly long before the end.

    `train`, `validation` and `test` are indices of recordings; without those for test there is no test.
    """

    def __init__(
        self,
        recordings: Recordings,
        train: Indices,
        validation: Indices | None = None,
        test: Indices | None = None,
        *,
        joints: Joints,
        samples: Sampling | None = None,
        batch_size: int = 128,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        samples = samples or Sampling()
        samples.check(joints)
        check_fraction("label_smoothing", label_smoothing)
        check_seed(seed)
        shape = recordings.frames.shape
        if shape[2] != joints.count:
            raise ValueError(f"recordings must have frames of (frames, bodies, {joints.count}, 3), got {shape}")
        self.recordings, self.joints, self.samples = recordings, joints, samples
        self._starts, self._lengths = torch.from_numpy(recordings.starts), torch.from_numpy(recordings.lengths)
        if not len(train):
            raise ValueError("train must hold at least one recording, got none")
        splits = (train, validation, test)
        parts: list[Any] = [(i, recordings.label[i]) if i is not None and len(i) else None for i in splits]
        smoothed = functools.partial(F.cross_entropy, label_smoothing=label_smoothing)
        super().__init__(*parts, batch_size=batch_size, loss=smoothed, seed=seed)
        self.label_smoothing = label_smoothing
        self.draws = dict.fromkeys(("train", "validation"), samples.validation_draws) | {"test": samples.draws}
        self.prefetch = isinstance(recordings.frames, np.memmap)
        if self.judged == "train":
            self.metric, self.higher_is_better = "training_loss", False

    def describe(self) -> dict[str, Any]:
        """Description of the task: sizes, options, and a checksum over some of the frames and all lengths."""
        frames = self.recordings.frames
        some = np.linspace(0, len(frames) - 1, min(len(frames), 64)).astype(np.int64)
        content = np.ascontiguousarray(frames[some]).tobytes() + self._lengths.numpy().tobytes()
        return super().describe() | {
            "loss": "cross_entropy",
            "label_smoothing": self.label_smoothing,
            "samples": asdict(self.samples),
            "joints": asdict(self.joints),
            "frames": {"shape": list(frames.shape), "checksum": hashlib.blake2b(content, digest_size=8).hexdigest()},
        }

    def batch(self, step: int, shard: Shard) -> Batch:
        items = self._items_of(step)
        rows, count = rows_of(shard, len(items))
        samples, source = self.samples, generator(self.seed, "samples", step)
        frames = samples.frames
        if samples.shortest is not None and samples.longest is not None:
            frames = int(torch.randint(samples.shortest, samples.longest + 1, (), generator=source))
        # For the whole batch, whatever piece of it is asked for: pieces are the same samples in any division
        where = torch.rand(frames, len(items), generator=source, dtype=torch.float64)[:, rows]
        turns = shown = swing = None
        if samples.turn or samples.tilt or samples.scale:
            turns = random_turns(len(items), samples.turn, samples.tilt, samples.scale, source)[rows]
        if samples.hide:
            shown = (torch.rand(len(items), self.joints.count, generator=source) >= samples.hide)[rows]
        if samples.swing:
            swing = (1 + samples.swing * torch.rand(len(items), generator=source).mul_(2).sub_(1))[rows]
        recordings, target = self._of("train", items[rows])
        inputs = self.inputs(recordings, where, turns=turns, swing=swing, shown=shown)
        return Batch(inputs, target, count, len(items))

    def batch_of(self, split: str, items: Tensor) -> Batch:
        """See `TensorTask.batch_of`: the frame in the middle of each part of a recording, without data augmentation."""
        recordings, target = self._of(split, items)
        where = torch.full((self.samples.frames, len(items)), 0.5, dtype=torch.float64)
        return Batch(self.inputs(recordings, where), target, len(items), len(items))

    def bodies(self, items: Tensor, where: Tensor, turns: Tensor | None = None, swing: Tensor | None = None) -> Tensor:
        """Samples of recordings (B,), translated and transformed, (T, B, bodies, joints, 3).

        For `where`, (T, B), see `sample_frames`. `turns`, (B, 3, 3), multiply all points of a sample, and `swing`,
        (B,), its movement about the mean pose.
        """
        starts, lengths = self._starts[items], self._lengths[items]
        frames, joints = self.recordings.frames, self.joints
        x = _rows(frames, starts + sample_frames(lengths, where))
        first = _first_seen(frames[:, 0], starts, lengths)
        if self.samples.align:
            rotation = aligned(first, joints)
            turns = rotation if turns is None else turns @ rotation
        if self.samples.resize:
            turns = sized(first, joints) * (torch.eye(3) if turns is None else turns)
        x = place(x, first, joints, turns)
        return x if swing is None else swung(x, swing)

    def inputs(self, items: Tensor, where: Tensor, *, shown: Tensor | None = None, **changes: Tensor | None) -> Tensor:
        """The features of `bodies`, as a network reads them, (T, B, features); for `shown`, see `features_of`."""
        return features_of(self.bodies(items, where, **changes), self.joints, self.samples.features, shown)

    def log_probabilities(self, model: nn.Module, split: str, shard: Shard) -> Iterator[tuple[Tensor, Tensor]]:
        """For each batch of a split, log-probabilities, (B, classes), averaged over draws, and labels."""
        device, batches = next(model.parameters()).device, torch.arange(self.size(split)).split(self.batch_size)
        for number in range(shard.index, len(batches), shard.count):
            recordings, target = self._of(split, batches[number])
            total: Any = 0.0
            for draw in range(self.draws[split]):
                source = generator(self.seed, "draws", split, number, draw)
                where = torch.rand(self.samples.frames, len(target), generator=source, dtype=torch.float64)
                inputs = self.inputs(recordings, where).to(device)
                output = self._output(model, Batch(inputs, target, len(target), len(target)))
                total = total + F.log_softmax(output.float(), dim=1)
            yield total / self.draws[split], target.to(device)

    def _measure(self, model: nn.Module, split: str, shard: Shard, prefix: str = "") -> Iterator[Measured]:
        for mean, target in self.log_probabilities(model, split, shard):
            right = (mean.argmax(1) == target).double().mean()
            yield {f"{prefix}loss": F.nll_loss(mean, target), f"{prefix}accuracy": right}, len(target)


def _first_seen(frames: np.ndarray[Any, Any], starts: Tensor, lengths: Tensor) -> Tensor:
    """The main body (ΣT, J, 3) in the first frame of each recording that has it, (B, J, 3); zero if none has."""
    first = _rows(frames, starts)
    for step in range(1, int(lengths.max())):
        missing = ~first.flatten(1).any(1) & (step < lengths)
        if not missing.any():
            break
        first[missing] = _rows(frames, (starts + step)[missing])
    return first


def _rows(frames: np.ndarray[Any, Any], rows: Tensor) -> Tensor:
    """Rows of an array that may be a memory map, as float32."""
    return torch.from_numpy(np.asarray(frames)[rows.numpy()]).float()


def sample_frames(lengths: Tensor, where: Tensor) -> Tensor:
    """Indices (T, B) of one frame from each of T equal parts of recordings (B,): ⌊(t + r_t) · length / T⌋.

    `where`, (T, B) in [0, 1), is r. In a recording shorter than T frames, frames are taken more than once.
    """
    steps = where.shape[0]
    time = torch.arange(steps).unsqueeze(1)
    last = ((time + 1) * lengths - 1) // steps  # where t + r was rounded up, the part's last frame
    return torch.minimum(((time + where) * lengths / steps).long(), last)


def features_of(x: Tensor, joints: Joints, features: tuple[Feature, ...], shown: Tensor | None = None) -> Tensor:
    """The features of samples (T, B, M, J, 3), in which an absent body is all zeros, concatenated: (T, B, features).

    Differences are x_{t+1} − x_t, zero in the last frame and where the body is missing in one of the two; velocities,
    these times T, are on the scale of the coordinates. Joints that are not `shown`, (B, J), are set to the origin.
    """
    here = present(x)  # before joints are hidden, all of them perhaps
    x = x if shown is None else x * shown[:, None, :, None]
    return torch.cat([_feature(name, x, joints, here).flatten(2) for name in features], dim=-1)


def _feature(name: Feature, x: Tensor, joints: Joints, here: Tensor) -> Tensor:
    if name == "coordinates":
        return x
    if name == "relative":
        return x - x[..., joints.centre : joints.centre + 1, :]
    if name == "bones":
        return _along(joints.bones, x)
    if name == "distances":
        return _distances(x, joints)
    moved = torch.zeros_like(x)
    torch.sub(x[1:], x[:-1], out=moved[:-1])
    if x.shape[3] > 1:  # a single joint may well be at the origin
        moved[:-1] *= here[1:] & here[:-1]
    return moved if name == "differences" else moved * len(x)


def _along(pairs: Sequence[Pair], x: Tensor) -> Tensor:
    """Vectors from the first to the second joint of each pair, of bodies (..., J, 3)."""
    first, second = torch.tensor(pairs).unbind(1)
    return x[..., second, :] - x[..., first, :]


def _distances(x: Tensor, joints: Joints) -> Tensor:
    """|(p − a) × d| for a line through a along d, |d| = 1: linear in (p, 1), so one small product for each body."""
    first, second = torch.tensor(joints.lines).unbind(1)
    line, joint = torch.tensor(joints.distances).unbind(1)
    # From the centre: the numbers below are then no larger than a body
    body = (x - x[..., joints.centre : joints.centre + 1, :]).flatten(0, 2)  # (T B M, J, 3)
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


def present(x: Tensor) -> Tensor:
    """Whether a body is in a frame: (T, B, M, 1, 1)."""
    return (x != 0).flatten(-2).any(-1)[..., None, None]


def place(x: Tensor, first: Tensor, joints: Joints, turn: Tensor | None = None) -> Tensor:
    """Move samples (T, B, M, J, 3) to the centre of `first`, (B, J, 3), and turn them; an absent body stays zero."""
    moved = x - first[:, None, joints.centre : joints.centre + 1]
    if turn is not None:
        moved = torch.matmul(moved.flatten(2, 3), turn.transpose(1, 2)).view(x.shape)
    return moved.mul_(present(x))


def aligned(first: Tensor, joints: Joints) -> Tensor:
    """Rotations (B, 3, 3) that bring `up` of the first frame (B, J, 3) onto y, and `across` into the xy plane."""
    up, across = _along([pair for pair in (joints.up, joints.across) if pair is not None], first).unbind(1)
    y = F.normalize(up, dim=1)
    x = F.normalize(across - (across * y).sum(1, keepdim=True) * y, dim=1)
    rotation = torch.stack([x, y, torch.linalg.cross(x, y)], dim=1)
    usable = (rotation.norm(dim=2) > 0.5).all(1)[:, None, None]  # a body whose joints fall together stays as it is
    return torch.where(usable, rotation, torch.eye(3))


def sized(first: Tensor, joints: Joints) -> Tensor:
    """Scale factors (B, 1, 1) after which bodies have a mean bone length of 1/4 in the first frame."""
    mean = _along(joints.bones, first).norm(dim=2).mean(1)
    return torch.where(mean > 0, 0.25 / mean, 1.0)[:, None, None]


def swung(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the movement of samples (T, B, M, J, 3) about the mean pose of the bodies present by a factor (B,)."""
    here = present(x)
    # Frame by frame: torch's sum over a dimension rounds by the size of the others; pieces of a batch are the same bits
    total = functools.reduce(torch.add, x.unbind(0))
    mean = total / here.sum(0).clamp_min(1)  # (B, M, J, 3)
    return (mean + (x - mean) * factor[:, None, None, None]) * here


def random_turns(count: int, turn: float, tilt: float, scale: float, source: torch.Generator) -> Tensor:
    """Random rotations by ± `turn` degrees about y and ± `tilt` about x and z, times 1 ± `scale`: (count, 3, 3)."""
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


def held_out(items: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Divide items at random into those to train on and a fraction for validation, both in ascending order."""
    order = torch.randperm(len(items), generator=generator(seed, "split")).numpy()
    count = max(1, round(fraction * len(items))) if fraction else 0
    if count == len(items):
        what = f"{fraction} of {len(items):,} leaves none; 0 keeps none back"
        raise ValueError(f"validation must leave recordings to train on, and {what}")
    return np.sort(items[order[count:]]), np.sort(items[order[:count]])


def split_by_subject(
    recordings: Recordings, *, test: tuple[int, ...] = (), validation: tuple[int, ...] | float = 0.0, seed: int = 0
) -> tuple[Indices, Indices, Indices]:
    """Indices of recordings for training, validation and test, by subjects; `validation` may be a share at random."""
    subjects = validation if isinstance(validation, tuple) else ()
    everyone = np.unique(recordings.subject)
    for name, chosen in {"test_subjects": test, "validation_subjects": subjects}.items():
        if unknown := [subject for subject in chosen if subject not in everyone]:
            raise ValueError(f"{name} must be of the subjects {', '.join(map(str, everyone))}, got {unknown[0]}")
    train = np.flatnonzero(~np.isin(recordings.subject, [*test, *subjects]))
    if not len(train):
        raise ValueError("test_subjects and validation_subjects must leave recordings to train on, and leave none")
    for_validation = np.flatnonzero(np.isin(recordings.subject, subjects))
    if not isinstance(validation, tuple):
        train, for_validation = held_out(train, validation, seed)
    return train, for_validation, np.flatnonzero(np.isin(recordings.subject, test))
