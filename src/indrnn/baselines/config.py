"""The options of the baselines, as in `indrnn.networks.config`; without torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal, Self, Unpack, get_args

from .. import baselines
from ..checks import check_choice
from ..networks.config import Factory, check_options

Kind = Literal["rnn", "irnn", "lstm", "gru"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class _Options:
    """Options of every baseline."""

    _: KW_ONLY
    input_size: int | None = None
    """Input features per step; set by a recipe's task."""
    batch_first: bool = False
    """Batch dimension before time in input and output."""

    _network: ClassVar[str]
    """Name, in `indrnn.baselines`, of the class that is built."""

    def __post_init__(self) -> None:
        check_options(self, context=0)

    def sized(self, input_size: int, steps: int) -> Self:
        """The configuration for a task; `steps` is not used."""
        return replace(self, input_size=input_size)

    def build(self, **factory: Unpack[Factory]) -> baselines.networks.BaselineNetwork:
        """The network, with new weights."""
        network: type[baselines.networks.BaselineNetwork] = getattr(baselines, self._network)
        options = {"num_layers" if name == "layers" else name: value for name, value in vars(self).items()}
        return network(**options, **factory)


@dataclass(frozen=True)
class Baseline(_Options):
    """A recurrent network of PyTorch."""

    _network = "BaselineRNN"

    kind: Kind = "lstm"
    """Type: rnn (tanh), irnn (ReLU, identity recurrent matrix), lstm or gru."""
    hidden_size: int = 128
    """Neurons per layer."""
    layers: int = 1
    """Number of layers."""
    dropout: float = 0.0
    """Dropout probability between layers."""
    weight_dropout: float = 0.0
    """Dropout probability of recurrent weights (AWD-LSTM's weight drop), with one mask for all steps of a call."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        super().__post_init__()


@dataclass(frozen=True)
class QRNN(_Options):
    """The quasi-recurrent network."""

    _network = "QRNNBaseline"

    hidden_size: int = 128
    """Neurons per layer."""
    layers: int = 1
    """Number of layers."""
    window: int = 2
    """Convolution width in steps: the step itself and those before it."""
    dropout: float = 0.0
    """Dropout probability between layers, with one mask for all time steps."""


@dataclass(frozen=True)
class Transformer(_Options):
    """The Transformer; with a window, the R-Transformer."""

    _network = "TransformerBaseline"

    hidden_size: int = 128
    """Features per layer; a multiple of `heads`."""
    layers: int = 4
    """Number of layers."""
    heads: int = 4
    """Number of attention heads."""
    window: int | None = None
    """Window of the R-Transformer's GRUs, in steps; None for the Transformer."""
    dropout: float = 0.1
    """Dropout probability in each layer."""
    context: int = 0
    """Number of steps before a call's own that it attends to, carried as its state; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size must be a multiple of heads = {self.heads}, got {self.hidden_size}")
