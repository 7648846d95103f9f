"""Baselines that the paper compares with, with the interface of the networks."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .config import KINDS, QRNN, Baseline, Kind, Transformer
    from .networks import BaselineRNN, QRNNBaseline, TransformerBaseline
    from .sru import SRU

_HOMES = {
    "config": ("KINDS", "QRNN", "Baseline", "Kind", "Transformer"),
    "networks": ("BaselineRNN", "QRNNBaseline", "TransformerBaseline"),
    "sru": ("SRU",),
}

__all__ = ["KINDS", "QRNN", "SRU", "Baseline", "BaselineRNN", "Kind"]
__all__ += ["QRNNBaseline", "Transformer", "TransformerBaseline"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
