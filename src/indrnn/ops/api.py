"""`recurrence`: h_t = σ(x_t + b + u ⊙ h_{t−1}) over all time steps, with and without a norm."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import check_choice
from . import BACKENDS, autograd
from .calls import Forward, NormForward
from .checks import check
from .cpu import kernel
from .library import choose
from .watched import are_plain, is_watched, keeps_results


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
            in x's gradient, and their values are ignored. With `reverse` a sequence starts at its true end.
        resets: (T, B), bool: zero the state before this step, in the order of processing.
        backend: "native", "reference", "scan" (parallel in time) or "triton" (GPU); None leaves the choice to
            INDRNN_BACKEND, else to what `backends()` shows.

    Returns:
        h (T, B, ..., N), the state after each step, and h_last (B, ..., N), the state after each sequence's last step
        (h_0 for a sequence of length 0). Both contiguous, in x's type.
    """
    return _run(Forward(x, u, bias, h_0, lengths, resets, activation, reverse), backend)


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

    If the C++ kernel is used in eager mode, h takes x's place in memory. A leaf that requires a gradient, a view, and
    anything that is watched are not overwritten.
    """
    call = Forward(x, u, bias, h_0, lengths, resets, activation, reverse)
    return _run(call, backend, _can_overwrite(call, backend))


def recurrence_norm(
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    shift: Tensor,
    h_0: Tensor | None = None,
    *,
    place: str,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float = 1e-5,
    activation: str = "relu",
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    backend: str | None = None,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the recurrence, batch norm over batch and time before or after it, and dropout shared over time.

        after:   y = mask ⊙ BN(h),  h_t = σ(x_t + b + u ⊙ h_{t−1})
        before:  y = mask ⊙ h,      h_t = σ(BN(x_t + b) + u ⊙ h_{t−1})

    With the batch's own statistics, so for training. reference.py has the specification; the C++ kernel and Triton
    do the same in fewer passes over memory.

    Arguments not named here are those of `recurrence`; padding enters no statistic. `weight` and `shift`, (N,), are the
    norm's, and `eps` is added to the variance. `place` says whether the norm is "before" the recurrence, where it
    removes the bias again, or "after" it. `mask` (1, B, ..., N) gets no gradient; None is no dropout. With `overwrite`
    x is the result of an operation and nothing else needs it, so that its memory may be used.

    Returns:
        y (T, B, ..., N), h_last (B, ..., N), and the mean and biased variance (N,) of h, or of x without the bias. The
        statistics carry no gradient.
    """
    call = NormForward(x, u, bias, h_0, weight, shift, mask, lengths, resets, eps, activation, place)
    if is_watched() or not are_plain(*call[:9]):
        check_choice("backend", backend, BACKENDS)
        check(call)
        y, h_last, _, mean, var = autograd.recurrence_norm(*call, backend)
    else:
        overwrite = overwrite and place == "after" and _can_overwrite(call.recurrence, backend, weight, shift, mask)
        y, h_last, _, mean, var = autograd.recurrence_norm_direct(overwrite, *call, backend)  # which checks
    return y, h_last, mean, var


def _run(call: Forward, backend: str | None, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    if not overwrite and (is_watched() or not are_plain(*call[:6])):
        check_choice("backend", backend, BACKENDS)
        check(call)
        h, h_last = autograd.recurrence(*call, backend)
    else:
        h, h_last = autograd.recurrence_direct(overwrite, *call, backend)  # which checks
    return h, h_last


def _can_overwrite(call: Forward, backend: str | None, *others: Tensor | None) -> bool:
    """Whether x may be overwritten: by the C++ kernel, unobserved, and in memory that nothing else uses.

    `others` are tensors read or kept for backward in addition to the call's own.
    """
    x = call.x
    if not isinstance(x, Tensor) or is_watched() or not are_plain(*call[:6]):
        return False
    if not x.is_cpu or not x.is_contiguous() or x._is_view() or x.is_neg():
        return False
    if (x.is_leaf and x.requires_grad) or x.retains_grad or keeps_results():
        return False
    for other in (*call[1:6], *others):  # also kept for backward
        if other is not None and torch._C._is_alias_of(x, other):  # type: ignore[attr-defined]
            return False
    return choose(x, call.activation, backend) is kernel
