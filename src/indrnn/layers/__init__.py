"""The layers: IndRNN, its cell and convolutions; norms, dropout, initialisation, constraint, parameter groups."""

from .bound import EPSILON, RecurrentBound, attach_constraint, constrain_
from .conv import ConvIndRNN1d, ConvIndRNN2d
from .dropout import SharedDropout, embedding_dropout, shared_dropout
from .indrnn import IndRNN, IndRNNCell
from .norm import SequenceBatchNorm, StepBatchNorm
from .parameters import parameter_groups
from .statistics import gather_statistics

__all__ = [
    "EPSILON",
    "ConvIndRNN1d",
    "ConvIndRNN2d",
    "IndRNN",
    "IndRNNCell",
    "RecurrentBound",
    "SequenceBatchNorm",
    "SharedDropout",
    "StepBatchNorm",
    "attach_constraint",
    "constrain_",
    "embedding_dropout",
    "gather_statistics",
    "parameter_groups",
    "shared_dropout",
]
