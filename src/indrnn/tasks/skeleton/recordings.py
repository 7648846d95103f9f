"""Skeleton recordings in memory: concatenated sequences of joint positions, with labels and other fields."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import checksum
from ..npz import Array, decoded, read_arrays

FRAMES, INDEX, MANIFEST = "frames.npy", "index.csv", "prepared.json"
"""Files that `indrnn prepare` leaves in its folder; the last is written when all else is there."""
FORMAT = 1
"""Number of the format of these files; a folder of another format is prepared anew."""
COLUMNS = ("setup", "camera", "performer", "replication", "action", "length", "body_1", "body_2")
"""Columns of whole numbers in the index, after the name."""


@dataclass(frozen=True)
class Recordings:
    """Sequences of skeletons."""

    frames: NDArray[np.float32]
    """Joints of all sequences, concatenated, (ΣT, bodies, joints, 3); may be a memory map. An absent body is zero."""
    lengths: NDArray[np.int64]
    """Number of frames of each sequence, (n,)."""
    label: NDArray[np.int64]
    """Class of each sequence, from 0, (n,)."""
    subject: NDArray[np.int64]
    """Subject (person) of each sequence, (n,)."""
    fields: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Other fields of the sequences, by name, such as "camera" or "view", (n,) each."""

    def __post_init__(self) -> None:
        frames, n = self.frames, len(self.lengths)
        if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.float32:
            raise ValueError(f"frames must be (ΣT, bodies, joints, 3) in float32, got {frames.shape} in {frames.dtype}")
        for name, array in {"lengths": self.lengths, "label": self.label, "subject": self.subject}.items():
            if array.shape != (n,) or array.dtype != np.int64:
                raise ValueError(f"{name} must be ({n},) in int64, got {array.shape} in {array.dtype}")
        for name, array in self.fields.items():
            if array.shape != (n,):
                raise ValueError(f"{name} must have one entry for each of {n} sequences, got {array.shape}")
        if n and self.lengths.min() < 1:
            at = int(self.lengths.argmin())
            raise ValueError(f"lengths must be at least 1, got {self.lengths[at]} for sequence {at}")
        total = sum(self.lengths.tolist())  # of any size
        if total != len(frames):
            raise ValueError(f"lengths must add up to the {len(frames)} frames that are there, and add up to {total}")
        if n and self.label.min() < 0:
            raise ValueError(f"label must be numbers from 0, got {self.label.min()}")

    def __len__(self) -> int:
        return len(self.lengths)

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """(n,) int64, the first frame of each sequence."""
        return np.cumsum(self.lengths) - self.lengths

    def sequence(self, index: int) -> NDArray[np.float32]:
        """The frames of one sequence, (T, bodies, joints, 3)."""
        start = self.starts[index]
        return self.frames[start : start + self.lengths[index]]


def read_npz(
    path: Path,
    *,
    frames_field: str = "frames",
    lengths_field: str = "lengths",
    label_field: str = "label",
    subject_field: str = "subject",
) -> Recordings:
    """Read a skeleton set from one `.npz` file.

    It has frames, (ΣT, joints, 3) or (ΣT, bodies, joints, 3), and, for each of n sequences, its length, label and
    subject, in arrays of these names. Labels, integers or strings, are numbered from 0 in sorted order, and the
    originals kept in `fields`; so are other arrays of n entries.
    """
    names = (frames_field, lengths_field, label_field, subject_field)
    arrays = read_arrays(path, names)
    try:
        return _recordings(arrays, *names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _recordings(arrays: dict[str, Array], *names: str) -> Recordings:
    frames_field, lengths_field, label_field, subject_field = names
    for name in names:
        if name not in arrays:
            raise ValueError(f"it has no {name}; it has {', '.join(arrays) or 'no arrays'}")
    frames, lengths, subject = arrays[frames_field], arrays[lengths_field], arrays[subject_field]
    if frames.ndim not in (3, 4) or frames.shape[-1] != 3 or frames.dtype.kind not in "fiu" or 0 in frames.shape:
        shapes = "(ΣT, joints, 3) or (ΣT, bodies, joints, 3)"
        raise ValueError(f"{frames_field} must be numbers of the shape {shapes}, got {frames.shape} in {frames.dtype}")
    whole = ("iu", "whole numbers")
    kinds = {lengths_field: whole, label_field: ("iuUS", "whole numbers or words"), subject_field: whole}
    for name, (kind, what) in kinds.items():
        array = arrays[name]
        if array.ndim != 1 or array.dtype.kind not in kind:
            raise ValueError(f"{name} must be (n,) {what}, got {array.shape} in {array.dtype}")
        if array.shape != lengths.shape:
            raise ValueError(f"{name} must have the shape {lengths.shape}, as {lengths_field} has, got {array.shape}")
    try:
        label = decoded(arrays[label_field])
    except UnicodeDecodeError as error:
        raise ValueError(f"{label_field} must be words in UTF-8: {error}") from None
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused as that
        frames = frames.astype(np.float32, copy=False).reshape(len(frames), -1, *frames.shape[-2:])
    fields = {name: array for name, array in arrays.items() if array.shape == lengths.shape}
    fields = {name: fields[name] for name in fields if name not in (lengths_field, subject_field)}
    numbered = np.unique(label, return_inverse=True)[1]
    lengths, numbered, subject = (array.astype(np.int64) for array in (lengths, numbered, subject))
    recordings = Recordings(frames, lengths, numbered, subject, fields | {label_field: label})
    broken = ~np.isfinite(frames).all((1, 2, 3))
    if broken.any():
        at = int(broken.argmax())
        sequence = int(np.searchsorted(recordings.starts, at, "right")) - 1
        frame = at - recordings.starts[sequence]
        raise ValueError(f"{frames_field} must be finite, and frame {frame} of sequence {sequence} is not")
    return recordings


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `indrnn prepare` wrote last; raises `ValueError` if the folder is not finished, or of another format."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, _ = manifest["format"], [manifest["files"][name]["bytes"] for name in (FRAMES, INDEX)]
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a folder that `indrnn prepare` has finished: it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}") from None
    if version != FORMAT:
        raise ValueError(f"{path} has format {version}, and {FORMAT} is expected; prepare it anew with this version")
    return manifest


def read_prepared(folder: Path, *, verify: bool = False) -> Recordings:
    """Read the recordings in a folder that `indrnn prepare` wrote, sorted by name; frames are a memory map.

    Labels are actions minus 1, subjects are performers; fields are "name", "setup", "camera", "performer",
    "replication", "action", "body_1" and "body_2" (Kinect's ids). The size of the files and the index's checksum are
    always verified; with `verify` the frames' checksum too, which reads all of them. A missing folder is a
    `FileNotFoundError`; files that are missing, or have changed since they were written, are a `ValueError`.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    for name, written in read_manifest(folder)["files"].items():
        path = folder / name
        try:
            if (size := path.stat().st_size) != written["bytes"]:
                expected = f"not the {written['bytes']} that were written"
                raise ValueError(f"{path} has {size} bytes, {expected}; prepare it anew")
            if (verify or name == INDEX) and checksum(path) != written["sha256"]:
                raise ValueError(f"{path} has another checksum than when it was written; prepare it anew")
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    with (folder / INDEX).open(newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    names, *numbers = zip(*rows, strict=True)
    columns = {name: np.array(column).astype(np.int64) for name, column in zip(COLUMNS, numbers, strict=True)}
    lengths, fields = columns.pop("length"), {"name": np.array(names), **columns}
    try:
        frames = np.load(folder / FRAMES, mmap_mode="r", allow_pickle=False)
        return Recordings(frames, lengths, columns["action"] - 1, columns["performer"], fields)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}; prepare it anew") from None
