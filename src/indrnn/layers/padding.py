"""Padding masks: which steps of a padded batch are within their sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops import timeline


def valid_steps(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """(T, B), whether each step of x (T, B, ...) is within its sequence; None where all are."""
    if lengths is None:
        return None
    first = timeline().first_step
    return torch.arange(first, first + x.shape[0], device=x.device).unsqueeze(1) < lengths


def per_step(flags: Tensor, x: Tensor) -> Tensor:
    """(T, B) to (T, B, 1, ..., 1), to go beside x (T, B, ...)."""
    return flags.view(*flags.shape, *[1] * (x.dim() - 2))


def without_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (T, B, ...) with zeros past each sequence's end: a NaN there must not reach a weight's gradient."""
    valid = valid_steps(x, lengths)
    return x if valid is None else x.masked_fill(~per_step(valid, x), 0.0)
