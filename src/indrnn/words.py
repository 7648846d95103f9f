"""Numbers and durations in words, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def duration(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def numbers(measured: Mapping[str, float], digits: int = 5) -> str:
    """Names and values; integers in full."""
    values = {
        name: f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}" for name, value in measured.items()
    }
    return ", ".join(f"{name} {value}" for name, value in values.items())


def rough_duration(seconds: float | None) -> str:
    """A duration in s, min or h."""
    if seconds is None:
        return "not known"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def headline(measured: dict[str, Any]) -> tuple[str, float] | None:
    """The main metric of a test: its name and value."""
    values = {name: float(value) for name, value in measured.items() if isinstance(value, (int, float))}
    main = [name for name in values if name.endswith(("accuracy", "mse", "bpc", "perplexity"))]
    name = next(iter([*main, *values]), None)
    return None if name is None else (name, values[name])


def words(metric: str) -> str:
    """A metric's name in words."""
    long = {"mse": "mean squared error", "bpc": "bits per character", "r2": "R²"}
    return " ".join(long.get(word, word) for word in metric.split("_"))


def value_of(name: str, value: float) -> str:
    """A metric's value as text."""
    return f"{100 * value:.2f} %" if name.endswith("accuracy") else f"{value:.3g}"
