"""The paper's deep networks with one interface: plain, residual, dense; heads; a language model."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .config import Dense, Front, Head, Language, NetworkConfig, Plain, Residual
    from .deep import DenseBlock, DenseIndRNN, DenseLayer, PlainBlock, PlainIndRNN, ResidualBlock, ResidualIndRNN
    from .heads import SequenceClassifier, SequenceRegressor, StepClassifier, StepRegressor
    from .language import LanguageModel, TiedEmbedding, WordEmbedding
    from .network import FrontNetwork, Network, State
    from .unit import RecurrentUnit, Weight

_HOMES = {
    "config": ("Dense", "Front", "Head", "Language", "NetworkConfig", "Plain", "Residual"),
    "deep": ("DenseBlock", "DenseIndRNN", "DenseLayer", "PlainBlock", "PlainIndRNN", "ResidualBlock", "ResidualIndRNN"),
    "heads": ("SequenceClassifier", "SequenceRegressor", "StepClassifier", "StepRegressor"),
    "language": ("LanguageModel", "TiedEmbedding", "WordEmbedding"),
    "network": ("FrontNetwork", "Network", "State"),
    "unit": ("RecurrentUnit", "Weight"),
}

__all__ = ["Dense", "Front", "Head", "Language", "NetworkConfig", "Plain", "Residual"]
__all__ += ["DenseBlock", "DenseIndRNN", "DenseLayer", "PlainBlock", "PlainIndRNN", "ResidualBlock", "ResidualIndRNN"]
__all__ += ["FrontNetwork", "LanguageModel", "Network", "RecurrentUnit", "State", "TiedEmbedding", "Weight"]
__all__ += ["SequenceClassifier", "SequenceRegressor", "StepClassifier", "StepRegressor", "WordEmbedding"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
