"""The options of the baselines, as in `indrnn.networks.config`; without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..checks import check_choice, check_count, check_probability
from ..networks.config import Dense, Plain, Residual

if TYPE_CHECKING:
    from .qrnn import QRNNBaseline
    from .recurrent import BaselineRNN
    from .transformer import TransformerBaseline

Kind = Literal["rnn", "irnn", "lstm", "gru"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Baseline:
    """A recurrent network of PyTorch."""

    kind: Kind = "lstm"
    """Type: rnn (tanh), irnn (ReLU, identity recurrent matrix), lstm or gru."""
    hidden_size: int = 128
    """Neurons per layer."""
    layers: int = 1
    """Number of layers."""
    dropout: float = 0.0
    """Dropout probability between layers."""
    input_size: int | None = None
    """Input features per step; set by a recipe's task."""
    batch_first: bool = False
    """Batch dimension before time in input and output."""
    weight_dropout: float = 0.0
    """Dropout probability of recurrent weights (AWD-LSTM's weight drop), with one mask for all steps of a call."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_count("hidden_size", self.hidden_size)
        check_count("layers", self.layers)
        check_probability("dropout", self.dropout)
        check_probability("weight_dropout", self.weight_dropout)

    def sized(self, input_size: int, steps: int) -> Baseline:
        """The configuration for a task; `steps` is not used."""
        return replace(self, input_size=input_size)

    def build(self, **factory: Any) -> BaselineRNN:
        """The network, with new weights."""
        from .recurrent import BaselineRNN

        sizes: Any = (self.kind, self.input_size, self.hidden_size, self.layers)
        return BaselineRNN(
            *sizes,
            dropout=self.dropout,
            batch_first=self.batch_first,
            weight_dropout=self.weight_dropout,
            **factory,
        )


@dataclass(frozen=True)
class QRNN:
    """The quasi-recurrent network."""

    hidden_size: int = 128
    """Neurons per layer."""
    layers: int = 1
    """Number of layers."""
    window: int = 2
    """Convolution width in steps: the step itself and those before it."""
    dropout: float = 0.0
    """Dropout probability between layers, with one mask for all time steps."""
    input_size: int | None = None
    """Input features per step; set by a recipe's task."""
    batch_first: bool = False
    """Batch dimension before time in input and output."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "layers", "window"):
            check_count(name, getattr(self, name))
        check_probability("dropout", self.dropout)

    def sized(self, input_size: int, steps: int) -> QRNN:
        """The configuration for a task; `steps` is not used."""
        return replace(self, input_size=input_size)

    def build(self, **factory: Any) -> QRNNBaseline:
        """The network, with new weights."""
        from .qrnn import QRNNBaseline

        sizes: Any = (self.input_size, self.hidden_size, self.layers)
        return QRNNBaseline(*sizes, window=self.window, dropout=self.dropout, batch_first=self.batch_first, **factory)


@dataclass(frozen=True)
class Transformer:
    """The Transformer; with a window, the R-Transformer."""

    hidden_size: int = 128
    """Features per layer."""
    layers: int = 4
    """Number of layers."""
    heads: int = 4
    """Number of attention heads."""
    window: int | None = None
    """Window of the R-Transformer's GRUs, in steps; None for the Transformer."""
    dropout: float = 0.1
    """Dropout probability in each layer."""
    input_size: int | None = None
    """Input features per step; set by a recipe's task."""
    batch_first: bool = False
    """Batch dimension before time in input and output."""
    context: int = 0
    """Number of steps before a call's own that it attends to, carried as its state; 0 for none."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "layers", "heads"):
            check_count(name, getattr(self, name))
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size must be a multiple of heads = {self.heads}, got {self.hidden_size}")
        if self.window is not None:
            check_count("window", self.window)
        check_probability("dropout", self.dropout)
        check_count("context", self.context, 0)

    def sized(self, input_size: int, steps: int) -> Transformer:
        """The configuration for a task; `steps` is not used."""
        return replace(self, input_size=input_size)

    def build(self, **factory: Any) -> TransformerBaseline:
        """The network, with new weights."""
        from .transformer import TransformerBaseline

        sizes: Any = (self.input_size, self.hidden_size, self.layers, self.heads)
        return TransformerBaseline(
            *sizes,
            window=self.window,
            dropout=self.dropout,
            batch_first=self.batch_first,
            context=self.context,
            **factory,
        )


AnyNetwork = Plain | Residual | Dense | Baseline | QRNN | Transformer
"""The options of any network."""
