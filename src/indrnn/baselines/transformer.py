"""Transformer and R-Transformer baselines; the latter has a GRU over a short window before attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import Lengths, as_lengths, check_count, check_probability, check_tensor
from ..networks.network import last_step
from .config import Transformer


class TransformerBaseline(nn.Module):
    """Layers of causal self-attention and a feed-forward network. Same interface as `indrnn.PlainIndRNN`.

    Positions are encoded by sinusoids. With a `window` it is the R-Transformer instead: in each layer, a GRU reads the
    last `window` steps at every step, and its state replaces the positional encoding.

    Args:
        input_size: features of the input at each step.
        hidden_size: features of each layer; a multiple of `heads`.
        num_layers: layers.
        heads: attention heads.
        window: steps that the R-Transformer's GRU reads; None for the Transformer.
        dropout: probability in each layer.
        batch_first: whether the batch comes before time in input and output.
        context: steps before those of a call that it attends to; see `forward`.
        device: where the parameters are made.
        dtype: their type.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        heads: int = 4,
        *,
        window: int | None = None,
        dropout: float = 0.0,
        batch_first: bool = False,
        context: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers, "heads": heads}
        for name, value in sizes.items():
            check_count(name, value)
        if hidden_size % heads:
            raise ValueError(f"hidden_size must be a multiple of heads = {heads}, got {hidden_size}")
        if window is not None:
            check_count("window", window)
        check_probability("dropout", dropout)
        check_count("context", context, 0)
        self.config = Transformer(hidden_size, num_layers, heads, window, dropout, input_size, batch_first, context)
        self.context = context
        self.input_size, self.output_size, self.batch_first, self.window = input_size, hidden_size, batch_first, window
        self.first = nn.Linear(input_size, hidden_size, device=device, dtype=dtype)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden_size, heads, 4 * hidden_size, dropout, norm_first=True, device=device, dtype=dtype
            )
            for _ in range(num_layers)
        )
        self.local = nn.ModuleList(
            nn.GRU(hidden_size, hidden_size, device=device, dtype=dtype)
            for _ in range(0 if window is None else num_layers)
        )
        self.last = nn.LayerNorm(hidden_size, device=device, dtype=dtype)

    def forward(
        self,
        input: Tensor,
        state: Tensor | None = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run over a sequence, or over the next piece of one; see `indrnn.networks.Network.forward`.

        Without a `context` there is no state, and a sequence must be given whole. With one, the state is the input of
        the last `context` steps, (S, B, input_size) with S <= context: they are put before the input of the next call,
        and all its steps attend to all S of them. Positions count from the first of those. `resets` are not supported,
        nor are `lengths` with a context.
        """
        if resets is not None or (state is not None and not self.context):
            raise ValueError("state and resets are not served: attention takes a sequence whole, or has a context")
        if lengths is not None and self.context:
            raise ValueError("lengths are not served with a context: its steps are the last of every sequence")
        lengths = as_lengths(lengths, input.device)
        x = input.transpose(0, 1) if self.batch_first else input
        check_tensor("lengths", lengths, (x.shape[1],))
        own = x.shape[0]
        if state is not None:
            check_tensor("state", state, (len(state), *x.shape[1:]))
            x = torch.cat([state.to(x.dtype), x])
        after = x[max(0, len(x) - self.context) :] if self.context else None
        steps = x.shape[0]
        x = self.first(x)
        if self.window is None:
            x = x + sinusoids(steps, self.output_size, x)
        mask = nn.Transformer.generate_square_subsequent_mask(steps, x.device, x.dtype)
        for i, layer in enumerate(self.layers):
            if self.window is not None:
                x = x + self._recent(x, self.local[i], self.window)
            x = layer(x, src_mask=mask, is_causal=True)
        x = self.last(x[steps - own :])
        if last:
            return last_step(x, lengths), after
        if lengths is not None:
            valid = torch.arange(steps, device=x.device).unsqueeze(1) < lengths
            x = torch.where(valid.unsqueeze(-1), x, 0.0)
        return (x.transpose(0, 1) if self.batch_first else x), after

    def _recent(self, x: Tensor, local: nn.Module, window: int) -> Tensor:
        """The state of a GRU at each step, after reading the last `window` steps (zeros before the first)."""
        steps, batch, features = x.shape
        windows = F.pad(x, (0, 0, 0, 0, window - 1, 0)).unfold(0, window, 1)  # (T, B, F, window)
        _, read = local(windows.permute(3, 0, 1, 2).reshape(window, steps * batch, features))
        return read.view(steps, batch, features)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Kind and window."""
        return "transformer" if self.window is None else f"r-transformer, window={self.window}"


def sinusoids(steps: int, features: int, like: Tensor) -> Tensor:
    """(steps, 1, features): sine and cosine of the step, with periods from 2π to 10,000 times that."""
    step = torch.arange(steps, device=like.device, dtype=torch.float32).unsqueeze(1)
    rates = torch.exp(torch.arange(0, features, 2, device=like.device) * (-math.log(10_000) / features))
    angles = step * rates
    both = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :features]
    return both.unsqueeze(1).to(like.dtype)
