"""h_t = σ(x_t + u ⊙ h_{t−1}): one op, several ways to compute it."""

from .choice import Backend, backends
from .op import recurrence

__all__ = ["Backend", "backends", "recurrence"]
