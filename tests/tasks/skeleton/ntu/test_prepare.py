"""Recordings to arrays: the same bytes however they were made, broken files named, nothing half-written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indrnn.tasks.skeleton.ntu import prepare as module
from indrnn.tasks.skeleton.ntu.bodies import Skeletons, arrange, parse
from indrnn.tasks.skeleton.ntu.splits import missing
from indrnn.tasks.skeleton.recipe import NtuOptions
from indrnn.tasks.skeleton.recordings import read_prepared

from .writer import FIRST_ID, Body, moving, text_of

NAMES = [
    "S001C001P001R001A001",
    "S001C002P003R002A060",
    "S002C003P040R001A050",
    "S018C001P106R002A120",
    "S032C001P041R001A061",
]
CONTENTS = {
    name: text_of(
        [[Body(x), Body(y, FIRST_ID + 1)] for x, y in zip(moving(5 + k), moving(5 + k, 1.0, 0.05), strict=True)]
    )
    for k, name in enumerate(NAMES)
}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_SAMPLES", 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five samples in nested folders, and files that are no business of ours."""
    folder = tmp_path / "ntu"
    for k, (name, content) in enumerate(reversed(CONTENTS.items())):
        path = folder / "abc"[k % 3] / f"{name}.skeleton"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "readme.txt").write_text("no skeleton")
    (folder / "a" / "._S001C001P001R001A001.skeleton").write_bytes(b"\x00")
    return folder


def prepare(places: list[Path], out: Path, **options: Any) -> dict[str, Any]:
    return module.prepare(NtuOptions(places, out, **options))


def content_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*")}


FILES = ["frames.npy", "index.csv", "prepared.json"]


# ---- what is written


def test_samples_are_written_in_the_order_of_their_names(folder: Path, tmp_path: Path) -> None:
    done = prepare([folder], tmp_path / "out", workers=1)
    assert (done["samples"], done["broken"], done["left_out"], done["new"]) == (5, {}, 0, True)
    assert sorted(content_of(tmp_path / "out")) == FILES
    read = read_prepared(tmp_path / "out", verify=True)
    assert isinstance(read.frames, np.memmap)
    assert read.fields["name"].tolist() == NAMES
    assert read.lengths.tolist() == [5, 6, 7, 8, 9]
    for k, name in enumerate(NAMES):
        assert np.array_equal(read.sequence(k), arrange(parse(CONTENTS[name]))[0])
    assert read.label.tolist() == [0, 59, 49, 119, 60]
    assert read.subject.tolist() == [1, 3, 40, 106, 41]
    assert read.fields["setup"].tolist() == [1, 1, 2, 18, 32]
    assert read.fields["camera"].tolist() == [1, 2, 3, 1, 1]
    assert read.fields["replication"].tolist() == [1, 2, 1, 2, 1]
    assert read.fields["body_1"].tolist() == [FIRST_ID + 1] * 5  # which no float holds
    assert read.fields["body_2"].tolist() == [FIRST_ID] * 5


def test_other_tools_read_the_files(folder: Path, tmp_path: Path) -> None:
    prepare([folder], tmp_path / "out", workers=1)
    assert np.load(tmp_path / "out" / "frames.npy").shape == (35, 2, 25, 3)
    lines = (tmp_path / "out" / "index.csv").read_text().splitlines()
    assert lines[0] == "name,setup,camera,performer,replication,action,length,body_1,body_2"
    assert lines[4] == f"S018C001P106R002A120,18,1,106,2,120,8,{FIRST_ID + 1},{FIRST_ID}"


def archived(path: Path, names: list[str], how: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", how) as archive:
        for name in names:
            archive.writestr(f"nturgb+d_skeletons/{name}.skeleton", CONTENTS[name])
        archive.writestr("__MACOSX/nturgb+d_skeletons/._S001C001P001R001A001.skeleton", b"\x00")
    return path


@pytest.mark.parametrize("how", ["one archive", "two archives", "a folder of archives", "folder and archive"])
def test_archives_are_read_as_they_are(how: str, folder: Path, tmp_path: Path) -> None:
    if how == "one archive":
        places = [archived(tmp_path / "all.zip", NAMES)]
    elif how == "two archives":
        places = [archived(tmp_path / "120.zip", NAMES[3:]), archived(tmp_path / "60.zip", NAMES[:3])]
    elif how == "a folder of archives":
        archived(tmp_path / "zips" / "a.ZIP", NAMES[:2])
        archived(tmp_path / "zips" / "deeper" / "b.zip", NAMES[2:])
        places = [tmp_path / "zips"]
    else:
        places = [folder, archived(tmp_path / "again.zip", NAMES[1:4])]  # copies, the same
    prepare([folder], tmp_path / "out", workers=1)
    prepare(places, tmp_path / "other", workers=1)
    for name in ("frames.npy", "index.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_folder_that_is_given_twice_is_read_once(folder: Path, tmp_path: Path) -> None:
    assert prepare([folder, folder / "a", folder / ".." / "ntu"], tmp_path / "out", workers=1)["samples"] == 5


def test_samples_with_missing_skeletons_are_left_out(folder: Path, tmp_path: Path) -> None:
    for name in sorted(missing())[:3]:
        (folder / f"{name}.skeleton").write_bytes(b"0\n")
    done = prepare([folder], tmp_path / "out", strict=True, workers=1)
    assert (done["samples"], done["left_out"], done["broken"]) == (5, 3, {})


@pytest.mark.slow
def test_processes_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    (folder / "S001C001P001R001A002.skeleton").write_bytes(b"")
    for workers in (1, 2, 3):
        prepare([folder], tmp_path / str(workers), workers=workers)
    first, *others = (content_of(tmp_path / str(workers)) for workers in (1, 2, 3))
    assert others == [first, first]


# ---- broken files

BROKEN = {
    "empty": (b"", "it breaks off"),
    "truncated": (CONTENTS[NAMES[0]][:4000], ""),
    "not numbers": (b"hello\nworld\n", "line 1: the number of frames"),
    "no frames": (b"0\n", "none of its 0 frames has a body"),
    "no body": (b"2\n0\n0\n", "none of its 2 frames has a body"),
    "nan": (
        re.sub(rb"(?m)^(\S+ )(\S+)( \S+ \S+ \S+ \S+ \S+ \S+ \S+ \S+ \S+ 2)$", rb"\1nan\3", CONTENTS[NAMES[0]]),
        "'nan'",
    ),
    "24 joints": (text_of([[Body(moving(1)[0][:24])]]), "the number of joints must be 25, got '24'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_and_left_out(kind: str, folder: Path, tmp_path: Path) -> None:
    content, word = BROKEN[kind]
    path = folder / "S003C001P001R001A001.skeleton"
    prepare([folder], tmp_path / "without", workers=1)
    path.write_bytes(content)
    done = prepare([folder], tmp_path / "out", workers=1)
    assert done["samples"] == 5
    assert list(done["broken"]) == [str(path)]
    assert word in done["broken"][str(path)]
    assert (tmp_path / "out" / "frames.npy").read_bytes() == (tmp_path / "without" / "frames.npy").read_bytes()
    assert json.loads((tmp_path / "out" / "prepared.json").read_text())["broken"] == done["broken"]
    with pytest.raises(ValueError, match=re.escape(str(path))):
        prepare([folder], tmp_path / "strict", strict=True, workers=1)
    assert not any((tmp_path / "strict" / name).exists() for name in FILES)
    with pytest.raises(ValueError, match=re.escape(str(path))):  # what is prepared is not strict either
        prepare([folder], tmp_path / "out", strict=True, workers=1)


@pytest.mark.parametrize(
    "name", ["S001.skeleton", "S001C001P001R001A121.skeleton", "S001C001P001R001A001 (1).skeleton"]
)
def test_a_wrong_name_is_named_and_left_out(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).write_bytes(CONTENTS[NAMES[0]])
    done = prepare([folder], tmp_path / "out", workers=1)
    assert done["samples"] == 5
    assert done["broken"] == {str(folder / name): "it must be named as S001C001P001R001A001.skeleton"}
    with pytest.raises(ValueError, match="must be named as"):
        prepare([folder], tmp_path / "strict", strict=True, workers=1)
    assert not (tmp_path / "strict").exists()


def test_copies_that_differ_are_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "copy").mkdir()
    (folder / "copy" / f"{NAMES[1]}.skeleton").write_bytes(CONTENTS[NAMES[2]])
    done = prepare([folder], tmp_path / "out", workers=1)
    assert done["samples"] == 4
    assert "has the same name and another content" in next(iter(done["broken"].values()))


@pytest.mark.parametrize("how", ["deflated", "lzma", "bzip2"])
def test_damage_in_an_archive_is_named_and_left_out(how: str, tmp_path: Path) -> None:
    path = archived(tmp_path / "zips" / "all.zip", NAMES, getattr(zipfile, f"ZIP_{how.upper()}"))
    with zipfile.ZipFile(path) as archive:
        info = archive.infolist()[2]
    content = bytearray(path.read_bytes())
    for at in range(200, 300):
        content[info.header_offset + at] ^= 0x5A
    path.write_bytes(content)
    (tmp_path / "zips" / "torn.zip").write_bytes(content[:1000])
    done = prepare([tmp_path / "zips"], tmp_path / "out", workers=1)
    assert done["samples"] == 4
    assert sorted(done["broken"]) == [f"{path}:{info.filename}", str(path.with_name("torn.zip"))]
    assert not prepare([tmp_path / "zips"], tmp_path / "out", workers=1)["new"]
    assert sorted(content_of(tmp_path / "out")) == FILES


def test_archives_whose_names_are_no_text_are_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    path = folder / "a" / "odd.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("é.txt", b"")
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xfe"))
    done = prepare([folder], tmp_path / "out", workers=1)
    assert (done["samples"], list(done["broken"])) == (5, [str(path)])
    with pytest.raises(ValueError, match=r"odd\.zip: it cannot be read as an archive"):
        prepare([path], tmp_path / "other", workers=1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_what_is_no_file_is_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    pipes = [folder / "S001C001P002R001A001.skeleton", folder / "all.zip"]
    for pipe in pipes:
        os.mkfifo(pipe)
    done = prepare([folder], tmp_path / "out", workers=1)
    assert done["samples"] == 5
    assert {path: word for path, word in done["broken"].items() if "it is not a regular file" in word} == done["broken"]
    assert sorted(done["broken"]) == sorted(map(str, pipes))
    with pytest.raises(ValueError, match=r"must be a folder of \.skeleton files or a \.zip"):
        prepare([pipes[1]], tmp_path / "other", workers=1)


def test_a_damaged_archive_is_one_error(tmp_path: Path) -> None:
    path = archived(tmp_path / "all.zip", NAMES)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"PK\x01\x02", b"\x00K\x01\x02"))
    with pytest.raises(ValueError, match=r"all\.zip: it cannot be read as an archive"):
        prepare([path], tmp_path / "out", workers=1)


def test_names_from_other_systems_and_links(tmp_path: Path) -> None:
    first, second, third = NAMES[:3]
    with zipfile.ZipFile(tmp_path / "windows.zip", "w") as archive:
        info = zipfile.ZipInfo("placeholder")
        info.filename = f"skeletons\\{first}.skeleton"
        archive.writestr(info, CONTENTS[first])
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / f"{second}.SKELETON").write_bytes(CONTENTS[second])
    folder = tmp_path / "ntu"
    folder.mkdir()
    (folder / f"{third}.skeleton").write_bytes(CONTENTS[third])
    (folder / "link").symlink_to(tmp_path / "far")
    (folder / "round").symlink_to(folder)
    done = prepare([tmp_path / "windows.zip", folder], tmp_path / "out", workers=1)
    assert (done["samples"], done["broken"]) == (3, {})


def test_a_file_that_the_disk_does_not_give_is_read_the_next_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, read = tmp_path / "out", Path.read_bytes

    def fails(path: Path) -> bytes:
        if path.stem == NAMES[2]:
            raise OSError(5, "Input/output error")
        return read(path)

    with monkeypatch.context() as unplugged:
        unplugged.setattr(Path, "read_bytes", fails)
        with pytest.raises(OSError, match=rf"{NAMES[2]}\.skeleton: it cannot be read: Input/output error"):
            prepare([folder], out, workers=1)
    done = prepare([folder], out, workers=1)
    assert (done["samples"], done["broken"], done["new"]) == (5, {}, True)
    prepare([folder], tmp_path / "whole", workers=1)
    assert content_of(out) == content_of(tmp_path / "whole")


def test_a_failed_overwrite_leaves_what_was_there(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare([folder], out, workers=1)
    before = {name: (out / name).read_bytes() for name in FILES}
    (folder / "S003C001P001R001A001.skeleton").write_bytes(b"")
    with pytest.raises(ValueError, match="it breaks off"):
        prepare([folder], out, workers=1, strict=True, overwrite=True)
    assert {name: (out / name).read_bytes() for name in FILES} == before
    assert len(read_prepared(out)) == 5
    assert prepare([folder], out, workers=1, overwrite=True)["samples"] == 5


def test_what_is_wrong_now_is_named_though_all_is_prepared(folder: Path, tmp_path: Path) -> None:
    prepare([folder], tmp_path / "out", workers=1)
    (folder / "S001.skeleton").write_bytes(b"")
    done = prepare([folder], tmp_path / "out", workers=1)
    assert (done["new"], list(done["broken"])) == (False, [str(folder / "S001.skeleton")])


def test_what_is_no_longer_wrong_is_not_named(folder: Path, tmp_path: Path) -> None:
    wrong = folder / "S001.skeleton"
    wrong.write_bytes(b"")
    torn, listed = folder / "S001C001P001R001A002.skeleton", folder / f"{min(missing())}.skeleton"
    for path in (torn, listed):
        path.write_bytes(b"3\n")
    done = prepare([folder], tmp_path / "out", workers=1)
    assert (sorted(done["broken"]), done["left_out"]) == (sorted([str(wrong), str(torn)]), 1)
    for path in (wrong, listed):
        path.unlink()
    moved = folder.rename(tmp_path / "moved")
    done = prepare([moved], tmp_path / "out", workers=1)
    assert (done["new"], list(done["broken"]), done["left_out"]) == (False, [str(moved / torn.name)], 0)
    with pytest.raises(ValueError, match=torn.name):
        prepare([moved], tmp_path / "out", workers=1, strict=True)


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "ntu").mkdir()
    with pytest.raises(ValueError, match=r"there is no \.skeleton file in"):
        prepare([tmp_path / "ntu"], tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such folder"):
        prepare([tmp_path / "nowhere"], tmp_path / "out")
    path = tmp_path / "ntu" / "S001C001P001R001A001.skeleton"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"must be a folder of \.skeleton files or a \.zip"):
        prepare([path], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=r"none of 1 files can be read; .*R001A001.skeleton: it breaks off"):
        prepare([tmp_path / "ntu"], tmp_path / "out", workers=1)
    assert content_of(tmp_path / "out") == {}


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_workers_must_be_a_number(workers: int, folder: Path, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=r"workers must be (at least 1|an integer)"):
        prepare([folder], tmp_path / "out", workers=workers)


# ---- the folder


def test_a_finished_folder_is_kept_and_replaced_when_told(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare([folder], out, workers=1)
    before, times = content_of(out), [path.stat().st_mtime_ns for path in sorted(out.iterdir())]
    assert prepare([folder], out, workers=1)["new"] is False
    assert times == [path.stat().st_mtime_ns for path in sorted(out.iterdir())]
    (folder / "S003C001P001R001A001.skeleton").write_bytes(CONTENTS[NAMES[0]])
    with pytest.raises(ValueError, match="is prepared from other files; --overwrite replaces it"):
        prepare([folder], out, workers=1)
    assert content_of(out) == before
    assert prepare([folder], out, workers=1, overwrite=True)["samples"] == 6
    damaged = {"prepared.json": b'{"format": 1, "files": {}}', "frames.npy": b"torn", "index.csv": b"name"}
    for name, content in damaged.items():
        (out / name).write_bytes(content)
        with pytest.raises(ValueError, match="is damaged, or prepared by another version; --overwrite"):
            prepare([folder], out, workers=1)
        assert prepare([folder], out, workers=1, overwrite=True)["samples"] == 6


@pytest.mark.parametrize("name", ["notes.txt", "frames.npy", "ntu"])
def test_a_folder_that_holds_something_else_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=f"holds something else \\({name}\\)"):
            prepare([folder], out, workers=1, overwrite=overwrite)
    assert content_of(out) == {name: b"mine"}
    with pytest.raises(ValueError, match="out must be a folder"):
        prepare([folder], out / name, workers=1)


# ---- after a stop

KILLED = """
import os, signal, sys
from pathlib import Path
from indrnn.tasks.skeleton.recipe import NtuOptions
from indrnn.tasks.skeleton.ntu import prepare as module
module.PART_SAMPLES = 2
write, left = module.write_atomically, int(sys.argv[3])

def killed(path, content):
    global left
    left -= 1
    if left == 0:
        path.with_name(f".{path.name}.{os.getpid()}.tmp").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)

module.write_atomically = killed
module.prepare(NtuOptions([Path(sys.argv[1])], Path(sys.argv[2]), workers=1))
"""


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(2, id="in the second part"),
        pytest.param(4, id="in the frames", marks=pytest.mark.slow),
        pytest.param(6, id="in the manifest", marks=pytest.mark.slow),
    ],
)
def test_taken_up_again_after_kill_9(at: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts are written, then three files."""
    (folder / "S001C001P001R001A003.skeleton").write_bytes(b"")
    prepare([folder], tmp_path / "whole", workers=1)
    out = tmp_path / "out"
    ended = subprocess.run([sys.executable, "-c", KILLED, folder, out, str(at)], capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (out / "prepared.json").exists()
    with pytest.raises(ValueError, match="is not a folder that `indrnn prepare` has finished"):
        read_prepared(out)
    parsed: list[bytes] = []

    def counted(text: bytes) -> Skeletons:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(module, "parse", counted)
    prepare([folder], out, workers=1)
    assert len(parsed) == (4 if at == 2 else 0)  # of six
    assert content_of(out) == content_of(tmp_path / "whole")


def test_parts_are_made_anew_when_their_files_change(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, path = tmp_path / "out", folder / f"{NAMES[1]}.skeleton"
    path = next(folder.rglob(path.name))
    with monkeypatch.context() as stopped:

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        stopped.setattr(module, "checksum", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare([folder], out, workers=1)
    path.write_bytes(CONTENTS[NAMES[4]])
    os.utime(path, ns=(1, 1))
    prepare([folder], out, workers=1)
    assert read_prepared(out).lengths.tolist() == [5, 9, 7, 8, 9]
    assert sorted(content_of(out)) == FILES


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """400 samples, so that there are parts for several processes."""
    many = tmp_path / "many"
    many.mkdir()
    for k in range(400):
        name = f"S001C001P{k % 100 + 1:03}R00{k // 100 % 2 + 1}A{k // 200 + 1:03}.skeleton"
        (many / name).write_bytes(CONTENTS[NAMES[4]])
    return many


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("after", [0.05, 0.7, None])
def test_ctrl_c_ends_all_processes_in_a_line(after: float | None, times: int, many: Path, tmp_path: Path) -> None:
    """As a terminal sends it, to all of them: while they start, and (None) while they are at work."""
    out, word = tmp_path / "out", f"INDRNN_TEST_CTRL_C={tmp_path}"
    command = [sys.executable, "-c", INTERRUPTED, str(many), str(out)]
    environment = {**os.environ, **dict([word.split("=", 1)])}
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as started:
        while len(_with_environment(word)) < 3 and started.poll() is None:
            time.sleep(0.001)
        if after is None:
            while not list((out / ".parts").glob("*.npz")) and started.poll() is None:
                time.sleep(0.001)
        time.sleep(after or 0)
        for _ in range(times):
            time.sleep(0.01)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGINT)
        said, _ = started.communicate(timeout=120)
    assert said == "indrnn: interrupted\n"
    assert started.returncode in (130, -signal.SIGINT)  # the latter from a signal in the interpreter's last moment
    assert _with_environment(word) == []
    prepare([many], out, workers=2)
    prepare([many], tmp_path / "whole", workers=1)
    assert content_of(out) == content_of(tmp_path / "whole")


INTERRUPTED = """
import signal, sys
from indrnn.cli.main import main
from indrnn.tasks.skeleton.ntu import prepare as module
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
    module.PART_SAMPLES = 2
    sys.exit(main(["prepare", "ntu", sys.argv[1], "--workers", "2", "--out", sys.argv[2]]))
"""


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(many: Path, tmp_path: Path) -> None:
    """Killed while processes are at work: none of them stays, and the next call ends with the same bytes."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "indrnn", "prepare", "ntu", str(many), "--workers", "2", "--out"]
    started = subprocess.Popen([*command, str(out)], env={**os.environ, "INDRNN_TEST_ENDS": str(out)})
    while not list((out / ".parts").glob("*.npz")) and started.poll() is None:
        time.sleep(0.005)
    started.kill()
    started.wait()
    deadline = time.monotonic() + 60
    while _with_environment(f"INDRNN_TEST_ENDS={out}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _with_environment(f"INDRNN_TEST_ENDS={out}") == []
    subprocess.run([*command, str(out)], check=True)
    subprocess.run([*command, str(tmp_path / "whole")], check=True)
    assert content_of(out) == content_of(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="no list of processes here")
def test_a_process_that_is_killed_leaves_its_parts_to_the_first(many: Path, tmp_path: Path) -> None:
    """As the kernel does where memory runs out."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "indrnn", "prepare", "ntu", str(many), "--workers", "2", "--out"]
    with subprocess.Popen([*command, str(out)]) as started:
        while not list((out / ".parts").glob("*.npz")) and started.poll() is None:
            time.sleep(0.005)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(workers[0], signal.SIGKILL)
    assert (len(workers), started.returncode) == (2, 0)
    prepare([many], tmp_path / "whole", workers=1)
    for name in ("frames.npy", "index.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def _with_environment(word: str) -> list[str]:
    """Processes that have this in their environment; Linux only, elsewhere none are found."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if word.encode() in path.read_bytes():
                processes.append(path.parent.name)
        except OSError:
            continue
    return processes
