"""Widths of intervals, and where a series goes on."""

from __future__ import annotations

import numpy as np

from indrnn.tasks.series.intervals import checksum, end_of, half_widths


def test_widths_are_ranks_of_residuals() -> None:
    """Of 19 residuals, 90 % of 20 are 18; of 5, all. Widths never shrink with the steps ahead."""
    draw = np.random.default_rng(0)
    residuals = draw.random((19, 4, 2))
    residuals[:, 2] *= 0.01
    found = half_widths(residuals, 0.9)
    for channel in range(2):
        ranked = [sorted(residuals[:, step, channel])[17] for step in range(4)]
        assert found[:, channel].tolist() == [max(ranked[: step + 1]) for step in range(4)]
    np.testing.assert_array_equal(half_widths(residuals[:5, :1], 0.9), residuals[:5, :1].max(0))


def test_residuals_that_are_not_there_yet_do_not_count() -> None:
    draw = np.random.default_rng(1)
    residuals = draw.random((30, 3, 1))
    residuals[11:, 1] = np.nan
    residuals[4:, 2] = np.nan
    ranked = [sorted(residuals[:, 0, 0])[27], sorted(residuals[:11, 1, 0])[10], sorted(residuals[:4, 2, 0])[3]]
    assert half_widths(residuals, 0.9)[:, 0].tolist() == [max(ranked[: step + 1]) for step in range(3)]


def test_where_a_series_goes_on() -> None:
    draw = np.random.default_rng(2)
    series = draw.normal(size=(2, 50))
    known = {checksum(series[:, :20]), checksum(series[:, :35]), checksum(draw.normal(size=(2, 40)))}
    assert end_of(known, series) == 35
    assert end_of(known, series[:, :35]) == 35
    assert end_of(known, series[:, :34]) == 20
    assert end_of(known, series[:, :19]) is None
    assert end_of(known, series[:, 1:]) is None
    assert end_of(known, series[::-1]) is None
    assert end_of(known, series[:1]) is None
    zeros = np.zeros((1, 30))
    assert end_of({checksum(zeros[:, :8])}, zeros) == 8
