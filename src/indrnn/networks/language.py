"""The language model: embedding → any network → logits of the next word; and text that is drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import checks
from ..layers.config import config_of
from ..layers.masks import embedding_dropout, shared_dropout, valid_steps
from ..ops.checks import Lengths, check_tensor
from ..ops.reference import accumulation_dtype
from ..ops.watched import are_plain
from .config import Factory, Language
from .heads import Output, check_network, run_network
from .tokeniser import Tokeniser
from .unit import is_unwatched

Reduction = Literal["mean", "sum"]
IGNORED = -100
"""Target that does not count, as in torch."""
PIECE = 2**22
"""Logits of a piece: 16 MiB in float32, and as much for their softmax. Smaller ones make the products slower."""
_PROMPT = 1024  # steps of a prompt that are read at once: what a network keeps of all its layers is as long


class _Embedding(nn.Module):
    """Vectors of classes, from a weight that starts from U(−start, start), with dropout of whole rows in training."""

    weight: Tensor
    start: float
    dropout: float

    def reset_parameters(self) -> None:
        """Reinitialise the weight."""
        nn.init.uniform_(self.weight, -self.start, self.start)

    def forward(self, input: Tensor) -> Tensor:
        """Take indices (...) to vectors (..., features)."""
        return F.embedding(input, embedding_dropout(self.weight, self.dropout, self.training))

    def extra_repr(self) -> str:
        """Sizes and dropout."""
        classes, size = self.weight.shape
        return f"{classes}, {size}" + (f", dropout={self.dropout}" if self.dropout else "")


class WordEmbedding(_Embedding, nn.Embedding):
    """`torch.nn.Embedding` from U(−start, start); in training, dropout of classes, wherever they occur in a batch."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        start: float = 0.04,
        dropout: float = 0.0,
        **factory: Unpack[Factory],
    ) -> None:
        checks.check_count("num_embeddings", num_embeddings)
        checks.check_count("embedding_dim", embedding_dim)
        checks.check_positive("start", start)
        checks.check_probability("dropout", dropout)
        self.start, self.dropout = start, float(dropout)
        super().__init__(num_embeddings, embedding_dim, **factory)


class TiedEmbedding(_Embedding):
    """An embedding whose weight is that of the output too; the module is called for both.

    `embedding(words)` takes class indices to vectors; `embedding(features, decode=True)` takes vectors to logits,
    features · weightᵀ + bias. There is one parameter `weight`, of one module, so the tie cannot break. `start` and
    `dropout`, of `embedding(words)`, are as for `WordEmbedding`; the bias starts from 0.
    """

    def __init__(
        self, classes: int, size: int, *, start: float = 0.04, dropout: float = 0.0, **factory: Unpack[Factory]
    ) -> None:
        super().__init__()
        checks.check_count("classes", classes)
        checks.check_count("size", size)
        checks.check_probability("dropout", dropout)
        checks.check_positive("start", start)
        self.classes, self.size, self.start, self.dropout = classes, size, start, float(dropout)
        self.weight = nn.Parameter(torch.empty(classes, size, **factory))
        self.bias = nn.Parameter(torch.empty(classes, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weight; zero the bias."""
        super().reset_parameters()
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor, decode: bool = False) -> Tensor:
        """Take indices (...) to vectors (..., size), or with `decode` vectors to logits (..., classes)."""
        return F.linear(input, self.weight, self.bias) if decode else super().forward(input)


class LanguageModel(nn.Module):
    """The next word at every step: embedding → dropout → network → output.

    Args:
        network: any of the networks or baselines, `IndRNN`, or `torch.nn.RNN`, `LSTM` or `GRU`, that is not
            bidirectional. A word's vector has as many features as its input, and with a tied output as many as its
            output.
        classes: number of words (or characters).
        **options: `tied`, `start`, `dropout` and `word_dropout`, by name; see `Language`.

    Example:
        model = indrnn.LanguageModel(indrnn.ResidualIndRNN(600, 2000, 5, last_transition=600), 10_000)
        loss, state = model.loss(words[:-1], words[1:])
    """

    tokeniser: Tokeniser | None = None
    """Tokeniser of the model's words, where a run or a saved model has one; see `indrnn.load`."""

    def __init__(self, network: nn.Module, classes: int, **options: Any) -> None:
        super().__init__()
        size = check_network(network)
        self._options = Language(None, classes, **options)
        self.classes, self.tied = classes, self._options.tied
        self.word_dropout = float(self._options.word_dropout)
        if any(getattr(part, "bidirectional", False) for part in (network, getattr(network, "config", None))):
            raise ValueError("network must not be bidirectional: it would read the words that it is to predict")
        inputs = getattr(network, "input_size", None)
        if not isinstance(inputs, int):
            raise TypeError(f"network must have an `input_size`, the features of a word's vector, got {inputs!r}")
        if self.tied and inputs != size:
            raise ValueError(
                f"network must have as many features in its output as in its input, {inputs}, for a tied output, got "
                f"{size}; give it a last transition, or the model tied=False"
            )
        like = next(network.parameters())
        factory: Any = {"device": like.device, "dtype": like.dtype}
        kind: type[TiedEmbedding | WordEmbedding] = TiedEmbedding if self.tied else WordEmbedding
        self.embedding = kind(classes, inputs, start=self._options.start, dropout=self._options.dropout, **factory)
        self.network = network
        self.output = None if self.tied else Output(size, classes, **factory)

    @property
    def config(self) -> Language:
        """The configuration to rebuild it."""
        return replace(self._options, network=config_of(self.network))

    def forward(
        self,
        input: Tensor,
        state: Any = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        targets: Tensor | None = None,
        reduction: Reduction = "mean",
    ) -> tuple[Tensor, Any]:
        """Return the logits of the next word, (T, B, classes) in the network's layout, and the state; or the loss.

        The input, (T, B) in the network's layout, holds class indices; state, lengths and resets are as for the
        network. With `targets`, the next words in the input's layout, the loss is in place of the logits; see `loss`.
        """
        input = _class_indices("input", input)
        check_tensor("targets", targets, tuple(input.shape))
        targets = None if targets is None else _class_indices("targets", targets)
        checks.check_choice("reduction", reduction, get_args(Reduction))
        features, state = run_network(self.network, self._vectors(input), state, lengths, resets)
        if targets is None:
            return self._decode(features), state
        if lengths is not None:
            steps = torch.as_tensor(lengths, device=targets.device)
            valid: Any = self._time_first(valid_steps(self._time_first(targets), steps))  # type: ignore[arg-type]
            targets = torch.where(valid.view_as(targets), targets, IGNORED)
        return self._loss(features.flatten(0, -2), targets.flatten(), reduction), state

    def loss(self, input: Tensor, targets: Tensor, state: Any = None, **options: Any) -> tuple[Tensor, Any]:
        """Return the cross-entropy of the targets, in nats, and the state.

        Above `PIECE` logits it is computed in pieces, so that memory never holds them all; not if
        something must see them: hooks, wrappers and parametrisations of the output, torch.func.
        `model(input, state, targets=targets)` is the same, through any wrapper of the model.

        Targets are the next words, in the input's layout; those of −100, and past `lengths`, do not count. Options are
        `lengths` and `resets`, as for a call, and `reduction`: "mean" over the targets that count or "sum".
        """
        return self(input, state, targets=targets, **options)  # type: ignore[no-any-return]

    def generate(self, prompt: Tensor, length: int, **sampling: Any) -> Tensor:
        """Generate (length,) tokens after a prompt, or (length, B) in the network's layout; arguments as for `stream`.

        Example:
            model.eval().generate(torch.tensor([3, 1, 4]), 100, temperature=0.8)
        """
        tokens = list(self.stream(prompt, length, **sampling))
        return self._time_first(torch.stack(tokens) if tokens else self._time_first(prompt)[:0].long())

    def stream(
        self,
        prompt: Tensor,
        length: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate` as they are drawn: of the shape (), or (B,) for a batch of prompts.

        Each step reads one token and the carried state, so a token costs the same after a long text as after a short
        one. The model must be in evaluation mode.

        Args:
            prompt: (P,), class indices, at least one; or a batch of prompts, (P, B) in the network's layout.
            length: number of tokens.
            temperature: the logits are divided by it: below 1 for likelier tokens, above for others; 0 for the
                likeliest.
            top_k: draw among this many of the likeliest tokens.
            top_p: draw among the fewest of the likeliest whose probabilities add up to this.
            seed: the same seed gives the same tokens, on the same machine.
        """
        words = _class_indices("prompt", prompt)
        if words.dim() not in (1, 2) or words.numel() == 0:
            raise ValueError(f"prompt must hold at least one token, (P,) or (P, B), got the shape {tuple(words.shape)}")
        for word in map(int, words.aminmax()):
            if not 0 <= word < self.classes:
                raise ValueError(f"prompt must hold classes from 0 to {self.classes - 1}, got {word}")
        checks.check_count("length", length, 0)
        checks.check_not_negative("temperature", temperature)
        if top_k is not None:
            checks.check_count("top_k", top_k)
        if top_p is not None:
            checks.check_share("top_p", top_p)
        checks.check_count("seed", seed, 0)
        checks.check_seed(seed)
        if self.training:
            raise ValueError("the model must be in evaluation mode to generate: call model.eval() first")
        batch = words.unsqueeze(1) if words.dim() == 1 else self._time_first(words)
        # A Transformer sees its whole prompt, which in pieces it would not
        pieces = (batch,) if hasattr(self.network, "context") else batch.split(_PROMPT)
        generator = torch.Generator().manual_seed(seed)
        draw = partial(sample, generator=generator, temperature=temperature, top_k=top_k, top_p=top_p)
        tokens = self._tokens(pieces, length, draw)
        return tokens if words.dim() == 2 else (token.squeeze(0) for token in tokens)

    def _tokens(self, prompt: Sequence[Tensor], length: int, draw: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield tokens (B,) after the pieces of a prompt, (P, B), each drawn from the logits after the one before."""
        *pieces, unread = prompt
        state = None
        for piece in pieces if length else ():
            _, state = self._next(piece, state)
            if state is None:  # nothing is carried on, so it must see all at once
                unread = torch.cat(list(prompt))
                break
        for _ in range(length):
            logits, state = self._next(unread, state)
            if state is None and length > 1:
                raise ValueError("the network must carry a state from step to step; a Transformer does with a context")
            token = draw(logits)
            yield token
            unread = token.unsqueeze(0)

    @torch.no_grad()
    def _next(self, input: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The logits (B, classes) after tokens (T, B), and the state."""
        onednn: Any = torch.backends.mkldnn.enabled
        if len(input) == 1:  # it prepares an LSTM's weights in every call: without it, one step is 14 times as fast
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        try:
            features, state = run_network(self.network, self._vectors(self._time_first(input)), state)
            return self._decode(self._time_first(features)[-1]), state
        finally:
            torch.backends.mkldnn.enabled = onednn

    def _time_first(self, tensor: Tensor) -> Tensor:
        """From the network's layout to (T, B, ...), or back; what has no batch stays."""
        return tensor.transpose(0, 1) if tensor.dim() > 1 and getattr(self.network, "batch_first", False) else tensor

    def _vectors(self, input: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(input)
        if vectors.dim() == 2:
            return shared_dropout(vectors, self.word_dropout, self.training)
        return self._time_first(shared_dropout(self._time_first(vectors), self.word_dropout, self.training))

    def _decode(self, features: Tensor) -> Tensor:
        logits: Tensor = self.embedding(features, decode=True) if self.output is None else self.output(features)
        return logits

    def _loss(self, features: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        """The cross-entropy: in pieces, from the output's weight, of many logits that nothing watches."""
        output = self.embedding if self.output is None else self.output
        kind: type[Any] = TiedEmbedding if self.tied else Output
        if is_unwatched(output, kind) and features.shape[0] * self.classes > PIECE:
            # They need torch's own functions
            transformed = torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
            transformed = transformed or torch._C._get_tracing_state() is not None
            if not transformed and are_plain(features, output.weight, output.bias):
                return linear_cross_entropy(features, output.weight, output.bias, targets, reduction)
        return F.cross_entropy(self._decode(features), targets, reduction=reduction)

    def extra_repr(self) -> str:
        """Whether the output is tied, and dropout."""
        return f"tied={self.tied}" + (f", word_dropout={self.word_dropout}" if self.word_dropout else "")


def sample(
    logits: Tensor,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Draw a class for each row of logits, (B, classes) to (B,), with a generator of the CPU.

    The other arguments are those of `LanguageModel.stream`.
    """
    if temperature == 0:
        return logits.argmax(-1)
    values, classes = logits.to("cpu", torch.float64).sort(descending=True, stable=True)
    p = ((values - values[:, :1]) / temperature).softmax(-1)  # the difference first: a small temperature overflows
    if top_k is not None:
        p[:, top_k:] = 0
    if top_p is not None:
        p = p / p.sum(-1, keepdim=True)
        p[p.cumsum(-1) - p >= top_p] = 0  # what comes before has it already
    drawn = torch.multinomial(p, 1, generator=generator)
    return classes.gather(-1, drawn).squeeze(-1).to(logits.device)


def _class_indices(name: str, value: Any) -> Tensor:
    """Integers of any type, as int64."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a tensor of class indices, got {kind}")
    return value.long()


# ---- the loss in pieces: features (M, F), weight (C, F), bias (C,), targets (M,)


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """F.cross_entropy(F.linear(features, weight, bias), targets, reduction=reduction), a few rows at a time.

    If a gradient is needed, it is computed together with the loss, so that memory holds `PIECE` logits at a time. Under
    autocast, products are in its type, softmax and sums in float32. A second derivative recomputes the full logits.
    Transformations of torch.func and forward-mode differentiation are not supported. Rows whose target is −100 do not
    count.
    """
    device, inputs = features.device.type, (features, weight, bias)
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
    differentiated = torch.is_grad_enabled() and any(input.requires_grad for input in inputs)
    return _InPieces.apply(*inputs, targets, reduction, dtype, differentiated)  # type: ignore[no-any-return]


class _InPieces(torch.autograd.Function):
    """The gradients for an incoming gradient of 1 are results of the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *options: Any) -> Tensor:
        reduction, dtype, differentiated = options
        sums = accumulation_dtype(dtype)
        counts = targets != IGNORED
        classes = torch.where(counts, targets, 0).unsqueeze(1)
        mask = counts.to(sums).unsqueeze(1)
        # Of the whole sum, at the end: a probability divided by thousands of targets is no number of half precision
        factor = 1.0 if reduction == "sum" else 1 / counts.sum().to(sums)
        losses = features.new_empty(len(features), 1, dtype=sums)
        gradients: list[Tensor] = []  # of features, weight and bias
        if differentiated:
            gradients = [torch.zeros_like(input, dtype=sums) for input in (features, weight, bias)]
        rows = max(1, PIECE // len(weight))
        with torch.autocast(features.device.type, enabled=False):
            w, b = weight.to(dtype), bias.to(dtype)
            for start in range(0, len(features), rows):
                piece = slice(start, start + rows)
                x, at = features[piece].to(dtype), classes[piece]
                log_p = F.linear(x, w, b).log_softmax(1, dtype=sums)
                losses[piece] = -log_p.gather(1, at)
                if not differentiated:
                    continue
                grad_x, grad_w, grad_b = gradients
                # The gradient of a row's logits is softmax − one-hot
                p = log_p.exp_().scatter_add_(1, at, log_p.new_full((), -1).expand_as(at)).mul_(mask[piece])
                grad_b += p.sum(0)
                p = p.to(dtype)
                grad_x[piece] = p @ w
                grad_w.addmm_(p.t(), x) if dtype == sums else grad_w.add_(p.t() @ x)
        for gradient in gradients:
            gradient.mul_(factor)
        ctx.reduction, ctx.dtype = reduction, dtype
        ctx.save_for_backward(features, weight, bias, targets, *gradients)
        return (losses * mask).sum() * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, targets, *gradients = ctx.saved_tensors
        inputs, none = (features, weight, bias), (None,) * 4
        if not torch.is_grad_enabled():
            return *((grad * g).to(input.dtype) for g, input in zip(gradients, inputs, strict=True)), *none
        # To be differentiated again: through torch's own functions, on the whole
        features, weight, bias = (input.to(ctx.dtype) for input in inputs)
        logits = F.linear(features, weight, bias).to(accumulation_dtype(ctx.dtype))
        loss = F.cross_entropy(logits, targets, reduction=ctx.reduction)
        needed = ctx.needs_input_grad[:3]
        differentiable = [input for input, need in zip(inputs, needed, strict=True) if need]
        again = iter(torch.autograd.grad(loss, differentiable, grad, create_graph=True))
        return *(next(again) if need else None for need in needed), *none
