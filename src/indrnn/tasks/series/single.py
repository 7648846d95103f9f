"""One series with a fitted estimator: streams, given piece by piece, and explanations of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ...networks.network import FrontState
from ...networks.unit import RecurrentUnit
from .collection import Array, Collection, as_array
from .preparation import from_first_time

if TYPE_CHECKING:
    from .estimators import Estimator

MOST = 20  # neurons that an explanation lists


class Stream:
    """One growing series; each call of `push` returns the prediction for the series so far, as `predict_proba` would.

    Networks that only read forward (`bidirectional=False`) carry a state, so the cost of a step does not depend on the
    length of the series. A bidirectional network reads the whole series again at each call.

    Args:
        estimator: a fitted estimator, with one target per series or one at every step.

    Example:
        stream = model.stream()
        for values in sensor:  # (channels,)
            probabilities = stream.push(values)
    """

    def __init__(self, estimator: Estimator) -> None:
        estimator.check_fitted()
        self.estimator = estimator
        self.steps = 0
        """Number of steps so far."""
        self._runners = [_Runner(model) for model in estimator.models_]
        self._first_time: float | None = None
        self._last: Array | None = None  # the last step, for differences of time
        self._power: Array | None = None  # of the steps before that

    def push(self, x: Any) -> Array:
        """Add one step, (channels,), or several, (channels, time); return the prediction so far.

        Returns probabilities (classes,), or numbers (outputs,), as if the series ended here; with a target at every
        step, those of the last step.
        """
        preparation = self.estimator.preparation_
        array, channels = as_array(x), preparation.channels
        values = array.reshape(-1, 1) if array.ndim < 2 else array
        if values.ndim != 2 or len(values) != channels or values.shape[1] < 1:
            raise ValueError(f"x must have the shape ({channels},) or ({channels}, time), got {array.shape}")
        if preparation.time_channel is not None:
            values, self._first_time = from_first_time(values, preparation.time_channel, self._first_time)
        values = values.astype(np.float32)
        if np.isinf(values).any():
            raise ValueError("x must be finite, or NaN where a value is missing")
        piece = values if self._last is None else np.concatenate([self._last, values], 1)
        prepared = preparation(piece, self._power)[piece.shape[1] - values.shape[1] :]
        if preparation.normalise_rms:
            self._power = preparation.running_power(piece[:, :-1], self._power)
        self._last = piece[:, -1:]
        self.steps += values.shape[1]
        output = self.estimator.mean_output([runner.push(prepared) for runner in self._runners])
        return self.estimator.target_.in_units(output)


class _Runner:
    """Streaming state of one network of the ensemble."""

    def __init__(self, model: Any) -> None:
        self.model, self.network, self.pool = model.eval(), model.network, model.pool
        self.stride = int(np.prod(getattr(self.network.config, "strides", 1)))
        self.whole = any(getattr(part, "bidirectional", False) for part in (self.network, self.network.config))
        self.state: Any = None
        self.total: Any = 0.0  # of the features
        self.count = 0
        self.waiting: Tensor | None = None  # steps that do not fill a stride, or all of them where it reads the whole

    @torch.no_grad()
    def push(self, x: Tensor) -> Tensor:
        self.waiting = x if self.waiting is None else torch.cat([self.waiting, x])
        if self.whole:
            output: Tensor = self.model(self.waiting.unsqueeze(1))[0]
            return output[-1, 0] if self.pool is None else output[0]
        features: Any = None
        full = len(self.waiting) // self.stride * self.stride
        if full:
            features, self.state = self.network(self.waiting[:full].unsqueeze(1), self.state)
            self.total = self.total + features.sum(0)
            self.count += len(features)
        self.waiting = self.waiting[full:]
        total, count = self.total, self.count
        if len(self.waiting):  # seen once now, and once more when its stride is full
            features, _ = self.network(self.waiting.unsqueeze(1), self.state)
            total, count = total + features.sum(0), count + len(features)
        return self.model.output(total / count if self.pool == "mean" else features[-1])[0]  # type: ignore[no-any-return]


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
    names = estimator.target_.names  # none where they are numbers
    return Explanation(names[output] if names else output, contributions, step, neurons)


def _output_of(estimator: Estimator, data: Collection, target: Any) -> int:
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
def _remembering(model: nn.Module, inputs: Tensor, step: int) -> list[dict[str, Any]]:
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
        shares = ((before - after).abs() / (before.abs().mean() + before.abs()).clamp_min(1e-12))[0].tolist()
        for i, (share, u) in enumerate(zip(shares, unit.weight_hh.double().flatten().tolist(), strict=True)):
            neurons.append({"layer": f"{name}.weight_hh", "neuron": i, "remembered": share, "u": u})
    changed = [neuron for neuron in neurons if neuron["remembered"] > 0]
    return sorted(changed, key=lambda neuron: -neuron["remembered"])[:MOST]
