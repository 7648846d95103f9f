"""`explore`: a page in which a trained network can be looked into, neuron by neuron."""

from .page import explore, page_of
from .samples import Body, Samples, adding, pixels, recorded, skeletons, text

__all__ = ["Body", "Samples", "adding", "explore", "page_of", "pixels", "recorded", "skeletons", "text"]
