"""`indrnn fit`, `predict`, and `evaluate` on a file: from files that the tests write."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import indrnn
from indrnn.cli import main
from indrnn.tasks.series.task import SeriesTask

from .calls import Call, assert_done, assert_refused, contents, lines, options_of, read, to_go_on

pytest.importorskip("pandas", reason="needs pandas: pip install 'indrnn[data]'")

SMALL = ["--steps", "20", "--hidden-size", "5", "--layers", "1", "--threads", "1", "--batch-size", "8"]
"""A run of a second."""
ENOUGH = ["--steps", "60", "--threads", "1", "--batch-size", "8"]
"""The default network, long enough to tell slopes apart."""
FILES = {
    "config.json",
    "metrics.jsonl",
    "checkpoints",
    "result.json",
    "weights.safetensors",
    "model.json",
}  # one evaluation: no curve
FILES |= {"estimator.json", "scores.json", "confusion.json", "confusion.png"}


def slopes(count: int = 40, length: int = 12, seed: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Series of two channels, of which the first rises or falls: (n, 2, T), and their labels."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = rng.normal(size=(count, 2, length)) * 0.1
    x[:, 0] += np.where(y == 1, 1, -1)[:, None] * np.linspace(-1, 1, length)
    return x.astype(np.float32), np.array(["down", "up"])[y]


def write_npz(path: Path, **more: Any) -> Path:
    x, y = slopes()
    np.savez(path, **{"x": x, "y": y} | more)
    return path


def write_long(path: Path, count: int = 20, **given: Any) -> Path:
    """A CSV in long form, of columns run, t, a, b, label."""
    x, y = slopes(count, **given)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "t", "a", "b", "label"])
        for i in range(count):
            writer.writerows([f"r{i}", t, x[i, 0, t], x[i, 1, t], y[i]] for t in range(x.shape[2] - i % 3))
    return path


LONG = ["--id", "run", "--time", "t", "--target", "label"]


@pytest.fixture(scope="session")
def fitted_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, on a CSV in long form."""
    folder = tmp_path_factory.mktemp("fit")
    write_long(folder / "data.csv")
    with pytest.raises(SystemExit) as end:
        main(["fit", str(folder / "data.csv"), *LONG, *SMALL, "--out", str(folder / "run")])
    assert end.value.code == 0
    return folder


@pytest.fixture
def fitted(fitted_once: Path, tmp_path: Path) -> Path:
    """A folder with data.csv and a finished run, to do with as one likes."""
    return Path(shutil.copytree(fitted_once, tmp_path / "fitted"))


def predictions(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- what was understood


def test_a_dry_run_says_what_was_understood_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    x, y = slopes(30)
    x[0, 1, 3] = x[4, 0, 0] = np.nan
    path = tmp_path / "motion.npz"
    np.savez(path, x=x, y=y, who=np.arange(30) % 5)
    said = assert_done(call("fit", path, "--group", "who", "--dry-run", *SMALL))
    told = {line.split()[0]: line for line in said.out.splitlines()}
    assert "motion.npz: 30 series of 2 channels, 12 steps" in told["data"]
    assert f"{2 / x.size:.2%} of the values" in told["missing"]
    assert "2: down (15), up (15)" in told["classes"]
    assert told["groups"].endswith("who: 5")
    assert "24 series to train on, 6 for test (whole groups of who: " in told["split"]
    assert "IndRNN layers of 5" in told["network"]
    assert "20 steps of 8 series" in told["network"]
    assert re.search(r"about \d+ (s|min) here, [\d,]+ MB", told["cost"])
    assert list(Path().iterdir()) == []
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_are_told_from_classes(call: Call, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", y=np.linspace(0, 2, 40))
    assert "numbers, 0 to 2, mean 1" in assert_done(call("fit", path, "--dry-run", *SMALL)).out
    path = write_npz(tmp_path / "b.npz", y=np.arange(40.0) % 3)
    assert "classes   3: 0 (14), 1 (13), 2 (13)" in assert_done(call("fit", path, "--dry-run", *SMALL)).out
    said = assert_done(call("fit", path, "--dry-run", "--task", "regress", *SMALL))
    assert "numbers" in said.out


def test_a_class_with_one_member_is_noted(call: Call, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", y=["odd", *slopes()[1][1:]])
    said = assert_done(call("fit", path, "--dry-run", *SMALL))
    assert "odd (1)" in said.out
    assert re.search(r"^note .*one series each: 'odd'", said.out, re.MULTILINE)


# ---- a run


def test_a_fit_leaves_a_run_and_its_scores(call: Call, tmp_path: Path) -> None:
    x, y = slopes()
    path, out = write_npz(tmp_path / "a.npz", index=np.arange(40)), tmp_path / "run"
    said = assert_done(call("fit", path, "--test-where", "index<10", *ENOUGH, "--out", out))
    assert {file.name for file in out.iterdir()} - {"tensorboard"} == FILES
    assert lines(out)[-1]["step"] == 60
    assert read(out, "config.json")["recipe"]["reading"]["test_where"] == "index<10"
    model = indrnn.load(out)
    answers = model.predict(x[:10])
    right = int((answers == y[:10]).sum())
    scores = read(out, "scores.json")
    assert scores["test"]["series"] == 10
    assert scores["test"]["accuracy"] == pytest.approx(right / 10)
    assert scores["train"] == 30
    assert read(out, "result.json")["test"]["accuracy"] == scores["test"]["accuracy"]  # where `report` looks for it
    assert scores["test"]["naive"]["always down"]["accuracy"] == 0.5
    counts = read(out, "confusion.json")["counts"]
    assert np.trace(counts) == right
    assert f"({right} of 10)" in said.out
    assert "95 % interval" in said.out
    assert "balanced accuracy" in said.out
    assert "naive baseline" in said.out
    assert re.search(r"^right / answer +down +up$", said.out, re.MULTILINE)
    assert right >= 8  # two lines that cross: 60 steps are enough


def test_a_run_is_named_by_its_data_and_never_thrown_away(call: Call, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    assert_done(call("fit", path, *SMALL))
    before = contents(Path("runs/fit-a"))
    assert_refused(call("fit", path, *SMALL), "runs/fit-a holds something already", "--overwrite")
    assert contents(Path("runs/fit-a")) == before
    assert_done(call("fit", path, *SMALL, "--overwrite", "--seed", "1"))
    assert contents(Path("runs/fit-a")) != before
    assert "fit-a" in assert_done(call("report", "runs/fit-a", "--out", tmp_path / "report")).out


def test_a_stopped_fit_goes_on_to_the_same_weights(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_npz(tmp_path / "a.npz")
    assert_done(call("fit", path, *SMALL, "--out", tmp_path / "whole"))
    make = SeriesTask.batch
    pressed: list[int] = []

    def batch(self: SeriesTask, step: int, shard: Any) -> Any:
        if step == 7 and not pressed:
            pressed.append(step)
            signal.raise_signal(signal.SIGINT)
        return make(self, step, shard)

    monkeypatch.setattr(SeriesTask, "batch", batch)
    said = call("fit", path, *SMALL, "--out", tmp_path / "part")
    assert said.code == 130
    assert not (tmp_path / "part" / "estimator.json").exists()
    assert_refused(call("predict", tmp_path / "part", path), "must be finished", "indrnn fit --resume")
    path = path.rename(tmp_path / "moved.npz")
    again = [*to_go_on(said.out), "--data", str(path), "--threads", "1"]
    assert_done(call(*again))
    one, other = ((tmp_path / run / "weights.safetensors").read_bytes() for run in ("whole", "part"))
    assert one == other
    assert read(tmp_path / "part", "scores.json")["test"] == read(tmp_path / "whole", "scores.json")["test"]


def test_a_fit_is_not_resumed_on_other_data(call: Call, tmp_path: Path) -> None:
    path, out = write_npz(tmp_path / "a.npz"), tmp_path / "run"
    assert_done(call("fit", path, *SMALL, "--out", out))
    x, _ = slopes(seed=4)
    other = write_npz(tmp_path / "b.npz", x=x)
    assert_refused(call("fit", "--resume", out, "--data", other, "--threads", "1"), "cannot resume", "checksum")
    assert_refused(call("fit", "--resume", tmp_path / "none"), "none holds no config.json")


def test_an_ensemble_is_one_run(call: Call, tmp_path: Path) -> None:
    path, out = write_npz(tmp_path / "a.npz"), tmp_path / "run"
    assert_done(call("fit", path, *SMALL, "--members", "2", "--out", out))
    assert {"member-0", "member-1", "estimator.json", "scores.json"} <= {file.name for file in out.iterdir()}
    said = assert_done(call("evaluate", out, "--out", tmp_path / "again.json"))
    assert "8 test series of a.npz" in said.out
    assert read(tmp_path, "again.json")["test"] == read(out, "scores.json")["test"]


def test_networks_of_an_ensemble_are_reported(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    data = write_npz(tmp_path / "set.npz")
    assert_done(call("fit", data, *SMALL, "--members", "2", "--out", out))
    (out / "member-1.bak").mkdir()
    (out / "member-old").write_text("")
    said = assert_done(call("report", out, "--out", tmp_path / "results")).out
    assert "the rows are of its 2 networks" in said
    assert len(list((tmp_path / "results").glob("*.json"))) == 2
    for command in (["predict", out, data, "--out", tmp_path / "p.csv"], ["evaluate", out], ["fit", "--resume", out]):
        assert_done(call(*command))
    assert_done(call("fit", data, *SMALL, "--members", "2", "--out", out, "--overwrite"))


def test_several_labels_have_scores_of_their_own_and_a_baseline(call: Call, tmp_path: Path) -> None:
    x, y = slopes()
    labels = np.stack([y == "up", np.arange(len(y)) % 4 == 0], 1).astype(int)
    np.savez(tmp_path / "set.npz", x=x, y=labels)
    said = assert_done(call("fit", tmp_path / "set.npz", *ENOUGH, "--out", tmp_path / "run")).out
    test = read(tmp_path / "run", "scores.json")["test"]
    counts = np.array([one["counts"] for one in test["labels"]])
    assert counts.shape == (2, 2, 2)
    assert counts.sum((1, 2)).tolist() == [test["series"]] * 2
    assert test["labels"][0]["accuracy"] == pytest.approx(counts[0].trace() / test["series"])
    assert test["naive"]["most frequent answer of each label"]["balanced_accuracy"] == 0.5
    assert "naive baseline" in said
    assert f"    1  {test['labels'][1]['accuracy']:>6.1%}" in said
    assert_done(call("evaluate", tmp_path / "run"))
    np.savez(tmp_path / "set.npz", x=x, y=labels.astype(bool))
    assert_done(call("fit", tmp_path / "set.npz", *SMALL, "--out", tmp_path / "bool"))
    assert len(read(tmp_path / "bool", "scores.json")["test"]["labels"]) == 2
    np.savez(tmp_path / "other.npz", x=x, y=labels * 2)
    assert_refused(call("evaluate", tmp_path / "run", tmp_path / "other.npz"), "must hold 0 and 1, got")


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_targets_in_a_column(kind: str, call: Call, tmp_path: Path) -> None:
    x, y = slopes()
    given = y[:, None] if kind == "classes" else np.linspace(0, 1.5, len(y))[:, None]
    np.savez(tmp_path / "set.npz", x=x, y=given)
    assert_done(call("fit", tmp_path / "set.npz", *SMALL, "--out", tmp_path / "run"))
    assert read(tmp_path / "run", "scores.json")["test"]["series"] == 8
    assert_done(call("evaluate", tmp_path / "run"))
    assert_done(call("evaluate", tmp_path / "run", tmp_path / "set.npz"))


def test_a_device_that_is_not_there_is_refused_before_any_work(call: Call, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "set.npz")
    for more in ([], ["--dry-run"]):
        said = call("fit", data, *SMALL, "--device", "foo", "--out", tmp_path / "run", *more)
        assert_refused(said, "device must be auto, cpu, cuda")
        assert said.out == ""
    assert not (tmp_path / "run").exists()


def test_data_that_were_moved_are_measured_again(call: Call, tmp_path: Path) -> None:
    data, run = write_npz(tmp_path / "set.npz"), tmp_path / "run"
    assert_done(call("fit", data, *SMALL, "--out", run))
    before = assert_done(call("evaluate", run)).out
    (tmp_path / "elsewhere").mkdir()
    moved = data.rename(tmp_path / "elsewhere" / data.name)
    assert_refused(call("evaluate", run), str(data))
    assert assert_done(call("evaluate", run, "--data-dir", moved.parent)).out == before
    assert_refused(call("evaluate", run, moved, "--data-dir", moved.parent), "DATA names another file")


def test_a_regression(call: Call, tmp_path: Path) -> None:
    x, _ = slopes()
    y = x[:, 0, -1].astype(np.float64) + np.arange(40) / 100
    path, out = write_npz(tmp_path / "a.npz", y=y), tmp_path / "run"
    said = assert_done(call("fit", path, *SMALL, "--out", out))
    assert "mean absolute error" in said.out
    assert "always the mean of training" in said.out
    scores = read(out, "scores.json")["test"]
    assert scores["series"] == 8
    assert not (out / "confusion.json").exists()
    assert_done(call("predict", out, path, "--out", tmp_path / "p.csv"))
    found = [float(row["prediction"]) for row in predictions(tmp_path / "p.csv")]
    np.testing.assert_allclose(found, indrnn.load(out).predict(x), rtol=1e-5)


def test_a_target_at_every_step(call: Call, tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "run"
    rows = [f"{i},{t},{(i + t) % 2},{'odd' if (i + t) % 2 else 'even'}" for i in range(10) for t in range(6 + i % 2)]
    path.write_text("\n".join(["id,t,v,state", *rows]))
    named = ["--id", "id", "--time", "t", "--target", "state", "--per-step"]
    said = assert_done(call("fit", path, *named, *SMALL, "--out", out))
    assert "at every step" in said.out
    assert_done(call("predict", out, path, "--out", tmp_path / "p.csv"))
    found = predictions(tmp_path / "p.csv")
    assert [(row["series"], row["step"]) for row in found] == [
        (str(i), str(t)) for i in range(10) for t in range(6 + i % 2)
    ]
    assert {row["prediction"] for row in found} <= {"odd", "even"}


# ---- predict and evaluate


def test_predictions_are_those_of_the_model(call: Call, fitted: Path) -> None:
    """Without labels, and with columns in another order and one more."""
    rows = [row.split(",") for row in (fitted / "data.csv").read_text().splitlines()]
    run, t, a, b, _ = zip(*rows, strict=True)
    zeros = ["note", *["x"] * (len(rows) - 1)]
    text = "\n".join(",".join(row) for row in zip(b, zeros, t, a, run, strict=True))
    (fitted / "new.csv").write_text(text)
    said = assert_done(call("predict", fitted / "run", fitted / "new.csv", "--out", fitted / "p.csv"))
    assert "20 series" in said.out
    found = predictions(fitted / "p.csv")
    assert [row["series"] for row in found] == [f"r{i}" for i in range(20)]
    x = [one[:, : 12 - i % 3] for i, one in enumerate(slopes(20)[0])]
    model = indrnn.load(fitted / "run")
    assert [row["prediction"] for row in found] == model.predict(x).tolist()
    shares = [[float(row["p(down)"]), float(row["p(up)"])] for row in found]
    np.testing.assert_allclose(shares, model.predict_proba(x), atol=1e-5)
    assert not list(fitted.glob(".*.tmp"))


def test_predictions_never_replace_a_file_unasked(call: Call, fitted: Path) -> None:
    out = fitted / "p.csv"
    out.write_text("mine")
    assert_refused(call("predict", fitted / "run", fitted / "data.csv", "--out", out), "is there already")
    assert out.read_text() == "mine"
    assert_done(call("predict", fitted / "run", fitted / "data.csv", "--out", out, "--overwrite"))
    assert len(predictions(out)) == 20
    nowhere = fitted / "no" / "p.csv"
    assert_refused(call("predict", fitted / "run", fitted / "data.csv", "--out", nowhere), "in a folder")


@pytest.mark.parametrize("split", [["--group", "subject"], ["--test-where", "subject==3"]])
def test_columns_of_the_split_are_no_values_later(split: list[str], call: Call, tmp_path: Path) -> None:
    x, y = slopes(24, 5)
    path = tmp_path / "w.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"t{t}" for t in range(5)), "label", "subject"])
        writer.writerows([*x[i, 0], y[i], i % 4] for i in range(24))
    assert_done(call("fit", path, "--target", "label", *split, *SMALL, "--out", tmp_path / "run"))
    assert_done(call("predict", tmp_path / "run", path, "--out", tmp_path / "p.csv"))
    model = indrnn.load(tmp_path / "run")
    wanted = model.predict_proba(np.array([[float(f"{v}") for v in one] for one in x[:, 0]]))
    rows = csv.DictReader((tmp_path / "p.csv").read_text().splitlines())
    found = [[float(row["p(down)"]), float(row["p(up)"])] for row in rows]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert_done(call("evaluate", tmp_path / "run", path))


def test_columns_of_a_wide_table_are_known_by_their_names(call: Call, tmp_path: Path) -> None:
    """Whatever else a later file has, in whatever order; and numbers are names where they were so in training."""
    x, y = slopes(20, 5)

    def write(name: str, columns: dict[str, Any]) -> Path:
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return tmp_path / name

    steps = {str(t): x[:, 0, t].tolist() for t in range(5)}
    path = write("train.csv", {**steps, "label": y})
    assert_done(call("fit", path, "--target", "label", *SMALL, "--out", tmp_path / "run"))
    others = {
        "plain.csv": steps,
        "extra.csv": {"pid": range(1000, 1020), **steps},
        "reversed.csv": dict(reversed(steps.items())),
        "unknown.csv": {**steps, "label": [""] * 20},
    }
    found = []
    for name, columns in others.items():
        assert_done(call("predict", tmp_path / "run", write(name, columns), "--out", tmp_path / f"p-{name}"))
        found.append((tmp_path / f"p-{name}").read_text())
    assert len(found[0].splitlines()) == 21
    assert len(set(found)) == 1
    short = write("short.csv", {name: values for name, values in steps.items() if name != "3"})
    assert_refused(call("predict", tmp_path / "run", short, "--out", tmp_path / "p.csv"), "has no '3'")


def test_names_that_are_numbers_from_0_on_are_names(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("0,1,2,3\n" + "0.5,1.5,2.5,7\n0.5,0.5,2.5,8\n" * 4)
    for options, count in (([], 8), (["--header", "False"], 9)):
        said = assert_done(call("fit", path, "--target", "3", *options, "--task", "regress", "--dry-run"))
        assert f"{count} series" in said.out


def test_a_table_of_another_encoding(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("a,b,größe\n1,2,x\n".encode("latin-1"))
    assert_refused(call("fit", path, "--target", "größe"), "must be UTF-8; save it as that")


def test_a_run_in_the_place_of_data(call: Call, fitted: Path) -> None:
    assert_refused(call("fit", fitted / "run", "--resume"), "is a run; put it first: indrnn fit --resume")
    assert_refused(call("evaluate", fitted / "none", fitted / "data.csv"), "holds no config.json")


def test_runs_of_other_data_are_other_rows(call: Call, fitted: Path, tmp_path: Path) -> None:
    write_long(tmp_path / "other.csv")
    other = tmp_path / "other"
    assert_done(call("fit", tmp_path / "other.csv", *LONG, *SMALL, "--seed", "1", "--out", other))
    said = assert_done(call("report", fitted / "run", other, "--out", tmp_path / "results"))
    assert len(said.out.strip().splitlines()) >= 4
    assert "n = 2" not in said.out


def test_a_table_in_long_form_is_so_later(call: Call, tmp_path: Path) -> None:
    """Each series of the second file has one step, so that by itself it would be taken for the wide form."""
    draw = np.random.default_rng(0)
    for name, steps in (("train", 4), ("new", 1)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["run", "a", "b", "label"])
            writer.writerows([f"r{i}", *draw.normal(size=2), "ud"[i % 2]] for i in range(20) for _ in range(steps))
    long = ["--id", "run", "--target", "label"]
    assert_done(call("fit", tmp_path / "train.csv", *long, *SMALL, "--out", tmp_path / "run"))
    assert_done(call("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv"))
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 21


@pytest.mark.parametrize(
    ("learnt", "y", "parts"),
    [
        (np.arange(40) % 2, np.zeros((6, 2), int), ["target must have the shape (6,)", "(6, 2)"]),
        (np.arange(40) % 3 == np.arange(3)[:, None], np.zeros((6, 2), int), ["target must have the shape (6, 3)"]),
        (np.linspace(0.1, 0.9, 40), np.full(6, np.nan), ["target must hold finite numbers", "nan"]),
        (np.linspace(0.1, 0.9, 40), np.array(["a"] * 6), ["target must hold finite numbers", "'a'"]),
    ],
    ids=["classes", "labels", "missing", "text"],
)
def test_targets_of_another_kind(learnt: Any, y: Any, parts: list[str], call: Call, tmp_path: Path) -> None:
    learnt = learnt.T.astype(int) if learnt.ndim == 2 else learnt
    path = write_npz(tmp_path / "a.npz", y=learnt)
    assert_done(call("fit", path, *SMALL, "--out", tmp_path / "run"))
    np.savez(tmp_path / "b.npz", x=slopes(6)[0], y=y)
    assert_refused(call("evaluate", tmp_path / "run", tmp_path / "b.npz"), *parts)


def test_test_series_of_a_file_that_has_grown_are_not_measured(call: Call, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    assert_done(call("fit", path, *SMALL, "--out", tmp_path / "run"))
    assert_done(call("evaluate", tmp_path / "run"))
    x, y = slopes(52)
    np.savez(path, x=x, y=y)
    assert_refused(call("evaluate", tmp_path / "run"), "are not read as those of", "name a file of test series")


def test_evaluate_on_a_file_and_again_on_the_test_series(call: Call, fitted: Path) -> None:
    write_long(fitted / "new.csv", 14, seed=9)
    said = assert_done(call("evaluate", fitted / "run", fitted / "new.csv", "--out", fitted / "e.json"))
    assert "14 series of new.csv" in said.out
    x, y = slopes(14, seed=9)
    x_cut = [one[:, : 12 - i % 3] for i, one in enumerate(x)]
    assert read(fitted, "e.json")["test"]["accuracy"] == pytest.approx(indrnn.load(fitted / "run").score(x_cut, y))


def test_evaluate_with_a_label_that_training_did_not_have(call: Call, fitted: Path) -> None:
    text = (fitted / "data.csv").read_text().replace("up", "sideways")
    (fitted / "new.csv").write_text(text)
    said = assert_done(call("evaluate", fitted / "run", fitted / "new.csv"))
    assert "sideways" in said.out


# ---- bad input

WRONG: list[tuple[str, list[str]]] = [
    ("one class", ["at least two classes"]),
    ("labels of another length", ["y must have one entry for each of the 40 series", "(3,)"]),
    ("one dimension", ["(n, channels, time)", "(12,)"]),
    ("four dimensions", ["(n, channels, time)", "(1, 40, 2, 12)"]),
    ("infinite", ["series 5, channel 1, step 3 is infinite"]),
    ("all missing", ["series 5 has no value at all"]),
    ("empty", ["is empty"]),
    ("one series", ["at least"]),
    ("a missing label", ["target must be known for each series"]),
]


@pytest.mark.parametrize(("what", "parts"), WRONG, ids=[what for what, _ in WRONG])
def test_wrong_data_are_refused_in_a_line(what: str, parts: list[str], call: Call, tmp_path: Path) -> None:
    x, y = slopes()
    bad = x.copy()
    bad[5, 1, 3] = np.inf
    none = x.copy()
    none[5] = np.nan
    given: dict[str, dict[str, Any]] = {
        "one class": {"y": ["a"] * 40},
        "labels of another length": {"y": [0, 1, 0]},
        "one dimension": {"x": x[0, 0]},
        "four dimensions": {"x": x[None]},
        "infinite": {"x": bad},
        "all missing": {"x": none},
        "one series": {"x": x[:1], "y": y[:1]},
        "a missing label": {"y": [np.nan, *range(39)]},
    }
    path = tmp_path / "a.npz"
    if what == "empty":
        path.touch()
    else:
        write_npz(path, **given[what])
    assert_refused(call("fit", path, *SMALL, "--out", tmp_path / "run"), *parts)
    assert not (tmp_path / "run").exists()


def test_wrong_tables_are_refused_in_a_line(call: Call, tmp_path: Path) -> None:
    path = write_long(tmp_path / "a.csv")
    table = path.read_text().splitlines()
    path.write_text("\n".join([*table, table[-1]]))
    last = len(table) + 1
    assert_refused(call("fit", path, *LONG, *SMALL), f"line {last - 1} and line {last}", "the same t")
    path.write_text("\n".join([*table[:-1], "r19,99,much,1,up"]))
    assert_refused(call("fit", path, *LONG, *SMALL), f"line {last - 1}: a must be a number, got 'much'")
    assert_refused(call("fit", path, *SMALL), "--target")
    assert_refused(call("fit", tmp_path / "none.csv", *LONG), "is not there")
    assert_refused(call("fit"), "fit needs DATA")
    assert list(Path().iterdir()) == []


def test_a_missing_package_is_named_in_a_line(call: Call, fitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert_refused(call("fit", fitted / "data.csv", *LONG), "needs pandas: pip install 'indrnn[data]'")


def test_other_channels_than_in_training(call: Call, fitted: Path, tmp_path: Path) -> None:
    run = fitted / "run"
    text = (fitted / "data.csv").read_text()
    (fitted / "new.csv").write_text(text.replace("run,t,a,b", "run,t,a,c"))
    assert_refused(call("predict", run, fitted / "new.csv"), "features", "no 'b'")
    np.savez(tmp_path / "new.npz", x=np.ones((3, 5, 9)))
    assert_refused(call("predict", run, tmp_path / "new.npz"), "2 channels of training (a, b), got 5")
    assert not Path("predictions.csv").exists()


def test_runs_of_another_kind(call: Call, once: Path, fitted: Path) -> None:
    assert_refused(call("predict", once, fitted / "data.csv"), "must be of `indrnn fit`")
    assert_refused(call("predict", fitted, fitted / "data.csv"), "holds no config.json")
    assert_refused(call("evaluate", once, fitted / "data.csv"), "data is for runs of `indrnn fit`", "is of adding-100")
    assert_refused(call("evaluate", fitted / "run", "--test-batch", "3"), "test_batch is for language models")


def test_sounds_of_another_rate(call: Call, tmp_path: Path) -> None:
    def write(path: Path, rate: int, steps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        wide = (1e4 * np.sin(np.arange(steps) * (0.2 if "low" in str(path) else 1.0))).astype("<i2")
        with wave.open(str(path), "wb") as sound:
            sound.setparams((1, 2, rate, 0, "NONE", ""))
            sound.writeframes(wide.tobytes())

    for label in ("low", "high"):
        for i in range(5):
            write(tmp_path / "train" / label / f"{i}.wav", 8000, 40 + i)
    write(tmp_path / "new" / "a.wav", 16000, 90)
    out = tmp_path / "run"
    said = assert_done(call("fit", tmp_path / "train", *SMALL, "--out", out))
    assert "high (5), low (5)" in said.out
    assert_refused(call("predict", out, tmp_path / "new"), "a.wav has 16000 samples a second", "8000", "--resample")
    assert_done(call("predict", out, tmp_path / "new", "--resample"))
    assert [row["series"] for row in predictions(Path("predictions.csv"))] == ["a.wav"]


def test_options_are_listed_and_checked(call: Call, tmp_path: Path) -> None:
    wanted = {"--id", "--time", "--target", "--features", "--group", "--test-where", "--dry-run", "--effort", "--seed"}
    assert wanted <= options_of(call, "fit")
    assert {"--out", "--overwrite"} <= options_of(call, "predict")
    path = write_npz(tmp_path / "a.npz")
    for words in (["--steps", "0"], ["--test-share", "2"], ["--lr", "-1"], ["--rate", "8000"], ["--effort", "much"]):
        assert_refused(call("fit", path, *words), words[0].removeprefix("--").replace("-", "_").split("_")[0])


# ---- real files


@pytest.mark.skipif("INDRNN_DATA" not in os.environ, reason="INDRNN_DATA does not say where audio/fsdd.npz is")
def test_free_spoken_digits_are_understood(call: Call) -> None:
    path = Path(os.environ["INDRNN_DATA"]) / "audio" / "fsdd.npz"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    named = ["--x", "audio", "--target", "digit", "--group", "speaker"]
    said = assert_done(call("fit", path, *named, "--test-where", "speaker==theo", "--dry-run", "--batch-size", "2"))
    assert "3,000 series of 1 channel, 1,148 to 18,262 steps" in said.out
    assert "2,500 series to train on, 500 for test" in said.out
