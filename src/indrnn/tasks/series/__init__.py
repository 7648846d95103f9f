"""Users' own series: collections, preprocessing, scikit-learn-style estimators, and the recipe of `indrnn fit`."""

from typing import TYPE_CHECKING

from ..._lazy import lazy_names

if TYPE_CHECKING:
    from .collection import Collection as Collection
    from .fit import Fit as Fit

__getattr__, __dir__ = lazy_names(__name__, {"collection": ("Collection",), "fit": ("Fit",)})
