"""What the paper compares with, behind the interface of the networks."""

from .recurrent import KINDS, BaselineRNN, Kind

__all__ = ["KINDS", "BaselineRNN", "Kind"]
