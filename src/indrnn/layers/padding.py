"""Padding and documents: which steps are within their sequences, and which are the last of a document."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

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
