"""From features to answers: of the last valid step, or of every step, with weights of their own or an embedding's."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn.networks import LastStepClassifier, PerStepClassifier, PlainIndRNN, State
from tests.networks.networks import ARCHITECTURES, LENGTHS, OUTPUT_SIZES, B, M, T, inputs, lively, make, trained

pytestmark = pytest.mark.usefixtures("_one_thread")

CLASSES = 13

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)
layouts = pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])


@architectures
@layouts
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["no lengths", "lengths"])
def test_last_step_classifier(lengths: Tensor | None, batch_first: bool, architecture: str) -> None:
    model = LastStepClassifier(trained(make(architecture, batch_first=batch_first)), CLASSES).eval()
    nn.init.normal_(model.classifier.bias)
    x = inputs().transpose(0, 1) if batch_first else inputs()
    logits, state = model(x, lengths=lengths)
    assert logits.shape == (B, CLASSES)
    features, expected_state = model.network(x, lengths=lengths)
    features = features.transpose(0, 1) if batch_first else features
    steps = [T] * B if lengths is None else lengths.tolist()
    rows = [features[n - 1, b] if n else torch.zeros(OUTPUT_SIZES[architecture]) for b, n in enumerate(steps)]
    assert_close(logits, torch.stack(rows) @ model.classifier.weight.t() + model.classifier.bias)
    assert_close(state, expected_state, rtol=0, atol=0)


@architectures
@layouts
@pytest.mark.parametrize("tied", [False, True], ids=["own weights", "tied weights"])
def test_per_step_classifier(tied: bool, batch_first: bool, architecture: str) -> None:
    embedding = nn.Embedding(CLASSES, OUTPUT_SIZES[architecture]) if tied else None
    model = PerStepClassifier(trained(make(architecture, batch_first=batch_first)), CLASSES, embedding).eval()
    nn.init.normal_(model.bias)
    x = inputs().transpose(0, 1) if batch_first else inputs()
    logits, state = model(x, lengths=LENGTHS)
    features, expected_state = model.network(x, lengths=LENGTHS)
    assert logits.shape == (*x.shape[:2], CLASSES)
    assert_close(logits, features @ model.weight.t() + model.bias)
    assert_close(state, expected_state, rtol=0, atol=0)
    assert {name for name, _ in model.named_parameters() if not name.startswith("network")} == {"weight", "bias"}


@pytest.mark.parametrize("head", [LastStepClassifier, PerStepClassifier])
def test_heads_carry_the_state(head: type[LastStepClassifier] | type[PerStepClassifier]) -> None:
    model = head(trained(make("plain", "step norm before")), CLASSES).eval()
    x, resets = inputs(), torch.rand(T, B) < 0.2
    whole, after = model(x, resets=resets)
    first, state = model(x[:4], resets=resets[:4])
    assert isinstance(state, State)
    second, state = model(x[4:], state, resets=resets[4:])
    pieces = second if head is LastStepClassifier else torch.cat([first, second])
    assert_close((pieces, state), (whole, after), rtol=1e-5, atol=1e-5)


class LanguageModel(nn.Module):
    """Words to words, by one matrix both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 9, dtype=torch.float64)
        network = lively(PlainIndRNN(9, 9, 2, dtype=torch.float64))
        self.classifier = PerStepClassifier(network, CLASSES, self.embedding)

    def forward(self, words: Tensor) -> Tensor:
        return self.classifier(self.embedding(words))[0]  # type: ignore[no-any-return]


def test_tied_weights_are_one_parameter() -> None:
    model = LanguageModel()
    assert model.classifier.weight is model.embedding.weight
    assert sum(parameter is model.embedding.weight for parameter in model.parameters()) == 1
    other = copy.deepcopy(model)
    assert other.embedding.weight is not model.embedding.weight
    assert other.classifier.weight is other.embedding.weight


def test_gradients_of_both_uses_add_up() -> None:
    model = LanguageModel()
    words, gradient = torch.randint(CLASSES, (T, B)), torch.randn(T, B, CLASSES, dtype=torch.float64)
    (both,) = torch.autograd.grad(model(words), model.embedding.weight, gradient)

    weight = model.embedding.weight.detach()
    entering, leaving = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    network = copy.deepcopy(model.classifier.network)
    logits = network(entering[words])[0] @ leaving.t() + model.classifier.bias
    gradients = torch.autograd.grad(logits, [entering, leaving], gradient)
    assert all(each.count_nonzero() > 0 for each in gradients)
    assert_close(both, gradients[0] + gradients[1])


def test_an_optimiser_moves_both_uses() -> None:
    model = LanguageModel()
    words = torch.randint(CLASSES, (T, B))
    before = model.embedding.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(words).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model.embedding.weight, before)
    assert torch.equal(model.classifier.weight, model.embedding.weight)


def test_tied_model_saved_and_loaded(tmp_path: Path) -> None:
    model, loaded = LanguageModel().eval(), LanguageModel().eval()
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    safetensors.torch.load_model(loaded, tmp_path / "model.safetensors")
    words = torch.randint(CLASSES, (T, B))
    assert torch.equal(loaded(words), model(words))
    assert loaded.classifier.weight is loaded.embedding.weight


@pytest.mark.parametrize("shape", [(CLASSES, 10), (CLASSES - 1, 9), (9, CLASSES)], ids=str)
def test_embedding_of_another_shape_is_refused(shape: tuple[int, int]) -> None:
    message = rf"embedding must have the shape \(classes, output_size\) = \(13, 9\), got \({shape[0]}, {shape[1]}\)"
    with pytest.raises(ValueError, match=message):
        PerStepClassifier(make("plain"), CLASSES, nn.Embedding(*shape))


@pytest.mark.parametrize("head", [LastStepClassifier, PerStepClassifier])
def test_bad_number_of_classes_is_named(head: type[LastStepClassifier] | type[PerStepClassifier]) -> None:
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        head(make("plain"), 0)


@pytest.mark.parametrize("head", [LastStepClassifier, PerStepClassifier])
def test_heads_are_of_the_networks_type(head: type[LastStepClassifier] | type[PerStepClassifier]) -> None:
    model = head(make("plain", dtype=torch.float64), CLASSES)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(torch.zeros(T, B, M, dtype=torch.float64))[0].dtype == torch.float64
