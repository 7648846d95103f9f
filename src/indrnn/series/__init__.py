"""Own sequences: collections of series, how they are prepared, and the estimators that learn from them."""

from .collection import Collection

__all__ = ["Collection"]
