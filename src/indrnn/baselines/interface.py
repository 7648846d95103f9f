"""The interface of the baselines, that of the networks."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..checks import Lengths, as_lengths, check_count, check_tensor
from ..networks.config import Factory
from ..networks.network import last_step


class BaselineNetwork(nn.Module):
    """Base of the baselines: makes the configuration from the arguments, and has the interface of `PlainIndRNN`.

    Args:
        input_size: features of the input at each step.
        hidden_size: features of each layer.
        num_layers: layers.
        device, dtype: of the parameters.
        **options: the other options, by name; see the configuration.
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
