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
    gather_statistics,
    parameter_groups,
)
from .models import load, save
from .networks import (
    Dense,
    DenseIndRNN,
    LanguageModel,
    Plain,
    PlainIndRNN,
    Residual,
    ResidualIndRNN,
    SequenceClassifier,
    SequenceRegressor,
    State,
    StepClassifier,
    StepRegressor,
    TiedEmbedding,
)
from .ops import Backend, backends, recurrence

__all__ = [
    "Backend",
    "ConvIndRNN1d",
    "ConvIndRNN2d",
    "Dense",
    "DenseIndRNN",
    "IndRNN",
    "IndRNNCell",
    "LanguageModel",
    "Plain",
    "PlainIndRNN",
    "RecurrentBound",
    "Residual",
    "ResidualIndRNN",
    "SequenceBatchNorm",
    "SequenceClassifier",
    "SequenceRegressor",
    "SharedDropout",
    "State",
    "StepBatchNorm",
    "StepClassifier",
    "StepRegressor",
    "TiedEmbedding",
    "attach_constraint",
    "backends",
    "constrain_",
    "gather_statistics",
    "load",
    "parameter_groups",
    "recurrence",
    "save",
]
__version__ = _version("indrnn")
