"""The C++ kernel (kernel.cpp), loaded with ctypes. Inputs are prepared here; the arithmetic is all there."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from .reference import accumulation_dtype

# The order of the enumerations in kernel.cpp
_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_ACTIVATIONS = {"relu": 0, "tanh": 1, "sigmoid": 2, "identity": 3}

MISSING = (
    "the C++ kernel was not built when indrnn was installed; to have it, install a C++ compiler (Debian and Ubuntu: "
    "`apt install g++`; macOS: `xcode-select --install`; Windows: Visual Studio Build Tools) and run "
    "`pip install --force-reinstall --no-deps --no-cache-dir --no-binary indrnn indrnn` (in a checkout, "
    "`pip install --force-reinstall --no-deps .`); with `-v` it shows what the compiler says"
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
    integer, size, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    common, series = [integer] * 4 + [size] * 4, [pointer, size, size]
    passes = {
        "forward": [*common, *series, *[pointer] * 6],
        "backward": [*common, *series, *[pointer] * 9],
        "norm_forward": [*common, *series, *[pointer] * 7, ctypes.c_double, *[pointer] * 5],
        "norm_backward": [*common, *series, *series, *[pointer] * 9, ctypes.c_double, *[pointer] * 6],
        "sru": [integer, integer, size, size, size, *[pointer] * 12],
    }
    for name, types in passes.items():
        function = getattr(loaded, f"indrnn_{name}")
        function.argtypes, function.restype = types, None
    return loaded


def why_not(x: Tensor, activation: str) -> str | None:
    """Why the kernel cannot serve this tensor, or None if it can."""
    if x.device.type != "cpu":
        return f"it serves CPU tensors only, not {x.device.type}"
    loaded = library()
    return loaded if isinstance(loaded, str) else None


def forward(
    x: Tensor,
    u: Tensor,
    bias: Tensor | None,
    h_0: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    activation: str,
    reverse: bool,
    *,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `reference.forward`; with `overwrite` h takes the place of x, which must be contiguous."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    x = _with_contiguous_rows(x)
    dtype = accumulation_dtype(x.dtype)
    u = u.to(dtype).contiguous()
    bias = None if bias is None else bias.to(dtype).contiguous()
    state = _start(h_0, x.shape[1:], dtype)
    lengths, resets = _flags(lengths, resets)
    h = x if overwrite else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    loaded.indrnn_forward(
        *_common(x, activation, reverse),
        *_strided(x),
        u.data_ptr(),
        _pointer(bias),
        _pointer(lengths),
        _pointer(resets),
        h.data_ptr(),
        state.data_ptr(),
    )
    return h, state.to(x.dtype)


def backward(
    grad_h: Tensor | None,
    grad_h_last: Tensor | None,
    h: Tensor,
    u: Tensor,
    h_0: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    activation: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    h = h.contiguous()
    grad_h = None if grad_h is None else _with_contiguous_rows(grad_h)
    dtype = accumulation_dtype(h.dtype)
    u_ = u.to(dtype).contiguous()
    start = None if h_0 is None else h_0.to(dtype).contiguous()
    carry = _start(grad_h_last, h.shape[1:], dtype)
    lengths, resets = _flags(lengths, resets)
    grad_x = torch.empty(h.shape, dtype=h.dtype, device="cpu")
    grad_u, grad_bias = torch.empty(u.shape, dtype=dtype, device="cpu"), torch.empty(u.shape, dtype=dtype, device="cpu")
    loaded.indrnn_backward(
        *_common(h, activation, reverse),
        *(_NO_SERIES if grad_h is None else _strided(grad_h)),
        h.data_ptr(),
        u_.data_ptr(),
        _pointer(start),
        _pointer(lengths),
        _pointer(resets),
        grad_x.data_ptr(),
        carry.data_ptr(),
        grad_u.data_ptr(),
        grad_bias.data_ptr(),
    )
    return grad_x, grad_u.to(u.dtype), grad_bias.to(u.dtype), carry.to(h.dtype if h_0 is None else h_0.dtype)


def norm_forward(
    x: Tensor,
    u: Tensor,
    bias: Tensor | None,
    h_0: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    eps: float,
    activation: str,
    place: str,
    *,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `fused.norm_forward`; with `overwrite` h takes the place of x, which must be contiguous."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    x = _with_contiguous_rows(x)
    dtype = accumulation_dtype(x.dtype)
    u, weight, shift = (vector.to(dtype).contiguous() for vector in (u, weight, shift))
    bias = None if bias is None else bias.to(dtype).contiguous()
    mask = None if mask is None else mask.to(dtype).expand(1, *x.shape[1:]).contiguous()
    state = _start(h_0, x.shape[1:], dtype)
    lengths, resets = _flags(lengths, resets)
    h = x if overwrite else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    y = torch.empty(x.shape, dtype=x.dtype, device="cpu") if place == "after" or mask is not None else None
    mean, var = torch.empty(u.shape, dtype=dtype, device="cpu"), torch.empty(u.shape, dtype=dtype, device="cpu")
    loaded.indrnn_norm_forward(
        *_common(x, activation, place == "before"),
        *_strided(x),
        u.data_ptr(),
        _pointer(bias),
        weight.data_ptr(),
        shift.data_ptr(),
        _pointer(mask),
        _pointer(lengths),
        _pointer(resets),
        eps,
        h.data_ptr(),
        _pointer(y),
        state.data_ptr(),
        mean.data_ptr(),
        var.data_ptr(),
    )
    h_last = state.to(x.dtype)
    return (h, h_last, x.new_empty(0), mean, var) if y is None else (y, h_last, h, mean, var)


def norm_backward(
    grad_y: Tensor,
    grad_h_last: Tensor | None,
    h: Tensor,
    x: Tensor | None,
    u: Tensor,
    h_0: Tensor | None,
    weight: Tensor,
    mean: Tensor,
    var: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    eps: float,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `fused.norm_backward`; x is there for a norm before the recurrence alone."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    h, grad_y = h.contiguous(), _with_contiguous_rows(grad_y)
    x = None if x is None else _with_contiguous_rows(x)
    dtype = accumulation_dtype(h.dtype)
    u_, weight_, mean, var = (vector.to(dtype).contiguous() for vector in (u, weight, mean, var))
    mask = None if mask is None else mask.to(dtype).expand(1, *h.shape[1:]).contiguous()
    start = None if h_0 is None else h_0.to(dtype).contiguous()
    carry = _start(grad_h_last, h.shape[1:], dtype)
    lengths, resets = _flags(lengths, resets)
    grad_x = torch.empty(h.shape, dtype=h.dtype, device="cpu")
    grad_u, grad_bias, grad_weight, grad_shift = (torch.empty(u.shape, dtype=dtype, device="cpu") for _ in range(4))
    loaded.indrnn_norm_backward(
        *_common(h, activation, x is not None),
        *_strided(grad_y),
        *(_NO_SERIES if x is None else _strided(x)),
        h.data_ptr(),
        u_.data_ptr(),
        _pointer(start),
        weight_.data_ptr(),
        mean.data_ptr(),
        var.data_ptr(),
        _pointer(mask),
        _pointer(lengths),
        _pointer(resets),
        eps,
        grad_x.data_ptr(),
        carry.data_ptr(),
        grad_u.data_ptr(),
        grad_bias.data_ptr(),
        grad_weight.data_ptr(),
        grad_shift.data_ptr(),
    )
    return (
        grad_x,
        grad_u.to(u.dtype),
        grad_bias.to(u.dtype),
        carry.to(h.dtype if h_0 is None else h_0.dtype),
        grad_weight.to(weight.dtype),
        grad_shift.to(weight.dtype),
    )


def sru(T: int, B: int, N: int, *tensors: Tensor | None) -> None:
    """The recurrence of SRU, or its backward pass: the tensors of `indrnn_sru` in sru.cpp, contiguous, in its order."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    pointers = [_pointer(tensor) for tensor in tensors] + [None] * (12 - len(tensors))
    assert tensors[0] is not None
    loaded.indrnn_sru(int(tensors[0].dtype == torch.float64), torch.get_num_threads(), T, B, N, *pointers)


_NO_SERIES = (None, 0, 0)


def _common(x: Tensor, activation: str, flag: bool) -> tuple[int, ...]:
    T, B, *between, N = x.shape
    threads = torch.get_num_threads()
    return _DTYPES[x.dtype], _ACTIVATIONS[activation], int(flag), threads, T, B, math.prod(between), N


def _strided(x: Tensor) -> tuple[int, int, int]:
    return x.data_ptr(), x.stride(0), x.stride(1)


def _with_contiguous_rows(x: Tensor) -> Tensor:
    """Return x itself where all but its first two dimensions are contiguous, else a copy."""
    expected = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size != 1 and stride != expected:
            return x.contiguous()
        expected *= size
    return x


def _start(value: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A buffer of our own that the kernel starts from and leaves its last state in."""
    if value is None:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    return value.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _flags(lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (
        None if lengths is None else lengths.to(torch.int64).contiguous(),
        None if resets is None else resets.contiguous(),
    )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
