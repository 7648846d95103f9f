"""The baselines with the interface of the networks: RNN, IRNN, LSTM, GRU, QRNN, Transformer and R-Transformer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..checks import check_count
from ..layers.masks import shared_dropout, without_padding
from ..networks.config import Factory
from ..networks.network import last_step
from ..ops.checks import Lengths, as_lengths, check_tensor
from .config import QRNN, Baseline, Kind, Transformer
from .sru import sru

Run = Callable[..., tuple[Any, Any]]


class BaselineNetwork(nn.Module):
    """Base of the baselines: makes the configuration from the arguments, and has the interface of `PlainIndRNN`.

    Input and layers have `input_size` and `hidden_size` features; the other options are those of the configuration.
    """

    Config: ClassVar[type]
    config: Any

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, value in {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}.items():
            check_count(name, value)
        self.config = self.Config(input_size=input_size, hidden_size=hidden_size, layers=num_layers, **options)
        self.input_size, self.output_size, self.batch_first = input_size, hidden_size, self.config.batch_first
        self._build({"device": device, "dtype": dtype})

    def _build(self, factory: Factory) -> None:
        """Make the layers."""
        raise NotImplementedError

    def _run(self, input: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Run over a sequence: the features in the input's layout, and the state."""
        raise NotImplementedError

    def forward(
        self,
        input: Tensor,
        state: Any = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, Any]:
        """Run over a sequence, or over the next piece of one; see `indrnn.networks.Network.forward`.

        `resets` are not supported; the class says what the state is and which `lengths` are.
        """
        if resets is not None:
            raise ValueError(f"resets are not supported by {type(self).__name__}; split the sequence where it resets")
        steps = as_lengths(lengths, input.device) if isinstance(input, Tensor) else None
        if steps is not None:
            check_tensor("lengths", steps, (input.shape[0 if self.batch_first else 1],))
        features, state = self._run(input, state, steps)
        if last:
            features = last_step(features.transpose(0, 1) if self.batch_first else features, steps)
        return features, state


class BaselineRNN(BaselineNetwork):
    """RNN with tanh, IRNN (RNN with ReLU, its recurrent matrix initialised to the identity), LSTM or GRU.

    As `torch.nn.RNN`, `LSTM` and `GRU` but for one trained bias per layer instead of two that are added (a GRU keeps
    two), as the paper counts parameters; LSTM's forget gate starts with a bias of 1. Same interface as
    `indrnn.PlainIndRNN`, without `resets`; the state is torch's own, and `lengths` must be at least 1.

    The options are those of `Baseline`: `dropout`, `weight_dropout` and `batch_first`.
    """

    Config = Baseline
    config: Baseline

    def __init__(self, kind: Kind, input_size: int, hidden_size: int, num_layers: int = 1, **options: Any) -> None:
        super().__init__(input_size, hidden_size, num_layers, kind=kind, **options)

    def _build(self, factory: Factory) -> None:
        config = self.config
        self.kind, self.weight_dropout = config.kind, float(config.weight_dropout)
        between = config.dropout if config.layers > 1 else 0.0  # for which torch warns
        options: dict[str, Any] = {"batch_first": self.batch_first, "dropout": between, **factory}
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
                nn.init.ones_(parameter[self.output_size : 2 * self.output_size])

    def _run(self, input: Tensor, state: Any, lengths: Tensor | None) -> tuple[Any, Any]:
        run = self._one_call()
        if lengths is None or not len(lengths):
            return run(input, state)
        steps = input.shape[1 if self.batch_first else 0]
        if not 1 <= int(lengths.min()) <= int(lengths.max()) <= steps:
            raise ValueError(f"lengths must lie in 1 to {steps} for this input, got {lengths.tolist()}")
        if input.device.type == "cpu" and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            # oneDNN, which packed sequences go without, has no LSTM in half precision on some CPUs
            return self._in_segments(run, input, state, lengths)
        packed = pack_padded_sequence(input, lengths.cpu(), self.batch_first, enforce_sorted=False)
        features, state = run(packed, state)
        return pad_packed_sequence(features, self.batch_first, total_length=steps)[0], state

    def _one_call(self) -> Run:
        """The layers, with weight dropout applied for this call."""
        if not self.training or self.weight_dropout == 0.0:
            return self.rnn
        names = [f"weight_hh_l{layer}" for layer in range(self.rnn.num_layers)]
        dropped = {name: F.dropout(getattr(self.rnn, name), self.weight_dropout) for name in names}
        return lambda *arguments: functional_call(self.rnn, dropped, arguments)

    def _in_segments(self, run: Run, input: Tensor, state: Any, lengths: Tensor) -> tuple[Tensor, Any]:
        """Train on different lengths on a CPU: one call from one sequence's end to the next, on those left."""
        # Torch's way slices the packed batch at every step, and each slice's gradient is as large as the whole batch:
        # over a few hundred steps it takes 3 to 7 times as long. Without gradients it is quicker.
        time, order = 1 if self.batch_first else 0, lengths.argsort(descending=True)
        back, ends = order.argsort(), lengths[order].tolist()
        shape = (self.rnn.num_layers, len(ends), self.output_size)
        if state is None:
            state = (input.new_zeros(shape),) * (2 if self.kind == "lstm" else 1)
        elif self.kind != "lstm":
            state = (state,)
        for part in state:
            check_tensor("state", part, shape)
        input, parts = input.index_select(1 - time, order), [part.index_select(1, order) for part in state]
        begun, features, ended = 0, [], []
        for end in sorted(set(ends)):
            going = sum(length >= end for length in ends)  # by the order, the first so many
            ended.append([part[:, going:] for part in parts])
            parts = [part[:, :going].contiguous() for part in parts]
            segment = input.narrow(time, begun, end - begun).narrow(1 - time, 0, going)
            piece, after = run(segment, tuple(parts) if self.kind == "lstm" else parts[0])
            features.append(F.pad(piece, (0, 0) * (1 + time) + (0, len(ends) - going)))
            parts, begun = list(after) if self.kind == "lstm" else [after], end
        ended.append(parts)
        whole = F.pad(torch.cat(features, time), (0, 0) * (2 - time) + (0, input.shape[time] - begun))
        parts = [torch.cat(last[::-1], 1).index_select(1, back) for last in zip(*ended, strict=True)]
        return whole.index_select(1 - time, back), tuple(parts) if self.kind == "lstm" else parts[0]

    def extra_repr(self) -> str:
        """Kind and weight dropout."""
        return self.kind + (f", weight_dropout={self.weight_dropout}" if self.weight_dropout else "")


class QRNNBaseline(BaselineNetwork):
    """The quasi-recurrent network: c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ z_t and h_t = o_t ⊙ c_t, in one or more layers.

    z_t, f_t and o_t are tanh, sigmoid and sigmoid of convolutions of the input over the last `window` steps (zeros
    before the first), so the recurrence has no matrix product. It is SRU's with gates that do not read c, computed by
    the same kernel. Same interface as `PlainIndRNN`, without `lengths` and `resets`; the state holds, for each layer,
    c (B, hidden_size), and the last steps of its input, (window − 1, B, inputs).

    The options are those of `QRNN`: `window`, `dropout` and `batch_first`.
    """

    Config = QRNN
    config: QRNN

    def _build(self, factory: Factory) -> None:
        window, N = self.config.window, self.output_size
        sizes = [self.input_size, *[N] * (self.config.layers - 1)]
        self.convolutions = nn.ModuleList(nn.Linear(window * inputs, 3 * N, **factory) for inputs in sizes)
        self.window = window
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise weights with variance 1/inputs, biases with 0."""
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Linear)
            bound = (3 / convolution.in_features) ** 0.5
            nn.init.uniform_(convolution.weight, -bound, bound)
            nn.init.zeros_(convolution.bias)

    def _run(self, input: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        if lengths is not None:
            raise ValueError("lengths are not supported by QRNNBaseline; give sequences of one length")
        if input.dim() != 3 or input.shape[2] != self.input_size:
            layout = "B, T" if self.batch_first else "T, B"
            raise ValueError(f"input must have the shape ({layout}, {self.input_size}), got {tuple(input.shape)}")
        if state is not None and len(state) != len(self.convolutions):
            raise ValueError(f"state must hold one of each of {len(self.convolutions)} layers, got {len(state)}")
        x, after = input.transpose(0, 1) if self.batch_first else input, []
        (T, B, _), N, before = x.shape, self.output_size, self.window - 1
        for i, convolution in enumerate(self.convolutions):
            if i:
                x = shared_dropout(x, self.config.dropout, self.training)
            shape = (before, B, x.shape[2])
            c, earlier = (x.new_zeros(B, N), x.new_zeros(shape)) if state is None else state[i]
            check_tensor("state's c", c, (B, N))
            check_tensor("state's inputs", earlier, shape)
            longer = torch.cat([earlier.to(x.dtype), x])  # (T + window − 1, B, inputs)
            read = torch.cat([longer[step : step + T] for step in range(self.window)], dim=-1)
            z, gates = convolution(read).to(c.dtype).split([N, 2 * N], dim=-1)
            none = c.new_zeros(2, N)  # of what SRU's gates read of c, and of their biases
            h, c = sru(torch.cat([z.tanh(), gates], dim=-1), c.new_zeros(T, B, N), none, none, c)
            x = h.to(x.dtype)
            after.append((c, longer[T:]))
        return x.transpose(0, 1) if self.batch_first else x, tuple(after)

    def extra_repr(self) -> str:
        """The window."""
        return f"window={self.window}"


class TransformerBaseline(BaselineNetwork):
    """Layers of causal self-attention and a feed-forward network. Same interface as `indrnn.PlainIndRNN`.

    Positions are encoded by sinusoids. With a `window` it is the R-Transformer instead: in each layer, a GRU reads the
    last `window` steps at every step, and its state replaces the positional encoding.

    Without a `context` there is no state, and a sequence must be given whole. With one, the state is the input of the
    last `context` steps, (S, B, input_size) with S <= context: they are put before the input of the next call, and all
    its steps attend to all S of them. Positions count from the first of those. `resets` are not supported, nor are
    `lengths` with a context.

    The options are those of `Transformer`: `heads`, `dropout`, `window`, `context` and `batch_first`.
    """

    Config = Transformer
    config: Transformer

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, heads: int = 4, **options: Any) -> None:
        super().__init__(input_size, hidden_size, num_layers, heads=heads, **{"dropout": 0.0, **options})

    def _build(self, factory: Factory) -> None:
        size, config = self.output_size, self.config
        self.window, self.context = config.window, config.context
        self.first = nn.Linear(self.input_size, size, **factory)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size, config.heads, 4 * size, config.dropout, norm_first=True, **factory)
            for _ in range(config.layers)
        )
        grus = 0 if self.window is None else config.layers
        self.local = nn.ModuleList(nn.GRU(size, size, **factory) for _ in range(grus))
        self.last = nn.LayerNorm(size, **factory)

    def _run(self, input: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if state is not None and not self.context:
            raise ValueError("state is not supported: attention takes a sequence whole, or has a context")
        if lengths is not None and self.context:
            raise ValueError("lengths are not supported with a context: its steps are the last of every sequence")
        x = input.transpose(0, 1) if self.batch_first else input
        own = len(x)
        if state is not None:
            check_tensor("state", state, (len(state), *x.shape[1:]))
            x = torch.cat([state.to(x.dtype), x])
        steps = len(x)
        after = x[max(0, steps - self.context) :] if self.context else None
        x = self.first(x)
        if self.window is None:
            x = x + sinusoids(steps, self.output_size, x)
        mask = nn.Transformer.generate_square_subsequent_mask(steps, x.device, x.dtype)
        for i, layer in enumerate(self.layers):
            if self.window is not None:
                x = x + self._recent(x, self.local[i], self.window)
            x = layer(x, src_mask=mask, is_causal=True)
        x = without_padding(self.last(x[steps - own :]), lengths)
        return (x.transpose(0, 1) if self.batch_first else x), after

    def _recent(self, x: Tensor, local: nn.Module, window: int) -> Tensor:
        """The state of a GRU at each step, after reading the last `window` steps (zeros before the first)."""
        steps, batch, features = x.shape
        windows = F.pad(x, (0, 0, 0, 0, window - 1, 0)).unfold(0, window, 1)  # (T, B, F, window)
        _, read = local(windows.permute(3, 0, 1, 2).reshape(window, steps * batch, features))
        return read.view(steps, batch, features)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Kind and window."""
        return "transformer" if self.window is None else f"r-transformer, window={self.window}"


def sinusoids(steps: int, features: int, like: Tensor) -> Tensor:
    """(steps, 1, features): sine and cosine of the step, with periods from 2π to 10,000 times that."""
    step = torch.arange(steps, device=like.device, dtype=torch.float32).unsqueeze(1)
    rates = torch.exp(torch.arange(0, features, 2, device=like.device) * (-math.log(10_000) / features))
    angles = step * rates
    both = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :features]
    return both.unsqueeze(1).to(like.dtype)
