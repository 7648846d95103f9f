"""The residual IndRNN: shortcuts around pairs of recurrent layers, so that a hundred of them train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Unpack

from torch import Tensor, nn

from .config import Factory, Residual
from .network import Network
from .unit import RecurrentUnit, Weight


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

    def forward(
        self, x: Tensor, state: Sequence[Tensor | None] | None = None, **steps: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(T, B, size) to the same, and the states of its units; see `RecurrentUnit.forward`."""
        y, leaving = x, []
        for i in range(self.operations):
            y, h = getattr(self, f"unit{i + 1}")(y, None if state is None else state[i], **steps)
            leaving.append(h)
        return x + self.weight(y), tuple(leaving)


class ResidualIndRNN(Network):
    """x_l = x_{l−1} + F(x_{l−1}), F of `operations` times recurrence → norm → dropout → Weight (pre-activation).

    A first Weight brings the input to `hidden_size`, and a last recurrence follows the last block, so there are
    blocks · operations + 1 recurrent layers; one more with `last_transition`, which brings the features to another
    size. The paper's networks of 12, 21 and 100 layers are 5, 10 and 49 blocks of two here: 11, 21 and 99 recurrent
    layers (and 11, 21 and 99 Weights; with the classifier 12, 22 and 100).

    Args:
        input_size: features of the input at each step.
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
        smaller = config.last_transition * self.config.ways
        self.last = RecurrentUnit(None, size, config, config.dropout, **factory)
        self.transition = RecurrentUnit(size, smaller, config, final, last=True, **factory)
        return smaller

    def _features(self, x: Tensor, states: Iterator[Tensor | None], steps: Any) -> tuple[Tensor, list[Tensor]]:
        x, leaving = self.first(x), []
        for block in self.blocks:
            x, h = block(x, tuple(islice(states, self.config.operations)), **steps)
            leaving += h
        for unit in (self.last, self.transition):
            if unit is not None:
                x, h = unit(x, next(states), **steps)
                leaving.append(h)
        return x, leaving

    def extra_repr(self) -> str:
        """Recurrent layers, blocks and operations."""
        return f"{super().extra_repr()}, blocks={self.config.blocks} of {self.config.operations}"
