"""Recordings: read from one .npz file or a prepared folder, and refused with a word where they are not right."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indrnn.tasks.skeleton.ntu.prepare import prepare
from indrnn.tasks.skeleton.recipe import NtuOptions
from indrnn.tasks.skeleton.recordings import Recordings, read_npz, read_prepared

from .ntu.writer import Body, moving, text_of

Arrays = dict[str, Any]


def arrays(**changes: Any) -> Arrays:
    """Three sequences of 2, 1 and 4 frames with 5 joints, as `.npz` files have them."""
    usual = {
        "frames": np.random.default_rng(0).normal(size=(7, 5, 3)).astype(np.float32),
        "lengths": np.array([2, 1, 4]),
        "label": np.array([30, 10, 30]),
        "subject": np.array([1, 2, 7], dtype=np.uint8),
        "view": np.array([0, 1, 0]),
    }
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def saved(path: Path, **changes: Any) -> Path:
    np.savez(path / "set.npz", **arrays(**changes))
    return path / "set.npz"


# ---- .npz


def test_an_npz_file_is_read(tmp_path: Path) -> None:
    read = read_npz(saved(tmp_path))
    assert len(read) == 3
    assert read.frames.shape == (7, 1, 5, 3)
    assert np.array_equal(read.frames[:, 0], arrays()["frames"])
    assert read.starts.tolist() == [0, 2, 3]
    assert np.array_equal(read.sequence(2), read.frames[3:7])
    assert read.label.tolist() == [1, 0, 1]
    assert read.fields["label"].tolist() == [30, 10, 30]
    assert read.subject.tolist() == [1, 2, 7]
    assert read.fields["view"].tolist() == [0, 1, 0]
    assert {array.dtype for array in (read.lengths, read.label, read.subject, read.starts)} == {np.dtype(np.int64)}


def test_several_bodies_other_names_words_as_labels_and_doubles(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).normal(size=(7, 2, 5, 3))
    changes = {"frames": None, "label": None, "subject": None, "positions": frames, "who": np.array([5, 5, 5])}
    path = saved(tmp_path, **changes, what=np.array(["wave", "clap", "wave"]))
    read = read_npz(path, frames_field="positions", label_field="what", subject_field="who")
    assert np.array_equal(read.frames, frames.astype(np.float32))
    assert read.label.tolist() == [1, 0, 1]
    assert read.fields["what"].tolist() == ["wave", "clap", "wave"]


def test_subjects_may_be_the_labels_and_objects_are_passed_over(tmp_path: Path) -> None:
    path = saved(tmp_path, notes=np.array([{}, 1, 2], dtype=object))
    read = read_npz(path, label_field="subject")
    assert read.label.tolist() == [0, 1, 2]
    assert read.subject.tolist() == read.fields["subject"].tolist() == [1, 2, 7]
    assert "notes" not in read.fields


def test_damage_within_a_compressed_file_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez_compressed(path, **arrays())
    content = path.read_bytes()
    said = []
    for at in range(40, len(content), 25):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        with contextlib.suppress(ValueError):
            read_npz(path)
            continue
        with pytest.raises(ValueError, match=re.escape(f"{path}: ")) as refused:
            read_npz(path)
        said.append(str(refused.value))
    assert len(said) > 10
    assert all(each.startswith(f"{path}: ") for each in said)


WRONG: dict[str, tuple[Arrays, str]] = {
    "no frames": ({"frames": None}, "it has no frames; it has lengths, label, subject, view"),
    "no label": ({"label": None}, "it has no label; it has frames, lengths, subject, view"),
    "no subject": ({"subject": None}, "it has no subject"),
    "no lengths": ({"lengths": None}, "it has no lengths"),
    "lengths too short": ({"lengths": np.array([2, 1, 3])}, "lengths must add up to the 7 frames that are there, and"),
    "lengths too long": ({"lengths": np.array([2, 1, 5])}, "lengths must add up to the 7 frames that are there, and"),
    "lengths that add up beyond the largest number": (
        {"lengths": np.array([2**62] * 4 + [7]), **dict.fromkeys(("label", "subject", "view"), np.arange(5))},
        "lengths must add up to the 7 frames that are there, and add up to 18446744073709551623",
    ),
    "words in no known writing": ({"label": np.array([b"\xff", b"a", b"b"])}, "label must be words in UTF-8"),
    "a length of 0": ({"lengths": np.array([3, 0, 4])}, "lengths must be at least 1, got 0 for sequence 1"),
    "a negative length": ({"lengths": np.array([4, -1, 4])}, "lengths must be at least 1, got -1 for sequence 1"),
    "a fraction": ({"lengths": np.array([2.0, 1.0, 4.0])}, "lengths must be (n,) whole numbers, got (3,) in float64"),
    "labels of other sequences": (
        {"label": np.array([1, 2])},
        "label must have the shape (3,), as lengths has, got (2,)",
    ),
    "labels that are numbers": ({"label": np.array([0.5, 1, 2])}, "label must be (n,) whole numbers or words"),
    "two dimensions": ({"frames": np.zeros((7, 15))}, "frames must be numbers of the shape (ΣT, joints, 3)"),
    "coordinates in the plane": ({"frames": np.zeros((7, 5, 2))}, "frames must be numbers of the shape"),
    "frames of words": ({"frames": np.full((7, 5, 3), "x")}, "frames must be numbers of the shape"),
    "no sequence": ({"frames": np.zeros((0, 5, 3)), "lengths": np.zeros(0, int)}, "frames must be numbers of the"),
    "nan": ({"frames": np.where(np.arange(7) == 4, np.nan, 0)[:, None, None] + np.zeros((7, 5, 3))}, "frame 1 of sequ"),
    "too large": ({"frames": np.full((7, 5, 3), 1e39)}, "frames must be finite, and frame 0 of sequence 0 is not"),
    "objects": (
        {"label": np.array([{}, 1, 2], dtype=object)},
        "label is an array of Python objects, which could run code when it is read; write numbers or words",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_npz_file_that_is_not_right_is_refused(kind: str, tmp_path: Path) -> None:
    changes, word = WRONG[kind]
    path = saved(tmp_path, **changes)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + re.escape(word)):
        read_npz(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04torn", b"text"], ids=["empty", "torn", "text"])
def test_a_file_that_is_no_npz_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: ")):
        read_npz(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"it cannot be read as \.npz: it is one array"):
        read_npz(tmp_path / "one.npy")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_npz(tmp_path / "none.npz")


UTD = Path(os.environ.get("INDRNN_DATA") or "nowhere") / "skeleton" / "utd_mhad.npz"


@pytest.mark.skipif(not UTD.is_file(), reason="INDRNN_DATA names no folder with skeleton/utd_mhad.npz in it")
def test_utd_mhad_as_it_is() -> None:
    read = read_npz(UTD, label_field="action")
    assert len(read) == 861
    assert read.frames.shape == (58_299, 1, 20, 3)
    assert np.unique(read.label).tolist() == list(range(27))
    assert (read.subject % 2 == 1).sum() == 431


def test_fields_of_other_lengths_are_refused() -> None:
    ones = np.ones(2, dtype=np.int64)
    with pytest.raises(ValueError, match="view must have one entry for each of 2 sequences"):
        Recordings(np.zeros((2, 1, 5, 3), dtype=np.float32), ones, ones, ones, {"view": np.zeros(3)})
    with pytest.raises(ValueError, match="label must be numbers from 0, got -1"):
        Recordings(np.zeros((2, 1, 5, 3), dtype=np.float32), ones, -ones, ones)


# ---- a prepared folder


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    (tmp_path / "ntu").mkdir()
    for k in (1, 2):
        text = text_of([[Body(joints)] for joints in moving(3 + k)])
        (tmp_path / "ntu" / f"S001C001P001R001A{k:03}.skeleton").write_bytes(text)
    prepare(NtuOptions([tmp_path / "ntu"], tmp_path / "out", workers=1))
    return tmp_path / "out"


def test_changed_files_are_found(prepared: Path) -> None:
    read_prepared(prepared, verify=True)
    path = prepared / "frames.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    read_prepared(prepared)
    with pytest.raises(ValueError, match=r"frames.npy has another checksum"):
        read_prepared(prepared, verify=True)
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"frames.npy has \d+ bytes, not the \d+ that were written"):
        read_prepared(prepared)
    path.unlink()
    with pytest.raises(ValueError, match=r"frames.npy cannot be read: No such file"):
        read_prepared(prepared)


@pytest.mark.parametrize("byte", [b"\xff", b'"', b"9"])
def test_a_changed_index_is_found(byte: bytes, prepared: Path) -> None:
    path = prepared / "index.csv"
    content = path.read_bytes()
    path.write_bytes(content[:100] + byte + content[101:])
    with pytest.raises(ValueError, match=r"index.csv has another checksum than when it was written; prepare it anew"):
        read_prepared(prepared)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "files": {}}', '{"format": 1, "files": 3}'])
def test_a_torn_manifest_is_found(content: str, prepared: Path) -> None:
    (prepared / "prepared.json").write_text(content)
    with pytest.raises(ValueError, match=r"prepared.json cannot be read"):
        read_prepared(prepared)


def test_folders_that_are_not_prepared_are_refused(prepared: Path, tmp_path: Path) -> None:
    manifest = (prepared / "prepared.json").read_text()
    (prepared / "prepared.json").write_text(manifest.replace('"format": 1', '"format": 99'))
    with pytest.raises(ValueError, match=r"prepared.json has format 99, and 1 is expected"):
        read_prepared(prepared)
    with pytest.raises(ValueError, match="is not a folder that `indrnn prepare` has finished"):
        read_prepared(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        read_prepared(tmp_path / "nowhere")
