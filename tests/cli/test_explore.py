"""`indrnn explore` and `indrnn report --html`."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import indrnn
from indrnn.networks import Head, Plain

from ..analysis.pages import assert_one_file
from .calls import DIGITS, Call, assert_done, assert_refused, read


def data_of(page: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(assert_one_file(page.read_text()).scripts["data"])
    return found


def test_a_page_of_an_adding_run(finished: Path, call: Call) -> None:
    said = assert_done(call("explore", finished))
    page = Path(f"explore-{finished.name}.html")
    assert str(page) in said.out
    data = data_of(page)
    assert (data["kind"], data["length"], data["title"]) == ("adding", 5, finished.name)
    assert_refused(call("explore", finished), "is there already", "--overwrite")
    assert_done(call("explore", finished, "--overwrite"))


def test_pages_of_digits(few_digits: Path, call: Call, tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "deep" / "page.html"
    assert_done(call(*DIGITS, "--permuted", "--data-dir", few_digits, "--steps", "2", "--out", run))
    said = assert_done(call("explore", run, "--out", page))
    assert "MNIST is not here" in said.out
    data = data_of(page)
    assert data["input"]["samples"] == []  # type: ignore[index]
    assert len(data["input"]["order"]) == 49  # type: ignore[index]
    said = assert_done(call("explore", run, "--out", page, "--data-dir", few_digits, "--overwrite"))
    assert "not here" not in said.out
    data = data_of(page)
    assert 0 < len(data["input"]["samples"]) <= 10  # type: ignore[index]
    report = tmp_path / "report.html"
    assert_done(call("report", run, "--html", report, "--full", "--data-dir", few_digits))
    page_texts = assert_one_file(report.read_text()).texts
    right = round(12 * read(run, "result.json")["test"]["accuracy"])
    assert any(f"{right} of 12 are right" in text for text in page_texts)
    assert any("over time" in text for text in page_texts)
    assert_done(call("report", run, "--html", report, "--overwrite"))
    assert any("needs MNIST" in text for text in assert_one_file(report.read_text()).texts)


def test_a_report_of_runs_of_any_task(finished: Path, call: Call, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    said = assert_done(call("report", finished, finished, "--html", page))
    assert str(page) in said.out
    texts = assert_one_file(page.read_text()).texts
    assert "2 runs side by side" in texts
    assert "model.hidden_size" in texts  # differs from the recipe's
    assert "lr" not in texts
    assert_refused(call("report", finished, "--html", page), "is there already")
    assert_refused(call("report", "--html", tmp_path / "none.html"), "runs must be")
    assert_refused(call("report", tmp_path, "--html", tmp_path / "none.html"), "holds no config.json")
    assert not (tmp_path / "none.html").exists()


def test_a_saved_model_is_explored_with_noise(call: Call, tmp_path: Path) -> None:
    indrnn.save(Head(Plain(3, 4, 1), 2).build(), tmp_path / "model")
    said = assert_done(call("explore", tmp_path / "model"))
    assert "noise in its place" in said.out
    assert data_of(Path("explore-model.html"))["kind"] == "recorded"


def test_runs_that_cannot_be_explored(call: Call, tmp_path: Path) -> None:
    assert_refused(call("explore", tmp_path / "nowhere"), "nowhere")
    indrnn.save(indrnn.SequenceClassifier(torch.nn.LSTM(2, 3), 4), tmp_path / "lstm")
    assert_refused(call("explore", tmp_path / "lstm"), "got SequenceClassifier of LSTM")
    assert_refused(call("explore", tmp_path / "lstm", "--out", tmp_path), "is a folder")
