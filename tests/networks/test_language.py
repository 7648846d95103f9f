"""The language model: one weight both ways or two, dropout of words, and a loss that never holds all logits."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import indrnn
from indrnn import IndRNN, Language, LanguageModel, Plain, Residual
from indrnn.baselines import SRU, Baseline, BaselineRNN, QRNNBaseline
from indrnn.networks import PlainIndRNN, ResidualIndRNN, TiedEmbedding, WordEmbedding, language
from indrnn.networks.language import linear_cross_entropy
from tests.networks.networks import B, T, lively, make

pytestmark = pytest.mark.usefixtures("_one_thread")

CLASSES, SIZE = 13, 9
DOUBLE = torch.float64


def language_model(**options: Any) -> LanguageModel:
    return LanguageModel(lively(PlainIndRNN(SIZE, SIZE, 2, dtype=DOUBLE)), CLASSES, start=0.5, **options)


def some_words(*shape: int) -> Tensor:
    return torch.randint(CLASSES, shape or (T, B))


either = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


# ---- one weight both ways


def test_half_precision_keeps_the_gradient_of_classes_that_are_no_target() -> None:
    """Their probabilities, divided by 6,400 targets, are below the smallest number of float16."""
    x, w, b = torch.randn(6400, 4), torch.randn(5000, 4) * 0.04, torch.zeros(5000)
    targets = torch.randint(2500, (6400,))
    found = []
    for half in (False, True):
        weight = w.clone().requires_grad_()
        with torch.autocast("cpu", torch.float16, enabled=half):
            loss = linear_cross_entropy(x, weight, b, targets)
        (loss * 65536).backward()
        assert weight.grad is not None
        found.append(weight.grad[2500:])
    assert (found[1] - found[0]).norm() < 2e-3 * found[0].norm()


def test_gradients_of_both_uses_add_up() -> None:
    model = language_model()
    assert [name for name, _ in model.named_parameters() if name.startswith("embedding")] == [
        "embedding.weight",
        "embedding.bias",
    ]
    words, gradient = some_words(), torch.randn(T, B, CLASSES, dtype=DOUBLE)
    (both,) = torch.autograd.grad(model(words)[0], model.embedding.weight, gradient)
    weight = model.embedding.weight.detach()
    entering, leaving = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    network = copy.deepcopy(model.network)
    logits = network(entering[words])[0] @ leaving.t() + model.embedding.bias
    gradients = torch.autograd.grad(logits, [entering, leaving], gradient)
    assert all(each.count_nonzero() > 0 for each in gradients)
    assert_close(both, gradients[0] + gradients[1])


def test_hooks_on_the_embedding_see_both_uses() -> None:
    model, seen = language_model(), []
    model.embedding.register_forward_hook(lambda _, __, output: seen.append(output.shape[-1]))
    model(some_words())
    assert seen == [SIZE, CLASSES]


def test_the_tie_survives_empty_memory_and_assigned_tensors() -> None:
    model = language_model().eval()
    words = some_words()
    with torch.device("meta"):
        deferred = LanguageModel(PlainIndRNN(SIZE, SIZE, 2, dtype=DOUBLE), CLASSES)
    emptied = copy.deepcopy(deferred).to_empty(device="cpu")
    emptied.load_state_dict(model.state_dict())
    deferred.load_state_dict(model.state_dict(), assign=True)
    for other in (emptied.eval(), deferred.eval()):
        assert_close(other(words), model(words), rtol=0, atol=0)
        with torch.no_grad():
            other.embedding.weight.zero_()
        logits, _ = other(words)  # nothing goes in, and nothing but the bias comes out
        assert_close(logits, other.get_parameter("embedding.bias").expand_as(logits))
        other.embedding.weight = nn.Parameter(model.embedding.weight.detach().clone())


def test_an_own_output_has_its_own_weight_and_size() -> None:
    model = LanguageModel(lively(PlainIndRNN(4, SIZE, 2, dtype=DOUBLE)), CLASSES, tied=False)
    names = [name for name, _ in model.named_parameters() if not name.startswith("network")]
    assert names == ["embedding.weight", "output.weight", "output.bias"]
    assert {p.dtype for p in model.parameters()} == {DOUBLE}
    words = some_words()
    logits, _ = model(words)
    features, _ = model.network(model.get_parameter("embedding.weight")[words])
    expected = features @ model.get_parameter("output.weight").t() + model.get_parameter("output.bias")
    assert_close(logits, expected)


# ---- dropout


@pytest.mark.parametrize("kind", [TiedEmbedding, WordEmbedding])
def test_dropped_words_are_dropped_wherever_they_occur(kind: Any) -> None:
    embedding = kind(CLASSES, 4, dropout=0.5)
    vectors = embedding(torch.arange(CLASSES).repeat(3))
    zero = (vectors == 0).all(-1).view(3, CLASSES)
    assert torch.equal(zero, zero[:1].expand(3, -1))
    assert 0 < zero[0].sum() < CLASSES
    kept = ~zero[0]
    assert_close(vectors[:CLASSES][kept], 2 * embedding.weight[kept])
    assert torch.equal(embedding.eval()(torch.arange(CLASSES)), embedding.weight)


class Seeing(nn.Module):
    """A network that returns what it is given."""

    input_size = output_size = SIZE

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.number = nn.Parameter(torch.ones(()))

    def forward(self, input: Tensor, state: Any = None, **_: Any) -> tuple[Tensor, Any]:
        self.seen = input
        return input * self.number, state


@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_word_dropout_has_one_mask_for_all_steps(batch_first: bool) -> None:
    network = Seeing(batch_first)
    model = LanguageModel(network, CLASSES, word_dropout=0.6)
    words = some_words(B, T) if batch_first else some_words()
    model(words)
    seen, vectors = network.seen, model.embedding.weight[words]
    if batch_first:
        seen, vectors = seen.transpose(0, 1), vectors.transpose(0, 1)
    mask = seen.eq(0)
    assert torch.equal(mask, mask[:1].expand_as(mask))
    assert 0.4 < mask[0].double().mean() < 0.8
    assert not torch.equal(mask[0, 0], mask[0, 1])  # each sequence has its own
    assert_close(seen[~mask], vectors[~mask] / 0.4)
    model.eval()(words)
    assert torch.equal(network.seen, model.embedding.weight[words])
    model.train()(words[:, 0])  # unbatched: again one mask for all steps
    mask = network.seen.eq(0)
    assert torch.equal(mask, mask[:1].expand_as(mask))


# ---- the loss


def plain_loss(model: LanguageModel, words: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    logits, _ = model(words)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


@pytest.fixture(params=["at once", "in pieces", "a row at a time"])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"at once": 2**30, "in pieces": 10 * CLASSES + 1, "a row at a time": 1}
    monkeypatch.setattr(language, "PIECE", sizes[request.param])


@either
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.usefixtures("_pieces")
def test_loss_is_the_cross_entropy_of_the_logits(reduction: Any, tied: bool) -> None:
    model, words, targets = language_model(tied=tied), some_words(), some_words()
    targets[3:5, 2] = -100
    parameters = list(model.parameters())
    loss, state = model.loss(words, targets, reduction=reduction)
    expected = plain_loss(model, words, targets, reduction)
    assert_close(loss, expected)
    assert_close(torch.autograd.grad(3 * loss, parameters), torch.autograd.grad(3 * expected, parameters))
    assert_close(state, model(words)[1], rtol=0, atol=0)
    with torch.no_grad():
        assert_close(model(words, targets=targets, reduction=reduction)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_pieces_are_the_whole_to_rounding(rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = 501
    monkeypatch.setattr(language, "PIECE", rows * classes)
    x, w = torch.randn(193, 31, dtype=dtype, requires_grad=True), torch.randn(classes, 31, dtype=dtype)
    w, b = w.requires_grad_(), torch.randn(classes, dtype=dtype, requires_grad=True)
    targets = torch.randint(classes, (193,))
    expected = F.cross_entropy(F.linear(x, w, b), targets)
    actual = linear_cross_entropy(x, w, b, targets)
    tolerance: Any = {"rtol": 1e-5, "atol": 1e-7} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    assert_close(actual, expected, **tolerance)
    assert_close(torch.autograd.grad(actual, [x, w, b]), torch.autograd.grad(expected, [x, w, b]), **tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_first_and_second_derivatives_are_right(reduction: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "PIECE", 3 * 5)
    given = [torch.randn(*shape, dtype=DOUBLE, requires_grad=True) for shape in ((7, 4), (5, 4), (5,))]
    targets = torch.tensor([0, 4, 2, -100, 1, 1, 3])

    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return linear_cross_entropy(x, w, b, targets, reduction)

    assert torch.autograd.gradcheck(loss, given)
    assert torch.autograd.gradgradcheck(loss, given)
    given[2].requires_grad_(False)
    assert torch.autograd.gradcheck(loss, given)
    assert torch.autograd.gradgradcheck(loss, given)


def test_a_loss_of_no_target_that_counts_is_torchs() -> None:
    x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.zeros(5)
    targets = torch.full((3,), -100)
    assert linear_cross_entropy(x, w, b, targets).isnan()
    assert linear_cross_entropy(x, w, b, targets, "sum") == 0
    assert linear_cross_entropy(x[:0], w, b, targets[:0], "sum") == 0


def test_autocast_computes_products_in_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "PIECE", 10 * 50)
    x, w = torch.randn(64, 32, requires_grad=True), torch.randn(50, 32, requires_grad=True)
    b, targets = torch.randn(50, requires_grad=True), torch.randint(50, (64,))
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.cross_entropy(F.linear(x, w, b), targets)
        actual = linear_cross_entropy(x, w, b, targets)
    assert actual.dtype == torch.float32
    assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(actual, [x, w, b]), torch.autograd.grad(expected, [x, w, b]), strict=True
    ):
        assert mine.dtype == torch.float32
        assert_close(mine, theirs, rtol=2**-6, atol=2**-8 * float(theirs.abs().max()))
    full = F.cross_entropy(F.linear(x, w, b), targets)
    assert not torch.equal(actual, full)  # bfloat16 it was


def largest_tensor(function: Callable[[], Tensor]) -> int:
    """Of all that torch's operations return in a forward and a backward pass, the most numbers."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        largest: int = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes = [each.numel() for each in tree_leaves(result) if isinstance(each, Tensor)]
            self.largest = max([self.largest, *sizes])
            return result

    watch = Watch()
    with watch:
        function().backward()
    return watch.largest


@either
def test_the_whole_logits_are_never_there(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, words = language_model(tied=tied), some_words(40, 20)
    logits = words.numel() * CLASSES
    assert largest_tensor(lambda: model.loss(words, words)[0]) >= logits
    monkeypatch.setattr(language, "PIECE", 100 * CLASSES)
    assert largest_tensor(lambda: model.loss(words, words)[0]) == words.numel() * SIZE


@either
def test_what_watches_the_output_sees_the_logits(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "PIECE", CLASSES)
    model, words = language_model(tied=tied), some_words()
    expected = model.loss(words, words)[0]
    output = model.embedding if tied else model.output
    assert output is not None
    seen = []
    handle = output.register_forward_hook(lambda _, __, logits: seen.append(logits.shape[-1]))
    assert_close(model.loss(words, words)[0], expected)
    assert seen[-1] == CLASSES
    handle.remove()

    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **options: Any) -> Tensor:
            return 2 * self.inner(*args, **options)  # type: ignore[no-any-return]

    setattr(model, "embedding" if tied else "output", Doubled(output))
    assert_close(model.loss(words, words)[0], plain_loss(model, words, words))
    assert not torch.allclose(model.loss(words, words)[0], expected)


def test_a_parametrised_output_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "PIECE", CLASSES)
    model, words = language_model(), some_words()
    nn.utils.parametrizations.weight_norm(model.embedding)
    loss, _ = model.loss(words, words)
    loss.backward()
    assert_close(loss, plain_loss(model, words, words))
    assert all(p.grad is not None for p in model.embedding.parameters())


def test_transformations_of_torch_func_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "PIECE", 30 * CLASSES)
    model, words = language_model().eval(), some_words()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(given: dict[str, Tensor], words: Tensor) -> Tensor:
        return torch.func.functional_call(model, given, (words,), {"targets": words})[0]  # type: ignore[no-any-return]

    expected = dict(
        zip(parameters, torch.autograd.grad(model.loss(words, words)[0], list(model.parameters())), strict=True)
    )
    assert_close(torch.func.grad(loss)(parameters, words), expected)
    several = some_words(3, T, B)
    each = torch.func.vmap(loss, in_dims=(None, 0))(parameters, several)
    assert_close(each, torch.stack([model.loss(words, words)[0] for words in several]))
    forward = LanguageModel(Seeing(), CLASSES)  # the recurrence has no forward-mode derivative
    weight = forward.embedding.weight.detach()

    def of_weight(weight: Tensor) -> Tensor:
        given = {"embedding.weight": weight}
        return torch.func.functional_call(forward, given, (words,), {"targets": words})[0]  # type: ignore[no-any-return]

    tangent = torch.func.jvp(of_weight, (weight,), (weight,))[1]
    (gradient,) = torch.autograd.grad(forward.loss(words, words)[0], forward.embedding.weight)
    assert_close(tangent, (gradient * weight).sum())


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "PIECE", 30 * CLASSES)
    model, words = language_model().eval(), some_words()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss, _ = compiled(words, targets=words)
    expected, _ = model.loss(words, words)
    assert_close(loss, expected)
    assert_close(
        torch.autograd.grad(loss, list(model.parameters())), torch.autograd.grad(expected, list(model.parameters()))
    )


@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_targets_past_the_end_do_not_count(batch_first: bool) -> None:
    network = lively(PlainIndRNN(SIZE, SIZE, 2, norm=None, dtype=DOUBLE, batch_first=batch_first))
    model = LanguageModel(network, CLASSES, start=0.5)
    lengths = [3, T, 1, 0, 5, 2, 4]
    words, targets = some_words(), some_words()
    given = [each.t() if batch_first else each for each in (words, targets)]
    loss, _ = model.loss(*given, lengths=lengths)
    alone = [model.loss(words[:n, b], targets[:n, b], reduction="sum")[0] for b, n in enumerate(lengths) if n]
    assert_close(loss, torch.stack(alone).sum() / sum(lengths))
    assert_close(model.loss(words[:, 0], targets[:, 0], lengths=[3])[0], alone[0] / 3)


# ---- networks


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: PlainIndRNN(SIZE, SIZE, 2, dtype=DOUBLE),
    "residual": lambda: ResidualIndRNN(SIZE, 5, 1, last_transition=SIZE, dtype=DOUBLE),
    "IndRNN": lambda: IndRNN(SIZE, SIZE, 2, dtype=DOUBLE),
    "QRNN": lambda: QRNNBaseline(SIZE, SIZE, 2, dtype=DOUBLE),
    "SRU": lambda: SRU(SIZE, SIZE, 2, dtype=DOUBLE),
    "torch's LSTM": lambda: nn.LSTM(SIZE, SIZE, 2, dtype=DOUBLE),
    "rnn": lambda: BaselineRNN("rnn", SIZE, SIZE, 2, dtype=DOUBLE),
    "lstm": lambda: BaselineRNN("lstm", SIZE, SIZE, 2, dtype=DOUBLE),
    "gru": lambda: BaselineRNN("gru", SIZE, SIZE, 2, dtype=DOUBLE),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_stream_in_pieces_is_the_whole(name: str) -> None:
    model = LanguageModel(NETWORKS[name](), CLASSES, start=0.5).eval()
    words, targets = some_words(), some_words()
    whole, after = model(words)
    total, state = torch.zeros((), dtype=DOUBLE), None
    pieces = []
    for at in (slice(0, 1), slice(1, 5), slice(5, T)):
        pieces.append(model(words[at], state)[0])
        loss, state = model.loss(words[at], targets[at], state, reduction="sum")
        total = total + loss
    assert_close(torch.cat(pieces), whole)
    assert_close(total, plain_loss(model, words, targets, "sum"))
    assert_close(state, after)


# ---- options and files


def test_options_build_the_model_and_are_found_in_it() -> None:
    config = Language(Residual(hidden_size=5, blocks=1, last_transition=SIZE), CLASSES, start=0.1, word_dropout=0.65)
    config = config.sized(SIZE, 17)
    assert config.network.input_size == SIZE
    assert config.network.sequence_length == 17
    model = config.build(dtype=DOUBLE)
    assert model.config == config
    assert isinstance(model.network, ResidualIndRNN)
    assert {p.dtype for p in model.parameters()} == {DOUBLE}
    weight = model.embedding.weight
    assert 0.09 < weight.abs().max() <= 0.1
    assert weight.min() < 0 < weight.max()


@pytest.mark.parametrize(
    "config",
    [
        Language(Plain(SIZE, SIZE, 2), CLASSES, dropout=0.2, word_dropout=0.3),
        Language(Baseline("lstm", 5, 2, input_size=SIZE), CLASSES, tied=False, start=0.2),
    ],
    ids=["tied", "untied"],
)
def test_a_saved_model_is_loaded(config: Language, tmp_path: Any) -> None:
    model = config.build().eval()
    indrnn.save(model, tmp_path)
    loaded = indrnn.load(tmp_path)
    assert isinstance(loaded, LanguageModel)
    assert loaded.config == config
    words = some_words()
    assert_close(loaded(words), model(words), rtol=0, atol=0)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(
        ValueError,
        match="network must have as many features in its output as in its input, 3, for a tied output, got 9; give it "
        "a last transition, or the model tied=False",
    ):
        LanguageModel(make("plain"), CLASSES)
    with pytest.raises(TypeError, match=r"network must be one of .*got Linear"):
        LanguageModel(nn.Linear(3, 3), CLASSES)
    for network in (PlainIndRNN(4, 4, 1, bidirectional=True), nn.LSTM(4, 4, bidirectional=True)):
        with pytest.raises(ValueError, match="network must not be bidirectional"):
            LanguageModel(network, CLASSES)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"classes": 0}, "classes"),
        ({"size": 0}, "size"),
        ({"start": 0}, "start"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=f"{message} must be"):
            TiedEmbedding(**{"classes": 3, "size": 4, **options})
    with pytest.raises(ValueError, match="dropout must be"):
        TiedEmbedding(3, 4, dropout=2)
    bad: dict[str, Any]
    for bad in ({"classes": 0}, {"start": -1}, {"start": math.inf}, {"dropout": 2}, {"word_dropout": -0.1}):
        (name,) = bad
        options = {"classes": 3, **bad}
        with pytest.raises(ValueError, match=f"^{name} must be"):
            Language(Plain(4, 4), **options)
        with pytest.raises(ValueError, match=f"^{name} must be"):
            LanguageModel(PlainIndRNN(4, 4, 1), **options)
    model, words = language_model(), some_words()
    with pytest.raises(ValueError, match=r"targets must have the shape \(11, 7\) for this input, got \(10, 7\)"):
        model.loss(words, words[1:])
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', got 'none'"):
        model.loss(words, words, reduction="none")
    with pytest.raises(TypeError, match=r"input must be a tensor of class indices, got torch.float32"):
        model(torch.randn(T, B))


@pytest.mark.parametrize("classes", [30, 2**20], ids=["logits whole", "in pieces"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_classes_may_be_of_any_whole_type(dtype: torch.dtype, classes: int) -> None:
    model, words = LanguageModel(PlainIndRNN(2, 2, 1), classes), torch.randint(30, (6, 2))
    expected, _ = model.loss(words[:-1], words[1:])
    found, _ = model.loss(words[:-1].to(dtype), words[1:].to(dtype))
    assert torch.equal(found, expected)
    for name, given in (("input", (words > 3, words)), ("targets", (words, words.double()))):
        with pytest.raises(TypeError, match=f"{name} must be a tensor of class indices, got torch"):
            model.loss(*given)
