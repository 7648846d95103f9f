"""For all tests: new memory is poisoned, backends are named once, and half precision is probed before they begin."""

from __future__ import annotations

import importlib.util
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import indrnn
from indrnn.ops.triton import backend as triton_backend
from indrnn.system import limit_onednn

if importlib.util.find_spec("triton") is not None:  # which looks at this as it is imported: by us, when first used
    os.environ.setdefault("TRITON_INTERPRET", "1")
with warnings.catch_warnings():  # without the kernel this says so, once; and the suite passes there too
    warnings.simplefilter("ignore", RuntimeWarning)
    indrnn.recurrence(torch.zeros(1, 1, 1), torch.zeros(1))
with torch.device("cpu"):  # torch remembers its constructors on first use: they must not be the poisoned ones
    torch.zeros(0)

BACKENDS = [name for name, backend in indrnn.backends().items() if backend.available]
ACTIVATIONS = ["relu", "tanh", "sigmoid", "identity"]
slow_for_triton = pytest.mark.slow_for("triton")
"""On tests of many runs or steps: Triton's interpreter takes some 5 ms for a step. `-m slow` has them."""


def smooth(backend: str) -> str:
    """An activation without a kink that the backend supports."""
    return "tanh" if indrnn.backends(None, "tanh")[backend].available else "identity"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a `backend`, an `activation` or both for each of them, where the backend supports it."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    names = [name for name in ("backend", "activation") if name in metafunc.fixturenames and name not in given]
    if names == ["backend", "activation"]:
        metafunc.parametrize(
            names,
            [(name, each) for name in BACKENDS for each in ACTIVATIONS if indrnn.backends(None, each)[name].available],
        )
    elif names:
        metafunc.parametrize(names[0], BACKENDS if names == ["backend"] else ACTIVATIONS)


_half_precision: str | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _half_precision
    config.addinivalue_line("markers", "slow_for(backend): slow, where this is the backend")
    # Ignored in what a shell starts in its background, or nohup; tests of Ctrl-C and hang-ups send them
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    if not hasattr(config, "workerinput"):  # xdist's workers inherit the environment of the process that starts them
        _half_precision = limit_onednn()
        workers = config.getoption("numprocesses", None)
        if workers:  # more threads than cores wait for each other, busily: a test may take ten times as long
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


def pytest_report_header() -> str | None:
    return _half_precision


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        backend = _backend_of(item)
        if any(mark.args == (backend,) for mark in item.iter_markers("slow_for")):
            item.add_marker(pytest.mark.slow)
        if backend == "triton":  # NumPy says so where its interpreter meets NaN or infinity
            item.add_marker(pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning"))


def _backend_of(item: pytest.Item) -> str | None:
    return item.callspec.params.get("backend") if hasattr(item, "callspec") else None


@pytest.fixture
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For Triton's interpreter, which takes its time for each op: few steps at once, and many chains to a program."""
    monkeypatch.setattr(triton_backend, "steps", lambda *_: 4)
    monkeypatch.setattr(triton_backend, "blocks", lambda *_: (512, 1))


@pytest.fixture(autouse=True)
def _few_steps_in_triton(request: pytest.FixtureRequest) -> None:
    if _backend_of(request.node) == "triton":
        request.getfixturevalue("_few_steps")


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
    torch.default_generator.manual_seed(0)  # torch.manual_seed remembers a stack for each kind of GPU there might be


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """For torch's own batch norm, which forks for any size and then waits longer than it works."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
