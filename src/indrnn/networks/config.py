"""The options of the deep networks, each said once: for Python, the command line and saved files alike."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import torch

from ..layers.bound import EPSILON, BoundOptions
from ..layers.checks import check_choice, check_nonlinearity, check_probability, check_size
from ..layers.norm import Rows
from ..ops import choice

if TYPE_CHECKING:
    from .network import Network

Activation = Literal["relu", "tanh", "sigmoid", "identity"]
Norm = Literal["batch", "step", "layer", "rms"]
Place = Literal["before", "after"]


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The options that every deep network has: how its recurrent layers are made."""

    nonlinearity: Activation = "relu"
    """The activation."""
    norm: Norm | None = "batch"
    """Batch norm over batch and time, batch norm of each step, layer norm, RMS norm, or none."""
    norm_place: Place = "after"
    """The norm stands before or after the recurrence. Over hundreds of steps only "after" starts at a usable loss."""
    norm_steps: int | None = None
    """For norm = step: rows of statistics, the length of the windows that are trained on."""
    norm_rows: Rows = "window"
    """For norm = step: a row is the step within the window, or within the document."""
    synchronised: bool = False
    """Take the statistics of a batch norm over all processes."""
    gamma: float | None = 1.0
    """Recurrent weights are held in |u| <= gamma^(1/T); None for no bound."""
    bound: float | None = None
    """The bound itself, in place of gamma^(1/T)."""
    sequence_length: int | None = None
    """T, for gamma, epsilon and long_memory; a recipe's task says it."""
    long_memory: bool = False
    """The last layer's recurrent weights start between epsilon^(1/T) and the bound: for a task of the last step."""
    highest_start: float | None = None
    """Recurrent weights start between 0 and this; None for the bound. Those of a long memory do not."""
    epsilon: float = EPSILON
    """The least factor that a long memory passes on over T steps."""
    lower_bound: bool = False
    """The constraint also keeps at least one neuron in each layer at |u| >= epsilon^(1/T)."""
    weight_std: float | None = None
    """Input weights start normally distributed with this deviation; None for the paper's uniform ones."""
    bidirectional: bool = False
    """As many neurons more in every layer, which read the sequence from its end."""
    recompute: int | None = None
    """Keep the states between pieces of so many steps alone and compute the rest again in the backward pass."""
    batch_first: bool = False
    """The batch comes before time in input and output."""
    backend: str | None = None
    """What computes the recurrence; see indrnn.recurrence."""
    fused: bool = True
    """Compute recurrence, batch norm and dropout as one op where that can be; False is for comparison."""

    def __post_init__(self) -> None:
        check_nonlinearity(self.nonlinearity)
        check_choice("norm", self.norm, (*get_args(Norm), None))
        check_choice("norm_place", self.norm_place, get_args(Place))
        check_choice("norm_rows", self.norm_rows, get_args(Rows))
        if self.norm_steps is not None:
            check_size("norm_steps", self.norm_steps)
        if (self.norm == "step") != (self.norm_steps is not None):
            raise ValueError(
                f"norm_steps must be given for norm = 'step' and for no other, got {self.norm_steps!r} for norm = "
                f"{self.norm!r}"
            )
        if self.weight_std is not None and not self.weight_std > 0:
            raise ValueError(f"weight_std must be a positive number or None, got {self.weight_std!r}")
        if self.recompute is not None:
            check_size("recompute", self.recompute)
            if self.bidirectional:
                raise ValueError("recompute cannot be combined with bidirectional: the reverse direction starts last")
            if self.norm in ("batch", "step"):
                raise ValueError(
                    f"recompute runs over a piece of time by itself, so that norm must be 'layer', 'rms' or None, got "
                    f"{self.norm!r}; with batch norm, wrap blocks in torch.utils.checkpoint instead"
                )
        choice.check_name(self.backend)

    def bound_of(self, last: bool) -> BoundOptions:
        """The options of a layer's bound; `long_memory` is the last one's alone."""
        return {
            "long_memory": self.long_memory and last,
            "highest_start": self.highest_start,
            "gamma": self.gamma,
            "sequence_length": self.sequence_length,
            "epsilon": self.epsilon,
            "lower_bound": self.lower_bound,
            "bound": self.bound,
        }

    def sized(self, input_size: int, steps: int) -> Self:
        """The same for a task: features of its input, and steps of its sequences."""
        return replace(self, input_size=input_size, sequence_length=steps)  # type: ignore[call-arg]

    def build(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Network:
        """The network, with new weights."""
        options: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return self._network()(**options, device=device, dtype=dtype)

    def _network(self) -> type[Network]:
        raise NotImplementedError


def _checked_input_size(input_size: int | None) -> None:
    if input_size is not None:
        check_size("input_size", input_size)


@dataclass(frozen=True)
class Plain(NetworkConfig):
    """IndRNN layers upon each other."""

    input_size: int | None = None
    """Features of the input at each step; a recipe's task says it."""
    hidden_size: int = 128
    """Neurons of each layer."""
    layers: int = 6
    """How many."""
    _: KW_ONLY
    dropout: float | tuple[float, ...] = 0.0
    """Probability after each layer, with one mask for all time steps; one number, or one for each layer."""
    weights_per_block: int = 1
    """Weights, with ReLU between them, before each recurrence: deeper processing of each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _checked_input_size(self.input_size)
        for name in ("hidden_size", "layers", "weights_per_block"):
            check_size(name, getattr(self, name))
        if isinstance(self.dropout, (list, tuple)):
            object.__setattr__(self, "dropout", tuple(self.dropout))
            if len(self.dropout) != self.layers:
                raise ValueError(
                    f"dropout must be one number or layers = {self.layers} of them, got {len(self.dropout)}"
                )
        for p in self.dropouts:
            check_probability("dropout", p)

    @property
    def dropouts(self) -> tuple[float, ...]:
        """One for each layer."""
        return self.dropout if isinstance(self.dropout, tuple) else (self.dropout,) * self.layers

    def _network(self) -> type[Network]:
        from .plain import PlainIndRNN

        return PlainIndRNN


@dataclass(frozen=True)
class Residual(NetworkConfig):
    """Blocks of two IndRNN layers, each with a shortcut around it."""

    input_size: int | None = None
    """Features of the input at each step; a recipe's task says it."""
    hidden_size: int = 128
    """Neurons of each layer."""
    blocks: int = 5
    """How many; the paper's 12 layers are 5."""
    _: KW_ONLY
    operations: int = 2
    """Recurrent layers in each block."""
    last_transition: int | None = None
    """Neurons of one more layer after the last block's, as 600 after 2000 in the paper's word model; None for none."""
    dropout: float = 0.0
    """Probability after each recurrent layer, with one mask for all time steps."""
    last_dropout: float | None = None
    """After the last recurrent layer; as the others if None."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _checked_input_size(self.input_size)
        for name in ("hidden_size", "blocks", "operations"):
            check_size(name, getattr(self, name))
        if self.last_transition is not None:
            check_size("last_transition", self.last_transition)
        check_probability("dropout", self.dropout)
        if self.last_dropout is not None:
            check_probability("last_dropout", self.last_dropout)

    def _network(self) -> type[Network]:
        from .residual import ResidualIndRNN

        return ResidualIndRNN


@dataclass(frozen=True)
class Dense(NetworkConfig):
    """Densely connected IndRNN layers: each reads all before it."""

    input_size: int | None = None
    """Features of the input at each step; a recipe's task says it."""
    growth_rate: int = 16
    """Features that each dense layer adds."""
    blocks: tuple[int, ...] = (8, 6, 4)
    """Dense layers in each block."""
    _: KW_ONLY
    first_layer: bool = True
    """A layer of 6 growth_rate neurons comes first; not where the input is an embedding."""
    last_transition: int | None = None
    """Neurons of the last transition; half of its input if None."""
    first_dropout: float = 0.0
    """Probability after the first layer; as all others here with one mask for all time steps."""
    bottleneck_dropout: float = 0.0
    """After the bottleneck of each dense layer."""
    dense_dropout: float = 0.0
    """After each dense layer."""
    transition_dropout: float = 0.0
    """After each transition."""
    last_dropout: float | None = None
    """After the last transition; as after the others if None."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _checked_input_size(self.input_size)
        check_size("growth_rate", self.growth_rate)
        if not isinstance(self.blocks, (list, tuple)) or not self.blocks:
            raise TypeError(
                f"blocks must be the numbers of dense layers in each block, at least one, such as (8, 6, 4), got "
                f"{self.blocks!r}"
            )
        object.__setattr__(self, "blocks", tuple(self.blocks))
        for layers in self.blocks:
            check_size("blocks", layers)
        if self.last_transition is not None:
            check_size("last_transition", self.last_transition)
        for name in ("first", "bottleneck", "dense", "transition"):
            check_probability(f"{name}_dropout", getattr(self, f"{name}_dropout"))
        if self.last_dropout is not None:
            check_probability("last_dropout", self.last_dropout)

    def _network(self) -> type[Network]:
        from .dense import DenseIndRNN

        return DenseIndRNN
