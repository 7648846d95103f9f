"""`indrnn evaluate`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .calls import (
    TRAIN,
    Call,
    assert_done,
    assert_refused,
    contents,
    lines,
    read,
)

KEPT = sorted(path.parent for path in (Path(__file__).parents[2] / "results").glob("*/*/result.json"))

# ---- evaluate


@pytest.mark.slow
@pytest.mark.skipif("INDRNN_DATA" not in os.environ, reason="INDRNN_DATA names no folder with real data")
@pytest.mark.parametrize("run", KEPT, ids=lambda run: run.name)
def test_kept_runs_give_their_figures_again(run: Path, call: Call, tmp_path: Path) -> None:
    assert not list(run.glob("**/*.ckpt"))  # what only a run that is to go on needs
    kept = read(run, "result.json")["test"]
    assert_done(call("evaluate", run, "--out", tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())["test"]
    assert found["accuracy"] == kept["accuracy"]
    assert found["loss"] == pytest.approx(kept["loss"], rel=1e-4)


def test_evaluate_measures_a_finished_run_again(finished: Path, call: Call) -> None:
    before = contents(finished)
    said = assert_done(call("evaluate", finished))
    measured = re.search(r"^adding-100-fast: test_mse ([\d.e-]+) with", said.out)
    assert measured is not None, said.out
    assert float(measured[1]) == pytest.approx(read(finished, "result.json")["test"]["test_mse"], rel=1e-5)
    assert "not finished" not in said.out
    assert contents(finished) == before


def test_evaluate_measures_the_best_weights_of_an_unfinished_run(
    interrupt: Callable[[int], None], call: Call, once: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    interrupt(17)
    assert call(*TRAIN, "--steps", "20", "--out", out).code == 130
    said = assert_done(call("evaluate", out))
    earlier = [line for line in lines(once) if line["step"] < 18]
    best = min(earlier, key=lambda line: line["validation_mse"])["step"]
    assert f"of step {best} (the run is not finished)" in said.out
    assert re.search(r"test_mse \d", said.out)


def test_evaluate_moves_nothing_in_a_run_that_may_still_be_going_on(
    interrupt: Callable[[int], None], call: Call, tmp_path: Path
) -> None:
    """There, a checkpoint that is written and not yet in its place belongs to the process that trains."""
    out = tmp_path / "run"
    interrupt(17)
    assert call(*TRAIN, "--steps", "20", "--out", out).code == 130
    shutil.copy(out / "checkpoints" / "last.ckpt", out / "checkpoints" / "next.ckpt")
    before = contents(out)
    assert_done(call("evaluate", out))
    assert contents(out) == before


def test_evaluate_before_the_first_evaluation(interrupt: Callable[[int], None], call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    interrupt(2)
    assert call(*TRAIN, "--steps", "20", "--out", out).code == 130
    assert_refused(call("evaluate", out), str(out), "no checkpoint with an evaluation yet")


def test_evaluate_of_what_is_no_run_of_a_recipe(call: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"training": {"type": "Training"}, "seed": 0}))
    assert_refused(call("evaluate", tmp_path), str(tmp_path), "not the run of a recipe")


def test_evaluate_on_a_device_that_is_none(finished: Path, call: Call) -> None:
    assert_refused(call("evaluate", finished, "--device", "gpu"), "device must be auto, cpu, cuda or cuda:NUMBER")


def test_evaluate_of_a_run_whose_weights_are_of_another_size(finished: Path, call: Call) -> None:
    model = read(finished, "model.json")
    model["network"]["hidden_size"] = 8
    (finished / "model.json").write_text(json.dumps(model))
    assert_refused(call("evaluate", finished), "weights.safetensors", "does not fit the model")


def test_evaluate_of_a_run_whose_config_is_torn(finished: Path, call: Call) -> None:
    config = finished / "config.json"
    config.write_text(config.read_text()[:50])
    assert_refused(call("evaluate", finished), "config.json")


def test_evaluate_of_a_run_that_was_resumed_and_stopped_again(
    interrupt: Callable[[int], None], finished: Path, call: Call
) -> None:
    """Its weights.safetensors is of an earlier time; the best weights so far are others."""
    interrupt(150)
    assert call("train", "--resume", finished, "--steps", "200").code == 130
    best = min(lines(finished), key=lambda line: float(line["validation_mse"]))["step"]
    assert best > 20
    said = assert_done(call("evaluate", finished))
    assert f"the best weights so far, of step {best} (the run is not finished)" in said.out


@pytest.mark.slow
def test_evaluate_computes_in_the_precision_of_the_run(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert call(*TRAIN, "--steps", "2", "--precision", "bf16", "--out", out).code == 0
    said = call("evaluate", out).out
    measured = re.search(r"test_mse ([\d.e-]+) with", said)
    assert measured is not None
    assert float(measured[1]) == pytest.approx(read(out, "result.json")["test"]["test_mse"], rel=1e-5)
