"""The recurrence parallel in time, in Triton: where each chunk starts. The algebra is in docs/scan.md.

Conventions are those of recurrence_kernels.py. Part p of time has the steps from p * span on, in the order of the pass,
span of them. One kernel composes the maps of all parts side by side, (parts, B, R) each; one takes the state through
them, one after the other, and keeps where each part starts; with that, the kernels `forward` and `backward` run all
parts side by side. Where a number on the way is not finite, the second kernel goes through these parts of that chain
step by step: slow, but as the equation says, and nobody has to wait for the device to learn of it.
"""

import triton
import triton.language as tl

from .recurrence_kernels import _activate, _through_activation, chains_of, place_of


@triton.constexpr_function
def _largest(dtype):
    return 1.7976931348623157e308 if dtype == tl.float64 else 3.4028234663852886e38


@triton.jit
def _load_cut(resets, t, B, row, valid):
    """Whether the state before step t is forgotten."""
    if resets is None:
        cut = tl.full(valid.shape, 0, tl.int1)  # known to the compiler: costs nothing
    else:
        cut = tl.load(resets + tl.cast(t, tl.int64) * B + row, mask=valid, other=0) != 0
    return cut


@triton.jit
def _through_maps(a, b, lo, hi, starts, state, begin, count, chains, chain, inside, STEPS: tl.constexpr):
    """Take the state through STEPS parts' maps and store where each starts: the state, and whether all was finite."""
    acc: tl.constexpr = a.dtype.element_ty
    offsets, slopes, lows, highs = (), (), (), ()
    for k in tl.static_range(STEPS):
        at, there = tl.cast(begin + k, tl.int64) * chains + chain, inside & (begin + k < count)
        offsets += (tl.load(a + at, mask=there, other=0.0),)
        slopes += (tl.load(b + at, mask=there, other=0.0),)
        if lo is not None:
            lows += (tl.load(lo + at, mask=there, other=0.0),)
            highs += (tl.load(hi + at, mask=there, other=0.0),)
    finite = inside | (chain >= 0)
    for k in tl.static_range(STEPS):
        at, there = tl.cast(begin + k, tl.int64) * chains + chain, inside & (begin + k < count)
        tl.store(starts + at, state, mask=there)
        state = offsets[k] + slopes[k] * state
        finite &= tl.abs(state) <= _largest(acc)
        if lo is not None:
            state = tl.maximum(tl.minimum(state, highs[k]), lows[k])
    return state, finite


# ---- forward


@triton.jit(do_not_specialize=["T", "B", "span"])
def forward_maps(
    x, x_t, x_b, u, bias, lengths, resets, a, b, lo, hi, T, B, span, chains, R, N,
    ACTIVATION: tl.constexpr, REVERSE: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compose each part's steps to h -> clamp(a + b * h, lo, hi); without lo and hi, for identity, to a + b * h."""
    acc: tl.constexpr = u.dtype.element_ty
    _chain, inside, row, column, neuron, length, part, at = chains_of(chains, R, N, T, lengths, BLOCK)
    weight = tl.load(u + neuron, mask=inside, other=0.0)
    if bias is not None:
        added = tl.load(bias + neuron, mask=inside, other=0.0)
    nothing = tl.full((BLOCK,), 0.0, acc)
    offset, slope, low, high = nothing, nothing + 1.0, nothing - _largest(acc), nothing + _largest(acc)
    begin = part * span
    way: tl.constexpr = -1 if REVERSE else 1
    x += row * x_b + column + tl.cast(T - 1 - begin if REVERSE else begin, tl.int64) * x_t
    for start in range(begin, tl.minimum(begin + span, T), STEPS):
        inputs, cuts = (), ()
        for k in tl.static_range(STEPS):
            t, _there, valid = place_of(start, k, T, length, inside, REVERSE)
            inputs += (tl.load(x, mask=valid, other=0.0),)
            x += way * x_t
            cuts += (_load_cut(resets, t, B, row, valid),)
        for k in tl.static_range(STEPS):
            _t, _there, valid = place_of(start, k, T, length, inside, REVERSE)
            z = inputs[k].to(acc)
            if bias is not None:
                z += added
            if lo is not None:
                one, other = z + weight * tl.where(cuts[k], 0.0, low), z + weight * tl.where(cuts[k], 0.0, high)
                least = _activate(tl.minimum(one, other), ACTIVATION)  # a negative slope swaps them
                most = _activate(tl.maximum(one, other), ACTIVATION)
                low = tl.where(valid, tl.minimum(least, _largest(acc)), low)
                high = tl.where(valid, tl.minimum(most, _largest(acc)), high)
            offset = tl.where(valid, z + weight * tl.where(cuts[k], 0.0, offset), offset)
            slope = tl.where(valid, weight * tl.where(cuts[k], 0.0, slope), slope)
    tl.store(a + at, offset, mask=inside)
    tl.store(b + at, slope, mask=inside)
    if lo is not None:
        tl.store(lo + at, low, mask=inside)
        tl.store(hi + at, high, mask=inside)


@triton.jit(do_not_specialize=["T", "B", "span", "count"])
def forward_starts(
    x, x_t, x_b, u, bias, h_0, lengths, resets, a, b, lo, hi, starts, T, B, span, count, chains, R, N,
    ACTIVATION: tl.constexpr, REVERSE: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state before each part, (parts, B, R)."""
    acc: tl.constexpr = u.dtype.element_ty
    chain, inside, row, column, neuron, length, _part, _at = chains_of(chains, R, N, T, lengths, BLOCK)
    nothing = tl.full((BLOCK,), 0.0, acc)
    state = nothing if h_0 is None else tl.load(h_0 + chain, mask=inside, other=0.0).to(acc)
    for begin in range(0, count, STEPS):
        after, finite = _through_maps(a, b, lo, hi, starts, state, begin, count, chains, chain, inside, STEPS)
        if tl.min(finite.to(tl.int32)) == 0:
            weight = tl.load(u + neuron, mask=inside, other=0.0)
            for step in range(begin * span, tl.minimum((begin + STEPS) * span, T)):
                if step % span == 0:
                    tl.store(starts + tl.cast(step // span, tl.int64) * chains + chain, state, mask=inside & ~finite)
                t, _there, valid = place_of(step, 0, T, length, inside & ~finite, REVERSE)
                z = tl.load(x + row * x_b + column + tl.cast(t, tl.int64) * x_t, mask=valid, other=0.0).to(acc)
                if bias is not None:
                    z += tl.load(bias + neuron, mask=inside, other=0.0)
                entering = tl.where(_load_cut(resets, t, B, row, valid), 0.0, state)
                state = tl.where(valid, _activate(z + weight * entering, ACTIVATION), state)
        state = tl.where(finite, after, state)


# ---- backward


@triton.jit
def _back(carry, weight, here, cut, valid, ACTIVATION: tl.constexpr):
    """The gradient of the state before a step from that of the state after it."""
    onward = weight * _through_activation(carry, here, ACTIVATION)
    return tl.where(valid, tl.where(cut, 0.0, onward), carry)


@triton.jit(do_not_specialize=["T", "B", "span"])
def backward_maps(
    grad_h, g_t, g_b, h, u, lengths, resets, a, b, T, B, span, chains, R, N,
    ACTIVATION: tl.constexpr, REVERSE: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compose each part's steps to a + b * the gradient of the state after it."""
    acc: tl.constexpr = u.dtype.element_ty
    chain, inside, row, column, neuron, length, part, at = chains_of(chains, R, N, T, lengths, BLOCK)
    weight = tl.load(u + neuron, mask=inside, other=0.0)
    offset = tl.full((BLOCK,), 0.0, acc)
    slope = offset + 1.0
    begin = part * span
    way: tl.constexpr = 1 if REVERSE else -1
    first = tl.cast(begin if REVERSE else T - 1 - begin, tl.int64)
    h += first * chains + chain
    if grad_h is not None:
        grad_h += row * g_b + column + first * g_t
    for start in range(begin, tl.minimum(begin + span, T), STEPS):
        gradients, states, cuts = (), (), ()
        for k in tl.static_range(STEPS):
            t, _there, valid = place_of(start, k, T, length, inside, not REVERSE)
            states += (tl.load(h, mask=valid, other=0.0),)
            h += way * chains
            if grad_h is not None:
                gradients += (tl.load(grad_h, mask=valid, other=0.0),)
                grad_h += way * g_t
            cuts += (_load_cut(resets, t, B, row, valid),)
        for k in tl.static_range(STEPS):
            _t, _there, valid = place_of(start, k, T, length, inside, not REVERSE)
            here = states[k].to(acc)
            if grad_h is not None:
                offset += gradients[k].to(acc)
            offset = _back(offset, weight, here, cuts[k], valid, ACTIVATION)
            slope = _back(slope, weight, here, cuts[k], valid, ACTIVATION)
    tl.store(a + at, offset, mask=inside)
    tl.store(b + at, slope, mask=inside)


@triton.jit(do_not_specialize=["T", "B", "span", "count"])
def backward_starts(
    grad_h, g_t, g_b, h, u, grad_h_last, lengths, resets, a, b, starts, T, B, span, count, chains, R, N,
    ACTIVATION: tl.constexpr, REVERSE: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient that comes to each part from the one after it in time, (parts, B, R)."""
    acc: tl.constexpr = u.dtype.element_ty
    chain, inside, row, column, neuron, length, _part, _at = chains_of(chains, R, N, T, lengths, BLOCK)
    nothing = tl.full((BLOCK,), 0.0, acc)
    carry = nothing if grad_h_last is None else tl.load(grad_h_last + chain, mask=inside, other=0.0).to(acc)
    for begin in range(0, count, STEPS):
        after, finite = _through_maps(a, b, None, None, starts, carry, begin, count, chains, chain, inside, STEPS)
        if tl.min(finite.to(tl.int32)) == 0:
            weight = tl.load(u + neuron, mask=inside, other=0.0)
            for step in range(begin * span, tl.minimum((begin + STEPS) * span, T)):
                if step % span == 0:
                    tl.store(starts + tl.cast(step // span, tl.int64) * chains + chain, carry, mask=inside & ~finite)
                t, _there, valid = place_of(step, 0, T, length, inside & ~finite, not REVERSE)
                here = tl.load(h + tl.cast(t, tl.int64) * chains + chain, mask=valid, other=0.0).to(acc)
                if grad_h is not None:
                    at = row * g_b + column + tl.cast(t, tl.int64) * g_t
                    carry += tl.load(grad_h + at, mask=valid, other=0.0).to(acc)
                carry = _back(carry, weight, here, _load_cut(resets, t, B, row, valid), valid, ACTIVATION)
        carry = tl.where(finite, after, carry)
