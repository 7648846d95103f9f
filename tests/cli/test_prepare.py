"""`indrnn prepare ntu`: says what it did, and in one line what it cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.skeleton.ntu.writer import Body, moving, text_of

from .calls import Call

TEXT = text_of([[Body(joints)] for joints in moving(4)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "ntu"
    folder.mkdir()
    for performer in (1, 3):
        (folder / f"S001C002P{performer:03}R001A001.skeleton").write_bytes(TEXT)
    (folder / "S001C002P001R001A002.skeleton").write_bytes(TEXT[:100])
    (folder / "S001C002P005R002A008.skeleton").write_bytes(b"0\n")  # in the list of missing skeletons
    return folder


def test_what_was_done_is_said(folder: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "out"
    said = call("prepare", "ntu", folder, "--out", out)
    assert said.code == 0
    broken, done, *splits = said.out.splitlines()
    assert broken.startswith(f"broken: {folder / 'S001C002P001R001A002.skeleton'}: line 5: ")
    assert done == f"{out}: 2 samples of 8 frames; left out: 1 with missing skeletons, 1 broken"
    assert splits[0] == "60-cs: 1 train, 1 test (56,576 of 56,578 samples lack)"
    assert len(splits) == 4
    again = call("prepare", "ntu", folder, "--out", out)
    assert again.code == 0
    assert again.out.splitlines()[0] == f"{out} is prepared from these files already; --overwrite does it again"
    assert call("prepare", "ntu", folder, "--out", out, "--overwrite").out == said.out


def test_many_broken_files_are_counted(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "ntu"
    folder.mkdir()
    (folder / "S001C001P001R001A001.skeleton").write_bytes(TEXT)
    for action in range(2, 32):
        (folder / f"S001C001P001R001A{action:03}.skeleton").write_bytes(b"")
    said = call("prepare", "ntu", folder, "--out", tmp_path / "out").out.splitlines()
    assert sum(line.startswith("broken: ") for line in said) == 20
    assert said[20] == f"and 10 more, in {tmp_path / 'out' / 'prepared.json'}"
    assert said[21].endswith("30 broken")


def test_errors_are_one_line(folder: Path, tmp_path: Path, call: Call) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    cases: dict[str, list[str | Path]] = {
        "prepare needs one of ntu": ["prepare"],
        "prepare needs one of ntu, got kinetics": ["prepare", "kinetics"],
        "A002.skeleton: line 5: ": ["prepare", "ntu", folder, "--out", tmp_path / "a", "--strict"],
        "holds something else (mine.txt)": ["prepare", "ntu", folder, "--out", tmp_path / "full"],
        "there is no .skeleton file in": ["prepare", "ntu", tmp_path / "empty", "--out", tmp_path / "b"],
        "there is no such folder or archive": ["prepare", "ntu", tmp_path / "no", "--out", tmp_path / "b"],
        "workers must be": ["prepare", "ntu", folder, "--out", tmp_path / "b", "--workers", "0"],
    }
    for word, arguments in cases.items():
        said = call(*arguments)
        assert (said.code, said.out) == (2, "")
        assert word in said.err
        assert said.err.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_help(call: Call) -> None:
    assert "usage: indrnn prepare {ntu} FOLDER ... --out DIR" in call("prepare", "--help").out
    assert "--strict" in call("prepare", "ntu", "--help").out
    said = call("prepare", "ntu", "--out", "x")
    assert said.code == 2
