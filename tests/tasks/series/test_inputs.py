"""What X and y may be made of: torch's and NumPy's odder types, tables, times of a clock; and shapes that are wrong."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import indrnn
from indrnn import IndRNNClassifier, IndRNNRegressor
from indrnn.tasks.series import Collection
from indrnn.training import RunFolder

TINY: dict[str, Any] = {"steps": 2, "hidden_size": 4, "layers": 1, "random_state": 0, "front": False}


def series(count: int = 8, channels: int = 2, time: int = 6) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(count, channels, time)).round(2).astype(np.float32)


Y = np.array(["a", "b"] * 4)


def test_bfloat16_is_read() -> None:
    X = torch.from_numpy(series()).bfloat16()
    expected = X.float().numpy()
    for given in (X, list(X)):
        np.testing.assert_array_equal(np.stack(Collection.from_arrays(given).x), expected)
    assert IndRNNRegressor(**TINY).fitting(X, list(torch.arange(8).bfloat16())).target.mean == [3.5]
    model = IndRNNRegressor(**TINY).fit(X, torch.arange(8).bfloat16())
    stream = model.stream()
    assert stream.push(X[0]).shape == (1,)


def test_masked_values_are_missing() -> None:
    X = series()
    X[0, 1, 2] = -9999
    masked = np.ma.masked_equal(X, -9999.0)
    model = IndRNNClassifier(**TINY).fit(masked, Y)
    assert model.preparation_.masked == [1]
    assert np.abs(model.preparation_.mean).max() < 1
    missing = np.where(X == -9999, np.nan, X)
    np.testing.assert_array_equal(model.predict_proba(masked), model.predict_proba(missing))
    whole = np.ma.masked_array(series())  # nothing is masked
    np.testing.assert_array_equal(np.stack(Collection.from_arrays(whole).x), series())
    numbers = np.ma.masked_equal([1e9, *range(7)], 1e9)
    for y in (numbers, [np.ma.masked_equal(np.full(6, each), 1e9) for each in (1e9, *range(7))]):
        with pytest.raises(ValueError, match="y must be finite"):
            IndRNNRegressor(per_step=isinstance(y, list), **TINY).fit(series(), y)
    with pytest.raises(ValueError, match="y must name a class for each series"):
        IndRNNClassifier(**TINY).fit(series(), np.ma.masked_equal([9, *range(7)], 9))
    with pytest.raises(ValueError, match="masked values must be of numbers"):
        Collection.from_arrays(X, np.ma.masked_equal(Y.astype(object), "a"))


@pytest.mark.parametrize("as_y", [list, np.array, lambda y: np.array(y, dtype=np.dtypes.StringDType())])
def test_text_of_every_type_is_saved_and_loaded(as_y: Any, tmp_path: Path) -> None:
    model = IndRNNClassifier(**TINY).fit(series(), as_y(Y.tolist()))
    model.save(tmp_path / "model")
    loaded = indrnn.load(tmp_path / "model")
    assert loaded.classes_.tolist() == ["a", "b"]
    assert loaded.predict(series()).tolist() == model.predict(series()).tolist()


def test_tables_with_missing_values_and_their_columns() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = pandas.DataFrame(series(8, 1, 5)[:, 0], columns=list("abcde")).astype("Float64")
    table.iloc[2, 3] = pandas.NA
    model = IndRNNClassifier(**TINY).fit(table, Y)
    assert model.preparation_.masked == [0]
    assert model.predict_proba(table).shape == (8, 2)
    with pytest.raises(ValueError, match=r"got 'e' as column 0 in place of 'a'\. The feature names should match"):
        model.predict(table[table.columns[::-1]])
    with pytest.raises(ValueError, match="got 'nothing' as column 4 in place of 'e'"):
        model.predict(table[list("abcd")])
    assert model.predict(table.to_numpy(dtype=float, na_value=np.nan)).shape == (8,)
    table.columns = list("01234")
    model = IndRNNClassifier(**TINY).fit(table, Y)
    assert model.predict(table.rename(columns=int)).shape == (8,)  # names that are no text are not compared
    times = pandas.DataFrame({"t": 1.7e9 + np.array([0.0, 0.5, 0.75]), "v": [1.0, 2.0, 3.0]}).astype("Float64")
    times.iloc[1, 1] = pandas.NA
    fitting = IndRNNClassifier(time_channel=0, **TINY).fitting([times.T] * 8, Y)
    assert fitting.data.x[0][0].tolist() == [0.0, 0.5, 0.75]


def _times(kind: str) -> tuple[Any, Any]:
    """Series with times of a clock in channel 0, of a kind, and the same as float64 that counts from 0."""
    steps = np.random.default_rng(0).integers(1, 9, (8, 6)).cumsum(1)
    values = np.random.default_rng(1).integers(-9, 9, (8, 6))
    expected = np.stack([steps - steps[:, :1], values], 1).astype(np.float64)
    X = np.stack([steps + 1_700_000_000, values], 1)
    made = {
        "int64": lambda: X,
        "nanoseconds": lambda: np.stack([steps + 1_700_000_000_000_000_000, values], 1),
        "list": lambda: list(X),
        "nested": X.tolist,
        "torch": lambda: torch.from_numpy(X),
        "object": lambda: X.astype(object),
        "float64": lambda: X.astype(np.float64),
    }
    return made[kind](), expected


@pytest.mark.parametrize("kind", ["int64", "nanoseconds", "list", "nested", "torch", "object", "float64"])
def test_times_of_a_clock_survive_in_every_type(kind: str) -> None:
    X, expected = _times(kind)
    model, reference = (IndRNNClassifier(time_channel=0, **TINY).fit(given, Y) for given in (X, expected))
    assert model.preparation_ == reference.preparation_
    np.testing.assert_array_equal(model.predict_proba(X), reference.predict_proba(expected))
    stream, other = model.stream(), reference.stream()
    for part in (slice(0, 2), slice(2, 6)):
        pushed = stream.push(np.asarray(X[0])[:, part])
        np.testing.assert_array_equal(pushed, other.push(expected[0][:, part]))


def test_times_of_a_stream_may_be_fractions_and_then_whole() -> None:
    X, _ = _times("float64")
    X[0, 0] = 1.7e9 + np.array([0.5, 1.25, 2, 3, 4, 5])
    model = IndRNNClassifier(time_channel=0, **TINY).fit(X, Y)
    stream = model.stream()
    stream.push(X[0][:, :2])
    found = stream.push(X[0][:, 2:].astype(np.int64))
    np.testing.assert_allclose(found, model.predict_proba(X[:1])[0], atol=1e-6)


@pytest.mark.parametrize("X", [None, np.zeros((6, 1, 3000))], ids=["none", "raw"])
def test_a_time_channel_does_not_hide_what_is_wrong(X: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"X|time_channel must be a channel from 0 to 0, got 5"):
        IndRNNClassifier(time_channel=5, **TINY).fit(X, [0, 1] * 3)


@pytest.mark.parametrize("channel", [-5, 2, 5])
def test_a_time_channel_that_is_not_there(channel: int) -> None:
    with pytest.raises(ValueError, match=f"time_channel must be a channel from 0 to 1, got {channel}"):
        IndRNNClassifier(time_channel=channel, **TINY).fit(series().astype(np.float64), Y)


@pytest.mark.parametrize("y", [["a"], ["a", "b"] * 8], ids=["one", "too many"])
def test_scores_need_a_class_for_each_series(y: list[str]) -> None:
    model = IndRNNClassifier(**TINY).fit(series(), Y)
    with pytest.raises(ValueError, match=r"y must have a target for each series, of the shape \(8,\), got"):
        model.score(series(), y)


def test_scores_need_labels_and_numbers_for_each_series() -> None:
    labels = np.eye(3, dtype=int)[np.arange(8) % 3]
    with pytest.raises(ValueError, match=r"of the shape \(8, 3\), got \(3,\)"):
        IndRNNClassifier(**TINY).fit(series(), labels).score(series(), labels[0])
    numbers = np.arange(8.0)
    with pytest.raises(ValueError, match=r"of the shape \(8, 1\), got \(1, 1\)"):
        IndRNNRegressor(**TINY).fit(series(), numbers).score(series(), numbers[:1])


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2), (2, 1)])
def test_overwritten_by_another_number_of_networks(before: int, after: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "run").mkdir()
    for members in (before, after):
        model = IndRNNClassifier(**TINY, members=members).fit(series(), Y, out=out, overwrite=members == after)
    kept = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    homes = {path.rpartition("/")[0] for path in kept if path.endswith("weights.safetensors")}
    assert homes == ({""} if after == 1 else {f"member-{i}" for i in range(after)})
    assert {path.rpartition("/")[0] for path in kept if path.endswith("config.json")} == homes
    assert np.array_equal(indrnn.load(out).predict_proba(series()), model.predict_proba(series()))


def test_a_run_is_not_lost_by_a_call_that_cannot_be(tmp_path: Path) -> None:
    out = tmp_path / "run"
    IndRNNClassifier(**TINY, members=3).fit(series(), Y, out=out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="resume and overwrite cannot both be asked for"):
        IndRNNClassifier(**TINY, members=3).fit(series(), Y, out=out, resume=True, overwrite=True)
    with RunFolder(out / "member-2").locked(), pytest.raises((ValueError, RuntimeError, OSError), match="in use"):
        IndRNNClassifier(**TINY, members=3).fit(series(), Y, out=out, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"} == {
        path: content for path, content in before.items() if path.name != ".lock"
    }


def test_an_array_that_has_fewer_steps_than_channels_is_said_to_be_read_so() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 40, 3)), np.arange(12) % 2
    for given in (x, list(x), torch.as_tensor(x)):
        with pytest.warns(UserWarning, match=r"12 series of 40 channels and 3 steps.*swapaxes\(1, 2\)"):
            IndRNNClassifier(steps=1).fitting(given, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IndRNNClassifier(steps=1).fitting(x.swapaxes(1, 2), y)
        IndRNNClassifier(steps=1).fitting(x[:, :3], y)  # as many
