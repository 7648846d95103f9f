"""All types of options by name, for reading config.json."""

from __future__ import annotations

from ..saving import CONFIGS as MODELS
from ..training import Constant, Cosine, OneCycle, Plateau, Steps, Training
from .adding_recipe import AddingRecipe
from .pixels_recipe import PixelsRecipe
from .skeleton.recipe import SkeletonRecipe
from .skeleton.task import Samples
from .text.recipe import PennRecipe, TextRecipe

TYPES: dict[str, type] = MODELS | {
    kind.__name__: kind
    for kind in (
        *(Training, Constant, Steps, Plateau, Cosine, OneCycle, Samples),
        *(AddingRecipe, PixelsRecipe, PennRecipe, TextRecipe, SkeletonRecipe),
    )
}
