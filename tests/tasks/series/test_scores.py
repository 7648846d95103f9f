"""Scores, against counting by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from indrnn.tasks.series import Collection
from indrnn.tasks.series.scores import ClassScores, nearest_class, number_scores, wilson


@pytest.mark.parametrize(("right", "count"), [(0, 10), (10, 10), (7, 10), (295, 300), (1, 1)])
def test_the_interval_is_where_the_score_test_turns(right: int, count: int) -> None:
    """Its ends are the shares p with |right / n - p| = z sqrt(p (1 - p) / n)."""
    for p in wilson(right, count):
        if 0 < p < 1:
            assert abs(right / count - p) == pytest.approx(1.959964 * np.sqrt(p * (1 - p) / count), rel=1e-5)
    low, high = wilson(right, count)
    assert 0 <= low <= right / count <= high <= 1
    assert low < high


def test_classes_are_counted() -> None:
    right = np.array(["a", "a", "a", "b", "b", "z"])
    answers = np.array(["a", "a", "b", "b", "b", "a"])
    scores = ClassScores.of(right, answers, np.array(["a", "b", "c"]))
    assert scores.classes == ("a", "b", "c", "z")
    assert scores.counts.tolist() == [[2, 1, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert scores.numbers()["accuracy"] == pytest.approx(4 / 6)
    assert scores.numbers()["balanced_accuracy"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    rows = [line.split() for line in scores.table()]
    assert rows[1] == ["a", "2", "1", "·", "·"]


def test_numbers_in_a_file_are_the_classes_of_that_name() -> None:
    scores = ClassScores.of(np.array([1, 2, 2]), np.array(["1", "2", "x"]), np.array(["1", "2", "x"]))
    assert scores.classes == ("1", "2", "x")
    assert scores.counts.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]


def test_many_classes_are_told_by_their_confusions() -> None:
    right = np.repeat(np.arange(30), 3)
    answers = right.copy()
    answers[:2] = 7
    scores = ClassScores.of(right, answers, np.arange(30))
    assert scores.table() == ["most frequent confusions:", "  0 taken for 7: 2"]
    assert ClassScores.of(right, right, np.arange(30)).table() == ["no confusions"]


def test_the_matrix_is_written(tmp_path: Path) -> None:
    right = np.array([0, 1, 1])
    ClassScores.of(right, right, np.array([0, 1])).write(tmp_path, {"run": "a"})
    found = json.loads((tmp_path / "confusion.json").read_text())
    assert found == {"run": "a", "classes": ["0", "1"], "counts": [[1, 0], [0, 2]]}
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2


def test_errors_of_numbers() -> None:
    found = number_scores(np.array([1.0, 2.0, 6.0]), np.array([1.0, 4.0, 6.0]))
    assert found["mean_absolute_error"] == pytest.approx(2 / 3)
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt(4 / 3))
    assert found["r2"] == pytest.approx(1 - 4 / 14)


def test_the_nearest_class_by_mean_and_deviation() -> None:
    x = [np.full((2, 5 + i), float(i)) + np.arange(5 + i) for i in range(6)]
    train = Collection.from_arrays(x, np.array(["a", "a", "a", "a", "b", "b"]))
    truth = np.array(["a", "a", "a", "b", "b", "b"])
    nearest = nearest_class(train, Collection.from_arrays(x), truth, np.array(["a", "b"]))
    assert nearest.counts.tolist() == [[3, 0], [0, 3]]
