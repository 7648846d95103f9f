"""What the explorer's page is given to read: digits, sequences to add, or recorded sequences."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...tasks.adding import adding_batch
from ...tasks.files import is_here
from ...tasks.pixels import CLASSES, MNIST, SIDE, Pixels, read_mnist
from ...tokeniser import NAMES, Tokeniser
from ...training.task import generator

_EACH = 4  # images of every digit
_SHOWN = 20  # sequences of other kinds
_NUMBERS = 200_000  # of all recorded sequences together: 2 MB as text


@dataclass
class Samples:
    """Sequences for a page, and how a person gives others."""

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
    """Digits to draw, and images that were kept back from training, where MNIST is at hand; the options are a recipe's.

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
    batch = task._take("test", torch.arange(len(kept)), len(kept), len(kept))
    samples.sequences = list(batch.inputs.unbind(1))
    for image, label in zip(*found, strict=True):
        content = base64.b64encode(image.numpy().tobytes()).decode()
        given["samples"].append({"label": str(int(label)), "image": content})
    return samples


def adding(length: int, seed: int = 0) -> Samples:
    """Numbers to add, and some sequences that training has not seen."""
    x, _ = adding_batch(length, _fit(length, 1), generator(seed, "explorer"))
    recorded = []
    for number, sequence in enumerate(x.unbind(1)):
        marks = sequence[:, 1].nonzero().flatten().tolist()
        values = [round(value, 6) for value in sequence[:, 0].tolist()]
        recorded.append({"label": f"sequence {number + 1}", "values": values, "marks": marks})
    return Samples("adding", length, {"length": length, "samples": recorded}, list(x.unbind(1)))


def text(tokeniser: Tokeniser, length: int = 50) -> Samples:
    """Text to type, by the tokens that a language model was trained on; `length` is that of its windows."""
    tokens = list(tokeniser.tokens) if tokeniser.tokens else [_byte(number) for number in range(tokeniser.classes)]
    marks = {" ": "␣", "\n": "⏎", "\t": "⇥", "<eos>": "⏎"}
    names = ["␣" if token == tokeniser.space else marks.get(token, token) for token in tokens]
    given = {
        "unit": tokeniser.unit,
        "tokens": tokens,
        "names": names,
        "space": tokeniser.space,
        "called": NAMES[tokeniser.unit],
        "start": "the company said it expects to report a loss for the third quarter",
        "samples": [],
    }
    return Samples("text", length, given, classes=names)


def _byte(number: int) -> str:
    return chr(number) if 32 <= number < 127 or number in (9, 10) else f"\\x{number:02x}"


def recorded(
    sequences: Sequence[Tensor],
    labels: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    note: str = "",
) -> Samples:
    """Sequences of any data, (T, features) each, with what they are called; as many as fit into a page are taken.

    Args:
        sequences: at least one.
        labels: what each is called; by number if None.
        classes: names of the model's classes, where it has some.
        note: what the page says of them.
    """
    if not sequences:
        raise ValueError("sequences must be at least one, got none")
    if labels is not None and len(labels) != len(sequences):
        raise ValueError(f"labels must be as many as sequences, {len(sequences)}, got {len(labels)}")
    for number, sequence in enumerate(sequences):
        if sequence.dim() != 2 or not sequence.numel():
            raise ValueError(f"sequences must be (T, features), got {tuple(sequence.shape)} for number {number}")
    names = list(labels) if labels is not None else [f"sequence {number + 1}" for number in range(len(sequences))]
    taken = [sequence.detach().cpu().float() for sequence in sequences[: _fit(*sequences[0].shape)]]
    listed = [
        {"label": name, "values": [round(value, 6) for value in sequence.flatten().tolist()]}
        for name, sequence in zip(names, taken, strict=False)
    ]
    given = {"features": taken[0].shape[1], "samples": listed, "note": note}
    longest = max(len(sequence) for sequence in taken)
    return Samples("recorded", longest, given, taken, None if classes is None else list(classes))


def _fit(length: int, features: int) -> int:
    """How many sequences of this size a page holds."""
    return max(1, min(_SHOWN, _NUMBERS // (length * features)))
