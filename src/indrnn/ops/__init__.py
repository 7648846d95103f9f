"""h_t = σ(x_t + u ⊙ h_{t−1}): one op, several backends.

`api` is the way in, `reference` the specification; `library` registers the ops with torch and picks a backend, and
`autograd` differentiates them.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .api import recurrence, recurrence_, recurrence_norm
    from .library import Backend, backends
    from .split import TimeSlice, split_recurrence, split_time, sum_gradients

ACTIVATIONS = ("relu", "tanh", "sigmoid", "identity")
BACKENDS = (None, "native", "reference", "scan", "triton")
"""Backends that can be asked for by name; None leaves the choice to `backends()`."""

_HOMES = {
    "api": ("recurrence", "recurrence_", "recurrence_norm"),
    "library": ("Backend", "backends"),
    "split": ("TimeSlice", "split_recurrence", "split_time", "sum_gradients"),
}

__all__ = ["Backend", "TimeSlice", "backends", "recurrence", "recurrence_", "recurrence_norm"]
__all__ += ["split_recurrence", "split_time", "sum_gradients"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
