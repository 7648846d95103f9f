"""Where h may take the place of x: the numbers are the same, and it is not done where someone watches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from indrnn import IndRNN, PlainIndRNN, recurrence
from indrnn.ops import recurrence_, recurrence_norm
from indrnn.ops.cpu import kernel

from ..conftest import ACTIVATIONS

pytestmark = pytest.mark.skipif(isinstance(kernel.library(), str), reason="the C++ kernel was not built")

T, B, N = 9, 3, 17
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": torch.tensor([9, 0, 4])},
    "resets": {"resets": torch.arange(T * B).view(T, B) % 4 == 0},
}


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What x is computed from, u, h_0 and a bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((T, B, N), (N,), (B, N), (N,))
    a, u, h_0, bias = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return a.requires_grad_(), u.requires_grad_(), h_0.requires_grad_(), bias.requires_grad_()


def loss(function: Any, given: tuple[Tensor, ...], **options: Any) -> tuple[Tensor, ...]:
    a, u, h_0, bias = given
    h, h_last = function(a * 1.5, u, h_0, bias=bias, **options)
    return (h * torch.arange(h.numel()).view(h.shape).cos()).sum() + h_last.square().sum(), h, h_last


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_same_bits(activation: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    results = []
    for function in (recurrence_, recurrence):
        given = inputs(dtype)
        value, h, h_last = loss(function, given, activation=activation, **options)
        results.append((h, h_last, *torch.autograd.grad(value, given)))
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)


def test_h_takes_the_place_of_x() -> None:
    a, u, *_ = inputs()
    x = a * 2
    h, _ = recurrence_(x, u)
    assert h.data_ptr() == x.data_ptr()
    assert_close(h, recurrence(a * 2, u)[0])


@pytest.mark.parametrize("how", ["leaf", "view", "strided", "by name"])
def test_an_x_that_cannot_be_overwritten_is_left_alone(how: str) -> None:
    a, u, *_ = inputs()
    x = {
        "leaf": a.detach(),
        "view": (a * 1.0).view(T, B, N),
        "strided": (a * 1.0).transpose(0, 1).contiguous().transpose(0, 1),
        "by name": a * 1.0,
    }[how]
    before = x.detach().clone()
    h, _ = recurrence_(x, u, backend="reference" if how == "by name" else None)
    assert_close(h, recurrence(before, u)[0])
    if how != "leaf":  # which is a result of its own, and may go
        assert torch.equal(x, before)


@pytest.mark.parametrize("grad_mode", [True, False], ids=["grad", "no_grad"])
def test_a_leaf_that_asks_for_a_gradient_is_left_alone(grad_mode: bool) -> None:
    """It was overwritten before autograd said that it must not be."""
    a, u, *_ = inputs()
    one, before = torch.ones(N, dtype=torch.float64), a.detach().clone()
    with torch.set_grad_enabled(grad_mode):
        h, _ = recurrence_(a, u)
        y, *_ = recurrence_norm(a, u, one, one, place="after", overwrite=True)
    assert torch.equal(a, before)
    assert torch.equal(h, recurrence(before, u)[0])
    assert torch.equal(y, recurrence_norm(before, u, one, one, place="after")[0])


@pytest.mark.parametrize("shared", ["u", "h_0", "bias"])
def test_an_x_that_another_argument_shares_memory_with_is_left_alone(shared: str) -> None:
    """What is kept for the backward pass would be h in its place, and autograd would not know."""
    results = []
    for function in (recurrence_, recurrence):
        a, u, *_ = inputs()
        x = a * 1.0
        options: dict[str, Any] = {"u": u} | {shared: x[0] if shared == "h_0" else x[0, 0]}
        h, _ = function(x, **options)
        results.append(torch.autograd.grad(h.square().sum(), (a, u), allow_unused=True))
    for ours, expected in zip(*results, strict=True):
        assert ours is expected is None or torch.equal(ours, expected)


@pytest.mark.parametrize("shared", ["u", "weight", "shift", "h_0", "bias", "mask"])
def test_an_x_that_an_argument_of_the_norm_shares_memory_with_is_left_alone(shared: str) -> None:
    """The norm's weight and mask are read after h is written, and kept for the backward pass."""
    results = []
    for overwrite in (True, False):
        a, u, *_ = inputs()
        x = a * 1.0
        before = x.detach().clone()
        part = {"h_0": x[2], "mask": x[2:3]}.get(shared, x[2, 1])
        one = torch.ones(N, dtype=torch.float64)
        options: dict[str, Any] = {"u": u, "weight": one, "shift": one} | {shared: part.detach()}
        y, h_last, mean, var = recurrence_norm(x, **options, place="after", overwrite=overwrite)
        assert torch.equal(x, before)
        gradients = torch.autograd.grad(y.square().sum() + h_last.sum(), (a, u), allow_unused=True)
        results.append((y, h_last, mean, var, *gradients))
    for ours, expected in zip(*results, strict=True):
        assert ours is expected is None or torch.equal(ours, expected)


def test_an_x_that_keeps_its_gradient_is_left_alone() -> None:
    """Written over, it would be given h's gradient in place of its own."""
    gradients = []
    for function in (recurrence_, recurrence):
        a, u, *_ = inputs()
        x = a * 1.0
        x.retain_grad()
        function(x, u)[0].square().sum().backward()
        gradients.append(x.grad)
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


class Keep(TorchFunctionMode):
    """Keeps the results of all products, and copies of them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear:
            self.kept.append((result, result.clone()))
        return result


def test_what_a_mode_of_torch_functions_keeps_is_left_alone() -> None:
    with Keep() as mode:
        IndRNN(9, 4)(torch.randn(5, 2, 9))
    ((result, copy),) = mode.kept
    assert torch.equal(result, copy)


def test_a_default_device_changes_nothing() -> None:
    a, u, *_ = inputs()
    with torch.device("cpu"):
        x = a * 1.0
        assert recurrence_(x, u)[0] is x


def test_what_cannot_be_computed_leaves_x_as_it_was() -> None:
    a, u, *_ = (tensor.detach() for tensor in inputs())
    one = torch.ones(N, dtype=torch.float64)
    bad: list[dict[str, Any]] = [{"backend": "bogus"}, {"h_0": a}, {"lengths": torch.tensor([1, 2, 99])}]
    for options in bad:
        x = a * 1.0
        with pytest.raises(ValueError, match=next(iter(options))):
            recurrence_(x, u, **options)
        with pytest.raises(ValueError, match=next(iter(options))):
            recurrence_norm(x, u, one, one, place="after", overwrite=True, **options)
        assert torch.equal(x, a)


def test_second_derivatives() -> None:
    """A graph of the backward pass goes by the function that has a derivative."""
    generator = torch.Generator().manual_seed(1)
    given = [torch.rand(shape, generator=generator).double() + 0.1 for shape in ((4, 2, 3), (3,), (2, 3), (3,))]
    given = [tensor.requires_grad_() for tensor in given]

    def function(a: Tensor, u: Tensor, h_0: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return recurrence_(a * 1.0, u, h_0, bias=bias, activation="tanh")

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


def test_a_batch_of_gradients_at_once() -> None:
    a, u, *_ = inputs()
    h, _ = recurrence_(a * 1.0, u)
    directions = torch.randn(5, *h.shape, dtype=torch.float64)
    at_once = torch.autograd.grad(h, (a, u), directions, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(h, (a, u), direction, retain_graph=True) for direction in directions]
    for ours, expected in zip(at_once, zip(*one_by_one, strict=True), strict=True):
        assert_close(ours, torch.stack(expected))


def test_torch_func_and_traces_see_the_op() -> None:
    a, u, *_ = (tensor.detach() for tensor in inputs())
    gradient = torch.func.grad(lambda u: recurrence_(a * 1.0, u)[0].sum())(u)
    assert_close(gradient, torch.func.grad(lambda u: recurrence(a * 1.0, u)[0].sum())(u))
    many = torch.stack([u, -u])
    assert_close(
        torch.vmap(lambda u: recurrence_(a * 1.0, u)[0])(many), torch.stack([recurrence(a, u)[0] for u in many])
    )
    graph = make_fx(lambda a, u: recurrence_(a * 1.0, u)[0])(a, u)
    assert torch.ops.indrnn.recurrence.default in [node.target for node in graph.graph.nodes]
    assert_close(graph(2 * a, u), recurrence(2 * a, u)[0])


def test_a_derivative_in_forward_mode_is_refused_with_the_same_words() -> None:
    a, u, *_ = (tensor.detach() for tensor in inputs())
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match=r"indrnn\.recurrence has no forward-mode derivative"),
    ):
        recurrence_(torch.autograd.forward_ad.make_dual(a, a) * 1.0, u)


def norm_loss(overwrite: bool, given: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    a, u, h_0, bias, weight, shift = given
    y, h_last, mean, var = recurrence_norm(a * 1.5, u, weight, shift, h_0, bias=bias, overwrite=overwrite, **options)
    return (y * torch.arange(y.numel()).view(y.shape).cos()).sum() + h_last.square().sum(), y, h_last, mean, var


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["lengths"], OPTIONS["resets"]], ids=str)
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("masked", [False, True], ids=["no dropout", "dropout"])
def test_with_a_norm_the_same_bits(place: str, options: dict[str, Any], dtype: torch.dtype, masked: bool) -> None:
    mask = (torch.arange(B * N).view(1, B, N) % 3 > 0).to(dtype) * 1.5 if masked else None
    results = []
    for overwrite in (True, False):
        given = [*inputs(dtype), *(torch.linspace(0.5, 2.0, N, dtype=dtype).requires_grad_() for _ in range(2))]
        value, *rest = norm_loss(overwrite, given, place=place, mask=mask, **options)
        results.append((*rest, *torch.autograd.grad(value, given)))
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)


def test_with_a_norm_h_takes_the_place_of_x_where_that_is_not_needed() -> None:
    a, u, *_ = (tensor.detach() for tensor in inputs())
    one = torch.ones(N, dtype=torch.float64)
    for place, overwritten in (("after", True), ("before", False)):
        x = a * 2
        recurrence_norm(x, u, one, one, place=place, overwrite=True)
        assert torch.equal(x, recurrence(a * 2, u)[0] if overwritten else a * 2)


def test_with_a_norm_second_derivatives() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((4, 2, 3), (3,), (2, 3), (3,), (3,), (3,))
    given = [torch.rand(shape, generator=generator).double().add_(0.1).requires_grad_() for shape in shapes]

    def function(*given: Tensor) -> Tensor:
        return norm_loss(True, list(given), place="after", activation="tanh")[0]

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


def test_hooks_of_modules_and_checkpoints_go_with_it() -> None:
    """A full backward hook hands a module views of its inputs, which must not be written over."""
    network, x = PlainIndRNN(2, 8, 3), torch.rand(20, 5, 2, requires_grad=True)
    network(x)[0].sum().backward()
    assert x.grad is not None
    expected, x.grad = x.grad, None
    seen = []
    for module in network.recurrent_layers:
        module.register_full_backward_hook(lambda module, *_: seen.append(module))
    torch.utils.checkpoint.checkpoint(lambda x: network(x)[0], x, use_reentrant=False).sum().backward()
    assert seen == network.recurrent_layers[::-1]
    assert_close(x.grad, expected)


def test_bad_arguments_are_named() -> None:
    a, u, *_ = (tensor.detach() for tensor in inputs())
    with pytest.raises(ValueError, match="h_0 must have x's shape"):
        recurrence_(a * 1.0, u, torch.zeros(B, N + 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="lengths must lie between 0 and T = 9"):
        recurrence_(a * 1.0, u, lengths=torch.tensor([1, 2, 10]))


@pytest.mark.parametrize(
    ("unpack", "message"),
    [(lambda t: t.bfloat16(), "grad_h must be of h's type"), (lambda t: t.view(-1), "h must have the shape")],
    ids=["another type", "another shape"],
)
def test_a_saved_tensor_that_a_hook_changed_is_checked(unpack: Any, message: str) -> None:
    """The backward pass trusts the tensors that forward has checked, and no others."""
    a, u, *_ = inputs(torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpack(t) if t.dim() == 3 else t):
        h, _ = recurrence_(a * 1.0, u)
    with pytest.raises((TypeError, ValueError), match=message):
        h.sum().backward()
