"""Baselines that the paper compares with, with the interface of the networks."""

from .qrnn import QRNN, QRNNBaseline
from .recurrent import KINDS, Baseline, BaselineRNN, Kind
from .sru import SRU
from .transformer import Transformer, TransformerBaseline

__all__ = [
    "KINDS",
    "QRNN",
    "SRU",
    "Baseline",
    "BaselineRNN",
    "Kind",
    "QRNNBaseline",
    "Transformer",
    "TransformerBaseline",
]
