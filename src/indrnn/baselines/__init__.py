"""Baselines that the paper compares with, behind the interface of the networks."""

from .recurrent import KINDS, BaselineRNN, Kind
from .sru import SRU
from .transformer import TransformerBaseline

__all__ = ["KINDS", "SRU", "BaselineRNN", "Kind", "TransformerBaseline"]
