"""The layers: IndRNN and its cell, initialisation, the constraint, parameter groups."""

from .bound import EPSILON, RecurrentBound, attach_constraint, constrain_
from .conv import ConvIndRNN1d, ConvIndRNN2d
from .indrnn import IndRNN, IndRNNCell
from .parameters import parameter_groups

__all__ = [
    "EPSILON",
    "ConvIndRNN1d",
    "ConvIndRNN2d",
    "IndRNN",
    "IndRNNCell",
    "RecurrentBound",
    "attach_constraint",
    "constrain_",
    "parameter_groups",
]
