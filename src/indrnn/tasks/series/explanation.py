"""Explanation of predictions: the contribution of each step, and the neurons that remember the most influential one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ...networks.front import FrontState
from ...networks.unit import RecurrentUnit
from .collection import Array, Collection, as_array

if TYPE_CHECKING:
    from .estimators import Estimator

MOST = 20
"""Most neurons that an explanation lists."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanation of the prediction for one series."""

    target: Any
    """Class, or number of the label or output, that is explained."""
    contributions: Array
    """Contributions to the target's output before softmax, (channels, time): gradient × input, averaged over the
    ensemble. The input is standardised, so a value at the training mean contributes nothing."""
    step: int
    """Step with the largest contribution in magnitude, over its channels."""
    neurons: list[dict[str, Any]]
    """Neurons that remember that step, most first: `layer` and `neuron`, `remembered` (how much the neuron's last state
    changes where the step is put at the training mean, as a share of its magnitude) and `u`, its recurrent weight. Of
    the ensemble's first network; empty where it has no independent neurons."""

    @property
    def steps(self) -> Array:
        """Contribution of each step, summed over channels, (time,)."""
        return self.contributions.sum(0)  # type: ignore[no-any-return]


def explain(estimator: Estimator, x: Any, target: Any = None) -> Explanation:
    """Explain the prediction for one series; see `Estimator.explain`."""
    values = as_array(x)
    if values.ndim not in (1, 2):
        raise ValueError(f"x must be one series, (channels, time) or (time,), got the shape {values.shape}")
    data = estimator.checked(np.atleast_2d(values)[None])
    output = _output_of(estimator, data, target)
    inputs = estimator.preparation_(data.x[0]).unsqueeze(1)  # (T, 1, features)
    total = torch.zeros_like(inputs)
    for model in estimator.models_:
        copy = inputs.clone().requires_grad_(True)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(model.eval()(copy)[0][..., output].sum(), copy)
        total += gradient * inputs
    channels = estimator.preparation_.channels
    contributions = (total / len(estimator.models_))[:, 0, :channels].T.double().numpy()
    step = int(np.abs(contributions.sum(0)).argmax())
    neurons = _remembering(estimator.models_[0], inputs, step)
    return Explanation(estimator.target_.name(output), contributions, step, neurons)


def _output_of(estimator: Estimator, data: Collection, target: Any) -> int:
    """Number of the output to explain."""
    learnt = estimator.target_
    if target is None:
        if learnt.kind == "numbers":
            return 0
        return int(estimator.outputs(data)[0].reshape(-1, learnt.outputs).mean(0).argmax())
    if learnt.kind == "classes":
        if target not in learnt.names:
            raise ValueError(f"target must be one of the classes {list(learnt.names)}, got {target!r}")
        return learnt.names.index(target)
    if not (isinstance(target, (int, np.integer)) and 0 <= target < learnt.outputs):
        raise ValueError(f"target must be a number from 0 to {learnt.outputs - 1}, got {target!r}")
    return int(target)


@torch.no_grad()
def _remembering(model: nn.Module, inputs: torch.Tensor, step: int) -> list[dict[str, Any]]:
    """Neurons whose last state changes most without a step."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, RecurrentUnit)]
    if not layers:
        return []
    network: Any = model.network
    without = inputs.clone()
    without[step] = 0.0
    states = [network(sequence)[1] for sequence in (inputs, without)]
    hidden = [(state.network if isinstance(state, FrontState) else state).h for state in states]
    neurons: list[dict[str, Any]] = []
    for (name, unit), before, after in zip(layers, *hidden, strict=True):
        change = ((before - after).abs() / (before.abs().mean() + before.abs()).clamp_min(1e-12))[0].tolist()
        for i, (share, u) in enumerate(zip(change, unit.weight_hh.double().flatten().tolist(), strict=True)):
            if share > 0:
                neurons.append({"layer": f"{name}.weight_hh", "neuron": i, "remembered": share, "u": u})
    return sorted(neurons, key=lambda neuron: -neuron["remembered"])[:MOST]
