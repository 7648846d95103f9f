"""h_t = σ(x_t + u ⊙ h_{t−1}): one op, several ways to compute it."""

from .api import recurrence, recurrence_
from .choice import Backend, backends, check_name
from .distributed.recurrence import split_recurrence
from .distributed.time import split_time, sum_gradients
from .recurrence_norm import recurrence_norm
from .timeline import timeline

__all__ = [
    "Backend",
    "backends",
    "check_name",
    "recurrence",
    "recurrence_",
    "recurrence_norm",
    "split_recurrence",
    "split_time",
    "sum_gradients",
    "timeline",
]
