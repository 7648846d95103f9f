"""The plain stacked IndRNN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .config import Factory, Plain
from .network import Network
from .unit import RecurrentUnit, Weight


class PlainBlock(nn.Module):
    """[Weight → ReLU] · (weights_per_block − 1) → Weight → [norm] → recurrence → [norm] → dropout.

    The arguments are those of `RecurrentUnit`.
    """

    def __init__(
        self,
        inputs: int,
        size: int,
        config: Plain,
        dropout: float = 0.0,
        *,
        last: bool = False,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        sizes = [inputs, *[size] * (config.weights_per_block - 1)]
        self.weights = nn.ModuleList(Weight(n, size, std=config.weight_std, **factory) for n in sizes[:-1])
        self.unit = RecurrentUnit(sizes[-1], size, config, dropout, last=last, **factory)

    def forward(self, x: Tensor, state: Tensor | None = None, **steps: Any) -> tuple[Tensor, Tensor]:
        """(T, B, inputs) to (T, B, size), and the state; see `RecurrentUnit.forward`."""
        for weight in self.weights:
            x = torch.relu(weight(x))
        return self.unit(x, state, **steps)  # type: ignore[no-any-return]


class PlainIndRNN(Network):
    """Stacked IndRNN layers: blocks of Weight → recurrence → norm → dropout.

    Args:
        input_size: features of the input at each step.
        hidden_size: neurons of each layer; of each direction, with `bidirectional`.
        layers: number of layers.
        **options: see `Plain`, by name; `device` and `dtype` too.

    Example:
        network = indrnn.PlainIndRNN(1, 128, 6, sequence_length=784, long_memory=True, dropout=0.1)
    """

    Config = Plain
    config: Plain

    def _build(self, factory: Factory) -> int:
        config, size = self.config, self.config.hidden_size * self.config.ways
        self.blocks = nn.ModuleList(
            PlainBlock(size if i else self.input_size, size, config, p, last=i == config.layers - 1, **factory)
            for i, p in enumerate(config.dropouts)
        )
        return size

    def _features(self, x: Tensor, states: Iterator[Tensor | None], steps: Any) -> tuple[Tensor, list[Tensor]]:
        leaving = []
        for block in self.blocks:
            x, h = block(x, next(states), **steps)
            leaving.append(h)
        return x, leaving
