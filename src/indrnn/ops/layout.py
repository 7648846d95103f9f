"""Memory layout: strides, the negative bit and zero tensors, for backends that read a tensor by its address."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Call = TypeVar("Call", bound=NamedTuple)


def readable(call: Call) -> Call:
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
