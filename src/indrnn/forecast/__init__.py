"""Forecasts of series by neuralforecast, with our networks as a model of its own: `IndRNN`. Extra `forecast`."""

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from .._lazy import lazy_names
from ..checks import MissingPackageError

if TYPE_CHECKING:
    from .models import IndRNN, candidates, compare, fit, load, predict
    from .panel import Panel, read_panel

if _find_spec("neuralforecast") is None:
    raise MissingPackageError('forecasts need neuralforecast: pip install "indrnn[forecast]"')

__all__ = ["IndRNN", "Panel", "candidates", "compare", "fit", "load", "predict", "read_panel"]

_models, _panel = ("IndRNN", "candidates", "compare", "fit", "load", "predict"), ("Panel", "read_panel")
__getattr__, __dir__ = lazy_names(__name__, {"models": _models, "panel": _panel})
