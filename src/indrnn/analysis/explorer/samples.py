"""Inputs for the explorer's page: digits, sequences to add, text, or recorded sequences."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import is_here
from ...networks.tokeniser import NAMES, Tokeniser
from ...tasks.adding import adding_batch
from ...tasks.pixels import CLASSES, MNIST, SIDE, Pixels, read_mnist
from ...tasks.skeleton.features import names_of
from ...tasks.skeleton.task import SkeletonTask
from ...training.task import generator

_EACH = 4  # images of every digit
_SHOWN = 20  # sequences of other kinds
_NUMBERS = 200_000  # of all recorded sequences together: 2 MB as text


@dataclass
class Samples:
    """Sequences for a page, and how a user enters others."""

    kind: str
    """Of `Inputs` in inputs.js."""
    length: int
    """Steps of a sequence, which memory is compared with."""
    input: dict[str, Any]
    """For that kind's code; "samples" are the recorded ones, with a "label" each."""
    sequences: list[Tensor] = field(default_factory=list)
    """The recorded ones as the model reads them, (T, features) each: what neurons do in them is measured."""
    classes: list[str] | None = None
    """Names of the classes; numbers if None."""
    several: bool = False
    """Whether the classes are labels of which several may hold at once."""
    note: str | None = None
    """What a user should be told."""


def pixels(
    *,
    permuted: bool = False,
    shrink: int = 1,
    validation: int = 3000,
    split_seed: int = 0,
    permutation_seed: int = 0,
    data_dir: Path | None = None,
) -> Samples:
    """Digits to draw, and images held out from training, if MNIST is available; the options are a recipe's.

    Nothing is downloaded.
    """
    steps = (SIDE // shrink) ** 2
    blank = torch.zeros(2, SIDE, SIDE, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)
    options: dict[str, Any] = {"permuted": permuted, "shrink": shrink, "permutation_seed": permutation_seed}
    order = Pixels(blank, blank, validation=1, **options).order_of_pixels
    given: dict[str, Any] = {"shrink": shrink, "order": None if order is None else order.tolist(), "samples": []}
    names = [str(digit) for digit in range(CLASSES)]
    samples = Samples("pixels", steps, given, classes=names)
    if not is_here(MNIST, data_dir):
        samples.note = "MNIST is not here, so that the page has drawn digits in the place of images (--data-dir)"
        return samples
    images, labels, *_ = read_mnist(data_dir)
    kept = torch.randperm(len(images), generator=generator(split_seed, "split"))[:validation]
    of_digit = [kept[labels[kept] == digit][:_EACH] for digit in range(CLASSES)]
    kept = torch.tensor([int(items[i]) for i in range(_EACH) for items in of_digit if i < len(items)], dtype=torch.long)
    if not len(kept):
        return samples
    found = images[kept], labels[kept]
    task = Pixels((images[:2], labels[:2]), found, validation=1, **options)
    # As the test batch of a task: scaled and ordered as in training
    batch = task.take("test", torch.arange(len(kept)))
    samples.sequences = list(batch.inputs.unbind(1))
    for image, label in zip(*found, strict=True):
        content = base64.b64encode(image.numpy().tobytes()).decode()
        given["samples"].append({"label": str(int(label)), "image": content})
    return samples


def adding(length: int, seed: int = 0) -> Samples:
    """Numbers to add, and some sequences not used in training."""
    x, _ = adding_batch(length, _fit(length, 1), generator(seed, "explorer"))
    recorded = []
    for number, sequence in enumerate(x.unbind(1)):
        marks = sequence[:, 1].nonzero().flatten().tolist()
        values = [round(value, 6) for value in sequence[:, 0].tolist()]
        recorded.append({"label": f"sequence {number + 1}", "values": values, "marks": marks})
    return Samples("adding", length, {"length": length, "samples": recorded}, list(x.unbind(1)))


def text(tokeniser: Tokeniser, length: int = 50) -> Samples:
    """Text to type, in the tokens of a language model; `length` is that of its training windows."""
    tokens = list(tokeniser.tokens) if tokeniser.tokens else [_byte(number) for number in range(tokeniser.classes)]
    marks = {" ": "␣", "\n": "⏎", "\t": "⇥", "<eos>": "⏎"}
    names = ["␣" if token == tokeniser.space else marks.get(token, token) for token in tokens]
    given = {
        "unit": tokeniser.unit,
        "tokens": tokens,
        "names": names,
        "space": tokeniser.space,
        "called": NAMES[tokeniser.unit],
        "start": "it was late and the rain had not stopped",
        "samples": [],
    }
    return Samples("text", length, given, classes=names)


@dataclass(frozen=True)
class Body:
    """Skeletons in the first features of a sequence: x, y and z of each joint, body after body."""

    joints: int
    bones: tuple[tuple[int, int], ...]
    bodies: int = 1


def skeletons(task: SkeletonTask, actions: Sequence[str]) -> Samples:
    """Held-out recordings of a skeleton task, or training recordings if it has none: of one action after the other.

    Args:
        task: the recordings.
        actions: names of the actions that the model tells apart.
    """
    split = next(name for name in ("validation", "test", "train") if task.size(name))
    _, labels = task.data[split]
    of_action = [(labels == label).nonzero().flatten().tolist() for label in labels.unique().tolist()]
    items = [own[round_] for round_ in range(_SHOWN) for own in of_action if round_ < len(own)][:_SHOWN]
    batch = task.take(split, torch.tensor(items))
    right = [actions[label] for label in batch.target.tolist()]
    body = None
    if task.samples.features[0] == "coordinates" and task.joints.bones:
        body = Body(task.joints.count, task.joints.bones, task.recordings.frames.shape[1])
    names = [f"recording {number + 1}: {action}" for number, action in enumerate(right)]
    note = f"Samples of {task.samples.frames} frames of recordings for {split}."
    channels = names_of(task.samples.features, task.joints, task.recordings.frames.shape[1])
    return recorded(list(batch.inputs.unbind(1)), names, actions, note, right=right, channels=channels, body=body)


def _byte(number: int) -> str:
    return chr(number) if 32 <= number < 127 or number in (9, 10) else f"\\x{number:02x}"


def recorded(
    sequences: Sequence[Tensor],
    labels: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    note: str = "",
    *,
    right: Sequence[str | float] | None = None,
    channels: Sequence[str] | None = None,
    body: Body | None = None,
) -> Samples:
    """Sequences of any data, (T, features) each, with their names; as many as fit into a page are taken.

    Args:
        sequences: at least one.
        labels: name of each sequence; None to number them.
        classes: names of the model's classes, if it has any.
        note: a remark shown on the page.
        right: the target of each, which the page shows next to the prediction: a class's name, or a number.
        channels: names of the features.
        body: the skeleton whose joint coordinates the features begin with, which the page draws.
    """
    if not sequences:
        raise ValueError("sequences must be at least one, got none")
    if labels is not None and len(labels) != len(sequences):
        raise ValueError(f"labels must be as many as sequences, {len(sequences)}, got {len(labels)}")
    if right is not None and len(right) != len(sequences):
        raise ValueError(f"right must be as many as sequences, {len(sequences)}, got {len(right)}")
    features = sequences[0].shape[-1]
    for number, sequence in enumerate(sequences):
        if sequence.dim() != 2 or not sequence.numel():
            raise ValueError(f"sequences must be (T, features), got {tuple(sequence.shape)} for number {number}")
        if not sequence.isfinite().all():
            raise ValueError(f"sequences must hold finite numbers, got others in number {number}")
        if sequence.shape[1] != features:
            raise ValueError(
                f"sequences must have {features} features as the first, got {sequence.shape[1]} in {number}"
            )
    if channels is not None and len(channels) != features:
        raise ValueError(f"channels must be as many as features, {features}, got {len(channels)}")
    if body is not None and 3 * body.joints * body.bodies > features:
        raise ValueError(f"body must have at most {features // 3} joints for {features} features, got {body.joints}")
    names = list(labels) if labels is not None else [f"sequence {number + 1}" for number in range(len(sequences))]
    longest = max(len(sequence) for sequence in sequences)
    taken = [sequence.detach().cpu().float() for sequence in sequences[: _fit(longest, features)]]
    listed: list[dict[str, Any]] = [
        {"label": name, "values": [round(value, 6) for value in sequence.flatten().tolist()]}
        for name, sequence in zip(names, taken, strict=False)
    ]
    for item, answer in zip(listed, right or [], strict=False):
        item["right"] = answer
    given = {
        "features": features,
        "samples": listed,
        "note": note,
        "channels": None if channels is None else [*channels],
    }
    given["body"] = None if body is None else {**vars(body), "bones": [list(bone) for bone in body.bones]}
    longest = max(len(sequence) for sequence in taken)
    return Samples("recorded", longest, given, taken, None if classes is None else list(classes))


def _fit(length: int, features: int) -> int:
    """How many sequences of this size fit into a page."""
    return max(1, min(_SHOWN, _NUMBERS // (length * features)))
