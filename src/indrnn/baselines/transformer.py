"""Transformer and R-Transformer baselines; the latter has a GRU over a short window before attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_tensor
from ..layers.padding import without_padding
from ..networks.config import Factory
from .config import Transformer
from .interface import BaselineNetwork


class TransformerBaseline(BaselineNetwork):
    """Layers of causal self-attention and a feed-forward network. Same interface as `indrnn.PlainIndRNN`.

    Positions are encoded by sinusoids. With a `window` it is the R-Transformer instead: in each layer, a GRU reads the
    last `window` steps at every step, and its state replaces the positional encoding.

    Without a `context` there is no state, and a sequence must be given whole. With one, the state is the input of the
    last `context` steps, (S, B, input_size) with S <= context: they are put before the input of the next call, and all
    its steps attend to all S of them. Positions count from the first of those. `resets` are not supported, nor are
    `lengths` with a context.

    The arguments are those of `BaselineNetwork`; the options, of `Transformer`: `heads`, `dropout`, `window`, `context`
    and `batch_first`.
    """

    Config = Transformer
    config: Transformer

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, heads: int = 4, **options: Any) -> None:
        super().__init__(input_size, hidden_size, num_layers, heads=heads, **{"dropout": 0.0, **options})

    def _build(self, factory: Factory) -> None:
        size, config = self.output_size, self.config
        self.window, self.context = config.window, config.context
        self.first = nn.Linear(self.input_size, size, **factory)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size, config.heads, 4 * size, config.dropout, norm_first=True, **factory)
            for _ in range(config.layers)
        )
        self.local = nn.ModuleList(
            nn.GRU(size, size, **factory) for _ in range(0 if config.window is None else config.layers)
        )
        self.last = nn.LayerNorm(size, **factory)

    def _run(self, input: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if state is not None and not self.context:
            raise ValueError("state is not supported: attention takes a sequence whole, or has a context")
        if lengths is not None and self.context:
            raise ValueError("lengths are not supported with a context: its steps are the last of every sequence")
        x = input.transpose(0, 1) if self.batch_first else input
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
        x = without_padding(self.last(x[steps - own :]), lengths)
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
