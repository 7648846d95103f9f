"""Tokens drawn one after the other: what each way of sampling draws, and that the carried state is the whole prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import LanguageModel
from indrnn.baselines import SRU, BaselineRNN, QRNNBaseline, TransformerBaseline
from indrnn.networks import DenseIndRNN, PlainIndRNN, ResidualIndRNN, language
from indrnn.networks.language import sample
from tests.networks.networks import lively

pytestmark = pytest.mark.usefixtures("_one_thread")

CLASSES, SIZE = 13, 8
DOUBLE = torch.float64

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: lively(PlainIndRNN(SIZE, SIZE, 2, dtype=DOUBLE)),
    "step norm": lambda: lively(PlainIndRNN(SIZE, SIZE, 2, norm="step", norm_steps=5, dtype=DOUBLE)),
    "residual": lambda: lively(ResidualIndRNN(SIZE, 5, 1, last_transition=SIZE, dtype=DOUBLE)),
    "dense": lambda: lively(DenseIndRNN(SIZE, 3, (1,), first_layer=False, last_transition=SIZE, dtype=DOUBLE)),
    "batch first": lambda: lively(PlainIndRNN(SIZE, SIZE, 2, batch_first=True, dtype=DOUBLE)),
    "lstm": lambda: BaselineRNN("lstm", SIZE, SIZE, 2, dtype=DOUBLE),
    "gru": lambda: BaselineRNN("gru", SIZE, SIZE, dtype=DOUBLE),
    "torch's RNN": lambda: nn.RNN(SIZE, SIZE, dtype=DOUBLE),
    "QRNN": lambda: QRNNBaseline(SIZE, SIZE, 2, dtype=DOUBLE),
    "SRU": lambda: SRU(SIZE, SIZE, 2, dtype=DOUBLE),
    "transformer": lambda: TransformerBaseline(SIZE, SIZE, 1, 2, context=50, dtype=DOUBLE),
    "r-transformer": lambda: TransformerBaseline(SIZE, SIZE, 1, 2, window=3, context=50, dtype=DOUBLE),
}
networks = pytest.mark.parametrize("name", NETWORKS)


def make(name: str = "plain") -> LanguageModel:
    return LanguageModel(NETWORKS[name](), CLASSES, start=0.3).eval()


def from_the_whole_prefix(model: LanguageModel, prompt: Tensor, length: int, seed: int, **options: Any) -> Tensor:
    """Each token from the logits of everything before it, run anew."""
    first = model.network.batch_first if hasattr(model.network, "batch_first") else False
    generator = torch.Generator().manual_seed(seed)
    text = prompt
    for _ in range(length):
        with torch.no_grad():
            logits, _ = model(text.t() if first else text)
        logits = logits[:, -1] if first else logits[-1]
        text = torch.cat([text, sample(logits, generator, **options).unsqueeze(0)])
    return text[len(prompt) :]


@networks
@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 1.3, "top_k": 7, "top_p": 0.9}], ids=["likeliest", "drawn"]
)
def test_the_carried_state_is_the_whole_prefix(options: dict[str, Any], name: str) -> None:
    model = make(name)
    prompt = torch.randint(CLASSES, (4, 3))
    expected = from_the_whole_prefix(model, prompt, 17, 5, **options)
    assert options["temperature"] == 0 or len(expected.unique()) > 2
    first = name == "batch first"
    given = prompt.t() if first else prompt
    actual = model.generate(given, 17, seed=5, **options)
    assert torch.equal(actual.t() if first else actual, expected)
    alone = model.generate(prompt[:, 0], 17, seed=5, **options)
    assert torch.equal(alone, from_the_whole_prefix(model, prompt[:, :1], 17, 5, **options)[:, 0])


@networks
def test_a_long_prompt_is_read_in_pieces_and_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt, longest = make(name), torch.randint(CLASSES, (11, 2)), []
    monkeypatch.setattr(language, "_PROMPT", 3)
    model.network.register_forward_pre_hook(lambda _, given: longest.append(max(given[0].shape[:2])))
    first = name == "batch first"
    actual = model.generate(prompt.t() if first else prompt, 9, seed=5)
    assert max(longest) == (11 if "transformer" in name else 3)
    assert torch.equal(actual.t() if first else actual, from_the_whole_prefix(model, prompt, 9, 5, temperature=1.0))


def test_a_long_prompt_of_a_network_without_a_state_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stateless(nn.Module):
        input_size = output_size = SIZE

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(SIZE, SIZE, dtype=DOUBLE)

        def forward(self, input: Tensor, state: Any = None, **options: Any) -> tuple[Tensor, Any]:
            return self.linear(input).cumsum(0), None

    model, prompt = LanguageModel(Stateless(), CLASSES, start=3.0).eval(), torch.randint(CLASSES, (11, 4))
    expected = model.generate(prompt, 1, temperature=0)
    monkeypatch.setattr(language, "_PROMPT", 3)
    assert torch.equal(model.generate(prompt, 1, temperature=0), expected)
    with pytest.raises(ValueError, match="must carry a state"):
        model.generate(prompt, 2)


def test_a_transformer_sees_the_steps_of_its_context() -> None:
    model = LanguageModel(TransformerBaseline(SIZE, SIZE, 1, 2, context=3, dtype=DOUBLE), CLASSES, start=1.0).eval()
    text = torch.randint(CLASSES, (5,))
    for token in model.stream(text, 9, temperature=0):
        seen = text if len(text) == 5 else text[-4:]  # the prompt whole, then three steps before the last
        assert token == model(seen.unsqueeze(1))[0][-1, 0].argmax()
        text = torch.cat([text, token.view(1)])
    whole = LanguageModel(TransformerBaseline(SIZE, SIZE, 1, 2), CLASSES).eval()
    assert whole.generate(text, 1).shape == (1,)
    with pytest.raises(ValueError, match="network must carry a state from step to step; a Transformer does with a"):
        whole.generate(text, 2)


def test_a_seed_names_a_text() -> None:
    model, prompt = make(), torch.tensor([1, 2])
    state = torch.get_rng_state()
    once, again, other = (model.generate(prompt, 40, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(torch.get_rng_state(), state)
    streamed = model.stream(prompt, 40, seed=3)
    assert [int(next(streamed)) for _ in range(5)] == once[:5].tolist()
    assert [int(token) for token in streamed] == once[5:].tolist()
    assert not any(p.grad_fn or p.grad is not None for p in model.parameters())


def frequencies(logits: Tensor, **options: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = sample(logits.expand(40_000, -1), generator, **options)
    return torch.bincount(drawn, minlength=len(logits)).double() / len(drawn)


def test_what_is_drawn() -> None:
    p = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2], dtype=DOUBLE)
    logits = p.log() + 3
    near = {"rtol": 0, "atol": 0.01}
    assert_close(frequencies(logits), p, **near)  # type: ignore[arg-type]
    assert_close(frequencies(logits, temperature=0.5), p**2 / (p**2).sum(), **near)  # type: ignore[arg-type]
    assert_close(frequencies(logits, temperature=2), p**0.5 / (p**0.5).sum(), **near)  # type: ignore[arg-type]
    three = torch.tensor([0, 0.4, 0, 0.25, 0.2], dtype=DOUBLE)
    two = torch.tensor([0, 0.4, 0, 0.25, 0], dtype=DOUBLE)
    for options, expected in (
        ({"top_k": 3}, three),
        ({"top_k": 2}, two),
        ({"top_k": 99}, p),
        ({"top_p": 0.66}, three),
        ({"top_p": 0.64}, two),
        ({"top_p": 1.0}, p),
        ({"top_k": 3, "top_p": 0.7}, two),  # of the three, two have 0.65 / 0.85
    ):
        found = frequencies(logits, **options)
        assert_close(found, expected / expected.sum(), **near)  # type: ignore[arg-type]
        assert found[expected == 0].eq(0).all()
    likeliest = torch.tensor([0, 1, 0, 0, 0], dtype=DOUBLE)
    for options in ({"temperature": 0}, {"temperature": 1e-300}, {"top_k": 1}, {"top_p": 1e-9}):
        assert torch.equal(frequencies(logits, **options), likeliest)
    huge = torch.tensor([-1e30, 1e30, -torch.inf, 0.0])
    assert frequencies(huge, temperature=7.0).tolist() == [0, 1, 0, 0]


def test_bad_arguments_are_named() -> None:
    model, prompt = make(), torch.tensor([1, 2])
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"prompt": torch.tensor([], dtype=torch.int64)}, ValueError, "prompt must hold at least one token"),
        ({"prompt": [1, 2]}, TypeError, "prompt must be a tensor of class indices, got list"),
        ({"prompt": torch.ones(3)}, TypeError, "prompt must be a tensor of class indices, got torch.float32"),
        ({"prompt": torch.tensor([3, 13])}, ValueError, "prompt must hold classes from 0 to 12, got 13"),
        ({"prompt": torch.tensor([3, -1])}, ValueError, "prompt must hold classes from 0 to 12, got -1"),
        ({"length": -1}, ValueError, "length must be at least 0, got -1"),
        ({"length": 1.5}, TypeError, "length must be an integer, got float"),
        ({"temperature": -0.1}, ValueError, "temperature must be a number of at least 0, got -0.1"),
        ({"temperature": float("nan")}, ValueError, "temperature must be"),
        ({"temperature": float("inf")}, ValueError, "temperature must be"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"top_p": 0}, ValueError, r"top_p must be a number in \(0, 1\], got 0"),
        ({"top_p": 1.1}, ValueError, "top_p must be"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    ]
    for options, kind, said in cases:
        with pytest.raises(kind, match=said):
            model.stream(**{"prompt": prompt, "length": 3, **options})  # at the call, before a token is asked for
    assert model.generate(prompt, 0).shape == (0,)
    assert model.generate(prompt.view(2, 1), 0).shape == (0, 1)
    with pytest.raises(ValueError, match="model must be in evaluation mode to generate"):
        model.train().generate(prompt, 3)


@pytest.mark.parametrize("enabled", [True, False])
def test_one_step_goes_without_onednn_and_leaves_it_as_it_was(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = make("lstm"), []
    model.network.register_forward_pre_hook(lambda _, x: seen.append((len(x[0]), bool(torch.backends.mkldnn.enabled))))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", enabled)
    for _ in model.stream(torch.tensor([1, 2, 3]), 3):
        assert bool(torch.backends.mkldnn.enabled) == enabled  # for whoever reads the tokens as they come
    assert seen == [(3, enabled), (1, False), (1, False)]
