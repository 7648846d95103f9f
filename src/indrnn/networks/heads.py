"""From features to answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.checks import check_size
from .network import Features
from .unit import State


class LastStepClassifier(nn.Module):
    """A network whose last valid step's features are classified.

    Args:
        network: any of the networks, or a baseline.
        classes: how many there are.
    """

    def __init__(self, network: Features, classes: int) -> None:
        super().__init__()
        check_size("classes", classes)
        self.network: Features = network
        weight = next(network.parameters())
        self.classifier = nn.Linear(network.output_size, classes, device=weight.device, dtype=weight.dtype)
        nn.init.kaiming_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(
        self, input: Tensor, state: State | None = None, *, lengths: Tensor | None = None, resets: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return the logits, (B, classes), and the state."""
        features, state = self.network(input, state, lengths=lengths, resets=resets, last=True)
        return self.classifier(features), state


class PerStepClassifier(nn.Module):
    """A network whose every step's features are classified, with the weights of an embedding or its own.

    Args:
        network: any of the networks, or a baseline.
        classes: how many there are.
        embedding: tie the weights to this one, (classes, output_size); its own if None.
    """

    def __init__(self, network: Features, classes: int, embedding: nn.Embedding | None = None) -> None:
        super().__init__()
        check_size("classes", classes)
        shape = (classes, network.output_size)
        if embedding is not None and tuple(embedding.weight.shape) != shape:
            given = tuple(embedding.weight.shape)
            raise ValueError(f"embedding must have the shape (classes, output_size) = {shape}, got {given}")
        self.network: Features = network
        like = next(network.parameters())
        own = nn.Embedding(*shape, device=like.device, dtype=like.dtype) if embedding is None else embedding
        if embedding is None:
            nn.init.kaiming_normal_(own.weight)
        self.weight = own.weight
        self.bias = nn.Parameter(torch.zeros(classes, device=like.device, dtype=like.dtype))

    def forward(
        self, input: Tensor, state: State | None = None, *, lengths: Tensor | None = None, resets: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return the logits, (T, B, classes) in the network's layout, and the state."""
        features, state = self.network(input, state, lengths=lengths, resets=resets)
        return F.linear(features, self.weight, self.bias), state
