"""`explore`: a page in which a trained network can be looked into, neuron by neuron."""

from .page import explore, page_of
from .samples import Samples, adding, pixels, recorded, text

__all__ = ["Samples", "adding", "explore", "page_of", "pixels", "recorded", "text"]
