"""Histograms of recurrent weights: against counts by hand, and the weights that a run begins with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import indrnn
from indrnn.analysis import weights as analysis
from indrnn.analysis.weights import weights
from indrnn.networks import Head, Plain
from indrnn.tasks.runs import open_run
from indrnn.tasks.table import Results


def model(*values: list[float]) -> indrnn.PlainIndRNN:
    network = indrnn.PlainIndRNN(2, len(values[0]), len(values))
    with torch.no_grad():
        for layer, each in zip(network.recurrent_layers, values, strict=True):
            layer.weight_hh.copy_(torch.tensor(each))
    return network


def test_counts_and_shares_by_hand() -> None:
    found = weights(model([-0.5, 0.05, 0.5, 1.0], [0.91, 0.95, -0.95, 0.0]), bins=3)
    assert found.edges == pytest.approx([-0.95, -0.3, 0.35, 1.0])
    first, second = found.layers
    assert (first.counts_after, second.counts_after) == ([1, 1, 2], [1, 1, 2])
    assert (first.near_zero, first.near_one, first.negative) == (0.25, 0.25, 0.25)
    assert (second.near_zero, second.near_one, second.negative) == (0.25, 0.75, 0.25)
    assert first.before is None
    assert first.counts_before is None


def test_before_and_after_share_their_bins() -> None:
    after, before = model([0.2, 0.4]), model([0.7, 1.5])
    found = weights(after, before, bins=3)
    assert found.edges == [0.0, 0.5, 1.0, 1.5]
    (layer,) = found.layers
    assert layer.counts_after == [2, 0, 0]
    assert layer.counts_before == [0, 1, 1]
    assert layer.after == pytest.approx([0.2, 0.4])
    assert layer.before == pytest.approx([0.7, 1.5])


def test_a_model_drawn_anew_is_what_training_begins_with_and_draws_no_number_of_others(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = Head(Plain(2, 5, 2), 3).build()
    indrnn.save(expected, tmp_path / "model")
    torch.manual_seed(1)
    following = torch.rand(3)
    torch.manual_seed(1)
    found = open_run(tmp_path / "model", saved=True).drawn(7)
    assert torch.equal(torch.rand(3), following)
    for name, value in found.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="before must be the same model"):
        weights(model([0.1, 0.2]), model([0.1, 0.2, 0.3]))
    with pytest.raises(ValueError, match="bins must"):
        weights(model([0.1]), bins=0)
    with pytest.raises(ValueError, match="model must hold independent recurrent weights"):
        weights(torch.nn.GRU(2, 3))


@pytest.mark.parametrize("layers", [1, 7])
def test_numbers_and_picture_are_written(layers: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = weights(indrnn.IndRNN(2, 6, layers), indrnn.IndRNN(2, 6, layers))
    table = analysis.write(found, {"run": "a"}, Results(tmp_path, "weights"))
    assert len(table.splitlines()) == 2 + layers
    kept = json.loads((tmp_path / "weights.json").read_text())
    assert [sum(layer["counts_after"]) for layer in kept["layers"]] == [6] * layers
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
