"""Shortcuts around pairs of layers, so that a hundred of them train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..layers.checks import check_probability, check_size
from .network import Network, weight_layer
from .unit import IndRec, Recurrent, Run


class ResidualIndRNN(Network):
    """x_l = x_{l−1} + F(x_{l−1}), F of `operations` times BN → IndRec+activation → dropout → Weight (pre-activation).

    A first Weight brings the input to `hidden_size`, and a last IndRec follows the last block, so there are
    num_blocks · operations + 1 recurrent layers. The paper's networks of 12, 21 and 100 layers are 5, 10 and 49 blocks
    of two here: 11, 21 and 99 recurrent layers (and 11, 21 and 99 Weights; with the classifier 12, 22 and 100).

    Args:
        input_size: features of the input at each step.
        hidden_size: neurons of each layer.
        num_blocks: blocks, each with a shortcut around it.
        recurrent: how the recurrent layers are made; the norm is "before" unless given.
        operations: recurrent layers in each block.
        dropout: probability after each recurrent layer, with one mask for all time steps.
        last_dropout: the same after the last; `dropout` if None.
        batch_first: whether the batch comes before time in input and output.
        device: where the parameters are made.
        dtype: their type.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_blocks: int,
        recurrent: Recurrent | None = None,
        *,
        operations: int = 2,
        dropout: float = 0.0,
        last_dropout: float | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_blocks": num_blocks}
        for name, value in (sizes | {"operations": operations}).items():
            check_size(name, value)
        if last_dropout is not None:
            check_probability("last_dropout", last_dropout)
        settings = recurrent or Recurrent(norm="before")
        super().__init__(input_size, hidden_size, settings, batch_first)
        self.first = weight_layer(input_size, hidden_size, device, dtype)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.ModuleList(
                    [
                        IndRec(hidden_size, settings, dropout, device=device, dtype=dtype),
                        weight_layer(hidden_size, hidden_size, device, dtype),
                    ]
                )
                for _ in range(operations)
            )
            for _ in range(num_blocks)
        )
        final = dropout if last_dropout is None else last_dropout
        self.last = IndRec(hidden_size, settings, final, last=True, device=device, dtype=dtype)

    def _features(self, x: Tensor, run: Run) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            assert isinstance(block, nn.ModuleList)
            y = x
            for operation in block:
                assert isinstance(operation, nn.ModuleList)
                y = operation[1](operation[0](y, run))
            x = x + y
        return self.last(x, run)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """How the depth is counted."""
        return f"{super().extra_repr()}, blocks={len(self.blocks)} of {len(self.blocks[0])}"  # type: ignore[arg-type]
