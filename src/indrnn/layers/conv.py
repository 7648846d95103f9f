"""The convolutional IndRNN: each channel at each position is a neuron with its own memory."""

from __future__ import annotations

import math
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_choice, check_count
from ..ops import ACTIVATIONS, BACKENDS, recurrence, reference
from ..ops.checks import Lengths, as_lengths, check_resets, check_state, check_tensor
from ..ops.split import TimeSlice
from . import BoundOptions
from .bound import RecurrentBound
from .config import describe
from .indrnn import add_parameters, init_parameters
from .masks import last_steps, without_padding

# C is channels; S stands for the sizes of the positions: L, or H, W.


class _ConvIndRNN(nn.Module):
    """Base of the convolutional layers, for any number of dimensions."""

    _dims: ClassVar[int]

    weight_ih: nn.Parameter
    weight_hh: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        nonlinearity: str = "relu",
        batch_first: bool = False,
        *,
        reverse: bool = False,
        positions: int | tuple[int, ...] | None = None,
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **recurrent: Unpack[BoundOptions],
    ) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            check_count(name, value)
        if in_channels % groups or out_channels % groups:
            channels = f"in_channels = {in_channels} and out_channels = {out_channels}"
            raise ValueError(f"groups must divide {channels}, got {groups}")
        check_choice("nonlinearity", nonlinearity, ACTIVATIONS)
        check_choice("backend", backend, BACKENDS)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.nonlinearity, self.batch_first, self.reverse, self.backend = nonlinearity, batch_first, reverse, backend
        self.kernel_size = self._sizes("kernel_size", kernel_size)
        self.stride = self._sizes("stride", stride)
        self.padding = padding if isinstance(padding, str) else self._sizes("padding", padding, least=0)
        self.dilation = self._sizes("dilation", dilation)
        self.positions = None if positions is None else self._sizes("positions", positions)
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"padding must be 'same', 'valid' or in numbers, got {padding!r}")
        if padding == "same" and max(self.stride) > 1:
            raise ValueError(f"padding must not be 'same' where stride is not 1, got a stride of {self.stride}")
        self.bound = RecurrentBound(**recurrent)
        weight_ih = (out_channels, in_channels // groups, *self.kernel_size)
        weight_hh = (out_channels, *(self.positions or ()))
        add_parameters(self, weight_ih, weight_hh, bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        init_parameters(self)

    def forward(
        self,
        input: Tensor,
        hx: Tensor | None = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        time_slice: TimeSlice | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run over a sequence.

        Args:
            input: (T, B, in_channels, S), (B, T, in_channels, S) with `batch_first`, where S is L or H, W.
            hx: h_0, (B, out_channels, S_out); zeros if None.
            lengths: as for `IndRNN`.
            resets: as for `IndRNN`.
            time_slice: as for `IndRNN`.

        Returns:
            output, (T, B, out_channels, S_out) in the input's layout, and h_n, (B, out_channels, S_out).
        """
        size = self._output_size(input)
        lengths = as_lengths(lengths, input.device)
        T, B = input.shape[1::-1] if self.batch_first else input.shape[:2]
        check_state(input, hx, (B, self.out_channels, *size), self.weight_ih)
        check_tensor("lengths", lengths, (B,))
        steps = T if time_slice is None else time_slice.total
        check_resets(resets, (B, steps) if self.batch_first else (steps, B))
        if self.training:
            self.bound.watch(lambda: [self.weight_hh])
        if self.batch_first:
            input = input.transpose(0, 1)
            resets = None if resets is None else resets.transpose(0, 1)
        input = without_padding(input, lengths, time_slice)
        if resets is not None and self.reverse:
            resets = last_steps(resets, lengths)

        convolve = F.conv1d if self._dims == 1 else F.conv2d
        frames = input.flatten(0, 1)  # (T · B, C_in, S)
        x = convolve(frames, self.weight_ih, None, self.stride, self.padding, self.dilation, self.groups)
        run = recurrence if time_slice is None else time_slice.recurrence
        h, h_n = run(
            x.reshape(T, B, self.out_channels * math.prod(size)),
            self._per_neuron(self.weight_hh, size),
            None if hx is None else hx.flatten(1),
            bias=None if self.bias is None else self._per_neuron(self.bias, size),
            activation=self.nonlinearity,
            reverse=self.reverse,
            lengths=lengths,
            resets=resets,
            backend=self.backend,
        )
        h, h_n = (value.unflatten(-1, (self.out_channels, *size)) for value in (h, h_n))
        return (h.transpose(0, 1) if self.batch_first else h), h_n

    def _per_neuron(self, parameter: Tensor, size: tuple[int, ...]) -> Tensor:
        """(C,) or (C, S) to (C · S,), in the accumulation type, so that no position's part of a gradient is rounded."""
        shared = [1] * (1 + self._dims - parameter.dim())
        parameter = parameter.to(reference.accumulation_dtype(parameter.dtype))
        return parameter.view(*parameter.shape, *shared).expand(self.out_channels, *size).flatten()

    def _output_size(self, input: Tensor) -> tuple[int, ...]:
        """S_out; raises if the input does not fit."""
        if not isinstance(input, Tensor):
            raise TypeError(f"input must be a tensor, got {type(input).__name__}")
        if input.dim() != 3 + self._dims or input.shape[2] != self.in_channels:
            time_and_batch = "B, T" if self.batch_first else "T, B"
            expected = f"({time_and_batch}, {self.in_channels}, {'L' if self._dims == 1 else 'H, W'})"
            raise ValueError(f"input must have the shape {expected}, got {tuple(input.shape)}")
        size = tuple(input.shape[3:])
        if self.padding != "same":
            padding = (0,) * self._dims if isinstance(self.padding, str) else self.padding
            dimensions = zip(size, self.kernel_size, self.stride, padding, self.dilation, strict=True)
            size = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in dimensions)
        if min(size) < 1:
            kernel = f"kernel_size = {self.kernel_size} with dilation = {self.dilation} and padding = {self.padding}"
            raise ValueError(f"input must not be smaller than {kernel} allows, got {tuple(input.shape[3:])}")
        if self.positions is not None and size != self.positions:
            raise ValueError(f"positions must be the output's, {size} for this input, got {self.positions}")
        return size

    def _sizes(self, name: str, value: int | tuple[int, ...], least: int = 1) -> tuple[int, ...]:
        """One integer for each dimension."""
        sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,) * self._dims
        if len(sizes) != self._dims:
            expected = "one integer" if self._dims == 1 else f"one integer or {self._dims}"
            raise ValueError(f"{name} must be {expected}, got {value!r}")
        for size in sizes:
            check_count(name, size, least)
        return sizes

    def extra_repr(self) -> str:
        """The arguments that are not at their defaults."""
        return describe(self, _ConvIndRNN)


class ConvIndRNN1d(_ConvIndRNN):
    """h_t = σ(W * x_t + u ⊙ h_{t−1} + b), where W * x_t is the convolution of `torch.nn.Conv1d`.

    Takes (T, B, in_channels, L) to (T, B, out_channels, L_out), or with B before T if `batch_first`. Parameters:
    `weight_ih` (out_channels, in_channels / groups, kernel_size), `weight_hh`, which is u, (out_channels,) or
    (out_channels, L_out), and `bias` (out_channels,). Kernels start from U(±0.304/√inputs), where inputs are those of
    one output, biases from 0, u from U(0, γ^(1/T)).

    `indrnn.constrain_` and `indrnn.attach_constraint` hold |u| <= γ^(1/T), as for `IndRNN`.

    Args:
        in_channels, out_channels, kernel_size, stride, dilation, groups: as for `torch.nn.Conv1d`.
        padding: zeros on both sides, or "same" or "valid".
        bias: whether there is a b.
        nonlinearity: "relu", "tanh", "sigmoid" or "identity".
        batch_first: whether input, output, and `resets` have the batch before time (not the states).
        reverse: go from the last step to the first.
        positions: L_out, to have a u for each channel and position; None to have one for each channel.
        backend: as for `indrnn.recurrence`.
        device, dtype: of the parameters.
        **recurrent: as for `IndRNN`; see `RecurrentBound`.
    """

    _dims = 1


class ConvIndRNN2d(_ConvIndRNN):
    """h_t = σ(W * x_t + u ⊙ h_{t−1} + b), where W * x_t is the convolution of `torch.nn.Conv2d`.

    Takes (T, B, in_channels, H, W) to (T, B, out_channels, H_out, W_out). All arguments are those of `ConvIndRNN1d`,
    but `kernel_size`, `stride`, `padding`, `dilation` and `positions` are each a pair, or one integer for both: u is
    (out_channels,), or (out_channels, H_out, W_out) with `positions` (H_out, W_out).
    """

    _dims = 2
