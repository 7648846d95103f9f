"""What the experiments count: folds of the cross-validation, pages, and answers over time."""

from __future__ import annotations

import numpy as np
import pytest

from indrnn.series.choices import folds, table
from indrnn.series.spoken import over_time, speakers_page


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


def test_a_page_of_choices() -> None:
    command = "python -m indrnn.series.experiments choices --steps 200 --sets BasicMotions"
    about = {"steps": 200, "folds": 4, "series": 40, "command": command}
    runs = [
        {"change": "defaults", "set": "BasicMotions", "right": 39, **about},
        {"change": "no convolutions", "set": "BasicMotions", "right": 30, **about},
    ]
    page = table(runs)
    assert "| defaults | 97.5 |" in page
    assert "| no convolutions | 75.0 |" in page
    assert page.count(f"    {command}\n") == 1


def test_a_page_of_speakers() -> None:
    about = {"method": "indrnn", "steps": None}
    runs = [{"speaker": "a", "right": 3, "clips": 4, **about}, {"speaker": "b", "right": 5, "clips": 12, **about}]
    page = speakers_page(runs)
    assert "| a | 75.0% |" in page
    assert "| all | 50.0% (" in page


def test_answers_over_time() -> None:
    """Three clips: sure and right at once; sure and wrong in the second tenth; never sure, and right at its end."""
    answers = np.empty(3, dtype=object)
    answers[0] = np.array([[0.99, 0.01], [0.4, 0.6], [0.9, 0.1]])
    answers[1] = np.array([[0.6, 0.4], [0.96, 0.04]])
    answers[2] = np.array([[0.6, 0.4]])
    rows = over_time(answers, np.array([0, 1, 0]))
    assert [row["seconds"] for row in rows] == pytest.approx([0.1, 0.2, 0.3])
    assert [row["going on"] for row in rows] == pytest.approx([2 / 3, 1 / 3, 0])
    assert [row["right"] for row in rows] == pytest.approx([2 / 3, 1 / 3, 2 / 3])
    assert [row["decided"] for row in rows] == pytest.approx([2 / 3, 1, 1])
    assert [row["right of decided"] for row in rows] == pytest.approx([1, 2 / 3, 2 / 3])
