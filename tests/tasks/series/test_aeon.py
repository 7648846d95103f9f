"""aeon's own checks of estimators, on adapters that do nothing but hand arrays on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from indrnn import IndRNNClassifier, IndRNNRegressor

pytest.importorskip("aeon")
from aeon.classification import BaseClassifier
from aeon.regression import BaseRegressor
from aeon.testing.estimator_checking import check_estimator

TAGS = {
    "X_inner_type": ["np-list", "numpy3D"],
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "capability:missing_values": True,
    "algorithm_type": "deeplearning",
}


class AeonClassifier(BaseClassifier):  # type: ignore[misc]
    """`IndRNNClassifier` as aeon calls it."""

    _tags: ClassVar[dict[str, Any]] = TAGS

    def __init__(self, steps: int | None = None, random_state: Any = None) -> None:
        self.steps, self.random_state = steps, random_state
        super().__init__()

    def _fit(self, X: Any, y: Any) -> AeonClassifier:
        self.model_ = IndRNNClassifier(steps=self.steps, random_state=self.random_state).fit(X, y)
        return self

    def _predict(self, X: Any) -> Any:
        return self.model_.predict(X)

    def _predict_proba(self, X: Any) -> Any:
        return self.model_.predict_proba(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"steps": 3}


class AeonRegressor(BaseRegressor):  # type: ignore[misc]
    """`IndRNNRegressor` as aeon calls it."""

    _tags: ClassVar[dict[str, Any]] = TAGS

    def __init__(self, steps: int | None = None, random_state: Any = None) -> None:
        self.steps, self.random_state = steps, random_state
        super().__init__()

    def _fit(self, X: Any, y: Any) -> AeonRegressor:
        self.model_ = IndRNNRegressor(steps=self.steps, random_state=self.random_state).fit(X, y)
        return self

    def _predict(self, X: Any) -> Any:
        return self.model_.predict(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"steps": 3}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("adapter", [AeonClassifier, AeonRegressor], ids=["classes", "numbers"])
def test_checks_of_aeon(adapter: Any) -> None:
    """All of them: none is left out, and none skips."""
    results = check_estimator(adapter)
    assert len(results) > 20
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}


def test_an_array_of_aeon_and_a_list_of_it_are_the_same_series() -> None:
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(10, 2, 20)), np.array(["a", "b"] * 5)
    model = AeonClassifier(steps=2, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(list(X)), model.predict_proba(X), atol=1e-6)
