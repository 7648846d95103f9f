"""`explore`: an HTML page to inspect a trained network neuron by neuron."""

from ...tasks.recipe import Body, Samples, recorded
from .page import explore, facts_of, page_of, samples_of
from .program import network_of

__all__ = ["Body", "Samples", "explore", "facts_of", "network_of", "page_of", "recorded", "samples_of"]
