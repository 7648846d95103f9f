"""Base class of the estimators: scikit-learn's conventions, `fit`, and predictions of the trained networks.

No scikit-learn class is inherited from: the estimators work without it, and `import indrnn` does not import it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...training import Listener, Result
from ...training.listeners import progress
from .collection import Array, Collection, as_array, is_list_of_series, numbers_of
from .defaults import FEW, Plan, Shape, check_effort, is_raw, plan
from .fitting import Fitting
from .preparation import Preparation, from_first_time, loudness_tells
from .targets import Target
from .task import by_length, pad

_PLANNED = (
    *("hidden_size", "layers", "bidirectional", "pool", "front", "dropout", "steps", "lr", "batch_size", "augment"),
    *("validation", "patience", "members"),
)
_AT_ONCE = 2_000_000  # steps × neurons of a batch of predictions


class Parameters:
    """`get_params`, `set_params` and `__repr__`, derived from the constructor's signature."""

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name.

        Args:
            deep: accepted as in scikit-learn; no effect, as there are no nested estimators.
        """
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **parameters: Any) -> Self:
        """Set some of the constructor's arguments; return the estimator."""
        for name, value in parameters.items():
            if name not in self._names():
                valid = ", ".join(self._names())
                raise ValueError(f"Invalid parameter {name!r} for estimator {type(self).__name__}; it has {valid}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        usual = inspect.signature(type(self).__init__).parameters
        changed = {name: value for name, value in self.get_params().items() if not _same(value, usual[name].default)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(np.all(value == default)))


class Estimator(Parameters):
    """Base class of `IndRNNClassifier`, `IndRNNRegressor` and `IndRNNForecaster`; see those."""

    _sort: ClassVar[str]
    per_step: bool
    class_weight: Any = None
    random_state: Any
    # What `fit` leaves
    n_features_in_: int
    models_: list[nn.Module]
    preparation_: Preparation
    target_: Target
    plan_: Plan
    results_: list[Result]
    channels_: tuple[str, ...]
    flat_: bool

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
        resume_command: str | None = None,
    ) -> Self:
        """Fit the estimator to series and their targets.

        Args:
            X: (n, channels, time), (n, time), a list of (channels, time) of any lengths, or a `Collection`.
            y: the target of each series; with `per_step`, targets at every step, as (n, time) or a list of (time,).
            sample_weight: (n,), weight of each series.
            groups: (n,), such as subjects: series of one group are either all trained on or all held out.
            out: a folder for the run: metrics, checkpoints, and the model, for `indrnn.load` and `indrnn report`;
                None to write nothing.
            resume: resume the run in `out`.
            overwrite: delete an earlier run in `out`.
            listeners: listeners notified of training events; see `indrnn.training.Listener`.
            resume_command: the command to resume with, shown to a user who stops a run in `out`.
        """
        fitting = self.fitting(X, y, sample_weight, groups=groups)
        if resume and self.random_state is None:
            fitting = fitting.going_on(out)
        told = [progress()] if getattr(self, "verbose", 0) and out is None else []
        models, results = fitting.train(
            out=out,
            resume=resume,
            overwrite=overwrite,
            listeners=[*told, *listeners],
            config={"estimator": {"type": type(self).__name__, **plain_parameters(self.get_params())}},
            resume_command=resume_command,
            quiet=not getattr(self, "verbose", 0),
        )
        self.take(fitting, models, results)
        self.n_features_in_ = _features(X, fitting.data)
        self.flat_ = _is_flat(X)
        names = getattr(X, "columns", None)
        if names is not None and all(isinstance(each, str) for each in names):
            self.feature_names_in_ = np.asarray(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if out is not None and all(result.finished for result in results):
            from .files import save_estimator

            save_estimator(self, Path(out))
        return self

    def take(self, fitting: Fitting, models: list[nn.Module], results: list[Result]) -> None:
        """Set the fitted attributes from a fit, except `n_features_in_`, which is left to the caller, who knows X."""
        self.preparation_, self.target_, self.plan_ = fitting.preparation, fitting.target, fitting.plan
        self.channels_ = fitting.data.channels
        self.models_, self.results_ = models, results

    def fitting(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Fitting:
        """Return what `fit` would train: interpreted data, plan, and `estimate` of the cost; trains nothing."""
        check_effort(self._given("effort"))
        data = X if isinstance(X, Collection) else Collection.from_arrays(self._from_first_time(X))
        if y is None and isinstance(X, Collection):
            y = X.y
        if y is None:
            raise ValueError(
                f"y must hold a target for each series: {type(self).__name__} requires y to be passed, but the target "
                "y is None"
            )
        if not isinstance(y, np.ndarray) or isinstance(y, np.ma.MaskedArray):
            y = Collection.from_arrays(data.x[:1] * len(data), y).y
        if y is None or y.ndim == 0 or len(y) != len(data):
            raise ValueError(f"y must have as many entries as there are series, {len(data)}, got {np.shape(y)}")
        data = replace(data, y=y, groups=data.groups if groups is None else as_array(groups))
        if data.groups is not None and data.groups.shape != (len(data),):
            raise ValueError(f"groups must have the shape ({len(data)},), one for each series, got {data.groups.shape}")
        if len(data) == 1:
            raise ValueError("X must hold at least two series, got 1 sample (n_samples=1)")
        if self.per_step and y.ndim == 1 and y.dtype != object:
            raise ValueError(f"y must have a target at every step with per_step=True, got the shape {y.shape}")
        weights = _weights(sample_weight, len(data))
        target = self._target(y)
        encoded = target.encode(y, data.lengths)  # or say now what is wrong with it
        lengths = data.lengths
        time_channel = self._given("time_channel")
        preparation = Preparation.fitted(data.x, time_channel)
        if is_raw(float(lengths.mean()), self.per_step) and target.kind == "classes":
            loud = loudness_tells(data.x, torch.stack(encoded).numpy(), time_channel)
            preparation = replace(preparation, levelled=not loud)
        shape = Shape(
            len(data), preparation.input_size, float(lengths.mean()), int(lengths.max()), per_step=self.per_step
        )
        chosen = {name: self._given(name) for name in _PLANNED}
        groups = None if data.groups is None else _count(data.groups)
        if groups == 1 and chosen["validation"]:  # which is never divided
            raise ValueError(
                f"groups must have at least two values to hold one of them back, got one; validation="
                f"{chosen['validation']!r} must be 0 or None then"
            )
        if groups is not None and groups < FEW and chosen["validation"] is None:
            chosen["validation"] = 0.0
        return Fitting(
            data,
            preparation,
            target,
            plan(shape, self._given("effort"), self._given("core"), **chosen),
            seed_of(self.random_state),
            weights,
            self._class_weights(target, y, weights),
            device=self._given("device"),
            threads=self._given("threads"),
        )

    def _from_first_time(self, X: Any) -> Any:
        """Make times relative to the first of each series, as Unix times lose precision in float32."""
        channel = getattr(self, "time_channel", None)
        if channel is None:
            return X
        if not isinstance(channel, (int, np.integer)):
            raise ValueError(f"time_channel must be the number of a channel, got {channel!r}")
        try:
            each = [numbers_of(one) for one in (X if isinstance(X, (list, tuple)) else numbers_of(X))]
            series = [one[None] if one.ndim == 1 else one for one in each]
            if all(one.ndim == 2 and one.dtype.kind in "fiuO" and -len(one) <= channel < len(one) for one in series):
                return [from_first_time(one, int(channel))[0] for one in series]
        except (TypeError, ValueError):  # no numbers, which is said where X is checked
            pass
        return X

    def _given(self, name: str) -> Any:
        return getattr(self, name)

    def _target(self, y: Array) -> Target:
        raise NotImplementedError

    def _class_weights(self, target: Target, y: Array, weights: Array | None) -> Array | None:
        return None

    # ---- answers

    def _checked(self, X: Any) -> Collection:
        self._check_fitted()
        self._check_names(X)
        data = X if isinstance(X, Collection) else Collection.from_arrays(self._from_first_time(X))
        if len(data.x[0]) != self.preparation_.channels:
            raise ValueError(
                f"X must have the channels of training, {self.preparation_.channels}, got {len(data.x[0])}: X has "
                f"{len(data.x[0])} features, but {type(self).__name__} is expecting {self.preparation_.channels} "
                "features as input"
            )
        steps = data.x[0].shape[1]
        if getattr(self, "flat_", False) and _is_flat(X) and steps != self.n_features_in_:
            raise ValueError(
                f"X has {steps} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                "input (steps, in two dimensions, as in training); give (n, 1, time) for series of another length"
            )
        return data

    def _check_names(self, X: Any) -> None:
        """Raise for a table whose columns differ from those of training, in names or order."""
        known, given = getattr(self, "feature_names_in_", None), getattr(X, "columns", None)
        if known is None or given is None or not all(isinstance(each, str) for each in given):
            return  # as scikit-learn does
        if list(given) != list(known):
            pairs = zip([*given, "nothing"], [*known, "nothing"], strict=False)
            at, (found, expected) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
            raise ValueError(
                f"X must have the columns of training in their order, got {found!r} as column {at} in place of "
                f"{expected!r}. The feature names should match those that were passed during fit"
            )

    def _check_fitted(self) -> None:
        if not hasattr(self, "models_"):
            kind: type[Exception] = ValueError
            try:
                from sklearn.exceptions import NotFittedError

                kind = NotFittedError
            except ImportError:
                pass
            raise kind(f"This {type(self).__name__} instance is not fitted yet. Call 'fit' first")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def _answers(self, data: Collection) -> list[Array]:
        """Ensemble prediction for each series, (outputs,), or (time, outputs) with a target at every step."""
        x = [self.preparation_(one) for one in data.x]
        network: Any = self.models_[0].network
        longest = max(len(one) for one in x)
        batch_size = max(1, min(256, _AT_ONCE // max(1, longest * int(network.output_size))))
        found: list[Any] = [None] * len(x)
        for items in by_length([len(one) for one in x], batch_size):
            inputs, lengths = pad([x[i] for i in items])
            mean = self.mean_answer([answer(model, inputs, lengths) for model in self.models_])
            for row, i in enumerate(items):
                found[i] = mean[: len(x[i]), row] if self.target_.per_step else mean[row]
        return found

    def mean_answer(self, outputs: Sequence[Tensor]) -> Array:
        """Ensemble prediction from the outputs of its networks: the mean of their probabilities or numbers."""
        kind = self.target_.kind
        if kind == "classes":
            outputs = [each.double().softmax(-1) for each in outputs]
        elif kind == "labels":
            outputs = [each.double().sigmoid() for each in outputs]
        return torch.stack([each.double() for each in outputs]).mean(0).numpy()

    # ---- files and tools

    def save(self, folder: str | Path) -> None:
        """Save the fitted estimator to a folder, from which `indrnn.load` loads it; loading executes no code."""
        from .files import save_estimator

        self._check_fitted()
        save_estimator(self, Path(folder))

    def extra_state(self) -> dict[str, Any]:
        """Return the estimator's additional state for its file, JSON-serialisable."""
        return {}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the additional state from a file."""

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

    def __getstate__(self) -> dict[str, Any]:
        from .files import models_as_plain

        state = dict(self.__dict__)
        if "models_" in state:
            state["models_"] = models_as_plain(self.models_)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        from .files import models_from_plain

        if "models_" in state:
            state = {**state, "models_": models_from_plain(state["models_"])}
        self.__dict__.update(state)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        sort = self._sort
        return Tags(
            estimator_type=sort,
            target_tags=TargetTags(required=True, multi_output=sort == "regressor"),
            classifier_tags=ClassifierTags(multi_label=True) if sort == "classifier" else None,
            regressor_tags=RegressorTags() if sort == "regressor" else None,
            input_tags=InputTags(three_d_array=True, allow_nan=True),
        )


def answer(model: nn.Module, inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """Run a network on a batch in evaluation mode; return its output on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        given = None if lengths is None else lengths.to(device)
        output: Tensor = model(inputs.to(device), lengths=given)[0]
    return output.cpu()


def seed_of(random_state: Any) -> int:
    """Convert `random_state` (integer, NumPy generator or None) to a seed; None draws one at random."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    raise ValueError(f"random_state must be a whole number, a generator of NumPy or None, got {random_state!r}")


def plain_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Convert arguments to JSON-serialisable values; a generator is not kept."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, dict):
            return [[plain(key), plain(each)] for key, each in value.items()]
        return value if isinstance(value, (str, int, float, bool, type(None))) else None

    return {name: plain(value) for name, value in parameters.items()}


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


def _count(groups: Array) -> int:
    """Number of groups."""
    try:
        return len(np.unique(groups))
    except TypeError:
        kinds = " and ".join(sorted({type(each).__name__ for each in groups}))
        raise ValueError(f"groups must be of one kind, such as all numbers or all words, got {kinds}") from None


def _is_flat(X: Any) -> bool:
    """Whether X is an array (n, time), or nested lists of that shape."""
    if isinstance(X, Collection) or is_list_of_series(X):
        return False
    try:
        return as_array(X).ndim == 2
    except ValueError:
        return False


def _features(X: Any, data: Collection) -> int:
    """scikit-learn's number of features: X.shape[1] of an array, which is time in (n, time); otherwise channels."""
    if isinstance(X, Collection) or is_list_of_series(X):
        return len(data.x[0])
    try:
        shape = as_array(X).shape
    except ValueError:  # a list of series of different lengths
        shape = ()
    return int(shape[1]) if len(shape) in (2, 3) else len(data.x[0])
