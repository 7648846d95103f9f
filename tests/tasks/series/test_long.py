"""Series of 100,000 steps: the answers of trained networks, against the recurrence written step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from indrnn import IndRNNClassifier

T = 100_000


def series(count: int) -> tuple[Any, Any]:
    """Noise; of class 1 it is louder in the second half."""
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(count, 1, T)).astype(np.float32), np.arange(count) % 2
    X[y == 1, :, T // 2 :] *= 3
    return X, y


def by_hand(model: IndRNNClassifier, x: Any) -> Any:
    """Probabilities of one series (1, T), in NumPy and float64."""
    state = {name: value.double().numpy() for name, value in model.models_[0].state_dict().items()}
    mean, scale = model.preparation_.mean[0], model.preparation_.scale[0]
    rows = ((x.astype(np.float64) - mean) / scale).T
    for layer in range(model.plan_.network.layers):
        part = {name.partition(f"blocks.{layer}.unit.")[2]: value for name, value in state.items()}
        rows = rows @ part["weight.weight"].T + part["bias"]
        h = np.zeros(rows.shape[1])
        for step, row in enumerate(rows):
            rows[step] = h = np.maximum(0, row + part["weight_hh"] * h)
        middle = rows - rows.mean(1, keepdims=True)
        rows = middle / np.sqrt((middle**2).mean(1, keepdims=True) + 1e-5) * part["norm.weight"] + part["norm.bias"]
    logits = state["output.weight"] @ rows.mean(0) + state["output.bias"]
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


@pytest.mark.slow
def test_without_convolutions_activations_are_recomputed() -> None:
    X, y = series(4)
    model = IndRNNClassifier(front=False, layers=2, steps=1, lr=0.01, random_state=0).fit(X, y)
    assert not model.preparation_.normalise_rms  # the louder ones are of one class
    network = model.plan_.network
    assert (network.bidirectional, network.norm) == (False, "layer")
    assert 256 <= network.recompute < 1000  # pieces of about the root of 100,000 steps
    found = model.predict_proba(X)
    np.testing.assert_allclose(found[1], by_hand(model, X[1]), rtol=2e-3, atol=2e-4)
    stream = model.stream()
    for start in range(0, T, 30_011):
        answer = stream.push(X[1, :, start : start + 30_011])
    np.testing.assert_allclose(answer, found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_with_convolutions_the_class_is_learnt() -> None:
    X, y = series(8)
    model = IndRNNClassifier(steps=20, random_state=0).fit(X, y)
    assert np.prod(model.plan_.network.strides) >= 256
    assert model.score(X, y) == 1
    longer = np.concatenate([X[:1], X[:1]], 2)  # and one twice as long is taken
    assert np.isfinite(model.predict_proba(longer)).all()
