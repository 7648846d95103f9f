"""Skeleton recordings in memory: concatenated sequences of joint positions, with labels and other fields."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._lazy import Lazy
from ...files import checksum
from ..npz import decoded, read_arrays

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Lazy("numpy")

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
        if self.frames.ndim != 4 or self.frames.shape[3] != 3 or self.frames.dtype != np.float32:
            raise ValueError(
                f"frames must be (ΣT, bodies, joints, 3) in float32, got {self.frames.shape} in {self.frames.dtype}"
            )
        n = len(self.lengths)
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
        if total != len(self.frames):
            raise ValueError(
                f"lengths must add up to the {len(self.frames)} frames that are there, and add up to {total}"
            )
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

    Args:
        path: the file. It has frames, (ΣT, joints, 3) or (ΣT, bodies, joints, 3), and, for each of n sequences, its
            length, label and subject. Other arrays of n entries become `fields`.
        frames_field: name of the array of frames.
        lengths_field: name of the array of lengths.
        label_field: name of the array of labels, integers or strings. They are numbered from 0 in sorted order, and
            the originals kept in `fields`.
        subject_field: name of the array of subjects.

    Raises:
        ValueError: if a field is missing or wrong; the message names the file and the field.
        FileNotFoundError: if there is no such file.
    """
    own = (frames_field, lengths_field, label_field, subject_field)
    arrays = read_arrays(path, own)
    try:
        for name in own:
            if name not in arrays:
                raise ValueError(f"it has no {name}; it has {', '.join(arrays) or 'no arrays'}")
        frames = _frames(frames_field, arrays[frames_field])
        lengths = _whole(lengths_field, arrays[lengths_field])
        subject = _whole(subject_field, arrays[subject_field])
        label = arrays[label_field] = _label(label_field, arrays[label_field])
        for name in (label_field, subject_field, *({"view"} & arrays.keys())):
            if arrays[name].shape != lengths.shape:
                raise ValueError(
                    f"{name} must have the shape {lengths.shape}, as {lengths_field} has, got {arrays[name].shape}"
                )
        numbered = np.unique(label, return_inverse=True)[1].astype(np.int64)
        others = arrays.keys() - ({*own} - {label_field})
        fields = {name: array for name, array in arrays.items() if array.shape == lengths.shape and name in others}
        read = Recordings(frames, lengths, numbered, subject, fields)
        broken = ~np.isfinite(frames).all((1, 2, 3))
        if broken.any():
            at = int(broken.argmax())
            sequence = int(np.searchsorted(read.starts, at, "right")) - 1
            raise ValueError(
                f"{frames_field} must be finite, and frame {at - read.starts[sequence]} of sequence {sequence} is not"
            )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return read


def _frames(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    if array.ndim not in (3, 4) or array.shape[-1] != 3 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise ValueError(
            f"{name} must be numbers of the shape (ΣT, joints, 3) or (ΣT, bodies, joints, 3), got {array.shape} in "
            f"{array.dtype}"
        )
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused as that
        array = array.astype(np.float32, copy=False)
    return array[:, None] if array.ndim == 3 else array


def _label(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "iuUS":
        raise ValueError(f"{name} must be (n,) whole numbers or words, got {array.shape} in {array.dtype}")
    try:
        return decoded(array)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be words in UTF-8: {error}") from None


def _whole(name: str, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be (n,) whole numbers, got {array.shape} in {array.dtype}")
    return array.astype(np.int64)


# ---- what `indrnn prepare` wrote


def read_prepared(folder: Path, *, verify: bool = False) -> Recordings:
    """Read the folder that `indrnn prepare` wrote; frames are a memory map.

    Args:
        folder: the folder.
        verify: whether to verify the frames' checksum too, which reads all of them. Their size and the index's
            checksum are always verified.

    Returns:
        The recordings, sorted by name. Labels are actions minus 1, subjects are performers; fields are
        "name", "setup", "camera", "performer", "replication", "action", "body_1" and "body_2" (Kinect's ids).

    Raises:
        ValueError: if the folder holds no such files, or they have changed since they were written.
        FileNotFoundError: if there is no such folder.
    """
    manifest = _manifest(folder)
    for name, about in manifest["files"].items():
        _check(folder / name, about, verify or name == INDEX)
    columns = _index(folder / INDEX)
    fields: dict[str, NDArray[Any]] = {name: columns[name] for name in columns if name != "length"}
    try:
        frames = np.load(folder / FRAMES, mmap_mode="r", allow_pickle=False)
        return Recordings(frames, columns["length"], columns["action"] - 1, columns["performer"], fields)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}; prepare it anew") from None


def _manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, files = manifest["format"], manifest["files"]
        sound = all(isinstance(files[name]["bytes"], int) for name in (FRAMES, INDEX))
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a folder that `indrnn prepare` has finished: it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}") from None
    if version != FORMAT or not sound:
        raise ValueError(f"{path} has format {version}, and {FORMAT} is expected; prepare it anew with this version")
    return dict(manifest)


def _check(path: Path, about: Mapping[str, Any], verify: bool) -> None:
    try:
        size = path.stat().st_size
        if size != about["bytes"]:
            raise ValueError(f"{path} has {size} bytes, not the {about['bytes']} that were written; prepare it anew")
        if verify and checksum(path) != about["sha256"]:
            raise ValueError(f"{path} has another checksum than when it was written; prepare it anew")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


def _index(path: Path) -> dict[str, NDArray[Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)  # as it was written: its checksum was verified
    if tuple(head) != ("name", *COLUMNS):
        raise ValueError(f"{path} must have the columns {', '.join(('name', *COLUMNS))}; prepare it anew")
    names, *numbers = zip(*rows, strict=True)
    columns = [np.array([int(number) for number in column], dtype=np.int64) for column in numbers]
    return {"name": np.array(names, dtype=np.str_), **dict(zip(COLUMNS, columns, strict=True))}
