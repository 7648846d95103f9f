"""The Transformer and the R-Transformer: what they see, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from indrnn.baselines import Transformer, TransformerBaseline
from indrnn.baselines.networks import sinusoids
from indrnn.networks import SequenceClassifier

both = pytest.mark.parametrize("window", [None, 3], ids=["transformer", "r-transformer"])


def network(window: int | None = None, **options: Any) -> TransformerBaseline:
    return TransformerBaseline(2, 8, 2, 2, window=window, dtype=torch.float64, **options)


@both
def test_a_step_sees_itself_and_earlier_steps_alone(window: int | None) -> None:
    x = torch.randn(9, 2, 2, dtype=torch.float64, requires_grad=True)
    y, state = network(window)(x)
    assert y.shape == (9, 2, 8)
    assert state is None
    (seen,) = torch.autograd.grad(y[4, 0, 0], x)
    assert seen[5:].eq(0).all()
    assert seen[:, 1].eq(0).all()
    assert seen[:5, 0].ne(0).any(-1).all()


@both
def test_the_last_valid_step_is_that_of_the_sequence_without_its_padding(window: int | None) -> None:
    model, x = network(window), torch.randn(9, 3, 2, dtype=torch.float64)
    lengths = torch.tensor([9, 4, 1])
    last, _ = model(x, lengths=lengths, last=True)
    every, _ = model(x, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, _ = model(x[:length, i : i + 1])
        torch.testing.assert_close(last[i], alone[-1, 0])
        torch.testing.assert_close(every[:length, i], alone[:, 0])
        assert every[length:, i].eq(0).all()


@both
def test_batch_first(window: int | None) -> None:
    model, x = network(window), torch.randn(5, 3, 2, dtype=torch.float64)
    expected, _ = model(x)
    model.batch_first = True
    torch.testing.assert_close(model(x.transpose(0, 1))[0], expected.transpose(0, 1))


def test_the_local_recurrence_is_a_gru_over_each_window() -> None:
    model, x = network(window=3), torch.randn(5, 2, 8, dtype=torch.float64)
    gru = nn.GRU(8, 8, dtype=torch.float64)
    got = model._recent(x, gru, 3)
    for t in range(5):
        window = torch.stack([x[s] if s >= 0 else torch.zeros_like(x[0]) for s in range(t - 2, t + 1)])
        torch.testing.assert_close(got[t], gru(window)[0][-1])


def test_positions() -> None:
    table = sinusoids(7, 6, torch.zeros(1, dtype=torch.float64))
    for step in range(7):
        for i in range(3):
            angle = step / 10_000 ** (2 * i / 6)
            assert table[step, 0, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[step, 0, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@both
def test_it_is_classified_as_the_networks_are(window: int | None) -> None:
    model = SequenceClassifier(network(window), 4)
    logits, _ = model(torch.randn(5, 3, 2, dtype=torch.float64))
    assert logits.shape == (3, 4)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hidden_size": 10, "heads": 4}, "hidden_size must be a multiple of heads = 4, got 10"),
        ({"hidden_size": 0}, "hidden_size must"),
        ({"window": 0}, "window must"),
        ({"dropout": 1.5}, "dropout must"),
        ({"num_layers": -1}, "num_layers must"),
    ],
)
def test_impossible_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TransformerBaseline(**({"input_size": 2, "hidden_size": 8, "num_layers": 1} | options))


def test_without_a_context_it_has_no_state() -> None:
    x = torch.randn(4, 1, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="resets are not supported"):
        network()(x, resets=torch.zeros(4, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="state is not supported"):
        network()(x, x)


# ---- a context


@both
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_a_piece_is_the_end_of_context_and_piece(batch_first: bool, window: int | None) -> None:
    model, x = network(window, context=4), torch.randn(13, 3, 2, dtype=torch.float64)
    whole = network(window)
    whole.load_state_dict(model.state_dict())
    model.batch_first = batch_first
    state = None
    for start, end in ((0, 3), (3, 4), (4, 10), (10, 13)):
        piece = x[start:end].transpose(0, 1) if batch_first else x[start:end]
        features, state = model(piece, state)
        features = features.transpose(0, 1) if batch_first else features
        begin = max(0, start - 4)
        torch.testing.assert_close(features, whole(x[begin:end])[0][start - begin :])
        assert state is not None
        assert torch.equal(state, x[max(0, end - 4) : end])


@both
def test_a_step_sees_the_window_before_and_nothing_later(window: int | None) -> None:
    model = network(window, context=5)
    x = torch.randn(10, 2, 2, dtype=torch.float64, requires_grad=True)
    _, state = model(x[:5])
    y, _ = model(x[5:], state)
    for step in (0, 3):
        (seen,) = torch.autograd.grad(y[step, 0, 0], x, retain_graph=True)
        assert seen[: 5 + step + 1, 0].ne(0).any(-1).all()
        assert seen[5 + step + 1 :].eq(0).all()
        assert seen[:, 1].eq(0).all()


def test_a_context_is_an_option_and_is_checked() -> None:
    config = Transformer(8, 1, 2, input_size=2, context=3)
    model = config.build()
    assert model.config == config
    with pytest.raises(ValueError, match="context must be at least 0, got -1"):
        Transformer(context=-1)
    x = torch.randn(4, 2, 2)
    with pytest.raises(ValueError, match="lengths are not supported with a context"):
        model(x, lengths=[4, 3])
    with pytest.raises(ValueError, match=r"state must have the shape \(4, 2, 2\) for this input, got \(4, 1, 2\)"):
        model(x, x[:, :1])
