"""Each layer reads all layers before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..layers.checks import check_probability, check_size
from ..layers.projection import project
from .network import Network, weight_layer
from .unit import IndRec, Recurrent, Run


@dataclass(frozen=True)
class DenseDropout:
    """Where a dense network drops out, each with one mask for all time steps.

    Args:
        first: after the first layer.
        bottleneck: after the 4k-wide half of a dense layer.
        dense: after the k-wide half of a dense layer.
        transition: after a transition.
        last: after the last transition; `transition` if None.
    """

    first: float = 0.0
    bottleneck: float = 0.0
    dense: float = 0.0
    transition: float = 0.0
    last: float | None = None

    def __post_init__(self) -> None:
        for name in ("first", "bottleneck", "dense", "transition", "last"):
            value = getattr(self, name)
            if value is not None:
                check_probability(f"dropout.{name}", value)


class DenseIndRNN(Network):
    """Dense blocks: each dense layer adds `growth_rate` features to all those before it.

    A dense layer is Weight to 4k → IndRec, Weight to k → IndRec, and its output is concatenated to its input; a
    transition, after every block and the last one too, halves the features. With the default blocks there are 40
    recurrent layers: one at first, two in each of 18 dense layers, three transitions.

    Args:
        input_size: features of the input at each step.
        growth_rate: k.
        blocks: dense layers in each block.
        recurrent: how the recurrent layers are made; the norm is "before" unless given.
        dropout: see `DenseDropout`.
        first_layer: whether a layer of 6k neurons comes first; not where the input is an embedding.
        last_transition: neurons of the last transition; half of its input if None.
        batch_first: whether the batch comes before time in input and output.
        device: where the parameters are made.
        dtype: their type.
    """

    def __init__(
        self,
        input_size: int,
        growth_rate: int,
        blocks: Sequence[int] = (8, 6, 4),
        recurrent: Recurrent | None = None,
        *,
        dropout: DenseDropout | None = None,
        first_layer: bool = True,
        last_transition: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_size("input_size", input_size)
        check_size("growth_rate", growth_rate)
        if not blocks:
            raise ValueError("blocks must hold at least one number of dense layers, got none")
        for layers in blocks:
            check_size("blocks", layers)
        if last_transition is not None:
            check_size("last_transition", last_transition)
        if dropout is not None and not isinstance(dropout, DenseDropout):
            raise TypeError(f"dropout must be a DenseDropout or None, got {type(dropout).__name__}")
        settings, drop, k = recurrent or Recurrent(norm="before"), dropout or DenseDropout(), growth_rate

        def layer(inputs: int, outputs: int, p: float, last: bool = False) -> nn.ModuleList:
            recurrence = IndRec(outputs, settings, p, last=last, device=device, dtype=dtype)
            return nn.ModuleList([weight_layer(inputs, outputs, device, dtype), recurrence])

        size = 6 * k if first_layer else input_size
        first = layer(input_size, size, drop.first) if first_layer else None
        dense_blocks, transitions = nn.ModuleList(), nn.ModuleList()
        for i, layers in enumerate(blocks):
            pairs = nn.ModuleList()
            for _ in range(layers):
                pairs.append(nn.ModuleList([layer(size, 4 * k, drop.bottleneck), layer(4 * k, k, drop.dense)]))
                size += k
            last = i == len(blocks) - 1
            half = last_transition if last and last_transition is not None else size // 2
            p = drop.last if last and drop.last is not None else drop.transition
            dense_blocks.append(pairs)
            transitions.append(layer(size, half, p, last))
            size = half
        super().__init__(input_size, size, settings, batch_first)
        self.first = first
        # In the order in which they run, so that the states are in that order too.
        self.blocks = nn.ModuleList(
            nn.ModuleList([pairs, transition]) for pairs, transition in zip(dense_blocks, transitions, strict=True)
        )

    def _features(self, x: Tensor, run: Run) -> Tensor:
        if self.first is not None:
            x = _apply(self.first, x, run)
        for block in self.blocks:
            pairs, transition = _modules(block)
            for pair in _modules(pairs):
                bottleneck, dense = _modules(pair)
                x = torch.cat([x, _apply(dense, _apply(bottleneck, x, run), run)], dim=-1)
            x = _apply(transition, x, run)
        return x


def _apply(layer: nn.Module, x: Tensor, run: Run) -> Tensor:
    """Weight, then IndRec."""
    weight, recurrence = _modules(layer)
    assert isinstance(weight, nn.Linear)
    return recurrence(project(x, weight.weight), run, weight.bias, overwrite=True)  # type: ignore[no-any-return]


def _modules(module: nn.Module) -> list[nn.Module]:
    assert isinstance(module, nn.ModuleList)
    return list(module)
