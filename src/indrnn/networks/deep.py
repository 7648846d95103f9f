"""The deep networks: plain stacked, residual, and densely connected IndRNNs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .config import Dense, Factory, Plain, Residual
from .network import Network
from .unit import RecurrentUnit, Weight

States = Sequence[Tensor | None] | None


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
        hidden_size: neurons of each layer; of each direction, with `bidirectional`.
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
        return _in_turn(self.blocks, x, states, steps)


class ResidualBlock(nn.Module):
    """x + F(x), F of `operations` times recurrence → norm → dropout → Weight (pre-activation).

    The units are `unit1`, `unit2`, ...; each but the first includes the Weight before it, and `weight` is the last.
    """

    def __init__(self, size: int, config: Residual, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.operations = config.operations
        for i in range(config.operations):
            unit = RecurrentUnit(size if i else None, size, config, config.dropout, **factory)
            self.add_module(f"unit{i + 1}", unit)
        self.weight = Weight(size, size, std=config.weight_std, **factory)

    def forward(self, x: Tensor, state: States = None, **steps: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(T, B, size) to the same, and the states of its units; see `RecurrentUnit.forward`."""
        units = [getattr(self, f"unit{i + 1}") for i in range(self.operations)]
        y, leaving = _in_turn(units, x, state, steps)
        return x + self.weight(y), tuple(leaving)


class ResidualIndRNN(Network):
    """x_l = x_{l−1} + F(x_{l−1}), F of `operations` times recurrence → norm → dropout → Weight (pre-activation).

    A first Weight brings the input to `hidden_size`, and a last recurrence follows the last block, so there are
    blocks · operations + 1 recurrent layers; one more with `last_transition`, which brings the features to another
    size. The paper's networks of 12, 21 and 100 layers are 5, 10 and 49 blocks of two here: 11, 21 and 99 recurrent
    layers (and 11, 21 and 99 Weights; with the classifier 12, 22 and 100).

    Args:
        hidden_size: neurons of each layer; of each direction, with `bidirectional`.
        blocks: number of blocks, each with a shortcut around it.
        **options: see `Residual`, by name; `device` and `dtype` too.

    Example:
        network = indrnn.ResidualIndRNN(1, 128, 5, dropout=0.1)
    """

    Config = Residual
    config: Residual

    def _build(self, factory: Factory) -> int:
        config, size = self.config, self.config.hidden_size * self.config.ways
        self.first = Weight(self.input_size, size, std=config.weight_std, **factory)
        self.blocks = nn.ModuleList(ResidualBlock(size, config, **factory) for _ in range(config.blocks))
        final = config.dropout if config.last_dropout is None else config.last_dropout
        if config.last_transition is None:
            self.last = RecurrentUnit(None, size, config, final, last=True, **factory)
            self.transition = None
            return size
        smaller = config.last_transition * config.ways
        self.last = RecurrentUnit(None, size, config, config.dropout, **factory)
        self.transition = RecurrentUnit(size, smaller, config, final, last=True, **factory)
        return smaller

    def _features(self, x: Tensor, states: Iterator[Tensor | None], steps: Any) -> tuple[Tensor, list[Tensor]]:
        x, leaving = self.first(x), []
        for block in self.blocks:
            x, h = block(x, tuple(islice(states, self.config.operations)), **steps)
            leaving += h
        x, h = _in_turn((self.last, self.transition), x, states, steps)
        return x, leaving + h

    def extra_repr(self) -> str:
        """Recurrent layers, blocks and operations."""
        return f"{super().extra_repr()}, blocks={self.config.blocks} of {self.config.operations}"


class DenseLayer(nn.Module):
    """Weight to 4k → recurrence (`bottleneck`), Weight to k → recurrence (`growth`), concatenated to the input.

    k is `growth_rate`; of both directions, with `bidirectional`.
    """

    def __init__(self, inputs: int, config: Dense, **factory: Unpack[Factory]) -> None:
        super().__init__()
        k = config.growth_rate * config.ways
        self.bottleneck = RecurrentUnit(inputs, 4 * k, config, config.bottleneck_dropout, **factory)
        self.growth = RecurrentUnit(4 * k, k, config, config.dense_dropout, **factory)

    def forward(self, x: Tensor, state: States = None, **steps: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(T, B, inputs) to (T, B, inputs + k), and the states of its two units; see `RecurrentUnit.forward`."""
        y, leaving = _in_turn((self.bottleneck, self.growth), x, state, steps)
        return torch.cat([x, y], dim=-1), tuple(leaving)


class DenseBlock(nn.Module):
    """Dense layers, and a transition to `size` features: one more recurrent unit, with `dropout` and `last`."""

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
        x, leaving = _in_turn((self.first,), x, states, steps)
        for block, layers in zip(self.blocks, self.config.blocks, strict=True):
            x, h = block(x, tuple(islice(states, 2 * layers + 1)), **steps)
            leaving += h
        return x, leaving


def _in_turn(
    units: Iterable[nn.Module | None], x: Tensor, states: Iterable[Tensor | None] | None, steps: dict[str, Any]
) -> tuple[Tensor, list[Tensor]]:
    """Run the units that are there, each over the output of the one before."""
    entering, leaving = repeat(None) if states is None else iter(states), []
    for unit in units:
        if unit is not None:
            x, h = unit(x, next(entering), **steps)
            leaving.append(h)
    return x, leaving
