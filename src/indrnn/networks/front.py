"""Convolutions over time in front of a recurrent network, with strides for long raw signals: (T, B, C) to the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.masks import shared_dropout, valid_steps, without_padding
from ..layers.norm import SequenceBatchNorm
from ..ops.checks import Lengths, as_lengths
from ..ops.watched import is_watched
from .config import Factory, Front
from .network import last_step
from .unit import is_unwatched


class FrontState(NamedTuple):
    """The state of a network with a front, from one call to the next."""

    inputs: tuple[Tensor, ...]
    """Last inputs of each convolution, (steps, B, features)."""
    network: Any
    """State of the network behind the convolutions; None before its first step."""


class FrontNetwork(nn.Module):
    """Causal convolution → batch norm → ReLU, once or several times, then a network, whose interface it has.

    With strides, an output stands for `stride` steps: T steps are reduced to ⌈T / stride⌉.
    """

    batch_first = False

    def __init__(self, config: Front, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.config, self.bidirectional, self.steps_after = config, config.bidirectional, config.steps
        assert config.input_size is not None
        self.input_size = config.input_size
        inputs = (config.input_size, *config.features[:-1])
        shapes = zip(inputs, config.features, config.kernels, config.strides, strict=True)
        self.convolutions = nn.ModuleList(nn.Conv1d(*shape, bias=False, **factory) for shape in shapes)
        self.norms = nn.ModuleList(SequenceBatchNorm(size, **factory) for size in config.features)
        self.network: nn.Module = replace(config.network, input_size=config.features[-1]).build(**factory)
        self.output_size: int = self.network.output_size
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the convolutions."""
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")

    def forward(
        self,
        input: Tensor,
        state: FrontState | None = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, FrontState]:
        """Run over a sequence; see `indrnn.networks.Network.forward`.

        A sequence can be continued from a `state` if the strides are 1, or if they divide the lengths of the pieces
        before. `resets` are not supported. The features are (⌈T / strides⌉, B, output_size).
        """
        if resets is not None:
            raise ValueError("resets are not supported by convolutions in front; split the sequence where it resets")
        if input.dim() != 3 or input.shape[-1] != self.input_size:
            raise ValueError(f"input must have the shape (T, B, {self.input_size}), got {tuple(input.shape)}")
        steps = as_lengths(lengths, input.device)
        x, after = without_padding(input, steps), []
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            before = self.config.kernels[i] - 1
            earlier = x.new_zeros(before, *x.shape[1:]) if state is None else state.inputs[i]
            x = torch.cat([earlier, x])
            after.append(x[len(x) - before :])
            x = convolution(x.permute(1, 2, 0)).permute(2, 0, 1).contiguous()  # (B, C, T) and back
            steps = None if steps is None else (steps + self.config.strides[i] - 1) // self.config.strides[i]
            x = shared_dropout(_normed(norm, x, steps), self.config.dropout, self.training)
        features, behind = self.network(x, None if state is None else state.network, lengths=steps)
        if last:
            features = last_step(features, steps, self.bidirectional)
        return features, FrontState(tuple(after), behind)


def _normed(norm: nn.Module, x: Tensor, lengths: Tensor | None) -> Tensor:
    """relu(norm(x, lengths)) of (T, B, C), where possible by torch's batch norm of valid steps: a third of passes."""
    if is_watched() or not is_unwatched(norm, SequenceBatchNorm) or x.dtype != norm.weight.dtype or norm.synchronised:
        return F.relu(norm(x, lengths))
    norm.check(x, lengths)
    valid = valid_steps(x, lengths)
    rows = x.flatten(0, 1) if valid is None else x[valid]  # (steps, C)
    if norm.training and len(rows) > 1:
        norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:  # the mean over all batches, as `gather_statistics` takes it
        momentum = 1 / max(1, int(norm.num_batches_tracked))
    weights = norm.running_mean, norm.running_var, norm.weight, norm.bias
    rows = F.relu(F.batch_norm(rows, *weights, norm.training, momentum, norm.eps))
    return rows.view_as(x) if valid is None else torch.zeros_like(x).index_put((valid,), rows)
