"""Samples of recordings: made again from seed and step, averaged at test, divided by subjects."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from indrnn.networks import Head, Plain
from indrnn.tasks.skeleton.joints import KINECT, Joints, Sampling, names_of
from indrnn.tasks.skeleton.recordings import Recordings, read_npz
from indrnn.tasks.skeleton.task import SkeletonTask, features_of, split_by_subject
from indrnn.training import Measured, OneCycle, Shard, Training, generator, train
from indrnn.training.evaluation import measure

WHOLE = Shard()
SMALL = Joints(5, centre=1, bones=((0, 1), (1, 4)), lines=((0, 1), (3, 2)), up=(1, 0), across=(2, 3))
AUGMENTED = Sampling(
    7,
    4,
    11,
    ("coordinates", "differences", "distances"),
    align=True,
    resize=True,
    turn=30.0,
    tilt=5.0,
    scale=0.2,
    hide=0.2,
    swing=0.4,
)


def means(pieces: Iterator[Measured]) -> dict[str, float]:
    found = measure(pieces)
    assert found is not None
    return found


def recordings(count: int = 41, bodies: int = 1, joints: int = 5, classes: int = 3, least: int = 1) -> Recordings:
    """Bodies that sway in their class's own way; the second coordinate of joint 0 is the number of the frame.

    Subjects 1 to 4.
    """
    source = np.random.default_rng(0)
    lengths = source.integers(least, 60, count)
    lengths[0] = least
    label = np.arange(count) % classes
    frames = source.standard_normal((lengths.sum(), bodies, joints, 3)).astype(np.float32)
    at = np.concatenate([np.arange(length) / length for length in lengths])
    which = np.repeat(label, lengths)
    frames[:, 0, :, 0] += 3 * np.sin(np.pi * at * (which + 1))[:, None]
    frames[:, 0, 0, 1] = np.concatenate([np.arange(length) for length in lengths])
    if bodies > 1:
        frames[::3, 1] = 0
    return Recordings(frames, lengths.astype(np.int64), label, np.arange(count, dtype=np.int64) // classes % 4 + 1)


RECORDINGS = recordings()


def small(samples: Sampling | None = None, **options: Any) -> SkeletonTask:
    given: dict[str, Any] = {"joints": SMALL, "samples": samples or Sampling(7), "batch_size": 5}
    split = split_by_subject(RECORDINGS, test=(4,), validation=(3,))
    return SkeletonTask(RECORDINGS, *split, **given | options)


def a_model(task: SkeletonTask) -> nn.Module:
    torch.manual_seed(0)
    size = len(names_of(task.samples.features, task.joints, task.recordings.frames.shape[1]))
    return Head(Plain(hidden_size=6, layers=2).sized(size, task.samples.frames), 3).build().eval()


# ---- batches


def test_a_batch_is_one_frame_of_each_part_of_its_recordings() -> None:
    task = small(Sampling(7))
    chosen = task.data["train"][0]
    batch = task.batch(2, WHOLE)
    assert batch.inputs.shape == (7, 5, 15)
    assert batch.inputs.dtype == torch.float32
    order = task._items_of(2)
    assert torch.equal(batch.target, task.data["train"][1][order])
    for b, item in enumerate(chosen[order].tolist()):
        sequence, length = RECORDINGS.sequence(item), int(RECORDINGS.lengths[item])
        for t in range(7):
            x = batch.inputs[t, b].view(5, 3)
            number = round(float(x[0, 1] + sequence[0, 0, 1, 1]))
            assert t * length // 7 <= number < -(-(t + 1) * length // 7)
            np.testing.assert_allclose(x.numpy(), sequence[number, 0] - sequence[0, 0, 1], rtol=1e-6, atol=1e-5)


def test_samples_are_drawn_anew_in_each_step_and_again_from_seed_and_step() -> None:
    one, two, other = small(AUGMENTED), small(AUGMENTED), small(AUGMENTED, seed=1)
    for step in (3, 0, 11):
        assert torch.equal(one.batch(step, WHOLE).inputs, two.batch(step, WHOLE).inputs)
        assert torch.equal(one.batch(step, WHOLE).target, two.batch(step, WHOLE).target)
    whole = replace(AUGMENTED, shortest=None, longest=None)
    one, other = (small(whole, batch_size=100, seed=seed) for seed in (0, 1))

    def sums(task: SkeletonTask, step: int) -> Tensor:
        return task.batch(step, WHOLE).inputs.double().sum()

    assert len({float(sums(one, step)) for step in range(4)}) == 4  # of the same recordings
    assert sums(one, 0) != sums(other, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_pieces_side_by_side_are_the_batch(count: int) -> None:
    task = small(AUGMENTED)
    whole = task.batch(1, WHOLE)
    pieces = [task.batch(1, Shard(index, count)) for index in range(count)]
    kept = [piece for piece in pieces if piece.count]
    assert torch.equal(torch.cat([piece.inputs for piece in kept], dim=1), whole.inputs)
    assert torch.equal(torch.cat([piece.target for piece in kept]), whole.target)
    assert all(piece.total == 5 for piece in pieces)


def test_lengths_of_samples_are_drawn_for_each_batch() -> None:
    task = small(AUGMENTED)
    found = {task.batch(step, WHOLE).inputs.shape[0] for step in range(200)}
    assert found == set(range(4, 12))
    assert task.inputs(torch.arange(3), torch.rand(7, 3, dtype=torch.float64)).shape[0] == 7


def test_what_is_random_in_training_is_not_in_evaluations() -> None:
    plain = small(replace(AUGMENTED, shortest=None, longest=None, turn=0.0, tilt=0.0, scale=0.0, hide=0.0, swing=0))
    augmented = small(AUGMENTED)
    model = a_model(plain)
    for split in ("validation", "test"):
        means = (next(task.log_probabilities(model, split, WHOLE))[0] for task in (plain, augmented))
        assert torch.equal(*means)


def test_hidden_joints_are_at_the_origin_in_all_frames_and_the_others_as_they_were() -> None:
    features: tuple[Any, ...] = ("coordinates", "velocities")
    seen, all_of = small(Sampling(7, features=features, hide=0.3)), small(Sampling(7, features=features))
    shares = []
    for step in range(100):
        x, expected = (task.batch(step, WHOLE).inputs.view(7, -1, 2, 5, 3) for task in (seen, all_of))
        hidden = (x == 0).all(-1).all(0).all(1)  # (B, joints), in coordinates and velocities
        assert torch.equal(x, torch.where(hidden[None, :, None, :, None], torch.zeros(()), expected))
        shares.append(float(hidden.double().mean()))
    assert 0.27 < np.mean(shares) < 0.33  # 2,500 joints


def test_movement_is_larger_or_smaller_about_the_same_mean() -> None:
    swung, as_it_is = small(Sampling(7, swing=0.4)), small(Sampling(7))
    factors = []
    for step in range(100):
        x, expected = (task.batch(step, WHOLE).inputs for task in (swung, as_it_is))
        torch.testing.assert_close(x.mean(0), expected.mean(0), rtol=1e-4, atol=1e-5)
        factors.append((x - x.mean(0)).norm(dim=(0, 2)) / (expected - expected.mean(0)).norm(dim=(0, 2)))
    found = torch.cat(factors)  # of 500 samples, those of a single frame without movement among them
    found = found[found.isfinite()]
    assert 0.6 - 1e-3 < float(found.min()) < 0.62
    assert 1.38 < float(found.max()) < 1.4 + 1e-3


def test_a_second_body_that_is_not_there_stays_zero() -> None:
    two = recordings(bodies=2)
    samples = replace(AUGMENTED, features=("coordinates",), hide=0.0)
    task = SkeletonTask(two, np.arange(41), joints=SMALL, samples=samples, batch_size=41)
    x = task.batch(0, WHOLE).inputs.unflatten(-1, (2, 5, 3))
    missing = (x[:, :, 1] == 0).flatten(2).all(-1)
    assert 0.2 < float(missing.double().mean()) < 0.5
    assert torch.equal(missing, (x[:, :, 1] == 0).flatten(2).any(-1))


@pytest.mark.parametrize("bodies", [1, 2])
def test_recordings_are_placed_by_the_first_frame_that_the_main_body_is_in(bodies: int) -> None:
    """Frames before it comes are missing and stay zero; so are those of a recording without it."""
    source = recordings(bodies=bodies, least=9)
    frames = source.frames.copy() + np.float32(10)
    late, never = 3, 5
    begin, end = (source.starts[late], source.starts[late] + 4), (source.starts[never], source.starts[never + 1])
    for first, last in (begin, end):
        frames[first:last, 0] = 0
    if bodies == 2:
        frames[::3, 1] = 0
    moved = replace(source, frames=frames)
    samples = Sampling(9, features=("coordinates", "differences"))
    task = SkeletonTask(moved, np.arange(41), joints=SMALL, samples=samples, batch_size=41)
    where = torch.zeros(9, 41, dtype=torch.float64)
    x = task.inputs(torch.arange(41), where)[..., : bodies * 15].unflatten(-1, (bodies, 5, 3))
    standing = torch.from_numpy(frames[begin[1], 0, SMALL.centre])
    at = [int(k * source.lengths[late] / 9) for k in range(9)]
    for step, frame in enumerate(at):
        wanted = torch.from_numpy(frames[begin[0] + frame, 0]) - standing
        assert torch.equal(x[step, late, 0], wanted if frame >= 4 else torch.zeros(5, 3))
    assert not x[:, never, 0].any()
    changes = task.inputs(torch.arange(41), where)[..., bodies * 15 :].unflatten(-1, (bodies, 5, 3))
    assert not changes[: sum(frame < 4 for frame in at), late, 0].any()
    assert changes[:-1].abs().max() < 14  # none is a body that comes from nowhere


def test_frames_may_be_a_memory_map(tmp_path: Path) -> None:
    np.save(tmp_path / "frames.npy", RECORDINGS.frames)
    mapped = np.load(tmp_path / "frames.npy", mmap_mode="r")
    there = SkeletonTask(replace(RECORDINGS, frames=mapped), np.arange(41), joints=SMALL, samples=AUGMENTED)
    here = SkeletonTask(RECORDINGS, np.arange(41), joints=SMALL, samples=AUGMENTED)
    assert there.prefetch
    assert not here.prefetch
    assert torch.equal(there.batch(0, WHOLE).inputs, here.batch(0, WHOLE).inputs)
    assert there.describe() == here.describe()


def test_aligned_recordings_of_one_size_are_the_same_from_anywhere() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))
    turn *= np.linalg.det(turn)
    seen = (RECORDINGS.frames @ (1.7 * turn.T) + np.array([1, 2, 3])).astype(np.float32)
    options: dict[str, Any] = {"joints": SMALL, "samples": AUGMENTED}
    here = SkeletonTask(RECORDINGS, np.arange(41), **options).batch(0, WHOLE).inputs
    there = SkeletonTask(replace(RECORDINGS, frames=seen), np.arange(41), **options).batch(0, WHOLE).inputs
    torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-3)


# ---- evaluations


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_mean_of_draws_by_a_loop(split: str) -> None:
    task = small(Sampling(7, draws=4, validation_draws=3))
    model = a_model(task)
    draws = {"validation": 3, "test": 4}[split]
    right, losses = 0, []
    size = len(task.data[split][0])
    for number in range(-(-size // 5)):
        items = range(5 * number, min(5 * number + 5, size))
        for place, item in enumerate(items):
            recording, label = (part[item : item + 1] for part in task.data[split])
            found = []
            for draw in range(draws):
                source = generator(0, "draws", split, number, draw)
                where = torch.rand(7, len(items), generator=source, dtype=torch.float64)[:, place : place + 1]
                with torch.no_grad():
                    output = model(task.inputs(recording, where))[0]
                found.append(output.double().softmax(1).log())
            average = torch.stack(found).mean(0)
            right += int(average.argmax(1) == label)
            losses.append(-float(average[0, label]))
    with torch.no_grad():
        measured = means(task.test(model, WHOLE) if split == "test" else task.evaluate(model, 0, WHOLE))
    assert measured["accuracy"] == pytest.approx(right / size)
    assert measured["loss"] == pytest.approx(sum(losses) / size, rel=1e-5)


def test_draws_differ_and_are_the_same_in_every_evaluation() -> None:
    tasks = [small(Sampling(7, draws=draws)) for draws in (1, 1, 2)]
    model = a_model(tasks[0])
    with torch.no_grad():
        one, again, more = (next(task.log_probabilities(model, "test", WHOLE))[0] for task in tasks)
    assert torch.equal(one, again)
    assert not torch.allclose(one, more, rtol=1e-3)


@pytest.mark.parametrize("count", [2, 3])
def test_processes_together_measure_every_recording_once(count: int) -> None:
    task = small()
    model = a_model(task)
    with torch.no_grad():
        whole = means(task.test(model, WHOLE))
        pieces = [piece for index in range(count) for piece in task.test(model, Shard(index, count))]
    total = sum(items for _, items in pieces)
    assert total == len(task.data["test"][0])
    assert sum(float(found["accuracy"]) * items for found, items in pieces) / total == pytest.approx(whole["accuracy"])


def test_without_validation_the_lowest_loss_on_training_is_the_best() -> None:
    task = SkeletonTask(RECORDINGS, np.arange(30), None, np.arange(30, 41), joints=SMALL)
    assert (task.metric, task.higher_is_better) == ("training_loss", False)
    with torch.no_grad():
        assert means(task.evaluate(a_model(task), 0, WHOLE)).keys() == {"training_loss", "training_accuracy"}
        assert means(task.test(a_model(task), WHOLE)).keys() == {"loss", "accuracy"}


def test_smoothed_labels_are_for_training_alone() -> None:
    task, sharp = small(label_smoothing=0.3), small()
    model = a_model(task)
    batch = task.batch(0, WHOLE)
    with torch.no_grad():
        output = model(batch.inputs)[0]
        assert task.loss(model, batch) == pytest.approx(
            float(F.cross_entropy(output, batch.target, label_smoothing=0.3)), rel=1e-6
        )
        assert means(task.evaluate(model, 0, WHOLE)) == means(sharp.evaluate(model, 0, WHOLE))


# ---- the split


def test_the_split_by_subjects() -> None:
    rest, kept, test = split_by_subject(RECORDINGS, test=(2, 4), validation=(3,))
    assert set(RECORDINGS.subject[rest]) == {1}
    assert set(RECORDINGS.subject[kept]) == {3}
    assert set(RECORDINGS.subject[test]) == {2, 4}
    assert sorted([*rest, *kept, *test]) == list(range(41))


def test_a_share_is_kept_back_by_seed() -> None:
    rest, kept, test = split_by_subject(RECORDINGS, test=(4,), validation=0.25)
    left = int((RECORDINGS.subject != 4).sum())
    assert len(kept) == round(left / 4)
    assert sorted([*rest, *kept, *test]) == list(range(41))
    assert np.array_equal(kept, split_by_subject(RECORDINGS, test=(4,), validation=0.25)[1])
    assert not np.array_equal(kept, split_by_subject(RECORDINGS, test=(4,), validation=0.25, seed=1)[1])
    assert [len(part) for part in split_by_subject(RECORDINGS)] == [41, 0, 0]
    assert len(split_by_subject(RECORDINGS, validation=0.001)[1]) == 1


# ---- bad arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": (9,)}, "test_subjects must be of the subjects 1, 2, 3, 4, got 9"),
        ({"validation": (0,)}, "validation_subjects must be of the subjects 1, 2, 3, 4, got 0"),
        ({"test": (1, 2), "validation": (3, 4)}, "must leave recordings to train on"),
        ({"validation": 0.999}, "validation must leave recordings to train on, and 0.999 of"),
    ],
    ids=str,
)
def test_subjects_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_by_subject(RECORDINGS, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 0}, "frames must be at least 1, got 0"),
        ({"shortest": 3}, "shortest and longest must be given together"),
        ({"shortest": 5, "longest": 4}, "longest must be at least 5, got 4"),
        ({"hide": 1.0}, r"hide must be a number in \[0, 1\), got 1.0"),
        ({"swing": -0.1}, r"swing must be a number in \[0, 1\), got -0.1"),
        ({"features": ()}, "features must be some of coordinates, relative, differences, velocities, bones, distances"),
        ({"features": ("speed",)}, "features must be some of"),
        ({"features": ("bones", "bones")}, "features must be named once each"),
        ({"turn": 181}, "turn must be degrees from 0 to 180, got 181"),
        ({"tilt": math.nan}, "tilt must be degrees"),
        ({"scale": 1.0}, r"scale must be a number in \[0, 1\), got 1.0"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"validation_draws": 1.5}, "validation_draws must be an integer, got float"),
    ],
    ids=str,
)
def test_samples_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Sampling(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joints": KINECT}, r"recordings must have frames of \(frames, bodies, 20, 3\), got \(\d+, 1, 5, 3\)"),
        ({"train": np.arange(0)}, "train must hold at least one recording"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"label_smoothing": 1}, "label_smoothing must be"),
        ({"seed": "x"}, "seed must be"),
        ({"joints": Joints(5), "samples": Sampling(features=("distances",))}, "distances need the lines"),
        ({"joints": Joints(5), "samples": Sampling(features=("bones",))}, "features: bones need the bones of the"),
        ({"joints": Joints(5), "samples": Sampling(align=True)}, "align needs up and across of the joints"),
        ({"joints": Joints(5), "samples": Sampling(resize=True)}, "resize needs the bones of the joints"),
    ],
    ids=["joints", "nothing", "batch", "smoothing", "seed", "lines", "bones", "directions", "sizes"],
)
def test_tasks_that_cannot_be(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"train": np.arange(9), "joints": SMALL}
    with pytest.raises(ValueError, match=message):
        SkeletonTask(RECORDINGS, **given | options)


# ---- runs


def a_run(task: SkeletonTask, out: Path, steps: int, every: int = 9, **options: Any) -> Any:
    torch.manual_seed(0)
    size = len(names_of(task.samples.features, SMALL, 1))
    model = Head(Plain(hidden_size=12, layers=2, dropout=0.1).sized(size, 7), 3).build()
    training = Training(
        steps=steps, lr=1e-2, schedule=OneCycle(), evaluate_every=every, threads=1, tensorboard=False, curve=False
    )
    return train(model, task, training, out=out, **options)


def test_a_resumed_run_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = a_run(small(AUGMENTED), tmp_path / "straight", 24)
    task, made = small(AUGMENTED), small(AUGMENTED).batch

    def interrupted(step: int, shard: Shard) -> Any:
        if step == 13:
            raise KeyboardInterrupt
        return made(step, shard)

    monkeypatch.setattr(task, "batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a_run(task, tmp_path / "resumed", 24)
    resumed = a_run(small(AUGMENTED), tmp_path / "resumed", 24, resume=True)
    assert resumed.test == straight.test
    one, two = (folder / "weights.safetensors" for folder in (tmp_path / "straight", tmp_path / "resumed"))
    assert one.read_bytes() == two.read_bytes()


def test_a_small_network_learns_ways_to_sway(tmp_path: Path) -> None:
    swaying = recordings(120, least=10)
    split = split_by_subject(swaying, test=(4,), validation=(3,))
    samples = Sampling(7, 4, 11, ("coordinates", "differences"), turn=10.0, scale=0.1)
    task = SkeletonTask(swaying, *split, joints=SMALL, samples=samples, batch_size=15)
    assert a_run(task, tmp_path / "run", 100, every=50).test["accuracy"] > 0.9  # a third by guessing


def real() -> Path | None:
    folder = os.environ.get("INDRNN_DATA")
    path = Path(folder) / "skeleton" / "utd_mhad.npz" if folder else None
    return path if path is not None and path.is_file() else None


@pytest.mark.skipif(real() is None, reason="INDRNN_DATA names no folder with skeleton/utd_mhad.npz in it")
def test_utd_mhad() -> None:
    path = real()
    assert path is not None
    read = read_npz(path, label_field="action")
    assert (read.frames.shape[1:], len(read.lengths)) == ((1, 20, 3), 861)
    rest, kept, test = split_by_subject(read, test=(2, 4, 6, 8))
    assert (len(rest), len(kept), len(test)) == (431, 0, 430)
    # The head is above the hips and those above the feet; the left is at smaller x as the body faces the camera
    first = read.frames[read.starts, 0]
    height = first[..., 1].mean(0)
    assert height[0] > height[1] > height[2] > height[3] > height[13] > height[15]
    across = first[..., 0].mean(0)
    for left, right in zip((4, 5, 6, 7, 12, 13, 14, 15), (8, 9, 10, 11, 16, 17, 18, 19), strict=True):
        assert across[left] < across[right]
    lengths = np.array([np.linalg.norm(first[:, i] - first[:, j], axis=1).mean() for i, j in KINECT.bones])
    assert lengths.min() > 0.05
    assert lengths.max() < 0.6


def test_items_are_taken_by_their_middle_frames() -> None:
    task = small(Sampling(7, features=("differences", "coordinates")))
    items = torch.tensor([3, 0])
    batch = task.batch_of("test", items)
    assert (batch.count, batch.total, batch.inputs.shape) == (2, 2, (7, 2, 30))
    starts = np.concatenate([[0], RECORDINGS.lengths.cumsum()])
    for column, item in enumerate(items.tolist()):
        number = int(task.data["test"][0][item])
        length = int(RECORDINGS.lengths[number])
        own = RECORDINGS.frames[starts[number] : starts[number + 1], 0]
        frames = own[[min(int((t + 0.5) * length / 7), length - 1) for t in range(7)]]
        placed = torch.from_numpy(frames - own[0, SMALL.centre])
        torch.testing.assert_close(batch.inputs[:, column, 15:], placed.flatten(1))
        assert batch.target[column] == RECORDINGS.label[number]
    assert task.size("test") == len(task.data["test"][0])
    assert task.size("nothing") == 0


def test_every_feature_has_a_name() -> None:
    for features in (("coordinates",), ("differences", "bones", "distances"), ("relative", "coordinates")):
        for bodies in (1, 2):
            names = names_of(features, SMALL, bodies)
            x = features_of(torch.randn(2, 3, bodies, 5, 3), SMALL, features)
            assert len(names) == len(set(names)) == x.shape[-1]
