"""`explore`: an HTML page to inspect a trained network neuron by neuron."""

from .page import explore, page_of
from .samples import Body, Samples, adding, pixels, recorded, skeletons, text

__all__ = ["Body", "Samples", "adding", "explore", "page_of", "pixels", "recorded", "skeletons", "text"]
