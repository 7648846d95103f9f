"""The registered ops by themselves: they check what they get, and graphs that hold them train, vmap and export."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor

from indrnn import DenseIndRNN, IndRNN, PlainIndRNN, ResidualIndRNN, SequenceClassifier, recurrence
from indrnn.ops import recurrence_, recurrence_norm

from ..conftest import ACTIVATIONS
from .problems import problem

OPS = torch.ops.indrnn
T, B, N = 4, 3, 5
meta = torch.zeros(N, device="meta")


# ---- what they are given

FORWARD: dict[str, Any] = {
    "x": torch.zeros(T, B, N),
    "u": torch.zeros(N),
    "bias": None,
    "h_0": torch.zeros(B, N),
    "lengths": None,
    "resets": None,
    "activation": "relu",
    "reverse": False,
    "backend": None,
}
BACKWARD = {"grad_h": torch.zeros(T, B, N), "grad_h_last": torch.zeros(B, N), "h": torch.zeros(T, B, N)} | {
    name: value for name, value in FORWARD.items() if name not in ("x", "bias")
}
NORM: dict[str, Any] = {
    "x": torch.zeros(T, B, N),
    "u": torch.zeros(N),
    "bias": None,
    "h_0": None,
    "weight": torch.ones(N),
    "shift": torch.zeros(N),
    "mask": None,
    "lengths": None,
    "resets": None,
    "eps": 1e-5,
    "activation": "relu",
    "place": "after",
    "backend": None,
}
NORM_BACKWARD: dict[str, Any] = {
    "grad_y": torch.zeros(T, B, N),
    "grad_h_last": None,
    "h": torch.zeros(T, B, N),
    "x": None,
    "u": torch.zeros(N),
    "h_0": None,
    "weight": torch.ones(N),
    "mean": torch.zeros(N),
    "var": torch.ones(N),
    "mask": None,
    "lengths": None,
    "resets": None,
    "eps": 1e-5,
    "activation": "relu",
    "backend": None,
}
GOOD = {
    "recurrence": FORWARD,
    "recurrence_backward": BACKWARD,
    "recurrence_norm": NORM,
    "recurrence_norm_backward": NORM_BACKWARD,
}
far = torch.tensor([1, 2, 1000])
BAD: list[tuple[str, str, Any, str]] = [
    ("recurrence", "h_0", torch.zeros(1, N), "h_0 must have x's shape without T"),
    ("recurrence", "u", torch.zeros(N - 1), r"u must have the shape \(N,\) = \(5,\)"),
    ("recurrence", "u", meta, "u must be on x's device, cpu, got one on meta"),
    ("recurrence", "bias", torch.zeros(1), r"bias must have the shape \(N,\)"),
    ("recurrence", "bias", torch.zeros(N).double(), "bias must be of x's type"),
    ("recurrence", "x", torch.zeros(T, N), "x must have the shape"),
    ("recurrence", "x", torch.zeros(T, B, N).long(), "x must be float32"),
    ("recurrence", "x", torch.ones(T, B, N).to_sparse(), "x must be a dense tensor, got one of the layout"),
    ("recurrence", "h_0", torch.ones(B, N).to_sparse(), "h_0 must be a dense tensor"),
    ("recurrence", "lengths", torch.ones(B).long().to_sparse(), "lengths must be a dense tensor"),
    ("recurrence", "lengths", torch.ones(B + 1).long(), r"lengths must have the shape \(B,\) = \(3,\)"),
    ("recurrence", "lengths", far, "lengths must lie between 0 and T = 4"),
    ("recurrence", "resets", torch.zeros(T, B + 1).bool(), r"resets must have the shape \(T, B\) = \(4, 3\)"),
    ("recurrence", "activation", "gelu", "activation must be one of"),
    ("recurrence", "backend", "bogus", "backend must be one of"),
    ("recurrence_backward", "grad_h", torch.zeros(T - 1, B, N), r"grad_h must have h's shape, \(4, 3, 5\)"),
    ("recurrence_backward", "grad_h", torch.zeros(T, B, N).bfloat16(), "grad_h must be of h's type"),
    ("recurrence_backward", "grad_h", torch.zeros(T, B, N, device="meta"), "grad_h must be on h's device"),
    ("recurrence_backward", "grad_h_last", torch.zeros(1, N), "grad_h_last must have h's shape without T"),
    ("recurrence_backward", "h_0", torch.zeros(1, N), "h_0 must have h's shape without T"),
    ("recurrence_backward", "u", torch.zeros(N + 1), "u must have the shape"),
    ("recurrence_backward", "lengths", far, "lengths must lie between 0 and T = 4"),
    ("recurrence_backward", "backend", "bogus", "backend must be one of"),
    ("recurrence_norm", "weight", meta, "weight must be on x's device, cpu, got one on meta"),
    ("recurrence_norm", "shift", torch.zeros(N - 1), "shift must have the shape"),
    ("recurrence_norm", "mask", torch.ones(1, B, N).to_mkldnn(), "mask must be a dense tensor"),
    ("recurrence_norm", "mask", torch.ones(1, 1, N), r"mask must have the shape \(1, 3, 5\)"),
    ("recurrence_norm", "mask", torch.ones(T, B, N), r"mask must have the shape \(1, 3, 5\)"),
    ("recurrence_norm", "h_0", torch.zeros(1, N), "h_0 must have x's shape without T"),
    ("recurrence_norm", "lengths", far, "lengths must lie between 0 and T = 4"),
    ("recurrence_norm", "place", "around", "place must be 'before' or 'after', got 'around'"),
    ("recurrence_norm_backward", "grad_y", torch.zeros(T, B, N - 1), "grad_y must have h's shape"),
    ("recurrence_norm_backward", "x", torch.zeros(T, 1, N), "x must have h's shape"),
    ("recurrence_norm_backward", "mean", torch.zeros(1), "mean must have the shape"),
    ("recurrence_norm_backward", "var", meta, "var must be on h's device"),
    ("recurrence_norm_backward", "weight", torch.zeros(N).double(), "weight must be of h's type"),
    ("recurrence_norm_backward", "mask", torch.ones(1, B, 1), r"mask must have the shape \(1, 3, 5\)"),
    ("recurrence_norm_backward", "lengths", far, "lengths must lie between 0 and T = 4"),
]


@pytest.mark.parametrize(("op", "name", "value", "message"), BAD)
def test_each_op_checks_what_it_gets(op: str, name: str, value: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(OPS, op)(**GOOD[op] | {name: value})


OF_SHAPES = [bad for bad in BAD if not any(word in bad[3] for word in ("lie between", "device", "backend", "dense"))]


@pytest.mark.parametrize("op", GOOD)
def test_what_is_checked_is_right_otherwise(op: str) -> None:
    assert all(result.isfinite().all() for result in getattr(OPS, op)(**GOOD[op]))


@pytest.mark.parametrize(("op", "name", "value", "message"), OF_SHAPES)
def test_shapes_alone_are_checked_alike(op: str, name: str, value: Any, message: str) -> None:
    """On meta tensors, as under FakeTensor: a graph that cannot run is not made."""
    given = {n: v.to("meta") if isinstance(v, Tensor) else v for n, v in (GOOD[op] | {name: value}).items()}
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(OPS, op)(**given)


# ---- derivatives of the ops themselves


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
def test_first_and_second_derivatives(activation: str, ragged: bool) -> None:
    p = problem(4, 3, 2, activation=activation, lengths=ragged, resets=ragged).with_gradients()
    options = (p.lengths, p.resets, activation, False, None)

    def f(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        return OPS.recurrence(*leaves, *options)  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(f, p.leaves)
    assert torch.autograd.gradgradcheck(f, p.leaves)


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_first_and_second_derivatives_with_a_norm(place: str, masked: bool) -> None:
    p = problem(4, 3, 2, activation="tanh", lengths=True).with_gradients()
    weight, shift = (torch.rand(2).double().add_(0.5).requires_grad_() for _ in range(2))
    mask = torch.tensor([[[2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]], dtype=torch.float64) if masked else None
    p.lengths = torch.tensor([4, 2, 3])

    def f(*leaves: Tensor) -> Any:
        return OPS.recurrence_norm(*leaves, mask, p.lengths, None, 1e-5, "tanh", place, None)[:2]

    leaves = [*p.leaves, weight, shift]
    assert torch.autograd.gradcheck(f, leaves)
    assert torch.autograd.gradgradcheck(f, leaves)


def test_opcheck_with_gradients() -> None:
    p = problem(lengths=True).with_gradients()
    options = (p.lengths, p.resets, p.activation, p.reverse, None)
    torch.library.opcheck(OPS.recurrence.default, (p.x, p.u, p.bias, p.h_0, *options))
    weight, shift = (torch.rand(13).double().requires_grad_() for _ in range(2))
    torch.library.opcheck(
        OPS.recurrence_norm.default,
        (p.x, p.u, p.bias, p.h_0, weight, shift, None, p.lengths, None, 1e-5, "relu", "after", None),
    )


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (1, 0)], ids=str)
def test_vmap_of_the_op(in_dims: tuple[int | None, int | None]) -> None:
    x = torch.randn(3, 3, 3, 4) if in_dims[0] is not None else torch.randn(3, 3, 4)
    u = torch.rand(3, 4) if in_dims[1] is not None else torch.rand(4)

    def f(x: Tensor, u: Tensor) -> Tensor:
        return OPS.recurrence(x, u, None, None, None, None, "tanh", False, None)[0]  # type: ignore[no-any-return]

    def one(i: int) -> Tensor:
        return f(*(t if dim is None else t.select(dim, i) for t, dim in zip((x, u), in_dims, strict=True)))

    assert_close(torch.vmap(f, in_dims)(x, u), torch.stack([one(i) for i in range(3)]))


# ---- exported modules train

MODULES: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: IndRNN(4, 5, 2),
    "bidirectional": lambda: IndRNN(4, 5, 2, "tanh", bidirectional=True),
    "plain": lambda: PlainIndRNN(4, 5, 2),
    "residual": lambda: ResidualIndRNN(4, 5, 2),
    "dense": lambda: DenseIndRNN(4, 2, (2, 2)),
    "classifier": lambda: SequenceClassifier(PlainIndRNN(4, 5, 2), 3),
}


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("name", MODULES)
def test_an_exported_module_trains(name: str, strict: bool) -> None:
    module, x = MODULES[name]().train(), torch.randn(7, 3, 4)
    exported = torch.export.export(module, (x,), strict=strict).module()
    expect_the_same_gradients(exported, module, x)


@pytest.mark.parametrize("name", ["layer", "dense", "classifier"])
def test_an_exported_module_trains_after_it_was_saved(name: str) -> None:
    module, x, file = MODULES[name](), torch.randn(7, 3, 4), io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), file)
    file.seek(0)
    expect_the_same_gradients(torch.export.load(file).module(), module, x)


def expect_the_same_gradients(actual: nn.Module, expected: nn.Module, x: Tensor) -> None:
    ours, theirs = gradients_of(actual, x), gradients_of(expected, x)
    assert ours.keys() == theirs.keys() > {"output", "input"}
    for name, gradient in theirs.items():
        assert_close(ours[name], gradient)


def gradients_of(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Those of the input and of every parameter, and the output."""
    x = x.clone().requires_grad_()
    result = module(x)
    output: Tensor = result[0] if isinstance(result, tuple) else result
    output.square().sum().backward()
    given = {"input": x} | dict(module.named_parameters())
    gradients = {name: tensor.grad for name, tensor in given.items() if tensor.grad is not None}
    assert gradients.keys() == given.keys()
    return gradients | {"output": output.detach()}


# ---- who sees them


def test_a_profiler_sees_them() -> None:
    x, u = torch.rand(3, 2, 4, requires_grad=True), torch.rand(4)
    with torch.profiler.profile() as profile:
        recurrence(x, u)[0].sum().backward()
        recurrence_(x * 1.0, u)[0].sum().backward()
        recurrence_norm(x, u, u, u, place="after", overwrite=True)[0].sum().backward()
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("indrnn::")}
    assert counts == {
        "indrnn::recurrence": 2,
        "indrnn::recurrence_backward": 2,
        "indrnn::recurrence_norm": 1,
        "indrnn::recurrence_norm_backward": 1,
    }


def test_a_tensor_that_does_not_know_the_op_says_so_itself(tmp_path: Any) -> None:
    """DTensor's words about a missing sharding strategy reach the caller; they were taken for forward-mode AD."""
    if torch.distributed.is_initialized():
        pytest.skip("a process group of another test is there")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        x, u = (distribute_tensor(t, mesh, [Replicate()]) for t in (torch.rand(4, 2, 3), torch.rand(3)))
        with pytest.raises(NotImplementedError, match="sharding strategy"):
            recurrence(x, u)
    finally:
        torch.distributed.destroy_process_group()


NORMS = {"alone": None, "norm before": "before", "norm after": "after"}


def states(x: Tensor, u: Tensor, place: str | None) -> Tensor:
    return recurrence(x, u)[0] if place is None else recurrence_norm(x, u, u, u, place=place)[0]


@pytest.mark.parametrize("place", NORMS.values(), ids=NORMS)
def test_a_subclass_of_tensors_that_comes_back_as_gradient(place: str | None) -> None:
    """It has no memory of its own, and what was read in place of it were zeros, or nothing that could be read."""
    x, u, factors = torch.rand(4, 2, 3, requires_grad=True), torch.rand(3), torch.rand(4, 2, 3)
    (expected,) = torch.autograd.grad((states(x, u, place) * factors).sum(), x)
    (gradient,) = torch.autograd.grad((states(x, u, place) * TwoTensor(factors, factors.clone())).sum(), x)
    assert isinstance(gradient, TwoTensor)
    assert_close(gradient.a, expected)
    assert_close(gradient.b, expected)


@pytest.mark.parametrize("place", NORMS.values(), ids=NORMS)
def test_a_subclass_of_tensors_that_a_hook_of_saved_tensors_returns(place: str | None) -> None:
    x, u = torch.rand(4, 2, 3, requires_grad=True), torch.rand(3)
    (expected,) = torch.autograd.grad(states(x, u, place).square().sum(), x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: TwoTensor(t.detach(), t.detach())):
        h = states(x, u, place)
    (gradient,) = torch.autograd.grad(h.square().sum(), x)
    assert isinstance(gradient, TwoTensor)
    assert_close(gradient.a, expected)


# ---- sparse tensors


@pytest.mark.parametrize("place", NORMS.values(), ids=NORMS)
def test_a_sparse_gradient(place: str | None) -> None:
    x, u, index = torch.rand(4, 2, 3, requires_grad=True), torch.rand(3), torch.tensor([[[0, 2, 1], [3, 3, 0]]])
    expected, gradient = (
        torch.autograd.grad(states(x, u, place).gather(0, index, sparse_grad=sparse).square().sum(), x)[0]
        for sparse in (False, True)
    )
    assert_close(gradient, expected)


def test_a_sparse_gradient_of_the_last_state(backend: str) -> None:
    x, u, index = torch.rand(4, 2, 3, requires_grad=True), torch.rand(3), torch.tensor([1, 1])
    expected, gradient = (
        torch.autograd.grad(
            nn.functional.embedding(index, recurrence(x, u, backend=backend)[1], sparse=sparse).sum(), x
        )[0]
        for sparse in (False, True)
    )
    assert_close(gradient, expected)


def test_a_nested_tensor_is_refused_with_what_to_do() -> None:
    x = torch.nested.nested_tensor([torch.rand(2, 5, 3), torch.rand(4, 5, 3)], layout=torch.jagged)
    with pytest.raises(TypeError, match="x must be a dense tensor, got a nested one; pad it, and give the lengths"):
        recurrence(x, torch.rand(3))


# ---- lazy tensors


def lazily_negative(tensor: Tensor) -> Tensor:
    """The same numbers with torch's negative bit: memory holds them with the other sign."""
    result = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert result.is_neg()
    return result


@pytest.mark.parametrize("name", ["x", "u", "bias", "h_0", "grad_h", "grad_h_last"])
def test_a_negative_bit_is_read(name: str, backend: str) -> None:
    p = problem(6, 3, 5, lengths=True)
    expected = p.solve("reference")
    q = copy.copy(p)
    setattr(q, name, lazily_negative(getattr(p, name)))
    for actual, e in zip(q.solve(backend), expected, strict=True):
        assert_close(actual, e)


def test_a_gradient_with_the_negative_bit(backend: str) -> None:
    layer, x = IndRNN(3, 1, nonlinearity="identity", backend=backend), torch.ones(4, 2, 3)
    h, _ = layer(x)
    (torch.complex(0 * h, h).conj() * (1 + 2j)).imag.sum().backward()
    gradient = layer.weight_ih_l0.grad
    layer.zero_grad()
    (-layer(x)[0]).sum().backward()
    assert_close(gradient, layer.weight_ih_l0.grad)


@pytest.mark.parametrize("place", ["before", "after"])
def test_with_a_norm_a_negative_bit_is_read(place: str) -> None:
    p = problem(6, 3, 5)
    weight, shift, mask = torch.rand(5).double(), torch.rand(5).double(), torch.rand(1, 3, 5).double()
    expected = recurrence_norm(p.x, p.u, weight, shift, mask=mask, place=place)
    given = [lazily_negative(tensor) for tensor in (p.x, p.u, weight, shift)]
    actual = recurrence_norm(*given, mask=lazily_negative(mask), place=place, overwrite=True)
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close(ours, theirs)
