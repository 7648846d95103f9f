"""The algebra of the scan: clamped affine maps of a state, and their composition. docs/scan.md has the proof."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Map(NamedTuple):
    """h → clamp(a + b·h, lo, hi), elementwise, with lo <= hi."""

    a: Tensor
    b: Tensor
    lo: Tensor
    hi: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        """Apply it."""
        return torch.clamp(self.a + self.b * h, self.lo, self.hi)

    def after(self, first: Map) -> Map:
        """The map that applies `first` and then this one."""
        ends = self.a + self.b * first.lo, self.a + self.b * first.hi
        low, high = torch.minimum(*ends), torch.maximum(*ends)  # a negative slope swaps them
        return Map(
            self.a + self.b * first.a,
            self.b * first.b,
            torch.clamp(low, self.lo, self.hi),
            torch.clamp(high, self.lo, self.hi),
        )


def finite(*tensors: Tensor) -> bool:
    """Whether every number is finite; if not, the sequential order puts NaN and Inf where the equation does."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
