"""The bound on recurrent weights, |u| <= γ^(1/T), that keeps gradients over T steps below γ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .checks import check_size

EPSILON = 0.2
"""Default of `epsilon`: a long-memory neuron passes at least a fifth of a gradient over T steps (the value that the
paper's authors used for pixel-by-pixel MNIST)."""

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class RecurrentBound(nn.Module):
    """The range a layer's recurrent weights start in and are held in; a child of the layer, and part of its state.

    `upper` is γ^(1/T), or inf for none. `lower` is 0, or the paper's relaxed condition against vanishing gradients: at
    least one neuron of the layer has |u| >= lower. Both are plain floats that may be set at any time; `state_dict`
    holds them in float64 whatever the type of the weights.

    Args:
        gamma: the largest factor by which a gradient may grow over a sequence; None for no bound.
        sequence_length: T; needed unless gamma is 1 or None.
        epsilon: the least factor that a long memory must pass on over a sequence.
        lower_bound: hold the relaxed condition too, with lower = epsilon^(1/T); needs `sequence_length`.
    """

    def __init__(
        self,
        gamma: float | None = 1.0,
        sequence_length: int | None = None,
        epsilon: float = EPSILON,
        lower_bound: bool = False,
    ) -> None:
        super().__init__()
        if gamma is not None and not (isinstance(gamma, (int, float)) and 0 < gamma < math.inf):
            raise ValueError(f"gamma must be a positive number or None, got {gamma!r}")
        if sequence_length is not None:
            check_size("sequence_length", sequence_length)
        if not (isinstance(epsilon, (int, float)) and 0 < epsilon <= 1):
            raise ValueError(f"epsilon must be a number in (0, 1], got {epsilon!r}")
        if sequence_length is None:
            if gamma not in (None, 1):
                raise ValueError(f"sequence_length is needed to turn gamma = {gamma} into a bound, gamma^(1/T)")
            if lower_bound:
                raise ValueError("sequence_length is needed for lower_bound, epsilon^(1/T)")
        T = sequence_length or 1
        self.upper = math.inf if gamma is None else gamma ** (1 / T)
        self.long_memory = None if sequence_length is None else epsilon ** (1 / T)
        self.lower = epsilon ** (1 / T) if lower_bound else 0.0

    def init_(self, u: Tensor, long_memory: bool = False) -> None:
        """Draw u from U(0, upper), with `long_memory` from U(ε^(1/T), upper). Where there is no bound, upper is 1."""
        upper = self.upper if math.isfinite(self.upper) else 1.0
        lower = 0.0
        if long_memory:
            if self.long_memory is None:
                raise ValueError("sequence_length is needed for long_memory, whose weights start above epsilon^(1/T)")
            lower = self.long_memory
            if lower > upper:
                raise ValueError(f"epsilon^(1/T) = {lower} must not lie above the bound, {upper}")
        with torch.no_grad():
            u.uniform_(lower, upper)
            if long_memory:
                u.clamp_(min=_away_from_zero(lower, u.dtype))
        self.constrain_(u)

    def constrain_(self, u: Tensor) -> None:
        """Clamp u in place to |u| <= upper, rounded toward zero to u's type, then hold `lower` if it is set."""
        with torch.no_grad():
            if math.isfinite(self.upper):
                upper = _toward_zero(self.upper, u.dtype)
                u.clamp_(-upper, upper)
            if self.lower > 0 and u.numel() > 0:
                # Without asking for the value, so that a GPU does not wait: the largest is moved up if it is too small.
                flat = u.view(-1)
                largest = flat.abs().argmax(keepdim=True)
                value = flat[largest]
                least = _away_from_zero(self.lower, u.dtype)
                if math.isfinite(self.upper):
                    least = min(least, _toward_zero(self.upper, u.dtype))
                lower = torch.full_like(value, least).copysign(value)
                flat[largest] = torch.where(value.abs() < lower.abs(), lower, value)

    def get_extra_state(self) -> Tensor:
        """(upper, lower), for `state_dict`."""
        return torch.tensor([self.upper, self.lower], dtype=torch.float64)

    def set_extra_state(self, state: Any) -> None:
        """What `load_state_dict` calls."""
        self.upper, self.lower = (float(value) for value in state)

    def extra_repr(self) -> str:
        """Show the two numbers."""
        return f"upper={self.upper:.6g}" + (f", lower={self.lower:.6g}" if self.lower else "")


def constrain_(module: nn.Module) -> None:
    """Clamp, in place, every recurrent weight in `module` to its layer's bound: |u| <= γ^(1/T) holds in every type."""
    for bound, u in _bounded(module):
        bound.constrain_(u)


def attach_constraint(optimizer: torch.optim.Optimizer, module: nn.Module) -> RemovableHandle:
    """Call `constrain_(module)` after each step of `optimizer`, until the returned handle's `remove()` is called."""
    if next(_bounded(module), None) is None:
        raise ValueError(f"module must hold an IndRNN layer to constrain, got {type(module).__name__} without one")

    def hook(*_: Any) -> None:
        constrain_(module)

    return optimizer.register_step_post_hook(hook)


def recurrent_weights(module: nn.Module) -> Iterator[nn.Parameter]:
    """Every recurrent weight in `module`."""
    return (u for _, u in _bounded(module))


def _bounded(module: nn.Module) -> Iterator[tuple[RecurrentBound, nn.Parameter]]:
    for layer in module.modules():
        bound = getattr(layer, "bound", None)
        if isinstance(bound, RecurrentBound):
            for name, parameter in layer.named_parameters(recurse=False):
                if name.startswith("weight_hh"):
                    yield bound, parameter


def _toward_zero(value: float, dtype: torch.dtype) -> float:
    """The largest number of this type that is not above `value` (which is positive)."""
    rounded = torch.tensor(value, dtype=dtype, device="cpu")
    return _neighbour(rounded, -1) if rounded.double() > value else rounded.item()


def _away_from_zero(value: float, dtype: torch.dtype) -> float:
    """The smallest number of this type that is not below `value` (which is positive)."""
    rounded = torch.tensor(value, dtype=dtype, device="cpu")
    return _neighbour(rounded, 1) if rounded.double() < value else rounded.item()


def _neighbour(number: Tensor, by: int) -> float:
    """The next positive number of this type: their bits, as integers, are in the order of their values."""
    return (number.view(_BITS[number.dtype.itemsize]) + by).view(number.dtype).item()
