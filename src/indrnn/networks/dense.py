"""The densely connected IndRNN: each layer reads all layers before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .config import Dense, Factory
from .network import Network
from .unit import RecurrentUnit

States = Sequence[Tensor | None] | None


class DenseLayer(nn.Module):
    """Weight to 4k → recurrence (`bottleneck`), Weight to k → recurrence (`growth`), concatenated to the input.

    k is `growth_rate`; of both directions, with `bidirectional`.
    """

    def __init__(self, inputs: int, config: Dense, **factory: Unpack[Factory]) -> None:
        super().__init__()
        k = config.growth_rate * config.ways
        self.bottleneck = RecurrentUnit(inputs, 4 * k, config, config.bottleneck_dropout, **factory)
        self.growth = RecurrentUnit(4 * k, k, config, config.dense_dropout, **factory)

    def forward(self, x: Tensor, state: States = None, **steps: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(T, B, inputs) to (T, B, inputs + k), and the states of its two units; see `RecurrentUnit.forward`."""
        first, second = (None, None) if state is None else state
        y, h_bottleneck = self.bottleneck(x, first, **steps)
        y, h_growth = self.growth(y, second, **steps)
        return torch.cat([x, y], dim=-1), (h_bottleneck, h_growth)


class DenseBlock(nn.Module):
    """Dense layers, and a transition, one more recurrent unit of `size` neurons, to fewer features.

    `dropout` and `last` are of the transition; see `RecurrentUnit`.
    """

    def __init__(
        self,
        inputs: int,
        layers: int,
        size: int,
        config: Dense,
        dropout: float,
        *,
        last: bool = False,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        k = config.growth_rate * config.ways
        self.layers = nn.ModuleList(DenseLayer(inputs + i * k, config, **factory) for i in range(layers))
        self.transition = RecurrentUnit(inputs + layers * k, size, config, dropout, last=last, **factory)

    def forward(self, x: Tensor, state: States = None, **steps: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(T, B, inputs) to (T, B, size), and the states of its units; see `RecurrentUnit.forward`."""
        leaving: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x, h = layer(x, None if state is None else state[2 * i : 2 * i + 2], **steps)
            leaving += h
        x, h = self.transition(x, None if state is None else state[-1], **steps)
        return x, (*leaving, h)


class DenseIndRNN(Network):
    """Dense blocks: each dense layer adds `growth_rate` features to all those before it.

    A dense layer is Weight to 4k → recurrence, Weight to k → recurrence, and its output is concatenated to its input; a
    transition, after every block and the last one too, halves the features. With the default blocks there are 40
    recurrent layers: a first one, two in each of 18 dense layers, three transitions.

    Args:
        input_size: features of the input at each step.
        growth_rate: k; of each direction, with `bidirectional`.
        blocks: dense layers in each block.
        **options: see `Dense`, by name; `device` and `dtype` too.

    Example:
        network = indrnn.DenseIndRNN(1, 16, first_dropout=0.2, dense_dropout=0.2)
    """

    Config = Dense
    config: Dense

    def _build(self, factory: Factory) -> int:
        config, k = self.config, self.config.growth_rate * self.config.ways
        size = 6 * k if config.first_layer else self.input_size
        self.first = None
        if config.first_layer:
            self.first = RecurrentUnit(self.input_size, size, config, config.first_dropout, **factory)
        self.blocks = nn.ModuleList()
        for i, layers in enumerate(config.blocks):
            last = i == len(config.blocks) - 1
            smaller = (size + layers * k) // 2
            if last and config.last_transition is not None:
                smaller = config.last_transition * config.ways
            smaller -= smaller % config.ways
            p = config.last_dropout if last and config.last_dropout is not None else config.transition_dropout
            self.blocks.append(DenseBlock(size, layers, smaller, config, p, last=last, **factory))
            size = smaller
        return size

    def _features(self, x: Tensor, states: Iterator[Tensor | None], steps: Any) -> tuple[Tensor, list[Tensor]]:
        leaving = []
        if self.first is not None:
            x, h = self.first(x, next(states), **steps)
            leaving.append(h)
        for block, layers in zip(self.blocks, self.config.blocks, strict=True):
            x, h = block(x, [next(states) for _ in range(2 * layers + 1)], **steps)
            leaving += h
        return x, leaving
