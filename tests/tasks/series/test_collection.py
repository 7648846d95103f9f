"""Collections: every accepted form gives the same series, and what is wrong is named; series that are held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from indrnn.tasks.series.collection import Collection, hold_out


def test_forms_of_the_same_series() -> None:
    array = np.arange(42, dtype=np.float64).reshape(3, 2, 7)
    for X in (array, torch.from_numpy(array), list(array), [torch.from_numpy(each) for each in array], array.tolist()):
        found = Collection.from_arrays(X, ["a", "b", "a"])
        assert [each.dtype for each in found.x] == [np.float32] * 3
        assert np.array_equal(np.stack(found.x), array)
        assert found.y is not None
        assert found.y.tolist() == ["a", "b", "a"]
        assert found.channels == ("0", "1")
    one = Collection.from_arrays(array[:, 0])
    assert [each.shape for each in one.x] == [(1, 7)] * 3


def test_lengths_names_and_choice() -> None:
    X = [np.full((1, n), n, dtype=np.float32) for n in (3, 5, 4)]
    X[1][0, 2] = np.nan
    found = Collection.from_arrays(X, [1, 2, 3], names="abc", groups=["p", "q", "p"], test=[0, 1, 0], channels=["v"])
    assert found.lengths.tolist() == [3, 5, 4]
    assert found.missing == pytest.approx(1 / 12)
    assert found.test is not None
    chosen = found.select(~found.test)
    assert (chosen.lengths.tolist(), chosen.names, chosen.channels) == ([3, 4], ("a", "c"), ("v",))
    assert chosen.y is not None
    assert chosen.y.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros(5), None, "1 dimensions"),
        (np.zeros((1, 2, 3, 4)), None, "4 dimensions"),
        (np.zeros((0, 3)), None, "at least one series"),
        (np.zeros((3, 1, 5)), [1, 2], "y must have as many entries as there are series, 3, got 2"),
        (np.array([[1.0, np.inf]]), None, "series 0, channel 0, step 1 is infinite"),
        (np.array([[1.0, 2.0], [np.nan, np.nan]]), None, "series 1 has no value at all"),
        (np.array([[1e300, 0.0]]), None, r"too large for float32, 1e\+300"),
        ([np.zeros((2, 3)), np.zeros((1, 3))], None, r"X\[1\] has 1"),
        (np.array([["a", "b"]]), None, "must hold numbers"),
        (np.zeros((2, 3), dtype=complex), None, "Complex data not supported"),
    ],
)
def test_what_is_wrong_is_named(X: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message), np.errstate(over="ignore"):
        Collection.from_arrays(X, y)


def test_classes_are_held_out_by_their_share() -> None:
    y = np.array(["a"] * 20 + ["b"] * 5 + ["c"])
    held = hold_out(26, 0.2, classes=y)
    assert [int(held[y == name].sum()) for name in "abc"] == [4, 1, 0]
    np.testing.assert_array_equal(held, hold_out(26, 0.2, classes=y))
    assert not hold_out(26, 0.0, classes=y).any()
    assert hold_out(26, 0.2).sum() == 5


def test_a_share_in_expectation_rounds_up_or_down_and_leaves_one_of_each_class() -> None:
    y = np.repeat([0, 1, 2, 3], [50, 20, 1, 7])
    counts = [np.bincount(y[hold_out(78, 0.2, classes=y, seed=seed, expected=True)], minlength=4) for seed in range(50)]
    assert {tuple(count[:3]) for count in counts} == {(10, 4, 0)}
    assert {int(count[3]) for count in counts} == {1, 2}
    assert np.mean([count[3] for count in counts]) == pytest.approx(1.4, abs=0.2)


@pytest.mark.parametrize("expected", [False, True])
def test_groups_are_held_out_whole(expected: bool) -> None:
    groups = np.repeat(["p", "q", "r", "s", "t"], 4)
    held = hold_out(20, 0.2, classes=np.arange(20) % 2, groups=groups, expected=expected)
    assert held.sum() == 4
    assert len(set(groups[held])) == 1
    with pytest.raises(ValueError, match="at least two values"):
        hold_out(2, 0.2, groups=np.array(["p", "p"]))
