"""The recipes are the paper's settings, they can be built, and what is written of them is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from indrnn.models import Baseline, LastStep, Plain, from_plain
from indrnn.networks import LastStepClassifier, PlainIndRNN
from indrnn.recipes import ROWS, Row, find
from indrnn.recipes.adding import AddingRecipe
from indrnn.recipes.types import TYPES
from indrnn.tasks.adding import Adding
from indrnn.training import Constant, Cosine, OneCycle, Plateau, Steps, Training
from indrnn.training.folder import plain

LENGTHS = [100, 500, 1000, 5000]
MODELS = ["", "-rnn", "-lstm", "-irnn"]
LEARNING_RATES = {"": 2e-4, "-rnn": 2e-3, "-lstm": 2e-3, "-irnn": 2e-4}
"""2e-3 with tanh, 2e-4 with ReLU"""

lengths = pytest.mark.parametrize("length", LENGTHS)
models = pytest.mark.parametrize("model", MODELS, ids=["indrnn", "rnn", "lstm", "irnn"])
rows = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def adding(name: str) -> AddingRecipe:
    recipe = find(name).recipe
    assert isinstance(recipe, AddingRecipe)
    return recipe


# ---- the paper's figure


@lengths
@models
def test_the_papers_settings(model: str, length: int) -> None:
    recipe = adding(f"adding-{length}{model}")
    assert recipe.length == length
    assert recipe.batch_size == 50
    training = recipe.training
    assert training.steps == 60_000
    assert training.schedule == Steps(20_000, 0.1)
    assert training.lr == (1e-5 if model == "-irnn" and length >= 500 else LEARNING_RATES[model])
    assert (training.weight_decay, training.clip) == (0.0, 10.0)
    steps = [0, 19_999, 20_000, 39_999, 40_000, 59_999]
    factors = [training.schedule.factor(step, training.steps) for step in steps]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@lengths
@models
def test_the_papers_networks(model: str, length: int) -> None:
    network = adding(f"adding-{length}{model}").model
    assert network.hidden_size == 128
    assert network.dropout == 0
    if model:
        assert isinstance(network, Baseline)
        assert (network.kind, network.layers) == (model[1:], 1)
    else:
        assert isinstance(network, Plain)
        assert (network.layers, network.nonlinearity, network.norm, network.gamma) == (2, "relu", None, 2.0)


@pytest.mark.parametrize("name", [f"adding-{length}{kind}" for length in LENGTHS for kind in ("", "-fast")])
def test_recurrent_weights_start_where_the_paper_says(name: str) -> None:
    recipe = adding(name)
    built = recipe.model_config().build()
    network = built.network
    assert isinstance(network, PlainIndRNN)
    bound = 2 ** (1 / recipe.length)
    first, second = network.recurrent_layers
    assert first.bound.upper == second.bound.upper == pytest.approx(bound, rel=1e-15)
    for layer, least in ((first, 0.0), (second, 1 / bound)):
        u = layer.weight_hh.detach().double()
        assert u.shape == (128,)
        assert least <= u.min().item() < least + 0.1 * (bound - least)  # 128 numbers reach into both ends
        assert bound - 0.1 * (bound - least) < u.max().item() <= bound


@pytest.mark.parametrize("name", ["adding-100", "adding-5000", "adding-100-fast"])
def test_input_weights_start_small_and_biases_at_zero(name: str) -> None:
    network = adding(name).model_config().build().network
    assert isinstance(network, PlainIndRNN)
    weights = dict(network.weights.named_parameters())
    assert weights["1.0.weight"].std().item() == pytest.approx(0.001, rel=0.05)
    assert weights["0.0.weight"].abs().max().item() < 0.006
    assert all(value.count_nonzero() == 0 for name, value in weights.items() if name.endswith("bias"))


@lengths
def test_there_is_a_quicker_recipe_of_the_same_network(length: int) -> None:
    quick, papers = adding(f"adding-{length}-fast"), adding(f"adding-{length}")
    assert quick.model == papers.model
    assert (quick.length, quick.batch_size) == (length, 50)
    assert quick.training.steps < papers.training.steps
    assert isinstance(quick.training.schedule, Cosine)


# ---- every recipe


@rows
def test_it_builds_and_runs(row: Row) -> None:
    config = row.recipe.model_config()
    model = config.build()
    assert isinstance(model, LastStepClassifier)
    answers, _ = model(torch.rand(9, 3, config.input_size))
    assert answers.shape == (3, config.outputs)
    assert bool(answers.isfinite().all())
    task = row.recipe.task()
    assert isinstance(task, Adding)
    assert (task.length, task.batch_size, task.seed) == (config.steps, 50, row.recipe.seed)


@rows
def test_what_is_written_of_it_is_read_back(row: Row) -> None:
    for options in (row.recipe, row.recipe.model_config(), row.recipe.training):
        written = json.dumps(plain(options), allow_nan=False)
        again = from_plain(json.loads(written), TYPES)
        assert again == options
        assert type(again) is type(options)


@pytest.mark.parametrize(
    "schedule",
    [Constant(), Steps(7, 0.3), Plateau(3.0, 11), Cosine(0.125), OneCycle(0.25)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_other_options_are_read_back_too(schedule: Any) -> None:
    training = Training(steps=77, lr=0.25, schedule=schedule, clip=None, threads=3, precision="bf16", compile=True)
    network = Plain(11, 3, "tanh", None, 0.125, None, False, 0.75, None)
    recipe = AddingRecipe(13, 7, 11, network, training, seed=-5)
    assert from_plain(json.loads(json.dumps(plain(recipe))), TYPES) == recipe
    baseline = replace(recipe, model=Baseline("gru", 9, 2, 0.5))
    assert from_plain(json.loads(json.dumps(plain(baseline))), TYPES) == baseline
    assert baseline != recipe


@rows
def test_it_says_what_it_is_in_the_paper_and_what_it_costs(row: Row) -> None:
    assert ROWS[row.name] is row
    assert find(row.name) is row
    assert row.paper
    assert row.value
    assert row.cost
    assert (type(row.recipe).__doc__ or "").strip()


def test_the_model_of_a_recipe_is_for_its_length() -> None:
    """Where the length is changed, the bound follows."""
    recipe = replace(adding("adding-100"), length=37)
    assert recipe.model_config() == LastStep(recipe.model, input_size=2, outputs=1, steps=37)
    network = recipe.model_config().build().network
    assert isinstance(network, PlainIndRNN)
    assert network.recurrent_layers[0].bound.upper == pytest.approx(2 ** (1 / 37))


def test_recipes_are_values() -> None:
    """Frozen: a change to one is a new one, and the table stays as it is."""
    recipe = adding("adding-100")
    with pytest.raises(AttributeError):
        recipe.length = 5  # type: ignore[misc]
    changed = replace(recipe, length=5)
    assert recipe.length == 100
    assert changed != recipe


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights() -> list[nn.Parameter]:
        torch.manual_seed(4)
        return list(adding("adding-100").model_config().build().parameters())

    assert all(torch.equal(one, two) for one, two in zip(weights(), weights(), strict=True))


# ---- names


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("adding-100-lsmt", "did you mean adding-100-lstm"),
        ("ading-5000", "did you mean adding-5000"),
        ("mnist", "`indrnn recipes` lists them"),
        ("", "`indrnn recipes` lists them"),
    ],
    ids=["letters swapped", "letter missing", "nothing like it", "empty"],
)
def test_a_name_that_is_not_there_is_answered_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match="no such recipe: ") as error:
        find(name)
    assert repr(name) in str(error.value)
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"test_sequences": -1}, "test_sequences must be"),
    ],
    ids=["length", "batch size", "test sequences"],
)
def test_bad_options_are_named_when_they_are_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AddingRecipe(**options)
