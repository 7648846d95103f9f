"""Streams: a series given piece by piece, with the prediction for the series so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ...networks.config import Front
from .collection import Array, as_array
from .preparation import from_first_time

if TYPE_CHECKING:
    from .estimators import Estimator


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

        Returns:
            Probabilities (classes,), or numbers (outputs,), as if the series ended here; with a target at every step,
            those of the last step.
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

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model.eval()
        self.network: Any = self.model.network
        config: Any = getattr(self.network, "config", None)
        self.stride = int(np.prod(config.strides)) if isinstance(config, Front) else 1
        inner = config.network if isinstance(config, Front) else config
        self.whole = bool(getattr(inner, "bidirectional", False))
        self.pool = getattr(self.model, "pool", "step")
        self.state: Any = None
        self.total: Any = 0.0  # of the features
        self.count = 0
        self.waiting: Tensor | None = None  # steps that do not fill a stride, or all of them where it reads the whole

    @torch.no_grad()
    def push(self, x: Tensor) -> Tensor:
        self.waiting = x if self.waiting is None else torch.cat([self.waiting, x])
        if self.whole:
            output: Tensor = self.model(self.waiting.unsqueeze(1))[0]
            return output[-1, 0] if self.pool == "step" else output[0]
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
