"""QRNN, the quasi-recurrent network: convolutions over a few steps, and an elementwise gated recurrence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checks import check_tensor
from ..layers.dropout import shared_dropout
from ..networks.config import Factory
from .config import QRNN
from .interface import BaselineNetwork
from .sru import sru

State = tuple[tuple[Tensor, Tensor], ...]
"""State of each layer: c, (B, hidden_size), and the last steps of its input, (window − 1, B, inputs)."""


class QRNNBaseline(BaselineNetwork):
    """c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ z_t and h_t = o_t ⊙ c_t, in one or more layers.

    z_t, f_t and o_t are tanh, sigmoid and sigmoid of convolutions of the input over the last `window` steps (zeros
    before the first), so the recurrence has no matrix product. It is SRU's with gates that do not read c, computed by
    the same kernel. Same interface as `PlainIndRNN`, without `lengths` and `resets`; the state holds, for each layer, c
    and the last `window − 1` steps of its input.

    The arguments are those of `BaselineNetwork`; the options, of `QRNN`: `window`, `dropout` and `batch_first`.
    """

    Config = QRNN
    config: QRNN

    def _build(self, factory: Factory) -> None:
        sizes = [self.input_size, *[self.output_size] * (self.config.layers - 1)]
        self.window = self.config.window
        self.convolutions = nn.ModuleList(
            nn.Linear(self.window * inputs, 3 * self.output_size, **factory) for inputs in sizes
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise weights with variance 1/inputs, biases with 0."""
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Linear)
            bound = (3 / convolution.in_features) ** 0.5
            nn.init.uniform_(convolution.weight, -bound, bound)
            nn.init.zeros_(convolution.bias)

    def _run(self, input: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        if lengths is not None:
            raise ValueError("lengths are not supported by QRNNBaseline; give sequences of one length")
        if input.dim() != 3 or input.shape[2] != self.input_size:
            layout = "B, T" if self.batch_first else "T, B"
            raise ValueError(f"input must have the shape ({layout}, {self.input_size}), got {tuple(input.shape)}")
        if state is not None and len(state) != len(self.convolutions):
            raise ValueError(f"state must hold one of each of {len(self.convolutions)} layers, got {len(state)}")
        x = input.transpose(0, 1) if self.batch_first else input
        after = []
        for i, convolution in enumerate(self.convolutions):
            if i:
                x = shared_dropout(x, self.config.dropout, self.training)
            x, left = self._layer(x, convolution, None if state is None else state[i])
            after.append(left)
        return x.transpose(0, 1) if self.batch_first else x, tuple(after)

    def _layer(
        self, x: Tensor, convolution: nn.Module, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        T, B, inputs = x.shape
        N, before = self.output_size, self.window - 1
        c, earlier = (x.new_zeros(B, N), x.new_zeros(before, B, inputs)) if state is None else state
        check_tensor("state's c", c, (B, N))
        check_tensor("state's inputs", earlier, (before, B, inputs))
        longer = torch.cat([earlier.to(x.dtype), x])  # (T + window − 1, B, inputs)
        read = torch.cat([longer[i : i + T] for i in range(self.window)], dim=-1)
        z, gates = convolution(read).to(c.dtype).split([N, 2 * N], dim=-1)
        none = c.new_zeros(2, N)  # of what SRU's gates read of c, and of their biases
        h, c = sru(torch.cat([z.tanh(), gates], dim=-1), c.new_zeros(T, B, N), none, none, c)
        return h.to(x.dtype), (c, longer[T:])

    def extra_repr(self) -> str:
        """The window."""
        return f"window={self.window}"
