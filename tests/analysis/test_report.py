"""The report's numbers, and its page."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import indrnn
from indrnn.analysis.report import confusion_table, memory_counts, outcome_of, page_of
from indrnn.analysis.runs import Reported
from indrnn.layers import EPSILON
from indrnn.networks import Head, Plain
from indrnn.tasks.recipe import Confusion, Description, Pairs, Written
from indrnn.words import headline

from .pages import Page, assert_one_file

pytest.importorskip("matplotlib")
EVIL = "</title></pre><script>alert(1)</script>'\"&"


def reported(name: str = "run", **more: Any) -> Reported:
    config = {
        "command": ["indrnn", "train", "it", "--name", EVIL],
        "seed": 3,
        "started": "today",
        "training": {"steps": 40},
        "machine": {"cpu": EVIL},
    }
    lines = [{"step": 10 * i, "accuracy": 0.2 * i, "train_loss": 1 / i, "seconds": 7.0 * i} for i in (1, 2, 3, 4)]
    result = {"steps": 40, "best_step": 40, "best": {"accuracy": 0.8}, "test": {"loss": 0.5, "accuracy": 0.75}}
    said: dict[str, Any] = {"task": "a task", "data": "some data", "metric": "accuracy", "higher_is_better": True}
    description = Description(
        **{key: more.pop(key, value) for key, value in said.items()}, reference=more.pop("reference", None)
    )
    content = {"config": config, "lines": lines, "result": result} | more
    return Reported(name, description, **content)


def test_memory_counts_are_those_of_powers() -> None:
    """Against the definition: the first whole number of steps after which |u|^steps is below ε."""
    u = torch.cat([torch.rand(200) ** 0.1, torch.tensor([0.0, 1.0, -1.0, -0.5, 0.99999])])
    upper = [1, 10, 100, 1000, 10_000, math.inf]
    expected = [0] * 6
    for value in u.abs().double().tolist():
        expected[next(i for i, steps in enumerate(upper) if math.isinf(steps) or value**steps <= EPSILON)] += 1
    assert memory_counts(u.double()) == expected


def test_what_is_said_first() -> None:
    assert headline({"loss": 0.1, "accuracy": 0.9}) == ("accuracy", 0.9)
    assert headline({"test_mse": 1e-3}) == ("test_mse", 1e-3)
    assert headline({"other": 2}) == ("other", 2.0)
    assert headline({}) is None
    run = reported(paper=("99 %", "Table 2"), model=Head(Plain(1, 7, 3), 2).build())
    page = assert_one_file(page_of([run]))
    lead = next(text for text in page.texts if "was trained on" in text)
    for part in ("3 recurrent layers", "a task", "test accuracy of 75.00 %", "40 steps", "in the paper: 99 %, Table 2"):
        assert part in lead
    assert page.texts.index(lead) < page.texts.index("What was asked")


def test_a_run_that_is_not_finished() -> None:
    run = reported(result={})
    assert outcome_of(run) == ("best evaluation, accuracy", 0.8)
    page = assert_one_file(page_of([run]))
    assert any("so far, after 40 of 40 steps" in text for text in page.texts)
    assert outcome_of(reported(lines=[], result={})) is None
    assert_one_file(page_of([reported(lines=[], result={})]))


def test_runs_side_by_side() -> None:
    runs = [reported("one"), reported("two", metric="loss", result={})]
    page = assert_one_file(page_of(runs))
    assert "2 runs side by side" in page.texts
    for name in ("one", "two"):
        assert page.texts.count(name) > 3
    with pytest.raises(ValueError, match="at least one"):
        page_of([])


def test_text_of_strangers_stays_text() -> None:
    run = reported(
        EVIL,
        task=EVIL,
        data=EVIL,
        recipe=EVIL,
        paper=(EVIL, EVIL),
        changed=[(EVIL, EVIL, EVIL)],
        answers=[
            Confusion([[1, 0], [0, 1]], [EVIL, "b"], EVIL),
            Pairs([(0.0, 0.1), (1.0, 0.9)], EVIL),
            Written(EVIL, EVIL),
        ],
        gradients={"time": [1.0, 2.0], "depth": [1.0]},
        missing=[EVIL],
        reference=(0.5, EVIL),
    )
    for runs in ([run], [run, run]):
        text = page_of(runs)
        page = assert_one_file(text)
        assert "script" not in [tag for tag, _ in page.elements]
        assert any(EVIL in each for each in page.texts)


def test_a_model_without_independent_neurons() -> None:
    run = reported(model=torch.nn.Linear(2, 3))
    page: Page = assert_one_file(page_of([run]))
    assert any("no recurrent weight of their own" in text for text in page.texts)


def test_a_network_that_the_explorer_does_not_know() -> None:
    """Its neurons have recurrent weights all the same."""
    run = reported(model=torch.nn.Sequential(indrnn.IndRNN(2, 6, 2)))
    page = assert_one_file(page_of([run]))
    assert {"0.weight_hh_l0", "0.weight_hh_l1"} <= set(page.texts)
    assert any("A network of 2 recurrent layers" in text for text in page.texts)


def test_answers_that_are_no_numbers() -> None:
    page = assert_one_file(page_of([reported(answers=[Pairs([(0.0, math.nan), (1.0, 0.9)], "sequences")])]))
    assert any("1 answers are no finite numbers" in text for text in page.texts)


def test_gradients_and_why_there_are_none() -> None:
    flow = {"time": [1e-4, 1.0], "depth": []}
    runs = [
        reported("one", gradients=flow, gradients_note="Measured on 1 training batch."),
        reported("two", gradients_note="Not measured: no data."),
    ]
    texts = assert_one_file(page_of(runs)).texts
    assert "one: Measured on 1 training batch." in texts
    assert "two: Not measured: no data." in texts
    assert "over time" in texts
    assert "over depth" not in texts


def test_two_reports_are_the_same_bytes() -> None:
    run = reported(model=Head(Plain(1, 7, 3), 2).build(), answers=[Pairs([(0.0, 0.1), (1.0, 0.9)], "sequences")])
    assert page_of([run, run]) == page_of([run, run])


def test_a_run_without_a_finite_number() -> None:
    lines = [{"step": 1, "accuracy": math.nan, "seconds": 1.0}]
    texts = assert_one_file(page_of([reported(lines=lines, answers=[Pairs([(0.0, math.inf)], "sequences")])])).texts
    assert "There is nothing to draw." in texts


def test_a_confusion_matrix_has_its_counts() -> None:
    page = Page(confusion_table([[3, 1], [0, 4]], ["cat", EVIL]))
    assert [text for text in page.texts if text.strip()] == [
        *("right ↓ answered →", "cat", EVIL, "right"),
        *("cat", "3", "1", "75.0%"),
        *(EVIL, "4", "100.0%"),
    ]


def test_a_confusion_matrix_of_many_classes_is_closer() -> None:
    table = confusion_table([[1] * 27] * 27, [*map(chr, range(97, 123)), "action 27"])
    assert 'class="matrix close"' in table
    texts = [text for text in Page(table).texts if text.strip()]
    assert texts[1:28] == [str(number) for number in range(1, 28)]  # names have no room over columns
    assert {"1 a", "26 z", "action 27"} <= {*texts}
    assert 'class="matrix"' in confusion_table([[1, 0], [0, 1]], ["a", "b"])
