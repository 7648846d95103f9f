"""The paper's deep networks, behind one interface: plain, residual, dense; and heads for them."""

from .dense import DenseDropout, DenseIndRNN
from .heads import LastStepClassifier, PerStepClassifier
from .network import Network
from .plain import PlainIndRNN
from .residual import ResidualIndRNN
from .unit import IndRec, Recurrent, State

__all__ = [
    "DenseDropout",
    "DenseIndRNN",
    "IndRec",
    "LastStepClassifier",
    "Network",
    "PerStepClassifier",
    "PlainIndRNN",
    "Recurrent",
    "ResidualIndRNN",
    "State",
]
