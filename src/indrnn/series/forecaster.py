"""`IndRNNForecaster`: the next steps of one or many series."""

from __future__ import annotations


class IndRNNForecaster:
    """Placeholder."""
