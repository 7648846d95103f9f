"""Language modelling: prediction of the next character, word or byte of a text, read in parallel streams."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ...networks.language import IGNORED
from ...networks.tokeniser import NAMES, Ids
from ...training.task import Batch, Measured, Shard, generator, rows_of
from .corpus import Corpus, Split
from .recipe import WINDOWS, check_language, measured

SHORTEST = 5
"""Number of tokens in a window that jitter made too short."""


@dataclass
class Window(Batch):
    """A window of the streams: tokens (T, B), and as targets the token after each."""

    piece: int = 0
    """Number of the piece of the batch: each carries a state of its own."""
    fresh: bool = False
    """Flag of streams that begin anew, with no state."""


@dataclass(eq=False)
class LanguageTask:
    """Predict each token of a text from all before it.

    In training the text is cut into `batch_size` parallel streams, read in windows of `length` tokens. The final state
    of a window is passed to the next, detached. Each epoch starts at a different token, drawn below `length`, and
    without a state; tokens after its last full window are not read in that epoch.

    An evaluation predicts every token of its part once, except the very first. The part is cut into streams whose
    targets follow each other without a gap: the first input of a stream is the last token of the stream before. The
    state is carried through the whole of each stream.

    All randomness derives from (seed, epoch) and (seed, step). A model is called as `indrnn.LanguageModel`:
    `model(tokens, state, targets=targets)` returns the mean cross-entropy in nats, and the state.

    The options are those of a recipe for text. A part shorter than its number of streams is read in fewer.
    """

    corpus: Corpus
    _: KW_ONLY
    batch_size: int = 128
    length: int = 50
    valid_batch: int | None = None
    test_batch: int | None = None
    jitter: float = 0.0
    halved: float = 0.0
    reset: float = 0.0
    seed: int = 0

    higher_is_better = False

    def __post_init__(self) -> None:
        check_language(self)
        batch_size, length, tokens = self.batch_size, self.length, len(self.corpus.train)
        self.tokeniser = self.corpus.tokeniser
        self.metric = "perplexity" if self.tokeniser.unit == "word" else "bpc"
        name = NAMES[self.tokeniser.unit]
        self._stream = (tokens - length) // batch_size  # whatever an epoch's first token
        if self._stream < length:
            windows = f"batch_size · length = {batch_size} · {length} {name}s and one window more"
            got = f"{(batch_size + 1) * length}, got {tokens}; make batch_size or length smaller"
            raise ValueError(f"the text to train on must have at least {windows}, {got}")
        self._splits = {part: getattr(self.corpus, part) for part in ("train", "validation", "test")}
        for part, split in self._splits.items():
            if len(split) < 2:
                raise ValueError(f"the text for {part} must have at least 2 {name}s, got {len(split)}")
        self._states: dict[int, Any] = {}
        self._bounds: tuple[int, Ids] = (-1, np.zeros(1))  # an epoch, and where its windows begin and end in a stream
        self._first_steps = [0]  # of the epochs so far asked for

    def describe(self) -> dict[str, Any]:
        """Description of the task: checksums of the text, streams and windows."""
        return {
            "type": type(self).__name__,
            "unit": self.tokeniser.unit,
            **{name: getattr(self, name) for name in WINDOWS},
            **{name: getattr(self, name) or self.batch_size for name in ("valid_batch", "test_batch")},
            "classes": self.tokeniser.classes,
            "tokeniser": self.tokeniser.checksum,
            **{name: {"tokens": len(split), "checksum": split.checksum} for name, split in self._splits.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """The states carried from window to window."""
        return {"states": dict(self._states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with these states."""
        self._states = dict(state["states"])

    @property
    def steps_per_epoch(self) -> int:
        """Windows in an epoch; in the first one, if window lengths are random."""
        return len(self._lengths(0))

    def _lengths(self, epoch: int) -> Ids:
        if not (self.jitter or self.halved):
            return np.full(self._stream // self.length, self.length)
        random, least = generator(self.seed, "lengths", epoch), min(SHORTEST, self.length)
        most = self._stream // least
        middle = torch.full((most,), float(self.length), dtype=torch.float64)
        middle[torch.rand(most, generator=random) < self.halved] /= 2
        drawn = middle + self.jitter * torch.randn(most, generator=random, dtype=torch.float64)
        lengths = drawn.round().long().clamp(least, self._stream)
        return lengths[lengths.cumsum(0) <= self._stream].numpy()

    def batch(self, step: int, shard: Shard) -> Window:
        """The next window of all streams."""
        first_steps = self._first_steps
        while first_steps[-1] <= step:
            first_steps.append(first_steps[-1] + len(self._lengths(len(first_steps) - 1)))
        epoch = bisect.bisect_right(first_steps, step) - 1
        number = step - first_steps[epoch]
        if self._bounds[0] != epoch:
            self._bounds = epoch, np.concatenate([[0], np.cumsum(self._lengths(epoch))])
        first, end = self._bounds[1][number : number + 2].tolist()
        first_token = int(torch.randint(self.length, (), generator=generator(self.seed, "offset", epoch)))
        fresh = number == 0 or bool(torch.rand((), generator=generator(self.seed, "reset", step)) < self.reset)
        rows, count = rows_of(shard, self.batch_size)
        starts = first_token + first + self._stream * rows.numpy()
        inputs, target = _cut(self.corpus.train.ids, starts, end - first)
        return Window(inputs, target, count, self.batch_size, piece=shard.index, fresh=fresh)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats; the final state of the window is kept for the next."""
        assert isinstance(batch, Window)
        state = None if batch.fresh else self._states.get(batch.piece)
        loss, state = model(batch.inputs, state, targets=batch.target)
        self._states = {**self._states, batch.piece: detached(state)}
        return loss  # type: ignore[no-any-return]

    def derive(self, means: dict[str, float]) -> dict[str, float]:
        """Perplexity, or bits per character or byte, of the mean loss over all tokens."""
        counts: dict[str, float] = {name: round(means[name]) for name in means if name in ("batch", "tokens")}
        return {**means, self.metric: measured(self.tokeniser.unit, means["loss"]), **counts}

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        """Measure the validation text."""
        return self.measure(model, self.corpus.validation, self.valid_batch, shard)

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        """See `Task.test`; the metrics include the batch and the number of predicted tokens."""
        split = self.corpus.test
        counts = {"batch": min(self.test_batch or self.batch_size, len(split) - 1), "tokens": len(split) - 1}
        for means, count in self.measure(model, split, self.test_batch, shard):
            yield {**means, **counts}, count

    def measure(self, model: nn.Module, split: Split, batch: int | None, shard: Shard) -> Iterator[Measured]:
        """The loss over all tokens of a part but the first; the streams are divided among the processes."""
        predicted = len(split) - 1
        batch = min(batch or self.batch_size, predicted)
        # Stream i predicts the tokens from first[i] to first[i + 1], not included
        first = 1 + np.arange(batch + 1) * predicted // batch
        mine = list(shard.of(batch))
        if not mine:
            return
        device, state = next(model.parameters()).device, None
        starts, sizes = first[mine] - 1, np.diff(first)[mine]
        shortest = int(sizes.min())
        for at in range(0, shortest, self.length):
            steps = min(self.length, shortest - at)
            inputs, target = _cut(split.ids, starts + at, steps)
            loss, state = model(inputs.to(device), state, targets=target.to(device))
            yield {"loss": loss.double()}, target.numel()
        longer = torch.from_numpy(sizes > shortest)  # by one token
        if longer.any():
            inputs, target = _cut(split.ids, np.where(sizes > shortest, starts + shortest, 0), 1)
            target[:, ~longer] = IGNORED
            loss, _ = model(inputs.to(device), state, targets=target.to(device))
            yield {"loss": loss.double()}, int(longer.sum())


def _cut(ids: Ids, starts: Any, length: int) -> tuple[Tensor, Tensor]:
    """Windows that start at these tokens, (length, streams), and the token after each."""
    tokens = torch.from_numpy(ids[starts + np.arange(length + 1)[:, None]].astype(np.int64))
    return tokens[:-1], tokens[1:]


def detached(state: Any) -> Any:
    """Detach a state from its graph: the gradient ends at a window's first token."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), state)
