"""The choice of a backend, and the error where the one asked for does not support a tensor."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode

import indrnn
from indrnn.ops import library, reference
from indrnn.ops.cpu import kernel
from indrnn.ops.triton import backend as triton_backend

X, U = torch.ones(2, 1, 3), torch.full((3,), 0.5)
with FakeTensorMode():  # no GPU is needed to ask what would be chosen there
    ON_GPU = torch.empty(2, 1, 3, device="cuda")


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where indrnn was installed without a compiler."""
    monkeypatch.setattr(kernel, "library", lambda: kernel.MISSING)
    library._said.clear()


@pytest.mark.skipif(isinstance(kernel.library(), str), reason=str(kernel.library()))
def test_native_is_the_choice_on_a_cpu_and_the_reference_elsewhere() -> None:
    on_cpu, elsewhere = indrnn.backends(X), indrnn.backends(X.to("meta"))
    assert {name for name, backend in on_cpu.items() if backend.chosen} == {"native"}
    assert on_cpu["native"].why_not is None
    assert {name for name, backend in elsewhere.items() if backend.chosen} == {"reference"}
    assert elsewhere["native"].why_not == "it supports CPU tensors only, not meta"
    assert indrnn.backends() == on_cpu


def test_asked_about_nothing_it_tells_of_a_cpu_tensor_whatever_the_default_device() -> None:
    expected = indrnn.backends()
    with torch.device("meta"):
        assert indrnn.backends() == expected


def test_the_variable_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDRNN_BACKEND", "reference")
    assert indrnn.backends()["reference"].chosen
    assert not indrnn.backends()["native"].chosen
    monkeypatch.setattr(kernel, "forward", None)  # would fail if it were called
    h, _ = indrnn.recurrence(X, U)
    assert h.view(-1).tolist() == [1.0] * 3 + [1.5] * 3


def test_the_argument_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDRNN_BACKEND", "native")
    monkeypatch.setattr(kernel, "forward", None)
    h, _ = indrnn.recurrence(X, U, backend="reference")
    assert h.shape == X.shape


def test_a_misspelt_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDRNN_BACKEND", "nativ")
    expected = r"INDRNN_BACKEND must be unset or one of native, reference, scan, triton, got 'nativ'"
    with pytest.raises(ValueError, match=expected):
        indrnn.recurrence(X, U)


@pytest.mark.usefixtures("no_kernel")
def test_without_the_kernel_the_reference_computes_and_says_so_once() -> None:
    with pytest.warns(RuntimeWarning, match=r"plain PyTorch.*install a C\+\+ compiler"):
        h, _ = indrnn.recurrence(X, U)
    assert h.view(-1).tolist() == [1.0] * 3 + [1.5] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        indrnn.recurrence(X, U)
    assert indrnn.backends()["native"] == indrnn.Backend(False, False, kernel.MISSING)


@pytest.mark.usefixtures("no_kernel")
def test_tritons_interpreter_is_never_the_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "why_not", lambda *_: None)
    with pytest.warns(RuntimeWarning, match="plain PyTorch"):
        assert library.choose(X, "relu", None) is reference
    found = indrnn.backends(X)
    assert found["triton"] == indrnn.Backend(True, False, None)
    assert found["reference"].chosen
    assert library.choose(X, "relu", "triton") is triton_backend


def test_triton_is_the_choice_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "why_not", lambda *_: None)
    assert library.choose(ON_GPU, "relu", None) is triton_backend
    assert {name for name, backend in indrnn.backends(ON_GPU).items() if backend.chosen} == {"triton"}


def test_without_triton_a_gpu_has_the_reference_and_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "why_not", lambda *_: "Triton is away")
    library._said.clear()
    with pytest.warns(RuntimeWarning, match="indrnn computes in plain PyTorch, which is slow: Triton is away"):
        assert library.choose(ON_GPU, "relu", None) is reference
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert library.choose(ON_GPU, "relu", None) is reference
    assert {name for name, backend in indrnn.backends(ON_GPU).items() if backend.chosen} == {"reference"}


@pytest.mark.usefixtures("no_kernel")
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_one_asked_for_by_name_that_cannot_serve_raises(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "variable":
        monkeypatch.setenv("INDRNN_BACKEND", "native")
    with pytest.raises(RuntimeError, match=rf"'native', asked for by the .*{by}.*, is not supported: the C\+\+ kernel"):
        indrnn.recurrence(X, U, backend="native" if by == "argument" else None)
