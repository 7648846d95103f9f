"""Learning from users' own series: collections, preprocessing, and scikit-learn-style estimators."""

from .collection import Collection

__all__ = ["Collection"]
