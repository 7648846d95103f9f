"""Baselines that the paper compares with, with the interface of the networks."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .config import KINDS, QRNN, Baseline, Kind, Transformer
    from .qrnn import QRNNBaseline
    from .recurrent import BaselineRNN
    from .sru import SRU
    from .transformer import TransformerBaseline

_HOMES = {
    "config": ("KINDS", "QRNN", "Baseline", "Kind", "Transformer"),
    "qrnn": ("QRNNBaseline",),
    "recurrent": ("BaselineRNN",),
    "sru": ("SRU",),
    "transformer": ("TransformerBaseline",),
}

__all__ = ["KINDS", "QRNN", "Baseline", "Kind", "Transformer"]
__all__ += ["SRU", "BaselineRNN", "QRNNBaseline", "TransformerBaseline"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
