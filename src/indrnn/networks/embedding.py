"""An embedding whose weight serves both ways, and the language model around it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.checks import Lengths, check_probability, check_size
from ..layers.dropout import embedding_dropout
from .heads import check_network


class TiedEmbedding(nn.Module):
    """An embedding that owns the weight of the output too, and is called for both.

    `embedding(words)` takes class indices to vectors; `embedding(features, decode=True)` takes vectors to logits,
    features · weightᵀ + bias. There is one parameter `weight`, of one module, so that no tie can break.

    Args:
        classes: how many there are.
        size: features of a vector.
        start: the weight starts from U(−start, start), the bias from 0.
        dropout: probability that a class is dropped in `embedding(words)`, wherever it occurs in the batch.
        device: where the parameters are made.
        dtype: their type.
    """

    def __init__(
        self,
        classes: int,
        size: int,
        *,
        start: float = 0.04,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("classes", classes)
        check_size("size", size)
        check_probability("dropout", dropout)
        if not start > 0:
            raise ValueError(f"start must be a positive number, got {start!r}")
        self.classes, self.size, self.start, self.dropout = classes, size, start, float(dropout)
        self.weight = nn.Parameter(torch.empty(classes, size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(classes, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew; no bias."""
        nn.init.uniform_(self.weight, -self.start, self.start)
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor, decode: bool = False) -> Tensor:
        """Take indices (...) to vectors (..., size), or with `decode` vectors to logits (..., classes)."""
        if decode:
            return F.linear(input, self.weight, self.bias)
        return F.embedding(input, embedding_dropout(self.weight, self.dropout, self.training))

    def extra_repr(self) -> str:
        """Sizes and dropout."""
        return f"{self.classes}, {self.size}" + (f", dropout={self.dropout}" if self.dropout else "")


class LanguageModel(nn.Module):
    """The next word at every step: embedding → network → the same embedding, the other way.

    Args:
        network: one whose input and output have the same number of features.
        classes: words (or characters).
        start: as for `TiedEmbedding`.
        dropout: as for `TiedEmbedding`.
    """

    def __init__(self, network: nn.Module, classes: int, *, start: float = 0.04, dropout: float = 0.0) -> None:
        super().__init__()
        size = check_network(network)
        if network.input_size != size:
            raise ValueError(
                f"network must have as many features in its output as in its input, {network.input_size}, got {size}"
            )
        like = next(network.parameters())
        self.embedding = TiedEmbedding(
            classes, size, start=start, dropout=dropout, device=like.device, dtype=like.dtype
        )
        self.network = network
        self.classes, self.start, self.dropout = classes, start, dropout

    def forward(
        self, input: Tensor, state: Any = None, *, lengths: Lengths = None, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Return the logits of the next word, (T, B, classes) in the network's layout, and the state.

        Args:
            input: (T, B), class indices; (B, T) where the network has `batch_first`.
            state: as for the network, like the others.
            lengths: (B,), the steps of each sequence.
            resets: bool, in the input's layout: the first steps of documents.
        """
        features, state = self.network(self.embedding(input), state, lengths=lengths, resets=resets)
        return self.embedding(features, decode=True), state
