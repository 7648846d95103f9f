"""Masks over time: steps within their sequences, the last steps of documents, dropout shared by all steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..checks import check_probability
from ..ops.split import TimeSlice


def valid_steps(x: Tensor, lengths: Tensor | None, time_slice: TimeSlice | None = None) -> Tensor | None:
    """(T, B), whether each step of x (T, B, ...) is within its sequence; None if all are."""
    if lengths is None:
        return None
    first = 0 if time_slice is None else time_slice.first_step
    return torch.arange(first, first + x.shape[0], device=x.device).unsqueeze(1) < lengths


def per_step(flags: Tensor, x: Tensor) -> Tensor:
    """(T, B) to (T, B, 1, ..., 1), to broadcast with x (T, B, ...)."""
    return flags.view(*flags.shape, *[1] * (x.dim() - 2))


def without_padding(x: Tensor, lengths: Tensor | None, time_slice: TimeSlice | None = None) -> Tensor:
    """Return x (T, B, ...) with zeros past each sequence's end: a NaN there must not reach a weight's gradient."""
    valid = valid_steps(x, lengths, time_slice)
    return x if valid is None else x.masked_fill(~per_step(valid, x), 0.0)


def last_steps(starts: Tensor, lengths: Tensor | None) -> Tensor:
    """From the first steps of documents, (T, B), the last steps: where the reverse direction enters a document."""
    last = torch.cat([starts[1:], torch.zeros_like(starts[:1])])
    if lengths is not None:  # a mark in the padding is no document
        step = torch.arange(1, starts.shape[0] + 1, device=starts.device)
        last = last & (step.unsqueeze(1) < lengths)
    return last


def unpack(packed: PackedSequence) -> tuple[Tensor, Tensor, Callable[[Tensor], PackedSequence]]:
    """A packed batch as (T, B, ...), longest first and zeros in the padding; its lengths; and a function to pack it."""
    data, batch_sizes, order, back = packed
    if data.dim() != 2:
        raise ValueError(f"input's data must have two dimensions in a PackedSequence, got {tuple(data.shape)}")
    T, B = len(batch_sizes), int(batch_sizes[0])
    # Step t of the packed data is the first batch_sizes[t] sequences.
    valid = torch.arange(B, device=batch_sizes.device) < batch_sizes.unsqueeze(1)
    lengths, valid = valid.sum(0).to(data.device), valid.to(data.device)
    padded = data.new_zeros(T, B, data.shape[-1]).masked_scatter(valid.unsqueeze(-1), data)
    return padded, lengths, lambda output: PackedSequence(output[valid], batch_sizes, order, back)


# ---- dropout


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
    """Dropout of probability p, one mask for all time steps of (T, B, ..., N); (B, T, ..., N) with `batch_first`."""

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
