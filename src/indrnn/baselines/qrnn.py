"""QRNN, the quasi-recurrent network: convolutions over a few steps, and an elementwise gated recurrence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checks import Lengths, check_count, check_probability, check_tensor
from ..layers.dropout import shared_dropout
from .config import QRNN
from .sru import sru

State = tuple[tuple[Tensor, Tensor], ...]
"""Of each layer c, (B, hidden_size), and the last window − 1 steps of its input, (window − 1, B, inputs)."""


class QRNNBaseline(nn.Module):
    """c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ z_t and h_t = o_t ⊙ c_t, in one or more layers.

    z_t, f_t and o_t are tanh, sigmoid and sigmoid of convolutions of the input over the last `window` steps (zeros
    before the first), so the recurrence has no matrix product. It is SRU's with gates that do not read c, computed by
    the same kernel. Same interface as `PlainIndRNN`.

    Args:
        input_size: features of the input at each step.
        hidden_size: neurons of each layer.
        num_layers: layers.
        window: steps that the convolutions read.
        dropout: probability between layers, with one mask for all time steps.
        batch_first: whether the batch comes before time in input and output.
        device: where the parameters are made.
        dtype: their type.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        window: int = 2,
        dropout: float = 0.0,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers, "window": window}
        for name, value in sizes.items():
            check_count(name, value)
        check_probability("dropout", dropout)
        self.config = QRNN(hidden_size, num_layers, window, dropout, input_size, batch_first)
        self.input_size, self.output_size, self.batch_first = input_size, hidden_size, batch_first
        self.window, self.dropout = window, float(dropout)
        self.convolutions = nn.ModuleList(
            nn.Linear(window * (input_size if layer == 0 else hidden_size), 3 * hidden_size, device=device, dtype=dtype)
            for layer in range(num_layers)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise weights with variance 1/inputs, biases with 0."""
        for each in self.convolutions:
            assert isinstance(each, nn.Linear)
            bound = (3 / each.in_features) ** 0.5
            nn.init.uniform_(each.weight, -bound, bound)
            nn.init.zeros_(each.bias)

    def forward(
        self,
        input: Tensor,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, State]:
        """Run over a sequence, or over the next piece of one; see `indrnn.networks.Network.forward`.

        The state holds, for each layer, c and the last `window − 1` steps of its input. `lengths` and `resets` are not
        supported.
        """
        if lengths is not None or resets is not None:
            raise ValueError("lengths and resets are not served by the QRNN; give sequences of one length")
        if input.dim() != 3 or input.shape[2] != self.input_size:
            layout = "(B, T, {0})" if self.batch_first else "(T, B, {0})"
            raise ValueError(f"input must have the shape {layout.format(self.input_size)}, got {tuple(input.shape)}")
        if state is not None and len(state) != len(self.convolutions):
            raise ValueError(f"state must hold one of each of {len(self.convolutions)} layers, got {len(state)}")
        x = input.transpose(0, 1) if self.batch_first else input
        after = []
        for i, convolution in enumerate(self.convolutions):
            if i:
                x = shared_dropout(x, self.dropout, self.training)
            x, left = self._layer(x, convolution, None if state is None else state[i])
            after.append(left)
        if last:
            return x[-1] if len(x) else x.new_zeros(x.shape[1:]), tuple(after)
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
