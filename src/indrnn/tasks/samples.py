"""Samples for the explorer's page from recorded sequences of any data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .recipe import Samples

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 20
"""Most sequences of a page."""
_NUMBERS = 200_000  # of all recorded sequences together: 2 MB as text


def fit_into_page(length: int, features: int) -> int:
    """Number of sequences of this size that fit into a page."""
    return max(1, min(SHOWN, _NUMBERS // (length * features)))


@dataclass(frozen=True)
class Body:
    """Skeletons in the first features of a sequence: x, y and z of each joint, body after body."""

    joints: int
    bones: tuple[tuple[int, int], ...]
    bodies: int = 1


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
    for name, values in (("labels", labels), ("right", right)):
        if values is not None and len(values) != len(sequences):
            raise ValueError(f"{name} must be as many as sequences, {len(sequences)}, got {len(values)}")
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
    count = fit_into_page(max(map(len, sequences)), features)
    shown = [sequence.detach().cpu().float() for sequence in sequences[:count]]
    samples: list[dict[str, Any]] = []
    for number, sequence in enumerate(shown):
        values = [round(value, 6) for value in sequence.flatten().tolist()]
        sample = {"label": labels[number] if labels else f"sequence {number + 1}", "values": values}
        samples.append(sample | ({"right": right[number]} if right else {}))
    page = {
        "features": features,
        "samples": samples,
        "note": note,
        "channels": None if channels is None else [*channels],
        "body": None if body is None else {**vars(body), "bones": [[*bone] for bone in body.bones]},
    }
    return Samples("recorded", max(map(len, shown)), page, shown, None if classes is None else [*classes])
