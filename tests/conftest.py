"""For all tests: new memory is poisoned, and backends are named once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import indrnn

with warnings.catch_warnings():  # without the kernel this says so, once; and the suite passes there too
    warnings.simplefilter("ignore", RuntimeWarning)
    indrnn.recurrence(torch.zeros(1, 1, 1), torch.zeros(1))
with torch.device("cpu"):  # torch remembers its constructors on first use: they must not be the poisoned ones
    torch.zeros(0)

BACKENDS = [name for name, backend in indrnn.backends().items() if backend.available]
ACTIVATIONS = ["relu", "tanh", "sigmoid", "identity"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ACTIVATIONS)
def activation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what torch.empty and its like return with NaN, so that a number that was never written fails a test."""

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make_poisoned(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            if tensor.is_floating_point() and not torch.compiler.is_compiling():
                with torch.no_grad():
                    tensor.fill_(torch.nan)
            return tensor

        return make_poisoned

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poison(getattr(torch, name)))
    torch.manual_seed(0)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """For torch's own batch norm, which forks for any size and then waits longer than it works."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
