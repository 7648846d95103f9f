"""scikit-learn's conventions: parameters by name, its tags, numbers of features and names of columns.

No scikit-learn class is inherited from: the estimators work without it, and `import indrnn` does not import it.
"""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np

from .collection import Collection, as_array, is_list_of_series


class Conventions:
    """What scikit-learn's tools ask of an estimator, which is a dataclass of its parameters."""

    _sort: ClassVar[str]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name; `deep` has no effect, as there are no nested estimators."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **parameters: Any) -> Self:
        """Set some of the constructor's arguments; return the estimator."""
        valid = self.get_params()
        for name, value in parameters.items():
            if name not in valid:
                what = f"Invalid parameter {name!r} for estimator {type(self).__name__}"
                raise ValueError(f"{what}; it has {', '.join(valid)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]  # type: ignore[arg-type]
        changed = [f"{name}={value!r}" for name, value, default in values if not _same(value, default)]
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

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def check_fitted(self) -> None:
        """Raise, with scikit-learn's error if it is installed, before `fit`."""
        if self.__sklearn_is_fitted__():
            return
        kind: type[Exception] = ValueError
        with contextlib.suppress(ImportError):
            from sklearn.exceptions import NotFittedError

            kind = NotFittedError
        raise kind(f"This {type(self).__name__} instance is not fitted yet. Call 'fit' first")

    # ---- features: time in (n, time), otherwise channels

    def _set_features(self, X: Any, channels: int) -> None:
        """Keep scikit-learn's number of features, X.shape[1] of an array, and the names of a table's columns."""
        shape, names = _shape(X), _columns(X)
        self.n_features_in_ = int(shape[1]) if len(shape) in (2, 3) else channels
        self.flat_ = len(shape) == 2
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _check_features(self, X: Any, channels: int, data: Collection) -> None:
        got, steps = data.x[0].shape
        if got != channels:
            raise ValueError(
                f"X must have the channels of training, {channels}, got {got}: X has {got} features, but "
                f"{type(self).__name__} is expecting {channels} features as input"
            )
        if self.flat_ and steps != self.n_features_in_ and len(_shape(X)) == 2:
            raise ValueError(
                f"X has {steps} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                "input (steps, in two dimensions, as in training); give (n, 1, time) for series of another length"
            )

    def _check_columns(self, X: Any) -> None:
        """Raise for a table whose columns differ from those of training, in names or order."""
        trained, names = getattr(self, "feature_names_in_", None), _columns(X)
        if trained is None or names is None or names == list(trained):
            return  # as scikit-learn does
        pairs = zip([*names, "nothing"], [*trained, "nothing"], strict=False)
        at, (name, expected) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise ValueError(
            f"X must have the columns of training in their order, got {name!r} as column {at} in place of "
            f"{expected!r}. The feature names should match those that were passed during fit"
        )


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(np.all(value == default)))


def _shape(X: Any) -> tuple[int, ...]:
    """Shape of an array, or of nested lists that form one; () for series one by one."""
    return () if isinstance(X, Collection) or is_list_of_series(X) else tuple(as_array(X).shape)


def _columns(X: Any) -> list[str] | None:
    """Names of a table's columns, if all are text."""
    names = getattr(X, "columns", None)
    return list(names) if names is not None and all(isinstance(name, str) for name in names) else None


def seed_of(random_state: Any) -> int:
    """Convert `random_state` (integer, NumPy generator or None) to a seed; None draws one at random."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if random_state is None or isinstance(random_state, np.random.Generator):
        return int((random_state or np.random.default_rng()).integers(2**31))
    raise ValueError(f"random_state must be a whole number, a generator of NumPy or None, got {random_state!r}")
