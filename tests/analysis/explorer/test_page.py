"""The explorer's page: one file whose numbers are the model's, and in which text stays text."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from indrnn.analysis.explorer import Body, Samples, explore, page_of, recorded
from indrnn.analysis.explorer.page import LARGEST
from indrnn.layers import EPSILON
from indrnn.networks import Head, Language, Plain, Residual
from indrnn.networks.config import Front
from indrnn.networks.tokeniser import Tokeniser
from indrnn.tasks.adding import AddingRecipe
from indrnn.tasks.pixels import PixelsRecipe
from indrnn.tasks.rows import find

from ..pages import assert_one_file

EVIL = "</script><script>alert(1)</script><!-- ' \" & {{data}}"


def model_of(inputs: int = 1, outputs: int = 10, **options: Any) -> nn.Module:
    kind: Any = options.pop("kind", "SequenceClassifier")
    return Head(Plain(inputs, 5, 2, **options), outputs, kind).build().eval()


def pixels(tmp_path: Path, **options: Any) -> Samples:
    """Samples of a recipe of digits whose images are not here."""
    return PixelsRecipe(data_dir=tmp_path, **options).samples(model_of())


def content(page: str) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """What is in a page: its data, and its numbers."""
    scripts = assert_one_file(page).scripts
    return json.loads(scripts["data"]), np.frombuffer(base64.b64decode(scripts["numbers"]), "<f4")


def test_the_page_holds_the_weights(tmp_path: Path) -> None:
    model = model_of()
    data, numbers = content(page_of(model, pixels(tmp_path, shrink=4), "run"))
    state = model.state_dict()
    for number, layer in enumerate(data["program"]["layers"]):
        for name, key in (
            ("u", f"network.blocks.{number}.unit.weight_hh"),
            ("weight", f"network.blocks.{number}.unit.weight.weight"),
        ):
            at, shape = layer[name]["at"], layer[name]["shape"]
            assert np.array_equal(numbers[at : at + math.prod(shape)].reshape(shape), state[key].numpy())


def test_memory_is_the_number_of_steps_until_little_is_left(tmp_path: Path) -> None:
    model = model_of()
    u = torch.tensor([0.5, -0.9, 0.0, 1.0, -1.01])
    with torch.no_grad():
        model.network.blocks[1].unit.weight_hh.copy_(u)  # type: ignore[union-attr,index]
    data, _ = content(page_of(model, pixels(tmp_path), "run"))
    for weight, memory in zip(u.tolist(), data["memory"][1], strict=True):
        if abs(weight) >= 1:
            assert memory is None
        elif weight == 0:
            assert memory == 0
        else:
            steps = math.ceil(memory)
            assert abs(weight) ** steps <= EPSILON * (1 + 1e-6)
            assert abs(weight) ** (steps - 1) >= EPSILON * (1 - 1e-6)


def test_activity_is_the_mean_of_the_states() -> None:
    torch.manual_seed(1)
    network = Plain(2, 4, 1, norm=None)
    model = Head(network, 1, "SequenceRegressor").build().eval()
    sequences = [torch.randn(7, 2), torch.randn(7, 2)]
    data, numbers = content(page_of(model, recorded(sequences), "run"))
    unit: Any = model.network.blocks[0].unit  # type: ignore[union-attr,index]
    for row, x in enumerate(sequences):
        h, total = torch.zeros(4), torch.zeros(4)
        for step in x:
            h = torch.relu(unit.weight.weight @ step + unit.bias + unit.weight_hh * h)
            total += h.abs()
        at = data["activity"]["at"] + 4 * row
        torch.testing.assert_close(torch.tensor(numbers[at : at + 4]), (total / 7).detach())
    assert data["activity"]["shape"] == [2, 4]


def test_numbers_to_add_are_sequences_of_the_task() -> None:
    samples = AddingRecipe(13, seed=2).samples(model_of(2))
    for listed, sequence in zip(samples.input["samples"], samples.sequences, strict=True):
        assert len(listed["marks"]) == 2
        torch.testing.assert_close(torch.tensor(listed["values"]), sequence[:, 0], rtol=0, atol=1e-6)
        assert sequence[listed["marks"], 1].tolist() == [1.0, 1.0]
        assert sequence[:, 1].sum() == 2


def test_text_of_strangers_stays_text() -> None:
    """Names of classes, labels, titles and facts: none of them can leave its place."""
    samples = recorded([torch.randn(5, 1)], labels=[EVIL], classes=[EVIL, "b"], note=EVIL)
    text = page_of(model_of(outputs=2), samples, EVIL, EVIL, [(EVIL, EVIL, EVIL)])
    data, _ = content(text)
    assert data["title"] == data["about"] == data["classes"][0] == data["input"]["samples"][0]["label"] == EVIL
    assert text.count("<script") == 3
    assert "alert(1)</script>" not in text


@pytest.mark.parametrize("permuted", [False, True])
def test_a_page_is_small(permuted: bool, tmp_path: Path) -> None:
    """The largest network of the paper's table: a few megabytes."""
    model = Head(Residual(1, 128, 5), 10).build().eval()
    assert len(page_of(model, pixels(tmp_path, permuted=permuted), "run")) < 2_000_000


def test_what_cannot_be_shown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one, got none"):
        recorded([])
    with pytest.raises(ValueError, match=r"must be \(T, features\), got \(3,\)"):
        recorded([torch.zeros(3)])
    with pytest.raises(ValueError, match="labels must be as many as sequences, 1, got 2"):
        recorded([torch.zeros(3, 1)], labels=["a", "b"])
    with pytest.raises(ValueError, match="classes must be as many as the model's, 10, got 1"):
        page_of(model_of(), recorded([torch.zeros(3, 1)], classes=["a"]), "run")
    with torch.device("meta"):
        huge = Head(Plain(1, 2100, 2), 10).build()
    with pytest.raises(ValueError, match=f"at most {LARGEST:,} parameters"):
        page_of(huge, pixels(tmp_path), "run")
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        explore(model_of(), pixels(tmp_path), page)
    assert page.read_text() == "mine"
    assert explore(model_of(), pixels(tmp_path), page, overwrite=True) == page
    assert_one_file(page.read_text())


def test_recorded_sequences_are_as_many_as_fit() -> None:
    samples: Samples = recorded([torch.randn(10_000, 4) for _ in range(7)])
    assert len(samples.sequences) == len(samples.input["samples"]) == 5


def test_what_goes_with_recorded_sequences() -> None:
    body = Body(2, ((0, 1),))
    x = [torch.randn(5, 7), torch.randn(3, 7)]
    found = recorded(x, ["one", EVIL], ["a", EVIL], right=["a", EVIL], channels=[EVIL] * 7, body=body)
    data, _ = content(page_of(model_of(7, 2), found, EVIL))
    assert [sample["right"] for sample in data["input"]["samples"]] == ["a", EVIL]
    assert data["input"]["body"] == {"joints": 2, "bones": [[0, 1]], "bodies": 1}
    assert data["input"]["channels"] == [EVIL] * 7
    assert data["length"] == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sequences": [torch.ones(3, 2), torch.ones(3, 4)]}, "2 features as the first, got 4"),
        ({"sequences": [torch.tensor([[1.0, math.nan]])]}, "finite"),
        ({"right": ["a", "b"]}, "right must be as many as sequences, 1"),
        ({"channels": ["a"]}, "channels must be as many as features, 2"),
        ({"body": Body(1, ())}, "body must have at most 0 joints"),
    ],
)
def test_recorded_sequences_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recorded(**{"sequences": [torch.ones(3, 2)]} | given)


def test_memory_is_compared_with_the_steps_behind_a_stride() -> None:
    front = Front(Plain(None, 4, 1), 2, (3,), (3,), (4,)).sized(2, 10)
    data, _ = content(page_of(Head(front, 2).build(), recorded([torch.randn(10, 2)]), "run"))
    assert data["length"] == 3


def test_a_vocabulary_is_text() -> None:
    """Words of a text, such as </script>, whatever they are."""
    tokeniser = Tokeniser("word", ("<eos>", "<unk>", EVIL, "</script>"))
    model = Language(Plain(4, 4, 1), 4).build().eval()
    model.tokeniser = tokeniser
    samples = find("text-word").recipe.samples(model)
    assert samples is not None
    page = page_of(model, samples, EVIL)
    data, _ = content(page)
    assert data["input"]["tokens"] == list(tokeniser.tokens)
    assert data["classes"][2:] == [EVIL, "</script>"]
    assert page.count("</script>") == 3  # of the page itself
