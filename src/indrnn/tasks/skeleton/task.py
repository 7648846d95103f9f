"""Skeleton action recognition: samples of a few frames, drawn anew each time from recordings of any length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._lazy import Lazy
from ...checks import check_count, check_fraction, check_seed
from ...training.task import Batch, Measured, Shard, TensorTask, generator, rows_of
from .features import FEATURES, Feature, aligned, features_of, place, random_turns, sample_frames, sized, swung
from .joints import Joints

if TYPE_CHECKING:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from .recordings import Recordings
else:
    np, torch, F = Lazy("numpy"), Lazy("torch"), Lazy("torch.nn.functional")

Indices: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True)
class Sampling:
    """Sampling of recordings: frames, features and data augmentation."""

    frames: int = 20
    """Frames per sample: the recording is divided into as many equal parts, and one frame drawn from each."""
    shortest: int | None = None
    """Minimum frames per sample, if each training batch draws the number, up to `longest`, in place of `frames`."""
    longest: int | None = None
    """Maximum frames per sample; see `shortest`."""
    features: tuple[Feature, ...] = ("coordinates",)
    """Input features. coordinates; relative: from the body's centre in each frame; differences: between frames;
    velocities: differences times the number of frames; bones: as vectors; distances: from joints to lines of joints."""
    align: bool = False
    """Rotate each recording so that its main body stands upright in its first frame and faces the camera."""
    resize: bool = False
    """Scale bodies to one size, by the mean bone length of the main body in the first frame."""
    turn: float = 0.0
    """Data augmentation: maximum random rotation about the vertical axis, in degrees either way."""
    tilt: float = 0.0
    """Data augmentation: maximum random rotation about each of the other two axes, in degrees either way."""
    scale: float = 0.0
    """Data augmentation: random scaling of sizes by a factor in 1 ± scale."""
    hide: float = 0.0
    """Data augmentation: probability that a joint is hidden (set to the origin) in all frames of a sample."""
    swing: float = 0.0
    """Data augmentation: random scaling of the movement about the mean pose by a factor in 1 ± swing."""
    draws: int = 20
    """Samples per recording at test, whose log-probabilities are averaged."""
    validation_draws: int = 5
    """Samples per recording in evaluations during training, averaged likewise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        check_count("frames", self.frames)
        if (self.shortest is None) != (self.longest is None):
            raise ValueError(f"shortest and longest must be given together, got {self.shortest!r} and {self.longest!r}")
        if self.shortest is not None and self.longest is not None:
            check_count("shortest", self.shortest)
            check_count("longest", self.longest, least=self.shortest)
        if not self.features or not set(self.features) <= set(FEATURES):
            raise ValueError(f"features must be some of {', '.join(FEATURES)}, got {self.features!r}")
        if len(set(self.features)) < len(self.features):
            raise ValueError(f"features must be named once each, got {self.features!r}")
        for name in ("turn", "tilt"):
            if not 0 <= getattr(self, name) <= 180:
                raise ValueError(f"{name} must be degrees from 0 to 180, got {getattr(self, name)!r}")
        for name in ("scale", "hide", "swing"):
            check_fraction(name, getattr(self, name))
        check_count("draws", self.draws)
        check_count("validation_draws", self.validation_draws)

    def check(self, joints: Joints) -> None:
        """Raise for options that these joints do not support."""
        needs = {
            "features: distances need the lines": "distances" in self.features and not joints.lines,
            "features: bones need the bones": "bones" in self.features and not joints.bones,
            "align needs up and across": self.align and None in (joints.up, joints.across),
            "resize needs the bones": self.resize and not joints.bones,
        }
        for need, lacking in needs.items():
            if lacking:
                raise ValueError(f"{need} of the joints; give a file of them (--joints)")


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
        indices = (train, validation, test)
        parts: list[Any] = [(i, recordings.label[i]) if i is not None and len(i) else None for i in indices]
        smoothed = partial(F.cross_entropy, label_smoothing=label_smoothing)
        super().__init__(*parts, batch_size=batch_size, loss=smoothed, seed=seed)
        self.label_smoothing = label_smoothing
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
        """See `Task.batch`."""
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

    def draws(self, split: str) -> int:
        """Samples per recording of "test" or of another split."""
        return self.samples.draws if split == "test" else self.samples.validation_draws

    def log_probabilities(self, model: nn.Module, split: str, shard: Shard) -> Iterator[tuple[Tensor, Tensor]]:
        """For each batch of a split, log-probabilities, (B, classes), averaged over draws, and labels."""
        device, size = next(model.parameters()).device, self.size(split)
        for number in range(shard.index, -(-size // self.batch_size), shard.count):
            items = torch.arange(number * self.batch_size, min((number + 1) * self.batch_size, size))
            recordings, target = self._of(split, items)
            total: Any = 0.0
            for draw in range(self.draws(split)):
                source = generator(self.seed, "draws", split, number, draw)
                where = torch.rand(self.samples.frames, len(items), generator=source, dtype=torch.float64)
                inputs = self.inputs(recordings, where).to(device)
                output = self._output(model, Batch(inputs, target, len(items), len(items)))
                total = total + F.log_softmax(output.float(), dim=1)
            yield total / self.draws(split), target.to(device)

    def _measure(self, model: nn.Module, split: str, shard: Shard, prefix: str = "") -> Iterator[Measured]:
        for mean, target in self.log_probabilities(model, split, shard):
            right = (mean.argmax(1) == target).double().mean()
            yield {f"{prefix}loss": F.nll_loss(mean, target), f"{prefix}accuracy": right}, len(target)


def _first_seen(frames: np.ndarray[Any, Any], starts: Tensor, lengths: Tensor) -> Tensor:
    """The main body (ΣT, J, 3) in the first frame of each recording that has it, (B, J, 3); zero if none has."""
    first = _rows(frames, starts)
    missing = ~first.flatten(1).any(1)
    for step in range(1, int(lengths.max())):
        missing &= step < lengths
        if not missing.any():
            break
        first[missing] = _rows(frames, (starts + step)[missing])
        missing &= ~first.flatten(1).any(1)
    return first


def _rows(frames: np.ndarray[Any, Any], rows: Tensor) -> Tensor:
    """Rows of an array that may be a memory map, as float32."""
    return torch.from_numpy(np.asarray(frames)[rows.numpy()]).float()


# ---- divisions into training, validation and test


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
    """Indices of the recordings for training, validation and test.

    `test` and `validation` are subjects; or `validation` is the fraction of those not for test to draw at random.
    """
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
