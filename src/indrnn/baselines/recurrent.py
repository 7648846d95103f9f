"""RNN, IRNN, LSTM and GRU baselines: torch's recurrent layers with the interface of our networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..checks import check_tensor
from ..networks.config import Factory
from .config import Baseline, Kind
from .interface import BaselineNetwork

Run = Callable[[Any, Any], tuple[Any, Any]]


class BaselineRNN(BaselineNetwork):
    """RNN with tanh, IRNN (RNN with ReLU, its recurrent matrix initialised to the identity), LSTM or GRU.

    As `torch.nn.RNN`, `LSTM` and `GRU` but for one trained bias per layer instead of two that are added (a GRU keeps
    two), as the paper counts parameters; LSTM's forget gate starts with a bias of 1. Same interface as
    `indrnn.PlainIndRNN`, without `resets`; the state is torch's own, and `lengths` must be at least 1.

    The arguments are `kind` and those of `BaselineNetwork`; the options, of `Baseline`: `dropout`, `weight_dropout` and
    `batch_first`.
    """

    Config = Baseline
    config: Baseline

    def __init__(self, kind: Kind, input_size: int, hidden_size: int, num_layers: int = 1, **options: Any) -> None:
        super().__init__(input_size, hidden_size, num_layers, kind=kind, **options)

    def _build(self, factory: Factory) -> None:
        config = self.config
        self.kind, self.weight_dropout = config.kind, float(config.weight_dropout)
        options: dict[str, Any] = {"batch_first": self.batch_first, **factory}
        if config.layers > 1:
            options["dropout"] = config.dropout
        if self.kind in ("rnn", "irnn"):
            options["nonlinearity"] = "relu" if self.kind == "irnn" else "tanh"
        make = {"lstm": nn.LSTM, "gru": nn.GRU}.get(self.kind, nn.RNN)
        self.rnn: nn.RNNBase = make(self.input_size, self.output_size, config.layers, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        self.rnn.reset_parameters()
        for name, parameter in self.rnn.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            if name.startswith("bias_hh"):  # one bias a layer: this one stays 0 (the GRU's is not the other's double)
                parameter.requires_grad_(self.kind == "gru")
            if self.kind == "irnn" and name.startswith("weight_hh"):
                nn.init.eye_(parameter)
            if self.kind == "irnn" and name.startswith("weight_ih"):
                nn.init.normal_(parameter, std=0.001)
            if self.kind == "lstm" and name.startswith("bias_ih"):
                with torch.no_grad():
                    parameter[self.output_size : 2 * self.output_size] = 1.0

    def _run(self, input: Tensor, state: Any, lengths: Tensor | None) -> tuple[Any, Any]:
        run = self._one_call()
        if lengths is None or not len(lengths):
            return run(input, state)
        batch, steps = len(lengths), input.shape[1 if self.batch_first else 0]
        if not 1 <= int(lengths.min()) <= int(lengths.max()) <= steps:
            raise ValueError(f"lengths must lie in 1 to {steps} for this input, got {lengths.tolist()}")
        if input.device.type == "cpu" and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            # oneDNN, which packed sequences go without, has no LSTM in half precision on some CPUs
            for part in [] if state is None else _parts(state):
                check_tensor("state", part, (self.rnn.num_layers, batch, self.output_size))
            return _in_segments(run, input, state, lengths, 1 if self.batch_first else 0)
        packed = pack_padded_sequence(input, lengths.cpu(), self.batch_first, enforce_sorted=False)
        features, state = run(packed, state)
        return pad_packed_sequence(features, self.batch_first, total_length=steps)[0], state

    def _one_call(self) -> Run:
        """The layers, with weight dropout applied for this call."""
        if not self.training or self.weight_dropout == 0.0:
            return self.rnn
        dropped = {
            name: F.dropout(weight, self.weight_dropout)
            for name, weight in self.rnn.named_parameters()
            if name.startswith("weight_hh")
        }
        return lambda *arguments: functional_call(self.rnn, dropped, arguments)

    def extra_repr(self) -> str:
        """Kind and weight dropout."""
        return self.kind + (f", weight_dropout={self.weight_dropout}" if self.weight_dropout else "")


def _in_segments(run: Run, input: Tensor, state: Any, lengths: Tensor, time: int) -> tuple[Tensor, Any]:
    """Train on sequences of different lengths on a CPU: one call from one sequence's end to the next, on those left.

    Torch's implementation for packed sequences slices the packed batch at every step, and each slice's gradient is as
    large as the whole batch: over a few hundred steps it takes 3 to 7 times as long. Without gradients it is quicker.
    `time` is the dimension of time.
    """
    order = lengths.argsort(descending=True)
    back, ends = order.argsort(), lengths[order].tolist()
    input = input.index_select(1 - time, order)
    parts = None if state is None else [part.index_select(1, order) for part in _parts(state)]
    begun, features, ended = 0, [], []
    for end in sorted(set(ends)):
        going = sum(length >= end for length in ends)  # by the order, the first so many
        if parts is not None:
            ended.append([part[:, going:] for part in parts])
            parts = [part[:, :going].contiguous() for part in parts]
        piece, after = run(input.narrow(time, begun, end - begun).narrow(1 - time, 0, going), _state(parts))
        features.append(F.pad(piece, (0, 0) * (1 + time) + (0, len(ends) - going)))
        parts, begun = _parts(after), end
    ended.append(_parts(after))
    whole = F.pad(torch.cat(features, time), (0, 0) * (2 - time) + (0, input.shape[time] - begun))
    parts = [torch.cat(last[::-1], 1).index_select(1, back) for last in zip(*ended, strict=True)]
    return whole.index_select(1 - time, back), _state(parts)


def _parts(state: Any) -> list[Tensor]:
    """The tensors of torch's state: h, or h and c."""
    return [state] if isinstance(state, Tensor) else list(state)


def _state(parts: list[Tensor] | None) -> Any:
    """These tensors as torch's state."""
    return None if parts is None else parts[0] if len(parts) == 1 else tuple(parts)
