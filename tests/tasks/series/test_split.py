"""Splits of series: shares of classes and whole groups."""

from __future__ import annotations

import numpy as np
import pytest

from indrnn.tasks.series.split import hold_out


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
    with pytest.raises(ValueError, match=r"share to hold out .* got 1\.0"):
        hold_out(2, 1.0)
