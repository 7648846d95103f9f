"""Folders of WAV files, written by the tests with the standard library or soundfile."""

from __future__ import annotations

import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indrnn.tasks.series.reading import MissingPackageError, read
from indrnn.tasks.series.reading.sources import read_sound, resampled


def write(path: Path, samples: Any, rate: int = 8000, width: int = 2) -> Path:
    """Samples (channels, time) from -1 to 1 as PCM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.atleast_2d(samples).T.ravel()
    whole = np.round(values * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        content = (whole + 128).astype(np.uint8).tobytes()
    else:
        content = b"".join(int(each).to_bytes(width, "little", signed=True) for each in whole)
    with wave.open(str(path), "wb") as sound:
        sound.setparams((len(np.atleast_2d(samples)), width, rate, 0, "NONE", ""))
        sound.writeframes(content)
    return path


def tone(steps: int, rate: int = 8000, pitch: float = 440.0) -> np.ndarray[Any, Any]:
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(steps) / rate)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label in ("no", "yes"):
        for who in ("ann", "bob"):
            write(tmp_path / "sounds" / label / f"{who}_{label}.wav", tone(50 + len(label)))
    return tmp_path / "sounds"


def test_a_folder_by_class(folder: Path) -> None:
    found = read(folder, group="([a-z]+)_")
    assert found.names == ("no/ann_no.wav", "no/bob_no.wav", "yes/ann_yes.wav", "yes/bob_yes.wav")
    assert found.y is not None
    assert found.groups is not None
    assert (found.y.tolist(), found.groups.tolist()) == (["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"])
    assert found.lengths.tolist() == [52, 52, 53, 53]
    np.testing.assert_allclose(found.x[0][0], tone(52), atol=1e-4)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pcm_of_every_width(width: int, tmp_path: Path) -> None:
    samples = np.stack([tone(31), -tone(31)])
    found, rate = read_sound(write(tmp_path / "a.wav", samples, 11025, width))
    assert (found.shape, found.dtype, rate) == ((2, 31), np.float32, 11025)
    np.testing.assert_allclose(found, samples, atol=2.0 ** (3 - 8 * width) + 1e-6)


@pytest.mark.parametrize(("name", "subtype"), [("a.wav", "FLOAT"), ("a.flac", "PCM_16"), ("a.wav", "PCM_24")])
def test_sounds_that_soundfile_writes(name: str, subtype: str, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile: pip install 'indrnn[data]'")
    soundfile.write(tmp_path / name, np.stack([tone(31), -tone(31)], 1), 8000, subtype=subtype)
    found, _ = read_sound(tmp_path / name)
    np.testing.assert_allclose(found, [tone(31), -tone(31)], atol=1e-4)


def test_without_soundfile_pcm_is_read_and_flac_names_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert len(read(folder)) == 4
    (folder / "no" / "z.flac").write_bytes(b"fLaC")
    with pytest.raises(MissingPackageError, match=r"z\.flac.*soundfile: pip install 'indrnn\[data\]'"):
        read(folder)


def test_another_rate_is_refused_and_resampled_when_asked_for(folder: Path) -> None:
    write(folder / "yes" / "zoe_yes.wav", tone(400, 16000), 16000)
    with pytest.raises(ValueError, match=r"zoe_yes\.wav has 16000 samples a second.*8000.*--rate 8000 --resample"):
        read(folder)
    with pytest.raises(ValueError, match=r"zoe_yes\.wav.*the one wanted is 8000; resample \(--resample\) changes it$"):
        read(folder, rate=8000)
    found = read(folder, rate=8000, resample=True)
    assert found.x[4].shape == (1, 200)
    np.testing.assert_allclose(found.x[4][0, 20:-20], tone(200)[20:-20], atol=0.01)
    with pytest.raises(ValueError, match="resample needs a rate"):
        read(folder, resample=True)


@pytest.mark.parametrize(("rate", "wanted"), [(8000, 16000), (44100, 8000), (8000, 11025), (8000, 8000)])
def test_resampling_keeps_a_tone(rate: int, wanted: int) -> None:
    found = resampled(tone(rate // 2, rate)[None].astype(np.float32), rate, wanted)
    assert found.shape == (1, wanted // 2)
    inner = slice(wanted // 20, -wanted // 20)
    np.testing.assert_allclose(found[0][inner], tone(wanted // 2, wanted)[inner], atol=0.01)


def test_channels_must_agree_or_become_one(folder: Path) -> None:
    write(folder / "yes" / "zoe_yes.wav", np.stack([tone(40), tone(40)]))
    with pytest.raises(ValueError, match=r"zoe_yes\.wav has 2 channels.*--mono"):
        read(folder)
    np.testing.assert_allclose(read(folder, mono=True).x[4], tone(40)[None], atol=1e-4)


def test_files_without_classes_are_for_prediction(folder: Path) -> None:
    write(folder / "a.wav", tone(9))
    with pytest.raises(ValueError, match=r"a\.wav must be in a folder named by its class"):
        read(folder)
    found = read(folder, target_needed=False)
    assert found.y is None
    assert len(found) == 5


def test_hidden_files_are_passed_over(folder: Path) -> None:
    for name in ("no/._ann_no.wav", "._no", ".trash/a.wav"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"no sound")
    assert len(read(folder)) == 4


def test_a_class_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (folder / "yes").rename(tmp_path / "elsewhere")
    (folder / "yes").symlink_to(tmp_path / "elsewhere")
    (folder / "no" / "round").symlink_to(folder)
    assert read(folder).names == ("no/ann_no.wav", "no/bob_no.wav", "yes/ann_yes.wav", "yes/bob_yes.wav")


def test_a_class_without_a_sound_is_refused(folder: Path) -> None:
    (folder / "maybe").mkdir()
    (folder / "maybe" / "a.mp3").write_bytes(b"ID3")
    with pytest.raises(ValueError, match=r"maybe must have sound files.*got none"):
        read(folder)
    assert len(read(folder, target_needed=False)) == 4


@pytest.mark.parametrize("pattern", ["ann", "(a)(b)", "("])
def test_a_group_that_is_no_pattern(pattern: str, folder: Path) -> None:
    with pytest.raises(ValueError, match="group must be a pattern"):
        read(folder, group=pattern)
    with pytest.raises(ValueError, match="is not in no/ann_no"):
        read(folder, group="(zoe)")


def test_sounds_that_are_broken(folder: Path) -> None:
    path = folder / "no" / "ann_no.wav"
    whole = path.read_bytes()
    for content in (b"", whole[:20], b"RIFX" + whole[4:], whole[:60]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"ann_no\.wav"):
            read(folder)
    empty = folder.parent / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="must have sound files"):
        read(empty)
    with pytest.raises(ValueError, match="is one sound"):
        read(write(folder / "a.wav", tone(9)))
