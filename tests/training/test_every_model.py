"""Every model that can be saved can be trained, loaded from its run and resumed: heads over layers, networks, torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import indrnn
from indrnn.baselines import QRNN, SRU, Baseline, Transformer
from indrnn.networks import Dense, Front, Plain, Residual
from indrnn.saving import from_json, to_json
from indrnn.training import Batch, TensorTask, Training, train

CORES: dict[str, Any] = {
    "IndRNN": lambda: indrnn.IndRNN(3, 5),
    "bounded IndRNN": lambda: indrnn.IndRNN(3, 5, num_layers=2, gamma=2.0, sequence_length=7, bidirectional=True),
    "ReLU RNN": lambda: nn.RNN(3, 5, nonlinearity="relu"),
    "LSTM": lambda: nn.LSTM(3, 5, num_layers=2, dropout=0.1),
    "GRU": lambda: nn.GRU(3, 5, bidirectional=True),
    "SRU": lambda: SRU(3, 5),
    "plain": lambda: Plain(3, 5, 2).build(),
    "residual": lambda: Residual(3, 5, 1).build(),
    "dense": lambda: Dense(3, growth_rate=4, blocks=(1, 1)).build(),
    "front": lambda: Front(Plain(hidden_size=5, layers=1), 3, features=(4,), kernels=(3,)).build(),
    "baseline": lambda: Baseline("lstm", input_size=3, hidden_size=5, layers=1).build(),
    "QRNN": lambda: QRNN(input_size=3, hidden_size=5, layers=1).build(),
    "Transformer": lambda: Transformer(input_size=3, hidden_size=8, heads=2, layers=1).build(),
}
HEADS: dict[str, Any] = {
    "classifier": lambda core: indrnn.SequenceClassifier(core, 2),
    "regressor": lambda core: indrnn.SequenceRegressor(core, 2),
}


class Sequences(TensorTask):
    """Sequences (items, time, features), which the models read as (time, items, features)."""

    def __init__(self, numbers: bool) -> None:
        x = torch.randn(40, 7, 3, generator=torch.Generator().manual_seed(0))
        y = x.sum((1, 2)) > 0
        target = torch.stack([y, ~y], 1).float() if numbers else y.long()
        loss = nn.functional.mse_loss if numbers else nn.functional.cross_entropy
        super().__init__((x[:30], target[:30]), (x[30:], target[30:]), batch_size=8, loss=loss)

    def _output(self, model: nn.Module, batch: Batch) -> Tensor:
        output: Tensor = model(batch.inputs.transpose(0, 1))[0]
        return output


def options(steps: int) -> Training:
    return Training(steps=steps, lr=1e-2, evaluate_every=2, tensorboard=False, curve=False)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("core", CORES)
def test_trained_loaded_and_resumed(tmp_path: Path, core: str, head: str) -> None:
    def made() -> nn.Module:
        torch.manual_seed(1)
        model: nn.Module = HEADS[head](CORES[core]())
        return model

    task = Sequences(numbers=head == "regressor")
    whole = made()
    result = train(whole, task, options(4), out=tmp_path / "whole", quiet=True)
    assert result.finished
    loaded = indrnn.load(tmp_path / "whole")
    x = torch.randn(6, 2, 3)
    assert torch.equal(loaded(x)[0], whole.eval()(x)[0])
    train(made(), task, options(2), out=tmp_path / "parts", quiet=True)
    train(made(), task, options(4), out=tmp_path / "parts", resume=True, quiet=True)
    weights = [(tmp_path / run / "weights.safetensors").read_bytes() for run in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_a_layer_alone_is_loaded_from_its_run(tmp_path: Path) -> None:
    class Means(Sequences):
        def _output(self, model: nn.Module, batch: Batch) -> Tensor:
            return super()._output(model, batch).mean(0)

    model = indrnn.IndRNN(3, 2)
    train(model, Means(numbers=True), options(2), out=tmp_path / "run", quiet=True)
    loaded = indrnn.load(tmp_path / "run")
    x = torch.randn(6, 2, 3)
    assert type(loaded) is indrnn.IndRNN
    assert torch.equal(loaded(x)[0], model.eval()(x)[0])


def test_options_of_numpy_are_recorded_as_numbers(tmp_path: Path) -> None:
    given = {
        "lr": np.float64(0.5),
        "count": np.int64(3),
        "rates": np.array([1.5, 2.0]),
        "at": tmp_path,
        "pair": (1, "a"),
    }
    expected = {"lr": 0.5, "count": 3, "rates": [1.5, 2.0], "at": str(tmp_path), "pair": [1, "a"]}
    assert to_json(given) == expected
    assert from_json(to_json(given)) == expected


def test_what_has_no_json_form_is_named() -> None:
    with pytest.raises(TypeError, match=r"config\.options\[1\]\.loss must be of JSON's types, .* got function"):
        to_json({"options": [1, {"loss": lambda: 0}]})
