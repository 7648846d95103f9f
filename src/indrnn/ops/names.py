"""The names of activations and backends, without torch: for options and their checks."""

from __future__ import annotations

ACTIVATIONS = ("relu", "tanh", "sigmoid", "identity")
"""Activations of the recurrence."""

BACKENDS = ("native", "reference", "scan", "triton")
"""Backends that can be asked for by name."""


def check_nonlinearity(nonlinearity: str) -> None:
    """Raise unless it is one of the op's activations."""
    if nonlinearity not in ACTIVATIONS:
        raise ValueError(f"nonlinearity must be one of {', '.join(ACTIVATIONS)}, got {nonlinearity!r}")


def check_backend(backend: str | None) -> None:
    """Raise if there is no backend of this name."""
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(BACKENDS)}, got {backend!r}")
