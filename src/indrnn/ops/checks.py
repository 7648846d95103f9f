"""Argument checks of the ops: types, shapes and devices, before any memory is read.

An error names the argument, what was given and what is expected. The ops themselves check, and so does the API before
them, whose sizes are those that the caller sees under `vmap`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import reference
from .calls import Backward, Forward, NormBackward, NormForward

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_OPTIONAL = frozenset({"bias", "h_0", "x", "mask", "lengths", "resets", "grad_h", "grad_h_last"})

_KINDS: dict[type, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    Forward: ("x", ("u", "bias"), ("h_0",), ()),
    Backward: ("h", ("u",), ("h_0", "grad_h_last"), ("grad_h",)),
    NormForward: ("x", ("u", "bias", "weight", "shift"), ("h_0",), ()),
    NormBackward: ("h", ("u", "weight", "mean", "var"), ("h_0", "grad_h_last"), ("grad_y", "x")),
}
"""Arguments of each call: the tensor (T, B, ..., N); vectors (N,); states (B, ..., N); others like the tensor."""


def check(call: Forward | Backward | NormForward | NormBackward) -> None:
    """Raise if an argument is invalid."""
    if isinstance(call, NormForward) and call.place not in ("before", "after"):
        raise ValueError(f"place must be 'before' or 'after', got {call.place!r}")
    of, vectors, states, series = _KINDS[type(call)]
    x, mask = getattr(call, of), getattr(call, "mask", None)
    _check_dense(of, x)
    for name in (*vectors, *states, *series, "lengths", "resets", "mask"):
        value: Any = getattr(call, name, None)
        if value is None and name in _OPTIONAL:
            continue
        _check_dense(name, value, " or None" if name in _OPTIONAL else "")
        if value.device != x.device:
            raise ValueError(f"{name} must be on {of}'s device, {x.device}, got one on {value.device}")
    if call.activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(reference.ACTIVATIONS)}, got {call.activation!r}")
    _check_float(of, x)
    if x.dim() < 3:
        raise ValueError(f"{of} must have the shape (T, B, ..., N), at least three dimensions, got {tuple(x.shape)}")
    accumulation = reference.accumulation_dtype(x.dtype)
    for names, shape, words, types in (
        (vectors, x.shape[-1:], f"the shape (N,) = {{}}, {of}'s last dimension", (x.dtype, accumulation)),
        (states, x.shape[1:], f"{of}'s shape without T, {{}}", (x.dtype, accumulation)),
        (series, x.shape, f"{of}'s shape, {{}}", (x.dtype,)),
    ):
        for name in names:
            value = getattr(call, name)
            if value is None:
                continue
            _check_shape(name, value, shape, words)
            if value.dtype not in types:
                or_float32 = " or float32" if types[-1] != x.dtype else ""
                raise TypeError(f"{name} must be of {of}'s type, {x.dtype}{or_float32}, got {value.dtype}")
    if mask is not None:
        _check_shape("mask", mask, (1, *x.shape[1:]), "the shape {}, one for all steps")
        _check_float("mask", mask)
    _check_flags(x, call.lengths, call.resets)


def check_lengths(lengths: Tensor | None, T: int) -> None:
    """Raise unless they lie in 0..T: inside the ops, and not on a GPU, where reading them would make the host wait."""
    if lengths is not None and lengths.device.type == "cpu" and lengths.numel() > 0:
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > T:
            raise ValueError(f"lengths must lie between 0 and T = {T}, got values from {low} to {high}")


def _check_dense(name: str, value: Tensor | None, or_none: str = "") -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor{or_none}, got {type(value).__name__}")
    if value.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested one; pad it, and give the lengths")
    if value.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got one of the layout {value.layout}")


def _check_float(name: str, value: Tensor) -> None:
    if value.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {value.dtype}")


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...], words: str) -> None:
    if value.dim() != len(shape) or value.shape != shape:
        raise ValueError(f"{name} must have {words.format(tuple(shape))}, got {tuple(value.shape)}")


def _check_flags(x: Tensor, lengths: Tensor | None, resets: Tensor | None) -> None:
    if lengths is not None:
        if lengths.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"lengths must be int64 or int32, got {lengths.dtype}")
        _check_shape("lengths", lengths, x.shape[1:2], "the shape (B,) = {}")
    if resets is not None:
        if resets.dtype != torch.bool:
            raise TypeError(f"resets must be bool, got {resets.dtype}")
        _check_shape("resets", resets, x.shape[:2], "the shape (T, B) = {}")


# ---- calls that need no check


def is_usual_forward(call: Forward) -> bool:
    """Whether all are dense CPU tensors of one type and the right shapes, with all their numbers in memory.

    If so, no check would raise and `layout.readable` has nothing to do: both are skipped, as a small call would spend
    much of its time in them.
    """
    x, u, bias, h_0, lengths, resets, activation, _ = call
    return lengths is None and resets is None and _is_usual(x, activation, u, bias, h_0)


def is_usual_backward(call: Backward) -> bool:
    """As `is_usual_forward`, for a backward pass."""
    grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, _ = call
    return lengths is None and resets is None and _is_usual(h, activation, u, None, h_0, grad_h_last, like=grad_h)


def _is_usual(
    x: Tensor, activation: str, u: Tensor, bias: Tensor | None, *states: Tensor | None, like: Tensor | None = None
) -> bool:
    if not (isinstance(x, Tensor) and x.is_cpu and x.dim() >= 3 and x.dtype in FLOATS):
        return False
    if x.layout is not torch.strided or x.is_nested or x.is_neg() or x._is_zerotensor():
        return False
    if activation not in reference.ACTIVATIONS or not _is_like(u, x, x.shape[-1:]):
        return False
    if bias is not None and not _is_like(bias, x, x.shape[-1:]):
        return False
    for state in states:
        if state is not None and not _is_like(state, x, x.shape[1:]):
            return False
    return like is None or _is_like(like, x, x.shape)


def _is_like(value: Tensor, x: Tensor, shape: torch.Size) -> bool:
    if not (isinstance(value, Tensor) and value.is_cpu and value.dtype is x.dtype):
        return False
    if value.layout is not torch.strided or value.is_nested or value.is_neg() or value._is_zerotensor():
        return False
    return value.shape == shape
