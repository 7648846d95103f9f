"""`indrnn fit --forecast`, and `predict` and `evaluate` of such runs: from tables that the tests write."""

from __future__ import annotations

import csv
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import indrnn
from indrnn.tasks.series.task import SeriesTask

from .calls import Call, assert_done, assert_refused, options_of, read, to_go_on

pytest.importorskip("pandas", reason="needs pandas: pip install 'indrnn[data]'")

SMALL = ["--steps", "3", "--hidden-size", "5", "--layers", "1", "--members", "1", "--threads", "1"]
"""A run of a second."""
MONTHLY = ["--forecast", "4", "--time", "month"]


def sales(count: int = 60) -> np.ndarray[Any, Any]:
    """A season of six months that grows, with a little noise."""
    t = np.arange(count)
    noise = np.random.default_rng(0).normal(size=count)
    return np.asarray(100 + t + 10 * np.sin(2 * np.pi * t / 6) + 0.1 * noise)


def write_sales(path: Path, count: int = 60, **columns: Any) -> Path:
    """A CSV of columns month and sold, and others, with the rows in no order."""
    rows = [[f"{2000 + i // 12}-{i % 12 + 1:02d}", value] for i, value in enumerate(sales(count))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["month", "sold", *columns])
        for i in np.random.default_rng(1).permutation(count).tolist():
            writer.writerow([*rows[i], *(column[i] for column in columns.values())])
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_was_trained_on_is_no_test(call: Call, tmp_path: Path) -> None:
    path, out = write_sales(tmp_path / "sales.csv"), tmp_path / "run"
    assert_done(call("fit", path, *MONTHLY, *SMALL, "--out", out))
    assert "this is no test" in assert_done(call("evaluate", out, path)).out
    longer = write_sales(tmp_path / "longer.csv", 66)
    assert "this is no test" not in assert_done(call("evaluate", out, longer)).out


def test_a_forecast_from_a_table(call: Call, tmp_path: Path) -> None:
    path, out = write_sales(tmp_path / "sales.csv"), tmp_path / "run"
    said = assert_done(call("fit", path, *MONTHLY, *SMALL, "--out", out))
    assert "1 series of 1 channel (sold), 60 steps" in said.out
    assert "forecast  4 steps from the 18 before them; a season of 6 (found in the series)" in said.out
    scores = read(out, "scores.json")["test"]
    model = indrnn.load(out)
    assert scores["mean_absolute_error"] == pytest.approx(model.errors_["indrnn"])
    assert scores["naive"]["the last season again"]["mean_absolute_error"] == model.errors_["seasonal_naive"]
    assert f"IndRNN {model.errors_['indrnn']:.4g}, naive {model.errors_['naive']:.4g}, seasonal naive" in said.out
    assert read(out, "result.json")["test"]["mean_absolute_error"] == scores["mean_absolute_error"]  # for `report`

    assert_done(call("predict", out, path))
    found = rows(Path("predictions.csv"))
    assert [(row["series"], row["step"]) for row in found] == [("0", str(step)) for step in (1, 2, 3, 4)]
    wanted, (low, high) = model.predict(sales()), model.predict_interval(sales())
    for name, values in (("sold", wanted), ("sold low", low), ("sold high", high)):
        np.testing.assert_allclose([float(row[name]) for row in found], values[:, 0], rtol=1e-5)

    said = assert_done(call("evaluate", out, path, "--out", tmp_path / "again.json"))
    measured = model.measure(sales())
    assert measured["indrnn"] == pytest.approx(np.abs(model.predict(sales()[:-4])[:, 0] - sales()[-4:]).mean())
    assert model.score(sales()) == -measured["indrnn"]
    assert f"the last season again   {measured['seasonal_naive']:.5g}" in said.out
    assert f"intervals of 90%: {measured['covered']:.1%} of the values lie within" in said.out
    test = read(tmp_path, "again.json")["test"]
    assert test["mean_absolute_error"] == pytest.approx(measured["indrnn"], rel=1e-4)
    assert_refused(call("evaluate", out), "trained on all of its data")
    assert_done(call("fit", "--resume", out, "--threads", "1"))
    assert "run" in assert_done(call("report", out, "--out", tmp_path / "report")).out
    assert_done(call("explore", out, "--out", tmp_path / "page.html"))  # windows of the series


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1], ids=["all steps", "held back"])
def test_a_stopped_forecast_goes_on(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    path = write_sales(tmp_path / "sales.csv")
    assert_done(call("fit", path, *MONTHLY, *SMALL, "--out", tmp_path / "whole"))
    make = SeriesTask.batch
    begun: list[int] = []

    def batch(self: SeriesTask, step: int, shard: Any) -> Any:
        begun.extend([step] * (step == 1))
        if step == 1 and len(begun) == at + 1:
            signal.raise_signal(signal.SIGINT)
        return make(self, step, shard)

    monkeypatch.setattr(SeriesTask, "batch", batch)
    said = call("fit", path, *MONTHLY, *SMALL, "--out", tmp_path / "part")
    assert said.code == 130
    assert_refused(call("predict", tmp_path / "part", path), "must be finished")
    assert_done(call(*to_go_on(said.out), "--threads", "1"))
    one, other = (indrnn.load(tmp_path / name) for name in ("whole", "part"))
    np.testing.assert_array_equal(one.predict(), other.predict())
    assert one.errors_ == other.errors_


def test_several_series_in_both_forms(call: Call, tmp_path: Path) -> None:
    long, wide = tmp_path / "long.csv", tmp_path / "wide.csv"
    both = [sales(40), sales(44)[::-1]]
    lines = [f"{name},{t},{value}" for name, one in zip("ab", both, strict=True) for t, value in enumerate(one)]
    long.write_text("\n".join(["shop,t,sold", *lines]) + "\n")
    head = ",".join(["shop", *(f"w{t}" for t in range(44))])
    cells = ([name, *one, *[""] * (44 - len(one))] for name, one in zip("ab", both, strict=True))
    wide.write_text("\n".join([head, *(",".join(map(str, row)) for row in cells)]) + "\n")
    told = []
    for path, words in ((long, ["--time", "t"]), (wide, ["--layout", "wide"])):
        words = ["--id", "shop", "--forecast", "2", "--period", "1", *words]
        said = assert_done(call("fit", path, *words, *SMALL, "--dry-run")).out
        assert "2 series of 1 channel" in said
        assert "40 to 44 steps" in said
        assert "no season (given)" in said
        out = tmp_path / path.stem
        assert not Path("runs").exists()
        assert_done(call("fit", path, *words, *SMALL, "--out", out))
        assert_done(call("predict", out, path, "--overwrite"))
        found = rows(Path("predictions.csv"))
        assert [row["series"] for row in found] == ["a", "a", "b", "b"]
        told.append([list(row.values()) for row in found])
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--target", "sold"], "target is not for --forecast"),
        (["--test-share", "0.3"], "test_share is not for --forecast"),
        (["--group", "month"], "group is not for --forecast"),
        (["--validation", "0.1"], "validation is not for --forecast"),
        (["--forecast", "0"], "forecast"),
        (["--forecast", "30"], "y must have at least"),
        (["--period", "58"], "y must have at least"),
        (["--features", "cold"], "did you mean sold?"),
        (["--layout", "wide"], "time is for tables in long form"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, list) else "",
)
def test_what_does_not_go_with_a_forecast_is_named(call: Call, tmp_path: Path, words: list[str], part: str) -> None:
    path = write_sales(tmp_path / "sales.csv")
    assert_refused(call("fit", path, *MONTHLY, *SMALL, *words), part)
    assert not list(Path().iterdir())


def test_values_that_cannot_be_forecast_are_named(call: Call, tmp_path: Path) -> None:
    path = write_sales(tmp_path / "sales.csv", note=["x"] * 60)
    assert_refused(call("fit", path, *MONTHLY, *SMALL), "note must be a number, got 'x'", "--features")
    path = write_sales(tmp_path / "sales.csv", stock=[1.0, *[""] * 2, *range(57)])
    assert_refused(call("fit", path, *MONTHLY, *SMALL), "series 0, channel stock, step 1", "fill it first")
    path = write_sales(tmp_path / "sales.csv")
    assert_refused(call("fit", path, "--period", "6", "--target", "sold"), "period is for --forecast")
    assert {"--forecast", "--period"} <= options_of(call, "fit")
