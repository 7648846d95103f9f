"""Independently Recurrent Neural Networks: h_t = σ(W x_t + u ⊙ h_{t−1} + b)."""

from importlib.metadata import version as _version

from .ops import Backend, backends, recurrence

__all__ = ["Backend", "backends", "recurrence"]
__version__ = _version("indrnn")
