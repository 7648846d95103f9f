"""`State`: a network's state, carried from one call to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import _register_namedtuple


class State(NamedTuple):
    """The state of a network: returned by each call, and passed to the next.

    Example:
        features, state = network(first_piece)
        features, state = network(second_piece, state.detach())
    """

    h: tuple[Tensor, ...]
    """The state (B, N) of each recurrent layer, in the order in which they run."""
    position: Tensor
    """Number of steps that each row has seen, (B,), int64: of its document, or, where a step norm counts by windows, of
    the whole stream."""

    def detach(self) -> State:
        """The state detached from its graph, for truncated back-propagation through time."""
        return self._map(lambda tensor: tensor.detach())

    def to(self, *args: Any, **options: Any) -> State:
        """The state on another device or in another type, as `torch.Tensor.to`; the position stays an integer."""
        h = tuple(tensor.to(*args, **options) for tensor in self.h)
        return State(h, self.position.to(h[0].device) if h else self.position)

    def index_select(self, index: Tensor) -> State:
        """The rows of the batch given by `index` (K,), in its order, as for beams or a changing batch."""
        return self._map(lambda tensor: tensor.index_select(0, index))

    def _map(self, function: Callable[[Tensor], Tensor]) -> State:
        return State(tuple(function(tensor) for tensor in self.h), function(self.position))


# So that torch.export.save can write a program that takes or returns one, and torch.load a checkpoint that holds one.
_register_namedtuple(State, serialized_type_name="indrnn.State")
torch.serialization.add_safe_globals([State])
