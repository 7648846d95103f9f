"""`recurrence`: the checks, the two torch.library ops, and the autograd function around them.

The ops carry no autograd of their own; `_Recurrence` and `_RecurrenceBackward` give first and second derivatives and
the vmap rules. The backend is chosen inside the ops as they run, so a graph that holds them runs wherever indrnn does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import choice, native, reference
from .timeline import timeline

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def recurrence(
    x: Tensor,
    u: Tensor,
    h_0: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: str = "relu",
    reverse: bool = False,
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute h_t = σ(x_t + u ⊙ h_{t−1}) over all time steps, or σ(x_t + b + u ⊙ h_{t−1}) with a bias.

    Differentiable twice in x, u, h_0 and the bias. Only h is kept for the backward pass. Results and gradients are the
    same to the bit from run to run and for any number of threads.

    Args:
        x: (T, B, N), or (T, B, ..., N) with any dimensions between; any strides; float32, float64, bfloat16 or float16.
        u: (N,), the recurrent weight; of x's type, or float32 beside a half type, whose state is kept in float32.
        h_0: (B, ..., N), the state before the first step; zeros if None. Same types as u.
        bias: (N,), added to each step of x, at no cost of its own; none if None. Same types as u.
        activation: "relu", "tanh", "sigmoid" or "identity".
        reverse: go from the last step to the first.
        lengths: (B,), integers in 0..T: the steps of each sequence. Later steps are padding: they give zeros in h and
            in x's gradient, and nothing that stands there matters. With `reverse` a sequence starts at its true end.
        resets: (T, B), bool: zero the state before this step, in the order of processing.
        backend: "native", "reference", "scan" (parallel in time) or "triton" (GPU); None leaves the choice to
            INDRNN_BACKEND, else to what `backends()` shows.

    Returns:
        h (T, B, ..., N), the state after each step, and h_last (B, ..., N), the state after each sequence's last step
        (h_0 for a sequence of length 0). Both contiguous, in x's type.
    """
    if (here := timeline()).is_split:
        return here.recurrence(
            x,
            u,
            h_0,
            bias=bias,
            activation=activation,
            reverse=reverse,
            lengths=lengths,
            resets=resets,
            backend=backend,
        )
    check(x, u, h_0, bias, activation, lengths, resets)
    choice.check_name(backend)
    arguments = (x, u, bias, h_0, lengths, resets, activation, reverse, backend)
    if torch.compiler.is_compiling():
        h, h_last = _Recurrence.apply(*arguments)
        return h, h_last
    try:
        h, h_last = _Recurrence.apply(*arguments)
    except NotImplementedError as error:  # Dynamo does not trace an autograd function with a jvp of its own
        raise NotImplementedError(
            "indrnn.recurrence has no forward-mode derivative (jvp, jacfwd, hessian); "
            "use reverse mode (grad, vjp, jacrev), which it supports twice over"
        ) from error
    return h, h_last


def recurrence_(
    x: Tensor,
    u: Tensor,
    h_0: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: str = "relu",
    reverse: bool = False,
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`recurrence`, to the bit, for an x that is the result of an operation and that nothing else needs.

    Where the C++ kernel serves in eager mode, h takes x's place in memory, and the call costs less.
    """
    given = (x, u, bias, h_0, lengths, resets)
    if can_overwrite(given, activation, backend):
        check(x, u, h_0, bias, activation, lengths, resets)
        try:
            h, h_last = _RecurrenceInPlace.apply(*given, activation, reverse, backend)
        except NotImplementedError:  # a derivative in forward mode: the other has a better message
            pass
        else:
            return h, h_last
    options = {"activation": activation, "reverse": reverse, "backend": backend}
    return recurrence(x, u, h_0, bias=bias, lengths=lengths, resets=resets, **options)  # type: ignore[arg-type]


def can_overwrite(tensors: tuple[Tensor | None, ...], activation: str, backend: str | None) -> bool:
    """Whether the first of the tensors may be computed over by the C++ kernel, called from here."""
    x = tensors[0]
    assert x is not None
    if torch.compiler.is_compiling() or timeline().is_split or _is_watched():
        return False
    if any(tensor is not None and type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors):
        return False
    if x.device.type != "cpu" or not x.is_contiguous() or x._is_view() or x.dtype not in _FLOATS:
        return False
    return choice.choose(x, activation, backend) is native


def _is_watched() -> bool:
    """Whether something sees, or transforms, each operation: a trace, a mode, torch.func."""
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return True
    return torch._C._get_tracing_state() is not None


def check(
    x: Tensor,
    u: Tensor,
    h_0: Tensor | None,
    bias: Tensor | None,
    activation: str,
    lengths: Tensor | None,
    resets: Tensor | None,
) -> None:
    """Raise where an argument cannot be, and name it."""
    given = {"x": x, "u": u, "h_0": h_0, "bias": bias, "lengths": lengths, "resets": resets}
    for name, value in given.items():
        optional = name not in ("x", "u")
        if not (isinstance(value, Tensor) or (optional and value is None)):
            raise TypeError(f"{name} must be a tensor{' or None' if optional else ''}, got {type(value).__name__}")
        if value is not None and value.device != x.device:
            raise ValueError(f"{name} must be on x's device, {x.device}, got one on {value.device}")
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(reference.ACTIVATIONS)}, got {activation!r}")
    if x.dtype not in _FLOATS:
        raise TypeError(f"x must be float32, float64, bfloat16 or float16, got {x.dtype}")
    if x.dim() < 3:
        raise ValueError(f"x must have the shape (T, B, ..., N), at least three dimensions, got {tuple(x.shape)}")
    for name, value in (("u", u), ("bias", bias)):
        if value is not None and (value.dim() != 1 or value.shape[0] != x.shape[-1]):
            expected = f"(N,) = ({x.shape[-1]},), x's last dimension"
            raise ValueError(f"{name} must have the shape {expected}, got {tuple(value.shape)}")
    if h_0 is not None and (h_0.dim() != x.dim() - 1 or h_0.shape != x.shape[1:]):
        raise ValueError(f"h_0 must have x's shape without T, {tuple(x.shape[1:])}, got {tuple(h_0.shape)}")
    for name, value in (("u", u), ("h_0", h_0), ("bias", bias)):
        if value is not None and value.dtype not in (x.dtype, reference.accumulation_dtype(x.dtype)):
            or_float32 = " or float32" if reference.accumulation_dtype(x.dtype) != x.dtype else ""
            raise TypeError(f"{name} must be of x's type, {x.dtype}{or_float32}, got {value.dtype}")
    if lengths is not None:
        if lengths.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"lengths must be int64 or int32, got {lengths.dtype}")
        if lengths.dim() != 1 or lengths.shape[0] != x.shape[1]:
            raise ValueError(f"lengths must have the shape (B,) = ({x.shape[1]},), got {tuple(lengths.shape)}")
    if resets is not None:
        if resets.dtype != torch.bool:
            raise TypeError(f"resets must be bool, got {resets.dtype}")
        if resets.dim() != 2 or resets.shape != x.shape[:2]:
            raise ValueError(f"resets must have the shape (T, B) = {tuple(x.shape[:2])}, got {tuple(resets.shape)}")


def check_lengths(lengths: Tensor | None, T: int) -> None:
    """Raise unless they lie in 0..T: inside the ops, and not on a GPU, where looking would make the host wait."""
    if lengths is not None and lengths.device.type == "cpu" and lengths.numel() > 0:
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > T:
            raise ValueError(f"lengths must lie between 0 and T = {T}, got values from {low} to {high}")


# ---- the two ops

_OPTIONS = "Tensor? lengths, Tensor? resets, str activation, bool reverse, str? backend"
LIBRARY = torch.library.Library("indrnn", "DEF")
LIBRARY.define(
    f"recurrence(Tensor x, Tensor u, Tensor? bias, Tensor? h_0, {_OPTIONS}) -> (Tensor h, Tensor h_last)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.define(
    f"recurrence_backward(Tensor? grad_h, Tensor? grad_h_last, Tensor h, Tensor u, Tensor? h_0, {_OPTIONS})"
    " -> (Tensor grad_x, Tensor grad_u, Tensor grad_bias, Tensor grad_h_0)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _forward(
    x: Tensor,
    u: Tensor,
    bias: Tensor | None,
    h_0: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    activation: str,
    reverse: bool,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    check_lengths(lengths, x.shape[0])
    module = choice.choose(x, activation, backend)
    return module.forward(x, u, bias, h_0, lengths, resets, activation, reverse)  # type: ignore[no-any-return]


def _backward(
    grad_h: Tensor | None,
    grad_h_last: Tensor | None,
    h: Tensor,
    u: Tensor,
    h_0: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    activation: str,
    reverse: bool,
    backend: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    module = choice.choose(h, activation, backend)
    return module.backward(  # type: ignore[no-any-return]
        grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse
    )


def _forward_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[1:])


def _backward_shapes(
    grad_h: Tensor | None, grad_h_last: Tensor | None, h: Tensor, u: Tensor, h_0: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    like = h if h_0 is None else h_0
    return h.new_empty(h.shape), u.new_empty(u.shape), u.new_empty(u.shape), like.new_empty(h.shape[1:])


LIBRARY.impl("recurrence", _forward, "CompositeExplicitAutograd")
LIBRARY.impl("recurrence_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("indrnn::recurrence", _forward_shapes, lib=LIBRARY)
torch.library.register_fake("indrnn::recurrence_backward", _backward_shapes, lib=LIBRARY)


# ---- derivatives and vmap


# Dynamo tells a forward without ctx from one with it by counting parameters, so each is spelt out.


def _of_inputs(
    ctx: Any, h_0: Tensor | None, grad_x: Tensor, grad_u: Tensor, grad_bias: Tensor, grad_h_0: Tensor
) -> tuple[Tensor | None, ...]:
    grad_bias_ = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_x, grad_u, grad_bias_, None if h_0 is None else grad_h_0, *[None] * 5


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor,
        u: Tensor,
        bias: Tensor | None,
        h_0: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        activation: str,
        reverse: bool,
        backend: str | None,
    ) -> tuple[Tensor, Tensor]:
        return torch.ops.indrnn.recurrence(  # type: ignore[no-any-return]
            x, u, bias, h_0, lengths, resets, activation, reverse, backend
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, u, bias, h_0, lengths, resets, *ctx.options = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(output[0], u, h_0, lengths, resets)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_h_last: Tensor | None) -> tuple[Tensor | None, ...]:
        h, u, h_0, lengths, resets = ctx.saved_tensors
        # A compiled graph has no second derivative, and Dynamo does not trace one autograd function inside another.
        function = torch.ops.indrnn.recurrence_backward if torch.compiler.is_compiling() else _RecurrenceBackward.apply
        return _of_inputs(ctx, h_0, *function(grad_h, grad_h_last, h, u, h_0, lengths, resets, *ctx.options))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        x, u, bias, h_0, lengths, resets, *options = args
        x_dim, u_dim, bias_dim, h_0_dim, lengths_dim, resets_dim, *_ = in_dims
        size = info.batch_size
        if lengths_dim is not None or resets_dim is not None:
            return _one_by_one(_Recurrence.apply, size, in_dims, args)
        if u_dim is None and bias_dim is None:  # one more dimension between B and N
            x = _batch_at(x, x_dim, size, 2)
            h_0 = _batch_at(h_0, h_0_dim, size, 1)
            return _Recurrence.apply(x, u, bias, h_0, lengths, resets, *options), (2, 1)
        wide = [_into_neurons(t, dim, size) for t, dim in zip((x, u, bias, h_0), in_dims[:4], strict=True)]
        out = _Recurrence.apply(*wide, lengths, resets, *options)
        return _out_of_neurons(out, size)


class _RecurrenceInPlace(torch.autograd.Function):
    """By the C++ kernel, without the dispatcher; what watches operations does not see this one."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        u: Tensor,
        bias: Tensor | None,
        h_0: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        activation: str,
        reverse: bool,
        backend: str | None,
    ) -> tuple[Tensor, Tensor]:
        check_lengths(lengths, x.shape[0])
        h, h_last = native.forward(x, u, bias, h_0, lengths, resets, activation, reverse, overwrite=True)
        ctx.mark_dirty(x)
        _Recurrence.setup_context(ctx, (x, u, bias, h_0, lengths, resets, activation, reverse, backend), (h, h_last))
        return h, h_last

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_h_last: Tensor | None) -> tuple[Tensor | None, ...]:
        batched = any(g is not None and torch._C._functorch.is_legacy_batchedtensor(g) for g in (grad_h, grad_h_last))
        if torch.is_grad_enabled() or _is_watched() or batched:  # batched: autograd.grad(is_grads_batched=True)
            return _Recurrence.backward(ctx, grad_h, grad_h_last)
        h, u, h_0, lengths, resets = ctx.saved_tensors
        activation, reverse, _ = ctx.options
        gradients = native.backward(grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse)
        return _of_inputs(ctx, h_0, *gradients)


class _RecurrenceBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        grad_h: Tensor | None,
        grad_h_last: Tensor | None,
        h: Tensor,
        u: Tensor,
        h_0: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        activation: str,
        reverse: bool,
        backend: str | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return torch.ops.indrnn.recurrence_backward(  # type: ignore[no-any-return]
            grad_h, grad_h_last, h, u, h_0, lengths, resets, activation, reverse, backend
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, activation, reverse, _ = inputs
        ctx.save_for_backward(*tensors)
        ctx.options = (activation, reverse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients = iter(_RecurrenceDoubleBackward.apply(*grads, *inputs, *ctx.options))
        differentiable = (*inputs[:5], *[None] * 5)  # all but lengths, resets and the options
        return tuple(None if tensor is None else next(gradients) for tensor in differentiable)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        *tensors, lengths, resets, activation, reverse, backend = args
        if in_dims[5] is not None or in_dims[6] is not None:
            return _one_by_one(_RecurrenceBackward.apply, info.batch_size, in_dims, args)
        # u's gradient is wanted for each batch element apart, so u always gets the dimension.
        tensors = [
            _into_neurons(t, dim, info.batch_size) for t, dim in zip(tensors, in_dims[: len(tensors)], strict=True)
        ]
        out = _RecurrenceBackward.apply(*tensors, lengths, resets, activation, reverse, backend)
        return _out_of_neurons(out, info.batch_size)


class _RecurrenceDoubleBackward(torch.autograd.Function):
    """The derivative of the reference's backward pass, for those of its five inputs that are there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        grads, inputs, options = args[:4], args[4:9], args[9:]
        present = [i for i, tensor in enumerate(inputs) if tensor is not None]

        def backward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            by_place = dict(zip(present, tensors, strict=True))
            full: list[Any] = [by_place.get(i) for i in range(5)]
            return reference.backward(*full, *options)

        pull_back = torch.func.vjp(backward, *(inputs[i] for i in present))[1]
        return pull_back(grads)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("indrnn.recurrence can be differentiated twice, and a third derivative was asked for")


def _batch_at(tensor: Tensor | None, dim: int | None, size: int, at: int) -> Tensor | None:
    """Move vmap's dimension to `at`, or make it there."""
    if tensor is None:
        return None
    if dim is not None:
        return tensor.movedim(dim, at)
    return tensor.unsqueeze(at).expand(*tensor.shape[:at], size, *tensor.shape[at:])


def _into_neurons(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """(..., N) to (..., size * N): neurons are independent, so a batch of layers is one wide layer."""
    if tensor is None:
        return None
    at = tensor.dim() - 1 if dim is None else tensor.dim() - 2
    moved = _batch_at(tensor, dim, size, at)
    assert moved is not None
    return moved.flatten(-2)


def _out_of_neurons(tensors: tuple[Tensor, ...], size: int) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    split = tuple(tensor.unflatten(-1, (size, tensor.shape[-1] // size)) for tensor in tensors)
    return split, tuple(tensor.dim() - 2 for tensor in split)


def _one_by_one(
    function: Callable[..., tuple[Tensor, ...]], size: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Where lengths or resets are batched: rare, so plain."""
    results = [
        function(*(a if dim is None else a.select(dim, i) for a, dim in zip(args, in_dims, strict=True)))
        for i in range(size)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)
