"""Recurrent weights: their bound |u| <= γ^(1/T), which keeps gradients over T steps below γ; parameter groups."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..checks import check_count, check_share, is_number
from . import EPSILON, BoundOptions

_RECURRENT_WEIGHT = re.compile(r"weight_hh(_l\d+)?(_reverse)?")
_PATIENCE = 32  # training passes since the last constraint: more than an optimiser makes within one step


class RecurrentBound(nn.Module):
    """The initial range and the bound of a layer's recurrent weights; a child module of the layer.

    `upper` is γ^(1/T), or `bound`, or inf for none. `lower` is 0, or the paper's relaxed condition against vanishing
    gradients: at least one neuron of the layer has |u| >= lower. Both are plain floats that may be set at any time.
    `state_dict` records them, in float64 whatever the type of the weights. They belong to the layer and not to the
    weights: `load_state_dict` keeps the layer's own, and warns if the recorded ones differ.

    Args:
        gamma: the largest factor by which a gradient may grow over a sequence; None for no bound.
        sequence_length: T; needed unless gamma is 1 or None.
        epsilon: the smallest factor that a long memory must pass on over a sequence.
        lower_bound: enforce the relaxed condition too, with lower = epsilon^(1/T); needs `sequence_length`.
        bound: the bound itself, in place of gamma^(1/T).
        long_memory: initialise u from U(ε^(1/T), upper) instead of U(0, upper); needs `sequence_length`.
        highest_start: initialise u from U(0, highest_start) instead of U(0, upper): with less memory than it may learn,
            and more of each layer's output is about the latest steps. A long memory is initialised as without it.
    """

    def __init__(
        self,
        gamma: float | None = 1.0,
        sequence_length: int | None = None,
        epsilon: float = EPSILON,
        lower_bound: bool = False,
        bound: float | None = None,
        long_memory: bool = False,
        highest_start: float | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("gamma", gamma), ("bound", bound)):
            if value is not None and not (is_number(value) and 0 < value < math.inf):
                raise ValueError(f"{name} must be a positive number or None, got {value!r}")
        if bound is not None and gamma not in (None, 1):
            raise ValueError(f"bound and gamma cannot both be given, got bound = {bound} and gamma = {gamma}")
        if sequence_length is not None:
            check_count("sequence_length", sequence_length)
        check_share("epsilon", epsilon)
        for needed, purpose in (
            (gamma not in (None, 1), f"to turn gamma = {gamma} into a bound, gamma^(1/T)"),
            (lower_bound, "for lower_bound, epsilon^(1/T)"),
            (long_memory, "for long_memory, whose weights start above epsilon^(1/T)"),
        ):
            if needed and sequence_length is None:
                raise ValueError(f"sequence_length is needed {purpose}")
        T = sequence_length or 1
        self.options: BoundOptions = {
            "gamma": gamma,
            "sequence_length": sequence_length,
            "epsilon": epsilon,
            "lower_bound": lower_bound,
            "bound": bound,
            "long_memory": long_memory,
            "highest_start": highest_start,
        }
        self.upper = float(bound) if bound is not None else math.inf if gamma is None else float(gamma ** (1 / T))
        self.start = epsilon ** (1 / T) if long_memory else 0.0
        self.lower = epsilon ** (1 / T) if lower_bound else 0.0
        if highest_start is not None and not (is_number(highest_start) and 0 < highest_start <= self.upper):
            raise ValueError(
                f"highest_start must be a number in (0, {self.upper}], up to the bound, or None, got {highest_start!r}"
            )
        if long_memory and self.start > self._end:
            raise ValueError(f"epsilon^(1/T) = {self.start} must not lie above the bound, {self._end}")
        self._passes = 0  # in training since the last constraint
        self._pending: tuple[Tensor, Any] | None = None

    @property
    def _end(self) -> float:
        """The largest initial value of u."""
        return self.upper if math.isfinite(self.upper) else 1.0

    def init_(self, u: Tensor, long_memory: bool = True) -> None:
        """Draw u from U(start, upper) with a `long_memory`, from U(0, `highest_start`) or U(0, upper) without.

        Without a bound, upper is 1.
        """
        lower = self.start if long_memory else 0.0
        highest = None if lower else self.options.get("highest_start")
        with torch.no_grad():
            u.uniform_(lower, self._end if highest is None else highest)
            if lower:
                u.clamp_(min=_rounded(lower, u.dtype, up=True))
        self.constrain_(u)

    def constrain_(self, u: Tensor) -> None:
        """Clamp u in place to |u| <= upper, rounded toward zero to u's type, then enforce `lower` if it is set."""
        self._passes = 0
        with torch.no_grad():
            # A DTensor, as under FSDP2; tested without importing torch.distributed
            if type(u) in (Tensor, nn.Parameter) or not (hasattr(u, "to_local") and hasattr(u, "device_mesh")):
                self._constrain_(u)
            elif self.lower == 0:
                self._constrain_(u.to_local())
            else:
                self._constrain_shards_(u)

    def _constrain_(self, u: Tensor) -> None:
        upper = _rounded(self.upper, u.dtype, up=False)
        if math.isfinite(upper):
            u.clamp_(-upper, upper)
        if self.lower > 0 and u.numel() > 0:
            # Without asking for the value, so that a GPU does not wait: the largest is moved up if it is too small.
            flat = u.view(-1)
            largest = flat.abs().argmax(keepdim=True)
            value = flat[largest]
            least = min(_rounded(self.lower, u.dtype, up=True), upper)
            lower = torch.full_like(value, least).copysign(value)
            flat[largest] = torch.where(value.abs() < lower.abs(), lower, value)

    def _constrain_shards_(self, u: Any) -> None:
        """Constrain the whole tensor, as no process knows from its own shard which neuron is the largest."""
        from torch.distributed.tensor import DTensor, Replicate

        whole = u.full_tensor()
        self._constrain_(whole)
        everywhere = DTensor.from_local(whole, u.device_mesh, [Replicate()] * u.device_mesh.ndim, run_check=False)
        u.to_local().copy_(everywhere.redistribute(u.device_mesh, u.placements).to_local())

    def watch(self, of: Callable[[], Sequence[Tensor]]) -> None:
        """Warn once if a |u| exceeds its bound in training, after many passes without a constraint.

        On a GPU, the result is read when it is ready, some passes later, so that the host never waits.
        """
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._passes < 0:
            return
        passes = self._passes + 1
        self.__dict__["_passes"] = passes  # past Module.__setattr__, which takes longer than all the rest
        every = _PATIENCE if passes < 8 * _PATIENCE else 8 * _PATIENCE
        if passes % every or not math.isfinite(self.upper) or torch._C._are_functorch_transforms_active():
            return
        weights = of()
        if any(type(u) not in (Tensor, nn.Parameter) or u.is_meta or not u.requires_grad for u in weights):
            return
        u = weights[0]
        exceeds = torch.stack([u.detach().abs().max() for u in weights]).max() > _rounded(self.upper, u.dtype, up=False)
        if u.device.type == "cpu":
            self._warn_if(exceeds)
            return
        if self._pending is not None and self._pending[1].query():
            self._warn_if(self._pending[0])
            self._pending = None
        if self._pending is None:
            flag = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(exceeds, non_blocking=True)
            event = torch.Event(u.device)
            event.record()
            self._pending = (flag, event)

    def _warn_if(self, exceeds: Tensor) -> None:
        if exceeds:
            self._passes = -1  # until the next constraint
            warnings.warn(
                "a recurrent weight exceeds its bound in training, and nothing holds it: gradients may explode. Call "
                "indrnn.attach_constraint(optimizer, model) for the optimizer in use (a copied or rebuilt one has lost "
                "it), or indrnn.constrain_(model) after each step; or build with gamma=None for no bound",
                stacklevel=4,
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pending": None}  # an event of the device cannot be copied

    def get_extra_state(self) -> Tensor:
        """(upper, lower), for `state_dict`."""
        return torch.tensor([self.upper, self.lower], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """For `load_state_dict`: compare the bounds, and keep the layer's own."""
        recorded = tuple(float(value) for value in state)
        if not all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(recorded, (self.upper, self.lower), strict=True)):
            warnings.warn(
                f"these weights were held in |u| <= {recorded[0]:.9g} (lower {recorded[1]:.9g}), and the layer that "
                f"takes them has the bound {self.upper:.9g} (lower {self.lower:.9g}), which it keeps; "
                "indrnn.constrain_ brings the weights into it",
                stacklevel=2,
            )

    def extra_repr(self) -> str:
        """The two bounds."""
        return f"upper={self.upper:.6g}" + (f", lower={self.lower:.6g}" if self.lower else "")


def constrain_(module: nn.Module) -> None:
    """Clamp, in place, every recurrent weight in `module` to its layer's bound: |u| <= γ^(1/T) holds in every type.

    A pruned weight is clamped too. One that is computed from other parameters (`parametrize`, `weight_norm`) raises an
    error, unless its layer has no bound.
    """
    for bound, u in _bounded(module):
        bound.constrain_(u)


def attach_constraint(optimizer: torch.optim.Optimizer, module: nn.Module) -> RemovableHandle:
    """Call `constrain_(module)` after each step of `optimizer`, until the returned handle's `remove()` is called."""
    if next(_layers(module), None) is None:
        raise ValueError(f"module must hold an IndRNN layer to constrain, got {type(module).__name__} without one")
    list(_bounded(module))  # what cannot be held is refused here, and not after the first step
    return optimizer.register_step_post_hook(lambda *_: constrain_(module))


def recurrent_weights(module: nn.Module) -> Iterator[nn.Parameter]:
    """Every recurrent weight in `module` that is a parameter; of a pruned one, the original parameter."""
    return (u for layer, _ in _layers(module) for u in _recurrent_weights_of(layer))


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split a module's parameters for an optimiser: decay on input weights, none on anything else, as in the paper.

    Input weights are the parameters of two and more dimensions (matrices, convolution kernels, embeddings) that are
    not recurrent weights. Those, biases and the scales of norms are not decayed. Every parameter is in one group.

    Example:
        optimizer = torch.optim.Adam(indrnn.parameter_groups(model, 1e-4), lr=2e-4)
    """
    if weight_decay < 0:
        raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
    recurrent = {id(u) for u in recurrent_weights(module)}
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0)]
    for parameter in module.parameters():
        decayed = parameter.dim() >= 2 and id(parameter) not in recurrent
        groups[0 if decayed else 1]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def _layers(module: nn.Module) -> Iterator[tuple[nn.Module, RecurrentBound]]:
    for layer in module.modules():
        if isinstance(bound := getattr(layer, "bound", None), RecurrentBound):
            yield layer, bound


def _bounded(module: nn.Module) -> Iterator[tuple[RecurrentBound, nn.Parameter]]:
    for layer, bound in _layers(module):
        if math.isfinite(bound.upper) or bound.lower:
            _refuse_computed(layer)
        for u in _recurrent_weights_of(layer):
            yield bound, u


def _recurrent_weights_of(layer: nn.Module) -> Iterator[nn.Parameter]:
    for name, parameter in layer.named_parameters(recurse=False):
        if _RECURRENT_WEIGHT.fullmatch(name.removesuffix("_orig")):
            yield parameter


def _refuse_computed(layer: nn.Module) -> None:
    """Raise if a recurrent weight is computed from other parameters: clamping these would not bound it."""
    computed = [name for name in getattr(layer, "parametrizations", {}) if _RECURRENT_WEIGHT.fullmatch(name)]
    for name, _ in layer.named_parameters(recurse=False):
        stem = next((name.removesuffix(end) for end in ("_g", "_v", "_orig") if name.endswith(end)), "")
        pruned = name.endswith("_orig") and f"{stem}_mask" in layer._buffers
        if _RECURRENT_WEIGHT.fullmatch(stem) and not pruned:
            computed.append(stem)
    if computed:
        raise ValueError(
            f"{computed[0]} of {type(layer).__name__} is computed from other parameters (a parametrisation), so it "
            "cannot be clamped to its bound; build the layer with gamma=None, and bound it in the parametrisation"
        )


def _rounded(value: float, dtype: torch.dtype, *, up: bool) -> float:
    """The number of this type nearest to `value` (which is positive) that is not below it, or, unless `up`, above."""
    number = torch.tensor(value, dtype=dtype, device="cpu")
    exact = number.double().item()
    if exact == value or (exact > value) == up:
        return exact
    return torch.nextafter(number, torch.full_like(number, math.inf if up else 0.0)).item()
