"""The recipes are the paper's settings, they can be built, and what is written of them is read back."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from indrnn.baselines import Baseline
from indrnn.networks import (
    Dense,
    DenseIndRNN,
    Head,
    Plain,
    PlainIndRNN,
    Residual,
    ResidualIndRNN,
    SequenceClassifier,
    SequenceRegressor,
)
from indrnn.saving import CONFIGS, from_json, to_json
from indrnn.tasks.adding import Adding, AddingRecipe
from indrnn.tasks.pixels import Pixels, PixelsRecipe
from indrnn.tasks.recipe import Row
from indrnn.tasks.rows import find, kinds, rows
from indrnn.tasks.runs import recorded_recipe, restored_recipe
from indrnn.tasks.series.fit import Fit
from indrnn.tasks.skeleton.recipe import SkeletonRecipe
from indrnn.tasks.text import recipe as language
from indrnn.training import Constant, Cosine, OneCycle, Plateau, Shard, Steps, Training

LENGTHS = [100, 500, 1000, 5000]
MODELS = ["", "-rnn", "-lstm", "-irnn"]
LEARNING_RATES = {"": 2e-4, "-rnn": 2e-3, "-lstm": 2e-3, "-irnn": 2e-4}
"""2e-3 with tanh, 2e-4 with ReLU"""

lengths = pytest.mark.parametrize("length", LENGTHS)
models = pytest.mark.parametrize("model", MODELS, ids=["indrnn", "rnn", "lstm", "irnn"])
DIGITS = {
    "6": Plain(hidden_size=128, layers=6, dropout=0.1, gamma=1.0, long_memory=True),
    "12": Plain(hidden_size=128, layers=12, dropout=0.1, gamma=1.0, long_memory=True),
    "res12": Residual(hidden_size=128, blocks=5, dropout=0.1, gamma=1.0, long_memory=True),
    "dense": Dense(
        growth_rate=16,
        first_dropout=0.2,
        dense_dropout=0.2,
        bottleneck_dropout=0.1,
        transition_dropout=0.1,
        gamma=1.0,
        long_memory=True,
    ),
}
"""The networks of the paper's table of MNIST and permuted MNIST"""
PARAMETERS = {"6": 86_410, "12": 187_786, "res12": 170_890, "dense": 256_514}

digits = pytest.mark.parametrize("network", DIGITS)
orders = pytest.mark.parametrize("permuted", [False, True], ids=["mnist", "pmnist"])
OF_LANGUAGE = {row.name for row in language.ROWS}  # test_language.py
known = {name: row for name, row in rows().items() if name not in OF_LANGUAGE}
every_row = pytest.mark.parametrize("row", known.values(), ids=known)
SEQUENCES = {name: row for name, row in known.items() if not isinstance(row.recipe, SkeletonRecipe)}
"""Those whose data can be made up here; tests/recipes/test_skeleton.py has the others"""


def adding(name: str) -> AddingRecipe:
    recipe = find(name).recipe
    assert isinstance(recipe, AddingRecipe)
    return recipe


def pixels(name: str) -> PixelsRecipe:
    recipe = find(name).recipe
    assert isinstance(recipe, PixelsRecipe)
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
    assert isinstance(network, Baseline if model else Plain)
    assert network.hidden_size == 128
    assert network.dropout == 0
    if isinstance(network, Baseline):
        assert (network.kind, network.layers) == (model[1:], 1)
    else:
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
    weights = dict(network.named_parameters())
    assert weights["blocks.1.unit.weight.weight"].std().item() == pytest.approx(0.001, rel=0.05)
    assert weights["blocks.0.unit.weight.weight"].abs().max().item() < 0.006
    assert all(weights[f"blocks.{i}.unit.bias"].count_nonzero() == 0 for i in range(2))


@lengths
def test_there_is_a_quicker_recipe_of_the_same_network(length: int) -> None:
    quick, papers = adding(f"adding-{length}-fast"), adding(f"adding-{length}")
    assert quick.model == papers.model
    assert (quick.length, quick.batch_size) == (length, 50)
    assert quick.training.steps < papers.training.steps
    assert isinstance(quick.training.schedule, Cosine)


# ---- the paper's table of MNIST


@digits
@orders
def test_the_papers_settings_for_digits(permuted: bool, network: str) -> None:
    recipe = pixels(f"{'p' * permuted}mnist-{network}")
    assert recipe.permuted == permuted
    assert (recipe.shrink, recipe.batch_size, recipe.validation) == (1, 32, 3000)
    assert (recipe.seed, recipe.split_seed, recipe.permutation_seed, recipe.data_dir) == (0, 0, 0, None)
    training = recipe.training
    assert (training.lr, training.weight_decay, training.clip) == (2e-4, 1e-4, 10.0)
    assert training.schedule == Plateau(5, 100)
    assert training.evaluate_every == -(-57_000 // 32)  # once an epoch
    assert training.steps >= 100 * training.evaluate_every
    assert recipe.model == DIGITS[network]
    assert isinstance(recipe.model, (Plain, Residual, Dense))
    assert recipe.model_config() == Head(replace(recipe.model, input_size=1, sequence_length=784), 10)


@digits
def test_the_papers_networks_for_digits(network: str) -> None:
    model = pixels(f"pmnist-{network}").model_config().build()
    built = model.network
    assert isinstance(built, (PlainIndRNN, ResidualIndRNN, DenseIndRNN))
    layers = built.recurrent_layers
    assert len(layers) == {"6": 6, "12": 12, "res12": 11, "dense": 40}[network]
    assert {layer.bound.upper for layer in layers} == {1.0}
    assert {(layer.config.norm, layer.config.norm_place) for layer in layers} == {("batch", "after")}
    least = layers[-1].weight_hh.min().item()
    assert 0.2 ** (1 / 784) <= least < 0.2 ** (1 / 784) + 0.0005
    if network != "dense":
        assert {layer.weight_hh.numel() for layer in layers} == {128}
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == PARAMETERS[network]


@orders
@pytest.mark.parametrize("network", ["6", "res12", "dense"])
def test_there_is_a_quicker_recipe_of_the_same_network_for_digits(network: str, permuted: bool) -> None:
    name = f"{'p' * permuted}mnist-{network}"
    quick, papers = pixels(f"{name}-fast"), pixels(name)
    without: dict[str, Any] = {
        each.name: 0.0 for each in fields(papers.model) if each.name.endswith("dropout") and each.default is not None
    }
    assert without
    assert quick.model == replace(papers.model, **without)
    assert (quick.permuted, quick.validation) == (permuted, 3000)
    assert quick.training.steps * quick.batch_size < papers.training.steps * papers.batch_size / 10
    assert isinstance(quick.training.schedule, OneCycle)


@orders
@pytest.mark.parametrize(("name", "lr"), [("rnn", 2e-4), ("irnn", 1e-5), ("lstm-6", 2e-4), ("lstm-12", 2e-4)], ids=str)
def test_baselines_for_digits(name: str, lr: float, permuted: bool) -> None:
    recipe = pixels(f"{'p' * permuted}mnist-{name}")
    assert isinstance(recipe.model, Baseline)
    assert (recipe.model.kind, recipe.model.hidden_size) == (name.partition("-")[0], 128)
    assert recipe.model.layers == {"rnn": 6, "irnn": 1, "lstm-6": 6, "lstm-12": 12}[name]
    assert (recipe.training.lr, recipe.permuted) == (lr, permuted)


def test_smaller_images_are_shorter_sequences() -> None:
    recipe = replace(pixels("mnist-6"), shrink=2)
    assert recipe.model_config().network.sequence_length == 196
    network = replace(recipe, model=Plain(gamma=2.0, layers=2)).model_config().build().network
    assert isinstance(network, PlainIndRNN)
    assert network.recurrent_layers[0].bound.upper == pytest.approx(2 ** (1 / 196))


# ---- every recipe


def made_up_digits(*_: Any) -> tuple[torch.Tensor, ...]:
    """As MNIST, with fewer images."""
    images = torch.randint(0, 256, (3040, 28, 28), dtype=torch.uint8)
    labels = (torch.arange(3040) % 10).to(torch.uint8)
    return images, labels, images[:20], labels[:20]


@pytest.mark.parametrize("row", SEQUENCES.values(), ids=SEQUENCES)
def test_it_builds_and_runs(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indrnn.tasks.pixels.read_mnist", made_up_digits)
    config = row.recipe.model_config()
    assert isinstance(config, Head)
    model = config.build()
    assert isinstance(model, SequenceRegressor if row.name.startswith("adding") else SequenceClassifier)
    answers, _ = model(torch.rand(9, 3, config.network.input_size))
    assert answers.shape == (3, config.outputs)
    assert bool(answers.isfinite().all())
    task = row.recipe.task()
    batch = task.batch(0, Shard())
    steps, features = batch.inputs.shape[::2]
    assert features == config.network.input_size
    assert steps == getattr(config.network, "sequence_length", steps)
    if isinstance(task, Adding):
        assert (task.length, task.batch_size, task.seed) == (steps, 50, row.recipe.seed)
    else:
        assert isinstance(task, Pixels)
        assert isinstance(row.recipe, PixelsRecipe)
        assert (task.batch_size, task.seed) == (row.recipe.batch_size, row.recipe.seed)
        assert (task.order_of_pixels is not None) == row.recipe.permuted
        assert len(task.data["validation"][0]) == row.recipe.validation


BY_DATA = {"text-char", "text-word", *(f"skeleton-{name}" for name in ("4", "6", "6-aug", "dense", "dense-aug"))}


@pytest.mark.parametrize("row", rows().values(), ids=rows())
def test_its_parameters_are_as_many_as_it_says(row: Row) -> None:
    if row.name in BY_DATA:
        assert row.parameters is None
        return
    with torch.device("meta"):
        model = row.recipe.model_config().build()
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == row.parameters


@every_row
def test_what_is_written_of_it_is_read_back(row: Row) -> None:
    own = row.name.startswith("skeleton-")  # whose model is known with the data
    for options in (row.recipe, row.recipe.training, *(() if own else (row.recipe.model_config(),))):
        written = json.dumps(to_json(options), allow_nan=False)
        again = from_json(json.loads(written), {**CONFIGS, **kinds()})
        assert again == options
        assert type(again) is type(options)


@pytest.mark.parametrize(
    "schedule",
    [Constant(), Steps(7, 0.3), Plateau(3.0, 11), Cosine(0.125), OneCycle(0.25)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_other_options_are_read_back_too(schedule: Any) -> None:
    training = Training(steps=77, lr=0.25, schedule=schedule, clip=None, threads=3, precision="bf16", compile=True)
    network = Plain(None, 11, 3, nonlinearity="tanh", norm=None, dropout=(0.125, 0, 0.5), gamma=None, epsilon=0.75)
    recipe = AddingRecipe(13, 7, 11, network, training, seed=-5)
    assert from_json(json.loads(json.dumps(to_json(recipe))), {**CONFIGS, **kinds()}) == recipe
    baseline = replace(recipe, model=Baseline("gru", 9, 2, 0.5))
    assert from_json(json.loads(json.dumps(to_json(baseline))), {**CONFIGS, **kinds()}) == baseline
    assert baseline != recipe
    for other in (
        Residual(None, 9, 2, norm_place="before", dropout=0.5, gamma=None, epsilon=0.75, last_transition=3),
        Dense(None, 3, (3, 1), norm="step", norm_steps=9, first_dropout=0.1, gamma=2.0, lower_bound=True),
    ):
        digits = PixelsRecipe(
            permuted=True,
            shrink=2,
            batch_size=7,
            validation=11,
            model=other,
            training=training,
            seed=-5,
            split_seed=3,
            permutation_seed=4,
        )
        assert from_json(json.loads(json.dumps(to_json(digits))), {**CONFIGS, **kinds()}) == digits


@every_row
def test_it_says_what_it_is_in_the_paper_and_what_it_costs(row: Row) -> None:
    assert rows()[row.name] is row
    assert find(row.name) is row
    assert row.paper
    assert row.value
    assert row.cost
    assert (type(row.recipe).__doc__ or "").strip()


def test_the_model_of_a_recipe_is_for_its_length() -> None:
    """Where the length is changed, the bound follows."""
    recipe = replace(adding("adding-100"), length=37)
    assert isinstance(recipe.model, Plain)
    sized = replace(recipe.model, input_size=2, sequence_length=37)
    assert recipe.model_config() == Head(sized, 1, "SequenceRegressor")
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
        ("mnist", "did you mean mnist-6"),
        ("pmnist-dens", "did you mean pmnist-dense"),
        ("speech", "`indrnn recipes` lists them"),
        ("", "`indrnn recipes` lists them"),
    ],
    ids=["letters swapped", "letter missing", "not all of it", "end missing", "nothing like it", "empty"],
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"validation": 0}, "validation must be at least 1, got 0"),
        ({"shrink": 0}, "shrink must be at least 1, got 0"),
        ({"shrink": 3}, "shrink must divide the 28 pixels of an image's side, got 3"),
        ({"seed": 0.5}, "seed must be a whole number of 64 bits, got 0.5"),
        ({"split_seed": 2**64}, "seed must be a whole number of 64 bits"),
        ({"permutation_seed": True}, "seed must be a whole number of 64 bits, got True"),
    ],
    ids=["batch size", "validation", "no shrink", "shrink", "seed", "split seed", "permutation seed"],
)
def test_bad_options_for_digits_are_named_before_data_is_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PixelsRecipe(data_dir=Path("nowhere"), **options)
    assert not Path("nowhere").exists()


def test_paths_and_tuples_are_read_back_as_such() -> None:
    skeletons: Any = find("skeleton-6-aug").recipe
    skeletons = replace(skeletons, data=Path("a.npz"), test_subjects=(2, 4))
    text: Any = find("text-char").recipe
    for recipe in (skeletons, replace(text, text=Path("a.txt")), Fit(Path("b.npz"), balanced=True)):
        written = json.loads(json.dumps({"recipe": recorded_recipe(recipe, "own")}))
        again = restored_recipe(written)
        names = {field.name for field in fields(recipe)} - {"training"}
        assert {name: getattr(again, name) for name in names} == {name: getattr(recipe, name) for name in names}


# ---- places in the paper


def test_tables_are_numbered_as_in_the_paper() -> None:
    """Table 1 of the paper relates weight and memory; 2 is MNIST, 3 and 4 the Penn Treebank, 5 to 8 NTU RGB+D."""
    tables = {
        "mnist": "2",
        "pmnist": "2",
        "ptb-char": "3",
        "ptb-word": "4",
        "ntu120": "8",
        "utd": "56",
        "skeleton": "56",
    }
    for row in rows().values():
        group = next((group for group in tables if row.name.startswith(f"{group}-")), None)
        if group is None or "lstm-12" in row.name:
            continue
        number = re.search(r"Table (\d)", row.paper)
        assert number is not None, row
        assert number[1] in tables[group], row
    ntu = {row.name.partition("-")[2]: row.paper for row in rows().values() if row.name.startswith("ntu60-")}
    assert {name for name, place in ntu.items() if place == "Table 6"} >= {"cs-dense-aug", "cv-dense-aug"}
    assert {name for name, place in ntu.items() if place == "Table 7"} == {
        f"cs-6-gamma{g}" for g in ["1", "2", "10", "none"]
    }
    assert {ntu[f"cs-{name}"] for name in ("4", "6", "res100", "dense", "rnn-1", "lstm-6")} == {"Table 5"}
    assert find("mnist-lstm-12").paper == "section 5.2.2"


def test_where_the_paper_reports_nothing_none_of_its_results_is_named() -> None:
    without = {row.name for row in rows().values() if not row.is_shown}
    assert without >= {"utd-6", "utd-6-aug", "skeleton-6", "text-char", "ptb-char-gru", "pmnist-transformer"}
    assert all(
        row.is_shown for row in rows().values() if row.paper.startswith(("Table", "Fig.")) and row.name[0] != "p"
    )
    values = {row.value for row in rows().values() if row.is_shown}
    assert all(re.search(r"\d|near 0|learn|difficult|converge", value) for value in values)
