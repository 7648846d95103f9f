"""`IndRNNClassifier` and `IndRNNRegressor`: classification and regression of series, as scikit-learn's estimators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...files import write_atomically
from ...saving import CONFIGS, as_bytes, from_json, load_module, save, to_json
from ...training import Listener, Result
from .collection import Array, Collection, as_array, as_numbers, target_of
from .conventions import Conventions, seed_of
from .defaults import FEW, Augmentation, Core, Effort, Plan, Shape, check_effort, plan
from .fitting import Fitting
from .preparation import Preparation, from_first_time, rms_depends_on_class
from .targets import Target
from .task import by_length, pad

FILE = "estimator.json"
_PLANNED = (
    *("hidden_size", "layers", "bidirectional", "pool", "front", "dropout", "steps", "lr", "batch_size", "augment"),
    *("validation", "patience", "members"),
)
_AT_ONCE = 2_000_000  # steps × neurons of a batch of predictions


class _Fitted(Conventions):
    """What `fit` leaves."""

    models_: list[nn.Module]
    preparation_: Preparation
    target_: Target
    plan_: Plan
    results_: list[Result]
    channels_: tuple[str, ...]


@dataclass(eq=False, repr=False)
class Estimator(_Fitted):
    """Base class of `IndRNNClassifier` and `IndRNNRegressor`; see those."""

    effort: Effort = "default"
    _: KW_ONLY
    hidden_size: int | None = None
    layers: int | None = None
    bidirectional: bool | None = None
    pool: str | None = None
    front: bool | int | None = None
    dropout: float | None = None
    steps: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    augment: bool | None = None
    validation: float | None = None
    patience: int | None = None
    members: int | None = None
    per_step: bool = False
    time_channel: int | None = None
    core: Core = "indrnn"
    device: str = "auto"
    threads: int | None = None
    verbose: int = 0
    random_state: Any = None

    # ---- fit

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        out: str | Path | None = None,
        resume: bool = False,
        overwrite: bool = False,
        listeners: Iterable[Listener] = (),
        config: dict[str, Any] | None = None,
        resume_command: str | None = None,
    ) -> Self:
        """Fit the estimator to series and their targets.

        Args:
            X: (n, channels, time), (n, time), a list of (channels, time) of any lengths, or a `Collection`; or the
                result of `fitting`.
            y: the target of each series; with `per_step`, targets at every step, as (n, time) or a list of (time,).
            sample_weight: (n,), weight of each series.
            groups: (n,), such as subjects: series of one group are either all trained on or all held out.
            out: a folder for the run: metrics, checkpoints, and the model, for `indrnn.load` and `indrnn report`;
                None to write nothing.
            resume: resume the run in `out`.
            overwrite: delete an earlier run in `out`.
            listeners: listeners notified of training events; see `indrnn.training.Listener`.
            config: further entries of the run's config.json; None for the estimator's parameters.
            resume_command: the command to resume with, shown to a user who stops a run in `out`.
        """
        from ..runs import train_members  # where it is used: it brings in the command line's package

        fitting = X if isinstance(X, Fitting) else self.fitting(X, y, sample_weight, groups=groups)
        if resume and self.random_state is None:
            fitting = fitting.with_seed_of(out)
        models, results = train_members(
            fitting,
            None if out is None else Path(out),
            resume=resume,
            overwrite=overwrite,
            config=config or {"estimator": _recorded(self)},
            resume_command=resume_command,
            listeners=listeners,
            quiet=not self.verbose,
        )
        self.set_fitted(fitting, models, results)
        self._set_features(fitting.data if isinstance(X, Fitting) else X, len(fitting.data.channels))
        if out is not None and all(result.finished for result in results):
            self.save_settings(Path(out))
        return self

    def set_fitted(self, fitting: Fitting, models: Sequence[nn.Module], results: Sequence[Result] = ()) -> None:
        """Set the fitted attributes to trained networks, as of a fit to a `Collection`."""
        self.preparation_, self.target_, self.plan_ = fitting.preparation, fitting.target, fitting.plan
        self.channels_ = fitting.data.channels
        self.models_, self.results_ = [model.cpu().eval() for model in models], list(results)
        self._set_features(fitting.data, len(self.channels_))

    def fitting(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Fitting:
        """Return what `fit` would train: interpreted data, plan, and `estimate` of the cost; trains nothing."""
        check_effort(self.effort)
        data = self._training_data(X, y, groups)
        assert data.y is not None
        weights = _weights(sample_weight, len(data))
        target = self._target(data.y)
        encoded = target.encode(data.y, data.lengths)  # or say now what is wrong with it
        preparation = Preparation.fitted(data.x, self.time_channel)
        lengths = data.lengths
        shape = Shape(
            len(data), preparation.input_size, float(lengths.mean()), int(lengths.max()), per_step=self.per_step
        )
        if shape.raw and target.kind == "classes":
            depends = rms_depends_on_class(data.x, torch.stack(encoded).numpy(), self.time_channel)
            preparation = replace(preparation, normalise_rms=not depends)
        options = {name: getattr(self, name) for name in _PLANNED}
        options["validation"] = _validation(self.validation, data.groups)
        return Fitting(
            data,
            preparation,
            target,
            plan(shape, self.effort, self.core, **options),
            seed_of(self.random_state),
            weights,
            self._class_weights(target, data.y, weights),
            device=self.device,
            threads=self.threads,
        )

    def _training_data(self, X: Any, y: Any, groups: Any) -> Collection:
        data = self._collection(X)
        if y is None and isinstance(X, Collection):
            y = X.y
        if y is None:
            raise ValueError(
                f"y must hold a target for each series: {type(self).__name__} requires y to be passed, but the target "
                "y is None"
            )
        if not isinstance(y, np.ndarray) or isinstance(y, np.ma.MaskedArray):
            y = target_of(y, len(data))
        if y.ndim == 0 or len(y) != len(data):
            raise ValueError(f"y must have as many entries as there are series, {len(data)}, got {np.shape(y)}")
        data = replace(data, y=y, groups=data.groups if groups is None else as_array(groups))
        if data.groups is not None and data.groups.shape != (len(data),):
            raise ValueError(f"groups must have the shape ({len(data)},), one for each series, got {data.groups.shape}")
        if len(data) == 1:
            raise ValueError("X must hold at least two series, got 1 sample (n_samples=1)")
        if self.per_step and y.ndim == 1 and y.dtype != object:
            raise ValueError(f"y must have a target at every step with per_step=True, got the shape {y.shape}")
        return data

    def _collection(self, X: Any) -> Collection:
        return X if isinstance(X, Collection) else Collection.from_arrays(self._from_first_time(X))

    def _from_first_time(self, X: Any) -> Any:
        """Make times relative to the first of each series, as Unix times lose precision in float32."""
        channel = self.time_channel
        if channel is None:
            return X
        if not isinstance(channel, (int, np.integer)):
            raise ValueError(f"time_channel must be the number of a channel, got {channel!r}")
        try:
            values = [as_numbers(one) for one in (X if isinstance(X, (list, tuple)) else as_numbers(X))]
            series = [one[None] if one.ndim == 1 else one for one in values]
            if all(one.ndim == 2 and one.dtype.kind in "fiuO" and -len(one) <= channel < len(one) for one in series):
                return [from_first_time(one, int(channel))[0] for one in series]
        except (TypeError, ValueError):  # no numbers, which is said where X is checked
            pass
        return X

    def _target(self, y: Array) -> Target:
        raise NotImplementedError

    def _class_weights(self, target: Target, y: Array, weights: Array | None) -> Array | None:
        return None

    # ---- predictions

    def outputs(self, X: Any) -> list[Array]:
        """Ensemble output for each series, (outputs,) or with a target at every step (time, outputs).

        The outputs are probabilities, or numbers that the training targets' mean and deviation standardise.
        """
        data = self._checked(X)
        x = [self.preparation_(one) for one in data.x]
        network: Any = self.models_[0].network
        longest = max(len(one) for one in x)
        batch_size = max(1, min(256, _AT_ONCE // max(1, longest * int(network.output_size))))
        outputs: list[Any] = [None] * len(x)
        for items in by_length([len(one) for one in x], batch_size):
            inputs, lengths = pad([x[i] for i in items])
            mean = self.mean_output([_run(model, inputs, lengths) for model in self.models_])
            for row, i in enumerate(items):
                outputs[i] = mean[: len(x[i]), row] if self.target_.per_step else mean[row]
        return outputs

    def decode(self, outputs: list[Array]) -> Any:
        """Predictions of the result of `outputs`: an array, or a list for steps of series of different lengths."""
        if not self.target_.per_step:
            return self.target_.decode(np.stack(outputs))
        return _stacked([self.target_.decode(one) for one in outputs])

    def predict(self, X: Any) -> Any:
        """Predict in the shape that y had in `fit`: (n,), (n, labels) or (n, outputs).

        With `per_step`, (n, time), or a list of (time,) for series of different lengths.
        """
        return self.decode(self.outputs(X))

    def mean_output(self, outputs: Sequence[Tensor]) -> Array:
        """Ensemble output from those of its networks: the mean of their probabilities or numbers."""
        kind = self.target_.kind
        if kind == "classes":
            outputs = [output.double().softmax(-1) for output in outputs]
        elif kind == "labels":
            outputs = [output.double().sigmoid() for output in outputs]
        return torch.stack([output.double() for output in outputs]).mean(0).numpy()

    def _checked(self, X: Any) -> Collection:
        self._check_fitted()
        self._check_columns(X)
        data = self._collection(X)
        self._check_features(X, self.preparation_.channels, data)
        return data

    def stream(self) -> Any:
        """Start a stream: one series given piece by piece; see `indrnn.tasks.series.stream.Stream`."""
        from .stream import Stream

        self._check_fitted()
        return Stream(self)

    def explain(self, x: Any, target: Any = None) -> Any:
        """Contribution of each step of one series to the prediction; see `indrnn.tasks.series.explanation.explain`.

        Args:
            x: one series, (channels, time) or (time,).
            target: the class, label or output to explain; None for the most probable class or label, or first output.
        """
        from .explanation import explain

        self._check_fitted()
        return explain(self, x, target)

    # ---- files

    def save(self, folder: str | Path) -> None:
        """Save the fitted estimator to a folder, from which `indrnn.load` loads it; loading executes no code."""
        from ..runs import member_folders

        self._check_fitted()
        folder = Path(folder)
        for home, model in zip(member_folders(folder, len(self.models_)), self.models_, strict=True):
            save(model, home)
        self.save_settings(folder)

    def save_settings(self, folder: Path) -> None:
        """Write estimator.json beside the networks."""
        names = getattr(self, "feature_names_in_", None)
        saved = Saved(
            _recorded(self),
            len(self.models_),
            self.n_features_in_,
            self.flat_,
            () if names is None else tuple(names.tolist()),
            self.channels_,
            self.preparation_,
            self.target_,
            self.plan_,
        )
        write_atomically(folder / FILE, as_bytes(to_json(saved)))


@dataclass(frozen=True)
class Saved:
    """Content of estimator.json: a fitted estimator without its networks."""

    estimator: Any
    """Estimator with its parameters."""
    members: int
    n_features: int
    flat: bool
    feature_names: tuple[str, ...]
    channels: tuple[str, ...]
    preparation: Preparation
    target: Target
    plan: Plan


def _recorded(estimator: Estimator) -> dict[str, Any]:
    """JSON form of an estimator's parameters; a random generator is not kept, and class weights are pairs."""
    parameters = estimator.get_params()
    if not isinstance(parameters["random_state"], (int, np.integer)):
        parameters["random_state"] = None
    if isinstance(parameters.get("class_weight"), dict):
        parameters["class_weight"] = list(parameters["class_weight"].items())
    return {"type": type(estimator).__name__, **to_json(parameters, "parameters")}


def load_estimator(folder: Path, device: Any = "cpu") -> Estimator:
    """Load an estimator that was saved or fitted in a folder."""
    from ..runs import member_folders

    kinds = (IndRNNClassifier, IndRNNRegressor, Saved, Preparation, Target, Plan, Augmentation)
    path = folder / FILE
    try:
        saved = from_json(
            json.loads(path.read_text(encoding="utf-8")), CONFIGS | {kind.__name__: kind for kind in kinds}
        )
        estimator = saved.estimator
        if isinstance(getattr(estimator, "class_weight", None), list):
            estimator.class_weight = dict(estimator.class_weight)
        homes = member_folders(folder, saved.members)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    estimator.models_ = [load_module(home, device=device) for home in homes]
    estimator.results_ = []
    estimator.n_features_in_, estimator.flat_ = saved.n_features, saved.flat
    if saved.feature_names:
        estimator.feature_names_in_ = np.asarray(saved.feature_names, dtype=object)
    estimator.channels_ = tuple(saved.channels)
    estimator.preparation_, estimator.target_, estimator.plan_ = saved.preparation, saved.target, saved.plan
    return estimator  # type: ignore[no-any-return]


@dataclass(eq=False, repr=False)
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
        per_step: whether y has a class at every step.
        time_channel: index of a channel of times, which is replaced by the differences between steps.
        core: the recurrent layers, "indrnn", or "lstm" or "gru" for comparison.
        device: "auto", "cpu", "cuda", ...
        threads: number of CPU threads; None for PyTorch's default.
        verbose: 1 to print progress.
        random_state: random seed, for reproducible results.
        class_weight: "balanced", or a dictionary from class to weight.

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

    _: KW_ONLY
    class_weight: Any = None

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
        chosen = self.class_weight
        if chosen is None:
            return None
        if target.kind != "classes":
            raise ValueError("class_weight is for one class a series, and y holds several labels")
        assert target.classes is not None
        if isinstance(chosen, dict):
            unknown = [name for name in chosen if name not in target.names]
            if unknown:
                raise ValueError(f"class_weight must name classes of y, got {unknown[0]!r}")
            for name, weight in chosen.items():
                if not 0 <= float(weight) < np.inf:
                    raise ValueError(
                        f"class_weight must hold finite numbers of at least 0, got {weight!r} for {name!r}"
                    )
            return np.array([float(chosen.get(name, 1.0)) for name in target.names])
        if chosen != "balanced":
            raise ValueError(
                f"class_weight must be 'balanced', a dictionary from class to weight or None, got {chosen!r}"
            )
        values = np.concatenate([np.ravel(one) for one in y]) if self.per_step else np.ravel(y)
        counted = np.ones(len(values)) if weights is None or self.per_step else weights
        sums = np.array([counted[values == name].sum() for name in target.classes])
        return np.asarray(counted.sum() / (len(sums) * np.maximum(sums, 1e-12)))

    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities: (n, classes), in the order of `classes_`; with several labels, (n, labels).

        With `per_step`, (n, time, classes), or a list of (time, classes) for series of different lengths.
        """
        return _stacked(self.outputs(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy: fraction of series (of steps, with `per_step`) classified correctly, in all labels if several."""
        predictions = self.predict(X)
        if self.target_.kind == "labels":
            right = (predictions == _like(y, predictions)).all(1)
        elif self.per_step:
            pairs = zip(predictions, y, strict=True)
            right = np.concatenate([np.ravel(as_array(a)) == np.ravel(as_array(b)) for a, b in pairs])
            sample_weight = _of_steps(sample_weight, predictions)
        else:
            right = predictions == _like(np.ravel(as_array(y)), predictions)
        return float(np.average(right, weights=sample_weight))


@dataclass(eq=False, repr=False)
class IndRNNRegressor(Estimator):
    """IndRNN regressor of series, following scikit-learn's conventions.

    Args:
        effort: see `IndRNNClassifier`, as for all other arguments but `augment` and `per_step`; there is no
            `class_weight`.
        augment: apply random augmentation to the training series; off by default, as it can invalidate the targets.
        per_step: whether y has one or more numbers at every step: (n, time), or a list of (time,) or (outputs, time).

    Example:
        model = indrnn.IndRNNRegressor().fit(X, y)
    """

    _sort = "regressor"

    _: KW_ONLY
    augment: bool | None = False

    def _target(self, y: Array) -> Target:
        return Target.of_numbers(y, self.per_step)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R², averaged over outputs; the best value is 1."""
        predictions = self.predict(X)
        if self.per_step:
            sample_weight = _of_steps(sample_weight, predictions)
            predictions, y = (np.concatenate([_columns(one) for one in rows]) for rows in (predictions, y))
        predictions, y = (_columns(rows) if np.ndim(rows) == 1 else as_array(rows) for rows in (predictions, y))
        y = _like(y, predictions)
        weights = np.ones(len(y)) if sample_weight is None else as_array(sample_weight)
        mean = np.average(y, axis=0, weights=weights)
        rest = np.average((y - predictions) ** 2, axis=0, weights=weights)
        spread = np.average((y - mean) ** 2, axis=0, weights=weights)
        constant = spread == 0
        scores = np.where(constant, np.where(rest == 0, 1.0, 0.0), 1 - rest / np.where(constant, 1.0, spread))
        return float(scores.mean())


def _run(model: nn.Module, inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """Output of a network for a batch, in evaluation mode, on the CPU."""
    device = next(model.parameters()).device
    with torch.no_grad():
        output: Tensor = model.eval()(inputs.to(device), lengths=None if lengths is None else lengths.to(device))[0]
    return output.cpu()


def _weights(sample_weight: Any, count: int) -> Array | None:
    if sample_weight is None:
        return None
    weights = as_array(sample_weight).astype(np.float64)
    if weights.ndim == 0:
        weights = np.full(count, float(weights))
    if weights.shape != (count,):
        raise ValueError(f"sample_weight must have the shape ({count},), got {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
        raise ValueError("sample_weight must hold finite numbers of at least 0, and not all sample weights may be zero")
    return weights


def _validation(share: float | None, groups: Array | None) -> float | None:
    """Share of the series to hold back, which is none where there are too few groups; None for the plan's default."""
    if groups is None:
        return share
    try:
        count = len(np.unique(groups))
    except TypeError:
        kinds = " and ".join(sorted({type(group).__name__ for group in groups}))
        raise ValueError(f"groups must be of one kind, such as all numbers or all words, got {kinds}") from None
    if count == 1 and share:  # which is never divided
        raise ValueError(
            f"groups must have at least two values to hold one of them back, got one; validation={share!r} must be 0 "
            "or None then"
        )
    return 0.0 if count < FEW and share is None else share


def _like(y: Any, predictions: Array) -> Array:
    """Convert targets to an array; raise if its shape is not that of the predictions."""
    array = as_array(y)
    if array.shape != predictions.shape:
        raise ValueError(f"y must have a target for each series, of the shape {predictions.shape}, got {array.shape}")
    return array


def _of_steps(weights: Any, predictions: Any) -> Array | None:
    """Repeat the weight of each series for each of its steps, series after series."""
    return None if weights is None else np.repeat(as_array(weights), [np.shape(one)[-1] for one in predictions])


def _columns(values: Any) -> Array:
    """Reshape (n,) to (n, 1), or targets at every step (outputs, time) to (time, outputs)."""
    array = as_array(values).astype(np.float64)
    return array[:, None] if array.ndim == 1 else array.T


def _stacked(rows: list[Array]) -> Any:
    """Stack into one array if all shapes are equal; otherwise return the list."""
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else rows
