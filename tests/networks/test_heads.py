"""Heads: classes and numbers from the last step, the mean over time or every step; other networks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from indrnn import IndRNN, IndRNNCell
from indrnn.baselines import SRU, BaselineRNN, TransformerBaseline
from indrnn.networks import (
    PlainIndRNN,
    SequenceClassifier,
    SequenceRegressor,
    State,
    StepClassifier,
    StepRegressor,
)
from tests.networks.networks import ARCHITECTURES, LENGTHS, OUTPUT_SIZES, B, M, T, inputs, make, trained

pytestmark = pytest.mark.usefixtures("_one_thread")

CLASSES = 13
HEADS: list[Any] = [SequenceClassifier, SequenceRegressor, StepClassifier, StepRegressor]

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)
layouts = pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
heads = pytest.mark.parametrize("head", HEADS)


@architectures
@layouts
@pytest.mark.parametrize("pool", ["last", "mean"])
@pytest.mark.parametrize("lengths", [None, LENGTHS, LENGTHS.tolist()], ids=["no lengths", "lengths", "a list"])
def test_one_answer_for_a_sequence(lengths: Any, pool: Any, batch_first: bool, architecture: str) -> None:
    model = SequenceClassifier(trained(make(architecture, batch_first=batch_first)), CLASSES, pool).eval()
    nn.init.normal_(model.output.bias)
    x = inputs().transpose(0, 1) if batch_first else inputs()
    logits, state = model(x, lengths=lengths)
    assert logits.shape == (B, CLASSES)
    features, expected_state = model.network(x, lengths=lengths)
    features = features.transpose(0, 1) if batch_first else features
    steps = [T] * B if lengths is None else LENGTHS.tolist()
    zeros = torch.zeros(OUTPUT_SIZES[architecture])
    rows = [
        (features[n - 1, b] if pool == "last" else features[:n, b].mean(0)) if n else zeros for b, n in enumerate(steps)
    ]
    assert_close(logits, torch.stack(rows) @ model.output.weight.t() + model.output.bias)
    assert_close(state, expected_state, rtol=0, atol=0)


@architectures
@layouts
def test_an_answer_at_every_step(batch_first: bool, architecture: str) -> None:
    model = StepClassifier(trained(make(architecture, batch_first=batch_first)), CLASSES).eval()
    nn.init.normal_(model.output.bias)
    x = inputs().transpose(0, 1) if batch_first else inputs()
    logits, state = model(x, lengths=LENGTHS)
    features, expected_state = model.network(x, lengths=LENGTHS)
    assert logits.shape == (*x.shape[:2], CLASSES)
    assert_close(logits, features @ model.output.weight.t() + model.output.bias)
    assert_close(state, expected_state, rtol=0, atol=0)


@heads
def test_heads_carry_the_state(head: Any) -> None:
    model = head(trained(make("plain", "step norm before")), CLASSES).eval()
    x, resets = inputs(), torch.rand(T, B) < 0.2
    whole, after = model(x, resets=resets)
    first, state = model(x[:4], resets=resets[:4])
    assert isinstance(state, State)
    second, state = model(x[4:], state, resets=resets[4:])
    pieces = second if head in HEADS[:2] else torch.cat([first, second])
    assert_close((pieces, state), (whole, after), rtol=1e-5, atol=1e-5)


# ---- packed, unbatched, both directions


@heads
def test_packed_and_unbatched(head: Any) -> None:
    model = head(trained(make("plain", dtype=torch.float64)), 2).eval()
    x, lengths = inputs(torch.float64), LENGTHS.clamp_min(1)
    expected, state = model(x, lengths=lengths)
    actual, packed_state = model(pack_padded_sequence(x, lengths, enforce_sorted=False))
    if head in HEADS[2:]:
        valid = torch.arange(T).unsqueeze(1) < lengths
        actual, _ = pad_packed_sequence(actual)
        actual, expected = actual[valid], expected[valid]
    assert_close(actual, expected)
    assert_close(packed_state, state)
    alone, alone_state = model(x[:4, 3])
    batch, batch_state = model(x[:4, 3:4])
    assert_close(alone, batch.squeeze(0 if head in HEADS[:2] else 1))
    assert_close([h.unsqueeze(0) for h in alone_state.h], list(batch_state.h))


@architectures
@pytest.mark.parametrize("norm", ["no norm", "norm after", "norm before", "layer norm"])
def test_bidirectional_networks_are_two_of_which_one_reads_from_the_end(norm: str, architecture: str) -> None:
    network = trained(make(architecture, norm, bidirectional=True, dtype=torch.float64))
    assert network.output_size % 2 == 0
    x = inputs(torch.float64)
    features, _ = network(x, lengths=LENGTHS)
    # A sequence and its reverse give the same, the halves of every layer exchanged: so exchange the parameters too.
    other = copy.deepcopy(network)
    with torch.no_grad():
        for unit in other.recurrent_layers:
            for tensor in (
                unit.weight_hh,
                unit.bias,
                *(unit.norm.parameters() if unit.norm else ()),
                *(b for b in (unit.norm.buffers() if unit.norm else ()) if b.dim()),
            ):
                if tensor is not None:
                    tensor.copy_(tensor.roll(unit.size // 2))
    if architecture == "plain":
        with torch.no_grad():
            for i, unit in enumerate(other.recurrent_layers):
                weight = unit.get_parameter("weight.weight")
                swapped = weight.roll(unit.size // 2, 0)
                weight.copy_(swapped if i == 0 else swapped.roll(unit.size // 2, 1))
        whole = other(x.flip(0))[0].flip(0)
        assert_close(whole.roll(whole.shape[-1] // 2, -1), network(x)[0])
    for b, length in enumerate(LENGTHS.tolist()):
        assert_close(features[:length, b], network(x[:length, b])[0])
        assert (features[length:, b] == 0).all()
    last, _ = network(x, lengths=LENGTHS, last=True)
    half = network.output_size // 2
    rows = [torch.cat([features[n - 1, b, :half], features[0, b, half:]]) for b, n in enumerate(LENGTHS.tolist()) if n]
    assert_close(last[LENGTHS > 0], torch.stack(rows))
    with pytest.raises(ValueError, match="state must be None with bidirectional"):
        network(x, network(x)[1])


# ---- less memory


@architectures
@pytest.mark.parametrize("norm", ["no norm", "layer norm"])
@pytest.mark.parametrize("carried", [False, True], ids=["from zeros", "carried state"])
def test_recomputation_gives_the_same(carried: bool, norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    pieces = make(architecture, norm, recompute=4, dtype=torch.float64)
    pieces.load_state_dict(network.state_dict())
    x, resets = inputs(torch.float64), torch.rand(T, B) < 0.2
    state = network(inputs(torch.float64))[1].detach() if carried else None
    results = []
    for each in (network, pieces):
        given = x.clone().requires_grad_()
        features, after = each(given, state, lengths=LENGTHS, resets=resets)
        (features.square().sum() + sum(h.sum() for h in after.h)).backward()
        results.append((features.detach(), after.detach(), given.grad, [p.grad for p in each.parameters()]))
    assert_close(results[1], results[0])


def test_recomputation_has_one_dropout_mask_for_all_pieces() -> None:
    network = PlainIndRNN(M, 40, 2, norm=None, recompute=3, dropout=0.5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(0.1, 0.2)
    x = torch.rand(T, B, M, requires_grad=True)
    torch.manual_seed(5)
    features, _ = network(x)
    dropped = features == 0
    assert 0.3 < dropped.double().mean() < 0.7
    assert (dropped == dropped[:1]).all()
    features.sum().backward()  # which drops the same: no gradient comes from what was dropped
    torch.manual_seed(5)
    again, _ = network(x)
    assert torch.equal(features, again)
    assert not torch.equal(again, network(x)[0])


# ---- other networks


OTHERS: dict[str, Any] = {
    "IndRNN": lambda **o: IndRNN(M, 5, 2, **o),
    "IndRNN, both directions": lambda **o: IndRNN(M, 5, 2, bidirectional=True, **o),
    "RNN": lambda **o: nn.RNN(M, 5, **o),
    "LSTM, both directions": lambda **o: nn.LSTM(M, 5, 2, bidirectional=True, **o),
    "LSTM with a projection": lambda **o: nn.LSTM(M, 5, proj_size=3, **o),
    "GRU": lambda **o: nn.GRU(M, 5, **o),
    "baseline": lambda **o: BaselineRNN("lstm", M, 5, **o),
    "transformer": lambda **o: TransformerBaseline(M, 8, 1, **o),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", OTHERS)
@layouts
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_other_networks(pool: Any, batch_first: bool, name: str) -> None:
    network = OTHERS[name](batch_first=batch_first).eval()
    model = SequenceRegressor(network, 2, pool).eval()
    x, lengths = inputs(), LENGTHS.clamp_min(1)
    given = x.transpose(0, 1) if batch_first else x
    answers, _ = model(given, lengths=lengths.tolist())
    assert answers.shape == (B, 2)
    for b, n in enumerate(lengths.tolist()):  # each sequence alone
        alone = x[:n, b : b + 1]
        features = network(alone.transpose(0, 1) if batch_first else alone)[0]
        features = (features.transpose(0, 1) if batch_first else features)[:, 0]
        half = features.shape[-1] // 2
        both = "both" in name
        last = torch.cat([features[-1, :half], features[0, half:]]) if both else features[-1]
        assert_close(answers[b], model.output(last if pool == "last" else features.mean(0)), rtol=1e-5, atol=1e-5)
    steps, _ = StepRegressor(network, 2).eval()(given)
    assert steps.shape == (*given.shape[:2], 2)


def test_networks_without_lengths_or_resets_say_so() -> None:
    with pytest.raises(ValueError, match="lengths are not supported by SRU"):
        SequenceRegressor(SRU(M, 5))(inputs(), lengths=LENGTHS)
    with pytest.raises(ValueError, match="resets are not supported by LSTM"):
        SequenceRegressor(nn.LSTM(M, 5))(inputs(), resets=torch.zeros(T, B, dtype=torch.bool))
    assert SequenceRegressor(SRU(M, 5))(inputs())[0].shape == (B, 1)


@heads
@pytest.mark.parametrize("network", [nn.Linear(3, 3), nn.LSTMCell(3, 3), IndRNNCell(3, 3), 7, None], ids=str)
def test_what_is_no_network_is_refused(network: Any, head: Any) -> None:
    kind = type(network).__name__
    with pytest.raises(TypeError, match=rf"network must be one of .*IndRNN, torch.nn.RNN, LSTM or GRU, .*got {kind}"):
        head(network, 2)


@heads
def test_bad_arguments_are_named(head: Any) -> None:
    what = "classes" if "Classifier" in head.__name__ else "outputs"
    with pytest.raises(ValueError, match=f"{what} must be at least 1, got 0"):
        head(make("plain"), 0)
    with pytest.raises(ValueError, match="pool must be one of 'last', 'mean', got 'max'"):
        SequenceClassifier(make("plain"), 2, "max")  # type: ignore[arg-type]


@heads
def test_heads_are_of_the_networks_type_and_start_as_the_paper(head: Any) -> None:
    model = head(make("plain", dtype=torch.float64), CLASSES)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(torch.zeros(T, B, M, dtype=torch.float64))[0].dtype == torch.float64
    for _ in range(2):
        assert (model.output.bias == 0).all()
        assert model.output.weight.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.3)
        with torch.no_grad():
            model.output.bias.fill_(1)
        model.output.reset_parameters()


# ---- the state


def test_a_state_is_detached_moved_and_selected() -> None:
    _, state = make("plain")(inputs())
    assert state.h[0].requires_grad
    assert not any(h.requires_grad for h in state.detach().h)
    wide = state.to(torch.float64)
    assert [h.dtype for h in wide.h] == [torch.float64] * 3
    assert wide.position.dtype == torch.int64
    assert state.to("meta").position.is_meta
    index = torch.tensor([5, 0, 0])
    some = state.index_select(index)
    assert all(torch.equal(h, whole[index]) for h, whole in zip(some.h, state.h, strict=True))
    assert torch.equal(some.position, state.position[index])


def test_a_checkpoint_may_hold_a_state(tmp_path: Any) -> None:
    state = make("plain")(inputs())[1].detach()
    torch.save({"state": state}, tmp_path / "checkpoint")
    loaded: Any = torch.load(tmp_path / "checkpoint", weights_only=True)["state"]
    assert isinstance(loaded, State)
    assert_close(loaded, state, rtol=0, atol=0)
