"""Models in files: what was saved, or what a run left, is loaded again; what is neither is answered with a reason."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune
from torch.testing import assert_close

import indrnn
from indrnn.baselines import KINDS, SRU, Baseline, BaselineRNN, Transformer, TransformerBaseline
from indrnn.networks import Dense, DenseIndRNN, Head, Plain, PlainIndRNN, Residual, ResidualIndRNN, WordEmbedding
from indrnn.networks.tokeniser import Tokeniser
from indrnn.saving import CONFIGS as TYPES
from indrnn.saving import from_json, to_json
from indrnn.tasks.rows import find

ROOT = Path(__file__).parent.parent
T, B, M = 9, 4, 3

CONFIGS = {
    "indrnn": Head(Plain(M, 7, 3, dropout=0.4, gamma=2.0, sequence_length=9), 5),
    "indrnn without norm": Head(
        Plain(M, 5, 2, nonlinearity="tanh", norm=None, gamma=None, weight_std=0.5), 1, "SequenceRegressor", "mean"
    ),
    "residual": Head(
        Residual(M, 7, 2, dropout=0.4, gamma=2.0, sequence_length=9, epsilon=0.5, last_transition=4),
        5,
        "StepClassifier",
    ),
    "dense": Head(Dense(M, 3, (2, 1), norm_place="before", first_dropout=0.1, gamma=None), 5, "StepRegressor"),
    **{kind: Head(Baseline(kind, 7, 2, 0.4, input_size=M), 5) for kind in KINDS},  # type: ignore[arg-type]
    "transformer": Head(Transformer(8, 1, 2, input_size=M), 5),
}
JSON = {
    "type": "Head",
    "network": {"type": "Baseline", "kind": "gru", "hidden_size": 7, "input_size": M},
    "outputs": 5,
}
"""What is in a model.json, by hand."""

NO_SUCH_TYPE = f"type must be one of {', '.join(TYPES)}, .*got "

configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def in_use(config: Head) -> nn.Module:
    """A model whose weights and running statistics are away from where they start."""
    model = config.build()
    for _ in range(3):
        model(torch.randn(T, B, M) + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    indrnn.constrain_(model)
    return model


def write(folder: Path, config: Any, model: nn.Module) -> Path:
    """A run's folder, made without the package's own writer."""
    folder.mkdir(exist_ok=True)
    (folder / "model.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "weights.safetensors")
    return folder


# ---- loading


@configs
@pytest.mark.parametrize("kind", [str, Path])
def test_what_a_run_left_is_loaded(kind: type, config: Head, tmp_path: Path) -> None:
    model = in_use(config)
    write(tmp_path, to_json(config), model)
    loaded = indrnn.load(kind(tmp_path))
    assert not any(module.training for module in loaded.modules())
    assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    x = torch.randn(T, B, M)
    with torch.no_grad():
        assert_close(loaded(x), model.eval()(x), rtol=0, atol=0)
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


def test_it_is_loaded_from_two_files_alone_and_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, JSON, from_json(JSON).build())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    indrnn.load(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"model.json", "weights.safetensors"}


def test_loading_asks_nothing_of_torchs_own_generator_but_what_the_weights_need(tmp_path: Path) -> None:
    """The weights are the file's, whatever the seed was."""
    model = in_use(CONFIGS["indrnn"])
    write(tmp_path, to_json(CONFIGS["indrnn"]), model)
    x, answers = torch.randn(T, B, M), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            answers.append(indrnn.load(tmp_path)(x)[0])
    assert torch.equal(*answers)


# ---- what cannot be loaded


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"folder must be the folder of a run or a saved model, and .*nowhere is none"
    ):
        indrnn.load(tmp_path / "nowhere")


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        FileNotFoundError, match=r"folder must be the folder of a run or a saved model, and .*file is none"
    ):
        indrnn.load(tmp_path / "file")


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file(name: str, tmp_path: Path) -> None:
    write(tmp_path, JSON, from_json(JSON).build())
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"holds no {name}: the run is not finished"):
        indrnn.load(tmp_path)


def assert_one_line(error: pytest.ExceptionInfo[Exception], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_weights_of_another_kind(tmp_path: Path) -> None:
    write(tmp_path, JSON, CONFIGS["indrnn"].build())
    with pytest.raises(ValueError, match="does not fit the model") as error:
        indrnn.load(tmp_path)
    assert_one_line(error, "weights.safetensors", "network.rnn.weight_hh_l0", "network.blocks.0.unit.weight_hh")


def test_weights_of_another_size(tmp_path: Path) -> None:
    write(tmp_path, JSON, Head(Baseline("gru", 8, input_size=M), 5).build())
    with pytest.raises(ValueError, match="does not fit the model") as error:
        indrnn.load(tmp_path)
    assert_one_line(error, "weights.safetensors", "network.rnn.weight_hh_l0")


def test_weights_that_are_torn(tmp_path: Path) -> None:
    write(tmp_path, JSON, from_json(JSON).build())
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"weights\.safetensors") as error:
        indrnn.load(tmp_path)
    assert_one_line(error)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({**JSON, "type": "Convolution"}, "'Convolution'"),
        ({**JSON, "network": {"type": "Perceptron"}}, "'Perceptron'"),
        ({**JSON, "network": {"type": "Training"}}, "'Training'"),
    ],
    ids=["of the model", "of the network", "of other options"],
)
def test_an_unknown_type(config: Any, part: str, tmp_path: Path) -> None:
    write(tmp_path, config, from_json(JSON).build())
    with pytest.raises(ValueError, match=NO_SUCH_TYPE) as error:
        indrnn.load(tmp_path)
    assert_one_line(error, part)


@pytest.mark.parametrize(
    "text",
    ['{"type": "Head", "netw', "", "[]", "7", json.dumps({**JSON, "heads": 3}), json.dumps({"type": "Head"})],
    ids=["torn", "empty", "a list", "a number", "an option of a later version", "options missing"],
)
def test_a_model_json_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    write(tmp_path, JSON, from_json(JSON).build())
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.json") as error:
        indrnn.load(tmp_path)
    assert_one_line(error)


# ---- options as data


@configs
def test_options_are_read_back(config: Head) -> None:
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_what_is_left_out_has_its_default() -> None:
    assert from_json(JSON) == Head(Baseline("gru", hidden_size=7, input_size=M), 5)


@pytest.mark.parametrize("value", [None, 3, 0.5, "lstm", True, {"a": 1}, [1, 2]], ids=repr)
def test_what_is_no_options_stays_as_it_is(value: Any) -> None:
    assert from_json(value) == value


@pytest.mark.parametrize("name", ["os.system", "eval", "object", "Training", "BaselineRNN", "", "__import__"])
def test_only_types_of_options_are_made(name: str) -> None:
    """What is in a file runs nothing."""
    with pytest.raises(ValueError, match=NO_SUCH_TYPE) as error:
        from_json({"type": name})
    assert repr(name) in str(error.value)
    with pytest.raises(ValueError, match="type must be one of"):
        from_json({**JSON, "network": {"type": name}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "Plain", "hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"type": "Plain", "layers": 0}, "layers must be at least 1, got 0"),
        ({"type": "Plain", "dropout": 1.5}, r"dropout must be a number in \[0, 1\], got 1.5"),
        ({"type": "Plain", "weight_std": -1.0}, "weight_std must be a positive number or None, got -1.0"),
        ({"type": "Residual", "hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"type": "Residual", "blocks": 0}, "blocks must be at least 1, got 0"),
        ({"type": "Residual", "dropout": 1.5}, r"dropout must be a number in \[0, 1\], got 1.5"),
        ({"type": "Dense", "growth_rate": 0}, "growth_rate must be at least 1, got 0"),
        ({"type": "Dense", "first_dropout": 2}, r"first_dropout must be a number in \[0, 1\], got 2"),
        ({"type": "Dense", "dense_dropout": 2}, r"dense_dropout must be a number in \[0, 1\], got 2"),
        ({"type": "Dense", "bottleneck_dropout": -1}, r"bottleneck_dropout must be a number in \[0, 1\], got -1"),
        ({"type": "Dense", "transition_dropout": -1}, r"transition_dropout must be a number in \[0, 1\], got -1"),
        ({"type": "Baseline", "layers": -1}, "layers must be at least 1, got -1"),
        ({"type": "Baseline", "dropout": -0.5}, r"dropout must be a number in \[0, 1\], got -0.5"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(options)


def test_the_input_weights_start_with_the_deviation_asked_for() -> None:
    for config in (Plain(32, 64, 2, weight_std=0.25), Residual(32, 64, 1, weight_std=0.25)):
        network = config.build()
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2:
                assert parameter.std().item() == pytest.approx(0.25, rel=0.06), name  # 2,048 numbers: ± 1.6 % is usual


def test_residual_and_dense_networks_are_built_with_their_options() -> None:
    options: dict[str, Any] = {"gamma": 2.0, "epsilon": 0.5, "long_memory": True}
    residual = Residual(hidden_size=11, blocks=3, dropout=0.25, **options).sized(M, 37).build()
    assert isinstance(residual, ResidualIndRNN)
    assert len(residual.recurrent_layers) == 2 * 3 + 1
    dense = Dense(growth_rate=3, **options).sized(M, 37).build()
    assert isinstance(dense, DenseIndRNN)
    for network in (residual, dense):
        *earlier, last = network.recurrent_layers
        assert all(layer.bound.upper == pytest.approx(2 ** (1 / 37)) for layer in network.recurrent_layers)
        assert last.weight_hh.min().item() >= 0.5 ** (1 / 37)
        assert min(layer.weight_hh.min().item() for layer in earlier) < 0.5
    assert {layer.weight_hh.numel() for layer in residual.recurrent_layers} == {11}


@pytest.mark.parametrize("kind", [Plain, Residual, Dense])
def test_the_documented_default_is_one_for_all_networks(kind: Any) -> None:
    config = kind(1)
    assert (config.norm, config.norm_place) == ("batch", "after")
    assert config.build().config == config
    assert indrnn.ResidualIndRNN(1, 8, 2, sequence_length=784).config.norm_place == "after"


def test_dropout_is_where_its_name_says() -> None:
    residual = Residual(M, 7, 2, dropout=0.3).build()
    assert [layer.dropout for layer in residual.recurrent_layers] == [0.3] * 5
    config = Dense(M, 3, first_dropout=0.1, dense_dropout=0.2, bottleneck_dropout=0.3, transition_dropout=0.4)
    expected = [0.1, *[0.3, 0.2] * 8, 0.4, *[0.3, 0.2] * 6, 0.4, *[0.3, 0.2] * 4, 0.4]
    assert [layer.dropout for layer in config.build().recurrent_layers] == expected


# ---- saving

MODULES: dict[str, Any] = {
    "IndRNN": lambda: indrnn.IndRNN(M, 5, 2, "tanh", bidirectional=True, gamma=2, sequence_length=9, lower_bound=True),
    "IndRNN without bias": lambda: indrnn.IndRNN(M, 5, bias=False, bound=0.99, batch_first=True),
    "IndRNNCell": lambda: indrnn.IndRNNCell(M, 5, False, sequence_length=9, long_memory=True),
    "ConvIndRNN1d": lambda: indrnn.ConvIndRNN1d(M, 4, 3, padding="same", positions=7, gamma=None),
    "ConvIndRNN2d": lambda: indrnn.ConvIndRNN2d(M, 4, (3, 1), stride=2, bias=False),
    "SequenceBatchNorm": lambda: indrnn.SequenceBatchNorm(M, momentum=None),
    "StepBatchNorm": lambda: indrnn.StepBatchNorm(M, 5, affine=False),
    "SharedDropout": lambda: indrnn.SharedDropout(0.2, batch_first=True),
    "PlainIndRNN": lambda: PlainIndRNN(M, 5, 2, norm="step", norm_steps=4, dropout=(0.1, 0.2), bidirectional=True),
    "ResidualIndRNN": lambda: ResidualIndRNN(M, 5, 2, last_transition=3, norm="layer", recompute=4),
    "DenseIndRNN": lambda: DenseIndRNN(M, 3, [2, 1], first_layer=False, norm="rms"),
    "float64": lambda: PlainIndRNN(M, 5, 2, dtype=torch.float64),
    "bfloat16": lambda: PlainIndRNN(M, 5, 2, dtype=torch.bfloat16),
    "a head of an IndRNN": lambda: indrnn.SequenceClassifier(indrnn.IndRNN(M, 5), 4, "mean"),
    "a head of torch's LSTM": lambda: indrnn.StepRegressor(nn.LSTM(M, 5, 2, bidirectional=True), 2),
    "LanguageModel": lambda: indrnn.LanguageModel(PlainIndRNN(M, M, 2), 11, dropout=0.3),
    "an untied LanguageModel": lambda: indrnn.LanguageModel(PlainIndRNN(M, 5, 2), 11, tied=False, word_dropout=0.3),
    "TiedEmbedding": lambda: indrnn.TiedEmbedding(11, M, start=0.1),
    "WordEmbedding": lambda: WordEmbedding(11, M, start=0.1),
    "BaselineRNN": lambda: BaselineRNN("gru", M, 5, 2, dropout=0.1, batch_first=True),
    "TransformerBaseline": lambda: TransformerBaseline(M, 8, 1, 2, window=3),
    "SRU": lambda: SRU(M, 5, 2),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_saved_is_loaded(name: str, tmp_path: Path) -> None:
    model = MODULES[name]()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(torch.rand(tensor.shape) * 3)
    indrnn.save(model, tmp_path / "new" / "model")
    folder = tmp_path / "new" / "model"
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "weights.safetensors"]
    json.loads((folder / "model.json").read_text())
    generator = torch.get_rng_state()
    loaded = indrnn.load(str(folder))
    assert torch.equal(torch.get_rng_state(), generator)
    assert type(loaded) is type(model)
    assert repr(loaded) == repr(model.eval())
    assert not loaded.training
    assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    assert [p.dtype for p in loaded.parameters()] == [p.dtype for p in model.parameters()]


def test_a_bound_that_was_set_is_loaded(tmp_path: Path) -> None:
    model = indrnn.IndRNN(M, 5)
    model.bound.upper = 0.75
    indrnn.save(model, tmp_path)
    loaded = indrnn.load(tmp_path)
    assert isinstance(loaded, indrnn.IndRNN)
    assert loaded.bound.upper == 0.75


def test_a_saved_model_takes_the_place_of_another_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = PlainIndRNN(M, 5, 2), PlainIndRNN(M, 5, 2)
    indrnn.save(first, tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            indrnn.save(second, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "weights.safetensors"]
    assert_close(indrnn.load(tmp_path).state_dict(), first.state_dict(), rtol=0, atol=0)
    indrnn.save(second, tmp_path)
    assert_close(indrnn.load(tmp_path).state_dict(), second.state_dict(), rtol=0, atol=0)


class Mine(PlainIndRNN):
    pass


def test_what_load_could_not_build_is_not_saved(tmp_path: Path) -> None:
    pruned = PlainIndRNN(M, 5, 2)
    prune.random_unstructured(pruned.recurrent_layers[0].weight, "weight", 0.5)
    cases: list[tuple[nn.Module, str]] = [
        (nn.Linear(3, 3), "got Linear"),
        (nn.Sequential(indrnn.IndRNN(3, 3)), "got Sequential"),
        (Mine(M, 5, 2), "got Mine"),
        (pruned, "got a PlainIndRNN that was changed at blocks.0.unit.weight.weight"),
    ]
    for model, message in cases:
        with pytest.raises(TypeError, match=message):
            indrnn.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="folder must be a folder or a new name"):
        indrnn.save(PlainIndRNN(M, 5, 2), tmp_path / "file")


# ---- the kept runs

# Logits for `torch.manual_seed(3); torch.rand(784, 5, 1)`, as the code that trained them gave
KEPT = {
    "mnist-12-shift": [-7.3139, -22.5237, 7.4970],
    "mnist-6-fast": [21.0157, -106.4339, -37.4102],
    "mnist-6-muon": [-16.5419, -27.2254, 55.3448],
    "mnist-dense-shift": [-9.3215, -19.3009, 21.1951],
    "mnist-res12-muon": [-7.9879, -33.8095, -12.1801],
    "pmnist-6-fast": [67.9501, 99.4724, -33.3716],
    "pmnist-6-shift": [-192.2278, 46.3852, -36.2535],
    "pmnist-dense-longer": [-8.9644, 17.6693, -0.4212],
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_runs_are_loaded_and_are_of_their_recipes(name: str) -> None:
    folder = ROOT / "results" / "pixels" / name
    if not folder.exists():
        pytest.skip("the kept runs are in the repository only")
    model = indrnn.load(folder)
    torch.manual_seed(3)
    with torch.no_grad():
        logits, _ = model(torch.rand(784, 5, 1))
    assert_close(logits[0, :3], torch.tensor(KEPT[name]), rtol=1e-3, atol=1e-2)

    recorded = json.loads((folder / "config.json").read_text())
    recipe: Any = find(recorded["recipe"]["name"]).recipe
    # Options that did not exist then are at their defaults; dropout was an option of some runs
    network = from_json(recorded["recipe"]["model"])
    assert network == recipe.model or replace(network, dropout=recipe.model.dropout) == recipe.model
    config = replace(recipe, model=network).model_config()
    assert from_json(json.loads((folder / "model.json").read_text())) == config


# ---- a tokeniser


def test_a_language_model_is_saved_and_loaded_with_its_tokeniser(tmp_path: Path) -> None:
    tokeniser = Tokeniser("char", ("\n", "é", "b"))
    model = indrnn.LanguageModel(indrnn.PlainIndRNN(3, 3, 1), 3)
    assert model.tokeniser is None
    indrnn.save(model, tmp_path)
    assert not (tmp_path / "tokeniser.json").exists()
    assert indrnn.load(tmp_path).tokeniser is None
    model.tokeniser = tokeniser
    indrnn.save(model, tmp_path)
    assert indrnn.load(tmp_path).tokeniser == tokeniser
    indrnn.save(indrnn.load(tmp_path), tmp_path / "again")
    assert indrnn.load(tmp_path / "again").tokeniser == tokeniser
    model.tokeniser = None  # the next model in the same folder has none
    indrnn.save(model, tmp_path)
    assert indrnn.load(tmp_path).tokeniser is None


def test_a_damaged_tokeniser_is_named(tmp_path: Path) -> None:
    model = indrnn.LanguageModel(indrnn.PlainIndRNN(3, 3, 1), 3)
    indrnn.save(model, tmp_path)
    (tmp_path / "tokeniser.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokeniser\.json cannot be read: a tokeniser must be JSON"):
        indrnn.load(tmp_path)
