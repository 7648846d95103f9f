"""Argument checks of the ops: types, shapes and devices, before any memory is read.

An error names the argument, what was given and what is expected. The ops themselves check, and so does the API before
them, whose sizes are those that the caller sees under `vmap`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .calls import Backward, Forward, NormBackward, NormForward

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_OPTIONAL = frozenset({"bias", "h_0", "mask", "lengths", "resets", "grad_h", "grad_h_last"})


def check_forward(call: Forward) -> None:
    """Raise if an argument of the forward pass is invalid."""
    x, u, bias, h_0, lengths, resets, activation, _ = call
    _check_tensors("x", x, u=u, bias=bias, h_0=h_0, lengths=lengths, resets=resets)
    _check_series("x", x, activation)
    _check_vectors("x", x, u=u, bias=bias)
    _check_states("x", x, h_0=h_0)
    _check_flags(x, lengths, resets)


def check_backward(call: Backward) -> None:
    """Raise if an argument of the backward pass is invalid."""
    grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, _ = call
    _check_tensors("h", h, u=u, h_0=h_0, lengths=lengths, resets=resets, grad_h=grad_h, grad_h_last=grad_h_last)
    _check_series("h", h, activation)
    _check_vectors("h", h, u=u)
    _check_states("h", h, h_0=h_0, grad_h_last=grad_h_last)
    _check_flags(h, lengths, resets)
    _check_like("grad_h", grad_h, "h", h)


def check_norm_forward(call: NormForward) -> None:
    """Raise if an argument of the forward pass with batch norm is invalid."""
    if call.place not in ("before", "after"):
        raise ValueError(f"place must be 'before' or 'after', got {call.place!r}")
    check_forward(call.recurrence)
    x = call.x
    _check_tensors("x", x, weight=call.weight, shift=call.shift, mask=call.mask)
    _check_vectors("x", x, weight=call.weight, shift=call.shift)
    _check_mask(call.mask, x)


def check_norm_backward(call: NormBackward) -> None:
    """Raise if an argument of the backward pass with batch norm is invalid."""
    check_backward(call.recurrence(None))
    h = call.h
    vectors = {"weight": call.weight, "mean": call.mean, "var": call.var}
    _check_tensors("h", h, grad_y=call.grad_y, mask=call.mask, **vectors)
    _check_vectors("h", h, **vectors)
    _check_like("grad_y", call.grad_y, "h", h)
    if call.x is not None:
        _check_tensors("h", h, x=call.x)
        _check_like("x", call.x, "h", h)
    _check_mask(call.mask, h)


def check_lengths(lengths: Tensor | None, T: int) -> None:
    """Raise unless they lie in 0..T: inside the ops, and not on a GPU, where reading them would make the host wait."""
    if lengths is not None and lengths.device.type == "cpu" and lengths.numel() > 0:
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > T:
            raise ValueError(f"lengths must lie between 0 and T = {T}, got values from {low} to {high}")


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


def _check_tensors(of: str, like: Tensor, /, **given: Tensor | None) -> None:
    if not isinstance(like, Tensor):
        raise TypeError(f"{of} must be a tensor, got {type(like).__name__}")
    _check_dense(of, like)
    for name, value in given.items():
        if value is None and name in _OPTIONAL:
            continue
        if not isinstance(value, Tensor):
            or_none = " or None" if name in _OPTIONAL else ""
            raise TypeError(f"{name} must be a tensor{or_none}, got {type(value).__name__}")
        _check_dense(name, value)
        if value.device != like.device:
            raise ValueError(f"{name} must be on {of}'s device, {like.device}, got one on {value.device}")


def _check_dense(name: str, value: Tensor) -> None:
    if value.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested one; pad it, and give the lengths")
    if value.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got one of the layout {value.layout}")


def _check_series(name: str, x: Tensor, activation: str) -> None:
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(reference.ACTIVATIONS)}, got {activation!r}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {x.dtype}")
    if x.dim() < 3:
        raise ValueError(f"{name} must have the shape (T, B, ..., N), at least three dimensions, got {tuple(x.shape)}")


def _check_vectors(of: str, x: Tensor, **given: Tensor | None) -> None:
    for name, value in given.items():
        if value is None:
            continue
        if value.dim() != 1 or value.shape[0] != x.shape[-1]:
            expected = f"(N,) = ({x.shape[-1]},), {of}'s last dimension"
            raise ValueError(f"{name} must have the shape {expected}, got {tuple(value.shape)}")
        _check_dtype(name, value, of, x)


def _check_states(of: str, x: Tensor, **given: Tensor | None) -> None:
    for name, value in given.items():
        if value is None:
            continue
        if value.dim() != x.dim() - 1 or value.shape != x.shape[1:]:
            raise ValueError(f"{name} must have {of}'s shape without T, {tuple(x.shape[1:])}, got {tuple(value.shape)}")
        _check_dtype(name, value, of, x)


def _check_dtype(name: str, value: Tensor, of: str, x: Tensor) -> None:
    if value.dtype != x.dtype and value.dtype != reference.accumulation_dtype(x.dtype):
        or_float32 = " or float32" if reference.accumulation_dtype(x.dtype) != x.dtype else ""
        raise TypeError(f"{name} must be of {of}'s type, {x.dtype}{or_float32}, got {value.dtype}")


def _check_like(name: str, value: Tensor | None, of: str, x: Tensor) -> None:
    if value is not None and value.shape != x.shape:
        raise ValueError(f"{name} must have {of}'s shape, {tuple(x.shape)}, got {tuple(value.shape)}")
    if value is not None and value.dtype != x.dtype:
        raise TypeError(f"{name} must be of {of}'s type, {x.dtype}, got {value.dtype}")


def _check_mask(mask: Tensor | None, x: Tensor) -> None:
    if mask is None:
        return
    if mask.dim() != x.dim() or mask.shape[0] != 1 or mask.shape[1:] != x.shape[1:]:
        expected = (1, *x.shape[1:])
        raise ValueError(f"mask must have the shape {expected}, one for all steps, got {tuple(mask.shape)}")
    if mask.dtype not in FLOATS:
        raise TypeError(f"mask must be float32, float64, bfloat16 or float16, got {mask.dtype}")


def _check_flags(x: Tensor, lengths: Tensor | None, resets: Tensor | None) -> None:
    if lengths is not None:
        if lengths.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"lengths must be int64 or int32, got {lengths.dtype}")
        if lengths.dim() != 1 or lengths.shape[0] != x.shape[1]:
            raise ValueError(f"lengths must have the shape (B,) = ({x.shape[1]},), got {tuple(lengths.shape)}")
    if resets is not None:
        if resets.dtype != torch.bool:
            raise TypeError(f"resets must be bool, got {resets.dtype}")
        if resets.dim() != 2 or resets.shape != x.shape[:2]:
            raise ValueError(f"resets must have the shape (T, B) = {tuple(x.shape[:2])}, got {tuple(resets.shape)}")
