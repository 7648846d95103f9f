"""Dynamic evaluation: the update rule by hand, no look ahead, and a model that is left as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from indrnn import LanguageModel, PlainIndRNN, attach_constraint
from indrnn.baselines import BaselineRNN, QRNNBaseline, TransformerBaseline
from indrnn.networks import State
from indrnn.tasks.text.dynamic import DynamicResult, dynamic_evaluation, gradient_statistics, grid, segments

pytestmark = pytest.mark.usefixtures("_one_thread")

CLASSES, SIZE = 7, 6


def small_model(dtype: torch.dtype = torch.float64, **options: Any) -> LanguageModel:
    network = PlainIndRNN(SIZE, SIZE, 2, sequence_length=20, dtype=dtype, dropout=0.3, **options)
    model = LanguageModel(network, CLASSES, start=0.5, dropout=0.2, word_dropout=0.2)
    for _ in range(20):  # running statistics away from their start
        model(torch.randint(CLASSES, (20, 5)))
    return model


def text(count: int) -> Tensor:
    return torch.randint(CLASSES, (count,))


def statistics_of(model: LanguageModel) -> dict[str, Tensor]:
    return gradient_statistics(model, segments(text(400), 3, 20))


def flat(model: LanguageModel) -> dict[str, Tensor]:
    """Statistics with which the rule is plain gradient descent, of ten times the learning rate."""
    return {name: torch.full_like(p, 0.01) for name, p in model.named_parameters() if p.requires_grad}


def static_losses(model: LanguageModel, tokens: Tensor, segment: int = 20) -> list[float]:
    """The loss of each segment with the model as it is."""
    model = copy.deepcopy(model).eval()
    losses, state = [], None
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, segment):
            piece = tokens[start : start + segment + 1].unsqueeze(1)
            logits, state = model(piece[:-1], state)
            losses.append(float(F.cross_entropy(logits.flatten(0, 1), piece[1:].flatten())) * (len(piece) - 1))
    return losses


# ---- what it computes


def test_windows_are_streams_side_by_side() -> None:
    found = list(segments(torch.arange(25), 3, 5))  # three streams of eight predictions
    inputs, targets = (torch.cat(part) for part in zip(*found, strict=True))
    assert [len(each) for each, _ in found] == [5, 3]
    assert torch.equal(inputs, torch.stack([torch.arange(8), torch.arange(8, 16), torch.arange(16, 24)], dim=1))
    assert torch.equal(targets, inputs + 1)
    (alone,) = segments(torch.arange(4))
    assert [each.tolist() for each in alone] == [[[0], [1], [2]], [[1], [2], [3]]]


def test_statistics_are_mean_squares_of_gradients_with_the_state_carried() -> None:
    model = small_model()
    tokens = text(65)
    found = gradient_statistics(model, segments(tokens, 2, 12))
    quiet = copy.deepcopy(model).eval()
    streams = torch.stack([tokens[:33], tokens[32:65]], dim=1)
    squares = [torch.zeros_like(p) for p in quiet.parameters()]
    state: State | None = None
    for start, end in ((0, 12), (12, 24), (24, 32)):
        logits, after = quiet(streams[start:end], state)
        loss = F.cross_entropy(logits.flatten(0, 1), streams[start + 1 : end + 1].flatten())
        gradients = torch.autograd.grad(loss, list(quiet.parameters()))
        squares = [square + gradient**2 / 3 for square, gradient in zip(squares, gradients, strict=True)]
        state = after.detach()
    assert_close(found, {name: square for (name, _), square in zip(quiet.named_parameters(), squares, strict=True)})


def test_statistics_do_not_depend_on_the_layout() -> None:
    plain, batch_first = (PlainIndRNN(SIZE, SIZE, 1, norm=None, batch_first=first) for first in (False, True))
    batch_first.load_state_dict(plain.state_dict())
    models = [LanguageModel(network, CLASSES, start=0.3) for network in (plain, batch_first)]
    models[1].load_state_dict(models[0].state_dict())
    tokens = text(61)
    one, other = (gradient_statistics(model, segments(tokens, 20, 3)) for model in models)
    assert_close(one, other)


def by_hand(
    model: LanguageModel, tokens: Tensor, statistics: dict[str, Tensor], lr: float, decay: float
) -> list[float]:
    """The rule of the paper, a number at a time."""
    model = copy.deepcopy(model).eval()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    every = torch.cat([square.sqrt().flatten() for square in statistics.values()])
    mean = float(every.sum()) / len(every)
    losses: list[float] = []
    state: State | None = None
    for at in range(0, len(tokens) - 1, 20):
        piece = tokens[at : at + 21].unsqueeze(1)
        logits, after = model(piece[:-1], state)
        loss = F.cross_entropy(logits.flatten(0, 1), piece[1:].flatten())
        losses.append(float(loss.detach()) * (len(piece) - 1))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                assert p.grad is not None
                root = statistics[name].sqrt()
                back = torch.minimum(decay * root / mean, torch.ones(())) * (start[name] - p)
                p.add_(back - lr * p.grad / (root + 2e-5))
                if name.endswith("weight_hh"):
                    p.clamp_(-1, 1)
        state = after.detach()
    return losses


@pytest.mark.parametrize(
    ("lr", "decay"), [(3e-3, 0.0), (3e-3, 0.05), (1e-3, 5.0)], ids=["no decay", "decay", "clipped"]
)
def test_the_rule(lr: float, decay: float) -> None:
    model, tokens = small_model(), text(107)
    statistics = statistics_of(model)
    result = dynamic_evaluation(model, tokens, statistics, lr=lr, decay=decay)
    expected = by_hand(model, tokens, statistics, lr, decay)
    assert_close(torch.tensor(result.segments), torch.tensor(expected), rtol=1e-9, atol=1e-9)
    assert result.tokens == 106
    assert result.loss == pytest.approx(sum(expected) / 106, rel=1e-12)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    assert result.bits == pytest.approx(result.loss / math.log(2))
    assert not torch.allclose(torch.tensor(result.segments), torch.tensor(static_losses(model, tokens)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_without_learning_it_is_the_static_loss_exactly(dtype: torch.dtype) -> None:
    model, tokens = small_model(dtype), text(90)
    result = dynamic_evaluation(model, tokens, {}, lr=0, decay=0.1)
    assert list(result.segments) == static_losses(model, tokens)
    assert result.loss == sum(result.segments) / 89


# ---- what it sees


def test_tokens_may_be_of_any_whole_type() -> None:
    model, tokens = small_model(), text(45)
    statistics = statistics_of(model)
    wanted, found = (
        dynamic_evaluation(model, each, statistics, lr=1e-3, decay=0.0) for each in (tokens, tokens.to(torch.uint8))
    )
    assert found == wanted


def test_a_token_is_predicted_before_it_is_learnt_from() -> None:
    """Whatever comes later, and however much it would help, earlier losses are the same to the bit."""
    model, tokens = small_model(), text(161)
    tokens[61:] = tokens[61]  # a later part that is easy, once it has been seen
    statistics = flat(model)
    options: Any = {"lr": 0.02, "decay": 0.01}
    result = dynamic_evaluation(model, tokens, statistics, **options)
    for at in (61, 81, 121):
        other = tokens.clone()
        other[at:] = text(len(tokens))[at:]
        shuffled = dynamic_evaluation(model, other, statistics, **options)
        segment = (at - 1) // 20
        assert shuffled.segments[:segment] == result.segments[:segment]
        assert shuffled.segments[segment:] != result.segments[segment:]
    static = static_losses(model, tokens)
    assert result.segments[0] == static[0]  # nothing has been learnt yet
    later = [mine / theirs for mine, theirs in zip(result.segments[4:], static[4:], strict=True)]
    assert max(later) < 0.7  # and here it has


def test_the_model_is_left_as_it_was_even_where_something_fails() -> None:
    model, tokens = small_model(), text(90)
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    generator = torch.get_rng_state()
    statistics = gradient_statistics(model, segments(tokens, 2))
    dynamic_evaluation(model, tokens, statistics, lr=0.1, decay=0)

    def fail(count: int) -> None:
        if count == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dynamic_evaluation(model, tokens, statistics, lr=0.1, decay=0, progress=fail)
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert_close(
        {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}, before, rtol=0, atol=0
    )
    assert torch.equal(torch.get_rng_state(), generator)


def test_recurrent_weights_stay_in_their_bound() -> None:
    model, seen = small_model(gamma=1.5), []
    unit = model.network.get_submodule("blocks.0.unit")
    bound = 1.5 ** (1 / 20)
    with torch.no_grad():
        unit.get_parameter("weight_hh").fill_(0.999 * bound)
    unit.register_forward_pre_hook(lambda module, _: seen.append(float(module.weight_hh.detach().abs().max())))
    dynamic_evaluation(model, text(200), flat(model), lr=0.02, decay=0.0)
    assert len(seen) == 10
    assert max(seen) <= bound
    assert max(seen) == pytest.approx(bound, rel=1e-9)  # which it would have passed


@pytest.mark.parametrize(
    "build",
    [
        lambda: BaselineRNN("lstm", SIZE, SIZE),
        lambda: QRNNBaseline(SIZE, SIZE),
        lambda: TransformerBaseline(SIZE, SIZE, 1, 2, context=20),
        lambda: PlainIndRNN(SIZE, SIZE, 1, batch_first=True, norm=None),
    ],
    ids=["lstm", "qrnn", "transformer", "batch first"],
)
def test_other_networks(build: Callable[[], Any]) -> None:
    model, tokens = LanguageModel(build(), CLASSES, start=0.3), text(81)
    statistics = gradient_statistics(model, segments(tokens, 2))
    assert statistics.keys() == flat(model).keys()
    assert all(square.isfinite().all() for square in statistics.values())
    tokens[1::2] = 3
    learnt = dynamic_evaluation(model, tokens, flat(model), lr=0.02, decay=0.001)
    static = dynamic_evaluation(model, tokens, {}, lr=0, decay=0)
    assert learnt.tokens == static.tokens == 80
    assert learnt.segments[0] == pytest.approx(static.segments[0], rel=1e-6)
    assert learnt.segments[-1] < static.segments[-1]


# ---- what it is for


def noisy_cycle(step: int, count: int, seed: int) -> Tensor:
    """Each token the one before plus `step`, but for one in seven."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(count, generator=generator) < 0.15
    return torch.where(
        noise, torch.randint(CLASSES, (count,), generator=generator), torch.arange(count) * step % CLASSES
    )


def test_it_follows_a_text_that_drifts() -> None:
    """Trained on two cycles of tokens; the text goes over to others, each for a while."""
    model = LanguageModel(PlainIndRNN(16, 16, 1, norm="layer"), CLASSES, start=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    attach_constraint(optimizer, model)
    train = torch.cat([noisy_cycle(1 + i % 2, 35, i) for i in range(40)])
    for _ in range(15):
        for inputs, targets in segments(train, 5, 35):
            optimizer.zero_grad()
            model.loss(inputs, targets)[0].backward()
            optimizer.step()
    statistics = gradient_statistics(model, segments(train, 5))
    validation = torch.cat([noisy_cycle(step, 200, step) for step in (3, 5)])
    results = grid(model, validation, statistics, lrs=[0, 1e-2], decays=[0, 0.03])
    assert [result.loss for result in results] == sorted(result.loss for result in results)
    best = results[0]
    assert best.lr > 0
    drifting = torch.cat([noisy_cycle(step, 200, 9 + step) for step in (4, 6, 3)])
    static = dynamic_evaluation(model, drifting, statistics, lr=0, decay=0)
    dynamic = dynamic_evaluation(model, drifting, statistics, lr=best.lr, decay=best.decay)
    assert dynamic.loss < 0.7 * static.loss
    assert dynamic.tokens == static.tokens == 599


def test_a_grid_puts_what_diverged_last() -> None:
    model = small_model()
    calls: list[int] = []
    statistics = statistics_of(model)
    results = grid(model, text(150), statistics, lrs=[1e300, 0.0], decays=[0.0], progress=calls.append)
    assert [result.lr for result in results] == [0.0, 1e300]
    assert isinstance(results[0], DynamicResult)
    assert calls[:2] == [20, 40]
    assert len(calls) == 2 * 8
    assert calls[7::8] == [149, 2 * 149]


# ---- bad input


def test_bad_arguments_are_named() -> None:
    model, tokens = small_model(), text(50)
    statistics = statistics_of(model)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"tokens": tokens[:1]}, ValueError, "tokens must be at least 2, .* got 1"),
        ({"tokens": tokens.view(5, 10)}, TypeError, r"tokens must be a tensor \(N,\) .*got the shape \(5, 10\)"),
        ({"tokens": [1, 2]}, TypeError, "tokens must be a tensor .*got list"),
        ({"lr": -1}, ValueError, "lr must be a number of at least 0, got -1"),
        ({"lr": math.nan}, ValueError, "lr must be"),
        ({"decay": -0.1}, ValueError, "decay must be a number of at least 0, got -0.1"),
        ({"epsilon": 0}, ValueError, "epsilon must be a positive number, got 0"),
        ({"segment": 0}, ValueError, "segment must be at least 1, got 0"),
        ({"statistics": {}}, ValueError, r"statistics must be of this model, .*got None for embedding.bias"),
        ({"statistics": {k: v * 0 for k, v in statistics.items()}}, ValueError, "statistics must hold a gradient"),
    ]
    for options, kind, said in cases:
        arguments = {"tokens": tokens, "statistics": statistics, "lr": 0.1, "decay": 0.1, **options}
        with pytest.raises(kind, match=said):
            dynamic_evaluation(model, **arguments)
    with pytest.raises(ValueError, match="windows must hold at least one window, got none"):
        gradient_statistics(model, [])
    with pytest.raises(ValueError, match="tokens must be more than batch_size = 50, got 50"):
        list(segments(tokens, 50))
    with pytest.raises(ValueError, match="lrs and decays must hold at least one number each"):
        grid(model, tokens, statistics, lrs=[], decays=[0])
    with pytest.raises(ValueError, match="model must have parameters that require a gradient"):
        dynamic_evaluation(model.requires_grad_(False), tokens, statistics, lr=0.1, decay=0.1)
