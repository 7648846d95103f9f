"""ConvIndRNN1d and ConvIndRNN2d are a loop of convolutions; where the kernel has one element they are IndRNN."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import ConvIndRNN1d, ConvIndRNN2d, IndRNN, attach_constraint, constrain_, parameter_groups

T, B, C_IN, C_OUT = 5, 3, 4, 6
SIZES = {1: (9,), 2: (6, 7)}
TORCHS: dict[int, type[nn.Conv1d | nn.Conv2d]] = {1: nn.Conv1d, 2: nn.Conv2d}
Layer = ConvIndRNN1d | ConvIndRNN2d

# As batch norm, torch's convolution forks for any size.
pytestmark = pytest.mark.usefixtures("_one_thread")

CONVOLUTIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "1d": (1, {"kernel_size": 3}),
    "1d stride padding": (1, {"kernel_size": 4, "stride": 2, "padding": 1}),
    "1d dilation groups": (1, {"kernel_size": (2,), "dilation": 3, "groups": 2}),
    "1d same": (1, {"kernel_size": 5, "padding": "same", "dilation": 2}),
    "2d": (2, {"kernel_size": 3}),
    "2d stride padding": (2, {"kernel_size": (4, 2), "stride": (1, 3), "padding": (2, 1)}),
    "2d dilation groups": (2, {"kernel_size": (2, 3), "stride": 2, "dilation": (3, 1), "groups": 2}),
    "2d same": (2, {"kernel_size": (3, 5), "padding": "same"}),
    "2d valid": (2, {"kernel_size": (6, 1), "padding": "valid"}),
}

convolutions = pytest.mark.parametrize("convolution", CONVOLUTIONS)
both_dims = pytest.mark.parametrize("dims", [1, 2], ids=["1d", "2d"])
both_us = pytest.mark.parametrize("per_position", [False, True], ids=["u per channel", "u per position"])


def output_size(dims: int, options: dict[str, Any]) -> tuple[int, ...]:
    """As torch's own layer has it."""
    torchs: Any = TORCHS[dims](C_IN, C_OUT, **options)
    with torch.no_grad():
        return tuple(torchs(torch.zeros(1, C_IN, *SIZES[dims])).shape[2:])


def make_layer(convolution: str = "1d", per_position: bool = False, **options: Any) -> Layer:
    """A float64 layer with recurrent weights of both signs, and biases that are not 0."""
    dims, of_convolution = CONVOLUTIONS[convolution]
    if per_position:
        options["positions"] = output_size(dims, of_convolution)
    options = {"nonlinearity": "tanh", "dtype": torch.float64, **of_convolution, **options}
    layer = (ConvIndRNN1d if dims == 1 else ConvIndRNN2d)(C_IN, C_OUT, **options)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name != "weight_ih":
                parameter.uniform_(-1, 1)
    return layer


def inputs_for(convolution: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """An input, time first, and a state."""
    dims, options = CONVOLUTIONS[convolution]
    x = torch.randn(T, B, C_IN, *SIZES[dims], dtype=dtype)
    return x, torch.randn(B, C_OUT, *output_size(dims, options), dtype=dtype)


def weighted_sum(output: Tensor) -> Tensor:
    """A loss that weighs each element by its own number, so that no two gradients can be swapped unseen."""
    weights = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).to(output.dtype)
    return (output * weights.view(output.shape)).sum()


def run(
    call: Callable[..., tuple[Tensor, Tensor]], layer: nn.Module, x: Tensor, hx: Tensor | None = None, **options: Any
) -> dict[str, Tensor]:
    """call(x, hx, ...): output, h_n, and every gradient."""
    leaves = {"x": x.clone().requires_grad_(), **({} if hx is None else {"hx": hx.clone().requires_grad_()})}
    output, h_n = call(leaves["x"], leaves.get("hx"), **options)
    leaves.update(layer.named_parameters())
    gradients = torch.autograd.grad(weighted_sum(output) + weighted_sum(h_n), list(leaves.values()))
    return {"output": output.detach(), "h_n": h_n.detach(), **dict(zip(leaves, gradients, strict=True))}


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda z: z.clamp(min=0),
    "tanh": lambda z: 1 - 2 / (1 + (2 * z).exp()),
    "sigmoid": lambda z: 1 / (1 + (-z).exp()),
    "identity": lambda z: z,
}


def looped(layer: Layer, convolution: str, reverse: bool = False) -> Callable[..., tuple[Tensor, Tensor]]:
    """The layer as a loop over sequences and steps, time first."""
    dims, options = CONVOLUTIONS[convolution]
    options = {name: value for name, value in options.items() if name != "kernel_size"}
    convolve: Callable[..., Tensor] = F.conv1d if dims == 1 else F.conv2d

    def call(
        x: Tensor, hx: Tensor | None, lengths: Tensor | None = None, resets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        u = layer.weight_hh if layer.weight_hh.dim() > 1 else layer.weight_hh.view(-1, *[1] * dims)
        inputs = [convolve(x_t, layer.weight_ih, layer.bias, **options) for x_t in x]
        outputs, last = [], []
        for b in range(x.shape[1]):
            length = T if lengths is None else int(lengths[b])
            starts = set() if resets is None else {t for t in range(length) if resets[t, b]}
            h = x.new_zeros(()) if hx is None else hx[b]
            states = {}
            for t in reversed(range(length)) if reverse else range(length):
                if (t + 1 if reverse else t) in starts:  # in reverse, step t + 1 is of the document after
                    h = x.new_zeros(())
                h = FUNCTIONS[layer.nonlinearity](inputs[t][b] + u * h)
                states[t] = h
            outputs.append(torch.stack([states.get(t, torch.zeros_like(h)) for t in range(T)]))
            last.append(h)
        return torch.stack(outputs, dim=1), torch.stack(last)

    return call


LENGTHS = torch.tensor([3, 5, 1])
RESETS = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]]).bool()  # (T, B), some in the padding

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hx": {"hx": True},
    "lengths": {"lengths": LENGTHS},
    "resets": {"resets": RESETS},
    "all": {"hx": True, "lengths": LENGTHS, "resets": RESETS},
}


# ---- against a loop


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@both_us
@pytest.mark.parametrize(
    ("convolution", "form"),
    [(name, form) for name in CONVOLUTIONS for form in (FORMS if name in ("1d", "2d") else ("plain", "all"))],
)
def test_equals_a_loop(convolution: str, form: str, per_position: bool, reverse: bool) -> None:
    layer = make_layer(convolution, per_position, reverse=reverse)
    x, hx = inputs_for(convolution)
    options = dict(FORMS[form])
    arguments = (x, hx if options.pop("hx", False) else None)
    expected = run(looped(layer, convolution, reverse), layer, *arguments, **options)
    results = run(layer, layer, *arguments, **options)
    assert_close(results, expected)
    assert results["output"].shape == (T, *hx.shape)
    assert results["h_n"].shape == hx.shape


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@both_us
@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_activations(convolution: str, per_position: bool, bias: bool, activation: str) -> None:
    layer = make_layer(convolution, per_position, nonlinearity=activation, bias=bias)
    x, hx = inputs_for(convolution)
    assert_close(run(layer, layer, x, hx), run(looped(layer, convolution), layer, x, hx))


@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_backend_is_passed_on(convolution: str, backend: str) -> None:
    layer = make_layer(convolution, backend=backend, nonlinearity="relu")
    x, hx = inputs_for(convolution)
    assert_close(run(layer, layer, x, hx), run(looped(layer, convolution), layer, x, hx))


def test_backend_asked_for_by_name_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from indrnn.ops import reference

    calls = []
    forward = reference.forward
    monkeypatch.setattr(reference, "forward", lambda *args: calls.append(1) or forward(*args))  # type: ignore[func-returns-value]
    make_layer(backend="reference")(inputs_for("1d")[0])
    assert len(calls) == 1


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@both_us
@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_batch_first(convolution: str, per_position: bool, reverse: bool) -> None:
    layer = make_layer(convolution, per_position, reverse=reverse, batch_first=True)
    x, hx = inputs_for(convolution)

    def time_first(x: Tensor, hx: Tensor, resets: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        output, h_n = layer(x.transpose(0, 1).contiguous(), hx, resets=resets.t(), **options)
        return output.transpose(0, 1), h_n

    expected = run(looped(layer, convolution, reverse), layer, x, hx, lengths=LENGTHS, resets=RESETS)
    assert_close(run(time_first, layer, x, hx, lengths=LENGTHS, resets=RESETS), expected)


@pytest.mark.parametrize("filling", [1e3, float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("convolution", ["1d", "2d same"])
def test_padding_changes_nothing(convolution: str, reverse: bool, filling: float) -> None:
    layer = make_layer(convolution, reverse=reverse)
    x, hx = inputs_for(convolution)
    lengths = torch.tensor([3, 5, 0])
    padding = torch.arange(T).unsqueeze(1) >= lengths
    other = torch.where(padding.view(T, B, *[1] * (x.dim() - 2)), filling, x)
    results = [run(layer, layer, value, hx, lengths=lengths, resets=RESETS) for value in (x, other)]
    assert_close(results[0], results[1], rtol=0, atol=0)
    assert not results[0]["output"][padding].any()
    assert not results[0]["x"][padding].any()
    assert torch.equal(results[0]["h_n"][2], hx[2])


@pytest.mark.parametrize("shape", [(0, 9), (T, 0)], ids=["no steps", "no batch"])
@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_empty_input(convolution: str, shape: tuple[int, int]) -> None:
    layer = make_layer(convolution)
    x, hx = inputs_for(convolution)
    hx = hx[:1].expand(shape[1], *hx.shape[1:])
    results = run(layer, layer, x.new_ones(*shape, *x.shape[2:]), hx)
    assert results["output"].shape == (*shape, *hx.shape[1:])
    assert torch.equal(results["h_n"], hx)
    assert not results["weight_ih"].any()
    assert not results["weight_hh"].any()


def test_strided_and_channels_last_inputs() -> None:
    layer = make_layer("2d", per_position=True)
    x, hx = inputs_for("2d")
    expected = run(layer, layer, x, hx)
    # A clone keeps the strides of a permuted tensor, so these reach the layer.
    channels_last = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert_close(run(layer, layer, channels_last, hx), expected)
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert_close(run(layer, layer, channels_last, hx), expected)
    with torch.no_grad():
        assert_close(layer(x.repeat_interleave(2, 0)[::2], hx)[0], expected["output"])


# ---- against IndRNN


def as_indrnn(forward: Layer, backward: Layer) -> IndRNN:
    """The IndRNN, in both directions, of two layers with kernels of one element."""
    layer = IndRNN(C_IN, C_OUT, nonlinearity="tanh", bidirectional=True, dtype=torch.float64)
    with torch.no_grad():
        for one, suffix in ((forward, "_l0"), (backward, "_l0_reverse")):
            for name, parameter in one.named_parameters():
                twin = layer.get_parameter(name + suffix)
                twin.copy_(parameter.view(twin.shape))
    return layer


@pytest.mark.parametrize("form", FORMS)
@both_us
@both_dims
def test_one_position_and_one_element_equal_indrnn(dims: int, per_position: bool, form: str) -> None:
    options: dict[str, Any] = {"positions": 1 if per_position else None, "nonlinearity": "tanh", "dtype": torch.float64}
    pair = nn.ModuleList(
        (ConvIndRNN1d if dims == 1 else ConvIndRNN2d)(C_IN, C_OUT, 1, reverse=reverse, **options)
        for reverse in (False, True)
    )
    twin = as_indrnn(*pair)

    def both(x: Tensor, hx: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
        x = x.view(*x.shape, *[1] * dims)
        states = (None, None) if hx is None else hx.view(*hx.shape, *[1] * dims)
        outputs, h_n = zip(*(one(x, h, **options) for one, h in zip(pair, states, strict=True)), strict=True)
        return torch.cat(outputs, dim=2).view(T, B, 2 * C_OUT), torch.stack(h_n).view(2, B, C_OUT)

    given = dict(FORMS[form])
    x, hx = torch.randn(T, B, C_IN).double(), torch.randn(2, B, C_OUT).double() if given.pop("hx", False) else None
    expected = run(twin, twin, x, hx, **given)
    for ours, value in zip(run(both, pair, x, hx, **given).values(), expected.values(), strict=True):
        assert_close(ours.view(value.shape), value)


def test_one_element_is_indrnn_at_each_position() -> None:
    layer = ConvIndRNN1d(C_IN, C_OUT, 1)
    twin = IndRNN(C_IN, C_OUT)
    state = {name if "bound" in name else f"{name}_l0": value for name, value in layer.state_dict().items()}
    twin.load_state_dict({**state, "weight_ih_l0": state["weight_ih_l0"].squeeze(-1)})
    x = torch.randn(T, B, C_IN, 9)
    expected, _ = twin(x.movedim(3, 2).flatten(1, 2))
    assert_close(layer(x)[0], expected.unflatten(1, (B, 9)).movedim(2, 3))


# ---- derivatives, vmap, compile, types


@both_us
@both_dims
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_double_backward(nonlinearity: str, dims: int, per_position: bool) -> None:
    layer = (ConvIndRNN1d if dims == 1 else ConvIndRNN2d)(
        2, 2, 2, nonlinearity=nonlinearity, positions=2 if per_position else None, dtype=torch.float64
    )
    parameters = dict(layer.named_parameters())
    options = {"lengths": torch.tensor([2, 3]), "resets": torch.tensor([[0, 0], [1, 0], [0, 1]]).bool()}

    def call(x: Tensor, hx: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (x, hx), options)

    x = torch.randn(3, 2, 2, *[3] * dims, dtype=torch.float64, requires_grad=True)
    hx = torch.randn(2, 2, *[2] * dims, dtype=torch.float64, requires_grad=True)
    inputs = (x, hx, *parameters.values())
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@both_us
@pytest.mark.parametrize("convolution", ["1d stride padding", "2d same"])
def test_ensemble_by_vmap(convolution: str, per_position: bool) -> None:
    layers = [make_layer(convolution, per_position) for _ in range(3)]
    x, hx = inputs_for(convolution)
    stacked, buffers = torch.func.stack_module_state(layers)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        call = (x, hx), {"lengths": LENGTHS, "resets": RESETS}
        output, h_n = torch.func.functional_call(layers[0], (parameters, buffers), *call)
        return weighted_sum(output) + weighted_sum(h_n)

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(stacked, x)
    for index, layer in enumerate(layers):
        expected = run(layer, layer, x, hx, lengths=LENGTHS, resets=RESETS)
        assert_close(
            {name: value[index] for name, value in gradients.items()}, {name: expected[name] for name in gradients}
        )


@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_vmap_over_inputs(convolution: str) -> None:
    layer = make_layer(convolution)
    xs = torch.stack([inputs_for(convolution)[0] for _ in range(3)])
    lengths = torch.stack([LENGTHS, LENGTHS.flip(0), LENGTHS])
    assert_close(torch.func.vmap(lambda x: layer(x))(xs)[0], torch.stack([layer(x)[0] for x in xs]))
    expected = torch.stack([layer(x, lengths=each)[0] for x, each in zip(xs, lengths, strict=True)])
    assert_close(torch.func.vmap(lambda x, lengths: layer(x, lengths=lengths))(xs, lengths)[0], expected)


@both_us
@pytest.mark.parametrize("convolution", ["1d stride padding", "2d same"])
def test_compile(convolution: str, per_position: bool) -> None:
    torch.compiler.reset()  # or the graphs of other tests count
    layer = make_layer(convolution, per_position, reverse=True, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, hx = inputs_for(convolution, torch.float32)
    options = {"lengths": LENGTHS, "resets": RESETS}
    assert_close(run(compiled, layer, x, hx, **options), run(layer, layer, x, hx, **options))


@both_us
def test_compiled_once_for_many_sizes(per_position: bool) -> None:
    torch.compiler.reset()  # or the graphs of other tests count
    layer = make_layer("2d", per_position, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    x, _ = inputs_for("2d", torch.float32)
    with torch.no_grad():
        assert_close(compiled(x), layer(x))
        with torch.compiler.set_stance("fail_on_recompile"):
            for other in (x[:3], x[:, :2], *([] if per_position else [x[..., :5], x[..., 1:, :]])):
                assert_close(compiled(other.contiguous()), layer(other))


def test_export_with_any_number_of_steps() -> None:
    layer = make_layer("2d", per_position=True)
    x, hx = inputs_for("2d")
    steps = {"input": {0: torch.export.Dim("T", max=999)}, "hx": None}
    exported = torch.export.export(layer, (x, hx), dynamic_shapes=steps).module()
    for times in (1, 5):
        longer = x.repeat(times, 1, 1, 1, 1)
        assert_close(exported(longer, hx), layer(longer, hx))


@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
@both_us
@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_autocast(convolution: str, per_position: bool, batch_first: bool) -> None:
    layer = make_layer(convolution, per_position, dtype=torch.float32, batch_first=batch_first)
    x, hx = inputs_for(convolution, torch.float32)
    x = x.transpose(0, 1) if batch_first else x
    expected = run(layer, layer, x, hx)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = run(layer, layer, x, hx)
    for name, value in results.items():
        assert value.dtype == (torch.bfloat16 if name in ("output", "h_n") else torch.float32), name
        # bfloat16 has 8 bits: an error of 2⁻⁹ in each number on the way.
        error = (value.float() - expected[name]).norm() / expected[name].norm()
        assert error < 2**-6, (name, error)


@both_us
def test_autocast_leaves_the_recurrent_weight_alone(per_position: bool) -> None:
    # 0.999 is 1 in bfloat16: over 200 steps, a state of 1 beside one of 0.82.
    layer = ConvIndRNN1d(1, 1, 1, nonlinearity="identity", positions=2 if per_position else None)
    with torch.no_grad():
        layer.weight_hh.fill_(0.999)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(torch.zeros(200, 1, 1, 2), torch.ones(1, 1, 2))
    assert_close(output[-1].float(), torch.full((1, 1, 2), 0.999**200), rtol=2**-8, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_to_another_type(convolution: str, dtype: torch.dtype) -> None:
    layer = make_layer(convolution).to(dtype)
    x, hx = inputs_for(convolution, dtype)
    results = run(layer, layer, x, hx)
    assert {value.dtype for value in results.values()} == {dtype}
    expected, _ = layer.double()(x.double(), hx.double())
    assert_close(results["output"].double(), expected, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_parts_of_a_gradient_are_summed_unrounded() -> None:
    # Each of 999 positions gives u a gradient of 1 + 2⁻⁸, which is 1 in bfloat16. Their sum, 1002.9, rounds to 1004;
    # 999 would round to 1000.
    layer = ConvIndRNN1d(1, 1, 1, bias=False, nonlinearity="identity", dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight_ih.fill_(1)
        layer.weight_hh.fill_(0)
    x = torch.ones(3, 1, 1, 999, dtype=torch.bfloat16)
    x[1] = 2**-8
    output, _ = layer(x)
    (gradient,) = torch.autograd.grad(output.sum(), layer.weight_hh)
    assert torch.equal(gradient, torch.tensor([999 * (1 + 2**-8)]).bfloat16())


# ---- parameters and state


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@both_us
@convolutions
def test_parameters(convolution: str, per_position: bool, bias: bool) -> None:
    dims, options = CONVOLUTIONS[convolution]
    layer = make_layer(convolution, per_position, bias=bias)
    torchs: Any = TORCHS[dims](C_IN, C_OUT, **options)
    expected = {
        "weight_ih": tuple(torchs.weight.shape),
        "weight_hh": (C_OUT, *(output_size(dims, options) if per_position else ())),
        **({"bias": (C_OUT,)} if bias else {}),
    }
    assert {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()} == expected


@both_dims
def test_arguments_come_in_torchs_order(dims: int) -> None:
    arguments = (C_IN, C_OUT, 5, 2, 3, 4, 2)
    ours: Any = (ConvIndRNN1d if dims == 1 else ConvIndRNN2d)(*arguments, False)
    torchs: Any = TORCHS[dims](*arguments, False)
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"):
        assert getattr(ours, name) == getattr(torchs, name), name


def test_parameters_start_as_documented() -> None:
    layer = ConvIndRNN2d(14, 998, (3, 7), groups=2, positions=(4, 3))
    limit = 0.304 / (7 * 3 * 7) ** 0.5
    assert 0.99 * limit < layer.weight_ih.abs().max() <= limit
    assert_close(layer.weight_ih.std(), torch.tensor(limit / 3**0.5), rtol=0.01, atol=0)
    assert layer.bias is not None
    assert not layer.bias.any()
    assert 0 <= layer.weight_hh.min() < 0.01
    assert 0.99 < layer.weight_hh.max() <= 1


@both_us
def test_reset_parameters_draws_anew(per_position: bool) -> None:
    layer = make_layer("2d", per_position)
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    for name, parameter in layer.named_parameters():
        assert not (parameter == before[name]).any(), name
        assert parameter.isfinite().all(), name


@both_us
def test_long_memory_raises_the_recurrent_weights(per_position: bool) -> None:
    options: dict[str, Any] = {"sequence_length": 100, "epsilon": 0.5, "positions": 7 if per_position else None}
    u = ConvIndRNN1d(1, 999, 1, long_memory=True, **options).weight_hh
    assert u.min() >= torch.tensor(0.5 ** (1 / 100))
    assert u.max() <= 1
    assert ConvIndRNN1d(1, 999, 1, **options).weight_hh.min() < 0.1


@both_us
@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_constraint(convolution: str, per_position: bool) -> None:
    layer = make_layer(convolution, per_position, gamma=2, sequence_length=9, dtype=torch.float32)
    upper = layer.bound.upper
    assert upper == 2 ** (1 / 9)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e3)
    handle = attach_constraint(optimizer, layer)
    layer(inputs_for(convolution, torch.float32)[0])[0].sum().backward()
    optimizer.step()
    assert layer.weight_ih.abs().max() > upper, "the step must be a large one"
    assert layer.weight_hh.abs().double().max() <= upper
    assert (layer.weight_hh.abs() > upper - 1e-6).any()
    handle.remove()


@both_us
def test_lower_bound_keeps_one_neuron_of_the_layer(per_position: bool) -> None:
    layer = make_layer("2d", per_position, sequence_length=100, lower_bound=True)
    with torch.no_grad():
        layer.weight_hh.uniform_(-0.1, 0.1)
    constrain_(layer)
    assert (layer.weight_hh.abs() >= layer.bound.lower).sum() == 1
    assert layer.bound.lower == 0.2 ** (1 / 100)


@both_us
@pytest.mark.parametrize("convolution", ["1d", "2d"])
def test_decay_is_on_the_kernel_only(convolution: str, per_position: bool) -> None:
    layer = make_layer(convolution, per_position)
    decayed, others = parameter_groups(layer, 0.01)
    assert [id(parameter) for parameter in decayed["params"]] == [id(layer.weight_ih)]
    assert [id(parameter) for parameter in others["params"]] == [id(layer.weight_hh), id(layer.bias)]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)


@both_us
@pytest.mark.parametrize("convolution", ["1d dilation groups", "2d same"])
def test_copies_compute_the_same(convolution: str, per_position: bool) -> None:
    layer = make_layer(convolution, per_position, gamma=2, sequence_length=9)
    loaded = make_layer(convolution, per_position, gamma=2, sequence_length=9)
    loaded.load_state_dict(layer.state_dict())
    x, hx = inputs_for(convolution)
    expected = run(layer, layer, x, hx)
    for other in (loaded, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(run(other, other, x, hx), expected, rtol=0, atol=0)
        assert other.bound.upper == 2 ** (1 / 9)
        with torch.no_grad():
            other.weight_hh.zero_()
    assert_close(run(layer, layer, x, hx), expected, rtol=0, atol=0)


def test_meta_device_then_memory_then_weights() -> None:
    layer = ConvIndRNN1d(C_IN, C_OUT, 3, positions=7, lower_bound=True, sequence_length=9, device="meta")
    assert all(parameter.is_meta for parameter in layer.parameters())
    original = ConvIndRNN1d(C_IN, C_OUT, 3, positions=7, lower_bound=True, sequence_length=9)
    layer.to_empty(device="cpu").load_state_dict(original.state_dict())
    x = torch.randn(T, B, C_IN, 9)
    assert_close(layer(x), original(x), rtol=0, atol=0)


def test_skip_init() -> None:
    layer = nn.utils.skip_init(ConvIndRNN2d, C_IN, C_OUT, kernel_size=3)
    assert isinstance(layer, ConvIndRNN2d)


def test_repr_shows_what_was_asked_for() -> None:
    plain = repr(ConvIndRNN1d(C_IN, C_OUT, 3))
    assert "ConvIndRNN1d(\n  4, 6, kernel_size=(3,)\n" in plain
    text = repr(ConvIndRNN2d(C_IN, C_OUT, (3, 5), padding="same", bias=False, reverse=True, positions=(7, 9)))
    assert "4, 6, kernel_size=(3, 5), padding='same', bias=False, reverse=True, positions=(7, 9)\n" in text


# ---- what is refused

BAD_ARGUMENTS: list[tuple[Any, ...]] = [
    (1, {"in_channels": 0}, ValueError, "in_channels must be at least 1, got 0"),
    (1, {"out_channels": 1.0}, TypeError, "out_channels must be an integer, got float"),
    (1, {"groups": 0}, ValueError, "groups must be at least 1, got 0"),
    (1, {"groups": 4}, ValueError, "groups must divide in_channels = 4 and out_channels = 6, got 4"),
    (1, {"kernel_size": 0}, ValueError, "kernel_size must be at least 1, got 0"),
    (1, {"kernel_size": "3"}, TypeError, "kernel_size must be an integer, got str"),
    (1, {"kernel_size": (3, 3)}, ValueError, r"kernel_size must be one integer, got \(3, 3\)"),
    (2, {"kernel_size": (3, 0)}, ValueError, "kernel_size must be at least 1, got 0"),
    (2, {"kernel_size": (3,)}, ValueError, r"kernel_size must be one integer or 2, got \(3,\)"),
    (2, {"kernel_size": (3, 1.5)}, TypeError, "kernel_size must be an integer, got float"),
    (2, {"stride": 0}, ValueError, "stride must be at least 1, got 0"),
    (2, {"dilation": (1, -1)}, ValueError, "dilation must be at least 1, got -1"),
    (1, {"padding": -1}, ValueError, "padding must be at least 0, got -1"),
    (1, {"padding": "full"}, ValueError, "padding must be 'same', 'valid' or in numbers, got 'full'"),
    (2, {"padding": "same", "stride": (1, 2)}, ValueError, r"padding must not be 'same' where .* of \(1, 2\)"),
    (1, {"positions": 0}, ValueError, "positions must be at least 1, got 0"),
    (2, {"positions": (1, 2, 3)}, ValueError, "positions must be one integer or 2"),
    (1, {"nonlinearity": "gelu"}, ValueError, "nonlinearity must be one of 'relu', .*got 'gelu'"),
    (1, {"backend": "quantum"}, ValueError, "backend must be one of .*got 'quantum'"),
    (1, {"gamma": 2.0}, ValueError, "sequence_length is needed to turn gamma"),
    (1, {"long_memory": True}, ValueError, "sequence_length is needed for long_memory"),
]


@pytest.mark.parametrize(
    ("dims", "options", "error", "message"), BAD_ARGUMENTS, ids=[f"{case[0]}d {case[-1]}" for case in BAD_ARGUMENTS]
)
def test_bad_arguments_are_named(dims: int, options: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"in_channels": C_IN, "out_channels": C_OUT, "kernel_size": 3, **options}
    with pytest.raises(error, match=message):
        (ConvIndRNN1d if dims == 1 else ConvIndRNN2d)(**given)


X = {dims: torch.zeros(T, B, C_IN, *size) for dims, size in SIZES.items()}
RESETS_BATCH_FIRST = RESETS.t().contiguous()

BAD_INPUTS: list[tuple[Any, ...]] = [
    (1, [0.0], {}, TypeError, "input must be a tensor, got list"),
    (1, X[2], {}, ValueError, r"input must have the shape \(T, B, 4, L\), got \(5, 3, 4, 6, 7\)"),
    (2, X[1], {}, ValueError, r"input must have the shape \(T, B, 4, H, W\), got \(5, 3, 4, 9\)"),
    (1, X[1][:, 0], {}, ValueError, r"input must have the shape \(T, B, 4, L\), got \(5, 4, 9\)"),
    (1, torch.zeros(T, B, 3, 9), {}, ValueError, r"input must have the shape \(T, B, 4, L\), got \(5, 3, 3, 9\)"),
    (2, torch.zeros(T, B, 5, 6, 7), {}, ValueError, r"input must have the shape \(T, B, 4, H, W\), got"),
    (1, X[1][..., :2], {}, ValueError, r"input must not be smaller than kernel_size = \(3,\) .* allows, got \(2,\)"),
    (2, X[2][..., :2], {}, ValueError, r"input must not be smaller than kernel_size = \(3, 3\) .*, got \(6, 2\)"),
    (1, X[1].double(), {}, TypeError, "input must be of the layer's type, torch.float32, got torch.float64"),
    (1, X[1].to("meta"), {}, ValueError, "input must be on the layer's device, cpu, got one on meta"),
    (1, X[1], {"hx": torch.zeros(B, C_OUT, 9)}, ValueError, r"hx must have the shape \(3, 6, 7\) .*got \(3, 6, 9\)"),
    (1, X[1], {"hx": torch.zeros(1, B, C_OUT, 7)}, ValueError, r"hx must have the shape \(3, 6, 7\)"),
    (2, X[2], {"hx": torch.zeros(B, C_OUT)}, ValueError, r"hx must have the shape \(3, 6, 4, 5\) .*got \(3, 6\)"),
    (1, X[1], {"hx": torch.zeros(B, C_OUT, 7).double()}, TypeError, "hx must be of"),
    (1, X[1], {"hx": [0.0]}, TypeError, "hx must be a tensor or None"),
    (1, X[1], {"lengths": {5}}, TypeError, "lengths must be a tensor or None, got set"),
    (1, X[1], {"lengths": LENGTHS[:2]}, ValueError, r"lengths must have the shape \(3,\)"),
    (1, X[1], {"lengths": LENGTHS.float()}, TypeError, "lengths must be int64 or int32, got torch.float32"),
    (2, X[2], {"lengths": LENGTHS + 1}, ValueError, "lengths must lie between 0 and T = 5.* 2 to 6"),
    (1, X[1], {"resets": RESETS_BATCH_FIRST}, ValueError, r"resets must have the shape \(5, 3\)"),
    (1, X[1], {"resets": RESETS.float()}, TypeError, "resets must be bool, got torch.float32"),
]


@pytest.mark.parametrize(
    ("dims", "input", "options", "error", "message"), BAD_INPUTS, ids=[f"{case[0]}d {case[-1]}" for case in BAD_INPUTS]
)
def test_bad_inputs_are_named(
    dims: int, input: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    layer = (ConvIndRNN1d if dims == 1 else ConvIndRNN2d)(C_IN, C_OUT, 3)
    with pytest.raises(error, match=message):
        layer(input, **options)


def test_positions_that_are_not_the_outputs_are_named() -> None:
    with pytest.raises(ValueError, match=r"positions must be the output's, \(7,\) for this input, got \(9,\)"):
        ConvIndRNN1d(C_IN, C_OUT, 3, positions=9)(X[1])
    with pytest.raises(ValueError, match=r"positions must be the output's, \(4, 5\) for this input, got \(5, 4\)"):
        ConvIndRNN2d(C_IN, C_OUT, 3, positions=(5, 4))(X[2])


def test_batch_first_shapes_are_named() -> None:
    layer = ConvIndRNN1d(C_IN, C_OUT, 3, batch_first=True)
    x = X[1].transpose(0, 1)
    with pytest.raises(ValueError, match=r"resets must have the shape \(3, 5\)"):
        layer(x, resets=RESETS)
    with pytest.raises(ValueError, match=r"hx must have the shape \(3, 6, 7\)"):
        layer(x, torch.zeros(T, C_OUT, 7))
    with pytest.raises(ValueError, match=r"input must have the shape \(B, T, 4, L\)"):
        layer(x[:, :, 1:])


def test_lengths_and_resets_are_keywords() -> None:
    with pytest.raises(TypeError):
        ConvIndRNN1d(C_IN, C_OUT, 3)(X[1], None, LENGTHS)
