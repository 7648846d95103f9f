"""The recurrence in Triton, for GPUs: what kernel.cpp is for CPUs. backend.py launches it.

A chain is one (batch, column) position of a (T, B, R) tensor, R = M * N columns, with neuron = column % N. Chains are
independent, so a program owns BLOCK of them, and a lane carries its chain's state from step to step in a register.
Tensors over time that come from outside have strides over T and B and contiguous rows; those made here are contiguous,
so that step t of a chain lies at t * chains + chain. Vectors (N,) are in the accumulation type, that of the state.
What is None is not there.

One step depends on the one before, memory does not: the loads of STEPS steps are issued together and then their
arithmetic is done, so memory's latency is paid once for all of them. Pointers move on from step to step: an address for
each of them would take more registers than the numbers. Sums over these few steps are in the accumulation
type; how they join the sums over all of time is said where it is done. Nothing is added atomically, so results are the
same to the bit each time.
"""

import math

import triton
import triton.language as tl

# ---- activations. Triton's own exp is fast rather than exact, and not all of its library runs in its interpreter.


@triton.constexpr_function
def _inverse_factorial(k):
    return 1.0 / math.factorial(k)


@triton.jit
def _split_exp(y):
    """exp(y) = scale * (1 + p): scale a power of two, p = expm1 of the remainder, |r| <= ln(2) / 2, by its series."""
    double: tl.constexpr = y.dtype == tl.float64
    mantissa: tl.constexpr = 52 if double else 23
    integer: tl.constexpr = tl.int64 if double else tl.int32
    exponent_bias: tl.constexpr = 1023 if double else 127
    to_integer: tl.constexpr = 6755399441055744.0 if double else 12582912.0  # 1.5 * 2^mantissa: the sum is an integer,
    its_bits: tl.constexpr = 0x4338000000000000 if double else 0x4B400000  # which stands in its lowest bits
    ln2_high: tl.constexpr = 0.693145751953125 if double else 0.693359375
    ln2_low: tl.constexpr = 1.4286068203094172e-6 if double else -2.1219444005469057e-4
    terms: tl.constexpr = 13 if double else 7
    shifted = y * 1.44269504088896340736 + to_integer
    n = shifted - to_integer
    r = (y - n * ln2_high) - n * ln2_low
    exponent = shifted.to(integer, bitcast=True) - its_bits + exponent_bias
    scale = (exponent << mantissa).to(y.dtype, bitcast=True)
    series = tl.full(y.shape, _inverse_factorial(terms), y.dtype)
    for k in tl.static_range(1, terms):
        series = series * r + _inverse_factorial(terms - k)
    return scale, r * series


@triton.jit
def _divide(a, b):
    # A plain division of float32 is one or two units off on NVIDIA.
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def _activate(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "tanh":
        limit: tl.constexpr = 20.0 if z.dtype == tl.float64 else 10.0  # where tanh is 1; NaN is not above it and stays
        magnitude = tl.abs(z)
        scale, p = _split_exp(2.0 * tl.where(magnitude > limit, limit, magnitude))
        e = scale * p + (scale - 1.0)  # expm1(2|z|), exact for small z too
        value = _divide(e, e + 2.0)
        z = tl.where(z < 0, -value, value)
    elif ACTIVATION == "sigmoid":
        limit: tl.constexpr = 708.0 if z.dtype == tl.float64 else 87.0  # beyond it exp(-|z|) is subnormal: 0 here
        magnitude = tl.abs(z)
        scale, p = _split_exp(-tl.where(magnitude > limit, limit, magnitude))
        e = tl.where(magnitude > limit, 0.0, scale + scale * p)
        z = _divide(tl.where(z < 0, e, 1.0), 1.0 + e)
    return z


@triton.jit
def _through_activation(gradient, h, ACTIVATION: tl.constexpr):
    """Gradient * act'(z), from h = act(z) alone."""
    if ACTIVATION == "relu":
        gradient = tl.where(h <= 0, 0.0, gradient)
    elif ACTIVATION == "tanh":
        gradient = gradient * (1.0 - h * h)
    elif ACTIVATION == "sigmoid":
        gradient = gradient * (h * (1.0 - h))
    return gradient


# ---- places


@triton.jit
def place_of(start, k, T, length, inside, REVERSE: tl.constexpr):
    """The time of a step in the order of the pass, whether there is such a step, and whether it is no padding."""
    step = start + k
    t = T - 1 - step if REVERSE else step
    there = inside & (step < T)
    return t, there, there & (t < length)


@triton.jit
def chains_of(chains, R, N, T, lengths, BLOCK: tl.constexpr):
    """A program's chains, which of them there are, their places in the batch, along the row and among the neurons.

    And their steps, the program's part of time, and the places (parts, B, R) of what is of that part of each chain.
    """
    blocks = (chains + BLOCK - 1) // BLOCK
    part = tl.program_id(0) // blocks
    chain = tl.cast(tl.program_id(0) % blocks, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = chain < chains
    length = T if lengths is None else tl.load(lengths + chain // R, mask=inside, other=0)
    return chain, inside, chain // R, chain % R, chain % N, length, part, tl.cast(part, tl.int64) * chains + chain


@triton.jit
def merge(middle, square, first, second, count):
    """Mean and sum of squares about it, of `count` numbers, with the sums of the newest of them about the old mean."""
    count = tl.maximum(count, 1).to(middle.dtype)
    return middle + first / count, square + (second - first * first / count)


# ---- the recurrence


@triton.jit(do_not_specialize=["T", "B", "span"])
def forward(
    x, x_t, x_b, u, bias, h_0, lengths, resets, offset, slope, center, mask, h, y, h_last, mean, square,
    T, B, span, chains, R, N, ACTIVATION: tl.constexpr, REVERSE: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute h, h_last, and beside them what a norm needs.

    Before the recurrence: x is offset + slope * (x - center), each (N,), and y = mask * h, mask (B, R). After it: mean,
    in float64, and square (B, R), of each chain's h: its mean and the sum of squares about that.

    Time may be divided into parts of span steps, where it is known (h_0, (parts, B, R)) how each starts.
    """
    acc: tl.constexpr = u.dtype.element_ty
    chain, inside, b, column, neuron, length, part, of_part = chains_of(chains, R, N, T, lengths, BLOCK)
    first_step = part * span
    weight = tl.load(u + neuron, mask=inside, other=0.0)
    nothing = tl.full((BLOCK,), 0.0, acc)
    state = nothing if h_0 is None else tl.load(h_0 + of_part, mask=inside, other=0.0).to(acc)
    if bias is not None:
        added = tl.load(bias + neuron, mask=inside, other=0.0)
    if slope is not None:
        norm_offset = tl.load(offset + neuron, mask=inside, other=0.0)
        norm_slope = tl.load(slope + neuron, mask=inside, other=0.0)
        norm_center = tl.load(center + neuron, mask=inside, other=0.0)
    if mask is not None:
        factor = tl.load(mask + chain, mask=inside, other=0.0)
    if mean is not None:  # kept apart from the first value, for the mean may be large beside the deviation
        pivot, middle, squares = nothing, nothing, nothing
    begin = tl.cast(T - 1 - first_step if REVERSE else first_step, tl.int64)
    way: tl.constexpr = -1 if REVERSE else 1
    x += b * x_b + column + begin * x_t
    h += begin * chains + chain
    if mask is not None:
        y += begin * chains + chain
    if resets is not None:
        resets += begin * B + b
    for start in range(first_step, tl.minimum(first_step + span, T), STEPS):
        inputs, cuts = (), ()
        for k in tl.static_range(STEPS):
            _t, there, valid = place_of(start, k, T, length, inside, REVERSE)
            inputs += (tl.load(x, mask=valid, other=0.0),)
            x += way * x_t
            if resets is not None:
                cuts += (tl.load(resets, mask=valid, other=0),)
                resets += way * B
        if mean is not None:
            first, second = nothing, nothing
        for k in tl.static_range(STEPS):
            _t, there, valid = place_of(start, k, T, length, inside, REVERSE)
            z = inputs[k].to(acc)
            if bias is not None:
                z += added
            if slope is not None:
                z = norm_offset + norm_slope * (z - norm_center)
            entering = state if resets is None else tl.where(cuts[k] != 0, 0.0, state)
            new = _activate(z + weight * entering, ACTIVATION)
            state = tl.where(valid, new, state)
            stored = tl.where(valid, new, 0.0).to(h.dtype.element_ty)
            tl.store(h, stored, mask=there)
            h += way * chains
            if mask is not None:
                masked = tl.where(valid, stored.to(acc) * factor, 0.0)
                tl.store(y, masked.to(y.dtype.element_ty), mask=there)
                y += way * chains
            if mean is not None:
                if k == 0:
                    pivot = tl.where(start == 0, stored.to(acc), pivot)
                away = tl.where(valid, (stored.to(acc) - pivot) - middle, 0.0)
                first += away
                second += away * away
        if mean is not None:
            middle, squares = merge(middle, squares, first, second, tl.minimum(start + STEPS, length))
    tl.store(h_last + chain, state.to(h_last.dtype.element_ty), mask=inside & (first_step + span >= T))
    if mean is not None:
        tl.store(mean + chain, pivot.to(tl.float64) + middle.to(tl.float64), mask=inside)
        tl.store(square + chain, squares, mask=inside)


@triton.jit(do_not_specialize=["T", "B", "span"])
def backward(
    grad_h, g_t, g_b, h, x, x_t, x_b, u, h_0, grad_h_last, lengths, resets, gain, offset, slope, center, mask,
    grad_x, grad_h_0, sum_u, sum_bias, sum_x,
    T, B, span, chains, R, N, ACTIVATION: tl.constexpr, REVERSE: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of x and h_0, and each chain's part of those of u and a bias, (B, R), in float64.

    grad_h is multiplied with mask, (B, R). With a norm after the recurrence it then is gain * grad_h + offset + slope *
    (h - center), each (N,): the norm's backward pass. With one before it, x is given and its center: sum_x is each
    chain's sum of grad_x * (x - center).

    Time may be divided into parts of span steps, where it is known (grad_h_last, (parts, B, R)) what comes to each; the
    parts of the sums then are those of each part, (parts, B, R).
    """
    acc: tl.constexpr = u.dtype.element_ty
    chain, inside, b, column, neuron, length, part, of_part = chains_of(chains, R, N, T, lengths, BLOCK)
    first_step = part * span
    weight = tl.load(u + neuron, mask=inside, other=0.0)
    nothing = tl.full((BLOCK,), 0.0, acc)
    origin = nothing if h_0 is None else tl.load(h_0 + chain, mask=inside, other=0.0).to(acc)
    carry = nothing if grad_h_last is None else tl.load(grad_h_last + of_part, mask=inside, other=0.0).to(acc)
    if gain is not None:
        factor = tl.load(gain + neuron, mask=inside, other=0.0)
        if mask is not None:
            factor *= tl.load(mask + chain, mask=inside, other=0.0)
        norm_offset = tl.load(offset + neuron, mask=inside, other=0.0)
        norm_slope = tl.load(slope + neuron, mask=inside, other=0.0)
    elif mask is not None:
        factor = tl.load(mask + chain, mask=inside, other=0.0)
    if center is not None:
        middle = tl.load(center + neuron, mask=inside, other=0.0)
    begin = tl.cast(first_step if REVERSE else T - 1 - first_step, tl.int64)
    way: tl.constexpr = 1 if REVERSE else -1
    h += begin * chains + chain
    grad_x += begin * chains + chain
    if grad_h is not None:
        grad_h += b * g_b + column + begin * g_t
    if x is not None:
        x += b * x_b + column + begin * x_t
    if resets is not None:
        resets += begin * B + b
    # Each adds a few steps' sum at a time, in float64: rounding does not grow with the length of a sequence.
    total_u, total_bias = nothing.to(tl.float64), nothing.to(tl.float64)
    if x is not None:
        total_x = nothing.to(tl.float64)
    _t, _there, valid = place_of(first_step, 0, T, length, inside, not REVERSE)
    here = tl.load(h, mask=valid, other=0.0).to(acc)
    for start in range(first_step, tl.minimum(first_step + span, T), STEPS):
        gradients, states, cuts, inputs = (), (), (), ()
        for k in tl.static_range(STEPS):
            t, there, valid = place_of(start, k, T, length, inside, not REVERSE)
            before = t + way
            h += way * chains
            states += (tl.load(h, mask=there & (before >= 0) & (before < length), other=0.0),)
            if grad_h is not None:
                gradients += (tl.load(grad_h, mask=valid, other=0.0),)
                grad_h += way * g_t
            if resets is not None:
                cuts += (tl.load(resets, mask=valid, other=0),)
                resets += way * B
            if x is not None:
                inputs += (tl.load(x, mask=valid, other=0.0),)
                x += way * x_t
        of_u, of_bias, of_x = nothing, nothing, nothing
        for k in tl.static_range(STEPS):
            t, there, valid = place_of(start, k, T, length, inside, not REVERSE)
            before = t + way
            previous = states[k].to(acc)
            entering = tl.where((before >= 0) & (before < length), previous, origin)
            incoming = carry
            if grad_h is not None:
                gradient = gradients[k].to(acc)
                if gain is not None:
                    gradient = factor * gradient + (norm_offset + norm_slope * (here - middle))
                elif mask is not None:
                    gradient = factor * gradient
                incoming += gradient
            delta = tl.where(valid, _through_activation(incoming, here, ACTIVATION), 0.0)
            onward = weight * delta
            if resets is not None:
                entering, onward = tl.where(cuts[k] != 0, 0.0, entering), tl.where(cuts[k] != 0, 0.0, onward)
            carry = tl.where(valid, onward, carry)
            tl.store(grad_x, delta.to(grad_x.dtype.element_ty), mask=there)
            grad_x += way * chains
            of_u += tl.where(valid, delta * entering, 0.0)
            of_bias += delta
            if x is not None:
                of_x += tl.where(valid, delta * (inputs[k].to(acc) - middle), 0.0)
            here = previous
        total_u += of_u.to(tl.float64)
        total_bias += of_bias.to(tl.float64)
        if x is not None:
            total_x += of_x.to(tl.float64)
    tl.store(grad_h_0 + chain, carry.to(grad_h_0.dtype.element_ty), mask=inside & (first_step + span >= T))
    tl.store(sum_u + of_part, total_u, mask=inside)
    tl.store(sum_bias + of_part, total_bias, mask=inside)
    if x is not None:
        tl.store(sum_x + of_part, total_x, mask=inside)


# ---- batch norm: no step depends on another, so time is divided too, and part p has the span steps from p * span on


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
