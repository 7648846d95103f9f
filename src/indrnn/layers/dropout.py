"""Dropout shared over time: one mask for all steps of a sequence, or for all occurrences of a word."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_probability
from ..ops.split import TimeSlice


def shared_dropout(x: Tensor, p: float, training: bool, time_slice: TimeSlice | None = None) -> Tensor:
    """Dropout with one mask for all time steps of (T, B, ..., N)."""
    mask = dropout_mask(x, p, training, time_slice)
    return x if mask is None else x * mask


def dropout_mask(x: Tensor, p: float, training: bool, time_slice: TimeSlice | None = None) -> Tensor | None:
    """The mask, (1, B, ..., N), of 0 and 1/(1−p), the same on all processes; None if nothing is dropped."""
    if not training or p == 0.0:
        return None
    mask = F.dropout(torch.ones((1, *x.shape[1:]), dtype=x.dtype, device=x.device), p)
    return mask if time_slice is None else time_slice.same_on_all(mask)


def embedding_dropout(weight: Tensor, p: float, training: bool) -> Tensor:
    """Drop whole rows of an embedding matrix (words, rows), so that a word is dropped wherever it occurs."""
    if not training or p == 0.0:
        return weight
    return weight * F.dropout(torch.ones_like(weight[:, :1]), p)


class SharedDropout(nn.Module):
    """Dropout with one mask for all time steps of (T, B, ..., N), or (B, T, ..., N) with `batch_first`.

    Args:
        p: the probability that a neuron is dropped.
        batch_first: whether the batch comes before time.
    """

    def __init__(self, p: float = 0.5, batch_first: bool = False) -> None:
        super().__init__()
        check_probability("p", p)
        self.p = float(p)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout, in training."""
        if self.batch_first:
            return shared_dropout(x.transpose(0, 1), self.p, self.training).transpose(0, 1)
        return shared_dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """The probability and the layout."""
        return f"p={self.p}" + (", batch_first=True" if self.batch_first else "")
