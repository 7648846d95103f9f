"""Options of the deep networks and of models made of them, for Python, commands and saved files; without torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypedDict, TypeVar, Unpack, get_args

from .. import networks
from ..checks import check_choice, check_count, check_positive, check_probability
from ..layers import EPSILON, BoundOptions
from ..ops import ACTIVATIONS, BACKENDS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .heads import AnyHead

Activation = Literal["relu", "tanh", "sigmoid", "identity"]
Norm = Literal["batch", "step", "layer", "rms"]
Place = Literal["before", "after"]
Pool = Literal["last", "mean"]
Kind = Literal["SequenceClassifier", "SequenceRegressor", "StepClassifier", "StepRegressor"]
Steps = TypeVar("Steps", int, "Tensor")


class Factory(TypedDict, total=False):
    """Where the parameters of a module are made, and their type."""

    device: torch.device | str | None
    dtype: torch.dtype | None


def check_options(options: Any, **least: int) -> None:
    """Check the whole numbers in a dataclass, at least 1 or as given, and the probabilities of dropout.

    None passes where it is the default.
    """
    for option in fields(options):
        name, value = option.name, getattr(options, option.name)
        if value is None and option.default is None:
            continue
        if option.type in ("int", "int | None"):
            check_count(name, value, least.get(name, 1))
        elif option.type in ("float", "float | None") and name.endswith("dropout"):
            check_probability(name, value)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Options of the recurrent layers, common to all deep networks."""

    nonlinearity: Activation = "relu"
    """Activation function."""
    norm: Norm | None = "batch"
    """Normalisation: batch norm over batch and time, batch norm per time step, layer norm, RMS norm, or None."""
    norm_place: Place = "after"
    """Normalise before or after the recurrence. Over hundreds of steps only "after" starts at a usable loss."""
    norm_steps: int | None = None
    """Number of steps with statistics of their own, for norm = step: the length of the training windows."""
    synchronised: bool = False
    """Synchronise batch-norm statistics across processes."""
    gamma: float | None = 1.0
    """Bound on recurrent weights, |u| <= gamma^(1/T); None for no bound."""
    bound: float | None = None
    """Bound on recurrent weights, |u| <= bound, in place of gamma^(1/T)."""
    sequence_length: int | None = None
    """Sequence length T, for gamma, epsilon and long_memory; set by a recipe's task."""
    long_memory: bool = False
    """Initialise the last layer's recurrent weights from epsilon^(1/T) to the bound, for tasks of the last step."""
    highest_start: float | None = None
    """Initialise recurrent weights from 0 to this value; None for the bound. Not for long_memory layers."""
    epsilon: float = EPSILON
    """Least factor that a long memory passes on over T steps."""
    lower_bound: bool = False
    """Also constrain at least one neuron of each layer to |u| >= epsilon^(1/T)."""
    weight_std: float | None = None
    """Initial standard deviation of normally distributed input weights; None for the authors' uniform distribution."""
    bidirectional: bool = False
    """Bidirectional layers: as many neurons again read the sequence backwards."""
    recompute: int | None = None
    """Activation checkpointing: steps per piece; states within a piece are recomputed in the backward pass."""
    batch_first: bool = False
    """Batch dimension before time in input and output."""
    backend: str | None = None
    """Backend of the recurrence; see indrnn.recurrence."""
    fused: bool = True
    """Fuse recurrence, batch norm and dropout into one op where possible; False for comparison."""
    input_size: int | None = field(default=None, kw_only=False)
    """Input features per step; set by a recipe's task."""

    _network: ClassVar[str]
    """Name, in `indrnn.networks`, of the class that is built."""

    def __post_init__(self) -> None:
        check_choice("nonlinearity", self.nonlinearity, ACTIVATIONS)
        check_choice("norm", self.norm, (*get_args(Norm), None))
        check_choice("norm_place", self.norm_place, get_args(Place))
        check_options(self)
        if (self.norm == "step") != (self.norm_steps is not None):
            given = f"{self.norm_steps!r} for norm = {self.norm!r}"
            raise ValueError(f"norm_steps must be given for norm = 'step' and for no other, got {given}")
        if self.weight_std is not None and not self.weight_std > 0:
            raise ValueError(f"weight_std must be a positive number or None, got {self.weight_std!r}")
        if self.recompute is not None and self.bidirectional:
            raise ValueError("recompute cannot be combined with bidirectional: the reverse direction starts last")
        if self.recompute is not None and self.norm in ("batch", "step"):
            raise ValueError(
                f"recompute runs over a piece of time by itself, so that norm must be 'layer', 'rms' or None, got "
                f"{self.norm!r}; with batch norm, wrap blocks in torch.utils.checkpoint instead"
            )
        check_choice("backend", self.backend, BACKENDS)

    @property
    def ways(self) -> int:
        """Directions in which the layers read."""
        return 2 if self.bidirectional else 1

    def bound_of(self, last: bool) -> BoundOptions:
        """The options of a layer's bound; `long_memory` applies only to the last layer."""
        options: Any = {name: getattr(self, name) for name in BoundOptions.__annotations__}
        return options | {"long_memory": self.long_memory and last}  # type: ignore[no-any-return]

    def sized(self, input_size: int, steps: int) -> Self:
        """The configuration for a task's input size and sequence length."""
        return replace(self, input_size=input_size, sequence_length=steps)

    def build(self, **factory: Unpack[Factory]) -> networks.Network:
        """The network, with new weights."""
        network: type[networks.Network] = getattr(networks, self._network)
        return network(**vars(self), **factory)


@dataclass(frozen=True)
class Plain(NetworkConfig):
    """The plain stacked IndRNN."""

    _network = "PlainIndRNN"
    hidden_size: int = 128
    """Neurons per layer."""
    layers: int = 6
    """Number of layers."""
    _: KW_ONLY
    dropout: float | tuple[float, ...] = 0.0
    """Dropout probability after each layer, with one mask for all time steps; one number, or one per layer."""
    weights_per_block: int = 1
    """Linear layers before each recurrence, with ReLU between them, for deeper processing of each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.dropout, (list, tuple)):
            object.__setattr__(self, "dropout", tuple(self.dropout))
        for p in self.dropouts:
            check_probability("dropout", p)
        if (count := len(self.dropouts)) != self.layers:
            raise ValueError(f"dropout must be one number or layers = {self.layers} of them, got {count}")

    @property
    def dropouts(self) -> tuple[float, ...]:
        """The probability for each layer."""
        return self.dropout if isinstance(self.dropout, tuple) else (self.dropout,) * self.layers


@dataclass(frozen=True)
class Residual(NetworkConfig):
    """The residual IndRNN: blocks of recurrent layers, each with a shortcut connection."""

    _network = "ResidualIndRNN"
    hidden_size: int = 128
    """Neurons per layer."""
    blocks: int = 5
    """Number of blocks; 5 for the paper's 12 layers."""
    _: KW_ONLY
    operations: int = 2
    """Recurrent layers per block."""
    last_transition: int | None = None
    """Neurons of an additional last layer, such as 600 after 2000 in the paper's word model; None for none."""
    dropout: float = 0.0
    """Dropout probability after each recurrent layer, with one mask for all time steps."""
    last_dropout: float | None = None
    """Dropout probability after the last recurrent layer; None for the same as the others."""


@dataclass(frozen=True)
class Dense(NetworkConfig):
    """The densely connected IndRNN: each layer reads all layers before it in its block."""

    _network = "DenseIndRNN"
    growth_rate: int = 16
    """Growth rate: features added by each dense layer."""
    blocks: tuple[int, ...] = (8, 6, 4)
    """Number of dense layers in each block."""
    _: KW_ONLY
    first_layer: bool = True
    """Begin with a layer of 6 * growth_rate neurons; False if the input is an embedding."""
    last_transition: int | None = None
    """Neurons of the last transition; None for half of its input."""
    first_dropout: float = 0.0
    """Dropout probability after the first layer; here as below, with one mask for all time steps."""
    bottleneck_dropout: float = 0.0
    """Dropout probability after the bottleneck of each dense layer."""
    dense_dropout: float = 0.0
    """Dropout probability after each dense layer."""
    transition_dropout: float = 0.0
    """Dropout probability after each transition."""
    last_dropout: float | None = None
    """Dropout probability after the last transition; None for the same as the others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.blocks, (list, tuple)) or not self.blocks:
            expected = "the numbers of dense layers in each block, at least one, such as (8, 6, 4)"
            raise TypeError(f"blocks must be {expected}, got {self.blocks!r}")
        object.__setattr__(self, "blocks", tuple(self.blocks))
        for layers in self.blocks:
            check_count("blocks", layers)


@dataclass(frozen=True)
class Head:
    """The configuration of a head: `head.config`."""

    network: Any
    """The network's configuration."""
    outputs: int
    """Number of classes, or of numbers."""
    kind: Kind = "SequenceClassifier"
    """Name of the head's class."""
    pool: Pool = "last"
    """Pooling over time: the features of a sequence's last step, or their mean."""

    def __post_init__(self) -> None:
        check_options(self)
        check_choice("kind", self.kind, get_args(Kind))
        check_choice("pool", self.pool, get_args(Pool))

    def build(self, **factory: Unpack[Factory]) -> AnyHead:
        """The model, with new weights."""
        pool = (self.pool,) if self.kind.startswith("Sequence") else ()
        model: AnyHead = getattr(networks, self.kind)(self.network.build(**factory), self.outputs, *pool)
        return model


@dataclass(frozen=True)
class Front:
    """Convolutions over time, each with batch norm and ReLU, in front of a network."""

    network: Any
    """The configuration of the network behind them; its `input_size` is set."""
    input_size: int | None = None
    """Features of the input at each step."""
    features: tuple[int, ...] = (64,)
    """Output features of each convolution."""
    kernels: tuple[int, ...] = (9,)
    """Steps that each convolution reads: its own and those before it."""
    strides: tuple[int, ...] = (1,)
    """Steps from one output of each convolution to the next."""
    dropout: float = 0.0
    """Dropout probability after each convolution, with one mask for all time steps."""

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("features", "kernels", "strides"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            for value in values:
                check_count(name, value)
            count = len(self.features)
            if not values or len(values) != count:
                raise ValueError(f"{name} must have one number for each convolution, {count}, got {values!r}")

    @property
    def bidirectional(self) -> bool:
        """Whether the network behind the convolutions is bidirectional."""
        return bool(getattr(self.network, "bidirectional", False))

    def steps(self, length: Steps) -> Steps:
        """Steps that the network behind them reads, of `length` steps."""
        for stride in self.strides:
            length = -(-length // stride)
        return length

    def sized(self, input_size: int, steps: int) -> Front:
        """The configuration for a task's input size and sequence length."""
        return replace(self, input_size=input_size, network=self.network.sized(self.features[-1], self.steps(steps)))

    def build(self, **factory: Unpack[Factory]) -> networks.FrontNetwork:
        """The network, with new weights."""
        return networks.FrontNetwork(self, **factory)


@dataclass(frozen=True)
class Language:
    """The configuration of a language model: `model.config`."""

    network: Any
    """Configuration of the network, whose input features are those of a word's vector."""
    classes: int
    """Number of words, or of characters."""
    tied: bool = True
    """Tie of the output's weight to the embedding's; the network then has as many output as input features."""
    start: float = 0.04
    """Initialisation of the embedding: U(-start, start)."""
    dropout: float = 0.0
    """Probability that a word's whole vector is dropped, wherever the word occurs in a batch."""
    word_dropout: float = 0.0
    """Probability that a feature of the vectors is dropped, with one mask for all time steps."""

    def __post_init__(self) -> None:
        check_options(self)
        check_positive("start", self.start)

    def sized(self, input_size: int, steps: int) -> Language:
        """The configuration with vectors of `input_size` features, for windows of `steps`."""
        return replace(self, network=self.network.sized(input_size, steps))

    def build(self, **factory: Unpack[Factory]) -> networks.LanguageModel:
        """The model, with new weights."""
        return networks.LanguageModel(**{**vars(self), "network": self.network.build(**factory)})
