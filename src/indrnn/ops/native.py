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
        "forward": [*common, *series, *[pointer] * 11],
        "backward": [*common, *series, *[pointer] * 12, *series, *[pointer] * 3],
        "combine": [*[integer] * 2, *[size] * 4, *series, *series, *[pointer] * 3],
        "sums": [*[integer] * 2, *[size] * 4, *series, *series, *[pointer] * 4],
        "add_up": [*[size] * 3, *[pointer] * 2],
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
) -> tuple[Tensor, Tensor]:
    """As `reference.forward`."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    x = _with_contiguous_rows(x)
    dtype = accumulation_dtype(x.dtype)
    u = u.to(dtype).contiguous()
    bias = None if bias is None else bias.to(dtype).contiguous()
    state = _start(h_0, x.shape[1:], dtype)
    lengths, resets = _flags(lengths, resets)
    h = torch.empty(x.shape, dtype=x.dtype)
    loaded.indrnn_forward(
        *_common(x, activation, reverse),
        *_strided(x),
        u.data_ptr(),
        _pointer(bias),
        _pointer(lengths),
        _pointer(resets),
        h.data_ptr(),
        state.data_ptr(),
        *[None] * 5,
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
    grad_x = torch.empty(h.shape, dtype=h.dtype)
    grad_u, grad_bias = torch.empty(u.shape, dtype=dtype), torch.empty(u.shape, dtype=dtype)
    sum_u, sum_bias = torch.zeros_like(carry), torch.zeros_like(carry)
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
        sum_u.data_ptr(),
        grad_u.data_ptr(),
        sum_bias.data_ptr(),
        grad_bias.data_ptr(),
        None,
        *_NO_SERIES,
        *[None] * 3,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `fused.norm_forward`."""
    loaded = library()
    assert not isinstance(loaded, str), loaded
    x = _with_contiguous_rows(x)
    chains = _Chains(x, loaded)
    u = u.to(chains.dtype).contiguous()
    lengths, resets = _flags(lengths, resets)
    count = chains.count(lengths)
    drop = None if mask is None else chains.spread(mask)
    state = _start(h_0, x.shape[1:], chains.dtype)
    h = torch.empty(x.shape, dtype=x.dtype)
    after = place == "after"
    # Before the recurrence a norm takes any bias away again.
    added = bias.to(chains.dtype).contiguous() if after and bias is not None else None
    y = torch.empty(x.shape, dtype=x.dtype) if after or drop is not None else None
    first, second = chains.zeros(), chains.zeros()
    norm = None
    if not after:
        loaded.indrnn_sums(
            *chains.pass_, *_strided(x), *_NO_SERIES, _pointer(lengths), None, first.data_ptr(), second.data_ptr()
        )
        mean, var, rstd = chains.moments(first, second, count, eps)
        norm = chains.affine(None, shift, weight * rstd, mean)
    loaded.indrnn_forward(
        *_common(x, activation, False),
        *_strided(x),
        u.data_ptr(),
        _pointer(added),
        _pointer(lengths),
        _pointer(resets),
        h.data_ptr(),
        state.data_ptr(),
        None if norm is None else norm.addresses,
        None if after else _pointer(drop),
        None if after else _pointer(y),
        first.data_ptr() if after else None,
        second.data_ptr() if after else None,
    )
    if after:
        mean, var, rstd = chains.moments(first, second, count, eps)
        norm = chains.affine(None, shift, weight * rstd, mean, drop)
        assert y is not None
        loaded.indrnn_combine(*chains.pass_, *_NO_SERIES, *_strided(h), _pointer(lengths), norm.addresses, y.data_ptr())
    h_last = state.to(x.dtype)
    mean, var = mean.to(chains.dtype), var.to(chains.dtype)
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
    chains = _Chains(h, loaded)
    u_ = u.to(chains.dtype).contiguous()
    start = None if h_0 is None else h_0.to(chains.dtype).contiguous()
    carry = _start(grad_h_last, h.shape[1:], chains.dtype)
    lengths, resets = _flags(lengths, resets)
    count = chains.count(lengths)
    drop = None if mask is None else chains.spread(mask)
    rstd = (var.double() + eps).rsqrt()
    scale = weight.double() * rstd
    center = chains.spread(mean)
    first, second = chains.zeros(), chains.zeros()

    def correction(S1: Tensor, S2: Tensor, drop: Tensor | None) -> _Affine:
        """The norm's backward pass: scale · (g − S1/count − (v − mean) · rstd² · S2/count)."""
        gain = chains.spread(scale) if drop is None else chains.spread(scale) * drop
        return chains.affine(gain, -scale * S1 / count, -scale * rstd * rstd * S2 / count, mean)

    grad_x = torch.empty(h.shape, dtype=h.dtype)
    grad_u, grad_bias = torch.empty(u.shape, dtype=chains.dtype), torch.empty(u.shape, dtype=chains.dtype)
    sum_u, sum_bias = torch.zeros_like(carry), torch.zeros_like(carry)
    x = None if x is None else _with_contiguous_rows(x)
    norm = None
    if x is None:
        loaded.indrnn_sums(
            *chains.pass_,
            *_strided(grad_y),
            *_strided(h),
            _pointer(lengths),
            center.data_ptr(),
            first.data_ptr(),
            second.data_ptr(),
        )
        S1, S2 = (chains.add_up(sums if drop is None else sums * drop.double()) for sums in (first, second))
        norm = correction(S1, S2, drop)
    elif drop is not None:
        norm = chains.affine(drop, None, None, None)
    loaded.indrnn_backward(
        *_common(h, activation, False),
        *_strided(grad_y),
        h.data_ptr(),
        u_.data_ptr(),
        _pointer(start),
        _pointer(lengths),
        _pointer(resets),
        grad_x.data_ptr(),
        carry.data_ptr(),
        sum_u.data_ptr(),
        grad_u.data_ptr(),
        sum_bias.data_ptr(),
        grad_bias.data_ptr(),
        None if norm is None else norm.addresses,
        *(_NO_SERIES if x is None else _strided(x)),
        None if x is None else center.data_ptr(),
        None if x is None else first.data_ptr(),
        None if x is None else second.data_ptr(),
    )
    if x is not None:
        S1, S2 = chains.add_up(first), chains.add_up(second)
        norm = correction(S1, S2, None)
        loaded.indrnn_combine(
            *chains.pass_,
            *_strided(grad_x),
            *_strided(x),
            _pointer(lengths),
            norm.addresses,
            grad_x.data_ptr(),
        )
        grad_bias.zero_()
    grad_h_0 = carry.to(h.dtype if h_0 is None else h_0.dtype)
    grad_weight, grad_shift = (S2 * rstd).to(weight.dtype), S1.to(weight.dtype)
    return grad_x, grad_u.to(u.dtype), grad_bias.to(u.dtype), grad_h_0, grad_weight, grad_shift


_NO_SERIES = (None, 0, 0)


class _Affine:
    """The four constants of the kernel's affine form, kept alive with their addresses."""

    def __init__(self, *constants: Tensor | None) -> None:
        self.constants = constants
        self.addresses = (ctypes.c_void_p * 4)(*map(_pointer, constants))


class _Chains:
    """What is constant along the chains of a (T, B, ..., N) tensor: (B, ..., N), or (N,) before it is spread."""

    def __init__(self, x: Tensor, loaded: ctypes.CDLL) -> None:
        T, B, *between, self.N = x.shape
        self.T, self.B, self.M = T, B, math.prod(between)
        self.shape, self.dtype, self.loaded = x.shape[1:], accumulation_dtype(x.dtype), loaded
        self.pass_ = (_DTYPES[x.dtype], torch.get_num_threads(), T, B, self.M, self.N)

    def zeros(self) -> Tensor:
        return torch.zeros(self.shape, dtype=torch.float64)

    def count(self, lengths: Tensor | None) -> int:
        """How many numbers a neuron's statistics are of; 1 for none, whose sums are 0."""
        steps = self.T * self.B if lengths is None else int(lengths.sum())
        return max(1, steps * self.M)

    def spread(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).expand(1, *self.shape).reshape(self.shape).contiguous()

    def affine(
        self,
        gain: Tensor | None,
        offset: Tensor | None,
        slope: Tensor | None,
        center: Tensor | None,
        drop: Tensor | None = None,
    ) -> _Affine:
        spread = [None if value is None else self.spread(value) for value in (gain, offset, slope, center)]
        if drop is not None:
            spread[1:3] = [None if value is None else value * drop for value in spread[1:3]]
        return _Affine(*spread)

    def add_up(self, sums: Tensor) -> Tensor:
        total = torch.empty(self.N, dtype=torch.float64)
        self.loaded.indrnn_add_up(self.B, self.M, self.N, sums.data_ptr(), total.data_ptr())
        return total

    def moments(self, first: Tensor, second: Tensor, count: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and 1/√(variance + eps), in float64."""
        mean = self.add_up(first) / count
        var = (self.add_up(second) / count - mean * mean).clamp_min(0)
        return mean, var, (var + eps).rsqrt()


def _common(x: Tensor, activation: str, reverse: bool) -> tuple[int, ...]:
    T, B, *between, N = x.shape
    threads = torch.get_num_threads()
    return _DTYPES[x.dtype], _ACTIVATIONS[activation], int(reverse), threads, T, B, math.prod(between), N


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
        return torch.zeros(shape, dtype=dtype)
    return value.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _flags(lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (
        None if lengths is None else lengths.to(torch.int64).contiguous(),
        None if resets is None else resets.contiguous(),
    )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
