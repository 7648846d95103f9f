"""Moving average of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MovingAverage:
    """A moving average of weights, w̄ ← d w̄ + (1 − d) w with d = min(decay, (1 + step) / (10 + step))."""

    def __init__(self, parameters: list[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.values = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after a step."""
        torch._foreach_lerp_(self.values, list(self.parameters), 1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def load(self, values: list[Tensor]) -> None:
        """Restore the average from a checkpoint."""
        torch._foreach_copy_(self.values, values)

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the model's weights by the average."""
        torch._foreach_copy_(list(self.parameters), self.values)
