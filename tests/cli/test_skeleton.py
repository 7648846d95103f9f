"""`indrnn train skeleton-6 --data FILE ...`: recordings of one's own, from a file to a table."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..tasks.skeleton.ntu.writer import Body, moving, text_of
from .calls import FILES, Call, assert_done, assert_refused, contents, lines, read

TRAIN = ["train", "skeleton-6", "--label-field", "action", "--test-subjects", "2", "4", "--validation", "0.2"]
TRAIN += ["--model.hidden-size", "6", "--model.layers", "2", "--batch-size", "7", "--frames", "5", "--draws", "3"]
TRAIN += ["--evaluate-every", "4", "--threads", "1"]


def arrays(count: int = 32, joints: int = 6) -> dict[str, Any]:
    source = np.random.default_rng(0)
    lengths = source.integers(3, 30, count)
    return {
        "frames": source.standard_normal((lengths.sum(), joints, 3), dtype=np.float32),
        "lengths": lengths,
        "action": np.arange(count) % 3 + 1,
        "subject": np.arange(count) // 3 % 4 + 1,
        "view": np.zeros(count),
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A set of 32 recordings of 6 joints, 4 subjects and 3 actions."""
    np.savez(tmp_path / "set.npz", **arrays())
    return tmp_path / "set.npz"


def test_own_recordings_end_to_end(data: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call(*TRAIN, "--data", data, "--steps", "8", "--out", out))
    assert {path.name for path in out.iterdir()} >= FILES
    options = read(out, "config.json")["recipe"]
    assert (options["type"], options["data"], options["test_subjects"]) == ("SkeletonRecipe", str(data), [2, 4])
    assert options["sampling"]["frames"] == 5
    head = read(out, "model.json")
    assert (head["outputs"], head["network"]["input_size"], head["network"]["sequence_length"]) == (3, 18, 5)
    test = read(out, "result.json")["test"]
    assert f"accuracy {test['accuracy']:.6g}" in assert_done(call("evaluate", out)).out
    said = assert_done(call("report", out, "--out", tmp_path / "results"))
    row = said.out.splitlines()[2].split(" | ")
    assert row[:3] == ["| own recordings", "skeleton-6", "8"]
    best = max(line["accuracy"] for line in lines(out))
    assert row[4:6] == [f"{100 * best:.2f} %", f"{100 * test['accuracy']:.2f} %"]
    assert (tmp_path / "results" / "skeleton.png").read_bytes().startswith(b"\x89PNG")


def test_samples_and_confusion_are_drawn(data: Path, call: Call, tmp_path: Path) -> None:
    out, joints = tmp_path / "run", tmp_path / "joints.json"
    joints.write_text(json.dumps({"count": 6, "bones": [[0, 1], [1, 2], [1, 5], [3, 4]]}))
    assert_done(call(*TRAIN, "--data", data, "--joints", joints, "--steps", "2", "--out", out))
    said = assert_done(call("analyse", "skeletons", out, "--out", tmp_path / "pictures"))
    counts = np.array(read(tmp_path / "pictures", "confusion.json")["counts"])
    given = arrays()
    test = np.isin(given["subject"], (2, 4))
    assert counts.sum(1).tolist() == np.bincount(given["action"][test] - 1).tolist()
    right = round(read(out, "result.json")["test"]["accuracy"] * test.sum())
    assert counts.trace() == right
    assert f"{right} of {test.sum()} recordings right" in said.out
    for name in ("samples.png", "confusion.png"):
        assert (tmp_path / "pictures" / name).read_bytes().startswith(b"\x89PNG")
    assert_refused(call("analyse", "skeletons", out, "--out", tmp_path / "pictures"), "replace them with --overwrite")


def test_labels_keep_their_names_and_a_file_may_move(data: Path, call: Call, tmp_path: Path) -> None:
    given = arrays()
    given |= {"action": np.array(["wave", "clap", "nod"])[given["action"] - 1], "xyz": given.pop("frames")}
    np.savez(data, **given)
    out = tmp_path / "run"
    assert_done(call(*TRAIN, "--data", data, "--frames-field", "xyz", "--steps", "4", "--out", out))
    (tmp_path / "elsewhere").mkdir()
    data.rename(tmp_path / "elsewhere" / data.name)
    moved = ["--data-dir", tmp_path / "elsewhere"]
    assert_done(call("analyse", "skeletons", out, "--out", tmp_path / "drawn", *moved))
    assert read(tmp_path / "drawn", "confusion.json")["classes"] == ["clap", "nod", "wave"]


def test_words_of_bytes_are_words(data: Path, call: Call, tmp_path: Path) -> None:
    given = arrays()
    given["action"] = np.array([b"wave", b"clap", b"nod"])[given["action"] - 1]
    np.savez(data, **given)
    assert_done(call(*TRAIN, "--data", data, "--steps", "1", "--out", tmp_path / "run"))
    assert_done(call("analyse", "skeletons", tmp_path / "run", "--out", tmp_path / "drawn"))
    assert read(tmp_path / "drawn", "confusion.json")["classes"] == ["clap", "nod", "wave"]


@pytest.mark.parametrize("change", ["a class less", "labels reversed", "frames moved"])
def test_recordings_that_have_changed_are_not_measured(change: str, data: Path, call: Call, tmp_path: Path) -> None:
    out, given = tmp_path / "run", arrays()
    assert_done(call(*TRAIN, "--data", data, "--steps", "1", "--out", out))
    if change == "a class less":
        kept = given["action"] > 1
        given["frames"] = given["frames"][np.repeat(kept, given["lengths"])]
        given |= {name: given[name][kept] for name in ("lengths", "action", "subject", "view")}
    elif change == "labels reversed":
        given["action"] = 4 - given["action"]
    else:
        given["frames"] = given["frames"] + 1
    np.savez(data, **given)
    for command in (["evaluate", out], ["analyse", "skeletons", out, "--out", tmp_path / "drawn"]):
        assert_refused(call(*command), f"data: the recordings are no longer those of {out}")
    assert not (tmp_path / "drawn").exists()


def test_a_run_without_test_subjects_has_no_test(data: Path, call: Call, tmp_path: Path) -> None:
    at = TRAIN.index("--test-subjects")
    assert_done(call(*TRAIN[:at], *TRAIN[at + 3 :], "--data", data, "--steps", "1", "--out", tmp_path / "run"))
    assert_refused(call("evaluate", tmp_path / "run"), "run must have data for a test")


def test_a_run_with_relative_paths_is_resumed_from_anywhere(
    data: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "j.json").write_text('{"count": 6}')
    monkeypatch.chdir(tmp_path)
    assert_done(call(*TRAIN, "--data", data.name, "--joints", "j.json", "--steps", "4", "--out", "run"))
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert_done(call("evaluate", "../run"))
    for name in (data.name, "j.json"):
        (tmp_path / name).rename(tmp_path / "away" / name)
    assert_done(call("evaluate", "../run", "--data-dir", "."))


def test_joints_whose_order_is_assumed_are_told(call: Call, tmp_path: Path) -> None:
    for count in (20, 6):
        np.savez(tmp_path / "set.npz", **arrays(joints=count))
        done = call(*TRAIN, "--data", tmp_path / "set.npz", "--steps", "1", "--out", tmp_path / f"{count}")
        assert done.code == 0
        assert ("20 joints are taken to be in the order of UTD-MHAD" in done.err) == (count == 20)


def test_a_run_of_another_kind_has_no_skeletons(finished: Path, call: Call) -> None:
    assert_refused(call("analyse", "skeletons", finished), "run must be of a recipe such as ntu60-cs-4")


def test_a_run_is_resumed_with_the_same_result(data: Path, call: Call, tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    more = ["--data", data, "--features", "coordinates", "differences", "--turn", "20", "--shortest", "3"]
    more += ["--longest", "8", "--schedule", "constant"]
    assert_done(call(*TRAIN, *more, "--steps", "12", "--out", straight))
    assert_done(call(*TRAIN, *more, "--steps", "7", "--out", resumed))
    assert_done(call("train", "--resume", resumed, "--steps", "12"))
    assert (straight / "weights.safetensors").read_bytes() == (resumed / "weights.safetensors").read_bytes()
    assert read(straight, "result.json")["test"] == read(resumed, "result.json")["test"]


def test_without_validation_the_training_loss_decides(data: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call(*TRAIN, "--data", data, "--validation", "0", "--steps", "4", "--out", out))
    assert lines(out)[-1].keys() >= {"training_loss", "training_accuracy"}
    row = assert_done(call("report", out, "--out", tmp_path / "results")).out.splitlines()[2].split(" | ")
    assert row[4] == ""  # nothing was kept back
    assert row[5].endswith(" %")


def test_a_subject_is_left_out_for_validation(data: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call(*TRAIN, "--data", data, "--validation-subjects", "3", "--steps", "4", "--out", out))
    task = read(out, "config.json")["task"]
    subjects = arrays()["subject"]
    assert [task[name]["items"] for name in ("train", "validation", "test")] == [
        int(np.isin(subjects, of).sum()) for of in ([1], [3], [2, 4])
    ]


def test_joints_and_lines_of_a_file(data: Path, call: Call, tmp_path: Path) -> None:
    joints = tmp_path / "joints.json"
    joints.write_text(json.dumps({"count": 6, "lines": [[0, 1], [2, 5], [3, 4]]}))
    out = tmp_path / "run"
    features = ["--features", "coordinates", "distances", "--joints", joints]
    assert_done(call(*TRAIN, "--data", data, *features, "--steps", "2", "--out", out))
    assert read(out, "model.json")["network"]["input_size"] == 18 + 3 * 4


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in arrays().items() if key != name}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (without("action"), [], "it has no action; it has frames, lengths, subject, view"),
        (without("subject"), [], "it has no subject"),
        (arrays() | {"lengths": arrays()["lengths"] + 1}, [], "lengths must add up"),
        (arrays() | {"frames": arrays()["frames"] * np.nan}, [], "frames must be finite"),
        (arrays(), ["--test-subjects", "9"], "test_subjects must be of the subjects 1, 2, 3, 4, got 9"),
        (arrays(), ["--test-subjects", "1", "2", "3", "4"], "must leave recordings to train on"),
        (arrays(), ["--validation-subjects", "2"], "validation_subjects must not be test_subjects, got [2]"),
        (arrays(), ["--validation", "1"], "validation must be a number in [0, 1)"),
        (arrays(), ["--features", "distances"], "distances need the lines of the joints"),
        (arrays(), ["--align"], "align needs up and across"),
        (arrays(), ["--features", "speed"], "speed"),
        (arrays(), ["--frames", "0"], "frames must be at least 1, got 0"),
        (arrays(), ["--protocol", "ntu60-cs"], "test_subjects and validation_subjects are not for ntu60-cs"),
        (arrays(), ["--protocol", "utd"], "UTD-MHAD has 20 joints, 1 bodies and 27 classes, got 6, 1 and 3"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_in_a_line(
    content: dict[str, Any], options: list[str], message: str, call: Call, tmp_path: Path
) -> None:
    np.savez(tmp_path / "set.npz", **content)
    assert_refused(call(*TRAIN, "--data", tmp_path / "set.npz", *options, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("skeleton-6", "data must be given"),
        ("utd-6", "UTD-MHAD is not at"),
        ("ntu60-cs-6", "made by `indrnn prepare ntu`"),
    ],
)
def test_sets_that_are_not_there(recipe: str, message: str, call: Call, tmp_path: Path) -> None:
    assert_refused(call("train", recipe, "--data-dir", tmp_path, "--out", tmp_path / "run"), message)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("recipe", ["ntu60-cs-4", "ntu60-cv-dense-aug"])
def test_ntu_from_its_files_to_a_run(recipe: str, call: Call, tmp_path: Path) -> None:
    """Of 3 cameras, performers 1 (training) and 3 (test), 2 actions."""
    source = tmp_path / "skeletons"
    source.mkdir()
    for camera, performer, action in itertools.product((1, 2, 3), (1, 3), (1, 2)):
        for replication in (1, 2):
            frames = [[Body(joints=joints)] for joints in moving(9 + camera, by=0.01 * action, seed=replication)]
            name = f"S017C{camera:03}P{performer:03}R{replication:03}A{action:03}.skeleton"
            (source / name).write_bytes(text_of(frames))
    prepared, out = tmp_path / "ntu", tmp_path / "run"
    assert call("prepare", "ntu", source, "--out", prepared, "--workers", "1").code == 0
    network = ["--model.growth-rate", "2"] if "dense" in recipe else ["--model.hidden-size", "5"]
    said = call(
        *("train", recipe, "--data-dir", tmp_path, "--steps", "2", "--batch-size", "4", "--draws", "2", *network),
        *("--threads", "1", "--out", out),
    )
    assert said.code == 0
    assert "is not complete" in said.err
    task = read(out, "config.json")["task"]
    train, test = (12, 12) if "cs" in recipe else (16, 8)
    assert [task[name]["items"] for name in ("train", "validation", "test")] == [train - 1, 1, test]
    assert read(out, "model.json")["outputs"] == 60
    assert 0 <= read(out, "result.json")["test"]["accuracy"] <= 1


def test_a_file_that_is_not_there(call: Call, tmp_path: Path) -> None:
    assert_refused(call(*TRAIN, "--data", tmp_path / "none.npz"), "none.npz: there is no such file")
