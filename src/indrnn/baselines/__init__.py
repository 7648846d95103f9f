"""Baselines that the paper compares with, behind the interface of the networks."""

from .recurrent import KINDS, Baseline, BaselineRNN, Kind
from .sru import SRU
from .transformer import Transformer, TransformerBaseline

__all__ = ["KINDS", "SRU", "Baseline", "BaselineRNN", "Kind", "Transformer", "TransformerBaseline"]
