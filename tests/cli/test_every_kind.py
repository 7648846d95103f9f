"""Every analysis, the explorer and the report, of runs of every kind of task."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import indrnn
from indrnn.cli import main
from indrnn.tasks.runs import open_run
from indrnn.training import Shard
from indrnn.training.evaluation import measure

from ..analysis.pages import assert_one_file
from ..browser import NEEDED, PHONE, assert_fits, browser, opened
from .calls import TRAIN, Call, assert_done, assert_refused, contents, read
from .test_skeleton import TRAIN as SKELETONS
from .test_skeleton import arrays

pytest.importorskip("matplotlib")
__all__ = ["browser"]  # a fixture
SCRIPT = "<script>alert(1)</script>"
FIT = ["--steps", "12", "--hidden-size", "5", "--layers", "2", "--threads", "1", "--batch-size", "8"]


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory, language_runs: Callable[[str], Path]) -> dict[str, Path]:
    """Finished runs of a second: on text, on skeletons, of `fit` with classes and with numbers."""
    folder = tmp_path_factory.mktemp("kinds")
    np.savez(folder / "set.npz", **arrays())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2, 11)).astype(np.float32)
    names = np.array(["a", SCRIPT, "c </script> d"])
    np.savez(folder / "classes.npz", x=x, y=names[np.arange(30) % 3])
    np.savez(folder / "numbers.npz", x=x, y=100 + 20 * x[:, 0].mean(1))
    calls = {
        "skeletons": [*SKELETONS, "--data", folder / "set.npz", "--steps", "6"],
        "classes": ["fit", folder / "classes.npz", *FIT],
        "numbers": ["fit", folder / "numbers.npz", *FIT],
    }
    runs = {"text": language_runs("char")}
    for name, arguments in calls.items():
        runs[name] = folder / "runs" / name
        with pytest.raises(SystemExit) as end:
            main([str(each) for each in (*arguments, "--out", runs[name])])
        assert end.value.code == 0
    return runs


KINDS = ("text", "skeletons", "classes", "numbers")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_analysis(kind: str, kinds: dict[str, Path], call: Call, tmp_path: Path) -> None:
    run = kinds[kind]
    before = contents(run)
    more = {"gradients": ["--batches", "2"], "depth": ["--batches", "1", "--seeds", "2"], "ablate": ["--items", "5"]}
    for analysis in ("memory", "weights", "ablate", "gradients", "depth"):
        said = assert_done(call("analyse", analysis, run, "--out", tmp_path, *more.get(analysis, [])))
        assert f"{analysis}.png" in said.out
    assert contents(run) == before
    model: Any = open_run(run).best[0]
    task: Any = open_run(run).task()
    u = [each.detach() for name, each in model.named_parameters() if name.endswith("weight_hh")]
    for own, layer in zip(u, read(tmp_path, "memory.json")["layers"], strict=True):
        torch.testing.assert_close(own.double(), torch.tensor(layer["u"], dtype=torch.float64))
        assert layer["difference"] < 1e-5
    assert all(layer["before"] is not None for layer in read(tmp_path, "weights.json")["layers"])
    found = read(tmp_path, "ablate.json")
    metric = {"text": "bpc", "skeletons": "accuracy", "classes": "training_accuracy", "numbers": "training_loss"}[kind]
    assert found["metric"] == metric
    with torch.no_grad():  # a batch at least is measured
        first = [next(iter(task.evaluate(model.eval(), 0, Shard())))]
    whole = measure(first, task=task)
    assert whole is not None
    assert found["whole"] == pytest.approx(whole[metric], rel=1e-4)
    assert sum(row["neurons"] for row in found["rows"] if row["layer"] is None) == sum(map(len, u))
    (flow,) = read(tmp_path, "gradients.json")
    assert len(flow["time"]) >= 5
    rows = read(tmp_path, "depth.json")["rows"]
    assert [row["layer"] for row in rows] == list(range(2, 2 + len(flow["depth"])))
    assert all(row["before"] > 0 for row in rows)


@pytest.mark.slow
@NEEDED
def test_pages_of_every_kind_in_a_browser(browser: Any, kinds: dict[str, Path], call: Call, tmp_path: Path) -> None:
    for kind, run in kinds.items():
        assert_done(call("explore", run, "--out", tmp_path / f"{kind}.html"))
        page, wrong = opened(browser, tmp_path / f"{kind}.html", width=PHONE, dark=True)
        for name in ("#step", "#dots", "#rows button", "#order select", "#filters select", "#axes select"):
            page.locator(name).first.focus()
            page.keyboard.press("ArrowDown")
        page.locator("#lost strong").wait_for()
        assert_fits(page)
        assert wrong == []
        page.context.close()
    for number, runs in enumerate(([kinds["classes"]], [*kinds.values()])):
        report = tmp_path / f"report-{number}.html"
        assert_done(call("report", *runs, "--html", report))
        page, wrong = opened(browser, report, width=PHONE, ready="true")
        assert_fits(page)
        assert page.locator("script").count() == 0
        assert wrong == []
        page.context.close()


def test_pages_of_skeletons(kinds: dict[str, Path], call: Call, tmp_path: Path) -> None:
    run = kinds["skeletons"]
    assert_done(call("explore", run, "--out", tmp_path / "page.html"))
    data = json.loads(assert_one_file((tmp_path / "page.html").read_text()).scripts["data"])
    task: Any = open_run(run).task()
    assert data["classes"] == ["action 1", "action 2", "action 3"]
    samples = data["input"]["samples"]
    labels = task.data["validation"][1]
    first = int(labels.argmin())
    taken = task.batch_of("validation", torch.tensor([first])).inputs[:, 0]
    torch.testing.assert_close(torch.tensor(samples[0]["values"]), taken.flatten(), atol=1e-5, rtol=0)
    assert samples[0]["right"] == f"action {int(labels.min()) + 1}"
    assert data["input"]["channels"][:4] == ["joint 1 x", "joint 1 y", "joint 1 z", "joint 2 x"]
    assert_done(call("report", run, "--html", tmp_path / "report.html", "--full"))
    texts = assert_one_file((tmp_path / "report.html").read_text()).texts
    test = read(run, "result.json")["test"]["accuracy"]
    count = task.size("test")
    assert any(f"{round(count * test)} of {count} are right" in text for text in texts)
    assert any("over time" in text for text in texts)


def test_pages_of_text(kinds: dict[str, Path], call: Call, tmp_path: Path) -> None:
    assert_done(call("explore", kinds["text"], "--out", tmp_path / "page.html"))
    assert_done(call("report", kinds["text"], "--html", tmp_path / "report.html"))
    texts = assert_one_file((tmp_path / "report.html").read_text()).texts
    model: Any = indrnn.load(kinds["text"])
    first = model.tokeniser.tokens.index("\n")
    drawn = model.stream(torch.tensor([first]), 400, temperature=0.8, seed=0)
    written = "".join(model.tokeniser.decode_each(int(token) for token in drawn))
    assert any(" ".join(written.split()) == " ".join(text.split()) for text in texts)
    assert any("400 characters, temperature 0.8" in text for text in texts)


def test_pages_of_fitted_series(kinds: dict[str, Path], call: Call, tmp_path: Path) -> None:
    for kind in ("classes", "numbers"):
        run = kinds[kind]
        assert_done(call("explore", run, "--out", tmp_path / f"{kind}.html"))
        assert_done(call("report", run, "--html", tmp_path / f"{kind}-report.html", "--full"))
    page = json.loads(assert_one_file((tmp_path / "classes.html").read_text()).scripts["data"])
    assert sorted(page["classes"]) == sorted(["a", SCRIPT, "c </script> d"])
    assert page["input"]["samples"][0]["right"] in page["classes"]
    texts = assert_one_file((tmp_path / "classes-report.html").read_text()).texts
    scores = read(kinds["classes"], "scores.json")["test"]
    right = round(scores["accuracy"] * scores["series"])
    assert any(f"{right} of {scores['series']} are right" in text for text in texts)
    assert SCRIPT in texts
    texts = assert_one_file((tmp_path / "numbers-report.html").read_text()).texts
    assert any("numbers of series kept for test" in text for text in texts)
    assert "hidden_size" in texts


def test_numbers_are_explored_in_their_units(kinds: dict[str, Path], call: Call, tmp_path: Path) -> None:
    """The page's output layer gives what `predict` gives, not what is standardised."""
    assert_done(call("explore", kinds["numbers"], "--out", tmp_path / "page.html"))
    page = json.loads(assert_one_file((tmp_path / "page.html").read_text()).scripts["data"])
    content = assert_one_file((tmp_path / "page.html").read_text()).scripts["numbers"]
    array = np.frombuffer(base64.b64decode(content), "<f4")
    bias = page["program"]["output"]["bias"]
    estimator: Any = indrnn.load(kinds["numbers"])
    own = estimator.models_[0].output.bias.item()
    expected = own * estimator.target_.scale[0] + estimator.target_.mean[0]
    assert array[bias["at"]] == pytest.approx(expected, rel=1e-5)


def test_what_is_refused(kinds: dict[str, Path], call: Call, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(kinds["classes"], tmp_path / "moved"))
    config = read(moved, "config.json")
    config["recipe"]["data"] = str(tmp_path / "gone.npz")
    (moved / "config.json").write_text(json.dumps(config))
    shutil.rmtree(moved / "checkpoints")  # which know it too
    assert_refused(call("analyse", "ablate", moved, "--out", tmp_path), "gone.npz")
    assert_refused(call("explore", moved, "--out", tmp_path / "page.html"), "need the run's data", "gone.npz")
    assert_done(call("analyse", "memory", moved, "--items", "0", "--out", tmp_path))
    said = assert_done(call("analyse", "weights", moved, "--out", tmp_path))
    assert "shown after training alone" in said.out
    assert_refused(call("analyse", "ablate", kinds["classes"], "--data-dir", tmp_path), f"{tmp_path}/", "is not there")
    ensemble = tmp_path / "ensemble"
    for member in range(2):
        shutil.copytree(kinds["classes"], ensemble / f"member-{member}")
    assert_refused(call("analyse", "memory", ensemble), "is an ensemble of 2", "member-0")
    assert_done(call("analyse", "memory", ensemble / "member-1", "--items", "0", "--out", tmp_path, "--overwrite"))
    own = tmp_path / "own"
    shutil.copytree(kinds["classes"], own)
    config.pop("recipe")
    (own / "config.json").write_text(json.dumps(config))
    assert_refused(call("analyse", "ablate", own, "--out", tmp_path), "known to its own program alone")
    assert_refused(call("analyse", "gradients", own, "--out", tmp_path), "known to its own program alone")
    assert_done(call("analyse", "memory", own, "--items", "0", "--out", tmp_path, "--overwrite"))
    assert_done(call("report", own, "--html", tmp_path / "own.html"))


def test_an_rnn_is_distilled(finished: Path, call: Call, tmp_path: Path) -> None:
    run, out = tmp_path / "rnn", tmp_path / "out"
    assert_done(call("train", "adding-100-irnn", *TRAIN[2:], "--steps", "3", "--out", run))
    said = assert_done(call("analyse", "distil", run, "--steps", "4", "--hidden-size", "6", "--out", out))
    found = read(out, "distil.json")
    rows = {row["network"]: row for row in found["rows"]}
    assert rows["RNN"]["test_MSE"] == pytest.approx(read(run, "result.json")["test"]["test_mse"], rel=1e-5)
    assert rows["IndRNN"]["error"] == found["error"]
    assert len(found["per_step"]) == 5
    assert f"| IndRNN | {rows['IndRNN']['parameters']} | {found['error']:.3g} |" in said.out
    assert_refused(call("analyse", "distil", run, "--out", out), "already")
    assert_refused(call("analyse", "distil", finished), "run must be of an RNN, LSTM or GRU")
    assert_refused(call("analyse", "distil", run, "--lr", "0"), "lr must")
