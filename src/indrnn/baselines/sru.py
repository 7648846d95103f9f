"""SRU, the Simple Recurrent Unit, which the paper's complexity figure compares with."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..layers.indrnn import project
from ..networks.config import Factory
from ..ops.calls import written_out
from ..ops.checks import check_tensor
from ..ops.cpu import kernel


class SRU(nn.Module):
    """c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ W x_t and h_t = r_t ⊙ c_t + (1 − r_t) ⊙ x_t, in one or more layers.

    The gates are f_t = sigmoid(W_f x_t + v_f ⊙ c_{t−1} + b_f) and r_t likewise. If a layer's input and output
    sizes differ, another product of x_t replaces x_t in h_t. On a CPU the recurrence is one loop of the C++ kernel,
    forward and backward, in float32 and float64; elsewhere it is a loop of torch's operations. The arguments are as for
    `indrnn.IndRNN`.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **factory: Unpack[Factory]) -> None:
        super().__init__()
        for name, value in {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}.items():
            check_count(name, value)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else hidden_size
            rows = (3 if inputs == hidden_size else 4) * hidden_size
            for name, shape in {"weight": (rows, inputs), "v": (2, hidden_size), "bias": (2, hidden_size)}.items():
                setattr(self, f"{name}_l{layer}", nn.Parameter(torch.empty(shape, **factory)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the products with variance 1/inputs, v from U(±1), the biases with 0."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                bound = (3 / parameter.shape[1]) ** 0.5
                nn.init.uniform_(parameter, -bound, bound)
            elif name.startswith("v"):
                nn.init.uniform_(parameter, -1, 1)
            else:
                nn.init.zeros_(parameter)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run over (T, B, input_size) from hx = c_0, (num_layers, B, hidden_size), or zeros.

        Returns output, (T, B, hidden_size), and c_n, in the shape of c_0.
        """
        if input.dim() != 3 or input.shape[2] != self.input_size:
            raise ValueError(f"input must have the shape (T, B, {self.input_size}), got {tuple(input.shape)}")
        shape = (self.num_layers, input.shape[1], self.hidden_size)
        check_tensor("hx", hx, shape)
        hx = input.new_zeros(shape) if hx is None else hx
        last = []
        for layer, c_0 in enumerate(hx):
            weight, v, bias = (getattr(self, f"{name}_l{layer}") for name in ("weight", "v", "bias"))
            skip = input if input.shape[2] == self.hidden_size else None
            input, c_n = sru(project(input, weight), skip, v, bias, c_0)
            last.append(c_n)
        return input, torch.stack(last)


def sru(projected: Tensor, skip: Tensor | None, v: Tensor, bias: Tensor, c_0: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence of SRU: h (T, B, N), and the last c (B, N), from `c_0` (B, N).

    `projected` is W x_t, W_f x_t and W_r x_t concatenated, (T, B, 3N), and last the skip connection unless `skip`
    (T, B, N) is given; `v` and `bias`, (2, N), are v_f and v_r, b_f and b_r.
    """
    if projected.dtype in (torch.float32, torch.float64) and projected.is_cpu and _is_declared(kernel.library()):
        return _SRU.apply(projected, skip, v, bias, c_0)  # type: ignore[no-any-return]
    return reference(projected, skip, v, bias, c_0)


def reference(projected: Tensor, skip: Tensor | None, v: Tensor, bias: Tensor, c_0: Tensor) -> tuple[Tensor, Tensor]:
    """`sru` as a loop over time."""
    parts = projected.split(v.shape[1], dim=2)
    skip = parts[3] if skip is None else skip
    c, rows = c_0, []
    for x, a, p, s in zip(*parts[:3], skip, strict=True):
        f = torch.sigmoid(a + v[0] * c + bias[0])
        r = torch.sigmoid(p + v[1] * c + bias[1])
        c = f * c + (1 - f) * x
        rows.append(r * c + (1 - r) * s)
    return torch.stack(rows), c


class _SRU(torch.autograd.Function):
    """The kernel's forward and backward loops; differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, skip: Tensor | None, v: Tensor, bias: Tensor, c_0: Tensor
    ) -> tuple[Tensor, Tensor]:
        inputs = [x if x is None else written_out(x).contiguous() for x in (projected, skip, v, bias, c_0)]
        shape = (*projected.shape[:2], v.shape[1])
        c, h = projected.new_empty(shape), projected.new_empty(shape)
        _run(*inputs, c, h)
        ctx.save_for_backward(*inputs, c)
        return h, (c[-1] if len(c) else c_0).clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, c = ctx.saved_tensors
        projected, skip, v = inputs[:3]
        carry = written_out(grad_c).clone(memory_format=torch.contiguous_format)
        grad_projected, grad_skip = torch.empty_like(projected), None if skip is None else torch.empty_like(skip)
        sums = torch.empty(4, v.shape[1], dtype=torch.float64)
        _run(*inputs, c, None, written_out(grad_h).contiguous(), carry, grad_projected, grad_skip, sums)
        grad_v, grad_bias = sums.to(v.dtype).split(2)
        return grad_projected, grad_skip, grad_v, grad_bias, carry


# ---- the kernel's loop: sru.cpp

_TENSORS = ["projected", "skip", "v", "b", "c_0", "c", "h", "grad_h", "carry", "grad_projected", "grad_skip", "sums"]


class _Call(ctypes.Structure):
    """`SruCall` of sru.cpp: the same fields in the same order."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("dtype", "threads")),
        *((name, ctypes.c_int64) for name in ("T", "B", "N", "missing")),
        *kernel.pointers(*_TENSORS),
    )


@functools.cache
def _is_declared(loaded: ctypes.CDLL | str) -> bool:
    """Whether there is a kernel, whose loop ctypes now knows."""
    if isinstance(loaded, str):
        return False
    loaded.indrnn_sru_size.argtypes, loaded.indrnn_sru_size.restype = [], ctypes.c_int64
    assert loaded.indrnn_sru_size() == ctypes.sizeof(_Call), "sru.cpp and sru.py differ in what one hands the other"
    kernel.declare(loaded, "sru", _Call)
    return True


def _run(*tensors: Any) -> None:
    """Run forward, or, given the last five tensors, backward: contiguous, in the order of `_TENSORS`."""
    c = tensors[_TENSORS.index("c")]
    sizes = dict(zip("TBN", c.shape, strict=True))
    pointers = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    addresses = dict(zip(_TENSORS, pointers, strict=False))
    kernel.run("sru", _Call(dtype=kernel.DTYPES[c.dtype], threads=torch.get_num_threads(), **sizes, **addresses))
