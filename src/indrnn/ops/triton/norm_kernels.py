"""Batch norm kernels in Triton: moments, products, combine. Conventions are those of recurrence_kernels.py.

No step here depends on another, so time is divided as well: part p has the steps from p * span on, span of them.
"""

import triton
import triton.language as tl

from .recurrence_kernels import chains_of, merge, place_of


@triton.jit(do_not_specialize=["T", "span"])
def moments(
    v, v_t, v_b, lengths, mean, square, T, span, chains, R, N, STEPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of each part of each chain, (parts, B, R): the mean, in float64, and the sum of squares about it."""
    acc: tl.constexpr = square.dtype.element_ty
    _chain, inside, b, column, _neuron, length, part, at = chains_of(chains, R, N, T, lengths, BLOCK)
    begin = part * span
    v += b * v_b + column + tl.cast(begin, tl.int64) * v_t
    pivot = tl.load(v, mask=inside & (begin < length), other=0.0).to(acc)
    nothing = tl.full((BLOCK,), 0.0, acc)
    middle, squares = nothing, nothing
    for start in range(begin, tl.minimum(begin + span, T), STEPS):
        values = ()
        for k in tl.static_range(STEPS):
            _t, _there, valid = place_of(start, k, T, length, inside, False)
            values += (tl.load(v, mask=valid, other=0.0),)
            v += v_t
        first, second = nothing, nothing
        for k in tl.static_range(STEPS):
            _t, _there, valid = place_of(start, k, T, length, inside, False)
            away = tl.where(valid, (values[k].to(acc) - pivot) - middle, 0.0)
            first += away
            second += away * away
        middle, squares = merge(middle, squares, first, second, tl.minimum(start + STEPS, length) - begin)
    tl.store(mean + at, pivot.to(tl.float64) + middle.to(tl.float64), mask=inside)
    tl.store(square + at, squares, mask=inside)


@triton.jit(do_not_specialize=["T", "span"])
def products(
    g, g_t, g_b, h, center, mask, lengths, first, second, T, span, chains, R, N,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each part of each chain, (parts, B, R): the sums of g and g * (h - center), times mask (B, R)."""
    acc: tl.constexpr = first.dtype.element_ty
    chain, inside, b, column, neuron, length, part, at = chains_of(chains, R, N, T, lengths, BLOCK)
    factor = 1.0 if mask is None else tl.load(mask + chain, mask=inside, other=0.0)
    middle = tl.load(center + neuron, mask=inside, other=0.0)
    begin = part * span
    g += b * g_b + column + tl.cast(begin, tl.int64) * g_t
    h += chain + tl.cast(begin, tl.int64) * chains
    nothing = tl.full((BLOCK,), 0.0, acc)
    total_first, total_second = nothing, nothing
    for start in range(begin, tl.minimum(begin + span, T), STEPS):
        gradients, values = (), ()
        for k in tl.static_range(STEPS):
            _t, _there, valid = place_of(start, k, T, length, inside, False)
            gradients += (tl.load(g, mask=valid, other=0.0),)
            values += (tl.load(h, mask=valid, other=0.0),)
            g += g_t
            h += chains
        sum_first, sum_second = nothing, nothing
        for k in tl.static_range(STEPS):
            gradient = gradients[k].to(acc)  # 0 in padding
            sum_first += gradient
            sum_second += gradient * (values[k].to(acc) - middle)
        total_first += sum_first
        total_second += sum_second
    tl.store(first + at, total_first * factor, mask=inside)
    tl.store(second + at, total_second * factor, mask=inside)


@triton.jit(do_not_specialize=["T"])
def combine(
    v, v_t, v_b, gain, offset, slope, center, mask, lengths, to, T, chains, R, N,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute to = mask * (gain * to + offset + slope * (v - center)), and 0 in padding; without gain, `to` is new."""
    acc: tl.constexpr = slope.dtype.element_ty
    chain, inside, b, column, neuron, length, part, _at = chains_of(chains, R, N, T, lengths, BLOCK)
    norm_offset = tl.load(offset + neuron, mask=inside, other=0.0)
    norm_slope = tl.load(slope + neuron, mask=inside, other=0.0)
    norm_center = tl.load(center + neuron, mask=inside, other=0.0)
    if gain is not None:
        scale = tl.load(gain + neuron, mask=inside, other=0.0)
    if mask is not None:
        factor = tl.load(mask + chain, mask=inside, other=0.0)
    start = part * STEPS
    v += b * v_b + column + tl.cast(start, tl.int64) * v_t
    to += chain + tl.cast(start, tl.int64) * chains
    made = to
    values, olds = (), ()
    for k in tl.static_range(STEPS):
        _t, there, valid = place_of(start, k, T, length, inside, False)
        values += (tl.load(v, mask=valid, other=0.0),)
        v += v_t
        if gain is not None:
            olds += (tl.load(made, mask=valid, other=0.0),)
            made += chains
    for k in tl.static_range(STEPS):
        _t, there, valid = place_of(start, k, T, length, inside, False)
        value = norm_offset + norm_slope * (values[k].to(acc) - norm_center)
        if gain is not None:
            value += scale * olds[k].to(acc)
        if mask is not None:
            value *= factor
        tl.store(to, tl.where(valid, value, 0.0).to(to.dtype.element_ty), mask=there)
        to += chains
