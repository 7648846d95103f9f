"""`IndRNNClassifier` and `IndRNNRegressor`: classification and regression of series, as scikit-learn's estimators.

No scikit-learn class is inherited from: the estimators work without it, and `import indrnn` does not import it.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...files import write_atomically
from ...networks.config import Head
from ...saving import CONFIGS, as_bytes, from_json, load_module, save, to_json
from ...training import Cosine, Listener, Result, RunFolder, Training, derive_seed
from ..runs import member_folders, new_model, train_members
from .collection import Array, Collection, as_array, as_numbers, hold_out, is_list_of_series, target_of
from .defaults import FEW, Augmentation, Core, Effort, Plan, Shape, plan
from .preparation import Preparation, Target, from_first_time, rms_depends_on_class
from .single import Explanation, Stream, explain
from .task import Part, SeriesTask, by_length, collate, pad

FILE = "estimator.json"
_AT_ONCE = 2_000_000  # steps × neurons of a batch of predictions
_FITTED = ("n_features_in_", "flat_", "channels_", "preparation_", "target_", "plan_", "feature_names_in_")


@dataclass(frozen=True, eq=False)
class Fitting:
    """Interpreted data and settings of a fit, except its output folder; trained as a `Recipe`, whose members it has."""

    data: Collection  # those held back included
    targets: list[Tensor]  # encoded
    preparation: Preparation
    target: Target
    plan: Plan
    seed: int
    weights: Array | None = None  # (n,)
    class_weights: Array | None = None  # (classes,)
    device: str = "auto"
    threads: int | None = None
    notes: Sequence[str] = ()  # on what is odd about the data

    @property
    def members(self) -> int:
        """Number of networks."""
        return self.plan.members

    def member_seed(self, member: int) -> int:
        """The seed of a network, from which its weights and its split derive."""
        return self.seed if member == 0 else derive_seed(self.seed, "member", member) >> 16

    def model_config(self, member: int = 0) -> Head:
        """The network, with an output for each class or number."""
        sort = "Regressor" if self.target.kind == "numbers" else "Classifier"
        kind: Any = f"Step{sort}" if self.target.per_step else f"Sequence{sort}"
        return Head(self.plan.network, self.target.outputs, kind, self.plan.pool)

    @property
    def training(self) -> Training:
        """Options of the training."""
        options: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.01, "clip": None, "clip_norm": 1.0}
        options |= {name: getattr(self.plan, name) for name in ("steps", "lr", "evaluate_every", "patience")}
        options |= {"device": self.device, "threads": self.threads, "tensorboard": False}
        return Training(schedule=Cosine(warm_up=0.1), **options)

    def split(self, member: int = 0) -> tuple[Array, Array]:
        """Return the indices of training and held-out series: split by group if there are groups, else by class."""
        y = self.data.y if self.target.kind == "classes" and not self.target.per_step else None
        # What counts for nothing is not there
        items = np.arange(len(self.data)) if self.weights is None else np.flatnonzero(self.weights > 0)
        classes, groups = (None if values is None else values[items] for values in (y, self.data.groups))
        share = 0.0 if groups is not None and len(np.unique(groups)) < 2 else self.plan.validation
        seed = self.member_seed(member)
        held = hold_out(len(items), share, classes=classes, groups=groups, seed=seed, expected=True)
        return items[~held], items[held]

    @cached_property
    def _prepared(self) -> Part:
        weights = None if self.weights is None else torch.tensor(self.weights / self.weights.mean()).float()
        return Part([self.preparation(series) for series in self.data.x], self.targets, weights)

    def task(self, member: int = 0) -> SeriesTask:
        """The series that a network is trained on, and those held back."""
        trained, held = self.split(member)
        return SeriesTask(
            self._prepared.select(trained),
            self._prepared.select(held) if len(held) else None,
            kind=self.target.kind,
            per_step=self.target.per_step,
            batch_size=self.plan.batch_size,
            augmentation=self.plan.augmentation,
            masks=len(self.preparation.masked),
            class_weights=None if self.class_weights is None else torch.tensor(self.class_weights, dtype=torch.float32),
            seed=self.member_seed(member),
        )

    def estimate(self) -> dict[str, float]:
        """Estimate seconds of training and bytes of the longest batch from two steps on one batch of typical length."""
        task, model, plan = self.task(), new_model(self), self.plan
        order = np.random.default_rng(0).permutation(len(task.train.x)).tolist()
        batches = [order[i : i + plan.batch_size] for i in range(0, len(order), plan.batch_size)]
        steps = [max(len(task.train.x[i]) for i in items) for items in batches]
        common = int(np.argmin(np.abs(np.array(steps) - np.mean(steps))))
        batch = collate(task.train, batches[common], task.per_step)
        model.train()
        seconds, saved = [], dict[int, int]()

        def record(tensor: Tensor) -> Tensor:  # a storage that is shared counts once
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.random.fork_rng(devices=[]):
            for _ in range(2):
                begun = time.perf_counter()
                saved.clear()
                with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
                    loss = task.loss(model, batch)
                loss.backward()
                seconds.append(time.perf_counter() - begun)
        share = float(np.mean(steps)) / steps[common]
        evaluated = task.train if task.validation is None else task.validation
        evaluations = math.ceil(plan.steps / plan.evaluate_every) * len(evaluated.x) / len(task.train.x)
        # An evaluation is a forward pass, about a third of a step
        rounds = plan.steps + evaluations * len(batches) / 3
        largest = max(steps) * min(plan.batch_size, len(task.train.x)) / (steps[common] * len(batches[common]))
        # The weights, their gradients and the optimiser's two moments, and what autograd saves
        size = 4.0 * sum(weight.nbytes for weight in model.parameters()) + sum(saved.values()) * largest
        return {"seconds": min(seconds) * share * rounds * plan.members, "bytes": size}


@dataclass(eq=False, repr=False)
class Estimator:
    """Base class of `IndRNNClassifier` and `IndRNNRegressor`; see those."""

    _sort: ClassVar[str]

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
        folder = None if out is None else Path(out)
        fitting = X if isinstance(X, Fitting) else self.fitting(X, y, sample_weight, groups=groups)
        if resume and self.random_state is None and folder is not None:
            run = RunFolder(member_folders(folder, fitting.members)[0])
            if run.config.exists():
                fitting = replace(fitting, seed=int(run.read_json(run.config)["seed"]))
        options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "resume_command": resume_command}
        options |= {"config": config or {"estimator": _recorded(self)}, "quiet": not self.verbose}
        models, results = train_members(fitting, folder, listeners=listeners, **options)
        self.set_fitted(fitting, models, results, X)
        if folder is not None and all(result.finished for result in results):
            self.save_settings(folder)
        return self

    def set_fitted(
        self, fitting: Fitting, models: Sequence[nn.Module], results: Sequence[Result] = (), X: Any = None
    ) -> None:
        """Set the fitted attributes to trained networks; `X` is what they were trained on, None for a `Collection`."""
        self.preparation_, self.target_, self.plan_ = fitting.preparation, fitting.target, fitting.plan
        self.channels_ = fitting.data.channels
        self.models_, self.results_ = [model.cpu().eval() for model in models], list(results)
        shape, columns = _shape(X), _column_names(X)
        self.n_features_in_ = int(shape[1]) if len(shape) in (2, 3) else len(self.channels_)
        self.flat_ = len(shape) == 2
        vars(self).pop("feature_names_in_", None)
        if columns is not None:
            self.feature_names_in_ = np.asarray(columns, dtype=object)

    def fitting(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Fitting:
        """Return what `fit` would train: interpreted data, plan, and `estimate` of the cost; trains nothing."""
        data = self._collection(X)
        if not isinstance(X, Collection) and (longest := int(data.lengths.max())) < (many := len(data.channels)):
            read = f"X is read as {len(data)} series of {many} channels and {longest} steps, (n, channels, time)"
            warnings.warn(f"{read}; where time comes first, pass X.swapaxes(1, 2)", stacklevel=3)
        y = data.y if y is None else y
        if y is None:
            what = f"{type(self).__name__} requires y to be passed, but the target y is None"
            raise ValueError(f"y must hold a target for each series: {what}")
        y, groups = target_of(y, len(data)), data.groups if groups is None else as_array(groups)
        if groups is not None and groups.shape != (len(data),):
            raise ValueError(f"groups must have the shape ({len(data)},), one for each series, got {groups.shape}")
        if len(data) == 1:
            raise ValueError("X must hold at least two series, got 1 sample (n_samples=1)")
        if self.per_step and y.ndim == 1 and y.dtype != object:
            raise ValueError(f"y must have a target at every step with per_step=True, got the shape {y.shape}")
        weights = _weights(sample_weight, len(data))
        target = (Target.of_classes if self._sort == "classifier" else Target.of_numbers)(y, self.per_step)
        codes, lengths = target.encode(y, data.lengths), data.lengths
        preparation = Preparation.fitted(data.x, self.time_channel)
        shape = Shape(len(data), preparation.input_size, float(lengths.mean()), int(lengths.max()), self.per_step)
        if shape.raw and target.kind == "classes":
            depends = rms_depends_on_class(data.x, torch.stack(codes).numpy(), self.time_channel)
            preparation = replace(preparation, normalise_rms=not depends)
        by_class = _class_weights(getattr(self, "class_weight", None), target, y, weights)
        chosen = plan(shape, **self.get_params() | {"validation": _validation(self.validation, groups)})
        data, seed = replace(data, y=y, groups=groups), _seed(self.random_state)
        return Fitting(data, codes, preparation, target, chosen, seed, weights, by_class, self.device, self.threads)

    def _collection(self, X: Any) -> Collection:
        """Series of X, with times from the first of each series on, as Unix times lose precision in float32."""
        channel = self.time_channel
        if isinstance(X, Collection) or channel is None:
            return X if isinstance(X, Collection) else Collection.from_arrays(X)
        if not isinstance(channel, (int, np.integer)):
            raise ValueError(f"time_channel must be the number of a channel, got {channel!r}")
        with contextlib.suppress(TypeError, ValueError):  # no numbers, which is said where X is checked
            values = [as_numbers(series) for series in (X if isinstance(X, (list, tuple)) else as_numbers(X))]
            rows = [series[None] if series.ndim == 1 else series for series in values]
            if all(row.ndim == 2 and row.dtype.kind in "fiuO" and -len(row) <= channel < len(row) for row in rows):
                X = [from_first_time(row, int(channel))[0] for row in rows]
        return Collection.from_arrays(X)

    # ---- predictions

    def outputs(self, X: Any) -> list[Array]:
        """Probabilities or standardised numbers for each series, (outputs,); at every step (time, outputs)."""
        x = [self.preparation_(series) for series in self.checked(X).x]
        lengths = [len(series) for series in x]
        first: Any = self.models_[0]
        device = next(first.parameters()).device
        batch_size = max(1, min(256, _AT_ONCE // max(1, max(lengths) * int(first.network.output_size))))
        outputs: list[Any] = [None] * len(x)
        for items in by_length(lengths, batch_size):
            inputs, valid = pad([x[i] for i in items])
            inputs, valid = inputs.to(device), None if valid is None else valid.to(device)
            with torch.no_grad():
                mean = self.mean_output([model.eval()(inputs, lengths=valid)[0].cpu() for model in self.models_])
            for row, i in enumerate(items):
                outputs[i] = mean[: lengths[i], row] if self.target_.per_step else mean[row]
        return outputs

    def decode(self, outputs: list[Array]) -> Any:
        """Predictions of the result of `outputs`: an array, or a list for steps of series of different lengths."""
        if not self.target_.per_step:
            return self.target_.decode(np.stack(outputs))
        return _stacked([self.target_.decode(steps) for steps in outputs])

    def predict(self, X: Any) -> Any:
        """Predict in the shape that y had in `fit`: (n,), (n, labels) or (n, outputs).

        With `per_step`, (n, time), or a list of (time,) for series of different lengths.
        """
        return self.decode(self.outputs(X))

    def mean_output(self, outputs: Sequence[Tensor]) -> Array:
        """Ensemble output from those of its networks: the mean of their probabilities or numbers."""
        values = [output.double() for output in outputs]
        if self.target_.kind != "numbers":
            values = [value.softmax(-1) if self.target_.kind == "classes" else value.sigmoid() for value in values]
        return torch.stack(values).mean(0).numpy()

    def checked(self, X: Any) -> Collection:
        """Series to predict; raises for other channels, columns or steps of an array than in training."""
        self.check_fitted()
        data = self._collection(X)
        trained, columns = getattr(self, "feature_names_in_", None), _column_names(X)
        if trained is not None and columns is not None and columns != list(trained):  # unnamed ones pass
            pairs = zip([*columns, "nothing"], [*trained, "nothing"], strict=False)
            at, (name, expected) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
            wrong = f"{name!r} as column {at} in place of {expected!r}"
            why = "The feature names should match those that were passed during fit"
            raise ValueError(f"X must have the columns of training in their order, got {wrong}. {why}")
        got, expected, what, hint = len(data.x[0]), self.preparation_.channels, "channels", ""
        if self.flat_ and len(_shape(X)) == 2:
            got, expected, what = data.x[0].shape[1], self.n_features_in_, "steps"
            hint = " in two dimensions; give (n, 1, time) for series of another length"
        if got != expected:
            also = f"X has {got} features, but {type(self).__name__} is expecting {expected} features as input"
            raise ValueError(f"X must have the {what} of training, {expected}, got {got}{hint}. {also}")
        return data

    def stream(self) -> Stream:
        """Start a stream: one series given piece by piece."""
        return Stream(self)

    def explain(self, x: Any, target: Any = None) -> Explanation:
        """Contribution of each step of one series to the prediction.

        Args:
            x: one series, (channels, time) or (time,).
            target: the class, label or output to explain; None for the most probable class or label, or first output.
        """
        return explain(self, x, target)

    # ---- files

    def save(self, folder: str | Path) -> None:
        """Save the fitted estimator to a folder, from which `indrnn.load` loads it; loading executes no code."""
        self.check_fitted()
        for home, model in zip(member_folders(Path(folder), len(self.models_)), self.models_, strict=True):
            save(model, home)
        self.save_settings(Path(folder))

    def save_settings(self, folder: Path) -> None:
        """Write estimator.json beside the networks."""
        fitted = {name: getattr(self, name) for name in _FITTED if hasattr(self, name)}
        content = {"estimator": _recorded(self), "members": len(self.models_), "fitted": fitted}
        write_atomically(folder / FILE, as_bytes(to_json(content)))

    # ---- scikit-learn's conventions

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name; `deep` has no effect, as there are no nested estimators."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **parameters: Any) -> Self:
        """Set some of the constructor's arguments; return the estimator."""
        valid = self.get_params()
        if wrong := [name for name in parameters if name not in valid]:
            what = f"Invalid parameter {wrong[0]!r} for estimator {type(self).__name__}"
            raise ValueError(f"{what}; it has {', '.join(valid)}")
        vars(self).update(parameters)
        return self

    def __repr__(self) -> str:
        values = [(field, getattr(self, field.name)) for field in fields(self)]
        changed = [f"{field.name}={value!r}" for field, value in values if repr(value) != repr(field.default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        classifies = self._sort == "classifier"
        return Tags(
            estimator_type=self._sort,
            target_tags=TargetTags(required=True, multi_output=not classifies),
            classifier_tags=ClassifierTags(multi_label=True) if classifies else None,
            regressor_tags=None if classifies else RegressorTags(),
            input_tags=InputTags(three_d_array=True, allow_nan=True),
        )

    def check_fitted(self) -> None:
        """Raise before `fit`, with scikit-learn's error if anyone has imported it."""
        if not hasattr(self, "models_"):
            kind = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", ValueError)
            raise kind(f"This {type(self).__name__} instance is not fitted yet. Call 'fit' first")


def _recorded(estimator: Estimator) -> Any:
    """JSON form of an estimator's parameters; a random generator is not kept, and class weights are pairs."""
    changes: dict[str, Any] = {}
    if not isinstance(estimator.random_state, (int, np.integer)):
        changes["random_state"] = None
    if isinstance(weights := getattr(estimator, "class_weight", None), dict):
        changes["class_weight"] = list(weights.items())
    return to_json(replace(estimator, **changes), "parameters")


def load_estimator(folder: Path, device: Any = "cpu") -> Estimator:
    """Load an estimator that was saved or fitted in a folder."""
    kinds = (IndRNNClassifier, IndRNNRegressor, Preparation, Target, Plan, Augmentation)
    types, path = CONFIGS | {kind.__name__: kind for kind in kinds}, folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        estimator: Estimator = from_json(content["estimator"], types)
        if isinstance(weights := getattr(estimator, "class_weight", None), list):
            estimator.set_params(class_weight=dict(weights))
        homes = member_folders(folder, content["members"])
        for name, value in content["fitted"].items():
            setattr(estimator, name, from_json(value, types))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    estimator.models_, estimator.results_ = [load_module(home, device=device) for home in homes], []
    if hasattr(estimator, "feature_names_in_"):
        estimator.feature_names_in_ = np.asarray(estimator.feature_names_in_, dtype=object)
    return estimator


@dataclass(eq=False, repr=False, kw_only=True)
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
    class_weight: Any = None

    @property
    def classes_(self) -> Array:
        """The classes, sorted."""
        if not hasattr(self, "target_"):
            raise AttributeError(f"{type(self).__name__} has no classes_ before fit")
        return self.target_.classes

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
            right = np.concatenate([np.ravel(row) == np.ravel(as_array(answers)) for row, answers in pairs])
            sample_weight = _of_steps(sample_weight, predictions)
        else:
            right = predictions == _like(np.ravel(as_array(y)), predictions)
        return float(np.average(right, weights=sample_weight))


@dataclass(eq=False, repr=False, kw_only=True)
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
    augment: bool | None = False

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R², averaged over outputs; the best value is 1."""
        predictions = self.predict(X)
        if self.per_step:
            sample_weight = _of_steps(sample_weight, predictions)
            predictions, y = (np.concatenate([_columns(steps) for steps in rows]) for rows in (predictions, y))
        predictions, y = (_columns(rows) if np.ndim(rows) == 1 else as_array(rows) for rows in (predictions, y))
        y = _like(y, predictions)
        weights = np.ones(len(y)) if sample_weight is None else as_array(sample_weight)  # which makes means float64
        mean = np.average(y, axis=0, weights=weights)
        rest = np.average((y - predictions) ** 2, axis=0, weights=weights)
        spread = np.average((y - mean) ** 2, axis=0, weights=weights)
        scores = np.where(spread == 0, rest == 0, 1 - rest / np.where(spread == 0, 1.0, spread))
        return float(scores.mean())


def _shape(X: Any) -> tuple[int, ...]:
    """Shape of an array, or of nested lists that form one; () for series one by one."""
    return () if isinstance(X, (Collection, Fitting)) or is_list_of_series(X) else tuple(as_array(X).shape)


def _column_names(X: Any) -> list[str] | None:
    """Names of a table's columns, if all are text."""
    names = getattr(X, "columns", None)
    return list(names) if names is not None and all(isinstance(name, str) for name in names) else None


def _seed(random_state: Any) -> int:
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if random_state is None or isinstance(random_state, np.random.Generator):
        return int(np.random.default_rng(random_state).integers(2**31))
    raise ValueError(f"random_state must be a whole number, a generator of NumPy or None, got {random_state!r}")


def _weights(sample_weight: Any, count: int) -> Array | None:
    if sample_weight is None:
        return None
    weights = as_array(sample_weight).astype(np.float64)
    weights = weights if weights.ndim else np.full(count, weights)
    if weights.shape != (count,):
        raise ValueError(f"sample_weight must have the shape ({count},), got {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
        raise ValueError("sample_weight must hold finite numbers of at least 0, and not all sample weights may be zero")
    return weights


def _class_weights(chosen: Any, target: Target, y: Array, weights: Array | None) -> Array | None:
    if chosen is None:
        return None
    if target.kind != "classes":
        raise ValueError("class_weight is for one class a series, and y holds several labels")
    if isinstance(chosen, dict):
        for name, weight in chosen.items():
            if name not in target.names:
                raise ValueError(f"class_weight must name classes of y, got {name!r}")
            if not 0 <= float(weight) < np.inf:
                raise ValueError(f"class_weight must hold finite numbers of at least 0, got {weight!r} for {name!r}")
        return np.array([float(chosen.get(name, 1.0)) for name in target.names])
    if chosen != "balanced":
        raise ValueError(f"class_weight must be 'balanced', a dictionary from class to weight or None, got {chosen!r}")
    values = np.concatenate([np.ravel(steps) for steps in y]) if target.per_step else np.ravel(y)
    counted = np.ones(len(values)) if weights is None or target.per_step else weights
    sums = np.array([counted[values == name].sum() for name in target.names])
    return np.asarray(counted.sum() / (len(sums) * np.maximum(sums, 1e-12)))


def _validation(share: float | None, groups: Array | None) -> float | None:
    if groups is None:
        return share
    try:
        count = len(np.unique(groups))
    except TypeError:
        kinds = " and ".join(sorted({type(group).__name__ for group in groups}))
        raise ValueError(f"groups must be of one kind, such as all numbers or all words, got {kinds}") from None
    if count == 1 and share:  # which is never divided
        must = f"validation={share!r} must be 0 or None then"
        raise ValueError(f"groups must have at least two values to hold one of them back, got one; {must}")
    return 0.0 if count < FEW and share is None else share


def _like(y: Any, predictions: Array) -> Array:
    array = as_array(y)
    if array.shape != predictions.shape:
        raise ValueError(f"y must have a target for each series, of the shape {predictions.shape}, got {array.shape}")
    return array


def _of_steps(weights: Any, predictions: Any) -> Array | None:
    """The weight of each series for each of its steps, series after series."""
    return None if weights is None else np.repeat(as_array(weights), [np.shape(one)[-1] for one in predictions])


def _columns(values: Any) -> Array:
    """Reshape (n,) to (n, 1), or targets at every step (outputs, time) to (time, outputs)."""
    array = as_array(values).astype(np.float64)
    return array[:, None] if array.ndim == 1 else array.T


def _stacked(rows: list[Array]) -> Any:
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else rows
