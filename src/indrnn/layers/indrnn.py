"""The IndRNN layer, and its cell."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..checks import check_choice, check_count, check_probability
from ..ops import ACTIVATIONS, BACKENDS, recurrence_, reference
from ..ops.checks import Lengths, as_lengths, check_resets, check_state, check_tensor
from ..ops.split import TimeSlice, check_whole
from . import BoundOptions
from .bound import RecurrentBound
from .config import describe
from .masks import dropout_mask, last_steps, unpack, without_padding
from .recompute import Parameters, in_pieces

Input = TypeVar("Input", Tensor, PackedSequence)


class IndRNN(nn.Module):
    """h_t = σ(W x_t + u ⊙ h_{t−1} + b), in one or more layers: a drop-in replacement for `torch.nn.RNN`.

    Input and output are as for `torch.nn.RNN`: (T, B, input_size), or (B, T, input_size) with `batch_first`, or
    (T, input_size) unbatched, or a `PackedSequence`. There is one state, `output, h_n = rnn(x)`, and not LSTM's (h, c):
    with two layers `output, (h, c) = rnn(x)` does not fail, but takes the first layer's state as h and the last's as c.

    Parameters of layer k are `weight_ih_lk` (hidden_size, inputs), `weight_hh_lk` (hidden_size,), which is u, and
    `bias_lk` (hidden_size,); with the suffix `_reverse` for the reverse direction. Weights start from
    U(±0.304/√inputs), biases from 0, u from U(0, γ^(1/T)).

    `indrnn.constrain_(module)` holds |u| <= γ^(1/T); `indrnn.attach_constraint(optimizer, module)` does so after each
    step. The bound is kept in the child module `bound`, and `bound.upper = math.inf` turns it off.

    Args:
        input_size, hidden_size, num_layers: as for `torch.nn.RNN`.
        nonlinearity: "relu", "tanh", "sigmoid" or "identity".
        bias: whether there is a b.
        batch_first: whether input, output, and `resets` have the batch before time (not the states, as in torch).
        dropout: probability of dropout after each layer but the last, with one mask for all time steps.
        bidirectional: also run over the sequence from its end; features of both directions are concatenated.
        backend: as for `indrnn.recurrence`.
        recompute: for very long sequences: keep only the states between pieces of this many steps, and recompute
            the rest, piece by piece, in the backward pass; None to keep everything. Not with `bidirectional`, and
            for first derivatives only.
        device, dtype: of the parameters.
        **recurrent: `gamma` (the bound on u is γ^(1/T), so that no gradient grows by more than γ; 1 if not given, None
            for no bound), `sequence_length` (T), `bound` (the bound itself), `long_memory` (for networks that use
            only the last step's output: u of the last layer starts in U(ε^(1/T), γ^(1/T))), `highest_start` (all others
            start in U(0, highest_start)), `epsilon` and `lower_bound`; see `RecurrentBound`.
    """

    weight_ih_l0: nn.Parameter
    weight_hh_l0: nn.Parameter
    bias_l0: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "relu",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        backend: str | None = None,
        recompute: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **recurrent: Unpack[BoundOptions],
    ) -> None:
        super().__init__()
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            check_count(name, value)
        check_choice("nonlinearity", nonlinearity, ACTIVATIONS)
        check_probability("dropout", dropout)
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"dropout = {dropout} acts after each layer but the last, so with num_layers = 1 it does nothing",
                stacklevel=2,
            )
        if recompute is not None:
            check_count("recompute", recompute)
            if bidirectional:
                raise ValueError("recompute cannot be combined with bidirectional: the reverse direction starts last")
        check_choice("backend", backend, BACKENDS)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.nonlinearity, self.bias, self.batch_first = nonlinearity, bias, batch_first
        self.dropout, self.bidirectional = float(dropout), bidirectional
        self.backend, self.recompute = backend, recompute
        self.bound = RecurrentBound(**recurrent)
        ways = ("", "_reverse") if bidirectional else ("",)
        self._directions = len(ways)
        self._suffixes = [f"_l{layer}{way}" for layer in range(num_layers) for way in ways]
        for i, suffix in enumerate(self._suffixes):
            inputs = input_size if i < self._directions else hidden_size * self._directions
            add_parameters(self, (hidden_size, inputs), (hidden_size,), bias, suffix, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        first_of_last = len(self._suffixes) - self._directions
        for i, suffix in enumerate(self._suffixes):
            init_parameters(self, suffix, long_memory=i >= first_of_last)

    def flatten_parameters(self) -> None:
        """Do nothing; for compatibility with code written for `torch.nn.RNN`."""

    def forward(
        self,
        input: Input,
        hx: Tensor | None = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        time_slice: TimeSlice | None = None,
    ) -> tuple[Input, Tensor]:
        """Run over a sequence.

        Args:
            input: (T, B, input_size), (B, T, input_size) with `batch_first`, (T, input_size), or a `PackedSequence`.
            hx: h_0, (num_layers · directions, B, hidden_size), without B for unbatched input; zeros if None.
            lengths: (B,), the steps of each sequence in a padded batch (no dimension for unbatched input); output
                beyond them is zero, and h_n is the state at each sequence's end.
            resets: bool, (T, B) or (B, T) as the input: the first step of a document. No state crosses it, in either
                direction.
            time_slice: the slice of the time steps that this process holds, from `indrnn.ops.split_time`.

        Returns:
            output, (T, B, directions · hidden_size) in the input's layout, and h_n, in h_0's shape.
        """
        if isinstance(input, PackedSequence):
            check_whole("a PackedSequence", time_slice)
            return self._forward_packed(input, hx, lengths, resets)
        if not isinstance(input, Tensor):
            raise TypeError(f"input must be a tensor or a PackedSequence, got {type(input).__name__}")
        lengths = as_lengths(lengths, input.device)
        if input.dim() not in (2, 3):
            raise ValueError(f"input must have two dimensions (unbatched) or three, got the shape {tuple(input.shape)}")
        batched = input.dim() == 3
        batch_dim, time_dim = (0, 1) if self.batch_first and batched else (1, 0)
        steps = input.shape[time_dim] if time_slice is None else time_slice.total
        batch = (input.shape[batch_dim],) if batched else ()
        self._check(input, steps, batch, hx, resets)
        check_tensor("lengths", lengths, batch)
        if not batched:
            input = input.unsqueeze(1)
            hx = None if hx is None else hx.unsqueeze(1)
            resets = None if resets is None else resets.unsqueeze(1)
            lengths = None if lengths is None else lengths.view(1)
        elif self.batch_first:
            # The input is copied here, where it is narrow, rather than each layer's gradient later.
            input = input.transpose(0, 1).contiguous()
            resets = None if resets is None else resets.transpose(0, 1)
        input = input if lengths is None else without_padding(input, lengths, time_slice)
        output, h_n = self._run(input, hx, lengths, resets, time_slice)
        if not batched:
            return output.squeeze(1), h_n.squeeze(1)
        return (output.transpose(0, 1) if self.batch_first else output), h_n

    def _run(
        self, x: Tensor, h_0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, time_slice: TimeSlice | None
    ) -> tuple[Tensor, Tensor]:
        """Time-major and batched: (T, B, M) to (T, B, directions · N) and (num_layers · directions, B, N)."""
        if self.training and torch.is_grad_enabled():
            self.bound.watch(lambda: [getattr(self, f"weight_hh{suffix}") for suffix in self._suffixes])
        B, N, L = x.shape[1], self.hidden_size, self.num_layers
        masks: list[Tensor | None] = [None] * (L - 1)
        if self.training and self.dropout > 0:
            like = x.new_empty(1, B, N * self._directions)
            masks = [dropout_mask(like, self.dropout, self.training, time_slice) for _ in masks]
        plain = time_slice is None and lengths is None and resets is None and self.backend is None
        if plain and not torch.compiler.is_compiling() and x.shape[0] == 1:  # a stream's step, quicker without the op
            return self._one_step(x, h_0, masks)
        parameters = [parameter for suffix in self._suffixes for parameter in _parameters(self, suffix)]
        if self.recompute is None:
            return self._layers(x, h_0, lengths, resets, parameters, masks, time_slice)
        check_whole("recompute", time_slice)
        h_0 = x.new_zeros(L, B, N) if h_0 is None else h_0
        return in_pieces(partial(self._layers, masks=masks), self.recompute, x, h_0, lengths, resets, parameters)

    def _layers(
        self,
        x: Tensor,
        h_0: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        parameters: Parameters,
        masks: Sequence[Tensor | None],
        time_slice: TimeSlice | None = None,
    ) -> tuple[Tensor, Tensor]:
        """With the parameters of each layer and direction in turn, and the mask after each layer but the last."""
        resets_of = [resets, None if resets is None or not self.bidirectional else last_steps(resets, lengths)]
        run = recurrence_ if time_slice is None else time_slice.recurrence
        h_n: list[Tensor] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                place = len(h_n)
                weight_ih, weight_hh, bias = parameters[3 * place : 3 * place + 3]
                h, h_last = run(
                    project(x, weight_ih),
                    weight_hh,
                    None if h_0 is None else h_0[place],
                    bias=bias,
                    activation=self.nonlinearity,
                    reverse=direction == 1,
                    lengths=lengths,
                    resets=resets_of[direction],
                    backend=self.backend,
                )
                outputs.append(h)
                h_n.append(h_last)
            x = self._joined(layer, outputs, masks)
        return x, h_n[0].unsqueeze(0) if len(h_n) == 1 else torch.stack(h_n)

    def _one_step(self, x: Tensor, h_0: Tensor | None, masks: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """As `_layers`, for (1, B, M)."""
        starts = [None] * len(self._suffixes) if h_0 is None else h_0.unsqueeze(1).unbind(0)
        h_n = []
        for layer in range(self.num_layers):
            outputs = []
            for place in range(layer * self._directions, (layer + 1) * self._directions):
                weight_ih, weight_hh, bias = _parameters(self, self._suffixes[place])
                outputs.append(_step(F.linear(x, weight_ih), weight_hh, bias, starts[place], self.nonlinearity))
            h_n += outputs
            x = self._joined(layer, outputs, masks)
        return x, torch.cat(h_n)

    def _joined(self, layer: int, outputs: list[Tensor], masks: Sequence[Tensor | None]) -> Tensor:
        """The output of a layer from those of its directions, after dropout."""
        x = torch.cat(outputs, dim=-1) if self.bidirectional else outputs[0]
        mask = masks[layer] if layer < self.num_layers - 1 else None
        return x if mask is None else x * mask.to(x.dtype)

    def _forward_packed(
        self, input: PackedSequence, hx: Tensor | None, lengths: Lengths, resets: Tensor | None
    ) -> tuple[PackedSequence, Tensor]:
        if lengths is not None:
            raise ValueError("lengths must be None with a PackedSequence, which has its own")
        padded, steps, pack = unpack(input)
        self._check(input.data, padded.shape[0], (padded.shape[1],), hx, resets)
        if resets is not None and self.batch_first:
            resets = resets.transpose(0, 1)
        if (order := input.sorted_indices) is not None:
            hx = None if hx is None else hx.index_select(1, order)
            resets = None if resets is None else resets.index_select(1, order)
        output, h_n = self._run(padded, hx, steps, resets, None)
        if input.unsorted_indices is not None:
            h_n = h_n.index_select(1, input.unsorted_indices)
        return pack(output), h_n

    def _check(
        self, input: Tensor, steps: int, batch: tuple[int, ...], hx: Tensor | None, resets: Tensor | None
    ) -> None:
        if input.shape[-1] != self.input_size:
            raise ValueError(f"input's last dimension must be input_size = {self.input_size}, got {input.shape[-1]}")
        check_state(input, hx, (self.num_layers * self._directions, *batch, self.hidden_size), self.weight_ih_l0)
        check_resets(resets, (*batch, steps) if self.batch_first else (steps, *batch))

    def extra_repr(self) -> str:
        """The arguments that are not at their defaults."""
        return describe(self, IndRNN)


class IndRNNCell(nn.Module):
    """One step, h' = σ(W x + u ⊙ h + b): a drop-in replacement for `torch.nn.RNNCell`.

    Parameters: `weight_ih` (hidden_size, input_size), `weight_hh` (hidden_size,), which is u, `bias` (hidden_size,).

    Args:
        input_size, hidden_size, device, dtype: as for `torch.nn.RNNCell`.
        bias: whether there is a b.
        nonlinearity: "relu", "tanh", "sigmoid" or "identity".
        **recurrent: as for `IndRNN`; see `RecurrentBound`.
    """

    weight_ih: nn.Parameter
    weight_hh: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "relu",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **recurrent: Unpack[BoundOptions],
    ) -> None:
        super().__init__()
        check_count("input_size", input_size)
        check_count("hidden_size", hidden_size)
        check_choice("nonlinearity", nonlinearity, ACTIVATIONS)
        self.input_size, self.hidden_size, self.nonlinearity = input_size, hidden_size, nonlinearity
        self.bound = RecurrentBound(**recurrent)
        add_parameters(self, (hidden_size, input_size), (hidden_size,), bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        init_parameters(self)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return h' (B, hidden_size) from the input (B, input_size) and h (B, hidden_size), each with or without B."""
        if not isinstance(input, Tensor):
            raise TypeError(f"input must be a tensor, got {type(input).__name__}")
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            expected = f"(B, {self.input_size}) or ({self.input_size},)"
            raise ValueError(f"input must have the shape {expected}, got {tuple(input.shape)}")
        weight = self.weight_ih
        if self.training and torch.is_grad_enabled():
            self.bound.watch(lambda: [self.weight_hh])
        check_state(input, hx, (*input.shape[:-1], self.hidden_size), weight)
        return _step(F.linear(input, weight), self.weight_hh, self.bias, hx, self.nonlinearity)

    def extra_repr(self) -> str:
        """The arguments that are not at their defaults."""
        return describe(self, IndRNNCell)


def project(x: Tensor, weight: Tensor) -> Tensor:
    """W x_t for each step: (T, B, M) to (T, B, N)."""
    T, B, M = x.shape
    # On a CPU the weight's gradient from a very narrow input is slow as one product (T = 1024, B = 50, M = 2: 19 ms)
    # and near what memory allows as a product per step and a sum (2.6 ms), which is how `bmm` with an expanded
    # weight is differentiated. While compiling, the test of B would become a guard.
    if 1 < M <= 8 and x.device.type == "cpu" and not torch.compiler.is_compiling() and B >= 8:
        return torch.bmm(x, weight.t().expand(T, -1, -1))
    return F.linear(x, weight)


def _step(x: Tensor, u: Tensor, bias: Tensor | None, h: Tensor | None, nonlinearity: str) -> Tensor:
    """One step in torch's own operations, which are quicker to call than the op for so little work."""
    h = torch.zeros_like(x) if h is None else h
    dtype = reference.accumulation_dtype(x.dtype)
    if dtype == x.dtype:
        return reference.step(x if bias is None else x + bias, u, h, nonlinearity)
    z = x.to(dtype) if bias is None else x.to(dtype) + bias.to(dtype)
    return reference.step(z, u.to(dtype), h.to(dtype), nonlinearity).to(x.dtype)


# ---- parameters, under the names that torch.nn.RNN gives them


def add_parameters(
    layer: nn.Module, weight_ih: Sequence[int], weight_hh: Sequence[int], bias: bool, suffix: str = "", **factory: Any
) -> None:
    """Add parameters of these shapes; a bias has a number for each neuron or channel."""
    shapes = {"weight_ih": weight_ih, "weight_hh": weight_hh, "bias": weight_hh[:1] if bias else None}
    for name, shape in shapes.items():
        parameter = None if shape is None else nn.Parameter(torch.empty(shape, **factory))
        layer.register_parameter(f"{name}{suffix}", parameter)


def init_parameters(layer: nn.Module, suffix: str = "", *, long_memory: bool = True) -> None:
    """Reinitialise the parameters of this suffix: the layer's, or those of one of its layers and directions."""
    weight_ih, weight_hh, bias = _parameters(layer, suffix)
    nn.init.kaiming_uniform_(weight_ih, a=8)
    assert isinstance(layer.bound, RecurrentBound)
    layer.bound.init_(weight_hh, long_memory)
    if bias is not None:
        nn.init.zeros_(bias)


def _parameters(layer: nn.Module, suffix: str) -> tuple[Tensor, Tensor, Tensor | None]:
    return getattr(layer, f"weight_ih{suffix}"), getattr(layer, f"weight_hh{suffix}"), getattr(layer, f"bias{suffix}")
