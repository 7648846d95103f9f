"""IndRNN stands where torch.nn.RNN stands: the same numbers, shapes, calls and habits."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.testing import assert_close

from indrnn import IndRNN
from indrnn.layers.indrnn import project

T, B, M, N = 7, 4, 5, 13
LENGTHS = {"sorted": [7, 4, 4, 1], "unsorted": [4, 7, 1, 4]}

Call = Callable[[nn.Module, Tensor, Tensor | None], tuple[Tensor | PackedSequence, Tensor]]

both_nonlinearities = pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
with_and_without_hx = pytest.mark.parametrize("with_hx", [False, True], ids=["no hx", "hx"])
one_and_two_directions = pytest.mark.parametrize(
    "bidirectional", [False, True], ids=["unidirectional", "bidirectional"]
)


def make_layer(num_layers: int = 1, nonlinearity: str = "tanh", **options: Any) -> IndRNN:
    """A float64 layer with recurrent weights of both signs, and biases that are not 0."""
    layer = IndRNN(M, N, num_layers, nonlinearity, **{"dtype": torch.float64, **options})
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if not name.startswith("weight_ih"):
                parameter.uniform_(-1, 1)
    return layer


def twin(layer: IndRNN) -> nn.RNN:
    """The torch.nn.RNN that computes the same: weight_hh = diag(u), bias_hh = 0."""
    rnn = nn.RNN(
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        layer.nonlinearity,
        layer.bias,
        layer.batch_first,
        bidirectional=layer.bidirectional,
        dtype=next(layer.parameters()).dtype,
    )
    with torch.no_grad():
        for name, parameter in rnn.named_parameters():
            if name.startswith("bias_hh"):
                parameter.zero_()
            else:
                ours = layer.get_parameter(name.replace("bias_ih", "bias"))
                parameter.copy_(ours.diag() if ours.dim() == 1 and parameter.dim() == 2 else ours)
    return rnn


def gradient_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad.clone()


def parameter_gradients(module: nn.Module) -> dict[str, Tensor]:
    """By the names of IndRNN; of a full recurrent matrix the diagonal, which is what u can learn."""
    gradients = {}
    for name, parameter in module.named_parameters():
        gradient = gradient_of(parameter)
        if name.startswith("weight_hh") and gradient.dim() == 2:
            gradient = gradient.diagonal()
        if not name.startswith("bias_hh"):
            gradients[name.replace("bias_ih", "bias")] = gradient
    return gradients


def weighted_sum(output: Tensor) -> Tensor:
    """A loss that weighs each element by its own number, so that no two gradients can be swapped unseen."""
    weights = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).to(output.dtype)
    return (output * weights.view(output.shape)).sum()


def run(
    module: nn.Module, x: Tensor, hx: Tensor | None = None, call: Call | None = None, **options: Any
) -> dict[str, Tensor]:
    """Forward, as module(x, hx, ...) or by `call`, and backward: output, h_n, and every gradient."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    hx = None if hx is None else hx.clone().requires_grad_()
    output, h_n = module(x, hx, **options) if call is None else call(module, x, hx)
    data = output.data if isinstance(output, PackedSequence) else output
    (weighted_sum(data) + weighted_sum(h_n)).backward()
    results = {"output": data.detach(), "h_n": h_n.detach(), "input.grad": gradient_of(x)}
    if hx is not None:
        results["hx.grad"] = gradient_of(hx)
    return results | parameter_gradients(module)


def states(layer: IndRNN, *batch: int) -> Tensor:
    directions = 2 if layer.bidirectional else 1
    return torch.randn(layer.num_layers * directions, *batch, layer.hidden_size, dtype=next(layer.parameters()).dtype)


def pack(x: Tensor, order: str, batch_first: bool = False) -> PackedSequence:
    return pack_padded_sequence(x, torch.tensor(LENGTHS[order]), batch_first, enforce_sorted=order == "sorted")


# ---- the same numbers as torch.nn.RNN


@with_and_without_hx
@one_and_two_directions
@both_nonlinearities
@pytest.mark.parametrize(
    ("num_layers", "bias"), [(1, True), (2, False), (3, True)], ids=["1 layer", "2 layers no bias", "3 layers"]
)
@pytest.mark.parametrize("form", ["time first", "batch first", "unbatched", "unbatched batch first"])
def test_equals_torch(
    form: str, num_layers: int, bias: bool, nonlinearity: str, bidirectional: bool, with_hx: bool
) -> None:
    options: dict[str, Any] = {"bias": bias, "bidirectional": bidirectional, "batch_first": "batch first" in form}
    layer = make_layer(num_layers, nonlinearity, **options)
    lead = {"time first": (T, B), "batch first": (B, T)}.get(form, (T,))
    x = torch.randn(*lead, M, dtype=torch.float64)
    hx = states(layer, *([B] if len(lead) == 2 else [])) if with_hx else None
    ours = run(layer, x, hx)
    assert_close(ours, run(twin(layer), x, hx))
    directions = 2 if bidirectional else 1
    assert ours["output"].shape == (*lead, directions * N)
    assert ours["h_n"].shape == (num_layers * directions, *([B] if len(lead) == 2 else []), N)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (13, 9, 3, 7), (2, 1, 1, 13), (1, 17, 8, 1)], ids=str)
def test_equals_torch_in_float32_at_awkward_sizes(sizes: tuple[int, int, int, int]) -> None:
    steps, batch, inputs, hidden = sizes
    layer = IndRNN(inputs, hidden, 2, "tanh", bidirectional=True)
    x = torch.randn(steps, batch, inputs)
    assert_close(run(layer, x), run(twin(layer), x))


def test_equals_torch_on_a_strided_input() -> None:
    layer = make_layer(2)
    x = torch.randn(M, B, 2 * T, dtype=torch.float64).permute(2, 1, 0)[::2]
    assert not x.is_contiguous()
    with torch.no_grad():
        assert_close(layer(x), twin(layer)(x))


@one_and_two_directions
@with_and_without_hx
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_one_step_alone_equals_the_op(dtype: torch.dtype, with_hx: bool, bidirectional: bool) -> None:
    """A stream's next step does not go by the op, whose call costs more than it does; asked for by name it does."""
    ours = make_layer(2, bidirectional=bidirectional, dtype=dtype)
    by_op = make_layer(2, bidirectional=bidirectional, dtype=dtype, backend="reference")
    by_op.load_state_dict(ours.state_dict())
    x = torch.randn(1, B, M, dtype=dtype)
    hx = torch.randn(2 * (1 + bidirectional), B, N, dtype=dtype) if with_hx else None
    assert_close(ours(x, hx), by_op(x, hx))
    if dtype == torch.float64:
        for layer in (ours, by_op):
            output, h_n = layer(x, hx)
            (output.sum() + h_n.square().sum()).backward()
        assert_close([p.grad for p in ours.parameters()], [p.grad for p in by_op.parameters()])


@with_and_without_hx
@one_and_two_directions
@both_nonlinearities
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
@pytest.mark.parametrize("order", LENGTHS)
def test_packed_equals_torch(
    order: str, batch_first: bool, num_layers: int, nonlinearity: str, bidirectional: bool, with_hx: bool
) -> None:
    layer = make_layer(num_layers, nonlinearity, bidirectional=bidirectional, batch_first=batch_first)
    x = torch.randn(*((B, T) if batch_first else (T, B)), M, dtype=torch.float64)
    hx = states(layer, B) if with_hx else None

    def packed(module: nn.Module, x: Tensor, hx: Tensor | None) -> tuple[PackedSequence, Tensor]:
        return module(pack(x, order, batch_first), hx)  # type: ignore[no-any-return]

    assert_close(run(layer, x, hx, packed), run(twin(layer), x, hx, packed))


@pytest.mark.parametrize("order", LENGTHS)
def test_packed_output_is_packed_as_the_input(order: str) -> None:
    packed = pack(torch.randn(T, B, M, dtype=torch.float64), order)
    output, _ = make_layer()(packed)
    assert isinstance(output, PackedSequence)
    assert torch.equal(output.batch_sizes, packed.batch_sizes)
    for ours, given in (
        (output.sorted_indices, packed.sorted_indices),
        (output.unsorted_indices, packed.unsorted_indices),
    ):
        assert (ours is None) == (given is None) == (order == "sorted")
        assert ours is None or given is None or torch.equal(ours, given)


def test_packed_works_under_another_default_device() -> None:
    # As after torch.set_default_device("cuda"), with a model that stayed on the CPU.
    layer, packed = make_layer(), pack(torch.randn(T, B, M, dtype=torch.float64), "unsorted")
    expected, _ = layer(packed)
    with torch.device("meta"):
        output, _ = layer(packed)
    assert torch.equal(output.data, expected.data)


# ---- lengths and resets


@with_and_without_hx
@one_and_two_directions
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_lengths_equal_the_packed_form(batch_first: bool, bidirectional: bool, with_hx: bool) -> None:
    layer = make_layer(2, bidirectional=bidirectional, batch_first=batch_first)
    x = torch.randn(*((B, T) if batch_first else (T, B)), M, dtype=torch.float64)
    hx = states(layer, B) if with_hx else None

    def packed(module: nn.Module, x: Tensor, hx: Tensor | None) -> tuple[Tensor, Tensor]:
        output, h_n = module(pack(x, "unsorted", batch_first), hx)
        return pad_packed_sequence(output, batch_first, total_length=T)[0], h_n

    expected = run(layer, x, hx, packed)
    assert_close(run(layer, x, hx, lengths=torch.tensor(LENGTHS["unsorted"])), expected)


@pytest.mark.parametrize("filling", [1e3, float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_padding_changes_nothing(dtype: torch.dtype, filling: float) -> None:
    layer = make_layer(2, bidirectional=True)
    lengths = torch.tensor([4, 7, 0, 1], dtype=dtype)
    x = torch.randn(T, B, M, dtype=torch.float64)
    padding = torch.arange(T).unsqueeze(1) >= lengths
    other = torch.where(padding.unsqueeze(-1), filling, x)
    results = [run(layer, value, states(layer, B) * 0, lengths=lengths) for value in (x, other)]
    assert_close(results[0], results[1], rtol=0, atol=0)
    assert not results[0]["output"][padding].any()
    assert not results[0]["input.grad"][padding].any()


def test_unbatched_length() -> None:
    layer = make_layer(2, bidirectional=True)
    x = torch.randn(T, M, dtype=torch.float64)
    output, h_n = layer(x, lengths=torch.tensor(3))
    shorter, h_n_shorter = layer(x[:3])
    assert_close(output, F.pad(shorter, (0, 0, 0, T - 3)))
    assert_close(h_n, h_n_shorter)


DOCUMENTS = [[3, 1, 4], [5, 2], [8], [1, 1, 1]]  # in each row of a batch of 8 steps
STEPS = 8


def marks() -> Tensor:
    """(T, B): the first step of each document."""
    starts = torch.zeros(STEPS, len(DOCUMENTS), dtype=torch.bool)
    for row, sizes in enumerate(DOCUMENTS):
        starts[[0, *itertools.accumulate(sizes[:-1])], row] = True
    return starts


def each_alone(layer: IndRNN, x: Tensor) -> tuple[Tensor, Tensor]:
    """What `layer` makes of (T, B, M) when each document is run by itself."""
    output = x.new_zeros(STEPS, len(DOCUMENTS), N * (2 if layer.bidirectional else 1))
    h_n = states(layer, len(DOCUMENTS)) * 0
    for row, sizes in enumerate(DOCUMENTS):
        ends = list(itertools.accumulate(sizes))
        last = []
        for start, end in zip([0, *ends], ends, strict=False):
            output[start:end, row], state = layer(x[start:end, row])
            last.append(state)
        # Forward a row ends with its last document, in reverse with its first.
        h_n[:, row] = last[-1]
        if layer.bidirectional:
            h_n[1::2, row] = last[0][1::2]
    return output, h_n


@one_and_two_directions
@pytest.mark.parametrize("num_layers", [1, 3])
def test_documents_in_one_sequence_equal_each_alone(num_layers: int, bidirectional: bool) -> None:
    layer = make_layer(num_layers, bidirectional=bidirectional)
    x = torch.randn(STEPS, len(DOCUMENTS), M, dtype=torch.float64)
    lengths = torch.tensor([sum(sizes) for sizes in DOCUMENTS])
    gradients = []
    results = []
    for call in (lambda: layer(x, lengths=lengths, resets=marks()), lambda: each_alone(layer, x)):
        layer.zero_grad()
        output, h_n = call()
        (weighted_sum(output) + weighted_sum(h_n)).backward()
        results.append((output, h_n))
        gradients.append(parameter_gradients(layer))
    assert_close(results[0], results[1])
    assert_close(gradients[0], gradients[1])


def test_documents_that_fill_the_sequence_need_no_lengths() -> None:
    layer = make_layer(2, bidirectional=True)
    x = torch.randn(STEPS, len(DOCUMENTS), M, dtype=torch.float64)
    output, _ = layer(x, resets=marks())
    full = [row for row, sizes in enumerate(DOCUMENTS) if sum(sizes) == STEPS]
    assert len(full) == 2
    assert_close(output[:, full], each_alone(layer, x)[0][:, full])


@one_and_two_directions
def test_reset_marks_in_the_padding_change_nothing(bidirectional: bool) -> None:
    layer = make_layer(2, bidirectional=bidirectional)
    x = torch.randn(STEPS, len(DOCUMENTS), M, dtype=torch.float64)
    lengths = torch.tensor([sum(sizes) for sizes in DOCUMENTS])
    # A mark at a sequence's end is the one that, moved by one step for the reverse direction, would be inside.
    marked = marks() | (torch.arange(STEPS).unsqueeze(1) >= lengths)
    hx = states(layer, len(DOCUMENTS))
    assert (marked != marks()).sum() == (STEPS - lengths).sum() > 0
    plain = run(layer, x, hx, lengths=lengths, resets=marks())
    assert_close(run(layer, x, hx, lengths=lengths, resets=marked), plain, rtol=0, atol=0)


def test_hx_enters_at_both_ends_and_goes_no_further_than_a_mark() -> None:
    layer = make_layer(bidirectional=True)
    x = torch.randn(T, M, dtype=torch.float64)
    hx = states(layer)
    resets = torch.arange(T) == 3
    output, h_n = layer(x, hx, resets=resets)
    zero = torch.zeros_like(hx[0])
    first, h_n_first = layer(x[:3], torch.stack([hx[0], zero]))
    second, h_n_second = layer(x[3:], torch.stack([zero, hx[1]]))
    assert_close(output, torch.cat([first, second]))
    assert_close(h_n, torch.stack([h_n_second[0], h_n_first[1]]))


def test_resets_follow_batch_first() -> None:
    layer = make_layer(2, bidirectional=True, batch_first=True)
    x = torch.randn(len(DOCUMENTS), STEPS, M, dtype=torch.float64)
    output, h_n = layer(x, resets=marks().t())
    layer.batch_first = False
    expected, h_n_expected = layer(x.transpose(0, 1), resets=marks())
    assert_close(output, expected.transpose(0, 1))
    assert_close(h_n, h_n_expected)


@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_resets_beside_a_packed_sequence(batch_first: bool) -> None:
    layer = make_layer(2, bidirectional=True, batch_first=batch_first)
    sizes = [sum(row) for row in DOCUMENTS]
    x = torch.randn(STEPS, len(DOCUMENTS), M, dtype=torch.float64)
    packed = pack_sequence([x[:size, row] for row, size in enumerate(sizes)], enforce_sorted=False)
    assert packed.sorted_indices is not None
    assert not torch.equal(packed.sorted_indices, torch.arange(len(sizes))), "rows must move, or nothing is shown"
    output, h_n = layer(packed, resets=marks().t() if batch_first else marks())
    assert_close((pad_packed_sequence(output)[0], h_n), each_alone(layer, x))


def test_resets_off_are_no_resets() -> None:
    layer = make_layer(2, bidirectional=True)
    x = torch.randn(T, B, M, dtype=torch.float64)
    resets = torch.zeros(T, B, dtype=torch.bool)
    assert_close(layer(x, states(layer, B) * 0, resets=resets), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 9, M), (T, 0, M)], ids=["no steps", "no batch"])
def test_empty_input(shape: tuple[int, int, int]) -> None:
    layer = make_layer(2, bidirectional=True)
    hx = states(layer, shape[1])
    results = run(layer, torch.randn(shape, dtype=torch.float64), hx)
    assert results["output"].shape == (*shape[:2], 2 * N)
    assert torch.equal(results["h_n"], hx) or shape[1] == 0
    assert not results["weight_ih_l0"].any()


# ---- dropout


def dropout_seen(p: float) -> tuple[IndRNN, Tensor, Tensor]:
    """A layer whose second half passes on what it gets; what the first half gave; and what came out of the second."""
    layer = make_layer(2, "identity", dropout=p)
    with torch.no_grad():
        layer.get_parameter("weight_ih_l1").copy_(torch.eye(N))
        layer.get_parameter("weight_hh_l1").zero_()
        layer.get_parameter("bias_l1").zero_()
    x = torch.randn(T, B, M, dtype=torch.float64)
    output, _ = layer(x)
    before, _ = layer.eval()(x)
    layer.train()
    return layer, before, output


def test_dropout_has_one_mask_for_all_steps() -> None:
    p = 0.4
    _, before, output = dropout_seen(p)
    kept = output[0] != 0
    assert 0 < kept.sum() < kept.numel()
    assert not torch.equal(kept[0], kept[1]), "each sequence of the batch has a mask of its own"
    assert_close(output, before * kept / (1 - p))


def test_dropout_is_drawn_anew_at_each_call() -> None:
    layer, _, output = dropout_seen(0.5)
    again, _ = layer(torch.randn(T, B, M, dtype=torch.float64))
    assert not torch.equal(again[0] != 0, output[0] != 0)


def test_dropout_of_everything() -> None:
    _, before, output = dropout_seen(1.0)
    assert before.all()
    assert not output.any()


def test_no_dropout_after_the_last_layer() -> None:
    layer = make_layer(2, "sigmoid", dropout=1.0)
    x = torch.randn(T, B, M, dtype=torch.float64)
    output, h_n = layer(x)
    last = make_layer(1, "sigmoid")
    last.load_state_dict(
        {
            "bound._extra_state": last.state_dict()["bound._extra_state"],
            "weight_ih_l0": torch.zeros(N, M),  # all that the last layer sees is zeros
            "weight_hh_l0": layer.get_parameter("weight_hh_l1"),
            "bias_l0": layer.get_parameter("bias_l1"),
        }
    )
    assert_close(output, last(x)[0])
    assert h_n[0].all(), "the first layer's own state is not dropped"


def test_dropout_is_off_in_eval() -> None:
    layer = make_layer(3, dropout=0.5, bidirectional=True).eval()
    plain = make_layer(3, bidirectional=True)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(T, B, M, dtype=torch.float64)
    assert_close(layer(x), plain(x), rtol=0, atol=0)


def test_dropout_gradient_is_cut_where_the_output_is() -> None:
    layer = make_layer(2, "identity", dropout=1.0)
    results = run(layer, torch.randn(T, B, M, dtype=torch.float64))
    assert not results["weight_ih_l1"].any()
    assert results["bias_l1"].all()


@pytest.mark.parametrize("module", [IndRNN, nn.RNN])
def test_dropout_of_one_layer_warns(module: type[nn.Module]) -> None:
    with pytest.warns(UserWarning, match="num_layers"):
        module(M, N, dropout=0.5)


# ---- parameters and state


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@one_and_two_directions
def test_parameter_names_and_shapes(bidirectional: bool, bias: bool) -> None:
    layer = IndRNN(M, N, 2, bias=bias, bidirectional=bidirectional)
    expected: dict[str, tuple[int, ...]] = {}
    for index, inputs in ((0, M), (1, 2 * N if bidirectional else N)):
        for suffix in (f"_l{index}", f"_l{index}_reverse")[: 2 if bidirectional else 1]:
            expected[f"weight_ih{suffix}"] = (N, inputs)
            expected[f"weight_hh{suffix}"] = (N,)
            if bias:
                expected[f"bias{suffix}"] = (N,)
    assert {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()} == expected
    weights_of_torch = {
        name for name, _ in nn.RNN(M, N, 2, bidirectional=bidirectional).named_parameters() if "bias" not in name
    }
    assert weights_of_torch == {name for name in expected if "bias" not in name}


@pytest.mark.parametrize("sizes", [(1, 1), (2, 128), (7, 13)], ids=str)
def test_parameter_count_is_the_papers(sizes: tuple[int, int]) -> None:
    inputs, hidden = sizes
    assert sum(p.numel() for p in IndRNN(inputs, hidden).parameters()) == inputs * hidden + 2 * hidden


def test_input_weights_and_biases_start_as_documented() -> None:
    layer = IndRNN(49, 999)
    limit = 0.304 / 49**0.5
    weight = layer.get_parameter("weight_ih_l0")
    assert 0.99 * limit < weight.abs().max() <= limit
    assert abs(weight.mean()) < 0.01 * limit
    assert_close(weight.std(), torch.tensor(limit / 3**0.5), rtol=0.01, atol=0)
    assert not layer.get_parameter("bias_l0").any()


def test_arguments_come_in_torchs_order() -> None:
    arguments = (M, N, 2, "tanh", False, True, 0.25, True)
    ours, torchs = IndRNN(*arguments), nn.RNN(*arguments)
    for name in ("input_size", "hidden_size", "num_layers", "nonlinearity", "bias", "batch_first", "dropout"):
        assert getattr(ours, name) == getattr(torchs, name), name
    assert ours.bidirectional == torchs.bidirectional


def test_reset_parameters_draws_anew() -> None:
    layer = make_layer(2, bidirectional=True)
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    for name, parameter in layer.named_parameters():
        assert not (parameter == before[name]).any(), name
        assert parameter.isfinite().all(), name


def test_flatten_parameters_changes_nothing() -> None:
    layer = make_layer(2)
    x = torch.randn(T, B, M, dtype=torch.float64)
    before = layer(x)
    layer.flatten_parameters()
    assert_close(layer(x), before, rtol=0, atol=0)


def through_state_dict(layer: IndRNN, path: Path) -> IndRNN:
    torch.save(layer.state_dict(), path)
    return loaded(torch.load(path, weights_only=True))


def through_pickle(layer: IndRNN, path: Path) -> IndRNN:
    path.write_bytes(pickle.dumps(layer))
    return pickle.loads(path.read_bytes())  # type: ignore[no-any-return]


def through_safetensors_file(layer: IndRNN, path: Path) -> IndRNN:
    safetensors.torch.save_file(layer.state_dict(), path)
    return loaded(safetensors.torch.load_file(path))


def through_safetensors_model(layer: IndRNN, path: Path) -> IndRNN:
    safetensors.torch.save_model(layer, str(path))
    other = make_layer(2, bidirectional=True, gamma=2, sequence_length=100)
    missing, unexpected = safetensors.torch.load_model(other, path)
    assert not missing
    assert not unexpected
    return other


def loaded(state: dict[str, Any]) -> IndRNN:
    layer = make_layer(2, bidirectional=True, gamma=2, sequence_length=100)
    layer.load_state_dict(state)
    return layer


@pytest.mark.parametrize(
    "travel",
    [
        through_state_dict,
        lambda layer, path: copy.deepcopy(layer),
        through_pickle,
        through_safetensors_file,
        through_safetensors_model,
    ],
    ids=["state_dict", "deepcopy", "pickle", "safetensors save_file", "safetensors save_model"],
)
def test_a_copy_is_the_same_and_apart(travel: Callable[[IndRNN, Path], IndRNN], tmp_path: Path) -> None:
    layer = make_layer(2, bidirectional=True, gamma=2, sequence_length=100)
    x = torch.randn(T, B, M, dtype=torch.float64)
    expected = run(layer, x)
    other = travel(layer, tmp_path / "layer")
    assert_close(run(other, x), expected, rtol=0, atol=0)
    assert other.bound.upper == layer.bound.upper == 2 ** (1 / 100)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert_close(run(layer, x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_to_another_type(dtype: torch.dtype) -> None:
    layer = make_layer(2, bidirectional=True).to(dtype)
    x = torch.randn(T, B, M, dtype=torch.float64)
    results = run(layer, x.to(dtype), states(layer, B))
    assert {value.dtype for value in results.values()} == {dtype}
    assert_close(layer(x.to(dtype))[0].double(), layer.double()(x)[0], rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_meta_device_then_memory_then_weights() -> None:
    layer = IndRNN(M, N, 2, device="meta")
    assert all(parameter.is_meta for parameter in layer.parameters())
    original = IndRNN(M, N, 2)
    layer.to_empty(device="cpu").load_state_dict(original.state_dict())
    x = torch.randn(T, B, M)
    assert_close(layer(x), original(x), rtol=0, atol=0)


def test_skip_init() -> None:
    layer = nn.utils.skip_init(IndRNN, M, N)
    assert isinstance(layer, IndRNN)
    layer.reset_parameters()
    assert layer.get_parameter("weight_hh_l0").min() >= 0
    assert layer.get_parameter("weight_hh_l0").max() <= 1


@pytest.mark.parametrize("options", [{}, {"lower_bound": True, "sequence_length": 9}], ids=["plain", "lower_bound"])
def test_made_under_the_meta_device(options: dict[str, Any]) -> None:
    # How large models are made before their weights are loaded.
    with torch.device("meta"):
        layer = IndRNN(M, N, **options)
    assert all(parameter.is_meta for parameter in layer.parameters())


def test_repr_shows_what_was_asked_for() -> None:
    text = repr(IndRNN(M, N, 2, "tanh", bidirectional=True, gamma=None))
    assert f"{M}, {N}, num_layers=2, nonlinearity='tanh', bidirectional=True" in text
    assert "upper=inf" in text


# ---- autocast, compile, export, double backward, functional calls


@one_and_two_directions
@pytest.mark.parametrize("batch", [2, 9], ids=["batch 2", "batch 9"])
def test_autocast(batch: int, bidirectional: bool) -> None:
    layer = make_layer(2, dtype=torch.float32, bidirectional=bidirectional)
    x, hx = torch.randn(T, batch, M), states(layer, batch)
    expected = run(layer, x, hx)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = run(layer, x, hx)
    assert results["output"].dtype == results["h_n"].dtype == torch.bfloat16
    assert layer.get_parameter("weight_hh_l0").dtype == torch.float32
    for name, value in results.items():
        assert value.dtype == (torch.bfloat16 if name in ("output", "h_n") else torch.float32), name
        # bfloat16 has 8 bits: an error of 2⁻⁹ in each number on the way.
        error = (value.float() - expected[name]).norm() / expected[name].norm()
        assert error < 2**-6, (name, error)


def test_autocast_leaves_the_recurrent_weight_alone() -> None:
    # 0.999 is 1 in bfloat16: over 200 steps, a state of 1 beside one of 0.82.
    layer = IndRNN(1, 1, nonlinearity="identity")
    with torch.no_grad():
        layer.get_parameter("weight_hh_l0").fill_(0.999)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(torch.zeros(200, 1, 1), torch.ones(1, 1, 1))
    assert_close(output[-1].float(), torch.tensor([[0.999**200]]), rtol=2**-8, atol=0)


# Torch's own warning when Dynamo traces an autograd.Function.
traces = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@traces
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor's own
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile(compiler: str) -> None:
    layer = make_layer(2, dtype=torch.float32, bidirectional=True)
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    resets = torch.zeros(T, B, dtype=torch.bool)
    resets[3] = True
    options: dict[str, Any] = {"lengths": torch.tensor(LENGTHS["unsorted"]), "resets": resets}
    x, hx = torch.randn(T, B, M), states(layer, B)
    expected = run(layer, x, hx, **options)
    results = {
        name.removeprefix("_orig_mod."): value
        for name, value in run(compiled, x, hx, **options).items()  # type: ignore[arg-type]
    }
    assert_close(results, expected)


@traces
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
def test_export_with_any_number_of_steps(strict: bool) -> None:
    layer = make_layer(2, dtype=torch.float32, bidirectional=True)
    program = torch.export.export(
        layer, (torch.randn(T, B, M),), dynamic_shapes={"input": {0: torch.export.Dim("T", max=999)}}, strict=strict
    )
    exported = program.module()
    for steps in (2, T, 40):
        x = torch.randn(steps, B, M)
        assert_close(exported(x), layer(x))


@pytest.mark.parametrize("batch", [9, 2], ids=["narrow projection", "plain projection"])
def test_double_backward(batch: int) -> None:
    layer = IndRNN(3, 2, 2, "tanh", bidirectional=True, dtype=torch.float64)
    parameters = dict(layer.named_parameters())

    def call(x: Tensor, hx: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (x, hx))

    x = torch.randn(2, batch, 3, dtype=torch.float64, requires_grad=True)
    inputs = (x, states(layer, batch).requires_grad_(), *parameters.values())
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("inputs", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("batch", [7, 8, 13])
def test_projection_is_linear(batch: int, inputs: int) -> None:
    weight = torch.randn(N, inputs, dtype=torch.float64, requires_grad=True)
    x = torch.randn(T, batch, inputs, dtype=torch.float64, requires_grad=True)
    leaves = [x, weight]
    output, expected = project(x, weight), F.linear(x, weight)
    # Else the two ways would be compared with themselves.
    narrow = "bmm" in type(output.grad_fn).__name__.lower()
    assert narrow == (batch >= 8 and 2 <= inputs <= 8)
    assert_close(output, expected)
    assert_close(torch.autograd.grad(weighted_sum(output), leaves), torch.autograd.grad(weighted_sum(expected), leaves))


def test_ensemble_by_vmap() -> None:
    layers = [make_layer(2, bidirectional=True) for _ in range(3)]
    x = torch.randn(T, 9, M, dtype=torch.float64)
    stacked, buffers = torch.func.stack_module_state(layers)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output, h_n = torch.func.functional_call(layers[0], (parameters, buffers), (x,))
        return weighted_sum(output) + weighted_sum(h_n)

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(stacked, x)
    for index, layer in enumerate(layers):
        run(layer, x)
        assert_close({name: value[index] for name, value in gradients.items()}, parameter_gradients(layer))


def test_backend_is_passed_on(backend: str) -> None:
    layer = make_layer(2, "relu", bidirectional=True, backend=backend)
    x = torch.randn(T, B, M, dtype=torch.float64)
    assert_close(run(layer, x), run(twin(layer), x))


def test_backend_asked_for_by_name_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from indrnn.ops import reference

    calls = []
    forward = reference.forward
    monkeypatch.setattr(reference, "forward", lambda *args: calls.append(1) or forward(*args))  # type: ignore[func-returns-value]
    make_layer(2, bidirectional=True, backend="reference")(torch.randn(T, B, M, dtype=torch.float64))
    assert len(calls) == 4


def test_inference_mode() -> None:
    layer = make_layer(2)
    x = torch.randn(T, B, M, dtype=torch.float64)
    with torch.inference_mode():
        results = layer(x)
    assert_close(results, layer(x), rtol=0, atol=0)


# ---- what is refused


BAD_ARGUMENTS: list[tuple[Any, ...]] = [
    ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
    ({"input_size": 2.0}, TypeError, "input_size must be an integer, got float"),
    ({"hidden_size": 0}, ValueError, "hidden_size must be at least 1, got 0"),
    ({"hidden_size": "7"}, TypeError, "hidden_size must be an integer, got str"),
    ({"num_layers": 0}, ValueError, "num_layers must be at least 1, got 0"),
    ({"num_layers": True}, TypeError, "num_layers must be an integer, got bool"),
    ({"nonlinearity": "gelu"}, ValueError, "nonlinearity must be one of 'relu', .*got 'gelu'"),
    ({"nonlinearity": ["relu"]}, (TypeError, ValueError), "nonlinearity must be"),
    ({"dropout": 1.5}, ValueError, "dropout must be a number in .*got 1.5"),
    ({"dropout": -0.1}, ValueError, "dropout must be a number in .*got -0.1"),
    ({"dropout": True}, ValueError, "dropout must be a number in .*got True"),
    ({"gamma": 0.0}, ValueError, "gamma must be a positive number or None, got 0.0"),
    ({"gamma": float("inf")}, ValueError, "gamma must be a positive number or None, got inf"),
    ({"sequence_length": 0}, ValueError, "sequence_length must be at least 1, got 0"),
    ({"epsilon": 0.0}, ValueError, "epsilon must be a number in"),
    ({"epsilon": 1.5}, ValueError, "epsilon must be a number in"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_ARGUMENTS, ids=[case[-1] for case in BAD_ARGUMENTS])
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        IndRNN(**{"input_size": M, "hidden_size": N, **options})


X = torch.zeros(T, B, M)


def packed_zeros(*size: int) -> PackedSequence:
    return pack_sequence([torch.zeros(3, *size), torch.zeros(2, *size)])


PACKED = packed_zeros(M)

BAD_INPUTS: list[tuple[Any, ...]] = [
    ([1.0], {}, TypeError, "input must be a tensor or a PackedSequence, got list"),
    (torch.zeros(M), {}, ValueError, "input must have two dimensions"),
    (torch.zeros(T, B, M, 1), {}, ValueError, "input must have two dimensions"),
    (torch.zeros(T, B, M + 1), {}, ValueError, "input's last dimension must be input_size = 5, got 6"),
    (torch.zeros(T, M - 1), {}, ValueError, "input's last dimension must be input_size = 5, got 4"),
    (X.double(), {}, TypeError, "input must be of the layer's type, torch.float32, got torch.float64"),
    (X.long(), {}, TypeError, "input must be of the layer's type, torch.float32, got torch.int64"),
    (X.to("meta"), {}, ValueError, "input must be on the layer's device, cpu, got one on meta"),
    (packed_zeros(M + 1), {}, ValueError, "input's last dimension"),
    (packed_zeros(2, M), {}, ValueError, "input"),
    (X, {"hx": torch.zeros(B, N)}, ValueError, r"hx must have the shape \(1, 4, 13\)"),
    (X, {"hx": torch.zeros(1, B, N + 1)}, ValueError, r"hx must have the shape \(1, 4, 13\)"),
    (X, {"hx": torch.zeros(2, B, N)}, ValueError, r"hx must have the shape \(1, 4, 13\)"),
    (X[:, 0], {"hx": torch.zeros(1, 1, N)}, ValueError, r"hx must have the shape \(1, 13\)"),
    (X, {"hx": torch.zeros(1, B, N).double()}, TypeError, "hx must be of"),
    (X, {"hx": torch.zeros(1, B, N, device="meta")}, ValueError, "hx must be on"),
    (X, {"hx": (torch.zeros(1, B, N), torch.zeros(1, B, N))}, TypeError, "hx must be a tensor or None, got tuple"),
    (PACKED, {"hx": torch.zeros(1, B, N)}, ValueError, r"hx must have the shape \(1, 2, 13\)"),
    (X, {"lengths": {7}}, TypeError, "lengths must be a tensor or None, got set"),
    (X, {"lengths": torch.tensor([7, 7])}, ValueError, r"lengths must have the shape \(4,\)"),
    (X, {"lengths": torch.ones(B)}, TypeError, "lengths must be int64 or int32, got torch.float32"),
    (X, {"lengths": torch.tensor([1, 8, 7, 0])}, ValueError, "lengths must lie between 0 and T = 7.* 0 to 8"),
    (X, {"lengths": torch.tensor([1, -1, 7, 0])}, ValueError, "lengths must lie between 0 and T = 7.* -1 to 7"),
    (PACKED, {"lengths": torch.tensor([3, 2])}, ValueError, "lengths must be None with a Packed"),
    (X, {"resets": torch.zeros(B, T).bool()}, ValueError, r"resets must have the shape \(7, 4\)"),
    (X, {"resets": torch.zeros(T, B)}, TypeError, "resets must be bool, got torch.float32"),
    (X, {"resets": [[True]]}, TypeError, "resets must be a tensor or None, got list"),
    (PACKED, {"resets": torch.zeros(2, 3).bool()}, ValueError, r"resets must have the shape \(3, 2\)"),
]


@pytest.mark.parametrize(("input", "options", "error", "message"), BAD_INPUTS, ids=[case[-1] for case in BAD_INPUTS])
def test_bad_inputs_are_named(input: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        IndRNN(M, N)(input, **options)


def test_batch_first_shapes_are_named() -> None:
    layer = IndRNN(M, N, batch_first=True)
    x = torch.zeros(B, T, M)
    with pytest.raises(ValueError, match=r"resets must have the shape \(4, 7\)"):
        layer(x, resets=torch.zeros(T, B).bool())
    with pytest.raises(ValueError, match=r"hx must have the shape \(1, 4, 13\)"):
        layer(x, torch.zeros(B, 1, N))


def test_unknown_backend_is_named() -> None:
    with pytest.raises(
        ValueError, match="backend must be one of None, 'native', 'reference', 'scan', 'triton', got 'quantum'"
    ):
        IndRNN(M, N, backend="quantum")(X)
    layer = IndRNN(M, N)
    layer.backend = "bogus"
    with pytest.raises(ValueError, match=r"backend must be one of .*, got 'bogus'"):
        layer(X)


def test_lengths_and_resets_are_keywords() -> None:
    with pytest.raises(TypeError):
        IndRNN(M, N)(X, None, torch.tensor([T] * B))


def test_lengths_may_be_a_list() -> None:
    layer = make_layer(2, bidirectional=True)
    x = torch.randn(T, B, M, dtype=torch.float64)
    lengths = [(3 * b) % (T + 1) for b in range(B)]
    assert_close(layer(x, lengths=lengths), layer(x, lengths=torch.tensor(lengths)), rtol=0, atol=0)
