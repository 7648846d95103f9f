"""The layers: IndRNN and its cell, initialisation, the constraint, parameter groups."""

from .bound import EPSILON, RecurrentBound, attach_constraint, constrain_
from .indrnn import IndRNN, IndRNNCell
from .parameters import parameter_groups

__all__ = ["EPSILON", "IndRNN", "IndRNNCell", "RecurrentBound", "attach_constraint", "constrain_", "parameter_groups"]
