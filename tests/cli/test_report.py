"""`indrnn report` and `indrnn analyse`."""

from __future__ import annotations

from pathlib import Path

import torch

import indrnn
from indrnn.training import TensorTask, Training, train

from .calls import (
    DIGITS,
    Call,
    assert_done,
    assert_refused,
    lines,
    read,
)

# ---- what is made of runs


def test_runs_of_the_adding_problem_are_gathered(finished: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "results"
    said = assert_done(call("report", finished, "--out", out))
    kept = read(out, f"{finished.name}.json")
    result = read(finished, "result.json")
    assert (kept["model"], kept["length"], kept["steps"]) == ("indrnn", 5, result["steps"])
    assert kept["test_mse"] == result["test"]["test_mse"]
    assert kept["curve"] == [[line["step"], line["validation_mse"]] for line in lines(finished)]
    assert kept["command"] in said.out
    assert (out / "adding.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_digits_are_gathered_and_looked_into(few_digits: Path, call: Call, tmp_path: Path) -> None:
    runs = [tmp_path / "indrnn", tmp_path / "lstm"]
    short = ["--data-dir", few_digits, "--steps", "2"]
    assert_done(call(*DIGITS, *short, "--out", runs[0]))
    recipe = ["train", "mnist-lstm-6", *DIGITS[2:]]
    assert_done(call(*recipe, *short, "--permuted", "--out", runs[1]))
    out = tmp_path / "results"
    assert_done(call("report", runs[0], "--out", out))
    said = assert_done(call("report", runs[1], "--out", out, "--overwrite"))  # and what is there
    rows = [row.split(" | ") for row in said.out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| permuted MNIST, 7×7 pixels", "| sequential MNIST, 7×7 pixels"]
    for row, run in zip(rows, reversed(runs), strict=True):
        assert f"{100 * read(run, 'result.json')['test']['accuracy']:.2f} %" in row
        assert f"{100 * lines(run)[0]['accuracy']:.2f} %" in row
    assert {path.name for path in out.iterdir()} == {"indrnn.json", "lstm.json", "pixels.png"}

    said = assert_done(call("analyse", "gradients", *runs, "--data-dir", few_digits, "--batches", "2", "--out", out))
    assert str(out / "gradients.png") in said.out
    flows = read(out, "gradients.json")
    assert [(flow["name"], flow["indrnn"]) for flow in flows] == [("indrnn", True), ("lstm", False)]
    assert [(len(flow["time"]), len(flow["depth"])) for flow in flows] == [(49, 1), (49, 1)]
    assert_done(call("report", runs[0], "--out", out, "--overwrite"))  # takes gradients.json for no run


def test_runs_that_cannot_be_gathered(finished: Path, few_digits: Path, call: Call, tmp_path: Path) -> None:
    digits = tmp_path / "digits"
    assert_done(call(*DIGITS, "--data-dir", few_digits, "--steps", "2", "--out", digits))
    assert_refused(call("report", finished, digits), "runs must be of one task")
    assert_refused(call("report", tmp_path), "holds no config.json")
    assert_refused(call("report"), "runs must be the folders of runs, got none")
    assert_refused(call("analyse", "gradients", finished, "--data-dir", tmp_path), "makes its own data")
    assert_refused(call("analyse", "gradients", digits, "--batches", "0"), "batches must")
    assert_refused(call("analyse", "gradients"), "needs the folders of runs")
    assert_refused(call("analyse", "width", digits), "analyse needs the name of an analysis")


def test_runs_of_own_tasks_are_summed_up_by_the_metric_of_the_first(call: Call, tmp_path: Path) -> None:
    x, options = torch.rand(6, 3, 1), Training(steps=2, lr=1e-3, threads=1)
    targets = {"classes": (torch.arange(6) % 2, None), "numbers": (x.mean(1), torch.nn.functional.mse_loss)}
    for name, (y, loss) in targets.items():
        model = indrnn.SequenceClassifier(indrnn.IndRNN(1, 2, batch_first=True), 2 if loss is None else 1)
        train(model, TensorTask((x, y), batch_size=3, loss=loss), options, out=tmp_path / name)
    classes, numbers = tmp_path / "classes", tmp_path / "numbers"
    assert_done(call("report", numbers, classes, "--out", tmp_path / "both"))
    assert read(tmp_path / "both", "classes.json")["metric"] == "training_loss"
    assert_refused(call("report", classes, numbers), "finite training_accuracy at least once")
