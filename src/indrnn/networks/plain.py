"""Layers upon layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..layers.checks import check_size
from ..layers.projection import project
from .network import Network, weight_layer
from .unit import IndRec, Recurrent, Run


class PlainIndRNN(Network):
    """Blocks of Weight → [BN] → IndRec+activation → [BN] → dropout.

    Args:
        input_size: features of the input at each step.
        hidden_size: neurons of each layer.
        num_layers: blocks.
        recurrent: how the recurrent layers are made; see `Recurrent`.
        dropout: probability after each block, with one mask for all time steps; one number, or one for each block.
        weights_per_block: Weights (with ReLU between them) before each recurrence: deeper processing of each step.
        batch_first: whether the batch comes before time in input and output.
        device: where the parameters are made.
        dtype: their type.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        recurrent: Recurrent | None = None,
        *,
        dropout: float | Sequence[float] = 0.0,
        weights_per_block: int = 1,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        for name, value in (sizes | {"weights_per_block": weights_per_block}).items():
            check_size(name, value)
        settings = recurrent or Recurrent()
        super().__init__(input_size, hidden_size, settings, batch_first)
        each = [dropout] * num_layers if isinstance(dropout, (int, float)) else list(dropout)
        if len(each) != num_layers:
            raise ValueError(f"dropout must be one number or num_layers = {num_layers} of them, got {len(each)}")
        self.weights = nn.ModuleList()
        self.recurrences = nn.ModuleList()
        for i, p in enumerate(each):
            inputs = [input_size if i == 0 else hidden_size, *[hidden_size] * (weights_per_block - 1)]
            self.weights.append(nn.ModuleList([weight_layer(n, hidden_size, device, dtype) for n in inputs]))
            last = i == num_layers - 1
            self.recurrences.append(IndRec(hidden_size, settings, p, last=last, device=device, dtype=dtype))

    def _features(self, x: Tensor, run: Run) -> Tensor:
        for weights, recurrence in zip(self.weights, self.recurrences, strict=True):
            assert isinstance(weights, nn.ModuleList)
            *first, final = weights
            for weight in first:
                x = torch.relu(weight(x))
            assert isinstance(final, nn.Linear)
            x = recurrence(project(x, final.weight), run, final.bias, overwrite=True)
        return x
