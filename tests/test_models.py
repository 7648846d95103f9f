"""Models as data: what a run leaves is loaded again, and what is no run is answered with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

import indrnn
from indrnn.baselines import KINDS
from indrnn.models import TYPES, Baseline, Dense, LastStep, Plain, Residual, from_plain
from indrnn.networks import DenseIndRNN, PlainIndRNN, ResidualIndRNN
from indrnn.training.folder import plain

T, B, M = 9, 4, 3

CONFIGS = {
    "indrnn": LastStep(Plain(hidden_size=7, layers=3, norm="after", dropout=0.4, gamma=2.0), M, 5, 9),
    "indrnn without norm": LastStep(Plain(5, 2, "tanh", None, gamma=None, weight_std=0.5), M, 1, 9),
    "residual": LastStep(Residual(hidden_size=7, blocks=2, dropout=0.4, gamma=2.0, epsilon=0.5), M, 5, 9),
    "dense": LastStep(Dense(3, "before", 0.1, 0.2, 0.3, 0.4, gamma=None, long_memory=False), M, 5, 9),
    **{kind: LastStep(Baseline(kind, 7, 2, 0.4), M, 5, 9) for kind in KINDS},  # type: ignore[arg-type]
}
JSON = {
    "type": "LastStep",
    "network": {"type": "Baseline", "kind": "gru", "hidden_size": 7},
    "input_size": M,
    "outputs": 5,
    "steps": 9,
}
"""What is in a model.json, by hand."""

NO_SUCH_TYPE = f"type must be one of {', '.join(TYPES)}, got "

configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def in_use(config: LastStep) -> nn.Module:
    """A model whose weights and running statistics are away from where they start."""
    model = config.build()
    for _ in range(3):
        model(torch.randn(T, B, M) + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
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
def test_what_a_run_left_is_loaded(kind: type, config: LastStep, tmp_path: Path) -> None:
    model = in_use(config)
    write(tmp_path, plain(config), model)
    loaded = indrnn.load(kind(tmp_path))
    assert not any(module.training for module in loaded.modules())
    assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    x = torch.randn(T, B, M)
    with torch.no_grad():
        assert_close(loaded(x), model.eval()(x), rtol=0, atol=0)
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


def test_it_is_loaded_from_two_files_alone_and_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, JSON, from_plain(JSON).build())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    indrnn.load(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"model.json", "weights.safetensors"}


def test_loading_asks_nothing_of_torchs_own_generator_but_what_the_weights_need(tmp_path: Path) -> None:
    """The weights are the file's, whatever the seed was."""
    model = in_use(CONFIGS["indrnn"])
    write(tmp_path, plain(CONFIGS["indrnn"]), model)
    x, answers = torch.randn(T, B, M), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            answers.append(indrnn.load(tmp_path)(x)[0])
    assert torch.equal(*answers)


# ---- what cannot be loaded


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run must be the folder of a run, and .*nowhere is none"):
        indrnn.load(tmp_path / "nowhere")


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=r"run must be the folder of a run, and .*file is none"):
        indrnn.load(tmp_path / "file")


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file(name: str, tmp_path: Path) -> None:
    write(tmp_path, JSON, from_plain(JSON).build())
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
    assert_one_line(error, "weights.safetensors", "network.rnn.weight_hh_l0", "network.recurrences.0.weight_hh")


def test_weights_of_another_size(tmp_path: Path) -> None:
    write(tmp_path, JSON, LastStep(Baseline("gru", 8), M, 5, 9).build())
    with pytest.raises(ValueError, match="does not fit the model") as error:
        indrnn.load(tmp_path)
    assert_one_line(error, "weights.safetensors", "network.rnn.weight_hh_l0")


def test_weights_that_are_torn(tmp_path: Path) -> None:
    write(tmp_path, JSON, from_plain(JSON).build())
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
    write(tmp_path, config, from_plain(JSON).build())
    with pytest.raises(ValueError, match=NO_SUCH_TYPE) as error:
        indrnn.load(tmp_path)
    assert_one_line(error, part)


@pytest.mark.parametrize(
    "text",
    ['{"type": "LastStep", "netw', "", "[]", "7", json.dumps({**JSON, "heads": 3}), json.dumps({"type": "LastStep"})],
    ids=["torn", "empty", "a list", "a number", "an option of a later version", "options missing"],
)
def test_a_model_json_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    write(tmp_path, JSON, from_plain(JSON).build())
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.json") as error:
        indrnn.load(tmp_path)
    assert_one_line(error)


# ---- options as data


@configs
def test_options_are_read_back(config: LastStep) -> None:
    assert from_plain(json.loads(json.dumps(plain(config)))) == config


def test_what_is_left_out_has_its_default() -> None:
    assert from_plain(JSON) == LastStep(Baseline("gru", hidden_size=7), M, 5, 9)


@pytest.mark.parametrize("value", [None, 3, 0.5, "lstm", True, {"a": 1}, [1, 2]], ids=repr)
def test_what_is_no_options_stays_as_it_is(value: Any) -> None:
    assert from_plain(value) == value


@pytest.mark.parametrize("name", ["os.system", "eval", "object", "Training", "BaselineRNN", "", "__import__"])
def test_only_types_of_options_are_made(name: str) -> None:
    """What is in a file runs nothing."""
    with pytest.raises(ValueError, match=NO_SUCH_TYPE) as error:
        from_plain({"type": name})
    assert repr(name) in str(error.value)
    with pytest.raises(ValueError, match="type must be one of"):
        from_plain({**JSON, "network": {"type": name}})


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
        from_plain(options)


def test_the_input_weights_start_with_the_deviation_asked_for() -> None:
    network = Plain(hidden_size=64, layers=2, norm=None, weight_std=0.25).build(32, 9)
    assert isinstance(network, PlainIndRNN)
    for name, parameter in network.weights.named_parameters():
        if name.endswith("weight"):
            assert parameter.std().item() == pytest.approx(0.25, rel=0.06), name  # 2,048 numbers: ± 1.6 % is usual
        else:
            assert parameter.count_nonzero() == 0, name


def test_residual_and_dense_networks_are_built_with_their_options() -> None:
    residual = Residual(hidden_size=11, blocks=3, dropout=0.25, gamma=2.0, epsilon=0.5).build(M, 37)
    assert isinstance(residual, ResidualIndRNN)
    assert len(residual.recurrent_layers) == 2 * 3 + 1
    dense = Dense(growth_rate=3, gamma=2.0, epsilon=0.5).build(M, 37)
    assert isinstance(dense, DenseIndRNN)
    for network in (residual, dense):
        *earlier, last = network.recurrent_layers
        assert all(layer.bound.upper == pytest.approx(2 ** (1 / 37)) for layer in network.recurrent_layers)
        assert last.weight_hh.min().item() >= 0.5 ** (1 / 37)
        assert min(layer.weight_hh.min().item() for layer in earlier) < 0.5
        assert {layer.settings.norm for layer in network.recurrent_layers} == {"after"}
    assert {layer.weight_hh.numel() for layer in residual.recurrent_layers} == {11}
    for config in (Residual(11, 3, norm="before"), Dense(3, norm="before")):
        assert {layer.settings.norm for layer in config.build(M, 37).recurrent_layers} == {"before"}


def test_dropout_is_where_its_name_says() -> None:
    residual = Residual(7, 2, dropout=0.3).build(M, 9)
    assert isinstance(residual, ResidualIndRNN)
    assert [layer.dropout for layer in residual.recurrent_layers] == [0.3] * 5
    dense = Dense(3, first_dropout=0.1, dense_dropout=0.2, bottleneck_dropout=0.3, transition_dropout=0.4).build(M, 9)
    assert isinstance(dense, DenseIndRNN)
    expected = [0.1, *[0.3, 0.2] * 8, 0.4, *[0.3, 0.2] * 6, 0.4, *[0.3, 0.2] * 4, 0.4]
    assert [layer.dropout for layer in dense.recurrent_layers] == expected
