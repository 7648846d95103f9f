"""`indrnn analyse depth`: the gradients of untrained networks, by depth."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from indrnn.analysis import depth
from indrnn.cli import main
from indrnn.networks import PlainIndRNN, SequenceClassifier


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    few = {name: builders[:2] for name, builders in depth.NETWORKS.items()}
    monkeypatch.setattr(depth, "NETWORKS", few)


@pytest.mark.slow
def test_it_leaves_numbers_and_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for folder in ("a", "b/c"):
        with pytest.raises(SystemExit) as stopped:
            main(["analyse", "depth", "--seeds", "2", "--out", folder])
        assert stopped.value.code == 0
        assert sorted(path.name for path in Path(folder).iterdir()) == ["depth.json", "depth.md", "depth.png"]
        results.append(json.loads(Path(folder, "depth.json").read_text()))
    assert results[0] == results[1]
    assert results[0]["seeds"] == 2
    layers = [(row["network"], row["recurrent_layers"]) for row in results[0]["rows"]]
    assert layers == [("plain", 6), ("plain", 11), ("residual", 7), ("residual", 11), ("dense", 7), ("dense", 12)]
    said = capsys.readouterr().out
    for row in results[0]["rows"]:
        assert f"| {row['recurrent_layers']} | {row['first']:.2e} | {row['last']:.2e} |" in said


def test_norms_are_those_of_the_weights_between_recurrent_layers() -> None:
    make = partial(PlainIndRNN, depth.INPUTS, depth.HIDDEN, 4, **depth.SETTINGS)
    torch.manual_seed(3)
    first, last = depth.gradient_norms(make())
    torch.manual_seed(3)
    network = make()
    model = SequenceClassifier(network, depth.CLASSES)
    x, target = torch.randn(depth.STEPS, depth.BATCH, depth.INPUTS), torch.randint(depth.CLASSES, (depth.BATCH,))
    square = [w for w in network.parameters() if w.shape == (depth.HIDDEN, depth.HIDDEN)]
    gradients = torch.autograd.grad(F.cross_entropy(model(x)[0], target), square)
    assert len(gradients) == 3
    assert_close(torch.tensor([first, last]), torch.stack([gradients[0].norm(), gradients[-1].norm()]))


def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["depth", "--seeds", "0"], "seeds must be"),
        (["width"], "analysis: gradients, depth"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["analyse", *arguments])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
