"""Argument tuples of the passes, as every backend takes them, and how their tensors lie in memory.

Shapes: x, h, y and their gradients (T, B, ..., N); u, bias, weight, shift, mean, var (N,); h_0, h_last (B, ..., N);
mask (1, B, ..., N); lengths (B,), int64 or int32; resets (T, B), bool. None means absent.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
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
AnyCall = TypeVar("AnyCall", bound=NamedTuple)


# ---- memory: strides, the negative bit and zero tensors, for backends that read a tensor by its address


def readable(call: AnyCall) -> AnyCall:
    """The same call with tensors that can be read by address: no negative bit, and zeros written out."""
    for value in call:  # a plain loop: this is on the way of every call
        if isinstance(value, Tensor) and (value.is_neg() or value._is_zerotensor()):
            return call._make(written_out(value) if isinstance(value, Tensor) else value for value in call)
    return call


def written_out(tensor: Tensor) -> Tensor:
    """The tensor with its numbers in memory: without torch's negative bit, and not one of its zero tensors."""
    return tensor.clone() if tensor.is_neg() or tensor._is_zerotensor() else tensor


def dense(gradient: Tensor | None) -> Tensor | None:
    """The gradient as a dense tensor: those of gather(sparse_grad=True) and embedding(sparse=True) are sparse."""
    if gradient is None or torch.compiler.is_compiling():  # Dynamo does not let a backward pass ask for the layout
        return gradient
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def with_contiguous_rows(x: Tensor) -> Tensor:
    """Return x itself if all but its first two dimensions are contiguous, else a copy."""
    if x.is_contiguous():
        return x
    expected = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size != 1 and stride != expected:
            return x.contiguous()
        expected *= size
    return x
