"""The C++ kernel through ctypes: structs, loading and passes. Inputs are prepared here; nothing is computed."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Iterable
from ctypes import c_double, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..calls import Backward, Forward, NormBackward, NormForward, NormResult
from ..layout import with_contiguous_rows
from ..reference import accumulation_dtype

# ---- what is handed over: the structs of calls.h, with the same fields in the same order

ABI_VERSION = 1
"""Of the structs below; calls.h has its own, and a kernel with another is not used."""

# The order of the enumerations in calls.h and rows.h
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_ACTIVATIONS = {"relu": 0, "tanh": 1, "sigmoid": 2, "identity": 3}
_NO_MEMORY = 1


def pointers(*names: str) -> list[tuple[str, Any]]:
    """Fields that hold addresses."""
    return [(name, c_void_p) for name in names]


def _series(name: str, prefix: str) -> list[tuple[str, Any]]:
    """A tensor over time, with its strides over time and batch."""
    return [(name, c_void_p), (f"{prefix}_t", c_int64), (f"{prefix}_b", c_int64)]


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("dtype", "activation", "reverse", "threads")),
        *((name, c_int64) for name in ("T", "B", "M", "N")),
        *pointers("lengths", "resets"),
        ("missing", c_int64),
    )


class _Forward(_Call):
    _fields_ = (*_series("x", "x"), *pointers("u", "bias", "h", "state"))


class _Backward(_Call):
    _fields_ = (
        *_series("grad_h", "g"),
        *pointers("h", "u", "h_0", "grad_x", "carry", "grad_u", "grad_bias"),
    )


class _NormForward(_Call):
    _fields_ = (
        ("eps", c_double),
        ("before", c_int64),
        *_series("x", "x"),
        *pointers("u", "bias", "weight", "shift", "mask", "h", "y", "state", "mean", "var"),
    )


class _NormBackward(_Call):
    _fields_ = (
        ("eps", c_double),
        ("before", c_int64),
        *_series("grad_y", "g"),
        *_series("x", "x"),
        *pointers("h", "u", "h_0", "weight", "mean", "var", "mask"),
        *pointers("grad_x", "carry", "grad_u", "grad_bias", "grad_weight", "grad_shift"),
    )


_PASSES: dict[str, type[ctypes.Structure]] = {
    "forward": _Forward,
    "backward": _Backward,
    "norm_forward": _NormForward,
    "norm_backward": _NormBackward,
}

# ---- the library

_BUILD = (
    "`pip install --force-reinstall --no-deps --no-cache-dir --no-binary indrnn indrnn` (in a checkout, "
    "`pip install --force-reinstall --no-deps .`); with `-v` it shows what the compiler says"
)
MISSING = (
    "the C++ kernel was not built when indrnn was installed; to have it, install a C++ compiler (Debian and Ubuntu: "
    "`apt install g++`; macOS: `xcode-select --install`; Windows: Visual Studio Build Tools) and run " + _BUILD
)


@functools.cache
def library() -> ctypes.CDLL | str:
    """The loaded kernel, or why there is none."""
    name = "_kernel.dll" if sys.platform == "win32" else "_kernel.so"
    # An editable install keeps built files apart from sources, so the package has more than one folder.
    folders: Iterable[str] = sys.modules[__package__].__path__
    path = next((p for p in (Path(folder) / name for folder in folders) if p.is_file()), None)
    if path is None:
        return MISSING
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the C++ kernel is there but did not load: {error}"
    difference = _difference(loaded)
    if difference is not None:
        return f"the C++ kernel is of another version of indrnn: {path} has {difference}; build it again with {_BUILD}"
    for name, struct in _PASSES.items():
        declare(loaded, name, struct)
    return loaded


def declare(loaded: ctypes.CDLL, name: str, struct: type[ctypes.Structure]) -> None:
    """Tell ctypes what a pass of the kernel takes."""
    function = getattr(loaded, f"indrnn_{name}")
    function.argtypes, function.restype = [ctypes.POINTER(struct)], c_int32


def _difference(loaded: ctypes.CDLL) -> str | None:
    """How a kernel's interface differs from the one used here; None if it does not."""
    try:
        version, size = loaded.indrnn_version, loaded.indrnn_size
    except AttributeError:  # from before there were versions
        return f"no interface version, not {ABI_VERSION}"
    version.argtypes, version.restype = [], c_int32
    size.argtypes, size.restype = [ctypes.c_char_p], c_int64
    if version() != ABI_VERSION:
        return f"interface version {version()}, not {ABI_VERSION}"
    for name, struct in _PASSES.items():
        theirs, ours = size(name.encode()), ctypes.sizeof(struct)
        if theirs != ours:
            return f"arguments of {theirs} bytes for {name}, not {ours}"
    return None


def run(name: str, call: ctypes.Structure) -> None:
    """Run a pass; if it fails, raise the type of error that torch raises on a CPU."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    status = getattr(loaded, f"indrnn_{name}")(call)
    if status == _NO_MEMORY:
        raise RuntimeError(f"the C++ kernel cannot allocate memory: {name} tried to allocate {call.missing} bytes")
    assert status == 0, status


def why_not(x: Tensor, activation: str) -> str | None:
    """Why the kernel cannot be used for this tensor, or None if it can."""
    if x.device.type != "cpu":
        return f"it serves CPU tensors only, not {x.device.type}"
    loaded = library()
    return loaded if isinstance(loaded, str) else None


# ---- the passes


def forward(call: Forward, *, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """As `reference.forward`; with `overwrite` h takes the place of x, which must be contiguous."""
    x, u, bias, h_0, lengths, resets, activation, reverse = call
    x = with_contiguous_rows(x)
    dtype = accumulation_dtype(x.dtype)
    u, bias = _as(dtype, u), _as_or_none(dtype, bias)
    state = _start(h_0, x.shape[1:], dtype)
    lengths, resets = _as_or_none(torch.int64, lengths), _as_or_none(torch.bool, resets)
    h = x if overwrite else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    arguments = _Forward(
        **_common(x, activation, lengths, resets, reverse),
        x=x.data_ptr(),
        x_t=x.stride(0),
        x_b=x.stride(1),
        u=u.data_ptr(),
        bias=pointer(bias),
        h=h.data_ptr(),
        state=state.data_ptr(),
    )
    run("forward", arguments)
    return h, _cast(state, x.dtype)


def backward(call: Backward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse = call
    h = _as(h.dtype, h)
    grad_h = None if grad_h is None else with_contiguous_rows(grad_h)
    dtype = accumulation_dtype(h.dtype)
    u_, start = _as(dtype, u), _as_or_none(dtype, h_0)
    carry = _start(grad_h_last, h.shape[1:], dtype)
    lengths, resets = _as_or_none(torch.int64, lengths), _as_or_none(torch.bool, resets)
    grad_x, grad_u, grad_bias = torch.empty_like(h), torch.empty_like(u_), torch.empty_like(u_)
    arguments = _Backward(
        **_common(h, activation, lengths, resets, reverse),
        grad_h=pointer(grad_h),
        g_t=0 if grad_h is None else grad_h.stride(0),
        g_b=0 if grad_h is None else grad_h.stride(1),
        h=h.data_ptr(),
        u=u_.data_ptr(),
        h_0=pointer(start),
        grad_x=grad_x.data_ptr(),
        carry=carry.data_ptr(),
        grad_u=grad_u.data_ptr(),
        grad_bias=grad_bias.data_ptr(),
    )
    run("backward", arguments)
    start_dtype = h.dtype if h_0 is None else h_0.dtype
    return grad_x, _cast(grad_u, u.dtype), _cast(grad_bias, u.dtype), _cast(carry, start_dtype)


def norm_forward(call: NormForward, *, overwrite: bool = False) -> NormResult:
    """As `reference_norm.forward`; with `overwrite` h takes the place of x, which must be contiguous."""
    x, u, bias, h_0, weight, shift, mask, lengths, resets, eps, activation, place = call
    x = with_contiguous_rows(x)
    dtype = accumulation_dtype(x.dtype)
    u, weight, shift, bias = _as(dtype, u), _as(dtype, weight), _as(dtype, shift), _as_or_none(dtype, bias)
    mask = None if mask is None else _as(dtype, mask).expand(1, *x.shape[1:]).contiguous()
    state = _start(h_0, x.shape[1:], dtype)
    lengths, resets = _as_or_none(torch.int64, lengths), _as_or_none(torch.bool, resets)
    h = x if overwrite else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    y = torch.empty(x.shape, dtype=x.dtype, device="cpu") if place == "after" or mask is not None else None
    mean, var = torch.empty(u.shape, dtype=dtype, device="cpu"), torch.empty(u.shape, dtype=dtype, device="cpu")
    arguments = _NormForward(
        **_common(x, activation, lengths, resets),
        eps=eps,
        before=place == "before",
        x=x.data_ptr(),
        x_t=x.stride(0),
        x_b=x.stride(1),
        u=u.data_ptr(),
        bias=pointer(bias),
        weight=weight.data_ptr(),
        shift=shift.data_ptr(),
        mask=pointer(mask),
        h=h.data_ptr(),
        y=pointer(y),
        state=state.data_ptr(),
        mean=mean.data_ptr(),
        var=var.data_ptr(),
    )
    run("norm_forward", arguments)
    h_last = _cast(state, x.dtype)
    return NormResult(h, h_last, x.new_empty(0), mean, var) if y is None else NormResult(y, h_last, h, mean, var)


def norm_backward(call: NormBackward) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference_norm.backward`."""
    grad_y, grad_h_last, h, x, u, h_0, weight, mean, var, mask, lengths, resets, eps, activation = call
    h, grad_y = _as(h.dtype, h), with_contiguous_rows(grad_y)
    x = None if x is None else with_contiguous_rows(x)
    dtype = accumulation_dtype(h.dtype)
    u_, weight_, mean, var = _as(dtype, u), _as(dtype, weight), _as(dtype, mean), _as(dtype, var)
    mask = None if mask is None else _as(dtype, mask).expand(1, *h.shape[1:]).contiguous()
    start = _as_or_none(dtype, h_0)
    carry = _start(grad_h_last, h.shape[1:], dtype)
    lengths, resets = _as_or_none(torch.int64, lengths), _as_or_none(torch.bool, resets)
    grad_x = torch.empty_like(h)
    grad_u, grad_bias, grad_weight, grad_shift = (torch.empty_like(u_) for _ in range(4))
    arguments = _NormBackward(
        **_common(h, activation, lengths, resets),
        eps=eps,
        before=x is not None,
        grad_y=grad_y.data_ptr(),
        g_t=grad_y.stride(0),
        g_b=grad_y.stride(1),
        x=pointer(x),
        x_t=0 if x is None else x.stride(0),
        x_b=0 if x is None else x.stride(1),
        h=h.data_ptr(),
        u=u_.data_ptr(),
        h_0=pointer(start),
        weight=weight_.data_ptr(),
        mean=mean.data_ptr(),
        var=var.data_ptr(),
        mask=pointer(mask),
        grad_x=grad_x.data_ptr(),
        carry=carry.data_ptr(),
        grad_u=grad_u.data_ptr(),
        grad_bias=grad_bias.data_ptr(),
        grad_weight=grad_weight.data_ptr(),
        grad_shift=grad_shift.data_ptr(),
    )
    run("norm_backward", arguments)
    return (
        grad_x,
        _cast(grad_u, u.dtype),
        _cast(grad_bias, u.dtype),
        _cast(carry, h.dtype if h_0 is None else h_0.dtype),
        _cast(grad_weight, weight.dtype),
        _cast(grad_shift, weight.dtype),
    )


# ---- tensors as the kernel takes them


def _common(
    x: Tensor, activation: str, lengths: Tensor | None, resets: Tensor | None, reverse: bool = False
) -> dict[str, Any]:
    """The fields that all passes of the recurrence have."""
    T, B, *between, N = x.shape
    return {
        "dtype": DTYPES[x.dtype],
        "activation": _ACTIVATIONS[activation],
        "reverse": reverse,
        "threads": torch.get_num_threads(),
        "T": T,
        "B": B,
        "M": math.prod(between),
        "N": N,
        "lengths": pointer(lengths),
        "resets": pointer(resets),
    }


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """As `tensor.to`, which takes a microsecond or two even if there is nothing to do."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _as(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """The tensor in this type and contiguous: itself if it is that already."""
    tensor = _cast(tensor, dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _as_or_none(dtype: torch.dtype, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _as(dtype, tensor)


def _start(value: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A new buffer with the initial state, in which the kernel leaves the last one."""
    if value is None:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    return value.to(dtype, copy=True, memory_format=torch.contiguous_format)


def pointer(tensor: Tensor | None) -> int | None:
    """The address of a tensor; None for None."""
    return None if tensor is None else tensor.data_ptr()
