"""Models as data: what is written beside a run's weights, and what they are loaded into again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .baselines import BaselineRNN, Kind, TransformerBaseline
from .layers.checks import check_probability, check_size
from .networks import DenseDropout, DenseIndRNN, LastStepClassifier, Network, PlainIndRNN, Recurrent, ResidualIndRNN


@dataclass(frozen=True)
class Plain:
    """IndRNN layers upon each other."""

    hidden_size: int = 128
    """Neurons of each layer."""
    layers: int = 6
    """How many."""
    nonlinearity: Literal["relu", "tanh", "sigmoid", "identity"] = "relu"
    """The activation."""
    norm: Literal["before", "after"] | None = "after"
    """Batch norm before or after the recurrence, or none."""
    dropout: float = 0.0
    """Probability after each layer, with one mask for all time steps."""
    gamma: float | None = 1.0
    """Recurrent weights are held in |u| <= gamma^(1/T); None for no bound."""
    long_memory: bool = True
    """The last layer's recurrent weights start between epsilon^(1/T) and the bound."""
    epsilon: float = 0.2
    """See long_memory."""
    weight_std: float | None = None
    """Input weights start normally distributed with this deviation; None for the paper's uniform ones."""

    def __post_init__(self) -> None:
        check_size("hidden_size", self.hidden_size)
        check_size("layers", self.layers)
        check_probability("dropout", self.dropout)
        if self.weight_std is not None and not self.weight_std > 0:
            raise ValueError(f"weight_std must be a positive number or None, got {self.weight_std!r}")

    def build(self, input_size: int, steps: int) -> Network:
        """The network, for sequences of so many steps."""
        recurrent = _recurrent(self, steps)
        network = PlainIndRNN(input_size, self.hidden_size, self.layers, recurrent, dropout=self.dropout)
        if self.weight_std is not None:
            for weight in network.weights.parameters():
                if weight.dim() == 2:
                    nn.init.normal_(weight, std=self.weight_std)
        return network


@dataclass(frozen=True)
class Residual:
    """Blocks of two IndRNN layers, each with a shortcut around it."""

    hidden_size: int = 128
    """Neurons of each layer."""
    blocks: int = 5
    """How many; the paper's 12 layers are 5."""
    norm: Literal["before", "after"] | None = "after"
    """Batch norm before or after the recurrence, or none."""
    dropout: float = 0.0
    """Probability after each recurrent layer, with one mask for all time steps."""
    gamma: float | None = 1.0
    """Recurrent weights are held in |u| <= gamma^(1/T); None for no bound."""
    long_memory: bool = True
    """The last layer's recurrent weights start between epsilon^(1/T) and the bound."""
    epsilon: float = 0.2
    """See long_memory."""

    def __post_init__(self) -> None:
        check_size("hidden_size", self.hidden_size)
        check_size("blocks", self.blocks)
        check_probability("dropout", self.dropout)

    def build(self, input_size: int, steps: int) -> Network:
        """The network, for sequences of so many steps."""
        recurrent = _recurrent(self, steps)
        return ResidualIndRNN(input_size, self.hidden_size, self.blocks, recurrent, dropout=self.dropout)


@dataclass(frozen=True)
class Dense:
    """Densely connected IndRNN layers: each reads all before it."""

    growth_rate: int = 16
    """Features that each dense layer adds."""
    norm: Literal["before", "after"] | None = "after"
    """Batch norm before or after the recurrence, or none."""
    first_dropout: float = 0.0
    """Probability after the first layer; as all others here with one mask for all time steps."""
    dense_dropout: float = 0.0
    """After each dense layer."""
    bottleneck_dropout: float = 0.0
    """After the bottleneck of each dense layer."""
    transition_dropout: float = 0.0
    """After each transition."""
    gamma: float | None = 1.0
    """Recurrent weights are held in |u| <= gamma^(1/T); None for no bound."""
    long_memory: bool = True
    """The last layer's recurrent weights start between epsilon^(1/T) and the bound."""
    epsilon: float = 0.2
    """See long_memory."""

    def __post_init__(self) -> None:
        check_size("growth_rate", self.growth_rate)
        for name in ("first_dropout", "dense_dropout", "bottleneck_dropout", "transition_dropout"):
            check_probability(name, getattr(self, name))

    def build(self, input_size: int, steps: int) -> Network:
        """The network, for sequences of so many steps."""
        dropout = DenseDropout(self.first_dropout, self.bottleneck_dropout, self.dense_dropout, self.transition_dropout)
        return DenseIndRNN(input_size, self.growth_rate, recurrent=_recurrent(self, steps), dropout=dropout)


def _recurrent(of: Plain | Residual | Dense, steps: int) -> Recurrent:
    """What the networks' options have in common."""
    return Recurrent(
        nonlinearity=of.nonlinearity if isinstance(of, Plain) else "relu",
        norm=of.norm,
        gamma=of.gamma,
        sequence_length=steps,
        long_memory=of.long_memory,
        epsilon=of.epsilon,
    )


@dataclass(frozen=True)
class Baseline:
    """One of PyTorch's recurrent networks."""

    kind: Kind = "lstm"
    """rnn (tanh), irnn (ReLU, identity recurrent matrix), lstm or gru."""
    hidden_size: int = 128
    """Neurons of each layer."""
    layers: int = 1
    """How many."""
    dropout: float = 0.0
    """Probability between layers."""

    def __post_init__(self) -> None:
        check_size("hidden_size", self.hidden_size)
        check_size("layers", self.layers)
        check_probability("dropout", self.dropout)

    def build(self, input_size: int, steps: int) -> BaselineRNN:
        """The network; the number of steps does not matter to it."""
        return BaselineRNN(self.kind, input_size, self.hidden_size, self.layers, dropout=self.dropout)


@dataclass(frozen=True)
class Transformer:
    """Attention over time; with a window, the R-Transformer."""

    hidden_size: int = 128
    """Features of each layer."""
    layers: int = 4
    """How many."""
    heads: int = 4
    """Of the attention."""
    window: int | None = None
    """Steps that the R-Transformer's GRUs read; None for the Transformer."""
    dropout: float = 0.1
    """Probability in each layer."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "layers", "heads"):
            check_size(name, getattr(self, name))
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size must be a multiple of heads = {self.heads}, got {self.hidden_size}")
        if self.window is not None:
            check_size("window", self.window)
        check_probability("dropout", self.dropout)

    def build(self, input_size: int, steps: int) -> TransformerBaseline:
        """The network; the number of steps does not matter to it."""
        return TransformerBaseline(
            input_size, self.hidden_size, self.layers, self.heads, window=self.window, dropout=self.dropout
        )


AnyNetwork = Plain | Residual | Dense | Baseline | Transformer


@dataclass(frozen=True)
class LastStep:
    """A network whose last step gives the answer."""

    network: AnyNetwork
    input_size: int
    outputs: int
    steps: int

    def build(self) -> LastStepClassifier:
        """The module, with weights drawn anew."""
        return LastStepClassifier(self.network.build(self.input_size, self.steps), self.outputs)


TYPES: dict[str, type] = {kind.__name__: kind for kind in (Plain, Residual, Dense, Baseline, Transformer, LastStep)}


def from_plain(value: Any, types: dict[str, type] = TYPES) -> Any:
    """Options from what `training.folder.plain` made of them."""
    if isinstance(value, dict) and "type" in value:
        fields = {name: from_plain(item, types) for name, item in value.items() if name != "type"}
        if value["type"] not in types:
            raise ValueError(f"type must be one of {', '.join(types)}, got {value['type']!r}")
        try:
            return types[value["type"]](**fields)
        except TypeError as error:  # of a later version, or not ours
            raise ValueError(f"{value['type']} cannot be made of these options: {error}") from None
    return value


def load(run: str | Path) -> nn.Module:
    """Load the model of a finished run, in evaluation mode.

    Args:
        run: the folder of the run, or any that holds its weights.safetensors and model.json.

    Example:
        model = indrnn.load("runs/adding-100")
    """
    from safetensors import SafetensorError  # where it is used: importing indrnn brings in torch alone
    from safetensors.torch import load_file

    folder = Path(run)
    if not folder.is_dir():
        raise FileNotFoundError(f"run must be the folder of a run, and {folder} is none")
    options, weights = folder / "model.json", folder / "weights.safetensors"
    for path in (options, weights):
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} holds no {path.name}: the run is not finished, or was of a model that only its own program "
                "can build"
            )
    try:
        config = from_plain(json.loads(options.read_text()))
    except ValueError as error:
        raise ValueError(f"{options} cannot be read: {error}") from None
    if not isinstance(config, LastStep):
        raise ValueError(f"{options} must describe a model of this package, got {type(config).__name__}")
    model = config.build()
    state = model.state_dict()
    try:
        stored = load_file(weights)
    except SafetensorError as error:
        raise ValueError(f"{weights} cannot be read: {error}") from None
    tied = state.keys() - _unshared(state).keys()
    wrong = sorted((stored.keys() ^ state.keys()) - tied)
    wrong += [name for name in sorted(stored.keys() & state.keys()) if stored[name].shape != state[name].shape]
    if not wrong:
        model.load_state_dict(stored, strict=False)
    else:
        raise ValueError(f"{weights} does not fit the model: {', '.join(wrong)}")
    return model.eval()


def weights_as_bytes(model: nn.Module) -> bytes:
    """A model's weights as the content of a safetensors file."""
    from safetensors.torch import save

    return save({name: value.detach().cpu().contiguous() for name, value in _unshared(model.state_dict()).items()})


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state without those that are another's under a second name, as tied weights are."""
    seen: set[tuple[int, torch.Size]] = set()
    result = {}
    for name, value in state.items():
        key = (value.data_ptr(), value.shape)
        if value.numel() == 0 or key not in seen:
            result[name] = value
        seen.add(key)
    return result
