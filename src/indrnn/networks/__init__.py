"""The paper's deep networks with one interface: plain, residual, dense; heads; a language model."""

from .config import Dense, NetworkConfig, Plain, Residual
from .dense import DenseBlock, DenseIndRNN, DenseLayer
from .front import Front, FrontNetwork
from .heads import Head, SequenceClassifier, SequenceRegressor, StepClassifier, StepRegressor
from .language import Language, LanguageModel, TiedEmbedding, WordEmbedding
from .network import Network
from .plain import PlainBlock, PlainIndRNN
from .residual import ResidualBlock, ResidualIndRNN
from .state import State
from .unit import RecurrentUnit, Weight

__all__ = [
    "Dense",
    "DenseBlock",
    "DenseIndRNN",
    "DenseLayer",
    "Front",
    "FrontNetwork",
    "Head",
    "Language",
    "LanguageModel",
    "Network",
    "NetworkConfig",
    "Plain",
    "PlainBlock",
    "PlainIndRNN",
    "RecurrentUnit",
    "Residual",
    "ResidualBlock",
    "ResidualIndRNN",
    "SequenceClassifier",
    "SequenceRegressor",
    "State",
    "StepClassifier",
    "StepRegressor",
    "TiedEmbedding",
    "Weight",
    "WordEmbedding",
]
