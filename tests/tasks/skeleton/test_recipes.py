"""The recipes of skeletons are the paper's settings, and each trains on recordings of its set's shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from indrnn.baselines import Baseline
from indrnn.networks import Dense, DenseIndRNN, Head, Plain, PlainIndRNN, Residual, ResidualIndRNN
from indrnn.tasks.recipe import Row
from indrnn.tasks.rows import find, rows
from indrnn.tasks.skeleton.joints import KINECT, NTU, Sampling
from indrnn.tasks.skeleton.recipe import SkeletonRecipe
from indrnn.tasks.skeleton.recordings import Recordings
from indrnn.training import Plateau, Shard

SETS = ["ntu60-cs", "ntu60-cv", "ntu120-cs", "ntu120-cv"]
PLAIN = Plain(hidden_size=512, layers=6, dropout=0.4, gamma=5.0, long_memory=True)
NETWORKS = {
    "4": replace(PLAIN, layers=4),
    "6": PLAIN,
    "4-tanh": replace(PLAIN, layers=4, nonlinearity="tanh", dropout=0.3),
    "6-tanh": replace(PLAIN, nonlinearity="tanh", dropout=0.3),
    "res100": Residual(hidden_size=512, blocks=49, dropout=0.4, gamma=5.0, long_memory=True),
    "dense": Dense(
        growth_rate=48,
        first_dropout=0.5,
        dense_dropout=0.5,
        bottleneck_dropout=0.1,
        transition_dropout=0.3,
        gamma=5.0,
        long_memory=True,
    ),
}
"""The networks of the paper's section 5.3"""
SKELETONS = {name: row for name, row in rows().items() if isinstance(row.recipe, SkeletonRecipe)}


def recipe_of(name: str) -> SkeletonRecipe:
    recipe = find(name).recipe
    assert isinstance(recipe, SkeletonRecipe)
    return recipe


# ---- the paper's tables


@pytest.mark.parametrize("split", SETS)
@pytest.mark.parametrize("network", [*NETWORKS, "dense-aug"])
def test_the_papers_settings(network: str, split: str) -> None:
    if split.startswith("ntu120") and network not in ("4", "6", "dense", "dense-aug"):
        assert f"{split}-{network}" not in rows()
        return
    recipe = recipe_of(f"{split}-{network}")
    assert recipe.protocol == split
    assert recipe.model == NETWORKS[network.removesuffix("-aug")]
    assert (recipe.batch_size, recipe.validation, recipe.pool, recipe.label_smoothing) == (128, 0.05, "last", 0)
    training = recipe.training
    assert training.lr == (6e-4 if network == "res100" else 2e-4)
    assert (training.weight_decay, training.clip, training.schedule) == (1e-4, 10.0, Plateau(5, 100))
    if network.endswith("-aug"):
        assert recipe.sampling == Sampling(20, 10, 30, ("coordinates", "differences", "distances"))
    else:
        assert recipe.sampling == Sampling(20)
    assert recipe.sampling.draws == 20


@pytest.mark.parametrize(("split", "recordings"), [*zip(SETS, [40_091, 37_646, 63_026, 54_468], strict=True)])
def test_an_evaluation_each_epoch(split: str, recordings: int) -> None:
    kept = round(0.05 * recordings)
    assert recipe_of(f"{split}-6").training.evaluate_every == -(-(recordings - kept) // 128)


@pytest.mark.parametrize(("name", "gamma"), [("1", 1.0), ("2", 2.0), ("10", 10.0), ("none", None)])
def test_other_bounds(name: str, gamma: float | None) -> None:
    assert recipe_of(f"ntu60-cs-6-gamma{name}") == replace(recipe_of("ntu60-cs-6"), model=replace(PLAIN, gamma=gamma))
    utd = recipe_of("utd-6-aug")
    assert isinstance(utd.model, Plain)
    assert recipe_of(f"utd-6-gamma{name}-aug") == replace(utd, model=replace(utd.model, gamma=gamma))


@pytest.mark.parametrize("layers", [1, 2, 4, 6])
@pytest.mark.parametrize(("kind", "size"), [("rnn", 512), ("lstm", 128)])
@pytest.mark.parametrize("start", ["ntu60-cs", "ntu60-cv", "utd"])
def test_baselines(start: str, kind: Any, size: int, layers: int) -> None:
    recipe = recipe_of(f"{start}-{kind}-{layers}")
    assert recipe.model == Baseline(kind, size, layers, dropout=0.5)
    assert recipe.sampling == recipe_of(f"{start}-6").sampling


@pytest.mark.parametrize(
    ("name", "kind", "layers", "parameters"),
    [
        ("ntu60-cs-6", PlainIndRNN, 6, 1_430_588),
        ("ntu60-cv-res100", ResidualIndRNN, 99, 26_000_444),
        ("ntu60-cs-dense", DenseIndRNN, 40, 2_314_428),
        ("utd-res21", ResidualIndRNN, 21, None),
        ("utd-res99", ResidualIndRNN, 99, None),
    ],
)
def test_layers_and_parameters(name: str, kind: type, layers: int, parameters: int | None) -> None:
    with torch.device("meta"):
        model = recipe_of(name).model_config().build()
    assert isinstance(model.network, kind)
    assert isinstance(model.network, (PlainIndRNN, ResidualIndRNN, DenseIndRNN))
    recurrent = model.network.recurrent_layers
    assert len(recurrent) == layers
    assert [layer.bound.upper for layer in recurrent] == pytest.approx([5 ** (1 / 20)] * layers)
    if parameters is not None:
        assert sum(p.numel() for p in model.parameters()) == parameters


# ---- every recipe, on made-up recordings


def made_up(bodies: int, joints: int, classes: int) -> Recordings:
    """Two recordings for each class; subjects, cameras and setups as NTU numbers them."""
    source = np.random.default_rng(0)
    number = np.arange(2 * classes)
    lengths = source.integers(5, 40, len(number))
    frames = source.standard_normal((int(lengths.sum()), bodies, joints, 3)).astype(np.float32)
    fields = {"setup": number % 32 + 1, "camera": number % 3 + 1, "performer": number % 40 + 1}
    fields |= {"replication": number // classes + 1, "action": number % classes + 1}
    codes = zip(*fields.values(), strict=True)
    names = ["S{:03}C{:03}P{:03}R{:03}A{:03}".format(*code) for code in codes]
    return Recordings(frames, lengths, number % classes, number % 8 + 1, {"name": np.array(names), **fields})


@pytest.mark.parametrize("row", SKELETONS.values(), ids=SKELETONS)
def test_samples_are_what_its_network_reads(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(row.name)
    shape = {"ntu60": (2, 25, 60), "ntu12": (2, 25, 120)}.get(recipe.protocol[:5], (1, 20, 27))
    recordings = made_up(*shape)
    monkeypatch.setattr(SkeletonRecipe, "recordings", lambda self: recordings)
    task = recipe.task()
    head = recipe.model_config()
    assert head.outputs == shape[2]
    batch = task.batch(0, Shard())
    assert batch.inputs.shape[2] == head.network.input_size
    assert getattr(head.network, "sequence_length", 20) == recipe.sampling.frames
    assert bool(batch.inputs.isfinite().all())
    assert (task.seed, task.batch_size, task.samples) == (recipe.seed, recipe.batch_size, recipe.sampling)
    assert task.joints == (NTU if shape[1] == 25 else KINECT)
    kept = "validation" in task.data
    assert kept == (not recipe.protocol.startswith("utd"))
    if recipe.protocol == "utd":
        odd, even = ({1, 3, 5, 7}, {2, 4, 6, 8})
        assert set(recordings.subject[task.data["train"][0]]) == odd
        assert set(recordings.subject[task.data["test"][0]]) == even


# ---- what cannot be


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "ntu"}, "protocol must be one of 'own', 'utd', 'ntu60-cs'"),
        ({"protocol": "ntu60-cs", "test_subjects": (1,)}, "are not for ntu60-cs"),
        ({"test_subjects": (1, 2), "validation_subjects": (2,)}, r"got \[2\] in both"),
        ({"validation": 1.0}, "validation must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"label_smoothing": -0.1}, "label_smoothing must be"),
        ({"seed": 0.5}, "seed must be"),
        ({"split_seed": None}, "split_seed must be"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SkeletonRecipe(**options)


def test_a_set_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INDRNN_DATA", raising=False)
    with pytest.raises(ValueError, match="data must be given"):
        SkeletonRecipe().model_config()
    with pytest.raises(FileNotFoundError, match=r"UTD-MHAD is not at .*utd_mhad.npz"):
        replace(recipe_of("utd-6"), data_dir=tmp_path).task()


def test_a_set_that_changed_is_read_again(tmp_path: Path) -> None:
    def write(classes: int) -> None:
        given = made_up(1, 7, classes)
        path.unlink(missing_ok=True)
        np.savez(path, frames=given.frames, lengths=given.lengths, label=given.label, subject=given.subject)

    path = tmp_path / "set.npz"
    recipe = SkeletonRecipe(data=path, model=Plain(hidden_size=5, layers=1))
    write(3)
    assert recipe.model_config() == Head(Plain(21, 5, 1, sequence_length=20), 3)
    write(4)
    assert recipe.model_config().outputs == 4
