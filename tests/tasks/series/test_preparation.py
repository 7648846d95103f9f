"""Preparation: statistics of training, masks, constant channels, differences of time, and series as a task."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from indrnn.saving import from_json, to_json
from indrnn.tasks.series.defaults import Augmentation
from indrnn.tasks.series.preparation import Preparation, rms_depends_on_class
from indrnn.tasks.series.task import Part, SeriesTask, collate
from indrnn.training import Shard


def _saved_and_restored(preparation: Preparation) -> Preparation:
    restored: Preparation = from_json(json.loads(json.dumps(to_json(preparation))), {"Preparation": Preparation})
    return restored


def test_standardised_by_statistics_of_training() -> None:
    draw = np.random.default_rng(0)
    series = [(5 + 3 * draw.normal(size=(2, n))).astype(np.float32) for n in (7, 63, 20)]
    found = Preparation.fitted(series)
    every = np.concatenate(series, 1).astype(np.float64)
    np.testing.assert_allclose(found.mean, every.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.scale, every.std(1), rtol=1e-6)
    x = torch.cat([found(each) for each in series]).double()
    torch.testing.assert_close(x.mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    assert _saved_and_restored(found) == found


def test_missing_values_get_a_mask_and_constant_channels_stay_finite() -> None:
    series = [np.array([[1.0, np.nan, 3.0], [4.0, 4.0, 4.0]], dtype=np.float32)]
    found = Preparation.fitted(series)
    assert (found.masked, found.input_size) == ([0], 3)
    assert found(series[0]).tolist() == [[-1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]


def test_times_become_differences() -> None:
    series = [np.array([[0.0, 1.0, 4.0], [1.0, 2.0, 3.0]], dtype=np.float32)]
    found = Preparation.fitted(series, time_channel=0)
    x = found(series[0])[:, 0].double().numpy() * found.scale[0] + found.mean[0]
    np.testing.assert_allclose(x, [0.0, 1.0, 3.0], atol=1e-6)
    with pytest.raises(ValueError, match="never fall"):
        Preparation.fitted([series[0][:, ::-1]], time_channel=0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Preparation.fitted(series, time_channel=5)


def test_raw_signals_are_brought_to_one_level() -> None:
    """By an independent loop over steps; a signal a hundred times as loud is read alike; times are left alone."""
    draw = np.random.default_rng(0)
    one = np.stack([draw.normal(size=900), np.arange(900.0)]).astype(np.float32)
    one[0, 7] = np.nan
    both = [one, one * np.array([[3], [1]], dtype=np.float32)]
    found = replace(Preparation.fitted(both, time_channel=1), normalise_rms=True)
    x, plain = found(one).numpy(), replace(found, normalise_rms=False)(one).numpy()
    for step in (0, 6, 7, 8, 500):
        until = [value for at, value in enumerate(plain[: step + 1, 0]) if at != 7]
        level = math.sqrt((sum(float(value) ** 2 for value in until) + 5) / (len(until) + 5))
        assert x[step, 0] == pytest.approx(plain[step, 0] / level, abs=1e-5)
    np.testing.assert_array_equal(x[:, 1:], plain[:, 1:])
    loud = found(one * np.array([[100], [1]], dtype=np.float32)).numpy()
    assert loud[300:, 0].std() == pytest.approx(x[300:, 0].std(), rel=0.05)
    assert _saved_and_restored(found) == found
    silence = np.zeros((2, 50), dtype=np.float32)
    assert found(silence).isfinite().all()
    assert torch.equal(found(one[:, 449:], found.running_power(one[:, :449]))[2:], found(one)[451:])


def test_whether_rms_depends_on_class_classes_apart() -> None:
    draw = np.random.default_rng(0)
    classes = np.arange(60) % 3
    level = draw.uniform(0.1, 3, 60)
    alike = [level[i] * draw.normal(size=(1, 200)) for i in range(60)]
    assert not rms_depends_on_class(alike, classes)
    assert rms_depends_on_class([one * (1 + 9 * (classes[i] == 2)) for i, one in enumerate(alike)], classes)
    quiet = [np.full((2, 5), 3.0)] * 60  # and none at all
    assert not rms_depends_on_class(quiet, classes)
    timed = [np.concatenate([one, np.arange(200.0)[None] * (1 + classes[i])]) for i, one in enumerate(alike)]
    assert not rms_depends_on_class(timed, classes, 1)
    assert rms_depends_on_class(timed, classes)


NONE = Augmentation()


def _task(augmentation: Augmentation = NONE) -> SeriesTask:
    x = [torch.full((n, 1), float(n)) for n in (3, 9, 4, 8, 5, 7, 6)]
    part = Part(x, [torch.tensor(i) for i in range(7)], torch.arange(1.0, 8.0))
    return SeriesTask(part, kind="classes", batch_size=3, augmentation=augmentation, seed=1)


def test_batches_are_padded_and_an_epoch_has_each_series_once_at_most() -> None:
    task = _task()
    seen = []
    for step in range(task.steps_per_epoch):
        batch = task.batch(step, Shard())
        assert batch.lengths is not None
        assert batch.weights is not None
        assert torch.equal(batch.weights, batch.target + 1.0)
        for row, length in enumerate(batch.lengths.tolist()):
            assert batch.inputs[:length, row].unique().tolist() == [length]
            assert not batch.inputs[length:, row].any()
        seen += batch.target.tolist()
    assert len(set(seen)) == len(seen) == 6


def test_all_of_a_batch_goes_to_a_device() -> None:
    batch = _task().batch(0, Shard()).to(torch.device("meta"))
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 4


def test_pieces_of_a_batch_are_the_same_in_any_division() -> None:
    task = _task(Augmentation(noise=0.1, scale=0.1, speed=0.2))
    whole = task.batch(1, Shard())
    pieces = [task.batch(1, Shard(i, 2)) for i in range(2)]
    assert torch.equal(torch.cat([piece.inputs for piece in pieces], 1), whole.inputs)
    assert sum(piece.count for piece in pieces) == whole.total == 3


def test_series_at_another_speed_have_the_same_course() -> None:
    """A line stays a line from its first to its last value, in another number of steps."""
    lengths = (30, 50, 40)
    part = Part([torch.linspace(1.0, 2.0, n).unsqueeze(1) for n in lengths], [torch.tensor(n) for n in lengths])
    task = SeriesTask(part, kind="classes", batch_size=3, augmentation=Augmentation(speed=0.2), seed=0)
    changed = 0
    for step in range(4):
        batch = task.batch(step, Shard())
        assert batch.lengths is not None
        for row, (before, after) in enumerate(zip(batch.target.tolist(), batch.lengths.tolist(), strict=True)):
            assert math.exp(-0.2) * before - 0.5 <= after <= math.exp(0.2) * before + 0.5
            changed += before != after
            torch.testing.assert_close(batch.inputs[:after, row, 0], torch.linspace(1.0, 2.0, after))
            assert not batch.inputs[after:, row].any()
    assert changed > 6


def test_masks_stay_masks_at_another_speed() -> None:
    mask = (torch.arange(40) % 3 > 0).float()
    part = Part([torch.stack([mask, mask], 1)] * 4, [torch.tensor(0)] * 4)
    task = SeriesTask(part, kind="classes", batch_size=4, augmentation=Augmentation(speed=0.2), masks=1, seed=0)
    inputs = task.batch(0, Shard()).inputs
    assert inputs[..., 0].unique().numel() > 2
    assert inputs[..., 1].unique().tolist() == [0.0, 1.0]


def test_series_are_taken_as_they_are() -> None:
    task = _task(Augmentation(noise=0.5))
    batch = collate(task.train, [1, 0])
    for column, item in enumerate((1, 0)):
        x = task.train.x[item]
        assert torch.equal(batch.inputs[: len(x), column], x)
        assert torch.equal(batch.target[column], task.train.y[item])
