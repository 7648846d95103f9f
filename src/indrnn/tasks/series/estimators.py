"""`IndRNNClassifier` and `IndRNNRegressor`: classification and regression of series."""

from __future__ import annotations

from typing import Any

import numpy as np

from .collection import Array, as_array
from .defaults import Core, Effort
from .estimator import Estimator
from .targets import Target


class IndRNNClassifier(Estimator):
    """IndRNN classifier of series, following scikit-learn's conventions.

    All arguments are optional; network and training defaults depend on the size of the data, see docs/fit.md.

    Args:
        effort: "quick", "default" or "best" (an ensemble of five seeds).
        hidden_size: neurons per layer and direction.
        layers: number of recurrent layers.
        bidirectional: read series in both directions; False for predictions step by step (`stream`).
        pool: pooling over time: the features of the "last" step, or their "mean".
        front: convolutions before the recurrent layers, strided for long signals; a power of two sets their stride.
        dropout: dropout probability after each layer.
        steps: number of training steps (updates of the weights).
        lr: peak learning rate.
        batch_size: series per batch.
        augment: apply mild random augmentation to the training series.
        validation: fraction of the series held out, by class, to select the weights and stop early; 0 for none.
        patience: evaluations without improvement before training stops.
        members: number of networks, each from its own seed, whose probabilities are averaged.
        class_weight: "balanced", or a dictionary from class to weight.
        per_step: whether y has a class at every step.
        time_channel: index of a channel of times, which is replaced by the differences between steps.
        core: the recurrent layers, "indrnn", or "lstm" or "gru" for comparison.
        device: "auto", "cpu", "cuda", ...
        threads: number of CPU threads; None for PyTorch's default.
        verbose: 1 to print progress.
        random_state: random seed, for reproducible results.

    Attributes:
        classes_: the classes, sorted; with several labels, their indices.
        n_features_in_: X.shape[1] of the fitted array, otherwise the number of channels.
        models_: the trained networks.
        plan_: the network's configuration and the training hyperparameters.

    Example:
        model = indrnn.IndRNNClassifier().fit(X, y)
        model.score(X2, y2)
    """

    _sort = "classifier"

    def __init__(
        self,
        effort: Effort = "default",
        *,
        hidden_size: int | None = None,
        layers: int | None = None,
        bidirectional: bool | None = None,
        pool: str | None = None,
        front: bool | int | None = None,
        dropout: float | None = None,
        steps: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        augment: bool | None = None,
        validation: float | None = None,
        patience: int | None = None,
        members: int | None = None,
        class_weight: Any = None,
        per_step: bool = False,
        time_channel: int | None = None,
        core: Core = "indrnn",
        device: str = "auto",
        threads: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.effort = effort
        self.hidden_size, self.layers, self.bidirectional, self.pool = hidden_size, layers, bidirectional, pool
        self.front, self.dropout, self.steps, self.lr = front, dropout, steps, lr
        self.batch_size, self.augment, self.validation, self.patience = batch_size, augment, validation, patience
        self.members, self.class_weight, self.per_step = members, class_weight, per_step
        self.time_channel, self.core, self.device, self.threads = time_channel, core, device, threads
        self.verbose, self.random_state = verbose, random_state

    @property
    def classes_(self) -> Array:
        """The classes, sorted."""
        if not hasattr(self, "target_"):
            raise AttributeError(f"{type(self).__name__} has no classes_ before fit")
        assert self.target_.classes is not None
        return self.target_.classes

    def _target(self, y: Array) -> Target:
        return Target.of_classes(y, self.per_step)

    def _class_weights(self, target: Target, y: Array, weights: Array | None) -> Array | None:
        given = self.class_weight
        if given is None:
            return None
        if target.kind != "classes":
            raise ValueError("class_weight is for one class a series, and y holds several labels")
        assert target.classes is not None
        if isinstance(given, dict):
            unknown = [each for each in given if each not in target.classes.tolist()]
            if unknown:
                raise ValueError(f"class_weight must name classes of y, got {unknown[0]!r}")
            for each, weight in given.items():
                if not 0 <= float(weight) < np.inf:
                    raise ValueError(
                        f"class_weight must hold finite numbers of at least 0, got {weight!r} for {each!r}"
                    )
            return np.array([float(given.get(each, 1.0)) for each in target.classes.tolist()])
        if given != "balanced":
            raise ValueError(
                f"class_weight must be 'balanced', a dictionary from class to weight or None, got {given!r}"
            )
        values = np.concatenate([np.ravel(one) for one in y]) if self.per_step else np.ravel(y)
        counted = np.ones(len(values)) if weights is None or self.per_step else weights
        sums = np.array([counted[values == each].sum() for each in target.classes])
        found: Array = counted.sum() / (len(sums) * np.maximum(sums, 1e-12))
        return found

    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities: (n, classes), in the order of `classes_`; with several labels, (n, labels).

        With `per_step`, (n, time, classes), or a list of (time, classes) for series of different lengths.
        """
        return _stacked(self._answers(self._checked(X)))

    def predict(self, X: Any) -> Any:
        """Predict the most probable class of each series, (n,); with several labels, (n, labels) of 0 and 1.

        With `per_step`, (n, time), or a list of (time,) for series of different lengths.
        """
        answers = self._answers(self._checked(X))
        if self.target_.kind == "labels":
            return np.array([each > 0.5 for each in answers]).astype(np.int64)
        if not self.target_.per_step:
            return self.classes_[np.array([each.argmax() for each in answers])]
        return _stacked([self.classes_[each.argmax(-1)] for each in answers])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy: fraction of series (of steps, with `per_step`) classified correctly, in all labels if several."""
        found = self.predict(X)
        if self.target_.kind == "labels":
            right = (found == _like(y, found)).all(1)
        elif self.per_step:
            pairs = zip(found, y, strict=True)
            right = np.concatenate([np.ravel(as_array(a)) == np.ravel(as_array(b)) for a, b in pairs])
            sample_weight = _of_steps(sample_weight, found)
        else:
            right = found == _like(np.ravel(as_array(y)), found)
        return float(np.average(right, weights=sample_weight))


class IndRNNRegressor(Estimator):
    """IndRNN regressor of series, following scikit-learn's conventions.

    Args:
        effort: see `IndRNNClassifier`, as for all other arguments; there is no `class_weight`.
        hidden_size: neurons per layer and direction.
        layers: number of recurrent layers.
        bidirectional: read series in both directions.
        pool: "last" or "mean".
        front: convolutions before the recurrent layers.
        dropout: dropout probability after each layer.
        steps: number of training steps.
        lr: peak learning rate.
        batch_size: series per batch.
        augment: apply random augmentation to the training series; off by default, as it can invalidate the targets.
        validation: fraction of the series held out.
        patience: evaluations without improvement before training stops.
        members: number of networks whose predictions are averaged.
        per_step: whether y has one or more numbers at every step: (n, time), or a list of (time,) or (outputs, time).
        time_channel: index of a channel of times.
        core: "indrnn", "lstm" or "gru".
        device: "auto", "cpu", "cuda", ...
        threads: number of CPU threads.
        verbose: 1 to print progress.
        random_state: random seed, for reproducible results.

    Example:
        model = indrnn.IndRNNRegressor().fit(X, y)
    """

    _sort = "regressor"

    def __init__(
        self,
        effort: Effort = "default",
        *,
        hidden_size: int | None = None,
        layers: int | None = None,
        bidirectional: bool | None = None,
        pool: str | None = None,
        front: bool | int | None = None,
        dropout: float | None = None,
        steps: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        augment: bool | None = False,
        validation: float | None = None,
        patience: int | None = None,
        members: int | None = None,
        per_step: bool = False,
        time_channel: int | None = None,
        core: Core = "indrnn",
        device: str = "auto",
        threads: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.effort = effort
        self.hidden_size, self.layers, self.bidirectional, self.pool = hidden_size, layers, bidirectional, pool
        self.front, self.dropout, self.steps, self.lr = front, dropout, steps, lr
        self.batch_size, self.augment, self.validation, self.patience = batch_size, augment, validation, patience
        self.members, self.per_step, self.time_channel, self.core = members, per_step, time_channel, core
        self.device, self.threads, self.verbose, self.random_state = device, threads, verbose, random_state

    def _target(self, y: Array) -> Target:
        return Target.of_numbers(y, self.per_step)

    def predict(self, X: Any) -> Any:
        """Predict numbers in the shape that y had in `fit`: (n,), (n, outputs), or with values at every step."""
        return _stacked([self.target_.numbers(each) for each in self._answers(self._checked(X))])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R², averaged over outputs; the best value is 1."""
        found = self.predict(X)
        if self.per_step:
            sample_weight = _of_steps(sample_weight, found)
            found, y = (np.concatenate([_columns(one) for one in each]) for each in (found, y))
        found, y = (_columns(each) if np.ndim(each) == 1 else as_array(each) for each in (found, y))
        y = _like(y, found)
        weights = np.ones(len(y)) if sample_weight is None else as_array(sample_weight)
        mean = np.average(y, axis=0, weights=weights)
        rest = np.average((y - found) ** 2, axis=0, weights=weights)
        spread = np.average((y - mean) ** 2, axis=0, weights=weights)
        constant = spread == 0
        scores = np.where(constant, np.where(rest == 0, 1.0, 0.0), 1 - rest / np.where(constant, 1.0, spread))
        return float(scores.mean())


def _like(y: Any, answers: Array) -> Array:
    """Convert targets to an array; raise if its shape is not that of the predictions."""
    array = as_array(y)
    if array.shape != answers.shape:
        raise ValueError(f"y must have a target for each series, of the shape {answers.shape}, got {array.shape}")
    return array


def _of_steps(weights: Any, answers: Any) -> Array | None:
    """Repeat the weight of each series for each of its steps, series after series."""
    return None if weights is None else np.repeat(as_array(weights), [np.shape(one)[-1] for one in answers])


def _columns(values: Any) -> Array:
    """Reshape (n,) to (n, 1), or targets at every step (outputs, time) to (time, outputs)."""
    array = as_array(values).astype(np.float64)
    return array[:, None] if array.ndim == 1 else array.T


def _stacked(each: list[Array]) -> Any:
    """Stack into one array if all shapes are equal; otherwise return the list."""
    return np.stack(each) if len({one.shape for one in each}) == 1 else each
