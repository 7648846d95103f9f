"""Pictures of runs: that they are drawn, whole, of what was measured."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from indrnn.analysis import gradients
from indrnn.baselines import Baseline
from indrnn.figures import draw_curves, draw_pairs, draw_panels, draw_run, new_figure, smooth, svg_of
from indrnn.networks import Head, Plain
from indrnn.tasks.adding import AddingRecipe
from indrnn.tasks.series.scores import ClassScores
from indrnn.tasks.table import Results
from indrnn.training.folder import RunFolder

from .analysis.pages import Page

image = pytest.importorskip("matplotlib.image")
figure = pytest.importorskip("matplotlib.figure")


def assert_picture(path: Path) -> tuple[int, int]:
    """A whole PNG with something on it, and nothing left beside it; its height and width."""
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = image.imread(path)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10
    assert not [other.name for other in path.parent.iterdir() if "tmp" in other.name]
    return int(pixels.shape[0]), int(pixels.shape[1])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is saved."""
    figures: list[Any] = []
    save = figure.Figure.savefig

    def remember(self: Any, *args: Any, **kwargs: Any) -> Any:
        figures.append(self)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(figure.Figure, "savefig", remember)
    return figures


def a_run(folder: Path, lines: list[dict[str, Any]]) -> RunFolder:
    folder.mkdir(exist_ok=True)
    run = RunFolder(folder)
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


LINES = [{"step": 10 * i, "validation_mse": 0.2 / i, "train_loss": 0.3 / i} for i in range(1, 8)]


def curves(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """The lines on axes, by their labels."""
    return {line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in axes.get_lines()}


# ---- smoothing


@pytest.mark.parametrize("over", [1, 2, 5, 23, 100])
@pytest.mark.parametrize("size", [0, 1, 4, 23])
def test_smooth_is_the_mean_of_the_last_values(size: int, over: int) -> None:
    values = np.random.default_rng(3).normal(size=size)
    sums = np.convolve(values, np.ones(over))[:size] if size else np.zeros(0)
    counts = np.minimum(np.arange(1, size + 1), over)
    smoothed = smooth([*enumerate(values.tolist())], over)
    assert [x for x, _ in smoothed] == [*range(size)]
    assert [y for _, y in smoothed] == pytest.approx((sums / counts).tolist())


# ---- one run


@pytest.mark.parametrize("metric", ["validation_mse", "train_loss"])
def test_a_runs_curve_is_what_was_measured(metric: str, tmp_path: Path, drawn: list[Any]) -> None:
    draw_run(tmp_path / "curve.png", LINES, metric)
    assert_picture(tmp_path / "curve.png")
    (axes,) = drawn[0].axes
    found = curves(axes)
    assert found[metric.replace("_", " ")] == [(line["step"], line[metric]) for line in LINES]
    assert axes.get_yscale() == "log"


@pytest.mark.parametrize(
    ("lines", "points"),
    [
        ([], 0),
        ([{"step": 5, "loss": 1.0}], 1),
        ([{"step": 5, "loss": None}, {"step": 10, "loss": -2.0}, {"step": 15, "other": 3.0}], 1),
        ([{"step": 5, "loss": 0.0}, {"step": 10, "loss": 2.0}], 2),
    ],
    ids=["no lines", "one line", "missing values", "zeros"],
)
def test_awkward_metrics_are_drawn_too(
    lines: list[dict[str, Any]], points: int, tmp_path: Path, drawn: list[Any]
) -> None:
    draw_run(tmp_path / "curve.png", lines, "loss")
    assert_picture(tmp_path / "curve.png")
    assert len(curves(drawn[0].axes[0])["loss"]) == points


def test_a_run_without_metrics_yet_is_drawn_too(tmp_path: Path) -> None:
    draw_run(tmp_path / "curve.png", [], "loss")
    assert_picture(tmp_path / "curve.png")


def test_a_picture_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "curve.png").write_bytes(b"an older one")
    draw_run(tmp_path / "curve.png", LINES, "validation_mse")
    assert_picture(tmp_path / "curve.png")


def adding_picture(folder: Path, model: nn.Module, seed: int) -> Path:
    """The picture of a finished run of the adding problem."""
    (folder / "curve.png").write_bytes(b"of the run alone")
    a_run(folder, LINES)
    assert AddingRecipe(length=13, seed=seed).finish(folder, [model]) == []
    return folder / "curve.png"


@pytest.mark.parametrize("kind", ["indrnn", "lstm"])
def test_answers_of_the_adding_problem_are_drawn_beside_the_curve(kind: str, tmp_path: Path, drawn: list[Any]) -> None:
    network: Plain | Baseline = Plain(None, 5, 2, norm=None) if kind == "indrnn" else Baseline("lstm", 5)
    model = Head(network.sized(2, 13), 1, "SequenceRegressor").build().eval()
    height, width = assert_picture(adding_picture(tmp_path, model, 4))
    assert width > 2 * height
    left, right = drawn[0].axes
    assert curves(left)["validation mse"] == [(line["step"], line["validation_mse"]) for line in LINES]
    assert {y for _, y in curves(left)["always answering 1"]} == {1 / 6}
    assert left.get_xlabel()
    assert left.get_ylabel()
    assert right.get_xlabel()
    assert right.get_ylabel()
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_a_perfect_models_answers_lie_on_the_line(tmp_path: Path, drawn: list[Any]) -> None:
    class Perfect(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.anchor = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return ((x[..., 0] * x[..., 1]).sum(0) + self.anchor).unsqueeze(-1), None

    pictures = []
    for seed in (1, 1, 2):
        adding_picture(tmp_path, Perfect(), seed)
        points = np.asarray(drawn[-1].axes[1].collections[0].get_offsets())
        assert points.shape == (500, 2)
        np.testing.assert_allclose(points[:, 0], points[:, 1], rtol=1e-6)
        assert np.all((points >= 0) & (points <= 2))
        pictures.append(points)
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])


# ---- several


four_panels = functools.partial(
    draw_panels, across="training step", up="error", reference=(1 / 6, "always answering 1"), smoothed=5
)


def falling(steps: int, by: float) -> list[tuple[float, float]]:
    return [(100 * i, math.exp(-by * i)) for i in range(1, steps + 1)]


def test_four_panels_as_in_the_paper(tmp_path: Path, drawn: list[Any]) -> None:
    """Each with its own curves, smoothed; a name has one colour in all of them."""
    panels = {
        "T = 100": {"IndRNN": falling(12, 0.5), "RNN": falling(12, 0.01), "LSTM": falling(9, 0.3)},
        "T = 500": {"IndRNN": falling(12, 0.4), "LSTM": falling(1, 0.1)},
        "T = 1000": {"RNN": falling(7, 0.01), "IndRNN": falling(12, 0.3)},
        "T = 5000": {"IndRNN": falling(3, 0.2)},
    }
    path = tmp_path / "adding.png"
    four_panels(path, panels)
    height, width = assert_picture(path)
    assert width > 3 * height
    assert [axes.get_title() for axes in drawn[0].axes] == list(panels)
    colours: dict[str, set[str]] = {}
    for axes, wanted in zip(drawn[0].axes, panels.values(), strict=True):
        found = curves(axes)
        assert set(found) == {*wanted, "always answering 1"}
        for name, points in wanted.items():
            values = [value for _, value in points]
            means = [float(np.mean(values[max(0, i - 4) : i + 1])) for i in range(len(values))]
            assert [x for x, _ in found[name]] == [step for step, _ in points]
            assert [y for _, y in found[name]] == pytest.approx(means)
        for line in axes.get_lines():
            colours.setdefault(line.get_label(), set()).add(line.get_color())
    assert all(len(of_name) == 1 for of_name in colours.values())
    assert len(set.union(*colours.values())) == 4
    (legend,) = drawn[0].legends
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(colours)


def test_many_curves_differ_and_one_point_is_seen(tmp_path: Path, drawn: list[Any]) -> None:
    """Over more names than there are colours; a run with a single evaluation is a dot."""
    names = [f"run-{number:02}" for number in range(37)]
    panels = {
        "a": {name: falling(3, 0.1) for name in names[:20]},
        "b": {name: falling(1, 0.2) for name in names[20:]},
    }
    four_panels(tmp_path / "many.png", panels)
    assert_picture(tmp_path / "many.png")
    left, right = ([line for line in axes.get_lines() if line.get_label() in names] for axes in drawn[0].axes)
    styles = {(line.get_color(), line.get_linestyle()) for line in (*left, *right)}
    assert len(styles) == len(names)
    assert {line.get_marker() for line in left} == {""}
    assert {line.get_marker() for line in right} == {"o"}


def test_titles_of_panels_leave_each_other_and_the_legend_room(tmp_path: Path, drawn: list[Any]) -> None:
    title = "sequential MNIST, training shifted by up to 1"
    panels = {f"{title} {i}": {"a run": [(1.0, 0.1), (2.0, 0.2)]} for i in range(3)}
    draw_panels(tmp_path / "curves.png", panels, across="epoch", up="error")
    (figure_drawn,) = drawn
    figure_drawn.draw_without_rendering()
    titles = [axes.title for axes in figure_drawn.axes]
    assert [" ".join(each.get_text().split()) for each in titles] == list(panels)
    boxes = [each.get_window_extent() for each in [*titles, figure_drawn.legends[0]]]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize("runs", [1, 19, 60])
def test_the_legend_is_within_the_picture(runs: int, tmp_path: Path, drawn: list[Any]) -> None:
    curves = {f"run {i}": [(1.0, 0.1 + i), (2.0, 0.2)] for i in range(runs)}
    draw_panels(tmp_path / "curves.png", {"MNIST": curves}, across="epoch", up="error")
    (figure_drawn,) = drawn
    figure_drawn.draw_without_rendering()
    box, whole = figure_drawn.legends[0].get_window_extent(), figure_drawn.bbox
    assert whole.x0 <= box.x0
    assert whole.y0 <= box.y0
    assert box.x1 <= whole.x1
    assert box.y1 <= whole.y1


def test_one_panel(tmp_path: Path) -> None:
    four_panels(tmp_path / "one.png", {"T = 100": {"IndRNN": falling(12, 0.5)}})
    assert_picture(tmp_path / "one.png")


def test_drawing_needs_no_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor pyplot, which would look for one and keep every figure."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    draw_run(tmp_path / "curve.png", LINES, "validation_mse")
    assert_picture(tmp_path / "curve.png")


@pytest.mark.parametrize("name", ["$\\frac$", "_🦊 שלום $5 $6", "x" * 300], ids=["formula", "hidden", "long"])
def test_names_of_users_are_no_formulas_and_in_the_legend(name: str, tmp_path: Path, drawn: list[Any]) -> None:
    draw_panels(tmp_path / "picture.png", {name: {name: [(1, 2.0), (2, 1.0)]}}, across="step", up="error")
    (text,) = drawn[-1].legends[0].get_texts()
    shown = text.get_text().replace("\\$", "$").strip()
    assert shown == (name if len(name) <= 60 else f"{name[:59]}…")
    gradients.write([{"name": name, "time": [1.0, 2.0], "depth": []}], Results(tmp_path, "gradients"))
    ClassScores((name, "b"), np.eye(2, dtype=np.int64)).write(tmp_path, {})
    assert (tmp_path / "confusion.png").exists()


# ---- in a page

EVIL = "</svg><script>alert(1)</script>'\" $x$"


def svg_with(curves: dict[str, list[tuple[float, float]]], number: int = 0, **options: Any) -> str:
    made, (axes,) = new_figure(1)
    draw_curves(axes, curves, **options)
    axes.legend()
    return svg_of(made, EVIL, number)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_curve_in_a_page_goes_through_its_points(logarithmic: bool) -> None:
    """Higher is further up, and in equal steps where the numbers are, or their logarithms."""
    values = [1.0, 10.0, 100.0] if logarithmic else [1.0, 2.0, 3.0]
    drawn = svg_with({"a": list(enumerate(values))}, logarithmic=logarithmic)
    path = re.search(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: #0072b2', drawn)
    assert path is not None
    (x1, y1), (x2, y2), (x3, y3) = ((float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path[1]))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.01)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.01)
    assert y1 > y2 > y3


def test_figures_of_a_page_have_ids_of_their_own_and_the_same_bytes() -> None:
    curves = {"a": [(1.0, 2.0), (2.0, 1.0)]}
    first, second = svg_with(curves), svg_with(curves, 1)
    ids = [set(re.findall(r'id="([^"]*)"', drawn)) for drawn in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for drawn, own in zip((first, second), ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]*)', drawn)) <= own
    assert first == svg_with(curves)
    assert "<style" not in first
    assert "http" not in first


def test_names_in_a_page_stay_text() -> None:
    page = Page(svg_with({EVIL: [(0, 1.0), (1, 2.0)]}, reference=(1.5, EVIL)))
    assert "script" not in [tag for tag, _ in page.elements]
    assert page.elements[0][1]["aria-label"] == EVIL


def test_pairs_and_the_line_of_equal_numbers() -> None:
    _, (axes,) = new_figure(1)
    draw_pairs(axes, [(0.0, 0.5), (2.0, -1.0)], across="x", up="y")
    (line,) = axes.get_lines()
    assert [np.asarray(part).tolist() for part in line.get_data()] == [[-1.0, 2.0], [-1.0, 2.0]]


def test_without_matplotlib_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'indrnn\[report\]'"):
        new_figure(1)
