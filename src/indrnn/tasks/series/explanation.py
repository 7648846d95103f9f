"""Explanation of predictions: the contribution of each step, and the neurons that remember the most influential one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ...analysis.neurons import layers_of
from ...networks.front import FrontState
from .collection import Array, Collection, as_array

if TYPE_CHECKING:
    from .estimator import Estimator


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanation of the prediction for one series."""

    target: Any
    """The class, or the number of the label or output, that is explained."""
    contributions: Array
    """(channels, time): gradient × input of the target's output, before softmax, averaged over the ensemble. The input
    is standardised, so a value at the training mean contributes nothing."""
    step: int
    """The step with the largest contribution in magnitude, over its channels."""
    neurons: list[dict[str, Any]]
    """Those that remember that step, most first: `layer` and `neuron`, `remembered` (how much the neuron's last state
    changes where the step is put at the training mean, as a share of its magnitude) and `u`, its recurrent weight. Of
    the ensemble's first network; empty where it has no independent neurons."""

    @property
    def steps(self) -> Array:
        """Contribution of each step, summed over channels, (time,)."""
        return self.contributions.sum(0)  # type: ignore[no-any-return]


def explain(estimator: Estimator, x: Any, target: Any = None, most: int = 20) -> Explanation:
    """Explain the prediction for one series.

    Args:
        estimator: a fitted estimator.
        x: (channels, time), or (time,) for one channel.
        target: the class, label or output to explain; None for the most probable class or label, or the first output.
        most: maximum number of neurons to list.
    """
    values = as_array(x)
    if values.ndim not in (1, 2):
        raise ValueError(f"x must be one series, (channels, time) or (time,), got the shape {values.shape}")
    data = estimator._checked(values[None] if values.ndim == 2 else values[None, None])
    inputs = estimator.preparation_(data.x[0]).unsqueeze(1)  # (T, 1, features)
    learnt = estimator.target_
    output = _number_of(estimator, data, target)
    total = torch.zeros_like(inputs)
    for model in estimator.models_:
        given = inputs.clone().requires_grad_(True)
        with torch.enable_grad():
            answers = model.eval()(given)[0]
            (gradient,) = torch.autograd.grad(answers[..., output].sum(), given)
        total += gradient * inputs
    channels = estimator.preparation_.channels
    found = (total / len(estimator.models_))[:, 0, :channels].T.double().numpy()
    step = int(np.abs(found.sum(0)).argmax())
    named = learnt.classes[output] if learnt.kind == "classes" and learnt.classes is not None else output
    return Explanation(named, found, step, _remembering(estimator.models_[0], inputs, step, most))


def _number_of(estimator: Estimator, data: Collection, target: Any) -> int:
    learnt = estimator.target_
    if target is None:
        answer = estimator._answers(data)[0]
        return 0 if learnt.kind == "numbers" else int(answer.reshape(-1, learnt.outputs).mean(0).argmax())
    if learnt.kind == "classes":
        assert learnt.classes is not None
        at = np.flatnonzero(learnt.classes == target)
        if not len(at):
            raise ValueError(f"target must be one of the classes {learnt.classes.tolist()}, got {target!r}")
        return int(at[0])
    if not (isinstance(target, (int, np.integer)) and 0 <= target < learnt.outputs):
        raise ValueError(f"target must be a number from 0 to {learnt.outputs - 1}, got {target!r}")
    return int(target)


@torch.no_grad()
def _remembering(model: nn.Module, inputs: torch.Tensor, step: int, most: int) -> list[dict[str, Any]]:
    try:
        layers = layers_of(model)
    except ValueError:
        return []
    network: Any = model.network
    without = inputs.clone()
    without[step] = 0.0
    states = []
    for each in (inputs, without):
        state = network(each)[1]
        states.append((state.network if isinstance(state, FrontState) else state).h)
    found = []
    for layer, before, after in zip(layers, *states, strict=True):
        change = ((before - after).abs() / (before.abs().mean() + before.abs()).clamp_min(1e-12))[0]
        found += [
            {"layer": layer.name, "neuron": i, "remembered": float(share), "u": float(layer.u[i])}
            for i, share in enumerate(change)
            if share > 0
        ]
    return sorted(found, key=lambda each: -each["remembered"])[:most]
