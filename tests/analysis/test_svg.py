"""Charts: numbers in their places, and text that stays text."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from indrnn.analysis import svg

from .pages import Page

EVIL = "</svg><script>alert(1)</script>'\""


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 17.0), (99.1, 99.9), (0.0, 12345.0), (1e-7, 3e-7)])
def test_ticks_are_round_and_in_the_range(low: float, high: float) -> None:
    found = svg.ticks(low, high)
    assert 3 <= len(found) <= 7
    assert all(low <= tick <= high for tick in found)
    steps = {round((b - a) / (found[1] - found[0]), 6) for a, b in itertools.pairwise(found)}
    assert steps == {1.0}


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_curve_goes_through_its_points(logarithmic: bool) -> None:
    """Higher is further up, and in equal steps where the numbers are, or their logarithms."""
    values = [1.0, 10.0, 100.0] if logarithmic else [1.0, 2.0, 3.0]
    drawn = svg.curves([("a", list(enumerate(values)))], across="x", up="y", logarithmic=logarithmic)
    Page(drawn)
    path = re.search(r'class="curve" d="([^"]*)"', drawn)
    assert path is not None
    (x1, y1), (x2, y2), (x3, y3) = ((float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path[1]))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert y1 > y2 > y3


def test_a_curve_of_nothing_finite() -> None:
    assert "nothing to draw" in svg.curves([("a", [(1, float("nan"))])], across="x", up="y")
    assert "nothing to draw" in svg.curves([("a", [(1, 0.0)])], across="x", up="y", logarithmic=True)
    Page(svg.curves([("a", [(1, 2.0)])], across="x", up="y"))  # a single point has no range


def test_columns_are_as_tall_as_their_counts() -> None:
    drawn = svg.histogram([2, 0, 8], ["a", "b", "c"], title="t")
    heights = [float(found) for found in re.findall(r'class="column"[^>]*height="([\d.]+)"', drawn)]
    assert heights[1] == 0
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.1)


def test_a_matrix_has_its_counts() -> None:
    page = Page(svg.matrix([[3, 1], [0, 4]], ["cat", EVIL]))
    assert [text for text in page.texts if text.strip()] == [
        *("right ↓ answered →", "cat", EVIL, "right"),
        *("cat", "3", "1", "75.0%"),
        *(EVIL, "4", "100.0%"),
    ]


def test_names_stay_text() -> None:
    drawn = svg.curves([(EVIL, [(0, 1.0), (1, 2.0)])], across=EVIL, up=EVIL, reference=(1.5, EVIL))
    drawn += svg.histogram([1], [EVIL], title=EVIL) + svg.scatter([(0.0, 1.0), (1.0, 1.0)], across=EVIL, up=EVIL)
    page = Page(drawn)
    assert "script" not in [tag for tag, _ in page.elements]


def test_a_curve_of_one_point_is_seen() -> None:
    drawn = svg.curves([("a", [(60.0, 0.5)])], across="step", up="loss", logarithmic=True)
    (x,) = re.findall(r'<circle cx="([\d.]+)"', drawn)
    assert 64 < float(x) < 626
    names = re.findall(r'text-anchor="(?:middle|end)">([^<]*)<', drawn)
    assert "60" in names
    assert not any(name.startswith("60.") for name in names)  # a step is whole


def test_ticks_of_numbers_that_are_near_each_other_differ() -> None:
    drawn = svg.curves([("a", [(2.0, 1.9700), (3.0, 1.9721)])], across="layer", up="norm")
    names = re.findall(r'text-anchor="end">([^<]*)<', drawn)
    assert len(names) == len(set(names)) >= 3


def test_a_matrix_of_many_classes_is_closer() -> None:
    drawn = svg.matrix([[1] * 27] * 27, [*map(chr, range(97, 123)), "action 27"])
    assert 'class="matrix close"' in drawn
    texts = [text for text in Page(drawn).texts if text.strip()]
    assert texts[1:28] == [str(number) for number in range(1, 28)]  # names have no room over columns
    assert {"1 a", "26 z", "action 27"} <= {*texts}
    assert 'class="matrix"' in svg.matrix([[1, 0], [0, 1]], ["a", "b"])


def test_dots_that_are_no_numbers_are_left_out() -> None:
    points = [(0.0, 0.1), (1.0, math.nan), (1.0, 0.9), (0.5, math.inf)]
    assert svg.scatter(points, across="x", up="y") == svg.scatter([points[0], points[2]], across="x", up="y")
    assert "nothing to draw" in svg.scatter(points[1:2], across="x", up="y")
