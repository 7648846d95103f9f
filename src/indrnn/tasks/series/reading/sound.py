"""Reader of folders of sound files, with a subfolder for each class."""

from __future__ import annotations

import math
import os
import re
import wave
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..collection import Array
from . import Reading
from .values import SeriesFile, need

SUFFIXES = (".wav", ".flac", ".ogg")


def read_folder(path: Path, reading: Reading, *, target_needed: bool) -> SeriesFile:
    """Read FOLDER/CLASS/FILE.wav, scaled to -1 to 1. If no labels are needed, files may be in FOLDER itself."""
    files, kinds = sorted(_sounds_in(path)), ", ".join(SUFFIXES)
    if not files:
        raise ValueError(f"{path} must have sound files ({kinds}) in folders of their classes, got none")
    loose = [file for file in files if file.parent == path]
    names = tuple(file.relative_to(path).as_posix() for file in files)
    labels = [name.partition("/")[0] for name in names]
    if target_needed:
        if loose:
            raise ValueError(f"{loose[0]} must be in a folder named by its class, {path}/CLASS/{loose[0].name}")
        for folder in sorted(path.iterdir()):
            if folder.is_dir() and not folder.name.startswith(".") and folder.name not in labels:
                what = f"sound files ({kinds}), as every folder of a class"
                raise ValueError(f"{folder} must have {what}, got none; move it out of {path} if it is no class")
    groups = {} if reading.group is None else {reading.group: _groups(reading.group, names)}
    x, rate = _read_sounds(files, reading)
    y = None if loose else np.array(labels)
    return SeriesFile(path, replace(reading, rate=rate), x, y, names=names, fields=groups)


def _sounds_in(path: Path) -> Iterator[Path]:
    """Sound files in a folder, also behind links, except hidden ones, such as ._0.wav, which macOS creates."""
    seen = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        if (here := os.path.realpath(folder)) in seen:  # by a link
            folders.clear()
            continue
        seen.add(here)
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (file for file in files if file.suffix.lower() in SUFFIXES and file.is_file())


def _groups(text: str, names: Sequence[str]) -> Array:
    """Group of each file: what the capture group of a regular expression matches in its name."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"group must be a pattern, as for re.search, got {text!r}: {error}") from None
    if pattern.groups != 1:
        raise ValueError(f"group must be a pattern with one pair of brackets, such as '_(.+)_', got {text!r}")
    groups = []
    for name in names:
        if not (match := pattern.search(name)):
            raise ValueError(f"group: the pattern {text!r} is not in {name}")
        groups.append(match[1])
    return np.array(groups)


def _read_sounds(files: list[Path], reading: Reading) -> tuple[list[Array], int]:
    """Sounds of one rate and number of channels, and their rate: `reading.rate`, or that of the first."""
    x: list[Array] = []
    rate = reading.rate or 0
    for file in files:
        samples, its_rate = read_sound(file)
        if reading.mono:
            samples = samples.mean(0, keepdims=True)
        rate = rate or its_rate
        if its_rate != rate and not reading.resample:
            which, change = "the one wanted", "resample (--resample) changes it"
            if reading.rate is None:
                which, change = "that of the others", f"rate and resample (--rate {rate} --resample) change it"
            raise ValueError(f"{file} has {its_rate} samples a second, and {which} is {rate}; {change}")
        x.append(samples if its_rate == rate else resampled(samples, its_rate, rate))
        if len(samples) != len(x[0]):
            counts = f"{file} has {len(samples)} channels, and {files[0]} has {len(x[0])}"
            raise ValueError(f"{counts}; mono (--mono) takes their mean")
    return x, rate


def read_sound(file: Path) -> tuple[Array, int]:
    """Read a sound, (channels, time), float32 from -1 to 1, and its rate in Hz. PCM WAV needs no further packages."""
    if file.suffix.lower() == ".wav":
        try:
            return _pcm(file)
        except (wave.Error, EOFError) as error:
            if "unknown format" not in str(error):
                raise ValueError(f"{file} cannot be read as WAV: {str(error) or 'it ends too early'}") from None
    soundfile = need("soundfile", f"{file}, which is no PCM WAV,")
    try:
        samples, rate = soundfile.read(str(file), dtype="float32", always_2d=True)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if not len(samples):
        raise ValueError(f"{file} must have at least one sample, got none")
    return np.ascontiguousarray(samples.T), int(rate)


def _pcm(file: Path) -> tuple[Array, int]:
    with wave.open(str(file), "rb") as sound:
        channels, width, rate, count, *_ = sound.getparams()
        content = sound.readframes(count)
    if len(content) < max(1, count) * channels * width:
        what = f"at least one sample and all that its header tells of, {count}"
        raise ValueError(f"{file} must have {what}; it is cut off")
    if width == 1:  # unsigned, alone of all
        values = np.frombuffer(content, np.uint8).astype(np.float32) - 128
    elif width == 3:
        wide = np.pad(np.frombuffer(content, np.uint8).reshape(-1, 3), ((0, 0), (1, 0)))  # the upper bytes of 32 bits
        values = (wide.view("<i4")[:, 0] >> 8).astype(np.float32)
    else:
        values = np.frombuffer(content, f"<i{width}").astype(np.float32)
    return np.ascontiguousarray((values / 2 ** (8 * width - 1)).reshape(-1, channels).T), rate


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """Resample a sound from `rate` to `wanted` Hz, removing frequencies that the new rate cannot represent."""
    before = samples.shape[1]
    unit = rate // math.gcd(rate, wanted)  # the fewest samples that are a whole number of new ones
    pad = unit * -(-min(before, rate // 20) // unit)  # mirrored ends, as the transform takes a sound for periodic
    behind = -(before + pad) % unit + pad
    ends = np.pad(samples, ((0, 0), (pad, behind)), mode="reflect" if before > 1 else "edge")
    length = ends.shape[1]
    count = length * wanted // rate
    spectrum = np.fft.rfft(ends, axis=1)  # cut off, or zero above its end, by the inverse
    changed = np.fft.irfft(spectrum, count, axis=1)[:, pad * wanted // rate :] * (count / length)
    return np.asarray(changed[:, : max(1, round(before * wanted / rate))], dtype=np.float32)
