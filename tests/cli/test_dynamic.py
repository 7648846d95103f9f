"""`indrnn evaluate --dynamic`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import indrnn
from indrnn import LanguageModel
from indrnn.tasks.text import dynamic as module
from indrnn.tasks.text.dynamic import dynamic_evaluation, gradient_statistics, tokens_of
from indrnn.tasks.text.recipe import TextRecipe
from indrnn.tasks.text.task import LanguageTask
from indrnn.training import Shard

from .calls import TEXT, Call, assert_done, assert_refused, contents, read

Runs = Callable[[str], Path]
RESULT = re.compile(
    r"^text-\w+: (\w+) ([\d.]+) static, ([\d.]+) dynamic \(([\d.]+)% (lower|higher)\), tokens (\d+)", re.M
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def parts(run: Path) -> tuple[LanguageModel, LanguageTask]:
    """The model, and the task as the run had it."""
    model = indrnn.load(run)
    assert isinstance(model, LanguageModel)
    task = read(run, "config.json")["task"]
    names = ("batch_size", "length", "jitter", "halved", "reset", "seed")
    words: Any = {name: task[name] for name in names}
    return model, TextRecipe(unit=task["unit"], text=run.parent / "text.txt", **words).task()


@pytest.mark.parametrize("unit", ["char", "word", "byte"])
def test_it_measures_both_and_changes_nothing(unit: str, language_runs: Runs, call: Call) -> None:
    run = language_runs(unit)
    before = contents(run.parent)
    said = assert_done(call("evaluate", run, "--dynamic", "--lr", "1e-4", "--decay", "0.01", "--segment", "7"))
    assert contents(run.parent) == before
    assert not list(Path().iterdir())

    model, task = parts(run)
    windows = [task.batch(step, Shard()) for step in range(task.steps_per_epoch)]
    statistics = gradient_statistics(model, [(window.inputs, window.target) for window in windows])
    test = tokens_of(task.corpus.test)
    static = dynamic_evaluation(model, test, statistics, lr=0, decay=0, segment=7)
    dynamic = dynamic_evaluation(model, test, statistics, lr=1e-4, decay=0.01, segment=7)
    found = RESULT.search(said.out)
    assert found is not None, said.out
    metric, *values, _, direction, tokens = found.groups()
    numbers = [each.perplexity if unit == "word" else each.bits for each in (static, dynamic)]
    assert metric == ("perplexity" if unit == "word" else "bpc")
    assert [float(value) for value in values] == pytest.approx(numbers, rel=1e-5)
    assert direction == ("lower" if numbers[1] < numbers[0] else "higher")
    assert int(tokens) == len(test) - 1
    assert numbers[0] != pytest.approx(numbers[1], rel=1e-5)
    one = assert_done(call("evaluate", run, "--test-batch", "1")).out
    assert float(re.findall(rf"{metric} ([\d.]+)", one)[0]) == pytest.approx(numbers[0], rel=1e-5)


def test_the_grid_chooses_on_validation_text(
    language_runs: Runs, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LRS", (1e-8, 1e-6))
    monkeypatch.setattr(module, "DECAYS", (0.0, 0.02))
    run, out = language_runs("char"), tmp_path / "dynamic.json"
    arguments = ["evaluate", run, "--dynamic", "--grid", "--statistics-windows", "3", "--out", out]
    said = assert_done(call(*arguments)).out
    model, task = parts(run)
    windows = [task.batch(step, Shard()) for step in range(3)]
    statistics = gradient_statistics(model, [(window.inputs, window.target) for window in windows])
    validation = tokens_of(task.corpus.validation)
    tried = {
        (lr, decay): dynamic_evaluation(model, validation, statistics, lr=lr, decay=decay).bits
        for lr in (1e-8, 1e-6)
        for decay in (0.0, 0.02)
    }
    lr, decay = min(tried, key=lambda pair: tried[pair])
    rows = re.findall(r"^ +([\de.-]+) +([\de.-]+)  ([\d.]+)(  chosen)?$", said, re.M)
    assert [float(value) for _, _, value, _ in rows] == pytest.approx(sorted(tried.values()), rel=1e-5)
    assert [(float(a), float(b)) for a, b, _, chosen in rows if chosen] == [(lr, decay)]
    assert f"lr {lr:g}, decay {decay:g}, chosen on validation" in said
    assert f"lr {lr:g} is at the end of the grid" in said
    epoch = task.steps_per_epoch
    assert said.count(f"statistics over 3 of {epoch} windows") == 2
    assert re.search(rf"^about \d+ s: .*, 4 pairs of lr and decay on {-(-(len(validation) - 1) // 20)} segments", said)

    kept = read(tmp_path, "dynamic.json")
    test = dynamic_evaluation(model, tokens_of(task.corpus.test), statistics, lr=lr, decay=decay)
    assert kept["dynamic"] == pytest.approx(test.bits, rel=1e-6)
    assert (kept["lr"], kept["decay"], kept["segment"], kept["statistics_windows"]) == (lr, decay, 20, 3)
    assert kept["tokens"] == len(TEXT) // 10 - 1
    assert len(kept["grid"]) == 5  # and the static one
    assert kept["command"].startswith("indrnn evaluate ")
    assert "--grid --statistics-windows 3" in kept["command"]
    assert_refused(call(*arguments), f"out must be a new file, and {out} is there already")


@pytest.mark.parametrize("lr", ["1", "1e30"], ids=["worse", "diverged"])
def test_where_no_pair_is_better_the_model_stays_as_it_is(lr: str, language_runs: Runs, call: Call) -> None:
    arguments = ["--dynamic", "--grid", "--lr", lr, "--decay", "0", "--statistics-windows", "3"]
    said = assert_done(call("evaluate", language_runs("char"), *arguments)).out
    assert re.search(r"^ +static  [\d.]+  chosen: no pair is better$", said, re.M)
    found = RESULT.search(said)
    assert found is not None
    assert found[2] == found[3]
    assert "lr 0, decay 0, chosen on validation" in said


def test_what_is_given_is_not_searched_for(language_runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECAYS", (0.0, 0.02))
    said = assert_done(call("evaluate", language_runs("char"), "--dynamic", "--grid", "--lr", "1e-3")).out
    assert "2 pairs of lr and decay" in said
    assert len(re.findall(r"^ +0.001 ", said, re.M)) == 2
    assert "lr 0.001 is at the end" not in said


def test_plain_numbers_go_to_a_file_too(language_runs: Runs, call: Call, tmp_path: Path) -> None:
    run = language_runs("char")
    assert_done(call("evaluate", run, "--out", tmp_path / "test.json"))
    kept = read(tmp_path, "test.json")
    assert kept["test"]["bpc"] == pytest.approx(read(run, "result.json")["test"]["bpc"], rel=1e-5)
    assert kept["recipe"] == "text-char"


def test_what_diverges_is_said(language_runs: Runs, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--dynamic", "--lr", "1e30", "--decay", "0", "--segment", "5", "--out", out]
    said = assert_done(call("evaluate", language_runs("char"), *arguments))
    assert "(diverged)" in said.out
    assert read(tmp_path, "out.json")["dynamic"] is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--lr", "1e-3"], "lr is for --dynamic"),
        (["--grid"], "grid is for --dynamic"),
        (["--statistics-windows", "3"], "statistics_windows is for --dynamic"),
        (["--dynamic", "--test-batch", "1"], "test_batch is not for --dynamic"),
        (["--dynamic", "--lr", "-1"], "lr must be a number of at least 0, got -1"),
        (["--dynamic", "--decay", "nan"], "decay must be a number of at least 0, got nan"),
        (["--dynamic", "--segment", "0"], "segment must be at least 1, got 0"),
        (["--dynamic", "--statistics-windows", "0"], "statistics_windows must be at least 1, got 0"),
        (["--dynamic", "--out", "nowhere/file.json"], "out must be a file in a folder, and nowhere is none"),
        (["--out", "."], "out must be a new file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_cannot_be(options: list[str], part: str, language_runs: Runs, call: Call) -> None:
    said = call("evaluate", language_runs("char"), *options)
    assert_refused(said, part)
    assert said.out == ""


def test_a_run_of_no_language_model(finished: Path, call: Call) -> None:
    assert_refused(
        call("evaluate", finished, "--dynamic"), f"dynamic is for language models, and {finished} is of adding-"
    )
