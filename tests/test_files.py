"""Data sets are found, checked and downloaded whole, or an error says what to do; from a server of the test's own."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from indrnn import files
from indrnn.files import DataSet, data_folder, read

CONTENTS = {"first.gz": bytes(range(256)) * 700, "second.gz": b"second"}
PACKED = {name: gzip.compress(content, 1) for name, content in CONTENTS.items()}
HALF = len(PACKED["first.gz"]) // 2
SET = DataSet("things", {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}, ())
ONE = replace(SET, files=dict([*SET.files.items()][:1]))
OTHER = gzip.compress(b"something else" * 9)


# ---- the server


class Server(ThreadingHTTPServer):
    """Mirrors that differ in what they do, by the name of the folder."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str] = []
        """Paths that were asked for."""
        self.midway: Callable[[int], None] = lambda _: None
        """Called with the number of the request when half of the answer is sent."""

    def set(self, *mirrors: str, of: DataSet = SET) -> DataSet:
        """A data set that is to be had from these mirrors."""
        return replace(of, mirrors=tuple(f"http://127.0.0.1:{self.server_address[1]}/{name}" for name in mirrors))


class Handler(BaseHTTPRequestHandler):
    """honours: the request; breaks: off in the middle; other: content; garbage; missing."""

    server: Server

    def do_GET(self) -> None:
        kind, name = self.path.strip("/").split("/")
        number = len(self.server.requests)
        self.server.requests.append(self.path.strip("/"))
        if kind == "missing":
            self.send_error(404)
            return
        body = {"other": OTHER, "garbage": b"<html>log in first</html>" * 40}.get(kind, PACKED[name])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        middle = len(body) // 2
        self.wfile.write(body[:middle])
        self.wfile.flush()
        self.server.midway(number)
        if kind == "breaks":
            self.close_connection = True
            return
        self.wfile.write(body[middle:])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of the user's, and no proxy."""
    monkeypatch.delenv("INDRNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


def put(folder: Path, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        if packed:
            (folder / name).write_bytes(PACKED[name])
        else:
            (folder / name.removesuffix(".gz")).write_bytes(content)
    return folder


def quiet(_: str) -> None:
    pass


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def in_background(data: DataSet, folder: Path) -> tuple[threading.Thread, list[object]]:
    """Reads, in a thread; what comes of it is in the list."""
    came: list[object] = []

    def work() -> None:
        try:
            came.append(read(data, folder, quiet))
        except (ValueError, OSError) as error:
            came.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, came


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# ---- places


def test_the_folder_is_the_one_given_or_the_variables_or_the_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_folder(None) == tmp_path / "cache" / "indrnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_folder(None) == tmp_path / "home" / ".cache" / "indrnn"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert data_folder(None) == tmp_path / "home" / ".cache" / "indrnn"
    monkeypatch.setenv("INDRNN_DATA", str(tmp_path / "variable"))
    assert data_folder(None) == tmp_path / "variable"
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("INDRNN_DATA", "")
    assert data_folder(None) == tmp_path / "home" / ".cache" / "indrnn"


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "uncompressed"])
@pytest.mark.parametrize("below", ["", "things"], ids=["folder", "subfolder"])
@pytest.mark.parametrize("how", ["given", "variable", "cache"])
def test_files_are_found(how: str, below: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "indrnn" if how == "cache" else tmp_path / "data"
    put(folder / below, packed)
    if how == "variable":
        monkeypatch.setenv("INDRNN_DATA", str(folder))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert read(SET, folder if how == "given" else None) == CONTENTS
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_is_given_comes_before_the_variable_and_that_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is looked into alone: what lies elsewhere is not taken in its place."""
    given, variable = tmp_path / "given", tmp_path / "variable"
    monkeypatch.setenv("INDRNN_DATA", str(variable))
    put(tmp_path / "cache" / "indrnn")
    with pytest.raises(FileNotFoundError, match=str(variable)):
        read(SET)
    put(variable)
    assert read(SET) == CONTENTS
    with pytest.raises(FileNotFoundError, match=str(given)):
        read(SET, given)


def test_the_subfolder_comes_before_the_folder(tmp_path: Path) -> None:
    put(tmp_path / "things")
    (tmp_path / "first.gz").write_bytes(OTHER)
    assert read(SET, tmp_path) == CONTENTS


def test_compressed_and_not_may_lie_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(CONTENTS["first.gz"])
    (tmp_path / "second.gz").write_bytes(gzip.compress(CONTENTS["second.gz"], 9))  # packed by another
    assert read(SET, tmp_path) == CONTENTS


# ---- download


def test_a_download_goes_to_the_sets_subfolder_and_happens_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "not" / "yet"
    data = server.set("honours")
    assert read(data, folder) == CONTENTS
    said = capsys.readouterr()
    assert said.out == ""
    assert [f"{data.mirrors[0]}/{name}" in line for name, line in zip(CONTENTS, said.err.splitlines(), strict=True)]
    assert names(folder) == {"things"}
    assert {path.name: path.read_bytes() for path in (folder / "things").iterdir()} == PACKED
    assert server.requests == ["honours/first.gz", "honours/second.gz"]
    assert read(data, folder) == CONTENTS
    assert len(server.requests) == 2
    assert capsys.readouterr().err == ""


def test_only_what_is_missing_is_downloaded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(CONTENTS["first.gz"])
    said: list[str] = []
    assert read(server.set("honours"), tmp_path, said.append) == CONTENTS
    assert server.requests == ["honours/second.gz"]
    assert len(said) == 1


def test_a_mirrors_address_may_end_in_a_slash(server: Server, tmp_path: Path) -> None:
    data = server.set("honours")
    assert read(replace(data, mirrors=(data.mirrors[0] + "/",)), tmp_path, quiet) == CONTENTS


def test_nothing_is_at_the_files_name_until_it_is_whole(server: Server, tmp_path: Path) -> None:
    here, go_on = threading.Event(), threading.Event()

    def midway(_: int) -> None:
        here.set()
        assert go_on.wait(30)

    server.midway = midway
    thread, came = in_background(server.set("honours", of=ONE), tmp_path)
    assert here.wait(30)
    assert (tmp_path / "things").is_dir()
    assert not (tmp_path / "things" / "first.gz").exists()
    go_on.set()
    thread.join(30)
    assert came == [{"first.gz": CONTENTS["first.gz"]}]
    assert names(tmp_path / "things") == {"first.gz"}


# ---- mirrors


def test_what_broke_off_is_downloaded_anew(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"broke off after {HALF} of {len(PACKED['first.gz'])} bytes"):
        read(server.set("breaks", of=ONE), tmp_path, quiet)
    assert names(tmp_path / "things") == set()
    assert read(server.set("breaks", "honours", of=ONE), tmp_path, quiet) == {"first.gz": CONTENTS["first.gz"]}
    assert server.requests == ["breaks/first.gz", "breaks/first.gz", "honours/first.gz"]
    assert names(tmp_path / "things") == {"first.gz"}


@pytest.mark.parametrize("kind", ["other", "garbage", "missing"])
def test_a_mirror_without_the_right_file_is_passed_over(kind: str, server: Server, tmp_path: Path) -> None:
    assert read(server.set(kind, "honours"), tmp_path, quiet) == CONTENTS
    assert server.requests == [f"{mirror}/{name}" for name in CONTENTS for mirror in (kind, "honours")]
    assert {path.name: path.read_bytes() for path in (tmp_path / "things").iterdir()} == PACKED


def closed_port() -> str:
    """The address of a mirror where nothing listens."""
    with Server() as gone:
        return gone.set("honours").mirrors[0]


def test_a_mirror_that_cannot_be_reached_is_passed_over(server: Server, tmp_path: Path) -> None:
    data = server.set("honours")
    assert read(replace(data, mirrors=(closed_port(), *data.mirrors)), tmp_path, quiet) == CONTENTS


@pytest.mark.parametrize(
    ("kinds", "reasons"),
    [
        (["missing", "garbage"], ["Not Found", "gzip"]),
        (["other"], ["another checksum"]),
        ([], ["refused"]),
    ],
    ids=["nowhere", "wrong", "no network"],
)
def test_what_cannot_be_had_is_one_error_that_says_what_to_do(
    kinds: list[str], reasons: list[str], server: Server, tmp_path: Path
) -> None:
    data = server.set(*kinds) if kinds else replace(SET, mirrors=(closed_port(),))
    with pytest.raises(FileNotFoundError) as error:
        read(data, tmp_path, quiet)
    message = str(error.value)
    assert "\n" not in message
    for part in (*CONTENTS, str(tmp_path / "things"), "--data-dir", "INDRNN_DATA", *data.mirrors, *reasons):
        assert part in message
    assert names(tmp_path / "things") == set()


# ---- files that are wrong


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


WRONG = {
    "truncated gz": ("first.gz", PACKED["first.gz"][:-5]),
    "empty gz": ("first.gz", b""),
    "half a gz": ("first.gz", PACKED["first.gz"][:HALF]),
    "flipped byte": ("first.gz", flipped(PACKED["first.gz"])),
    "another gz": ("first.gz", OTHER),
    "not a gz": ("first.gz", CONTENTS["first.gz"]),
    "wrong content": ("first", flipped(CONTENTS["first.gz"])),
    "truncated": ("first", CONTENTS["first.gz"][:-1]),
    "compressed under the other name": ("first", PACKED["first.gz"]),
}


@pytest.mark.parametrize(("name", "content"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("below", ["", "things"], ids=["folder", "subfolder"])
def test_a_wrong_file_is_named_and_left_alone(
    below: str, name: str, content: bytes, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / below / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is corrupt, or not the published file") as error:
        read(server.set("honours"), tmp_path, quiet)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == content
    assert server.requests == []
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]


# ---- folders that are none


def test_a_file_where_the_folder_should_be(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    monkeypatch.setenv("INDRNN_DATA", str(file))
    for given in (file, None):
        with pytest.raises(ValueError, match=f"data_dir must be a folder, and {file} is a file"):
            read(server.set("honours"), given, quiet)
    assert file.read_text() == "mine"
    assert server.requests == []


@pytest.mark.parametrize("way", ["subfolder is a file", "folder in a file"])
def test_a_folder_that_cannot_be_made(way: str, server: Server, tmp_path: Path) -> None:
    """Not even by root, for whom permissions are nothing."""
    (tmp_path / "things").write_text("a file")
    folder = tmp_path if way == "subfolder is a file" else tmp_path / "things" / "data"
    with pytest.raises(ValueError, match="data_dir: cannot write to") as error:
        read(server.set("honours"), folder, quiet)
    for part in (str(folder / "things"), "first.gz", "--data-dir", "INDRNN_DATA"):
        assert part in str(error.value)
    assert server.requests == []


not_as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write and look anywhere"
)


@not_as_root
def test_a_folder_that_cannot_be_written_to(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(ValueError, match=r"data_dir: cannot write to .*Permission denied"):
        read(server.set("honours"), folder, quiet)
    assert server.requests == []


@not_as_root
def test_a_folder_that_cannot_be_looked_into(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o000)
    try:
        for given in (folder, folder / "below"):
            with pytest.raises(ValueError, match=r"data_dir: cannot (look into|write to) .*Permission denied"):
                read(server.set("honours"), given, quiet)
    finally:
        folder.chmod(0o700)


# ---- several at the same time


def test_threads_at_the_same_time_download_once(server: Server, tmp_path: Path) -> None:
    server.midway = lambda _: time.sleep(0.05)
    readers = [in_background(server.set("honours"), tmp_path) for _ in range(5)]
    for thread, came in readers:
        thread.join(30)
        assert came == [CONTENTS]
    assert server.requests == ["honours/first.gz", "honours/second.gz"]
    assert names(tmp_path / "things") == set(PACKED)


def test_processes_at_the_same_time_download_once(server: Server, tmp_path: Path) -> None:
    """The module alone: torch is no part of it."""
    program = f"""
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("files", {files.__file__!r})
files = sys.modules["files"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
from files import DataSet
contents = files.read({server.set("honours")!r}, Path({str(tmp_path)!r}), lambda _: None)
print(sorted(map(len, contents.values())))
"""
    server.midway = lambda _: time.sleep(0.3)
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in started:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, f"{sorted(map(len, CONTENTS.values()))}\n", "")
    assert server.requests == ["honours/first.gz", "honours/second.gz"]
    assert names(tmp_path / "things") == set(PACKED)


def test_one_at_a_time_also_after_one_failed(server: Server, tmp_path: Path) -> None:
    """The first breaks off while the second waits; the third comes when the second's turn has begun."""
    turns = [threading.Event() for _ in range(3)]

    def midway(number: int) -> None:
        assert turns[number].wait(30)

    server.midway = midway
    first, first_came = in_background(server.set("breaks", of=ONE), tmp_path)
    until(lambda: len(server.requests) == 1)
    second, second_came = in_background(server.set("honours", of=ONE), tmp_path)
    time.sleep(0.2)  # for it to wait at the lock
    assert len(server.requests) == 1
    turns[0].set()
    first.join(30)
    assert isinstance(first_came[0], FileNotFoundError)
    until(lambda: len(server.requests) == 2)
    third, third_came = in_background(server.set("honours", of=ONE), tmp_path)
    time.sleep(0.2)
    assert len(server.requests) == 2
    turns[1].set()
    for thread in (second, third):
        thread.join(30)
    assert second_came == third_came == [{"first.gz": CONTENTS["first.gz"]}]
    assert len(server.requests) == 2
    assert names(tmp_path / "things") == {"first.gz"}


def test_a_folder_that_cannot_be_replaced_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, rename = tmp_path / "out", Path.rename
    out.mkdir()
    (out / "content").write_text("before")

    def fails(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="No space"), files.new_folder(out, "content", overwrite=True) as new:
        (new / "content").write_text("after")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "content").read_text() == "before"
