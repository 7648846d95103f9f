"""What every network does, whichever it is: shapes, padding, documents, streams, copies, types, compilation, errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import attach_constraint, constrain_, parameter_groups
from indrnn.layers.norm import SequenceBatchNorm, StepBatchNorm
from indrnn.networks import Network, PlainIndRNN, RecurrentUnit, State
from tests.networks.networks import (
    ARCHITECTURES,
    LENGTHS,
    NORMS,
    OUTPUT_SIZES,
    B,
    M,
    T,
    assert_same,
    inputs,
    make,
    outputs_of_layers,
    trained,
)
from tests.processes import Results, assert_one_batch, divided, work, work_in_processes

pytestmark = pytest.mark.usefixtures("_one_thread")

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)
norms = pytest.mark.parametrize("norm", NORMS)
# The rows of a step norm's statistics do not begin again with a document.
norms_of_documents = pytest.mark.parametrize("norm", [norm for norm in NORMS if not norm.startswith("step norm")])

EXACT: dict[str, Any] = {"rtol": 0, "atol": 0}
STREAM: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}  # in float64


# ---- shapes


@architectures
@norms
def test_shapes(norm: str, architecture: str) -> None:
    network = make(architecture, norm)
    assert network.input_size == M
    assert network.output_size == OUTPUT_SIZES[architecture]
    features, state = network(inputs())
    assert features.shape == (T, B, network.output_size)
    assert [tuple(h.shape) for h in state.h] == [(B, layer.weight_hh.numel()) for layer in network.recurrent_layers]
    assert state.position.tolist() == [T] * B
    assert state.position.dtype == torch.int64
    assert network(inputs(), last=True)[0].shape == (B, network.output_size)


@architectures
@norms
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_batch_first(training: bool, norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64).train(training)
    other = make(architecture, norm, dtype=torch.float64, batch_first=True).train(training)
    other.load_state_dict(network.state_dict())
    x, resets = inputs(torch.float64), torch.rand(T, B) < 0.2
    gradient = torch.randn(T, B, network.output_size, dtype=torch.float64)
    expected = work(network, x, {"lengths": LENGTHS, "resets": resets}, gradient)
    actual = work(
        other, x.transpose(0, 1), {"lengths": LENGTHS, "resets": resets.transpose(0, 1)}, gradient.transpose(0, 1)
    )
    for name in ("output", "input.grad"):
        assert actual[name].shape[:2] == (B, T)
        actual[name] = actual[name].transpose(0, 1)
    assert_same(actual, expected, **CLOSE)
    states = [
        net.eval()(x_, lengths=LENGTHS, resets=r)[1]
        for net, x_, r in ((network, x, resets), (other, x.transpose(0, 1), resets.transpose(0, 1)))
    ]
    assert_close(states[0], states[1], **CLOSE)


@architectures
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_last_valid_step(batch_first: bool, architecture: str) -> None:
    network = trained(make(architecture, batch_first=batch_first))
    x = inputs().transpose(0, 1) if batch_first else inputs()
    every = network(x)[0].transpose(0, 1) if batch_first else network(x)[0]
    assert torch.equal(network(x, last=True)[0], every[-1])

    last, state = network(x, lengths=LENGTHS, last=True)
    for b, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(last[b], every[length - 1, b] if length else torch.zeros_like(last[b]))
    assert state.position.tolist() == LENGTHS.tolist()


@architectures
def test_gradient_from_the_last_valid_step(architecture: str) -> None:
    network = make(architecture, dtype=torch.float64)
    gradient = torch.randn(B, network.output_size, dtype=torch.float64)
    at = torch.zeros(T, B, network.output_size, dtype=torch.float64)
    for b, length in enumerate(LENGTHS.tolist()):
        if length:
            at[length - 1, b] = gradient[b]
    x = inputs(torch.float64)
    expected = work(copy.deepcopy(network), x, {"lengths": LENGTHS}, at)
    actual = work(network, x, {"lengths": LENGTHS, "last": True}, gradient)
    assert_same({**actual, "output": expected["output"]}, expected, **CLOSE)


@architectures
@norms
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_no_steps(training: bool, norm: str, architecture: str) -> None:
    network = make(architecture, norm).train(training)
    _, state = network(inputs())
    before = copy.deepcopy(network.state_dict())
    features, after = network(inputs()[:0], state)
    assert features.shape == (0, B, network.output_size)
    assert_close(after, state, **EXACT)
    assert torch.equal(network(inputs()[:0], last=True)[0], torch.zeros(B, network.output_size))
    assert_close(network.state_dict(), before, **EXACT)


# ---- padding


@architectures
@norms
def test_ragged_batch_equals_each_sequence_alone(norm: str, architecture: str) -> None:
    network = trained(make(architecture, norm, dtype=torch.float64))
    x = inputs(torch.float64)
    features, state = network(x, lengths=LENGTHS)
    for b, length in enumerate(LENGTHS.tolist()):
        alone, state_alone = network(x[:length, b : b + 1])
        assert_close(features[:length, b : b + 1], alone, **CLOSE)
        assert (features[length:, b] == 0).all()
        assert_close([h[b : b + 1] for h in state.h], list(state_alone.h), **CLOSE)
        assert state.position[b] == state_alone.position[0] == length


@architectures
@norms
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_nan_in_the_padding_changes_nothing(training: bool, norm: str, architecture: str) -> None:
    network = make(architecture, norm).train(training)
    x = inputs()
    gradient = torch.randn(T, B, network.output_size)
    valid = torch.arange(T).unsqueeze(1) < LENGTHS
    expected = work(copy.deepcopy(network), x, {"lengths": LENGTHS}, gradient)
    # Neither what stands in the padding matters, nor the gradient that comes back to it.
    x, gradient = torch.where(valid.unsqueeze(-1), x, torch.nan), torch.where(valid.unsqueeze(-1), gradient, 3.0)
    actual = work(network, x, {"lengths": LENGTHS}, gradient)
    assert_same(actual, expected, **EXACT)
    assert (actual["output"][~valid] == 0).all()
    assert (actual["input.grad"][~valid] == 0).all()
    assert all(value.isfinite().all() for value in actual.values())


@architectures
@norms
def test_nothing_but_padding(norm: str, architecture: str) -> None:
    network = make(architecture, norm)
    results = work(
        network,
        inputs(),
        {"lengths": torch.zeros(B, dtype=torch.int64)},
        torch.ones(T, B, network.output_size),
    )
    buffers = dict(network.named_buffers())
    for name, value in results.items():
        assert torch.equal(value, buffers[name] if name in buffers else torch.zeros_like(value)), name


# ---- documents


@architectures
@norms_of_documents
def test_concatenated_documents_equal_each_alone(norm: str, architecture: str) -> None:
    network = trained(make(architecture, norm, dtype=torch.float64))
    rows = [[4, 1, 6], [11], [2, 9], [5, 6], [1, 1, 9], [10, 1], [3, 3, 5]]
    resets = torch.zeros(T, B, dtype=torch.bool)
    for b, sizes in enumerate(rows):
        for i in range(1, len(sizes)):
            resets[sum(sizes[:i]), b] = True
    x = inputs(torch.float64)
    features, state = network(x, resets=resets)
    for b, sizes in enumerate(rows):
        for document, expected in zip(x[:, b : b + 1].split(sizes), features[:, b : b + 1].split(sizes), strict=True):
            alone, state_alone = network(document)
            assert_close(expected, alone, **CLOSE)
        assert_close([h[b : b + 1] for h in state.h], list(state_alone.h), **CLOSE)
        assert state.position[b] == sizes[-1]


@architectures
@norms_of_documents
def test_a_reset_forgets_the_state_before(norm: str, architecture: str) -> None:
    network = trained(make(architecture, norm))
    x, resets = inputs(), torch.zeros(T, B, dtype=torch.bool)
    resets[0] = True
    _, state = network(inputs())
    assert_close(network(x, state, resets=resets), network(x), **EXACT)
    assert not torch.equal(network(x, state)[0], network(x)[0])


# ---- streaming


def stream(
    network: Network, x: Tensor, sizes: Sequence[int], lengths: Tensor | None = None, resets: Tensor | None = None
) -> tuple[Tensor, State]:
    """The whole in pieces along time, each with the state that the one before left."""
    time = 1 if network.batch_first else 0
    state, start, pieces = None, 0, []
    for piece in x.split(list(sizes), dim=time):
        steps = piece.shape[time]
        features, state = network(
            piece,
            state,
            lengths=None if lengths is None else (lengths - start).clamp(0, steps),
            resets=None if resets is None else resets.narrow(time, start, steps),
        )
        pieces.append(features)
        start += steps
    assert state is not None
    return torch.cat(pieces, dim=time), state


@architectures
@norms
@pytest.mark.parametrize("sizes", [[1] * T, [3, 1, 5, 2], [2, 0, 9]], ids=["frames", "chunks", "with an empty one"])
def test_stream_equals_whole(sizes: list[int], norm: str, architecture: str) -> None:
    network = trained(make(architecture, norm))
    x = inputs()
    with torch.no_grad():
        whole = network(x)
        assert_close(stream(network, x, sizes), whole, **STREAM)
    assert whole[0].abs().max() > 0.1


@architectures
@norms
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_stream_with_lengths_and_resets(batch_first: bool, norm: str, architecture: str) -> None:
    network = trained(make(architecture, norm, batch_first=batch_first))
    x, resets = inputs(), torch.rand(T, B) < 0.2
    if batch_first:
        x, resets = x.transpose(0, 1), resets.transpose(0, 1)
    with torch.no_grad():
        whole = network(x, lengths=LENGTHS, resets=resets)
        assert_close(stream(network, x, [1] * T, LENGTHS, resets), whole, **STREAM)
        assert_close(stream(network, x, [4, 1, 6], LENGTHS, resets), whole, **STREAM)


@architectures
def test_a_stream_leaves_its_states_alone(architecture: str) -> None:
    network = trained(make(architecture))
    with torch.no_grad():
        _, state = network(inputs())
        before = copy.deepcopy(state)
        network(inputs(), state)
    assert_close(state, before, **EXACT)


@architectures
def test_gradient_through_the_state(architecture: str) -> None:
    # In evaluation two pieces are the whole, and so are their gradients.
    network = make(architecture, dtype=torch.float64).eval()

    class Streamed(nn.Module):
        def __init__(self, network: Network) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            return stream(self.network, x, [4, 7])[0]

    x, gradient = inputs(torch.float64), torch.randn(T, B, network.output_size, dtype=torch.float64)
    assert_same(work(network, x, {}, gradient), work(Streamed(network), x, {}, gradient), **CLOSE)


# ---- order, and the long memory


@architectures
@norms
def test_recurrent_layers_are_in_the_order_of_running(norm: str, architecture: str) -> None:
    network = make(architecture, norm)
    ran = outputs_of_layers(network, inputs())
    assert [layer for layer, _ in ran] == network.recurrent_layers
    assert len(ran) == {"plain": 3, "residual": 5, "dense": 9}[architecture]


@architectures
def test_long_memory_reaches_the_last_recurrent_layer(architecture: str) -> None:
    steps, epsilon = 100, 0.5
    lower = epsilon ** (1 / steps)  # 0.993: in U(0, 1) a whole layer is never above it
    network = ARCHITECTURES[architecture](norm=None, sequence_length=steps, long_memory=True, epsilon=epsilon)
    *others, last = network.recurrent_layers

    x = inputs()
    ran = outputs_of_layers(network, x)
    assert ran[-1][0] is last
    assert torch.equal(ran[-1][1], network(x)[0])  # it is what comes out

    for _ in range(2):
        assert last.weight_hh.min() >= torch.tensor(lower)
        assert last.weight_hh.max() <= 1
        assert all(layer.weight_hh.min() < lower for layer in others)
        for layer in network.recurrent_layers:  # and again when they are drawn anew
            layer.reset_parameters()


@architectures
def test_without_long_memory_no_layer_has_it(architecture: str) -> None:
    network = ARCHITECTURES[architecture](sequence_length=100)
    assert all(layer.weight_hh.min() < 0.9 for layer in network.recurrent_layers)


@architectures
def test_highest_start_reaches_every_layer_without_a_long_memory(architecture: str) -> None:
    network = ARCHITECTURES[architecture](sequence_length=100, long_memory=True, highest_start=0.2)
    *others, last = network.recurrent_layers
    assert all(layer.weight_hh.max() <= 0.2 for layer in others)
    assert last.weight_hh.min() > 0.9
    assert {layer.bound.upper for layer in network.recurrent_layers} == {1.0}


# ---- copies


@architectures
@norms
def test_copies_compute_the_same(norm: str, architecture: str, tmp_path: Path) -> None:
    network = trained(make(architecture, norm, gamma=2.0, sequence_length=9))
    safetensors.torch.save_file(network.state_dict(), tmp_path / "network.safetensors")
    loaded, from_file = (make(architecture, norm, gamma=2.0, sequence_length=9) for _ in range(2))
    loaded.load_state_dict(network.state_dict())
    from_file.load_state_dict(safetensors.torch.load_file(tmp_path / "network.safetensors"))
    copies = [loaded, from_file, copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
    x, gradient = inputs(), torch.randn(T, B, network.output_size)
    for training in (False, True):
        expected = work(network.train(training), x, {}, gradient)
        for other in copies:
            assert_same(work(other.train(training), x, {}, gradient), expected, **EXACT)
            assert [layer.bound.upper for layer in other.recurrent_layers] == [2 ** (1 / 9)] * len(
                network.recurrent_layers
            )


@architectures
def test_a_copy_shares_nothing(architecture: str) -> None:
    network = make(architecture)
    before = copy.deepcopy(network.state_dict())
    other = copy.deepcopy(network)
    other(inputs())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert_close(network.state_dict(), before, **EXACT)


# ---- types


@architectures
@norms
def test_float64(norm: str, architecture: str) -> None:
    network = make(architecture, norm)
    exact = make(architecture, norm, dtype=torch.float64)
    exact.load_state_dict(network.state_dict())
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in exact.state_dict().values())
    x = inputs()
    for training in (False, True):
        features, state = network.train(training)(x)
        exact_features, exact_state = exact.train(training)(x.double())
        assert exact_features.dtype == torch.float64
        assert all(h.dtype == torch.float64 for h in exact_state.h)
        # A few layers of float32's roundings, which a norm of few and near samples enlarges
        assert_close(features.double(), exact_features, rtol=0, atol=1e-4)
        assert torch.equal(state.position, exact_state.position)


@architectures
@norms
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_bfloat16_autocast(training: bool, norm: str, architecture: str) -> None:
    network = make(architecture, norm).train(training)
    x, gradient = inputs(), torch.randn(T, B, network.output_size)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = work(network, x, {"lengths": LENGTHS}, gradient.bfloat16())
        _, state = network(x, lengths=LENGTHS)
        network(x, state)  # whose states may be of another type than the parameters
    assert results["output"].dtype == torch.bfloat16
    assert all(value.isfinite().all() for value in results.values())
    for layer, (name, _) in zip(network.recurrent_layers, recurrent_weights(network), strict=True):
        assert layer.weight_hh.dtype == torch.float32
        assert results[f"{name}.grad"].dtype == torch.float32
    for name, buffer in network.named_buffers():
        assert buffer.dtype in (torch.float32, torch.int64), name


def recurrent_weights(network: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in network.named_parameters() if name.endswith("weight_hh")]


# ---- compilation


def assert_compiled_equals_eager(architecture: str, norm: str, backend: str) -> None:
    torch.compiler.reset()
    network = make(architecture, norm)
    eager = copy.deepcopy(network)
    compiled = torch.compile(network, fullgraph=True, backend=backend)
    options = {"lengths": LENGTHS, "resets": torch.rand(T, B) < 0.2}
    x, gradient = inputs(), torch.randn(T, B, network.output_size)
    expected = work(eager, x, options, gradient)
    actual = work(compiled, x, options, gradient)  # type: ignore[arg-type]
    actual = {name.removeprefix("_orig_mod."): value for name, value in actual.items()}
    assert_same(actual, expected, rtol=1e-4, atol=1e-4)  # float32, and sums in another order


def test_compile() -> None:
    assert_compiled_equals_eager("plain", "norm after", "aot_eager")


@pytest.mark.slow
@architectures
@pytest.mark.parametrize("norm", ["norm after", "step norm before"])
def test_compile_with_inductor(norm: str, architecture: str) -> None:
    assert_compiled_equals_eager(architecture, norm, "inductor")


@pytest.mark.slow
@architectures
@pytest.mark.parametrize("norm", ["norm after", "step norm after"])
def test_compiled_stream(norm: str, architecture: str) -> None:
    torch.compiler.reset()
    network = trained(make(architecture, norm))
    compiled = torch.compile(network, fullgraph=True)
    x = inputs()
    with torch.no_grad():
        whole, state_after = network(x)
        first, state = compiled(x[:4])
        second, state = compiled(x[4:], state)
    assert_close(torch.cat([first, second]), whole, **STREAM)
    assert_close(state, state_after, **STREAM)


# ---- evaluation without gradients, which computes over its own memory


@architectures
@pytest.mark.parametrize("norm", ["norm after", "norm before", "no norm"])
@pytest.mark.parametrize("backend", ["native", "reference", "scan"])
def test_evaluation_without_gradients(norm: str, architecture: str, backend: str) -> None:
    """Features and states are those of evaluation with gradients, and what was handed in is left alone."""
    network = trained(make(architecture, norm, backend=backend))
    x, lengths = inputs(), LENGTHS
    before = x.clone()
    expected, state = network(x, lengths=lengths)
    with torch.no_grad():
        found, found_state = network(x, lengths=lengths)
        once, middle = network(x[:4])
        kept = torch.cat([h.flatten() for h in middle.h]).clone()
        again, _ = network(x[4:], middle)
    with torch.inference_mode():
        inferred, _ = network(x, lengths=lengths)
    whole, _ = network(x)
    assert_close(found, expected, rtol=0, atol=1e-6)
    assert_close(inferred, expected, rtol=0, atol=1e-6)
    assert_close(found_state, state, rtol=0, atol=1e-6)
    assert_close(torch.cat([once, again]), whole, **STREAM)
    assert torch.equal(torch.cat([h.flatten() for h in middle.h]), kept)
    assert torch.equal(x, before)


@architectures
def test_hook_on_a_norm_keeps_its_input_in_evaluation(architecture: str) -> None:
    network = trained(make(architecture, "norm after"))
    norm = next(module for module in network.modules() if isinstance(module, SequenceBatchNorm))
    kept: list[Tensor] = []
    norm.register_forward_hook(lambda _module, given, _output: kept.append(given[0]))
    x = inputs()
    with torch.no_grad():
        network(x)
    network(x)
    assert_close(kept[0], kept[1].detach(), rtol=0, atol=1e-6)


# ---- constraint and decay


@architectures
def test_constraint_reaches_every_layer(architecture: str) -> None:
    network = make(architecture, gamma=2.0, sequence_length=10)
    with torch.no_grad():
        for layer in network.recurrent_layers:
            layer.weight_hh.copy_(torch.linspace(-3, 3, layer.weight_hh.numel()))
    constrain_(network)
    for layer in network.recurrent_layers:
        assert layer.weight_hh.abs().max() <= 2 ** (1 / 10)
        assert_close(layer.weight_hh.min().item(), -(2 ** (1 / 10)), rtol=1e-6, atol=0)


@architectures
def test_attached_constraint_reaches_every_layer(architecture: str) -> None:
    network = make(architecture)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    handle = attach_constraint(optimizer, network)
    for held in (True, False):
        for layer in network.recurrent_layers:
            layer.weight_hh.grad = torch.full_like(layer.weight_hh, -9.0)
        optimizer.step()
        for layer in network.recurrent_layers:
            assert (layer.weight_hh == 1).all() if held else (layer.weight_hh > 1).all()
        handle.remove()


@architectures
def test_lower_bound_reaches_every_layer(architecture: str) -> None:
    network = make(architecture, lower_bound=True, sequence_length=10, epsilon=0.5)
    with torch.no_grad():
        for layer in network.recurrent_layers:
            layer.weight_hh.fill_(0.1)
    constrain_(network)
    for layer in network.recurrent_layers:
        assert (layer.weight_hh > 0.1).sum() == 1
        assert layer.weight_hh.max() >= torch.tensor(0.5 ** (1 / 10))


@architectures
@norms
def test_decay_is_on_the_weights_alone(norm: str, architecture: str) -> None:
    network = make(architecture, norm)
    names = {parameter: name for name, parameter in network.named_parameters()}
    decays = {
        names[parameter]: group["weight_decay"]
        for group in parameter_groups(network, 0.01)
        for parameter in group["params"]
    }
    weights = {f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    assert decays == {name: 0.01 if name in weights else 0.0 for name in names.values()}
    assert len(weights) == len(network.recurrent_layers)


# ---- one batch in two processes


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Results, Sequence[Results]]]:
    """By norm, what one process makes of a batch, and what two do."""
    torch.manual_seed(0)
    wholes, calls = {}, []
    for norm in NORMS:
        network = make("plain", norm, synchronised=True, dtype=torch.float64)
        x, gradient = inputs(torch.float64), torch.randn(T, B, network.output_size, dtype=torch.float64)
        calls.append(divided(network, x, {"lengths": LENGTHS}, gradient, 2))
        wholes[norm] = work(network, x, {"lengths": LENGTHS}, gradient)
    by_rank = [list(of_rank) for of_rank in zip(*calls, strict=True)]
    results, _ = work_in_processes(by_rank, tmp_path_factory.mktemp("two"))
    return {norm: (wholes[norm], parts) for norm, *parts in zip(NORMS, *results, strict=True)}


@norms
def test_two_processes_equal_one(norm: str, in_two_processes: dict[str, tuple[Results, Sequence[Results]]]) -> None:
    whole, parts = in_two_processes[norm]
    assert len(parts) == 2
    assert_one_batch(parts, whole, **CLOSE)


@architectures
@norms
def test_synchronised_reaches_every_norm(norm: str, architecture: str) -> None:
    for synchronised in (True, False):
        network = make(architecture, norm, synchronised=synchronised)
        kind = {"batch": SequenceBatchNorm, "step": StepBatchNorm, "layer": nn.LayerNorm, "rms": nn.RMSNorm}
        found = [layer.norm for layer in network.recurrent_layers if layer.norm is not None]
        assert len(found) == (0 if norm == "no norm" else len(network.recurrent_layers))
        for each in found:
            assert type(each) is kind[NORMS[norm]["norm"]]
            assert getattr(each, "synchronised", synchronised) == synchronised


# ---- errors


X = torch.zeros(T, B, M)
STATE = State(tuple(torch.zeros(B, 9) for _ in range(3)), torch.zeros(B, dtype=torch.int64))

BAD_INPUTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"input": torch.zeros(T, B, M + 1)},
        ValueError,
        r"input must have the shape \(T, B, 3\) or \(T, 3\), got \(11, 7, 4\)",
    ),
    ({"input": torch.zeros(M)}, ValueError, r"input must have the shape \(T, B, 3\) or \(T, 3\), got \(3,\)"),
    ({"input": X.double()}, TypeError, "input must be of the layer's type, torch.float32, got torch.float64"),
    ({"input": X.to("meta")}, ValueError, "input must be on the layer's device, cpu, got one on meta"),
    ({"input": [0.0]}, TypeError, "input must be a tensor or a PackedSequence, got list"),
    ({"lengths": torch.ones(B + 1)}, ValueError, r"lengths must have the shape \(7,\) for this input, got \(8,\)"),
    ({"lengths": [1] * (B - 1)}, ValueError, r"lengths must have the shape \(7,\) for this input, got \(6,\)"),
    ({"lengths": {1}}, TypeError, "lengths must be a tensor or None, got set"),
    ({"lengths": torch.full((B,), T + 1)}, ValueError, "lengths must lie between 0 and T = 11"),
    ({"lengths": torch.full((B,), 1.5)}, TypeError, "lengths must be int64 or int32, got torch.float32"),
    ({"resets": torch.zeros(B, T, dtype=torch.bool)}, ValueError, r"resets must have the shape \(11, 7\)"),
    ({"resets": torch.zeros(T, B, dtype=torch.int64)}, TypeError, "resets must be bool, got torch.int64"),
    ({"state": STATE.h}, TypeError, "state must be what an earlier call returned, or None, got tuple"),
    ({"state": STATE._replace(h=STATE.h[:2])}, ValueError, "state must hold the states of 3 recurrent layers, got 2"),
    (
        {"state": STATE._replace(h=(*STATE.h[:2], torch.zeros(B, 8)))},
        ValueError,
        r"state\.h\[2\] must have the shape \(7, 9\) for this input, got \(7, 8\)",
    ),
    ({"state": STATE._replace(h=tuple(h.double() for h in STATE.h))}, TypeError, r"state\.h\[0\] must be of"),
    ({"state": STATE._replace(position=torch.zeros(1, dtype=torch.int64))}, ValueError, r"state\.position must have"),
    ({"state": STATE._replace(position=torch.zeros(B))}, TypeError, r"state\.position must be"),
]


@pytest.mark.parametrize("norm", ["norm after", "step norm before"])
@pytest.mark.parametrize(("options", "error", "message"), BAD_INPUTS, ids=[case[-1] for case in BAD_INPUTS])
def test_bad_inputs_are_named(options: dict[str, Any], error: type[Exception], message: str, norm: str) -> None:
    with pytest.raises(error, match=message):
        make("plain", norm).eval()(**{"input": X, **options})


def test_bad_inputs_are_named_with_the_batch_first() -> None:
    network = make("plain", batch_first=True)
    with pytest.raises(ValueError, match=r"input must have the shape \(B, T, 3\) or \(T, 3\), got \(7, 11, 4\)"):
        network(torch.zeros(B, T, M + 1))
    with pytest.raises(ValueError, match=r"resets must have the shape \(7, 11\)"):
        network(X.transpose(0, 1), resets=torch.zeros(T, B, dtype=torch.bool))


BAD_SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"nonlinearity": "gelu"}, ValueError, "nonlinearity must be one of 'relu', .*got 'gelu'"),
    ({"norm": "before"}, ValueError, "norm must be one of 'batch', 'step', 'layer', 'rms', None, got 'before'"),
    ({"norm_place": "between"}, ValueError, "norm_place must be one of 'before', 'after', got 'between'"),
    ({"norm": "step", "norm_steps": 0}, ValueError, "norm_steps must be at least 1, got 0"),
    ({"norm": "step", "norm_steps": 1.5}, TypeError, "norm_steps must be an integer, got float"),
    ({"norm": "step"}, ValueError, "norm_steps must be given for norm = 'step' and for no other, got None"),
    ({"norm_steps": 5}, ValueError, "norm_steps must be given for norm = 'step' and for no other, got 5"),
    ({"bound": 0.0}, ValueError, "bound must be a positive number or None, got 0.0"),
    ({"bound": 0.9, "gamma": 2.0}, ValueError, "bound and gamma cannot both be given"),
    ({"weight_std": -1.0}, ValueError, "weight_std must be a positive number or None, got -1.0"),
    ({"recompute": 0, "norm": None}, ValueError, "recompute must be at least 1, got 0"),
    ({"recompute": 5}, ValueError, "norm must be 'layer', 'rms' or None, got 'batch'"),
    ({"recompute": 5, "norm": None, "bidirectional": True}, ValueError, "recompute cannot be combined with bidirec"),
    ({"droput": 0.1}, TypeError, "has no option droput; it has backend"),
    ({"gamma": 2.0}, ValueError, "sequence_length is needed to turn gamma"),
    ({"gamma": -1.0}, ValueError, "gamma must be a positive number or None"),
    ({"long_memory": True}, ValueError, "sequence_length is needed for long_memory"),
    ({"lower_bound": True}, ValueError, "sequence_length is needed for lower_bound"),
    ({"epsilon": 0.0}, ValueError, r"epsilon must be a number in \(0, 1\], got 0\.0"),
    ({"backend": "abacus"}, ValueError, "backend must be one of .*got 'abacus'"),
]


@architectures
@pytest.mark.parametrize(("settings", "error", "message"), BAD_SETTINGS, ids=[case[-1] for case in BAD_SETTINGS])
def test_bad_settings_are_named(
    settings: dict[str, Any], error: type[Exception], message: str, architecture: str
) -> None:
    with pytest.raises(error, match=message):
        ARCHITECTURES[architecture](**settings)


@architectures
@norms
def test_repr_shows_the_layers(norm: str, architecture: str) -> None:
    network = make(architecture, norm, nonlinearity="tanh")
    kind, place = NORMS[norm]["norm"], NORMS[norm].get("norm_place", "after")
    assert f"recurrent_layers={len(network.recurrent_layers)}" in repr(network)
    for layer in network.recurrent_layers:
        shown = f"{kind} {place}" if kind else None
        assert repr(layer).startswith(f"RecurrentUnit(\n  {layer.weight_hh.numel()}, tanh, norm={shown}\n")


def test_repr_of_a_layer_shows_its_dropout() -> None:
    layer = PlainIndRNN(M, 9, 1, dropout=0.25).recurrent_layers[0]
    assert isinstance(layer, RecurrentUnit)
    assert "9, relu, norm=batch after, dropout=0.25" in repr(layer)
