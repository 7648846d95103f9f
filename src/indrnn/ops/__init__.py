"""h_t = σ(x_t + u ⊙ h_{t−1}): one op, several ways to compute it."""

from .choice import Backend, backends
from .op import recurrence
from .split import split_recurrence, split_time, sum_gradients
from .timeline import timeline

__all__ = ["Backend", "backends", "recurrence", "split_recurrence", "split_time", "sum_gradients", "timeline"]
