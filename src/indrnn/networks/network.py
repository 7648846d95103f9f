"""The interface that the deep networks share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..layers.checks import check_like_weight, check_resets, check_tensor
from ..layers.padding import without_padding
from ..ops import timeline
from .unit import IndRec, Recurrent, Run, State, state_after


class Features(Protocol):
    """What the heads need of a network; the baselines have it too."""

    output_size: int

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As of any module."""

    def __call__(
        self,
        input: Tensor,
        state: Any = None,
        *,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, Any]:
        """As `Network.forward`."""


class Network(nn.Module):
    """A deep IndRNN: (T, B, input_size) to features (T, B, output_size), with an explicit state.

    A subclass builds its layers and writes `_features`; every recurrent layer in it is an `IndRec`.
    """

    input_size: int
    """Features of the input at each step."""
    output_size: int
    """Features of the output at each step."""

    def __init__(self, input_size: int, output_size: int, settings: Recurrent, batch_first: bool) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_size = output_size
        self.settings = settings
        self.batch_first = batch_first

    def _features(self, x: Tensor, run: Run) -> Tensor:
        raise NotImplementedError

    @property
    def recurrent_layers(self) -> list[IndRec]:
        """Every recurrent layer, in the order in which they run."""
        return [module for module in self.modules() if isinstance(module, IndRec)]

    def forward(
        self,
        input: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, State]:
        """Run over a sequence, or over the next piece of one.

        Args:
            input: (T, B, input_size), or (B, T, input_size) with `batch_first`.
            state: what the call on the piece before returned; None at the start.
            lengths: (B,), the steps of each sequence; what comes after them matters for nothing and gives zeros.
            resets: bool, (T, B) or (B, T) as the input: the first step of a document, before which the state is zeroed.
            last: return only the last valid step's features.

        Returns:
            The features, (T, B, output_size) in the input's layout, or (B, output_size) with `last` (zeros for a
            sequence of length 0); and the state after each sequence's last step.
        """
        self._check(input, state, lengths, resets)
        x = input
        if self.batch_first:
            x = x.transpose(0, 1).contiguous()
            resets = None if resets is None else resets.transpose(0, 1)
        x = without_padding(x, lengths)
        entering, position = (None, None) if state is None else (list(state.h), state.position)
        run = Run(lengths, resets, position, entering, [])
        features = self._features(x, run)
        after = state_after(x, run)
        if last:
            return last_step(features, lengths), after
        return (features.transpose(0, 1) if self.batch_first else features), after

    def _check(self, input: Tensor, state: State | None, lengths: Tensor | None, resets: Tensor | None) -> None:
        if not isinstance(input, Tensor):
            raise TypeError(f"input must be a tensor, got {type(input).__name__}")
        if input.dim() != 3 or input.shape[-1] != self.input_size:
            layout = "(B, T, {})" if self.batch_first else "(T, B, {})"
            raise ValueError(f"input must have the shape {layout.format(self.input_size)}, got {tuple(input.shape)}")
        weight = next(self.parameters())
        check_like_weight("input", input, weight)
        batch, time = input.shape[:2] if self.batch_first else input.shape[1::-1]
        check_tensor("lengths", lengths, (batch,))
        time = timeline().all_steps(time)
        check_resets(resets, (batch, time) if self.batch_first else (time, batch))
        if state is None:
            return
        if not isinstance(state, State):
            raise TypeError(f"state must be what an earlier call returned, or None, got {type(state).__name__}")
        layers = self.recurrent_layers
        if len(state.h) != len(layers):
            raise ValueError(f"state must hold the states of {len(layers)} recurrent layers, got {len(state.h)}")
        check_tensor("state.position", state.position, (batch,))
        if state.position.dtype != torch.int64:
            raise TypeError(f"state.position must be int64, got {state.position.dtype}")
        for i, (h, layer) in enumerate(zip(state.h, layers, strict=True)):
            check_tensor(f"state.h[{i}]", h, (batch, layer.weight_hh.shape[0]))
            check_like_weight(f"state.h[{i}]", h, weight)

    def extra_repr(self) -> str:
        """How many recurrent layers there are."""
        return f"recurrent_layers={len(self.recurrent_layers)}"


def last_step(features: Tensor, lengths: Tensor | None) -> Tensor:
    """The last valid step of (T, B, F): (B, F), zeros for a sequence of length 0."""
    T, B, F = features.shape
    if timeline().is_split:
        return _last_step_of_all(features, lengths)
    if T == 0:
        return features.new_zeros(B, F)
    if lengths is None:
        return features[-1]
    at = (lengths.long() - 1).clamp_min(0).view(1, -1, 1).expand(1, B, F)
    return torch.where((lengths > 0).unsqueeze(-1), features.gather(0, at).squeeze(0), 0.0)


def _last_step_of_all(features: Tensor, lengths: Tensor | None) -> Tensor:
    """The same where each process holds a slice: on every one, from the one that has the step."""
    (T, B, _), here = features.shape, timeline()
    last = torch.full((B,), here.all_steps(T), device=features.device) if lengths is None else lengths
    step = torch.arange(T, device=features.device).unsqueeze(1) + here.first_step
    at_end = (step == last - 1).unsqueeze(-1)  # (T, B, 1)
    return here.sum_over_ranks(torch.where(at_end, features, 0.0).sum(0))


def weight_layer(inputs: int, outputs: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Linear:
    """A Weight of the paper's figures: started as the layer's input weights are."""
    linear = nn.Linear(inputs, outputs, device=device, dtype=dtype)
    nn.init.kaiming_uniform_(linear.weight, a=8)
    nn.init.zeros_(linear.bias)
    return linear
