"""Everything that `recurrence` promises, for each backend."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from indrnn import backends, recurrence
from indrnn.ops.cpu import kernel

from ..conftest import ACTIVATIONS, BACKENDS, slow_for_triton, smooth
from .problems import NAMES, Problem, assert_same, problem

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"h_0": False, "bias": False},
    "h_0": {"bias": False},
    "bias": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": True},
    "resets": {"resets": True},
    "all": {"reverse": True, "lengths": True, "resets": True, "between": (2,)},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


# ---- values and gradients


@each_kind
def test_agrees_with_autograd_through_the_reference(backend: str, activation: str, kind: dict[str, Any]) -> None:
    p = problem(activation=activation, **kind)
    assert_same(p.solve(backend), p.solve_by_autograd(), rtol=1e-12, atol=1e-12)


@slow_for_triton
@each_kind
def test_gradcheck(backend: str, activation: str, kind: dict[str, Any]) -> None:
    p = problem(3, 2, 2, activation=activation, **kind).with_gradients()

    def f(x: Tensor, u: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        rest = iter(others)
        bias, h_0 = (None if t is None else next(rest) for t in (p.bias, p.h_0))
        return replace(p, x=x, u=u, bias=bias, h_0=h_0).run(backend)

    fast = backend == "triton"  # in a random direction: every number would take the interpreter minutes
    assert torch.autograd.gradcheck(f, p.leaves, fast_mode=fast)
    assert torch.autograd.gradgradcheck(f, p.leaves, fast_mode=fast)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_gradient_is_the_papers_closed_form(backend: str, activation: str, reverse: bool) -> None:
    """∂h_T/∂h_t = u^(T−t) ∏ σ'(z_k), k = t+1 … T, here through x_t: one more σ'."""
    p = problem(11, 2, 5, activation=activation, reverse=reverse).with_gradients()
    h, h_last = p.run(backend)
    gradient = torch.autograd.grad(h_last.sum(), p.x)[0]
    ordered = h.detach().flip(0) if reverse else h.detach()
    slope = {
        "relu": (ordered > 0).double(),
        "tanh": 1 - ordered**2,
        "sigmoid": ordered * (1 - ordered),
        "identity": torch.ones_like(ordered),
    }[activation]
    T = len(ordered)
    closed = torch.stack([p.u.detach() ** (T - 1 - t) * slope[t:].prod(0) for t in range(T)])
    torch.testing.assert_close(gradient, closed.flip(0) if reverse else closed, rtol=1e-12, atol=1e-14)


@slow_for_triton
@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_five_thousand_steps_with_u_at_the_bound(backend: str, gamma: float) -> None:
    T = 5000
    bound = gamma ** (1 / T)
    x = torch.rand(T, 3, 8).div_(100).requires_grad_()
    u = torch.full((8,), bound, requires_grad=True)
    h, h_last = recurrence(x, u, backend=backend)
    h_last.sum().backward()
    assert x.grad is not None
    assert u.grad is not None
    assert h.isfinite().all()
    assert u.grad.isfinite().all()
    # Every neuron is active, so ∂h_T/∂x_0 = u^(T−1): float32's u, in float64's power.
    closed = u.detach().double() ** (T - 1)
    torch.testing.assert_close(x.grad[0].double(), closed.expand(3, 8), rtol=1e-4, atol=0)


@slow_for_triton
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_shape_strides_lengths_and_resets(backend: str, data: st.DataObject) -> None:
    size = st.sampled_from([0, 1, 2, 3, 7, 9, 17])
    T, B, N = data.draw(size, "T"), data.draw(size, "B"), data.draw(st.sampled_from([1, 2, 7, 8, 33]), "N")
    between = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2), "between"))
    p = problem(
        T,
        B,
        N,
        between,
        activation=data.draw(
            st.sampled_from([each for each in ACTIVATIONS if backends(None, each)[backend].available]), "activation"
        ),
        reverse=data.draw(st.booleans(), "reverse"),
        bias=data.draw(st.booleans(), "bias"),
        h_0=data.draw(st.booleans(), "h_0"),
        lengths=data.draw(st.booleans(), "lengths"),
        resets=data.draw(st.booleans(), "resets"),
        seed=data.draw(st.integers(0, 1000), "seed"),
    )
    stride = st.sampled_from([_as_it_is, _transposed, _every_second, _backwards_in_memory])
    p.x, p.grad_h = data.draw(stride, "strides of x")(p.x), data.draw(stride, "strides of grad_h")(p.grad_h)
    if p.resets is not None:
        p.resets = data.draw(stride, "strides of resets")(p.resets)
    assert_same(p.solve(backend), p.solve_by_autograd(), rtol=1e-12, atol=1e-12)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _transposed(x: Tensor) -> Tensor:
    """The same numbers with the batch first in memory, as `batch_first` users have them."""
    return x.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)


def _every_second(x: Tensor) -> Tensor:
    """The same numbers with gaps between them along the last dimension."""
    wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


def _backwards_in_memory(x: Tensor) -> Tensor:
    order = list(reversed(range(x.dim())))
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(order)


def test_expanded_input_and_gradients(backend: str) -> None:
    p = problem(6, 5, 9)
    p.x, p.grad_h = p.x[:1, :1].expand(6, 5, 9), p.grad_h[0, 0, 0].expand(6, 5, 9)
    same = replace(p, x=p.x.contiguous(), grad_h=p.grad_h.contiguous())
    assert_same(p.solve(backend), same.solve(backend), rtol=0, atol=0)


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (0, 1, 3, 2), (0, 2, 3, 1), (0, 1, 3, 4, 2)], ids=str)
def test_results_are_contiguous_whatever_the_strides_of_x(backend: str, order: tuple[int, ...]) -> None:
    """As the op's shapes say to a compiler, which would read other strides wrongly."""
    shape = (6, 3, 2, 5, 4)[-len(order) :]
    back = [order.index(i) for i in range(len(order))]
    x = torch.randn([shape[i] for i in order]).permute(back).requires_grad_()
    h_0 = torch.randn(shape[:0:-1]).permute(*reversed(range(len(shape) - 1))).requires_grad_()
    h, h_last = recurrence(x, torch.rand(4), h_0, backend=backend)
    op = (h, h_last, h.detach(), torch.rand(4), h_0.detach(), None, None, "relu", False, backend)
    gradients = torch.ops.indrnn.recurrence_backward(*op)
    assert all(result.is_contiguous() for result in (h, h_last, *gradients))


@pytest.mark.parametrize("used", ["h", "h_last"])
def test_a_loss_on_one_of_the_two_results(backend: str, used: str) -> None:
    p = problem()
    q = p.with_gradients()
    h, h_last = q.run(backend)
    one, weight = (h, p.grad_h) if used == "h" else (h_last, p.grad_h_last)
    gradients = list(torch.autograd.grad(one, q.leaves, weight))
    (p.grad_h_last if used == "h" else p.grad_h).zero_()
    both = p.solve(backend)
    assert_same([h.detach(), h_last.detach(), *gradients], both, rtol=0, atol=0)


def test_results_have_storage_of_their_own(backend: str) -> None:
    for T in (0, 1, 4):
        p = problem(T)
        h, h_last = p.run(backend)
        expected = h_last.clone()
        h.fill_(torch.nan)
        assert p.h_0 is not None
        p.h_0.fill_(torch.nan)
        torch.testing.assert_close(h_last, expected, rtol=0, atol=0)
        assert h.is_contiguous()
        assert h_last.is_contiguous()


@pytest.mark.parametrize("shape", [(0, 3, 5), (4, 0, 5), (0, 0, 5), (4, 3, 0), (4, 3, 0, 5)], ids=str)
def test_empty(backend: str, shape: tuple[int, ...]) -> None:
    T, B, *between, N = shape
    p = problem(T, B, N, tuple(between))
    h, h_last, grad_x, grad_u, grad_bias, grad_h_0 = p.solve(backend)
    assert h.shape == grad_x.shape == shape
    assert grad_u.equal(torch.zeros_like(p.u))
    assert grad_bias.equal(torch.zeros_like(p.u))
    if T == 0:
        assert p.h_0 is not None
        assert h_last.equal(p.h_0)
        assert grad_h_0.equal(p.grad_h_last)


# ---- lengths and resets


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_each_sequence_as_if_alone(backend: str, activation: str, reverse: bool) -> None:
    p = problem(9, 6, 5, activation=activation, reverse=reverse)
    p.lengths = torch.tensor([9, 0, 1, 4, 8, 0])
    h, h_last, grad_x, grad_u, grad_bias, grad_h_0 = p.solve(backend)
    assert p.h_0 is not None
    alone_u, alone_bias = torch.zeros_like(grad_u), torch.zeros_like(grad_bias)
    for b, length in enumerate(p.lengths.tolist()):
        row = slice(b, b + 1)
        q = replace(
            p,
            x=p.x[:length, row],
            h_0=p.h_0[row],
            lengths=None,
            grad_h=p.grad_h[:length, row],
            grad_h_last=p.grad_h_last[row],
        )
        alone = q.solve(backend)
        assert_same([h[:length, row], h_last[row], grad_x[:length, row]], alone[:3], rtol=1e-12, atol=1e-12)
        assert h[length:, b].eq(0).all()
        assert grad_x[length:, b].eq(0).all()
        torch.testing.assert_close(grad_h_0[row], alone[5], rtol=1e-12, atol=1e-12)
        alone_u += alone[3]
        alone_bias += alone[4]
    assert_same([grad_u, grad_bias], [alone_u, alone_bias])


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    "filling", [float("nan"), *(pytest.param(each, marks=slow_for_triton) for each in (float("inf"), 1e300))], ids=str
)
def test_what_stands_in_the_padding_changes_nothing(
    backend: str, activation: str, reverse: bool, filling: float
) -> None:
    p = problem(8, 5, 7, activation=activation, reverse=reverse, lengths=True, resets=True)
    assert p.lengths is not None
    assert p.resets is not None
    clean = p.solve(backend)
    padding = torch.arange(8).unsqueeze(1) >= p.lengths
    p.x[padding] = p.grad_h[padding] = filling
    p.resets[padding] = ~p.resets[padding]
    assert_same(p.solve(backend), clean, rtol=0, atol=0)
    # and in the second derivative
    assert_same(_second_derivatives(p, backend), _second_derivatives(p, backend, padding), rtol=0, atol=0)


def _second_derivatives(p: Problem, backend: str, padding: Tensor | None = None) -> list[Tensor]:
    if padding is not None:
        mask = padding.unsqueeze(-1)
        p = replace(p, x=p.x.masked_fill(mask, 0.0), grad_h=p.grad_h.masked_fill(mask, 0.0))
    q = p.with_gradients()
    first = torch.autograd.grad(q.run(backend), q.leaves, (p.grad_h, p.grad_h_last), create_graph=True)
    return list(torch.autograd.grad(torch.stack([g.sin().sum() for g in first]).sum(), q.leaves))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_reset_cuts_a_sequence_in_two(backend: str, reverse: bool) -> None:
    p = problem(8, 1, 5, reverse=reverse)
    p.resets = torch.zeros(8, 1, dtype=torch.bool)
    p.resets[4 if reverse else 5] = True
    parts = [replace(p, x=p.x[:5], resets=None), replace(p, x=p.x[5:], resets=None)]
    parts[0 if reverse else 1].h_0 = None  # the part entered by the reset
    h, h_last = p.run(backend)
    runs = [part.run(backend) for part in parts]
    tolerance = 1e-14 if backend == "scan" else 0  # whose chunks are cut elsewhere
    torch.testing.assert_close(h, torch.cat([runs[0][0], runs[1][0]]), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(h_last, runs[0 if reverse else 1][1], rtol=tolerance, atol=tolerance)


def test_a_reset_clears_nan_and_stops_its_gradient(backend: str) -> None:
    p = problem(6, 2, 3)
    p.resets = torch.zeros(6, 2, dtype=torch.bool)
    p.resets[3] = True
    p.x[1] = torch.nan
    h, h_last, grad_x, *_ = p.solve(backend)
    assert h[1:3].isnan().all()
    assert h[3:].isfinite().all()
    assert h_last.isfinite().all()
    assert grad_x[3:].isfinite().all()


def test_int32_lengths_serve_as_well(backend: str) -> None:
    p = problem(lengths=True)
    assert p.lengths is not None
    assert_same(replace(p, lengths=p.lengths.int()).solve(backend), p.solve(backend), rtol=0, atol=0)


@pytest.mark.parametrize("values", [[-1, 2], [0, 8]], ids=["negative", "beyond T"])
def test_lengths_out_of_range_are_refused_inside_the_op(backend: str, values: list[int]) -> None:
    p = replace(problem(7, 2), lengths=torch.tensor(values))
    with pytest.raises(ValueError, match=r"lengths must lie between 0 and T = 7"):
        p.run(backend)
    with pytest.raises(ValueError, match=r"lengths must lie between 0 and T = 7"):
        torch.ops.indrnn.recurrence(p.x, p.u, None, p.h_0, p.lengths, None, "relu", False, backend)


# ---- types


@slow_for_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("float32_u", [False, True], ids=["u half", "u float32"])
def test_half_types_are_float32_inside(backend: str, activation: str, dtype: torch.dtype, float32_u: bool) -> None:
    """The result is the float32 result rounded once; gradients too, but for what rounding h alone changes."""
    p = problem(33, 3, 9, activation=activation, dtype=dtype, lengths=True, resets=True)
    if float32_u:
        p.u = (torch.rand(9) * 2.2 - 1.1).float()
    full = p.to(torch.float32).solve(backend)
    half = p.solve(backend)
    assert [t.dtype for t in half] == [dtype, dtype, dtype, p.u.dtype, dtype, dtype]
    # One unit in the last place: the two libraries' tanh and sigmoid may round to either side of a tie. And Triton's
    # interpreter cuts off to bfloat16 where GPUs round.
    ulp = torch.finfo(dtype).eps
    inexact = activation in ("tanh", "sigmoid") or (backend == "triton" and dtype == torch.bfloat16)
    assert_same(half[:2], [t.to(dtype) for t in full[:2]], rtol=ulp if inexact else 0, atol=0)
    for name, a, e in zip(NAMES[2:], half[2:], full[2:], strict=True):
        error = (a.float() - e).abs().max() / e.abs().max()
        assert error < 8 * ulp, f"{name}: {error}"


def test_float32_agrees_to_its_precision(backend: str, activation: str) -> None:
    p = problem(50, 4, 19, activation=activation, dtype=torch.float32)
    p.u = p.u.clamp(-1, 1)
    double = p.to(torch.float64).solve("reference")
    assert_same(p.solve(backend), [t.float() for t in double], rtol=1e-5, atol=1e-5)


@slow_for_triton
def test_under_autocast_u_stays_float32(backend: str) -> None:
    """784 steps with u between bfloat16's two nearest numbers, 0.9961 and 1: either would be off by factors."""
    u = torch.full((3,), 0.998, requires_grad=True)
    linear = torch.nn.Linear(1, 3)
    with torch.autocast("cpu", torch.bfloat16):
        x = linear(torch.zeros(784, 2, 1))
        assert x.dtype == torch.bfloat16
        h, h_last = recurrence(x * 0, u, torch.ones(2, 3), activation="identity", backend=backend)
    assert h.dtype == torch.bfloat16
    torch.testing.assert_close(h_last.float(), torch.full((2, 3), 0.998**784), rtol=4e-3, atol=0)
    h_last.sum().backward()
    assert u.grad is not None
    assert u.grad.dtype == torch.float32


@slow_for_triton
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nan_and_inf_come_out_where_the_equation_puts_them(
    backend: str, activation: str, value: float, dtype: torch.dtype
) -> None:
    for name, place in (
        ("x", (2, 1, 4)),
        ("u", (4,)),
        ("bias", (4,)),
        ("h_0", (1, 4)),
        ("grad_h", (2, 1, 4)),
        ("grad_h_last", (1, 4)),
    ):
        p = problem(6, 2, 9, activation=activation, dtype=dtype, resets=True)
        getattr(p, name)[place] = value
        for result, a, e in zip(NAMES, p.solve(backend), p.solve_by_autograd(), strict=True):
            untouched = torch.arange(9) != 4  # neurons are independent
            assert a[..., untouched].isfinite().all(), f"{name} in {result}"
            if result in ("h", "h_last") or activation == "relu":
                assert a.isnan().equal(e.isnan()), f"{name} in {result}"
                assert a.isinf().equal(e.isinf()), f"{name} in {result}"
        if value != value and name == "x":
            h = p.run(backend)[0]
            assert h[2, 1, 4].isnan()
            assert h[:2].isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_nan_and_inf_are_the_same_on_all_backends(backend: str, activation: str, value: float) -> None:
    for name, place in (
        ("x", (2, 1, 4)),
        ("u", (4,)),
        ("bias", (4,)),
        ("h_0", (1, 4)),
        ("grad_h", (2, 1, 4)),
        ("grad_h_last", (1, 4)),
    ):
        p = problem(6, 2, 9, activation=activation, resets=True, lengths=True)
        getattr(p, name)[place] = value
        assert_same(p.solve(backend), p.solve("reference"), rtol=1e-12, atol=1e-12)


# ---- the same bits every time


@slow_for_triton
def test_same_bits_from_run_to_run_and_for_any_number_of_threads(backend: str, activation: str) -> None:
    p = problem(300, 13, 67, activation=activation, dtype=torch.float32, lengths=True)
    threads = torch.get_num_threads()
    try:
        runs = []
        for n in (1, 2, 2, 3):
            torch.set_num_threads(n)
            runs.append(p.solve(backend))
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert_same(other, runs[0], rtol=0, atol=0)


# ---- memory


def test_only_h_is_kept_for_backward(backend: str) -> None:
    p = problem(50, 4, 32, lengths=True).with_gradients()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        h, _ = p.run(backend)
    large = [t for t in kept if t.numel() >= p.x.numel()]
    assert [t.data_ptr() for t in large] == [h.data_ptr()]


def test_offsets_past_two_to_the_31(backend: str) -> None:
    """Two steps that lie 2^31 numbers apart; the memory between is never touched, so it costs nothing."""
    p = problem(2, 1, 7, dtype=torch.float32)
    try:
        far = p.x.new_empty(2, 2**31)[:, :7].unsqueeze(1)
    except RuntimeError as error:
        pytest.skip(f"this machine does not lend 16 GiB of address space: {error}")
    far.copy_(p.x)
    assert_same(replace(p, x=far).solve(backend), p.solve(backend), rtol=0, atol=0)


@pytest.mark.slow
def test_more_than_two_to_the_31_numbers() -> None:
    N = 64
    T = 2**31 // N + 3
    x = torch.full((1, 1, N), 0.5, dtype=torch.bfloat16).expand(T, 1, N)
    try:
        h, h_last = recurrence(x, torch.full((N,), 0.5), activation="identity", backend="native")
    except RuntimeError as error:
        pytest.skip(f"needs 4.3 GB of memory: {error}")
    assert h.numel() > 2**31
    assert h_last.eq(1).all()
    assert h[-1].eq(1).all()
    assert h[T // 2].eq(1).all()
    assert h[0].eq(0.5).all()


# ---- torch's transformations


@slow_for_triton
@each_kind
def test_opcheck(backend: str, kind: dict[str, Any]) -> None:
    p = problem(activation=smooth(backend), **kind)
    options = (p.lengths, p.resets, p.activation, p.reverse, backend)
    torch.library.opcheck(torch.ops.indrnn.recurrence.default, (p.x, p.u, p.bias, p.h_0, *options))
    h, _ = p.run(backend)
    torch.library.opcheck(
        torch.ops.indrnn.recurrence_backward.default, (p.grad_h, p.grad_h_last, h, p.u, p.h_0, *options)
    )
    torch.library.opcheck(torch.ops.indrnn.recurrence_backward.default, (None, None, h, p.u, p.h_0, *options))


@slow_for_triton
@pytest.mark.parametrize("kind", [KINDS["h_0"], KINDS["all"]], ids=["h_0", "all"])
def test_compiles_whole_with_dynamic_sizes(backend: str, kind: dict[str, Any]) -> None:
    torch._dynamo.reset()

    def f(p: Problem) -> Tensor:
        h, h_last = p.run(backend)
        # A transposed, an expanded and a plain gradient come back to h.
        return (h.transpose(0, 1).sin() * 2).sum() + h.sum() + h_last.square().sum()

    compiled = torch.compile(f, fullgraph=True, dynamic=True)
    for T, B in ((4, 3), (9, 2), (5, 7)):
        p = problem(T, B, 6, activation=smooth(backend), **kind).with_gradients()
        q = p.with_gradients()
        expected, actual = f(p), compiled(q)
        torch.testing.assert_close(actual, expected)
        assert_same(
            list(torch.autograd.grad(actual, q.leaves)),
            list(torch.autograd.grad(expected, p.leaves)),
        )


@pytest.mark.parametrize("needs_gradient", [False, True], ids=["no gradient", "gradient"])
@pytest.mark.parametrize("grad_mode", [False, True], ids=["no_grad", "grad"])
def test_compiles_whole_with_and_without_gradients(backend: str, needs_gradient: bool, grad_mode: bool) -> None:
    torch._dynamo.reset()
    p = problem()
    p = p.with_gradients() if needs_gradient else p
    compiled = torch.compile(lambda: p.run(backend), fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(grad_mode):
        assert_same(list(compiled()), list(p.run(backend)), rtol=0, atol=0)


def test_exports_with_dynamic_time(backend: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            return recurrence(x, u)

    x, u = torch.randn(5, 3, 7), torch.rand(7)
    exported = torch.export.export(Model(), (x, u), dynamic_shapes={"x": {0: torch.export.Dim("T")}, "u": None})
    assert any(node.target is torch.ops.indrnn.recurrence.default for node in exported.graph.nodes)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    longer = torch.randn(11, 3, 7)
    expected = list(recurrence(longer, u, backend=backend))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INDRNN_BACKEND", backend)  # chosen when it runs, not when it was exported
        if backend != "native":
            patch.setattr(kernel, "library", lambda: kernel.MISSING)
        assert_same(list(loaded(longer, u)), expected)


def _loss(backend: str, **options: Any) -> Callable[..., Tensor]:
    def loss(x: Tensor, u: Tensor, bias: Tensor, h_0: Tensor, **more: Any) -> Tensor:
        h, h_last = recurrence(x, u, h_0, bias=bias, activation=smooth(backend), backend=backend, **options, **more)
        return h.square().sum() + h_last.sin().sum()

    return loss


def test_func_grad(backend: str) -> None:
    p = problem(5, 3, 4).with_gradients()
    assert p.h_0 is not None
    loss = _loss(backend)
    actual = grad(loss, (0, 1, 2, 3))(*p.leaves)
    expected = torch.autograd.grad(loss(*p.leaves), p.leaves)
    assert_same([t.detach() for t in actual], list(expected))


@slow_for_triton
@pytest.mark.parametrize(
    "in_dims",
    [(0, None, None, None), (1, None, None, 0), (None, 0, None, None), (None, None, 1, None), (3, 1, 0, 2)],
    ids=str,
)
def test_vmap_and_vmap_of_grad(backend: str, in_dims: tuple[int | None, ...]) -> None:
    """Over inputs (per-example gradients), over u (ensembles), and over all at once."""
    E = 4
    problems = [problem(5, 3, 2, seed=i) for i in range(E)]
    loss = _loss(backend, lengths=torch.tensor([5, 0, 3]), resets=torch.rand(5, 3) < 0.2)
    arguments = [
        leaves[0] if dim is None else torch.stack(leaves, dim)
        for leaves, dim in zip(zip(*(p.leaves for p in problems), strict=True), in_dims, strict=True)
    ]

    def one(i: int) -> list[Tensor]:
        return [a if dim is None else a.select(dim, i) for a, dim in zip(arguments, in_dims, strict=True)]

    torch.testing.assert_close(vmap(loss, in_dims)(*arguments), torch.stack([loss(*one(i)) for i in range(E)]))
    gradient = grad(loss, (0, 1, 2, 3))
    expected = [torch.stack(parts) for parts in zip(*(gradient(*one(i)) for i in range(E)), strict=True)]
    assert_same(list(vmap(gradient, in_dims)(*arguments)), expected)


def test_vmap_over_none_at_all(backend: str) -> None:
    x, us = torch.rand(5, 3, 4), torch.rand(0, 4)

    def f(u: Tensor) -> Tensor:
        return recurrence(x, u, backend=backend)[0]

    assert torch.vmap(f)(us).shape == (0, 5, 3, 4)
    assert torch.vmap(torch.func.grad(lambda u: f(u).sum()))(us).shape == (0, 4)


def test_vmap_over_lengths_and_resets(backend: str) -> None:
    p = problem(5, 3, 2)
    lengths, resets = torch.randint(0, 6, (4, 3)), torch.rand(4, 5, 3) < 0.3
    gradient = grad(_loss(backend), (0, 1, 2, 3))

    def f(lengths: Tensor, resets: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient(*p.leaves, lengths=lengths, resets=resets))

    expected = [torch.stack(parts) for parts in zip(*map(f, lengths, resets), strict=True)]
    assert_same(list(vmap(f)(lengths, resets)), expected)


def test_an_ensemble_of_modules(backend: str) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.u = torch.nn.Linear(3, 5), torch.nn.Parameter(torch.rand(5))

        def forward(self, x: Tensor) -> Tensor:
            return recurrence(self.linear(x), self.u, backend=backend)[0]

    models = [Model() for _ in range(3)]
    stacked = torch.func.stack_module_state(models)
    x = torch.randn(6, 2, 3)
    together = vmap(lambda *state: functional_call(models[0], state, (x,)))(*stacked)
    torch.testing.assert_close(together, torch.stack([model(x) for model in models]))


def test_second_derivatives_through_func(backend: str) -> None:
    p = problem(4, 2, 3)
    loss = _loss(backend)

    def of_u(u: Tensor) -> Tensor:
        return loss(p.x, u, *p.leaves[2:])

    by_autograd = torch.autograd.functional.hessian(of_u, p.u)
    torch.testing.assert_close(jacrev(jacrev(of_u))(p.u), by_autograd)


def test_second_derivatives_within_hooks_of_saved_tensors(backend: str) -> None:
    """torch.func, which they went by, refuses to work there."""

    def second(x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        h, _ = recurrence(x, u, activation=smooth(backend), backend=backend)
        (gradient,) = torch.autograd.grad(h.pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (x, u))

    p = problem(5, 3, 4).with_gradients()
    expected = second(p.x, p.u)
    with torch.autograd.graph.save_on_cpu():
        actual = second(p.x, p.u)
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_second_derivatives_of_nothing(backend: str) -> None:
    x, u = torch.zeros(0, 3, 4, requires_grad=True), torch.rand(4, requires_grad=True)
    h_0 = torch.rand(3, 4, requires_grad=True)
    results = recurrence(x, u, h_0, backend=backend)
    first = torch.autograd.grad([r.pow(3).sum() for r in results], (x, u, h_0), create_graph=True)
    second = torch.autograd.grad([g.square().sum() for g in first], (u, h_0))
    torch.testing.assert_close(second, (torch.zeros(4), 36 * h_0.detach() ** 3))


def test_a_third_derivative_raises(backend: str) -> None:
    p = problem(4, 2, 3, activation=smooth(backend)).with_gradients()
    first = torch.autograd.grad(p.run(backend)[0].square().sum(), p.u, create_graph=True)[0].sum()
    second = torch.autograd.grad(first, p.u, create_graph=True)[0].sum()
    with pytest.raises(RuntimeError, match="a third derivative was asked for"):
        torch.autograd.grad(second, p.u)


@pytest.mark.parametrize("transform", ["jvp", "hessian"])
def test_forward_mode_raises(backend: str, transform: str) -> None:
    p = problem(4, 2, 3)

    def f(u: Tensor) -> Tensor:
        return recurrence(p.x, u, backend=backend)[0].sum()

    with pytest.raises(NotImplementedError, match=r"indrnn\.recurrence has no forward-mode derivative"):
        jvp(f, (p.u,), (p.u,)) if transform == "jvp" else hessian(f)(p.u)


def test_inference_mode(backend: str) -> None:
    p = problem()
    expected = list(p.run(backend))
    with torch.inference_mode():
        actual = p.run(backend)
    assert all(t.is_inference() for t in actual)
    assert_same(list(actual), expected, rtol=0, atol=0)


# ---- bad input

GOOD: dict[str, Any] = {"x": torch.zeros(4, 3, 5), "u": torch.zeros(5)}
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "x no tensor": ({"x": [1.0]}, TypeError, "x must be a tensor, got list"),
    "x integer": ({"x": torch.zeros(4, 3, 5, dtype=torch.int64)}, TypeError, "x must be float32.*got torch.int64"),
    "x two dimensions": ({"x": torch.zeros(4, 5)}, ValueError, r"x must have the shape \(T, B, ..., N\).*\(4, 5\)"),
    "u too short": ({"u": torch.zeros(4)}, ValueError, r"u must have the shape \(N,\) = \(5,\).*\(4,\)"),
    "u a matrix": ({"u": torch.zeros(5, 5)}, ValueError, r"u must have the shape \(N,\)"),
    "u double": ({"u": torch.zeros(5).double()}, TypeError, "u must be of x's type, torch.float32, got torch.float64"),
    "u half of x": ({"u": torch.zeros(5).half()}, TypeError, "u must be of x's type"),
    "u on meta": ({"u": torch.zeros(5, device="meta")}, ValueError, "u must be on x's device, cpu, got one on meta"),
    "h_0 shape": ({"h_0": torch.zeros(5)}, ValueError, r"h_0 must have x's shape without T, \(3, 5\), got \(5,\)"),
    "h_0 list": ({"h_0": [0.0]}, TypeError, "h_0 must be a tensor or None, got list"),
    "bias shape": ({"bias": torch.zeros(4)}, ValueError, r"bias must have the shape \(N,\) = \(5,\).*\(4,\)"),
    "bias double": ({"bias": torch.zeros(5).double()}, TypeError, "bias must be of x's type, torch.float32"),
    "activation": ({"activation": "gelu"}, ValueError, "activation must be one of relu, .*got 'gelu'"),
    "lengths float": ({"lengths": torch.ones(3)}, TypeError, "lengths must be int64 or int32, got torch.float32"),
    "lengths shape": ({"lengths": torch.ones(4).long()}, ValueError, r"lengths must have the shape \(B,\) = \(3,\)"),
    "lengths list": ({"lengths": [4, 4, 4]}, TypeError, "lengths must be a tensor or None, got list"),
    "resets int": ({"resets": torch.zeros(4, 3).long()}, TypeError, "resets must be bool, got torch.int64"),
    "resets shape": (
        {"resets": torch.zeros(3, 4).bool()},
        ValueError,
        r"resets must have the shape \(T, B\) = \(4, 3\)",
    ),
    "backend": (
        {"backend": "cuda"},
        ValueError,
        "backend must be one of None, 'native', 'reference', 'scan', 'triton', got 'cuda'",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        recurrence(**{**GOOD, **change})
