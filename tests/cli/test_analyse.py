"""`indrnn analyse`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import indrnn
from indrnn.cli.analyse import KINDS
from indrnn.tasks.rows import extras, rows

from ..analysis.pages import assert_one_file
from .calls import DIGITS, TRAIN, Call, assert_done, assert_refused, contents, read

pytest.importorskip("matplotlib")
KEPT = Path(__file__).parents[2] / "results" / "pixels"


def test_memory_of_a_run(finished: Path, call: Call, tmp_path: Path) -> None:
    before, out = contents(finished), tmp_path / "out"
    said = assert_done(call("analyse", "memory", finished, "--items", "7", "--out", out, "--bounds", "0.2", "0.6"))
    assert contents(finished) == before
    found = read(out, "memory.json")
    assert (found["length"], found["bounds"], found["sequences"]) == (5, [0.2, 0.6], 11)
    model = indrnn.load(finished)
    weights = dict(model.named_parameters())
    for layer in found["layers"]:
        assert layer["u"] == weights[layer["name"]].double().tolist()
        assert len(layer["measured"]) == 7
    assert said.out.count("\n| ") == 3  # the line under the head, and two layers
    assert str(out / "memory.png") in said.out
    # ε^(1/steps), by hand: 0.2 and 0.2^(1/3)
    assert (
        "of 5 steps, an influence of 0.2: short memory is below 1 steps (|u| < 0.2), long from 3 on (|u| >= 0.5848)"
        in said.out
    )
    assert_refused(call("analyse", "memory", finished, "--out", out), "memory.json, memory.md, memory.png already")
    assert_done(call("analyse", "memory", finished, "--items", "0", "--out", out, "--overwrite"))
    assert read(out, "memory.json")["layers"][0]["measured"] is None


def test_the_weights_before_are_those_that_training_began_with(call: Call, tmp_path: Path) -> None:
    """Which a run of one step with a learning rate of next to nothing still has."""
    run = tmp_path / "run"
    assert_done(call(*TRAIN, "--steps", "1", "--lr", "1e-12", "--out", run))
    assert_done(call("analyse", "weights", run, "--bins", "5", "--out", tmp_path))
    for layer in read(tmp_path, "weights.json")["layers"]:
        torch.testing.assert_close(torch.tensor(layer["after"]), torch.tensor(layer["before"]))
        assert sum(layer["counts_before"]) == 7


def test_weights_of_a_run_that_began_with_anothers(finished: Path, call: Call, tmp_path: Path) -> None:
    run = tmp_path / "second"
    assert_done(call(*TRAIN, "--steps", "2", "--init-from", finished, "--out", run))
    said = assert_done(call("analyse", "weights", run, "--out", tmp_path))
    assert "shown after training alone" in said.out
    assert read(tmp_path, "weights.json")["layers"][0]["before"] is None


def test_ablate_of_a_run(finished: Path, call: Call, tmp_path: Path) -> None:
    before = contents(finished)
    said = assert_done(call("analyse", "ablate", finished, "--controls", "2", "--out", tmp_path / "out"))
    assert contents(finished) == before
    found = read(tmp_path / "out", "ablate.json")
    assert found["metric"] == "validation_mse"
    assert sum(row["neurons"] for row in found["rows"] if row["layer"] is None) == 14
    for row in found["rows"]:
        assert f"| {row['group']} | {row['neurons']} | {row['value']:.4g} | {row['control']:.4g} |" in said.out


def test_ablate_and_memory_of_digits(few_digits: Path, call: Call, tmp_path: Path) -> None:
    run = tmp_path / "digits"
    assert_done(call(*DIGITS, "--data-dir", few_digits, "--steps", "2", "--out", run))
    more = {"gradients": ["--batches", "1"], "depth": ["--batches", "1", "--seeds", "1"]}
    for kind in ("ablate", "memory", "gradients", "depth"):
        assert_done(call("analyse", kind, run, "--data-dir", few_digits, "--out", tmp_path, *more.get(kind, [])))
    assert len(read(tmp_path, "gradients.json")[0]["time"]) == 49
    assert [row["layer"] for row in read(tmp_path, "depth.json")["rows"]] == [2]
    assert read(tmp_path, "ablate.json")["metric"] == "accuracy"
    assert (read(tmp_path, "memory.json")["length"], read(tmp_path, "memory.json")["sequences"]) == (49, 10)


def test_gradients_of_the_adding_problem(finished: Path, call: Call, tmp_path: Path) -> None:
    said = assert_done(call("analyse", "gradients", finished, "--out", tmp_path))
    assert "100 batches of 3" in said.out
    (flow,) = read(tmp_path, "gradients.json")
    assert (len(flow["time"]), len(flow["depth"]), flow["indrnn"]) == (5, 1, True)
    assert_done(call("analyse", "depth", finished, "--seeds", "2", "--batches", "2", "--out", tmp_path))
    assert read(tmp_path, "depth.json")["rows"][0]["after"] > 0
    second = Path(shutil.copytree(finished, tmp_path / "second" / finished.name))  # as seeds of a recipe are called
    assert_done(call("analyse", "gradients", finished, second, "--batches", "1", "--out", tmp_path, "--overwrite"))
    assert [flow["name"] for flow in read(tmp_path, "gradients.json")] == [f"{tmp_path.name}/run", "second/run"]


def test_folders_that_cannot_be_written_to(finished: Path, call: Call, tmp_path: Path) -> None:
    """Said before any work is done; and nothing is replaced that was not to be."""
    (tmp_path / "file").write_text("kept")
    inside = tmp_path / "file" / "below"
    for analysis in ("memory", "weights", "ablate", "gradients", "depth"):
        assert_refused(call("analyse", analysis, finished, "--out", inside), "cannot write to the folder")
    assert_refused(call("explore", finished, "--out", inside / "page.html"), "folder that can be written to")
    assert_refused(call("report", finished, "--html", inside / "page.html"), "folder that can be written to")
    (tmp_path / "memory.md").write_text("kept")
    assert_refused(call("analyse", "memory", finished, "--out", tmp_path), "memory.md already")
    assert (tmp_path / "memory.md").read_text() == "kept"


def test_what_is_refused(finished: Path, call: Call, tmp_path: Path) -> None:
    lstm = tmp_path / "lstm"
    assert_done(call("train", "adding-100-lstm", *TRAIN[2:], "--steps", "1", "--out", lstm))
    for kind in ("memory", "weights", "ablate"):
        assert_refused(call("analyse", kind, lstm), "model must hold independent recurrent weights")
        assert_refused(call("analyse", kind, tmp_path), "holds no config.json")
    assert_refused(call("analyse", "memory", finished, "--epsilon", "2"), "epsilon must be a number between 0 and 1")
    assert_refused(call("analyse", "memory", finished, "--bounds", "0.5", "0.2"), "bounds must be")
    assert_refused(call("analyse", "ablate", finished, "--items", "0"), "items must")
    assert_refused(call("analyse", "weights", finished, "--bins", "0"), "bins must")
    assert_refused(call("analyse", "memory", finished, "--data-dir", tmp_path), "makes its own data")
    assert_refused(call("analyse", "ablate", finished, "--data-dir", tmp_path), "makes its own data")
    assert not (Path.cwd() / "results").exists()


def test_the_help_names_every_analysis(call: Call) -> None:
    said = assert_done(call("analyse", "--help"))
    for name in (*KINDS, *extras("analyse")):
        assert f"\n  {name}" in said.out


@pytest.mark.parametrize("run", ["mnist-6-fast", "pmnist-6-fast"])
def test_kept_runs_without_data(run: str, call: Call, tmp_path: Path) -> None:
    assert_done(call("analyse", "memory", KEPT / run, "--items", "0", "--out", tmp_path))
    found = read(tmp_path, "memory.json")
    assert found["length"] == 784
    assert [len(layer["u"]) for layer in found["layers"]] == [128] * 6
    assert run in rows()
    assert json.loads((KEPT / run / "config.json").read_text())["recipe"]["name"] == run


def test_the_kept_run_of_skeletons_without_data(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDRNN_DATA", str(tmp_path))
    run = KEPT.parent / "skeleton" / "utd-6-aug"
    assert_done(call("analyse", "memory", run, "--items", "0", "--out", tmp_path))
    found = read(tmp_path, "memory.json")
    assert (found["length"], [len(layer["u"]) for layer in found["layers"]]) == (20, [256] * 6)
    assert_done(call("analyse", "weights", run, "--out", tmp_path))
    kept = KEPT.parent / "insight" / "utd-6-aug"
    assert (tmp_path / "weights.md").read_text() == (kept / "weights.md").read_text()
    assert_refused(call("analyse", "ablate", run, "--out", tmp_path), "UTD-MHAD is not at")


@pytest.mark.slow
@pytest.mark.skipif("INDRNN_DATA" not in os.environ, reason="INDRNN_DATA does not name a folder with MNIST")
def test_a_kept_run_on_digits(call: Call, tmp_path: Path) -> None:
    assert_done(call("analyse", "memory", KEPT / "mnist-6-fast", "--items", "64", "--out", tmp_path))
    assert all(layer["difference"] < 1e-5 for layer in read(tmp_path, "memory.json")["layers"])


@pytest.mark.slow
@pytest.mark.skipif("INDRNN_DATA" not in os.environ, reason="INDRNN_DATA does not name a folder with UTD-MHAD")
def test_pages_of_the_kept_run_of_skeletons_name_the_actions(call: Call, tmp_path: Path) -> None:
    run = KEPT.parent / "skeleton" / "utd-6-aug"
    assert_done(call("explore", run, "--out", tmp_path / "page.html"))
    data = json.loads(assert_one_file((tmp_path / "page.html").read_text()).scripts["data"])
    assert (len(data["classes"]), data["classes"][2], data["classes"][22]) == (27, "3 wave", "23 walk")
    assert data["input"]["samples"][0]["right"] in data["classes"]
    assert_done(call("report", run, "--html", tmp_path / "report.html"))
    texts = assert_one_file((tmp_path / "report.html").read_text()).texts
    assert "11 draw a triangle" in texts
    assert any("404 of 430 are right" in text for text in texts)  # as results/skeleton says: 93.95 %
