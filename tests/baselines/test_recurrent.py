"""The baselines compute their textbook equations, and are called as the networks of this package are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from indrnn import PlainIndRNN, SequenceClassifier
from indrnn.baselines import KINDS, Baseline, BaselineRNN, Kind
from indrnn.networks import StepClassifier

T, B, M, N = 11, 5, 3, 7
LENGTHS = torch.tensor([4, 11, 1, 10, 7])
DOUBLE = torch.float64

kinds = pytest.mark.parametrize("kind", KINDS)
depths = pytest.mark.parametrize("layers", [1, 3], ids=["1 layer", "3 layers"])
layouts = pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])


def lively(kind: Kind, layers: int = 1, **options: Any) -> BaselineRNN:
    """A float64 baseline of which every trained number is away from where it starts."""
    model = BaselineRNN(kind, M, N, layers, dtype=DOUBLE, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.uniform_(-0.6, 0.6)
    return model


def inputs() -> Tensor:
    return torch.randn(T, B, M, dtype=DOUBLE)


State = tuple[Tensor, Tensor]


def one_step(kind: Kind, x: Tensor, state: State, weights: dict[str, Tensor]) -> State:
    """The equations, for x (B, M) and a state h, c of (B, N)."""
    h, c = state
    a = x @ weights["weight_ih"].t() + weights["bias_ih"]
    r = h @ weights["weight_hh"].t() + weights["bias_hh"]
    if kind == "rnn":
        return torch.tanh(a + r), c
    if kind == "irnn":
        return (a + r).clamp(min=0), c
    sigma = torch.sigmoid
    if kind == "lstm":
        i, f, g, o = ((a + r)[:, n * N : (n + 1) * N] for n in range(4))
        c = sigma(f) * c + sigma(i) * torch.tanh(g)
        return sigma(o) * torch.tanh(c), c
    a_reset, a_update, a_new = a.split(N, dim=1)
    r_reset, r_update, r_new = r.split(N, dim=1)
    update = sigma(a_update + r_update)
    new = torch.tanh(a_new + sigma(a_reset + r_reset) * r_new)
    return (1 - update) * new + update * h, c


def by_hand(model: BaselineRNN, x: Tensor, states: list[State] | None = None) -> tuple[Tensor, list[State]]:
    """Features (T, B, N) and each layer's h, c after the last step; x is (T, B, M)."""
    parameters = {name: value.detach() for name, value in model.rnn.named_parameters()}
    zeros = torch.zeros(x.shape[1], N, dtype=x.dtype)
    after = []
    for layer in range(model.rnn.num_layers):
        ending = f"_l{layer}"
        weights = {name.removesuffix(ending): value for name, value in parameters.items() if name.endswith(ending)}
        state = (zeros, zeros) if states is None else states[layer]
        steps = []
        for x_t in x:
            state = one_step(model.kind, x_t, state, weights)
            steps.append(state[0])
        x = torch.stack(steps)
        after.append(state)
    return x, after


def as_torch(kind: Kind, states: list[State]) -> Any:
    """States as torch's modules return them."""
    h, c = (torch.stack(part) for part in zip(*states, strict=True))
    return (h, c) if kind == "lstm" else h


# ---- what it computes


@kinds
@depths
@layouts
def test_output_and_state_are_those_of_the_equations(batch_first: bool, layers: int, kind: Kind) -> None:
    model, x = lively(kind, layers, batch_first=batch_first), inputs()
    features, state = model(x.transpose(0, 1) if batch_first else x)
    expected, states = by_hand(model, x)
    assert features.shape == ((B, T, N) if batch_first else (T, B, N))
    assert_close(features.transpose(0, 1) if batch_first else features, expected)
    assert_close(state, as_torch(kind, states))


@kinds
@layouts
def test_last_is_the_last_step(batch_first: bool, kind: Kind) -> None:
    model, x = lively(kind, 2, batch_first=batch_first), inputs()
    given = x.transpose(0, 1) if batch_first else x
    last, state = model(given, last=True)
    features, expected_state = model(given)
    assert last.shape == (B, N)
    assert torch.equal(last, features[:, -1] if batch_first else features[-1])
    assert_close(state, expected_state, rtol=0, atol=0)


@kinds
@layouts
def test_each_sequence_ends_at_its_own_length(batch_first: bool, kind: Kind) -> None:
    """As if each were alone in its batch: its features, zeros after them, its last step and its state."""
    model, x = lively(kind, 2, batch_first=batch_first), inputs()
    given = x.transpose(0, 1) if batch_first else x
    features, state = model(given, lengths=LENGTHS)
    last, _ = model(given, lengths=LENGTHS, last=True)
    assert features.shape == (*given.shape[:2], N)
    assert last.shape == (B, N)
    if batch_first:
        features = features.transpose(0, 1)
    for b, length in enumerate(LENGTHS.tolist()):
        expected, states = by_hand(model, x[:length, b : b + 1])
        assert_close(features[:length, b], expected[:, 0])
        assert torch.equal(features[length:, b], torch.zeros(T - length, N, dtype=DOUBLE))
        assert_close(last[b], expected[-1, 0])
        alone = as_torch(kind, states)
        for mine, theirs in zip(
            state if kind == "lstm" else [state], alone if kind == "lstm" else [alone], strict=True
        ):
            assert_close(mine[:, b : b + 1], theirs)


@kinds
def test_padding_changes_nothing(kind: Kind) -> None:
    """Not even NaN in it, neither in the output nor in a gradient."""
    model, x = lively(kind, 2), inputs()
    padded = x.clone()
    for b, length in enumerate(LENGTHS.tolist()):
        padded[length:, b] = torch.nan
    results = []
    for given in (x, padded):
        leaf = given.clone().requires_grad_()
        features, state = model(leaf, lengths=LENGTHS)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(features.square().sum(), [leaf, *parameters])
        results.append((features, state, gradients))
    assert_close(results[1], results[0], rtol=0, atol=0)


@kinds
@layouts
def test_lengths_give_what_torch_gives_for_a_packed_sequence(batch_first: bool, kind: Kind) -> None:
    """From a given state, with equal lengths and steps that no sequence has; gradients to input and state too."""
    model, x = lively(kind, 2, batch_first=batch_first), torch.randn(T + 2, 6, M, dtype=DOUBLE)
    lengths = torch.tensor([4, 11, 4, 1, 10, 11])
    parts = [torch.randn(2, 6, N, dtype=DOUBLE) for _ in range(2 if kind == "lstm" else 1)]
    results = []
    for ours in (True, False):
        given, leaves = x.clone().requires_grad_(), [part.clone().requires_grad_() for part in parts]
        turned = given.transpose(0, 1) if batch_first else given
        state = tuple(leaves) if kind == "lstm" else leaves[0]
        if ours:
            features, after = model(turned, state, lengths=lengths)
        else:
            packed, after = model.rnn(pack_padded_sequence(turned, lengths, batch_first, False), state)
            features, _ = pad_packed_sequence(packed, batch_first, total_length=T + 2)
        wanted = [given, *leaves, *(each for each in model.parameters() if each.requires_grad)]
        of = features.square().sum() + sum(each.pow(3).sum() for each in (after if kind == "lstm" else [after]))
        results.append((features, after, torch.autograd.grad(of, wanted)))
    assert_close(results[0], results[1])


def test_lengths_under_autocast_give_what_torch_gives_for_a_packed_sequence() -> None:
    model, x = BaselineRNN("lstm", M, N), torch.randn(T, B, M)
    with torch.autocast("cpu", torch.bfloat16):
        features, _ = model(x, lengths=LENGTHS)
        packed, _ = model.rnn(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    assert torch.equal(features, pad_packed_sequence(packed, total_length=T)[0])


@kinds
def test_a_state_of_another_batch_is_named_with_lengths(kind: Kind) -> None:
    part = torch.zeros(1, B + 2, N, dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"state must have the shape \(1, 5, 7\) for this input, got \(1, 7, 7\)"):
        lively(kind)(inputs(), (part, part) if kind == "lstm" else part, lengths=LENGTHS)


@kinds
def test_all_lengths_full_is_no_lengths(kind: Kind) -> None:
    model, x = lively(kind, 2), inputs()
    assert_close(model(x, lengths=torch.full((B,), T)), model(x))


@kinds
@layouts
@pytest.mark.parametrize("cuts", [[4], [1, 2, 9]], ids=["2 pieces", "4 pieces"])
def test_pieces_with_the_state_carried_are_the_whole(cuts: list[int], batch_first: bool, kind: Kind) -> None:
    model, x = lively(kind, 3, batch_first=batch_first), inputs()
    time = 1 if batch_first else 0
    x = x.transpose(0, 1) if batch_first else x
    whole, after = model(x)
    pieces, state = [], None
    for piece in x.tensor_split(cuts, dim=time):
        features, state = model(piece, state)
        pieces.append(features)
    assert_close(torch.cat(pieces, dim=time), whole)
    assert_close(state, after)


@kinds
def test_dropout_is_between_layers_and_in_training_alone(kind: Kind) -> None:
    one, three, x = lively(kind, 1, dropout=0.5), lively(kind, 3, dropout=0.5), inputs()
    assert_close(one(x)[0], by_hand(one, x)[0])  # a single layer has none between
    assert not torch.allclose(three(x)[0], by_hand(three, x)[0])
    assert_close(three.eval()(x)[0], by_hand(three, x)[0])


# ---- where it starts


@kinds
@depths
def test_biases_start_at_zero_but_the_forget_gates(layers: int, kind: Kind) -> None:
    model = BaselineRNN(kind, M, N, layers)
    for name, parameter in model.rnn.named_parameters():
        if name.startswith("bias"):
            expected = torch.zeros_like(parameter)
            if kind == "lstm" and name.startswith("bias_ih"):
                expected[N : 2 * N] = 1.0
            assert torch.equal(parameter, expected), name


def test_an_untrained_lstm_with_no_input_weights_forgets_by_a_bias_of_one() -> None:
    model = BaselineRNN("lstm", M, N, dtype=DOUBLE)
    with torch.no_grad():
        model.rnn.get_parameter("weight_ih_l0").zero_()
        model.rnn.get_parameter("weight_hh_l0").zero_()
    c = torch.randn(1, B, N, dtype=DOUBLE)
    _, (_, after) = model(torch.randn(1, B, M, dtype=DOUBLE), (torch.zeros_like(c), c))
    assert_close(after, c / (1 + torch.exp(torch.tensor(-1.0, dtype=DOUBLE))))


@depths
def test_irnn_starts_with_the_identity_and_small_input_weights(layers: int) -> None:
    model = BaselineRNN("irnn", 40, 50, layers)
    for layer in range(layers):
        assert torch.equal(model.rnn.get_parameter(f"weight_hh_l{layer}"), torch.eye(50))
        weight = model.rnn.get_parameter(f"weight_ih_l{layer}")
        assert weight.std().item() == pytest.approx(0.001, rel=0.1)  # of 2,000 numbers: ± 1.6 % is usual


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_the_others_start_with_torchs_uniform_weights(kind: Kind) -> None:
    model = BaselineRNN(kind, M, 64)
    for name, parameter in model.rnn.named_parameters():
        if name.startswith("weight"):
            assert 0.9 / 8 < parameter.abs().max().item() <= 1 / 8, name
            assert parameter.unique().numel() > parameter.numel() // 2, name


@kinds
def test_reset_parameters_draws_anew_and_keeps_to_the_rules(kind: Kind) -> None:
    model = lively(kind, 2)
    model.reset_parameters()
    torch.manual_seed(3)
    model.reset_parameters()
    torch.manual_seed(3)
    fresh = BaselineRNN(kind, M, N, 2, dtype=DOUBLE)
    torch.manual_seed(3)
    fresh.reset_parameters()
    assert_close(dict(model.named_parameters()), dict(fresh.named_parameters()), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["rnn", "irnn", "lstm"])
def test_the_second_bias_is_never_trained(kind: Kind) -> None:
    model = BaselineRNN(kind, M, N, 2)
    model(torch.randn(T, B, M))[0].sum().backward()
    for name, parameter in model.rnn.named_parameters():
        assert (parameter.grad is None) == name.startswith("bias_hh"), name


# ---- how large it is


def trained(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


INPUT, HIDDEN = 2, 128
HEAD = HIDDEN + 1
RNN = HIDDEN * HIDDEN + HIDDEN * INPUT + HIDDEN


@pytest.mark.parametrize(
    ("kind", "gates", "paper"),
    [("rnn", 1, 16_000), ("irnn", 1, 16_000), ("lstm", 4, 67_000)],
    ids=["rnn", "irnn", "lstm"],
)
def test_parameters_are_as_many_as_in_the_paper(kind: Kind, gates: int, paper: int) -> None:
    count = trained(SequenceClassifier(BaselineRNN(kind, INPUT, HIDDEN), 1))
    assert count == gates * RNN + HEAD
    assert abs(count - paper) < 1000


def test_parameters_of_the_indrnn_beside_them_are_as_many_as_in_the_paper() -> None:
    first, second = INPUT * HIDDEN + 2 * HIDDEN, HIDDEN * HIDDEN + 2 * HIDDEN  # weights, u and biases
    count = trained(SequenceClassifier(PlainIndRNN(INPUT, HIDDEN, 2, norm=None), 1))
    assert count == first + second + HEAD
    assert abs(count - 17_000) < 1000


def test_a_grus_second_bias_is_trained() -> None:
    """It is multiplied with the reset gate, so it is not the first bias's double."""
    assert trained(BaselineRNN("gru", INPUT, HIDDEN)) == 3 * (RNN + HIDDEN)


# ---- behind the heads


@kinds
@layouts
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["no lengths", "lengths"])
def test_last_step_classifier(lengths: Tensor | None, batch_first: bool, kind: Kind) -> None:
    model = SequenceClassifier(lively(kind, 2, batch_first=batch_first), 4)
    assert model.output.weight.dtype == DOUBLE
    x = inputs()
    answers, state = model(x.transpose(0, 1) if batch_first else x, lengths=lengths)
    network = model.network
    assert isinstance(network, BaselineRNN)
    steps = [T] * B if lengths is None else lengths.tolist()
    last = torch.cat([by_hand(network, x[:n, b : b + 1])[0][-1] for b, n in enumerate(steps)])
    assert_close(answers, last @ model.output.weight.t() + model.output.bias)
    assert_close(state, network(x.transpose(0, 1) if batch_first else x, lengths=lengths)[1], rtol=0, atol=0)


@kinds
def test_heads_carry_the_state(kind: Kind) -> None:
    model, x = SequenceClassifier(lively(kind, 2), 4), inputs()
    _, state = model(x[:3])
    assert_close(model(x[3:], state), model(x))


@kinds
def test_per_step_classifier(kind: Kind) -> None:
    model, x = StepClassifier(lively(kind), 4), inputs()
    features, _ = by_hand(model.network, x)  # type: ignore[arg-type]
    assert_close(model(x)[0], features @ model.output.weight.t() + model.output.bias)


# ---- what is refused


@kinds
def test_resets_are_refused_by_name(kind: Kind) -> None:
    with pytest.raises(ValueError, match="resets are not supported by BaselineRNN"):
        lively(kind)(inputs(), resets=torch.zeros(T, B, dtype=torch.bool))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("lsmt", M, N), {}, ValueError, "kind must be one of 'rnn', 'irnn', 'lstm', 'gru', got 'lsmt'"),
        (("rnn", 0, N), {}, ValueError, "input_size must be at least 1, got 0"),
        (("rnn", M, -2), {}, ValueError, "hidden_size must be at least 1, got -2"),
        (("rnn", M, 7.0), {}, TypeError, "hidden_size must be an integer, got float"),
        (("rnn", M, N, 0), {}, ValueError, "num_layers must be at least 1, got 0"),
        (("rnn", M, N, True), {}, TypeError, "num_layers must be an integer, got bool"),
        (("rnn", M, N, 2), {"dropout": 1.5}, ValueError, "dropout must be a number in [0, 1], got 1.5"),
        (("rnn", M, N), {"dropout": -0.1}, ValueError, "dropout must be a number in [0, 1], got -0.1"),
    ],
    ids=["kind", "input size", "hidden size", "float size", "layers", "bool layers", "dropout", "dropout of 1 layer"],
)
def test_bad_arguments_are_named(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        BaselineRNN(*arguments, **options)


@kinds
@pytest.mark.parametrize(
    "lengths",
    [[4, 11, 0, 10, 7], [4, 12, 1, 10, 7], [4, 11, 1, 10], [4, 11, 1, 10, 7, 3]],
    ids=["of 0", "beyond the end", "one too few", "one too many"],
)
def test_bad_lengths_are_named(lengths: list[int], kind: Kind) -> None:
    with pytest.raises(ValueError, match="lengths must"):
        lively(kind)(inputs(), lengths=torch.tensor(lengths))


def test_it_says_which_it_is() -> None:
    assert "irnn" in repr(BaselineRNN("irnn", M, N))


# ---- weight drop


@kinds
def test_dropped_recurrent_weights_are_dropped_for_all_steps(kind: Kind) -> None:
    """The features are those of the equations with some mask on the recurrent matrices: the one that was drawn."""
    model, x = lively(kind, 2, weight_dropout=0.4), inputs()
    seen: list[dict[str, Tensor]] = []

    def look(rnn: nn.Module, *_: Any) -> None:
        seen.append({name: weight.detach().clone() for name, weight in rnn.named_parameters()})

    model.rnn.register_forward_pre_hook(look)
    weights = {name: weight.detach().clone() for name, weight in model.rnn.named_parameters()}
    features, _ = model(x)
    (used,) = seen
    shares = []
    for name, weight in weights.items():
        if name.startswith("weight_hh"):
            dropped = used[name] == 0
            shares.append(dropped.double().mean())
            assert_close(used[name][~dropped], weight[~dropped] / 0.6)
        else:
            assert torch.equal(used[name], weight)
    assert 0.2 < torch.stack(shares).mean() < 0.6
    masked = lively(kind, 2)
    masked.rnn.load_state_dict(used)
    assert_close(features, by_hand(masked, x)[0])
    assert_close(dict(model.rnn.named_parameters()), weights, rtol=0, atol=0)
    assert not torch.equal(model(x)[0], features)  # another mask at each call
    assert_close(model.eval()(x)[0], by_hand(model, x)[0])


def test_gradients_of_dropped_weights_are_zero_and_reach_the_parameter() -> None:
    model, x = lively("lstm", weight_dropout=0.5), inputs()
    model(x)[0].square().sum().backward()
    gradient = model.rnn.get_parameter("weight_hh_l0").grad
    assert gradient is not None
    assert 0.3 < (gradient == 0).double().mean() < 0.7
    with pytest.raises(ValueError, match="weight_dropout must be"):
        BaselineRNN("lstm", M, N, weight_dropout=2)


def test_weight_dropout_has_one_mask_for_sequences_of_all_lengths() -> None:
    model, x = lively("lstm", 2, weight_dropout=0.5), inputs()
    torch.manual_seed(3)
    expected, _ = model(x)
    torch.manual_seed(3)
    found, _ = model(x, lengths=LENGTHS)
    for b, length in enumerate(LENGTHS.tolist()):
        assert_close(found[:length, b], expected[:length, b])


def test_weight_dropout_is_an_option_of_the_configuration() -> None:
    config = Baseline("lstm", N, 2, input_size=M, weight_dropout=0.5)
    network = config.build()
    assert network.weight_dropout == 0.5
    assert network.config == config
