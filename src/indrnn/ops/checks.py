"""Checks of tensors: types, shapes and devices, of the ops before any memory is read, and of layers and networks.

An error names the argument, what was given and what is expected. The ops themselves check, and so does the API before
them, whose sizes are those that the caller sees under `vmap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from . import reference
from .calls import Backward, Call, Forward, NormBackward, NormForward

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_FLOAT = FLOATS, "float32, float64, bfloat16 or float16"
_INTEGER = (torch.int64, torch.int32), "int64 or int32"
_BOOL = (torch.bool,), "bool"
_OPTIONAL = frozenset({"bias", "h_0", "x", "mask", "lengths", "resets", "grad_h", "grad_h_last"})

KINDS: dict[type, tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    Forward: ("forward", "x", ("u", "bias"), ("h_0",), ()),
    Backward: ("backward", "h", ("u",), ("h_0", "grad_h_last"), ("grad_h",)),
    NormForward: ("norm_forward", "x", ("u", "bias", "weight", "shift"), ("h_0",), ()),
    NormBackward: ("norm_backward", "h", ("u", "weight", "mean", "var"), ("h_0", "grad_h_last"), ("grad_y", "x")),
}
"""Of each call: a backend's function; the tensor (T, B, ..., N); vectors (N,); states (B, ..., N); more like x."""


def check(call: Call) -> None:
    """Raise if an argument is invalid."""
    if isinstance(call, NormForward) and call.place not in ("before", "after"):
        raise ValueError(f"place must be 'before' or 'after', got {call.place!r}")
    _, of, vectors, states, series = KINDS[type(call)]
    x: Tensor = getattr(call, of)
    _check_dense(of, x)
    others: dict[str, Tensor] = {}
    for name in (*vectors, *states, *series, "lengths", "resets", "mask"):
        value: Any = getattr(call, name, None)
        if value is None and name in _OPTIONAL:
            continue
        _check_dense(name, value, " or None" if name in _OPTIONAL else "")
        if value.device != x.device:
            raise ValueError(f"{name} must be on {of}'s device, {x.device}, got one on {value.device}")
        others[name] = value
    if call.activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(reference.ACTIVATIONS)}, got {call.activation!r}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{of} must be {_FLOAT[1]}, got {x.dtype}")
    if x.dim() < 3:
        raise ValueError(f"{of} must have the shape (T, B, ..., N), at least three dimensions, got {tuple(x.shape)}")
    own = (x.dtype,), "of {of}'s type, {x.dtype}"
    half = reference.accumulation_dtype(x.dtype) is not x.dtype
    either = ((x.dtype, torch.float32), "of {of}'s type, {x.dtype} or float32") if half else own
    for names, shape, words, (dtypes, types) in (
        (vectors, x.shape[-1:], "the shape (N,) = {shape}, {of}'s last dimension", either),
        (states, x.shape[1:], "{of}'s shape without T, {shape}", either),
        (series, x.shape, "{of}'s shape, {shape}", own),
        (("mask",), (1, *x.shape[1:]), "the shape {shape}, one for all steps", _FLOAT),
        (("lengths",), x.shape[1:2], "the shape (B,) = {shape}", _INTEGER),
        (("resets",), x.shape[:2], "the shape (T, B) = {shape}", _BOOL),
    ):
        for name in names:
            value = others.get(name)
            if value is None:
                continue
            if value.dim() != len(shape) or value.shape != shape:
                expected = words.format(of=of, shape=tuple(shape))
                raise ValueError(f"{name} must have {expected}, got {tuple(value.shape)}")
            if value.dtype not in dtypes:
                raise TypeError(f"{name} must be {types.format(of=of, x=x)}, got {value.dtype}")


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


def is_usual(call: Call) -> bool:
    """Whether all are dense CPU tensors of one type and the right shapes, with all their numbers in memory.

    If so, no check would raise and `readable` has nothing to do: both are skipped, as a small call would spend
    much of its time in them. Not asked of calls with a norm, lengths or resets.
    """
    if isinstance(call, Forward):
        x, u, bias, h_0, lengths, resets, activation, _ = call
        like = last = None
    elif isinstance(call, Backward):
        like, last, x, u, h_0, lengths, resets, activation, _ = call
        bias = None
    else:
        return False
    if lengths is not None or resets is not None or activation not in reference.ACTIVATIONS:
        return False
    if not (isinstance(x, Tensor) and x.is_cpu and x.dim() >= 3 and x.dtype in FLOATS):
        return False
    if x.layout is not torch.strided or x.is_nested or x.is_neg() or x._is_zerotensor():
        return False
    neurons = x.shape[-1:]
    if not _is_like(u, x, neurons) or (bias is not None and not _is_like(bias, x, neurons)):
        return False
    for state in (h_0, last):
        if state is not None and not _is_like(state, x, x.shape[1:]):
            return False
    return like is None or _is_like(like, x, x.shape)


def _is_like(value: Tensor, x: Tensor, shape: torch.Size) -> bool:
    if not (isinstance(value, Tensor) and value.is_cpu and value.dtype is x.dtype):
        return False
    if value.layout is not torch.strided or value.is_nested or value.is_neg() or value._is_zerotensor():
        return False
    return value.shape == shape


# ---- arguments of layers and networks

Lengths: TypeAlias = Tensor | Sequence[int] | None
"""Steps of each sequence of a padded batch, as callers may give them."""


def as_lengths(lengths: Lengths, device: torch.device) -> Tensor | None:
    """A list of lengths as a tensor; anything else as it is, for the checks that follow."""
    if not isinstance(lengths, (list, tuple)):
        return lengths  # type: ignore[return-value]
    return torch.tensor(lengths, device=device)


def check_tensor(name: str, value: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless `value` is None or a tensor of this shape."""
    if value is None:
        return
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor or None, got {type(value).__name__}")
    if value.shape != shape:
        raise ValueError(f"{name} must have the shape {shape} for this input, got {tuple(value.shape)}")


def check_resets(resets: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless `resets` is None or a bool tensor of this shape."""
    check_tensor("resets", resets, shape)
    if resets is not None and resets.dtype != torch.bool:
        raise TypeError(f"resets must be bool, got {resets.dtype}")


def check_state(input: Tensor, hx: Tensor | None, shape: tuple[int, ...], weight: Tensor) -> None:
    """Raise unless a layer's input and state fit its weight, and the state is None or has this shape."""
    check_like_weight("input", input, weight)
    check_tensor("hx", hx, shape)
    check_like_weight("hx", hx, weight)


def check_like_weight(name: str, value: Tensor | None, weight: Tensor) -> None:
    """Raise unless `value` is None or on the device, and (but under autocast) of the type, of the layer's weight."""
    if value is None:
        return
    if value.device != weight.device:
        raise ValueError(f"{name} must be on the layer's device, {weight.device}, got one on {value.device}")
    if value.dtype != weight.dtype and not torch.is_autocast_enabled(value.device.type):
        raise TypeError(f"{name} must be of the layer's type, {weight.dtype}, got {value.dtype}")
