"""What the paper compares with, behind the interface of the networks."""

from .recurrent import KINDS, BaselineRNN, Kind
from .transformer import TransformerBaseline

__all__ = ["KINDS", "BaselineRNN", "Kind", "TransformerBaseline"]
