"""`read`: a collection of series from a table, an .npz or .ts file, or a folder of sounds, each with its reader."""

from __future__ import annotations

import math
import os
import re
import wave
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from ...npz import decoded, read_arrays
from ..collection import Array, Collection, checked_series, target_of
from . import Reading
from .table import TABLES, read_table
from .values import SeriesFile, is_number, need, number, parsed, pick, where

KINDS = ".npz, .ts, .csv, .tsv, .parquet, or a folder of WAV files by class"
SOUNDS = (".wav", ".flac", ".ogg")
_USUAL = {"x": "x X data", "lengths": "lengths length", "target": "y Y labels label target"}
_MISSING = ("?", "")
_Header = dict[str, list[str]]


def read(
    path: str | Path, *, test: str | Path | None = None, target_needed: bool = True, **options: object
) -> Collection:
    """Read series from a file: .npz, .ts of UCR and UEA, CSV or Parquet, or a folder of WAV files by class.

    Args:
        path: the file or folder. For NAME_TRAIN.ts, NAME_TEST.ts in the same folder is read as the test split.
        test: a file of the same kind with the test split.
        target_needed: whether labels are required.
        options: fields of `Reading`.

    Example:
        >>> read("sensors.csv", id="run", time="t", target="label", group="subject")  # doctest: +SKIP
    """
    return read_with(Path(path), Reading(**options), test=test, target_needed=target_needed)[0]  # type: ignore[arg-type]


def read_with(
    path: Path, reading: Reading, *, test: str | Path | None = None, target_needed: bool = True, alone: bool = False
) -> tuple[Collection, Reading, Path | None]:
    """Read a file with the given options; see `read`. `alone`: do not search for a matching test file.

    Returns its series, the options to read others like it, with what follows from the file, and the test file.
    """
    # One that came out of another file has a header, or no layout, and may ignore columns that this file lacks
    own = not alone or (reading.header is None and reading.layout != "auto")
    files = [_read_file(path, reading, target_needed=target_needed, ignore_needed=own)]
    reading = files[0].reading
    if test is None and not alone and path.suffix.lower() == ".ts" and path.stem.upper().endswith("_TRAIN"):
        names = (path.stem[: -len("_TRAIN")] + word + path.suffix for word in ("_TEST", "_test", "_Test"))
        test = next(filter(Path.is_file, map(path.with_name, names)), None)
    if test is not None:
        test = Path(test)
        files.append(_read_file(test, reading, target_needed=target_needed, ignore_needed=False))
        one, two = (len(file.x[0]) for file in files)
        if one != two:
            raise ValueError(f"{test} has {two} channels, and {path} has {one}; they must be of one kind")
    return _joined(files, reading), reading, test


def kind_of(path: Path) -> str:
    """Reader for a path: "a folder", "table", or the suffix of the file's name."""
    if path.is_dir():
        return "a folder"
    suffix = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    return "table" if suffix in TABLES else suffix


def _read_file(path: Path, reading: Reading, *, target_needed: bool, ignore_needed: bool) -> SeriesFile:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; DATA is {KINDS}")
    kind = kind_of(path)
    if kind in SOUNDS:
        raise ValueError(f"{path} is one sound; DATA is the folder of the folders of all classes")
    if kind not in (*_READERS, "table"):
        raise ValueError(f"{path} must be {KINDS}, got {path.suffix or 'a name without an ending'}")
    if kind != "a folder" and not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    for name, used in vars(reading.only_for(kind)).items():
        if getattr(reading, name) != used:
            raise ValueError(f"{name} is not for {path.name}: {'tables' if kind == 'table' else kind} do not take it")
    if kind == "table":
        return read_table(path, reading, target_needed=target_needed, ignore_needed=ignore_needed)
    return _READERS[kind](path, reading, target_needed=target_needed)


def _joined(files: list[SeriesFile], reading: Reading) -> Collection:
    """Join one or two files into one collection; the series of the second are the test split."""
    first = files[0]
    x = [series for file in files for series in checked_series(file.x, file.describe, first.channels)]
    labels = [file.y for file in files if file.y is not None]
    y = target_of(parsed(*labels), len(x)) if len(labels) == len(files) else None
    if y is not None and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    named = [file.names for file in files if file.names is not None]
    names = tuple(chain(*named)) if len(named) == len(files) else None
    shared = [name for name in first.fields if all(name in file.fields for file in files)]
    fields = {name: parsed(*(file.fields[name] for file in files)) for name in shared}
    groups = fields.get(reading.group or "")
    if reading.group is not None and groups is None and y is not None:
        pick(reading.group, "group", fields, first.path)
    test = None
    if len(files) > 1:
        test = np.arange(len(x)) >= len(first.x)
        if reading.test_where is not None:
            raise ValueError("test_where and a test file are two ways to say which series are for test; give one")
    elif reading.test_where is not None and y is not None:
        test = where(reading.test_where, fields, first.path)
        if test.all() or not test.any():
            which = f"{'all' if test.all() else 'none'} of the {len(x)} series of {first.path}"
            raise ValueError(f"test_where: {reading.test_where} holds for {which}")
    channels = first.channels or tuple(map(str, range(len(x[0]))))
    return Collection(x, y, channels, names, groups, test)


# ---- .npz: one array, padded or concatenated, with lengths and further fields of each series


def read_npz(path: Path, reading: Reading, *, target_needed: bool) -> SeriesFile:
    """Read an .npz file of padded series, truncated to `lengths` if there are any, or of all one after the other."""
    arrays = read_arrays(path)
    x_name = _field("x", reading, arrays, path, "the series")
    lengths_name = _field("lengths", reading, arrays, path)
    x = _npz_series(arrays[x_name], arrays.get(lengths_name), reading, f"{path}: {x_name}")
    y_name = ""
    if target_needed or reading.target in (None, *arrays):
        y_name = _field("target", reading, arrays, path, "the labels" if target_needed else "")
    if y_name and arrays[y_name].shape[:1] != (len(x),):
        if target_needed:
            what = f"one entry for each of the {len(x)} series, got {arrays[y_name].shape}"
            raise ValueError(f"{path}: {y_name} must have {what}")
        y_name = ""
    used = (y_name if target_needed else None, reading.group, reading.tested_column)
    fields = {}
    for name, array in arrays.items():
        if name == y_name or (name not in (x_name, lengths_name) and array.shape == (len(x),)):
            try:
                fields[name] = decoded(array, "strict" if name in used else "replace")
            except UnicodeDecodeError as error:
                what = f"text in UTF-8, got the bytes {error.object[:40]!r}"
                raise ValueError(f"{path}: {name} must hold {what}") from None
    y = fields.get(y_name)
    return SeriesFile(path, reading, x, y, fields={name: array for name, array in fields.items() if array.ndim == 1})


def _field(option: str, reading: Reading, arrays: dict[str, Array], path: Path, needed: str = "") -> str:
    """Field that an option names, or the first of the usual names; "" if there is none and nothing is `needed`."""
    name, usual = getattr(reading, option), _USUAL[option].split()
    if name is not None:
        return pick(name, option, arrays, path)
    field = next((name for name in usual if name in arrays), "")
    if needed and not field:
        listed = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"
        raise ValueError(f"{option}: {path} has no field {', '.join(usual)}; name that of {needed}. It has {listed}")
    return field


def _npz_series(values: Array, lengths: Array | None, reading: Reading, name: str) -> list[Array]:
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold numbers, got {values.dtype}")
    if lengths is not None:
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (len(lengths) and lengths.min() < 1):
            raise ValueError(f"{name}: lengths must be whole numbers of at least 1, in one dimension")
        if values.ndim < 2 or len(values) != len(lengths):
            total = int(lengths.sum())
            if not values.ndim or len(values) != total:
                what = f"one entry for each of the {len(lengths)} lengths, or their sum, {total}, in its first"
                raise ValueError(f"{name} must have {what} dimension, got {values.shape}")
            flat = values.reshape(total, -1)  # (sum of lengths, channels)
            return [one.T for one in np.split(flat, np.cumsum(lengths)[:-1])]
    if values.ndim not in (2, 3):
        what = "shape (n, channels, time) or (n, time), or all series one after the other and a field of lengths"
        raise ValueError(f"{name} must have the {what}, got {values.shape}")
    if 0 in values.shape:
        raise ValueError(f"{name} must hold at least one series of one step, got {values.shape}")
    padded = values[:, None] if values.ndim == 2 else values.transpose(0, 2, 1) if reading.time_first else values
    if lengths is None:
        return list(padded)
    if lengths.max() > padded.shape[2]:
        raise ValueError(f"{name} has {padded.shape[2]} steps, and lengths go up to {lengths.max()}")
    return [one[:, :length] for one, length in zip(padded, lengths.tolist(), strict=True)]


# ---- .ts: a line per series, channels separated by colons


def read_ts(path: Path, reading: Reading, *, target_needed: bool) -> SeriesFile:
    """Read a .ts file; `?` and NaN are missing values. If none are needed and one label is missing, all are."""
    x: list[Array] = []
    labels: list[str | None] = []
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        numbered = ((f"{path}: line {number}", line.strip()) for number, line in enumerate(file, 1))
        lines = ((place, text) for place, text in numbered if text and not text.startswith(("#", "%")))
        header = _header(lines, path)
        labelled = _flag(header, "classlabel") or _flag(header, "targetlabel")
        if target_needed and not labelled:
            raise ValueError(f"{path} has no labels: neither @classLabel true nor @targetLabel true")
        for place, text in lines:
            channels = text.split(":")
            if labelled and len(channels) < 2:
                raise ValueError(f"{place} must have values, a colon and a label, got {text[:40]!r}")
            labels.append(_label(channels.pop().strip(), header, place) if labelled else None)
            if labels[-1] is None and target_needed:
                what = "no target after its last colon, but ?, NaN or nothing"
                raise ValueError(f"{place} has {what}; leave the line out")
            x.append(_series(channels, header, place))
            if len(x[-1]) != len(x[0]):
                raise ValueError(f"{place} must have {len(x[0])} channels as those before, got {len(x[-1])}")
    if not x:
        raise ValueError(f"{path} must have at least one series after @data, got none")
    return SeriesFile(path, reading, x, None if None in labels else np.array(labels))


def _header(lines: Iterable[tuple[str, str]], path: Path) -> _Header:
    """Values by name of the lines up to @data, such as `@dimensions 2`."""
    header: _Header = {}
    for place, text in lines:
        if not text.startswith("@"):
            raise ValueError(f"{place} must start with @, or # for a comment, before @data")
        name, *values = text[1:].split() or [""]
        if not name:
            raise ValueError(f"{place} must have a name after @, such as @data")
        if name.lower() == "data":
            return header
        header[name.lower()] = values
        if _flag(header, "timestamps"):
            what = "@timeStamps true is not supported; a CSV in long form with a column of times is"
            raise ValueError(f"{place}: {what}")
    raise ValueError(f"{path} must have a line @data: it is no .ts file, or an empty one")


def _flag(header: _Header, name: str) -> bool:
    return header.get(name, [""])[:1] in (["true"], ["True"], ["TRUE"])


def _series(parts: list[str], header: _Header, place: str) -> Array:  # (channels, time)
    dimensions = header.get("dimensions", header.get("dimension"))
    if dimensions and dimensions[0].isdigit() and int(dimensions[0]) != len(parts):
        raise ValueError(f"{place} must have {dimensions[0]} channels, as @dimensions says, got {len(parts)}")
    channels = []
    for i, part in enumerate(parts):
        words = [word.strip() for word in part.split(",")]
        try:
            channels.append([number(word) if word not in _MISSING else np.nan for word in words])
        except ValueError:
            wrong = next(at for at, word in enumerate(words) if word not in _MISSING and not is_number(word))
            what = f"value {wrong} must be a number or ?, got {words[wrong][:40]!r}"
            raise ValueError(f"{place}, channel {i}: {what}") from None
    longest = max(map(len, channels))  # a channel that ends early is missing from there on
    return np.array([values + [np.nan] * (longest - len(values)) for values in channels])


def _label(text: str, header: _Header, place: str) -> str | None:
    known = header.get("classlabel", [])[1:]
    if text in _MISSING and text not in known:
        return None
    if known and text not in known:
        classes = " ".join(known)
        hint = "; divide those by white space, without quotes or commas" if re.search("[\"',;]", classes) else ""
        raise ValueError(f"{place} has the label {text!r}, which is not among those of @classLabel, {classes}{hint}")
    if _flag(header, "classlabel"):
        return text
    if not is_number(text):
        raise ValueError(f"{place} must have a number as its target, as @targetLabel says, got {text[:40]!r}")
    return None if math.isnan(number(text)) else text


# ---- sounds, with a folder for each class


def read_folder(path: Path, reading: Reading, *, target_needed: bool) -> SeriesFile:
    """Read FOLDER/CLASS/FILE.wav, scaled to -1 to 1. If no labels are needed, files may be in FOLDER itself."""
    files, kinds = sorted(_sounds_in(path)), ", ".join(SOUNDS)
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
    x: list[Array] = []
    rate = reading.rate or 0  # or that of the first
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
        yield from (file for file in files if file.suffix.lower() in SOUNDS and file.is_file())


def _groups(text: str, names: Sequence[str]) -> Array:
    """Group of each file: what the capture group of a regular expression matches in its name."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"group must be a pattern, as for re.search, got {text!r}: {error}") from None
    if pattern.groups != 1:
        raise ValueError(f"group must be a pattern with one pair of brackets, such as '_(.+)_', got {text!r}")
    matches = [pattern.search(name) for name in names]
    if None in matches:
        raise ValueError(f"group: the pattern {text!r} is not in {names[matches.index(None)]}")
    return np.array([match[1] for match in matches if match])


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


_READERS: dict[str, Callable[..., SeriesFile]] = {".npz": read_npz, ".ts": read_ts, "a folder": read_folder}
