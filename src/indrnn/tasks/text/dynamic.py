"""Dynamic evaluation: a language model that continues to learn from the text it has just predicted.

Krause, Kahembwe, Murray, Renals: Dynamic evaluation of neural sequence models (2018); the RMS rule with decay.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...checks import check_count, check_not_negative, check_positive
from ...layers.bound import constrain_
from ...networks import LanguageModel
from .task import detached

SEGMENT = 20
"""Tokens between two updates, as in the paper."""
EPSILON = 2e-5


@dataclass(frozen=True)
class DynamicResult:
    """Result of `dynamic_evaluation`."""

    loss: float
    """Mean cross-entropy of a token, in nats."""
    tokens: int
    """Number of predicted tokens: all but the first."""
    lr: float
    decay: float
    segments: tuple[float, ...]
    """Losses of the segments, each summed over its tokens."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite if that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits(self) -> float:
        """Bits per token."""
        return self.loss / math.log(2)


def segments(tokens: Tensor, batch_size: int = 1, segment: int = SEGMENT) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a text (N,) into `batch_size` parallel streams, and those into windows of inputs and next tokens.

    Yields pairs of (segment, batch_size); the last may be shorter. Tokens at the end that fill no stream are left out.
    """
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() != 1:
        what = f"the shape {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"tokens must be a tensor (N,) of class indices, got {what}")
    if len(tokens) < 2:
        raise ValueError(f"tokens must be at least 2, of which the second is predicted, got {len(tokens)}")
    check_count("batch_size", batch_size)
    check_count("segment", segment)
    length = (len(tokens) - 1) // batch_size
    if length == 0:
        raise ValueError(f"tokens must be more than batch_size = {batch_size}, got {len(tokens)}")
    # A corpus keeps them in the smallest type that holds them
    inputs, targets = (tokens[at : at + length * batch_size].view(batch_size, length).t().long() for at in (0, 1))
    yield from zip(inputs.split(segment), targets.split(segment), strict=True)


def gradient_statistics(model: LanguageModel, windows: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The mean squared gradient of each trained weight, by which `dynamic_evaluation` scales its steps.

    The gradient is that of a window's mean loss, in evaluation mode; the state is carried from window to window. The
    model is not changed.

    Args:
        model: a trained language model.
        windows: pairs of inputs and next tokens, both (T, B), of the training set, as `segments` yields them. Larger
            batches are faster and give smaller gradients, and so need a smaller `lr`.

    Returns:
        A tensor for each parameter, of its shape, by name.
    """
    learner = _Learner(model)
    squares, count = [torch.zeros_like(parameter) for parameter in learner.parameters.values()], 0
    for inputs, targets in windows:
        _, gradients = learner.learn(inputs, targets)
        torch._foreach_addcmul_(squares, gradients, gradients)
        count += 1
    if not count:
        raise ValueError("windows must hold at least one window, got none")
    return {name: square / count for name, square in zip(learner.parameters, squares, strict=True)}


def dynamic_evaluation(
    model: LanguageModel,
    tokens: Tensor,
    statistics: Mapping[str, Tensor],
    *,
    lr: float,
    decay: float,
    segment: int = SEGMENT,
    epsilon: float = EPSILON,
    progress: Callable[[int], None] | None = None,
) -> DynamicResult:
    """Predict a text segment by segment, with a copy of the model that learns from each segment once predicted.

    After each segment with gradient g, every trained weight θ, which was θ₀ after training, becomes

        θ − lr · g / (√MS + ε) + min(decay · √MS / mean(√MS), 1) · (θ₀ − θ)

    where MS is its mean squared gradient on the training set and mean(√MS) the mean over all trained weights. Weights
    with large gradients take smaller steps along the gradient, and return faster to θ₀. Recurrent weights are then
    constrained to their bound. The text is one stream, in evaluation mode throughout: no dropout, and running
    statistics in batch norms. Each token is predicted by weights that were updated on earlier tokens only.

    Args:
        model: a trained language model; not changed.
        tokens: (N,), the text; N − 1 of them are predicted.
        statistics: from `gradient_statistics`.
        lr: learning rate; 0 for no updates.
        decay: rate at which weights return to their trained values, λ in the paper.
        segment: tokens between updates.
        epsilon: added to the root of the mean squared gradient.
        progress: called after each segment with the number of tokens predicted so far.

    Example:
        statistics = gradient_statistics(model, segments(train, batch_size=100))
        result = dynamic_evaluation(model, test, statistics, lr=2e-4, decay=0.01)
    """
    check_not_negative("lr", lr)
    check_not_negative("decay", decay)
    check_positive("epsilon", epsilon)
    learner = _Learner(model)
    update = learner.rule(statistics, lr, decay, epsilon) if lr else None
    losses, predicted = [], 0
    for inputs, targets in segments(tokens, 1, segment):
        loss, gradients = learner.learn(inputs, targets, differentiated=update is not None)
        if update is not None:
            update(gradients)
        losses.append(loss * len(inputs))
        predicted += len(inputs)
        if progress is not None:
            progress(predicted)
    return DynamicResult(sum(losses) / predicted, predicted, lr, decay, tuple(losses))


def grid(
    model: LanguageModel,
    tokens: Tensor,
    statistics: Mapping[str, Tensor],
    *,
    lrs: Sequence[float],
    decays: Sequence[float],
    segment: int = SEGMENT,
    epsilon: float = EPSILON,
    progress: Callable[[int], None] | None = None,
) -> list[DynamicResult]:
    """Grid search: `dynamic_evaluation` for every pair of `lrs` and `decays`, best first; for use on validation text.

    A pair that diverges comes last. `progress` is called after each segment with the number of tokens predicted so far,
    over all pairs.
    """
    if not lrs or not decays:
        raise ValueError("lrs and decays must hold at least one number each")
    options: dict[str, Any] = {"segment": segment, "epsilon": epsilon}
    results: list[DynamicResult] = []

    def advance(predicted: int) -> None:
        if progress is not None:
            progress(sum(result.tokens for result in results) + predicted)

    for lr, decay in itertools.product(lrs, decays):
        results.append(dynamic_evaluation(model, tokens, statistics, lr=lr, decay=decay, progress=advance, **options))
    return sorted(results, key=lambda result: result.loss if math.isfinite(result.loss) else math.inf)


class _Learner:
    """A copy of a model in evaluation mode, with the state of its stream."""

    def __init__(self, model: LanguageModel) -> None:
        if not (hasattr(model, "loss") and hasattr(model, "network")):  # wrappers have them too
            raise TypeError(f"model must be a LanguageModel, got {type(model).__name__}")
        self.model = copy.deepcopy(model).eval()
        self.parameters: dict[str, Tensor] = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("model must have parameters that require a gradient, got none")
        self.state: Any = None

    def learn(self, inputs: Tensor, targets: Tensor, differentiated: bool = True) -> tuple[float, list[Tensor]]:
        """The mean loss of a window, (T, B), and its gradient for each parameter."""
        if getattr(self.model.network, "batch_first", False):
            inputs, targets = inputs.t(), targets.t()
        weights = list(self.parameters.values())
        inputs, targets = inputs.to(weights[0].device), targets.to(weights[0].device)
        # cuDNN differentiates its recurrent layers in training mode alone, where dropout would act
        with torch.set_grad_enabled(differentiated), torch.backends.cudnn.flags(enabled=False):
            loss, state = self.model.loss(inputs, targets, self.state)
            self.state = detached(state)
            options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
            gradients = torch.autograd.grad(loss, weights, **options) if differentiated else ()
        return float(loss.detach()), list(gradients)

    def rule(
        self, statistics: Mapping[str, Tensor], lr: float, decay: float, epsilon: float
    ) -> Callable[[list[Tensor]], None]:
        """The update of the parameters after each segment, given their gradients."""
        shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        squares = {name: tuple(square.shape) for name, square in statistics.items()}
        if shapes != squares:
            wrong = min(name for name in shapes.keys() | squares.keys() if shapes.get(name) != squares.get(name))
            raise ValueError(
                f"statistics must be of this model, by `gradient_statistics`, got {squares.get(wrong)} for {wrong} of "
                f"the shape {shapes.get(wrong)}"
            )
        roots = [statistics[name].to(p).sqrt() for name, p in self.parameters.items()]
        mean = sum(float(root.sum(dtype=torch.float64)) for root in roots) / sum(root.numel() for root in roots)
        if not mean > 0:
            raise ValueError("statistics must hold a gradient that is not 0")
        weights = list(self.parameters.values())
        trained = [weight.detach().clone() for weight in weights]
        steps = [-lr / (root + epsilon) for root in roots]
        rates = [(decay / mean * root).clamp_max_(1) for root in roots]

        @torch.no_grad()
        def update(gradients: list[Tensor]) -> None:
            away = torch._foreach_sub(trained, weights)
            torch._foreach_addcmul_(weights, gradients, steps)
            torch._foreach_addcmul_(weights, away, rates)
            constrain_(self.model)

        return update
