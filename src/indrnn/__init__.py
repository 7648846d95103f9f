"""Independently Recurrent Neural Networks: h_t = σ(W x_t + u ⊙ h_{t−1} + b)."""

from importlib.metadata import version as _version

from .layers import (
    ConvIndRNN1d,
    ConvIndRNN2d,
    IndRNN,
    IndRNNCell,
    RecurrentBound,
    SequenceBatchNorm,
    SharedDropout,
    StepBatchNorm,
    attach_constraint,
    constrain_,
    parameter_groups,
)
from .memory import keep_memory
from .models import load
from .networks import (
    DenseDropout,
    DenseIndRNN,
    LastStepClassifier,
    PerStepClassifier,
    PlainIndRNN,
    Recurrent,
    ResidualIndRNN,
)
from .ops import Backend, backends, recurrence

__all__ = [
    "Backend",
    "ConvIndRNN1d",
    "ConvIndRNN2d",
    "DenseDropout",
    "DenseIndRNN",
    "IndRNN",
    "IndRNNCell",
    "LastStepClassifier",
    "PerStepClassifier",
    "PlainIndRNN",
    "Recurrent",
    "RecurrentBound",
    "ResidualIndRNN",
    "SequenceBatchNorm",
    "SharedDropout",
    "StepBatchNorm",
    "attach_constraint",
    "backends",
    "constrain_",
    "keep_memory",
    "load",
    "parameter_groups",
    "recurrence",
]
__version__ = _version("indrnn")
