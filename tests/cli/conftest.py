"""Fixtures of the command line's tests."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from indrnn.cli import main
from indrnn.tasks import pixels
from indrnn.tasks.adding import Adding

from .calls import TEXT, TRAIN, Call, Said, train_text


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with lines as long as they like to be."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line, in this process."""

    def call_main(*arguments: str | Path) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return Said(end.value.code, printed.out, printed.err)

    return call_main


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 20 steps."""
    folder = tmp_path_factory.mktemp("runs") / "once"
    with pytest.raises(SystemExit) as end:
        main([*TRAIN, "--steps", "20", "--out", str(folder)])
    assert end.value.code == 0
    return folder


@pytest.fixture(scope="session")
def language_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Finished runs of 20 steps on TEXT, by character, word or byte, each trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text(TEXT)

    def run(unit: str) -> Path:
        out = folder / unit
        if not out.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
                with pytest.raises(SystemExit) as end:
                    main([*train_text(unit), "--text", str(folder / "text.txt"), "--out", str(out)])
            assert end.value.code == 0
        return out

    return run


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    """A finished run of 20 steps, to do with as one likes."""
    return Path(shutil.copytree(once, tmp_path / "run"))


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have Ctrl-C pressed once, in the step after so many."""

    def interrupt_at(at: int) -> None:
        make = Adding.batch
        pressed: list[int] = []

        def batch(self: Adding, step: int, shard: Any) -> Any:
            if step == at and not pressed:
                pressed.append(step)
                signal.raise_signal(signal.SIGINT)
            return make(self, step, shard)

        monkeypatch.setattr(Adding, "batch", batch)

    return interrupt_at


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mirror where nothing listens, in the place of MNIST's; and no data of the user's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        mirror = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(pixels, "MNIST", replace(pixels.MNIST, mirrors=(mirror,)))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("INDRNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd().parent / "cache"))
    return mirror


@pytest.fixture
def few_digits(unreachable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a set of 40 and 12 images in the place of MNIST."""
    folder = tmp_path / "data"
    folder.mkdir()
    files = {}
    for name in pixels.MNIST.files:
        count = 40 if name.startswith("train") else 12
        if "images" in name:
            content = bytes([0, 0, 8, 3, *(0, 0, 0, count), *(0, 0, 0, 28), *(0, 0, 0, 28)])
            content += bytes(torch.randint(0, 256, (count * 784,)).tolist())
        else:
            content = bytes([0, 0, 8, 1, *(0, 0, 0, count), *(i % 10 for i in range(count))])
        (folder / name).write_bytes(gzip.compress(content, 1))
        files[name] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(pixels, "MNIST", replace(pixels.MNIST, files=files))
    return folder
