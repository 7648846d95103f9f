"""`indrnn recipes`."""

from __future__ import annotations

import re

import pytest
import torch

from indrnn.tasks.rows import rows

from .calls import (
    Call,
    assert_done,
)

# ---- recipes


def listed(said: str) -> dict[str, list[list[str]]]:
    """The rows under each heading."""
    groups: dict[str, list[list[str]]] = {}
    for block in said.split("\n\n")[1:]:
        heading, *lines = block.strip("\n").split("\n")
        groups[heading] = [re.split(r"\s{2,}", row.strip()) for row in lines if row[0] != " "]  # and no remark
    return groups


def test_recipes_lists_every_recipe_grouped_with_its_parameters(call: Call) -> None:
    said = assert_done(call("recipes")).out
    assert re.split(r"\s{2,}", said.split("\n")[0].strip())[:2] == ["recipe", "in the paper"]
    groups = listed(said)
    assert [heading.partition("(")[2] for heading in groups] == [
        *("adding)", "mnist)", "pmnist)", "ptb)", "text)"),
        *("ntu60)", "ntu120)", "utd)", "skeleton)"),
    ]
    listed_rows = [row for group in groups.values() for row in group]
    assert sorted(row[0] for row in listed_rows) == sorted(rows())
    for name, paper, value, parameters, cost in listed_rows:
        if name.startswith("skeleton-") or name in ("text-char", "text-word"):
            assert parameters == "by data"
        else:
            with torch.device("meta"):
                model = rows()[name].recipe.model_config().build()
            count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            assert parameters == f"{count:,}"
        assert (paper, value, cost) == (rows()[name].paper, rows()[name].value, rows()[name].cost)


@pytest.mark.parametrize(
    ("words", "named"),
    [(["mnist"], "mnist-"), (["pmnist", "fast"], "pmnist-"), (["adding-500"], "adding-500")],
    ids=str,
)
def test_recipes_by_parts_of_their_names(words: list[str], named: str, call: Call) -> None:
    names = [row[0] for group in listed(assert_done(call("recipes", *words)).out).values() for row in group]
    assert names
    assert all(name.startswith(named) for name in names)
    assert names == [name for name in names if all(word in name for word in words)]
    assert len(names) == sum(name.startswith(named) and all(word in name for word in words) for name in rows())


def test_recipes_fit_into_a_terminal_of_80_columns(call: Call) -> None:
    assert max(map(len, assert_done(call("recipes")).out.split("\n"))) <= 80
