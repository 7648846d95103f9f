"""What the experiments count: folds of the cross-validation, pages, and answers over time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments import (
    SPOKEN,
    choices_page,
    classification_page,
    cross_validated,
    folds,
    main,
    training_split,
)
from benchmarks.results import Results, Run
from benchmarks.spoken import over_time, speakers_page


def test_folds_divide_each_class_evenly() -> None:
    y = np.array(["a"] * 10 + ["b"] * 7 + ["c"])
    found = folds(y, 4)
    assert found.shape == (18,)
    for name in "abc":
        counts = np.bincount(found[y == name], minlength=4)
        assert counts.max() - counts.min() <= 1
    counts = np.bincount(found)
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(found, folds(y, 4))


def test_spoken_digits_are_divided_by_the_number_of_the_clip(tmp_path: Path) -> None:
    """Clips 0 to 4 are never there; 5 to 9 are the fold that is measured."""
    path, index = tmp_path / "fsdd.npz", np.tile(np.arange(12), 2)
    audio = np.repeat(index, 3).astype(np.int16)  # each clip holds its number
    digit, speaker = np.repeat([0, 1], 12), np.repeat(["a", "b"], 12)
    np.savez(path, audio=audio, index=index, lengths=np.full(24, 3), digit=digit, speaker=speaker)
    X, y, fold, count = training_split(SPOKEN, 4, path)
    numbers = np.array([one[0, 0] for one in X])
    assert sorted(set(numbers.tolist())) == list(range(5, 12))
    assert sorted(set(numbers[fold == 0].tolist())) == [5, 6, 7, 8, 9]
    assert count == 1
    assert y.tolist() == [0] * 7 + [1] * 7


def test_what_is_measured_of_a_fold() -> None:
    X = [np.full((1, 4), float(i % 2)) for i in range(8)]
    options = {"steps": 30, "hidden_size": 8, "lr": 0.03, "front": False, "augment": False}
    found = cross_validated(X, np.arange(8) % 2, np.arange(8) // 4, 1, options)
    assert (found["right"], found["series"]) == (4, 4)
    assert 0 < found["loss"] < 0.5


def test_a_page_of_choices() -> None:
    command = "python -m benchmarks.experiments choices --steps 200 --sets BasicMotions"
    about = {"steps": 200, "folds": 4, "series": 40, "command": command}
    runs = [
        {"change": "defaults", "set": "BasicMotions", "right": 39, **about},
        {"change": "no convolutions", "set": "BasicMotions", "right": 30, "loss": 0.51, **about},
    ]
    page = "\n".join(choices_page(runs))
    assert "| defaults | 97.5 |" in page
    assert "| no convolutions | 75.0 (0.510) |" in page
    assert page.count(f"    {command}\n") == 1


def test_a_page_of_speakers() -> None:
    about = {"method": "indrnn", "steps": None}
    runs = [{"speaker": "a", "right": 3, "clips": 4, **about}, {"speaker": "b", "right": 5, "clips": 12, **about}]
    page = "\n".join(speakers_page(runs))
    assert "| a | 75.0% |" in page
    assert "| all | 50.0% (" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speakers", "--methods", "lstm"], "methods must be of indrnn, lstm-front; got lstm"),
        (["classification", "--sets", SPOKEN], f"sets must be of ItalyPowerDemand, .*; got {SPOKEN}"),
        (["choices", "--changes", "more"], "changes must be of defaults, .*; got more"),
    ],
    ids=["methods", "sets", "changes"],
)
def test_what_is_not_measured_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        main(arguments)


def test_runs_are_kept_and_none_is_repeated(tmp_path: Path) -> None:
    def page(runs: list[Run]) -> list[str]:
        return [f"{len(runs)} runs"]

    def measure() -> Run:
        measured.append(1)
        return {"right": len(measured)}

    measured: list[int] = []
    for command, set in (("first", "a"), ("first", "b"), ("second", "b"), ("second", "c")):
        Results(tmp_path / "fit", "name", command, page).add(measure, set=set, seed=0)
    kept = json.loads((tmp_path / "fit/name.json").read_text())
    assert [(run["set"], run["right"], run["command"]) for run in kept["runs"]] == [
        ("a", 1, "first"),
        ("b", 2, "first"),
        ("c", 3, "second"),
    ]
    assert kept["machine"]["indrnn"]
    assert (tmp_path / "fit/name.md").read_text() == "3 runs\n"


def test_answers_over_time() -> None:
    """Three clips: sure and right at once; sure and wrong in the second tenth; never sure, and right at its end."""
    answers = np.empty(3, dtype=object)
    answers[0] = np.array([[0.99, 0.01], [0.4, 0.6], [0.9, 0.1]])
    answers[1] = np.array([[0.6, 0.4], [0.96, 0.04]])
    answers[2] = np.array([[0.6, 0.4]])
    rows = over_time(list(answers), np.array([0, 1, 0]))
    assert [row["seconds"] for row in rows] == pytest.approx([0.1, 0.2, 0.3])
    assert [row["going on"] for row in rows] == pytest.approx([2 / 3, 1 / 3, 0])
    assert [row["right"] for row in rows] == pytest.approx([2 / 3, 1 / 3, 2 / 3])
    assert [row["settled"] for row in rows] == pytest.approx([2 / 3, 2 / 3, 1])
    assert [row["decided"] for row in rows] == pytest.approx([2 / 3, 1, 1])
    assert [row["right of decided"] for row in rows] == pytest.approx([1, 2 / 3, 2 / 3])


def test_a_page_of_classification_has_deviations_of_several_seeds_alone() -> None:
    about = {"set": "GunPoint", "fit_seconds": 2.0, "predict_seconds": 0.5}
    runs = [{"method": "indrnn", "accuracy": accuracy, **about} for accuracy in (90.0, 92.0)]
    page = "\n".join(classification_page([*runs, {"method": "best", "accuracy": 93.0, **about}]))
    assert "| GunPoint | 91.0 ± 1.0 (2) | 93.0 (1) |" in page
    assert "| GunPoint | 2.0 / 0.50 | 2.0 / 0.50 |" in page
