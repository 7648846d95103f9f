"""Pages in a real browser: nothing goes wrong, and what is drawn is answered as in PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import indrnn
from indrnn.analysis.explorer import Body, Samples, explore, recorded
from indrnn.cli import main
from indrnn.networks import Head, LanguageModel, Plain, PlainIndRNN
from indrnn.networks.config import Front
from indrnn.networks.tokeniser import Tokeniser
from indrnn.tasks.adding import AddingRecipe
from indrnn.tasks.rows import find

from ...browser import NEEDED, PHONE, assert_fits, browser, opened, until

__all__ = ["browser"]  # a fixture
ROOT = Path(__file__).parents[3]
KEPT = ROOT / "results" / "pixels" / "mnist-6-fast"

pytestmark = [pytest.mark.slow, NEEDED]


def probabilities(page: Any) -> torch.Tensor:
    return torch.tensor(page.evaluate("network.answer(view.run).probabilities"), dtype=torch.float64)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """The page of the kept run."""
    path = tmp_path_factory.mktemp("page") / "digits.html"
    with pytest.raises(SystemExit) as end:
        main(["explore", str(KEPT), "--out", str(path)])
    assert end.value.code == 0
    return path, indrnn.load(KEPT)


SEVEN = [(60, 60), (215, 55), (150, 150), (110, 240)]


def draw(page: Any, points: list[tuple[int, int]]) -> None:
    """By the mouse, on a pad of 280 × 280."""
    box = page.locator(".pad").bounding_box()
    places = [(box["x"] + x * box["width"] / 280, box["y"] + y * box["height"] / 280) for x, y in points]
    before = page.evaluate("document.documentElement.dataset.runs")
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=12)
    page.mouse.up()
    until(page, f"document.documentElement.dataset.runs > {before}")


@pytest.mark.parametrize("width", [1280, PHONE])
def test_a_drawn_digit_is_classified_as_in_torch(
    browser: Any, digits: tuple[Path, torch.nn.Module], width: int
) -> None:
    path, model = digits
    page, wrong = opened(browser, path, width=width)
    draw(page, SEVEN)
    image = torch.tensor(page.evaluate("Array.from(source.image())"), dtype=torch.float32)
    assert image.sum() > 0
    with torch.no_grad():
        expected = model((image / 128 - 1).view(784, 1, 1))[0].double().softmax(1).squeeze(0)
    torch.testing.assert_close(probabilities(page), expected, rtol=0, atol=1e-4)
    assert page.locator("#answer").text_content() == str(int(expected.argmax())) == "7"
    assert_fits(page)
    assert wrong == []


def test_all_is_done_by_keyboard(browser: Any, digits: tuple[Path, torch.nn.Module]) -> None:
    page, wrong = opened(browser, digits[0], dark=True)
    page.locator(".pad").focus()
    page.keyboard.press("Space")
    for _ in range(14):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert page.locator("#answer").text_content() == "1"
    page.locator("#step").focus()
    page.keyboard.press("Home")
    assert page.locator("#steps").text_content() == "step 1 of 784"
    first = page.locator("#neuron").text_content()
    page.locator("#dots").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#neuron").text_content() != first
    page.locator("th[data-key=u] button").press("Enter")
    shown = [float(text) for text in page.locator("#rows td:nth-child(2)").all_text_contents()]
    assert shown == sorted(shown, reverse=True)
    page.get_by_label("Layer", exact=True).select_option("0")
    assert page.locator("#count").text_content() == "128 of 768 neurons"
    page.locator("#rows button").nth(3).press("Enter")
    page.locator("#lost strong").wait_for()
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [("explorer", 1280, False), ("explorer-dark", 1280, True), ("explorer-phone", PHONE, False)],
)
def test_pictures(
    browser: Any, digits: tuple[Path, torch.nn.Module], tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    """The page as it looks with a drawn digit; kept where INDRNN_PICTURES says, as in docs."""
    page, wrong = opened(browser, digits[0], width=width, dark=dark)
    draw(page, SEVEN)
    page.locator("#lost strong").wait_for()
    picture = Path(os.environ.get("INDRNN_PICTURES", tmp_path)) / f"{name}.png"
    page.screenshot(path=picture, full_page=name == "explorer")
    assert picture.read_bytes().startswith(b"\x89PNG")
    if width > 500:  # every layer has neurons that are not silent, so that no picture of states is of one colour
        colours = page.evaluate("""[...document.querySelectorAll('#states canvas')].map((canvas) =>
            new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size)""")
        assert len(colours) == 6
        assert min(colours) > 10
    assert wrong == []


def test_text_is_typed(browser: Any, tmp_path: Path) -> None:
    tokeniser = Tokeniser("char", tuple(" abcdefgh<>"))
    model = LanguageModel(PlainIndRNN(6, 6, 2), 11).eval()
    model.tokeniser = tokeniser
    samples: Samples = find("text-char").recipe.samples(model)  # type: ignore[assignment]
    page, wrong = opened(browser, explore(model, samples, tmp_path / "text.html"))
    before = page.evaluate("document.documentElement.dataset.runs")
    page.get_by_label("Text for the network to read").fill("bad <b> zebra")
    until(page, f"document.documentElement.dataset.runs > {before}")
    ids = tokeniser.encode("bad <b> eba")
    assert page.evaluate("Array.from(view.input)") == ids.tolist()
    assert "left out: z r" in page.get_by_role("status").first.text_content()
    with torch.no_grad():
        expected = model(ids.unsqueeze(1))[0][-1, 0].double().softmax(0)
    torch.testing.assert_close(probabilities(page), expected, rtol=0, atol=1e-4)
    assert wrong == []


def test_marks_are_moved(browser: Any, tmp_path: Path) -> None:
    model = Head(Plain(2, 8, 2, norm=None), 1, "SequenceRegressor").build().eval()
    page, wrong = opened(browser, explore(model, AddingRecipe(30).samples(model), tmp_path / "adding.html"))
    page.get_by_label("First marked step").fill("11")
    page.get_by_label("Second marked number").fill("0.25")
    given = torch.tensor(page.evaluate("Array.from(view.input)")).view(30, 1, 2)
    assert given[:, 0, 1].nonzero().flatten().tolist() == [11, 24]
    assert given[24, 0, 0] == 0.25
    with torch.no_grad():
        expected = model(given)[0].item()
    assert page.evaluate("network.answer(view.run).outputs[0]") == pytest.approx(expected, abs=1e-4)
    assert wrong == []


def test_labels_of_strangers_run_nothing(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)></script><script>alert(1)</script>"
    model = Head(Plain(3, 4, 1), 2).build().eval()
    sequences, names = [torch.randn(9, 3), torch.randn(6, 3)], [evil, evil + "2"]
    samples = recorded(sequences, [evil, "b"], names, evil, right=names, channels=["\u202ereversed", evil, "🦊"])
    page, wrong = opened(browser, explore(model, samples, tmp_path / "evil.html", title=evil, facts=[(evil, evil)]))
    page.get_by_label("Sequence", exact=True).select_option("1")
    assert page.evaluate("view.run.T") == 6
    assert page.locator("#title").text_content() == evil
    assert sorted(page.locator("#weights li span:first-child").all_text_contents())[-2:] == ["\u202ereversed", "🦊"]
    assert page.locator("#summary bdi").text_content() == evil + "2"
    assert page.locator("img").count() == 0
    assert wrong == []


@pytest.mark.parametrize("width", [1280, PHONE])
def test_skeletons_move_as_they_are_read(browser: Any, tmp_path: Path, width: int) -> None:
    evil = "<script>alert(1)</script>"
    front = Front(Plain(None, 5, 2), 7, (4,), (3,), (2,)).sized(7, 9)
    model = Head(front, 27).build().eval()
    sequences = [torch.randn(9, 7), torch.randn(6, 7)]
    classes = [evil] * 26 + ["a class of a long name that has no room beside others"]
    samples = recorded(sequences, [evil, "b"], classes, right=[evil, "b"], channels=[evil] * 7, body=Body(2, ((0, 1),)))
    page, wrong = opened(browser, explore(model, samples, tmp_path / "page.html", title=evil), width=width)
    assert page.locator(".body .joint").count() == 2
    assert page.locator(".body .bone").count() == 1
    assert "right is <script>" in page.locator("#summary").text_content()
    place = "document.querySelector('.body .bone').getAttribute('x1')"
    last = page.evaluate(place)
    page.evaluate("(view.t = 1, renderStep())")
    assert page.evaluate(place) != last
    page.get_by_label("Drawn", exact=True).select_option("6")
    assert page.locator("#input .key").count() == 1
    page.get_by_label("Sequence", exact=True).select_option("1")
    assert page.evaluate("[view.run.T, view.run.inputs]") == [3, 6]
    with torch.no_grad():
        expected = model(sequences[1].unsqueeze(1))[0][0].double().softmax(0)
    torch.testing.assert_close(probabilities(page), expected, rtol=0, atol=1e-4)
    assert_fits(page)
    assert wrong == []


@pytest.mark.skipif("INDRNN_DATA" not in os.environ, reason="INDRNN_DATA does not name a folder with MNIST")
def test_the_first_screen_of_a_report(browser: Any, tmp_path: Path) -> None:
    """What was done and how well it went; kept where INDRNN_PICTURES says, as in docs."""
    with pytest.raises(SystemExit):
        main(["report", str(KEPT), "--html", str(tmp_path / "report.html")])
    page, wrong = opened(browser, tmp_path / "report.html", ready="true")
    for said in ("trained on sequential MNIST", "test accuracy of 98.70 %", "in the paper: 99.0 %"):
        box = page.get_by_text(said).first.bounding_box()
        assert box["y"] + box["height"] < 860
    sections = page.locator("h2").all_text_contents()
    assert sections[:2] == ["What was asked", "Data"]
    assert {"Answers", "Memory of the neurons", "Gradient flow", "Time and machine"} <= {*sections}
    page.screenshot(path=Path(os.environ.get("INDRNN_PICTURES", tmp_path)) / "report.png")
    assert wrong == []
