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

from ..calls import Backward, Call, Forward, NormBackward, NormForward, NormResult, with_contiguous_rows
from ..reference import accumulation_dtype

# ---- what is handed over: the structs of calls.h, with the same fields in the same order

ABI_VERSION = 1
"""Version of the structs below; calls.h has its own, and a kernel with another is not used."""

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


_NO_TENSORS = frozenset({int, float, bool, type(None)})


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("dtype", "activation", "reverse", "threads")),
        *((name, c_int64) for name in ("T", "B", "M", "N")),
        *pointers("lengths", "resets"),
        ("missing", c_int64),
    )


_NORM = [("eps", c_double), ("before", c_int64)]
_FIELDS = {
    "forward": [*_series("x", "x"), *pointers("u", "bias", "h", "state")],
    "backward": [*_series("grad_h", "g"), *pointers("h", "u", "h_0", "grad_x", "carry", "grad_u", "grad_bias")],
    "norm_forward": [
        *(*_NORM, *_series("x", "x")),
        *pointers("u", "bias", "weight", "shift", "mask", "h", "y", "state", "mean", "var"),
    ],
    "norm_backward": [
        *(*_NORM, *_series("grad_y", "g"), *_series("x", "x")),
        *pointers("h", "u", "h_0", "weight", "mean", "var", "mask"),
        *pointers("grad_x", "carry", "grad_u", "grad_bias", "grad_weight", "grad_shift"),
    ],
}
PASSES: dict[str, type[ctypes.Structure]] = {
    name: type(name, (_Call,), {"_fields_": fields}) for name, fields in _FIELDS.items()
}
"""The struct of each pass."""

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
    if difference := _difference(loaded):
        return f"the C++ kernel is of another version of indrnn: {path} has {difference}; build it again with {_BUILD}"
    for name, struct in PASSES.items():
        declare(loaded, name, struct)
    return loaded


def declare(loaded: ctypes.CDLL, name: str, struct: type[ctypes.Structure]) -> None:
    """Tell ctypes what a pass of the kernel takes."""
    function = getattr(loaded, f"indrnn_{name}")
    function.argtypes, function.restype = [ctypes.POINTER(struct)], c_int32


def _difference(loaded: ctypes.CDLL) -> str | None:
    """How a kernel's interface differs from the one used here."""
    try:
        version, size = loaded.indrnn_version, loaded.indrnn_size
    except AttributeError:  # from before there were versions
        return f"no interface version, not {ABI_VERSION}"
    version.argtypes, version.restype = [], c_int32
    size.argtypes, size.restype = [ctypes.c_char_p], c_int64
    if version() != ABI_VERSION:
        return f"interface version {version()}, not {ABI_VERSION}"
    for name, struct in PASSES.items():
        if (theirs := size(name.encode())) != (ours := ctypes.sizeof(struct)):
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
        return f"it supports CPU tensors only, not {x.device.type}"
    loaded = library()
    return loaded if isinstance(loaded, str) else None


# ---- the passes


def forward(call: Forward, *, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """As `reference.forward`; with `overwrite` h takes the place of x, which must be contiguous."""
    x, dtype = call.x, accumulation_dtype(call.x.dtype)
    state = _start(call.h_0, x.shape[1:], dtype)
    h = x if overwrite else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    run("forward", pack("forward", x, call, *strided(x), _as(dtype, call.u), _as(dtype, call.bias), h, state))
    return h, _cast(state, x.dtype)


def backward(call: Backward) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    grad_h, grad_h_last, h, u, h_0, *_ = call
    h, dtype = h.contiguous(), accumulation_dtype(h.dtype)
    u_, carry = _as(dtype, u), _start(grad_h_last, h.shape[1:], dtype)
    grad_x, grad_u, grad_bias = torch.empty_like(h), torch.empty_like(u_), torch.empty_like(u_)
    inputs = (*strided(grad_h), h, u_, _as(dtype, h_0))
    run("backward", pack("backward", h, call, *inputs, grad_x, carry, grad_u, grad_bias))
    start_dtype = h.dtype if h_0 is None else h_0.dtype
    return grad_x, _cast(grad_u, u.dtype), _cast(grad_bias, u.dtype), _cast(carry, start_dtype)


def norm_forward(call: NormForward, *, overwrite: bool = False) -> NormResult:
    """As `reference.norm_forward`; with `overwrite` h takes the place of x, which must be contiguous."""
    x, before, dtype = call.x, call.place == "before", accumulation_dtype(call.x.dtype)
    state = _start(call.h_0, x.shape[1:], dtype)
    h = x if overwrite else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    y = None if before and call.mask is None else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    mean, var = torch.empty_like(call.u, dtype=dtype), torch.empty_like(call.u, dtype=dtype)
    vectors = [_as(dtype, vector) for vector in (call.u, call.bias, call.weight, call.shift)]
    inputs = (call.eps, before, *strided(x), *vectors, _mask(call.mask, x, dtype))
    run("norm_forward", pack("norm_forward", x, call, *inputs, h, y, state, mean, var))
    h_last = _cast(state, x.dtype)
    return NormResult(h, h_last, x.new_empty(0), mean, var) if y is None else NormResult(y, h_last, h, mean, var)


def norm_backward(call: NormBackward) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.norm_backward`."""
    x, u, h_0, weight = call.x, call.u, call.h_0, call.weight
    h, dtype = call.h.contiguous(), accumulation_dtype(call.h.dtype)
    carry = _start(call.grad_h_last, h.shape[1:], dtype)
    vectors = [_as(dtype, vector) for vector in (u, h_0, weight, call.mean, call.var)]
    inputs = (call.eps, x is not None, *strided(call.grad_y), *strided(x), h, *vectors, _mask(call.mask, h, dtype))
    grad_x = torch.empty_like(h)
    grad_u, grad_bias, grad_weight, grad_shift = sums = [torch.empty_like(u, dtype=dtype) for _ in range(4)]
    run("norm_backward", pack("norm_backward", h, call, *inputs, grad_x, carry, *sums))
    start_dtype = h.dtype if h_0 is None else h_0.dtype
    grad_u, grad_bias, grad_h_0 = _cast(grad_u, u.dtype), _cast(grad_bias, u.dtype), _cast(carry, start_dtype)
    return grad_x, grad_u, grad_bias, grad_h_0, _cast(grad_weight, weight.dtype), _cast(grad_shift, weight.dtype)


# ---- tensors as the kernel takes them


def pack(name: str, x: Tensor, call: Call, *values: Tensor | float | None) -> ctypes.Structure:
    """The struct of a pass over a tensor like x; the values are its `_FIELDS`, with tensors, which it keeps alive."""
    T, B, *between, N = x.shape
    lengths, resets = call.lengths, call.resets
    if lengths is not None or resets is not None:
        lengths, resets = _as(torch.int64, lengths), _as(torch.bool, resets)
    fields: tuple[Any, ...] = (lengths, resets, 0, *values)
    reverse, threads = getattr(call, "reverse", False), torch.get_num_threads()
    packed = PASSES[name](
        *(DTYPES[x.dtype], _ACTIVATIONS[call.activation], reverse, threads, T, B, math.prod(between), N),
        *[value if type(value) in _NO_TENSORS else value.data_ptr() for value in fields],
    )
    packed.tensors = fields
    return packed


def strided(x: Tensor | None) -> tuple[Tensor | None, int, int]:
    """A tensor over time with contiguous rows, and its strides over time and batch."""
    x = None if x is None else with_contiguous_rows(x)
    return (None, 0, 0) if x is None else (x, x.stride(0), x.stride(1))


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """As `tensor.to`, which takes a microsecond or two even if there is nothing to do."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _as(dtype: torch.dtype, tensor: Tensor | None) -> Any:
    """The tensor in this type and contiguous: itself if it is that already; None for None."""
    return None if tensor is None else _cast(tensor, dtype).contiguous()


def _mask(mask: Tensor | None, x: Tensor, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else _as(dtype, mask).expand(1, *x.shape[1:]).contiguous()


def _start(value: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A new buffer with the initial state, in which the kernel leaves the last one."""
    if value is None:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    return value.to(dtype, copy=True, memory_format=torch.contiguous_format)
