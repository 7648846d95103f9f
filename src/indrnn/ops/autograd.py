"""First and second derivatives of the recurrence, alone and with batch norm, and the vmap rules.

Two ways lead to the passes of a backend, with the same numbers:

- The registered ops, for whatever sees or transforms operations: compilers, torch.func, exported graphs.
- `direct`, past the dispatcher: for eager calls that nothing watches, which may also overwrite x.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import library, reference
from .calls import Backward, Forward, NormBackward, NormForward, NormResult, dense
from .watched import are_batched, are_plain, is_transformed, is_watched

Batched = tuple[Any, Any]
"""Results of a batch of calls, and the places of the batch in them."""
Rule = Callable[..., Batched]
OPS = torch.ops.indrnn


def differentiable(
    name: str, keep: Callable[..., None], derivative: Callable[..., tuple[Tensor | None, ...]], rule: Rule
) -> Callable[..., Any]:
    """Give a registered op a derivative and a vmap rule; return a function that calls the op.

    Under torch.func and in forward mode it calls an autograd function around the op: torch.func does not take the
    derivatives of torch.library, and in forward mode these would be dropped without a word. `keep`, `derivative` and
    `rule` are its `setup_context`, `backward` and `vmap`, this with the function that is batched before its arguments.
    """
    op = getattr(OPS, name)

    class Function(torch.autograd.Function):
        forward = staticmethod(op)
        setup_context = staticmethod(keep)
        backward = staticmethod(derivative)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(
                "indrnn.recurrence has no forward-mode derivative (jvp, jacfwd, hessian); "
                "use reverse mode (grad, vjp, jacrev), which it supports twice over"
            )

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Batched:
            return rule(Function.apply, info, in_dims, *args)

    def call(*args: Any) -> Any:
        return Function.apply(*args) if is_transformed() else op(*args)

    torch.library.register_autograd(f"indrnn::{name}", derivative, setup_context=keep, lib=library.LIBRARY)
    torch.library.register_vmap(f"indrnn::{name}", lambda *args: rule(op, *args), lib=library.LIBRARY)
    return call


def direct(
    kind: type[Forward | NormForward], keep: Callable[..., None], derivative: Callable[..., tuple[Tensor | None, ...]]
) -> Callable[..., Any]:
    """A function that calls a backend without the dispatcher; what watches operations does not see it.

    It takes whether x is overwritten, then the arguments of the op, which make a call of this kind. `keep` and
    `derivative` are those of the op; told `direct`, the derivative calls a backend too if nothing watches.
    """

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, overwrite: bool, *inputs: Any) -> tuple[Tensor, ...]:
            output = tuple(library.run(kind(*inputs[:-1]), inputs[-1], in_place=overwrite))
            if overwrite:
                ctx.mark_dirty(inputs[0])
            keep(ctx, inputs, output)
            ctx.overwritten = overwrite
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            return None, *derivative(ctx, *gradients, direct=True)

    return Direct.apply


# ---- batches of calls


def _batch_at(tensor: Tensor | None, dim: int | None, size: int, at: int) -> Tensor | None:
    """Move vmap's dimension to `at`, or insert it there."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape).movedim(0, at) if dim is None else tensor.movedim(dim, at)


def _by_neurons(function: Any, info: Any, in_dims: tuple[Any, ...], *args: Any, tensors: int, u: int) -> Batched:
    """A batch of calls as one of a wide layer, for neurons are independent: (..., N) becomes (..., size * N).

    Of the arguments the first are these `tensors`, among them u at this place; then come lengths and resets.
    """
    if in_dims[tensors] is not None or in_dims[tensors + 1] is not None:
        return _one_by_one(function, info, in_dims, *args)
    size = info.batch_size
    moved = (_batch_at(tensor, dim, size, -2) for tensor, dim in zip(args[:tensors], in_dims[:tensors], strict=True))
    wide = [None if tensor is None else tensor.flatten(-2) for tensor in moved]
    N = args[u].shape[-1 if in_dims[u] is None else 1 - in_dims[u]]  # which size * N does not give if the size is 0
    split = tuple(result.unflatten(-1, (size, N)) for result in function(*wide, *args[tensors:]))
    return split, tuple(result.dim() - 2 for result in split)


def _one_by_one(function: Any, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Batched:
    """A batch of calls as a loop, for batched lengths or resets, which are rare, and norms, with statistics of one."""
    pairs = [*zip(args, in_dims, strict=True)]
    of_one = ([a if dim is None else a.select(dim, i) for a, dim in pairs] for i in range(info.batch_size))
    stacked = tuple(torch.stack(parts) for parts in zip(*(function(*call) for call in of_one), strict=True))
    return stacked, (0,) * len(stacked)


# ---- forward


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep h, and nothing else of its size."""
    _, u, bias, h_0, lengths, resets, *ctx.options = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(output[0], u, h_0, lengths, resets)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, grad_h: Tensor | None, grad_h_last: Tensor | None, *, direct: bool = False
) -> tuple[Tensor | None, ...]:
    """The gradients of the nine inputs: by a backend if nothing watches now and no derivative of it is needed."""
    by_op = not direct or torch.is_grad_enabled() or is_watched() or are_batched(grad_h, grad_h_last)
    h, u, h_0, lengths, resets = ctx.saved_tensors
    inputs = (dense(grad_h), dense(grad_h_last), h, u, h_0, lengths, resets, *ctx.options)
    if by_op or not are_plain(*inputs[:7]):  # a gradient, or what a saved tensor's hook returned
        gradients = recurrence_backward(*inputs)
    else:
        gradients = library.run(Backward(*inputs[:-1]), inputs[-1], in_place=ctx.overwritten)
    grad_x, grad_u, grad_bias, grad_h_0 = gradients
    if ctx.bias_dtype is None or grad_bias.dtype != ctx.bias_dtype:
        grad_bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_x, grad_u, grad_bias, None if h_0 is None else grad_h_0, *[None] * 5


def _vmap_forward(function: Any, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Batched:
    x, u, bias, h_0, *others = args
    x_dim, u_dim, bias_dim, h_0_dim, *other_dims = in_dims
    if any(dim is not None for dim in (u_dim, bias_dim, *other_dims)):
        return _by_neurons(function, info, in_dims, *args, tensors=4, u=1)
    # One more dimension between B and N
    x, h_0 = _batch_at(x, x_dim, info.batch_size, 2), _batch_at(h_0, h_0_dim, info.batch_size, 1)
    return function(x, u, bias, h_0, *others), (2, 1)


recurrence = differentiable("recurrence", _keep, _backward, _vmap_forward)
recurrence_direct = direct(Forward, _keep, _backward)


# ---- backward


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, activation, reverse, _ = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = (activation, reverse)


def _second_derivative(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    gradients = iter(_DoubleBackward.apply(*grads, *inputs, *ctx.options))
    differentiable = (*inputs[:5], *[None] * 5)  # all but lengths, resets and the options
    return tuple(None if tensor is None else next(gradients) for tensor in differentiable)


class _DoubleBackward(torch.autograd.Function):
    """The derivative of the reference's backward pass, for those of its five inputs that are given."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        grads, inputs, options = args[:4], args[4:9], args[9:]
        present = [i for i, tensor in enumerate(inputs) if tensor is not None]

        def backward(*tensors: Tensor) -> tuple[Tensor, ...]:
            by_place = dict(zip(present, tensors, strict=True))
            full: list[Any] = [by_place.get(i) for i in range(5)]
            return reference.backward(Backward(*full, *options))

        if torch._C._are_functorch_transforms_active():
            pull_back = torch.func.vjp(backward, *(inputs[i] for i in present))[1]
            return pull_back(grads)  # type: ignore[no-any-return]
        # torch.func refuses to work within saved_tensors_hooks; these of our own keep others' out of what is done here.
        own_hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
        with torch.enable_grad(), own_hooks:
            leaves = [inputs[i].detach().requires_grad_() for i in present]
            results = backward(*leaves)
            used = [i for i, result in enumerate(results) if result.requires_grad]  # none of them where T is 0
            if not used:
                return tuple(torch.zeros_like(leaf) for leaf in leaves)
            outputs, cotangents = [results[i] for i in used], [grads[i] for i in used]
            return torch.autograd.grad(outputs, leaves, cotangents, materialize_grads=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("indrnn.recurrence can be differentiated twice, and a third derivative was asked for")


# u's gradient is wanted for each batch element apart, so u always gets the dimension.
_vmap_backward = functools.partial(_by_neurons, tensors=5, u=3)
recurrence_backward = differentiable("recurrence_backward", _keep_all, _second_derivative, _vmap_backward)


# ---- with batch norm


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep h, and x for a norm before the recurrence."""
    call, result = NormForward(*inputs[:-1]), NormResult(*output)
    before = call.place == "before"
    ctx.y_is_h = before and call.mask is None
    ctx.bias_dtype = None if call.bias is None else call.bias.dtype
    ctx.options, ctx.backend = (call.eps, call.activation), inputs[-1]
    ctx.mark_non_differentiable(result.mean, result.var)
    ctx.set_materialize_grads(False)
    series = (result.y if ctx.y_is_h else result.h, call.x if before else None)
    of_norm = (call.weight, result.mean, result.var, call.mask)
    ctx.save_for_backward(*series, call.u, call.h_0, *of_norm, call.lengths, call.resets)


def _norm_backward(
    ctx: Any, grad_y: Tensor | None, grad_h_last: Tensor | None, grad_h: Tensor | None, *_: Any, direct: bool = False
) -> tuple[Tensor | None, ...]:
    """By the op or a backend, or, if it may be differentiated again, in differentiable steps."""
    by_op = not direct or is_watched() or are_batched(grad_y, grad_h_last, grad_h)
    grad_y, grad_h_last, grad_h = dense(grad_y), dense(grad_h_last), dense(grad_h)
    h, *others = ctx.saved_tensors
    grad_y = torch.zeros_like(h) if grad_y is None else grad_y
    call = NormBackward(grad_y, grad_h_last, h, *others, *ctx.options)
    grad_h = None if ctx.y_is_h else grad_h
    gradients: tuple[Tensor, ...]
    if not torch.compiler.is_compiling() and (torch.is_grad_enabled() or grad_h is not None):
        gradients = reference.norm_backward(call, lambda inner: recurrence_backward(*inner, ctx.backend), grad_h)
    elif by_op or not are_plain(*call[:12]):  # a gradient, or what a saved tensor's hook returned
        gradients = OPS.recurrence_norm_backward(*call, ctx.backend)
    else:
        gradients = library.run(call, ctx.backend)
    grad_x, grad_u, grad_bias, grad_h_0, grad_weight, grad_shift = gradients
    of_bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_x, grad_u, of_bias, None if call.h_0 is None else grad_h_0, grad_weight, grad_shift, *[None] * 7


recurrence_norm = differentiable("recurrence_norm", _keep_norm, _norm_backward, _one_by_one)
recurrence_norm_direct = direct(NormForward, _keep_norm, _norm_backward)
torch.library.register_vmap(
    "indrnn::recurrence_norm_backward",
    functools.partial(_one_by_one, OPS.recurrence_norm_backward),
    lib=library.LIBRARY,
)
