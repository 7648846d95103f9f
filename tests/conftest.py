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


def smooth(backend: str) -> str:
    """An activation without a kink that the backend serves."""
    return "tanh" if indrnn.backends(None, "tanh")[backend].available else "identity"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a `backend`, an `activation` or both for each of them, where the backend serves it."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    names = [name for name in ("backend", "activation") if name in metafunc.fixturenames and name not in given]
    if names == ["backend", "activation"]:
        metafunc.parametrize(
            names,
            [(name, each) for name in BACKENDS for each in ACTIVATIONS if indrnn.backends(None, each)[name].available],
        )
    elif names:
        metafunc.parametrize(names[0], BACKENDS if names == ["backend"] else ACTIVATIONS)


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
