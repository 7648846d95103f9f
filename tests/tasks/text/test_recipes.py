"""The recipes of language modelling are the paper's settings, and what is written of them is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from indrnn.baselines import Baseline, Transformer
from indrnn.networks import Dense, DenseIndRNN, Language, LanguageModel, Plain, PlainIndRNN, Residual, ResidualIndRNN
from indrnn.saving import CONFIGS, from_json, to_json
from indrnn.tasks.recipe import Row
from indrnn.tasks.rows import find, kinds, listed, rows
from indrnn.tasks.text import corpus
from indrnn.tasks.text import recipe as module
from indrnn.tasks.text.recipe import PennRecipe, TextRecipe
from indrnn.tasks.text.task import LanguageTask
from indrnn.training import Plateau, Shard

CHARS = {"6": ("1.26", "1.21"), "res21": ("1.21", "1.17"), "dense": ("1.19", "1.16")}
every_row = pytest.mark.parametrize("row", module.ROWS, ids=[row.name for row in module.ROWS])
penn = [row for row in module.ROWS if isinstance(row.recipe, PennRecipe)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recipe(name: str) -> PennRecipe:
    found = find(name).recipe
    assert isinstance(found, PennRecipe)
    return found


def built(options: PennRecipe) -> LanguageModel:
    """Without memory for its weights, of which there may be many."""
    with torch.device("meta"):
        return options.model_config().build()


# ---- the paper's tables


@pytest.mark.parametrize("name", CHARS)
@pytest.mark.parametrize("length", [50, 100])
def test_characters(name: str, length: int) -> None:
    row = find(f"ptb-char-{name}" + ("" if length == 50 else f"-t{length}"))
    options = recipe(row.name)
    assert row.value == f"{CHARS[name][length == 100]} BPC"
    assert (options.unit, options.batch_size, options.length, options.start) == ("char", 128, length, 0.04)
    assert (options.tied, options.jitter, options.halved, options.reset) == (False, 0, 0, 0)
    assert (options.valid_batch, options.test_batch) == (None, None)
    training = options.training
    assert (training.lr, training.schedule, training.weight_decay) == (2e-4, Plateau(5, 100), 1e-4)
    assert (training.clip, training.optimizer) == (10.0, "adam")
    network = options.model_config().network
    assert (network.norm, network.norm_steps, network.norm_place) == ("step", length, "before")
    assert (network.gamma, network.bound, network.sequence_length) == (1.0, None, length)
    assert not network.long_memory
    if isinstance(network, Dense):
        assert (options.embedding, network.growth_rate, network.blocks) == (600, 256, (8, 6, 4))
        assert not network.first_layer
        dropouts = (network.dense_dropout, network.bottleneck_dropout, network.transition_dropout, network.last_dropout)
        assert dropouts == (0.5, 0.1, 0.4, 0.3)
    else:
        assert (options.embedding, network.hidden_size) == (2000, 2000)
        assert network.dropout == (0.25 if name == "6" else 0.3)
        assert len(built(options).network.recurrent_layers) == (6 if name == "6" else 21)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["res12", "dense"])
def test_words(name: str) -> None:
    options = recipe(f"ptb-word-{name}")
    assert (options.unit, options.batch_size, options.length, options.embedding) == ("word", 128, 50, 600)
    assert (options.tied, options.start) == (True, 0.01)
    assert (options.embedding_dropout, options.word_dropout) == (0.2, 0.65)
    assert (options.jitter, options.halved, options.reset) == (5.0, 0.05, 0.1)
    assert (options.valid_batch, options.test_batch) == (10, 1)
    network = options.model
    assert isinstance(network, (Residual, Dense))
    assert (network.bound, network.last_transition, network.last_dropout) == (0.99, 600, 0.65)
    if isinstance(network, Residual):
        assert (network.hidden_size, network.blocks, network.dropout) == (2000, 5, 0.45)
    else:
        assert (network.growth_rate, network.dense_dropout, network.bottleneck_dropout) == (256, 0.5, 0.1)
    model = built(options)
    assert model.tied
    assert model.network.input_size == model.network.output_size == 600
    layers = model.network.recurrent_layers
    assert {layer.bound.upper for layer in layers} == {0.99}  # type: ignore[union-attr]


def test_all_nine_rows_of_the_paper_and_those_beside_them() -> None:
    """The ninth is `indrnn evaluate --dynamic` of ptb-word-dense."""
    names = {row.name for row in module.ROWS}
    assert {f"ptb-char-{name}{length}" for name in CHARS for length in ("", "-t100")} <= names
    assert {"ptb-word-res12", "ptb-word-dense"} <= names
    others = ("lstm", "gru", "rnn", "transformer", "r-transformer")
    assert {f"ptb-{unit}-{other}" for unit in ("char", "word") for other in others} <= names
    assert {"text-char", "text-word", "text-byte"} <= names


@pytest.mark.parametrize("row", penn, ids=[row.name for row in penn])
def test_it_is_built_with_the_vocabulary_of_the_penn_treebank(row: Row) -> None:
    assert isinstance(row.recipe, PennRecipe)
    model = built(row.recipe)
    assert model.classes == {"char": 50, "word": 10_000}[row.recipe.unit]
    kinds = {Plain: PlainIndRNN, Residual: ResidualIndRNN, Dense: DenseIndRNN}
    if not isinstance(row.recipe.model, (Baseline, Transformer)):
        assert type(model.network) is kinds[type(row.recipe.model)]


def test_own_words_are_measured_as_the_paper_measures_words() -> None:
    options = next(row.recipe for row in module.ROWS if row.name == "text-word")
    assert isinstance(options, TextRecipe)
    assert (options.valid_batch, options.test_batch) == (10, 1)


@pytest.mark.parametrize("kind", ["6", "res", "dense", "lstm", "gru"])
def test_quick_rows_are_of_one_size(kind: str) -> None:
    parameters = find(f"ptb-char-{kind}-fast").parameters
    assert parameters is not None
    assert 1_000_000 <= parameters <= 2_000_000


@every_row
def test_what_is_written_of_it_is_read_back(row: Row, tmp_path: Path) -> None:
    options: Any = row.recipe
    if isinstance(options, TextRecipe):
        text = tmp_path / "text"
        text.write_text("to be or not to be\n" * 9)
        options = replace(options, text=text)
    for each in (options, options.model_config(), options.training):
        again = from_json(json.loads(json.dumps(to_json(each), allow_nan=False)), {**CONFIGS, **kinds()})
        assert again == each
        assert type(again) is type(each)


@every_row
def test_it_says_what_it_is_in_the_paper_and_what_it_costs(row: Row) -> None:
    assert rows()[row.name] is row
    assert row.paper
    assert row.value
    assert row.cost
    assert (type(row.recipe).__doc__ or "").strip()


# ---- tasks


def test_the_penn_treebanks_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in corpus.PENN_FILES.values():
        (tmp_path / name).write_text("to be or not to be\n" * 60)
    monkeypatch.setattr(corpus, "PENN_COUNTS", {"word": (420,) * 3})
    monkeypatch.setattr(corpus, "PENN_CLASSES", {"word": 5})
    options = replace(recipe("ptb-word-dense"), data_dir=tmp_path, batch_size=4, length=7)
    task = options.task()
    assert isinstance(task, LanguageTask)
    assert (task.jitter, task.halved, task.reset) == (5.0, 0.05, 0.1)
    assert (task.valid_batch, task.test_batch, task.metric) == (10, 1, "perplexity")
    assert task.batch(0, Shard()).inputs.shape[1] == 4


@pytest.mark.parametrize("unit", ["char", "word", "byte"])
def test_the_model_of_a_text_has_its_vocabulary(unit: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 60)
    options = find(f"text-{unit}").recipe
    assert isinstance(options, TextRecipe)
    options = replace(options, text=text, batch_size=3, length=5)
    config = options.model_config()
    assert isinstance(config, Language)
    assert config.classes == {"char": 8, "word": 5, "byte": 256}[unit]
    assert options.task().tokeniser.classes == config.classes


def test_the_norm_of_each_step_follows_the_window() -> None:
    network = replace(recipe("ptb-char-6"), length=33).model_config().network
    assert (network.norm_steps, network.sequence_length) == (33, 33)


@pytest.mark.parametrize("name", ["6", "dense"])
def test_early_rows_differ_in_the_start_of_recurrent_weights_alone(name: str) -> None:
    row, base = find(f"ptb-char-{name}-early"), find(f"ptb-char-{name}")
    recipe: Any = row.recipe
    assert recipe.model.highest_start == 0.5
    assert replace(recipe, model=replace(recipe.model, highest_start=None)) == base.recipe
    assert (row.is_shown, row.paper, row.parameters) == (False, "beside Table 3", base.parameters)


def test_recipes_say_when_learning_was_seen_to_begin() -> None:
    lines = "\n".join(listed(rows().values())).splitlines()
    (six,) = (number for number, line in enumerate(lines) if line.startswith("ptb-char-6 "))
    assert lines[six + 1] == "  learning begins: after 4,700 steps (the authors' run)"
    assert {row.name for row in rows().values() if row.begins} == {
        f"ptb-char-{n}" for n in ("6", "6-early", "dense-early")
    }
