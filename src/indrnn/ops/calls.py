"""Argument tuples of the passes, as every backend takes them: forward, backward, and both with batch norm.

Shapes: x, h, y and their gradients (T, B, ..., N); u, bias, weight, shift, mean, var (N,); h_0, h_last (B, ..., N);
mask (1, B, ..., N); lengths (B,), int64 or int32; resets (T, B), bool. None means absent.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Forward(NamedTuple):
    """h_t = σ(x_t + b + u ⊙ h_{t−1}); the pass returns h and h_last."""

    x: Tensor
    u: Tensor
    bias: Tensor | None = None
    h_0: Tensor | None = None
    lengths: Tensor | None = None
    resets: Tensor | None = None
    activation: str = "relu"
    reverse: bool = False


class Backward(NamedTuple):
    """From the gradients of h and h_last; the pass returns those of x, u, bias and h_0."""

    grad_h: Tensor | None
    grad_h_last: Tensor | None
    h: Tensor
    u: Tensor
    h_0: Tensor | None = None
    lengths: Tensor | None = None
    resets: Tensor | None = None
    activation: str = "relu"
    reverse: bool = False


class NormForward(NamedTuple):
    """The recurrence with batch norm before or after it, and y = mask ⊙ that; the pass returns a `NormResult`."""

    x: Tensor
    u: Tensor
    bias: Tensor | None
    h_0: Tensor | None
    weight: Tensor
    shift: Tensor
    mask: Tensor | None
    lengths: Tensor | None
    resets: Tensor | None
    eps: float
    activation: str
    place: str

    @property
    def recurrence(self) -> Forward:
        """The recurrence in it, over x as it is."""
        return Forward(self.x, self.u, self.bias, self.h_0, self.lengths, self.resets, self.activation)


class NormResult(NamedTuple):
    """What a forward pass with batch norm returns."""

    y: Tensor
    h_last: Tensor
    h: Tensor
    """States; empty where y is h, for a norm before the recurrence without a mask."""
    mean: Tensor
    var: Tensor
    """Biased variance; it and the mean are of h, or of x without the bias, in the accumulation type."""


class NormBackward(NamedTuple):
    """From the gradients of y and h_last; the pass returns those of x, u, bias, h_0, weight and shift."""

    grad_y: Tensor
    grad_h_last: Tensor | None
    h: Tensor
    x: Tensor | None
    """Input of the forward pass, for a norm before the recurrence; None for one after it."""
    u: Tensor
    h_0: Tensor | None
    weight: Tensor
    mean: Tensor
    var: Tensor
    mask: Tensor | None
    lengths: Tensor | None
    resets: Tensor | None
    eps: float
    activation: str

    def recurrence(self, grad_h: Tensor | None) -> Backward:
        """The recurrence in it, given the gradient of h."""
        return Backward(grad_h, self.grad_h_last, self.h, self.u, self.h_0, self.lengths, self.resets, self.activation)


Call = Forward | Backward | NormForward | NormBackward
