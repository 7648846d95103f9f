"""Every type of options, by name: what config.json is read back with."""

from __future__ import annotations

from ..models import CONFIGS as MODELS
from ..training import Constant, Cosine, OneCycle, Plateau, Steps, Training
from .adding import AddingRecipe
from .language import PennRecipe, TextRecipe
from .pixels import PixelsRecipe

TYPES: dict[str, type] = MODELS | {
    kind.__name__: kind
    for kind in (
        *(Training, Constant, Steps, Plateau, Cosine, OneCycle),
        *(AddingRecipe, PixelsRecipe, PennRecipe, TextRecipe),
    )
}
