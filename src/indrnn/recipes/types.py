"""All types of options by name, for reading config.json."""

from __future__ import annotations

from ..models import CONFIGS as MODELS
from ..tasks.skeleton import Samples
from ..training import Constant, Cosine, OneCycle, Plateau, Steps, Training
from .adding import AddingRecipe
from .language import PennRecipe, TextRecipe
from .pixels import PixelsRecipe
from .skeleton import SkeletonRecipe

TYPES: dict[str, type] = MODELS | {
    kind.__name__: kind
    for kind in (
        *(Training, Constant, Steps, Plateau, Cosine, OneCycle, Samples),
        *(AddingRecipe, PixelsRecipe, PennRecipe, TextRecipe, SkeletonRecipe),
    )
}
