"""Text generation with a language model, token by token: temperature, top-k and top-p sampling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import check_count, check_not_negative, check_share

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Takes tokens (T, B) and a state to the logits after the last, (B, classes), and the state."""


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise unless these are valid arguments of `sample`."""
    check_not_negative("temperature", temperature)
    if top_k is not None:
        check_count("top_k", top_k)
    if top_p is not None:
        check_share("top_p", top_p)


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
    values = logits.to("cpu", torch.float64)
    values, classes = values.sort(descending=True, stable=True)
    p = ((values - values[:, :1]) / temperature).softmax(-1)  # the difference first: a small temperature overflows
    if top_k is not None:
        p[:, top_k:] = 0
    if top_p is not None:
        p = p / p.sum(-1, keepdim=True)
        p[p.cumsum(-1) - p >= top_p] = 0  # what comes before has it already
    drawn = torch.multinomial(p, 1, generator=generator)
    return classes.gather(-1, drawn).squeeze(-1).to(logits.device)


def tokens(step: Step, prompt: Sequence[Tensor], length: int, draw: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
    """Yield `length` tokens after a prompt, (B,) each, every one drawn from the logits after the one before.

    The prompt comes in pieces of (P, B), which are read one after another.
    """
    *pieces, unread = prompt
    state = None
    for piece in pieces if length else ():
        _, state = step(piece, state)
        if state is None:  # nothing is carried on, so it must see all at once
            unread = torch.cat(list(prompt))
            break
    for _ in range(length):
        logits, state = step(unread, state)
        if state is None and length > 1:
            raise ValueError("the network must carry a state from step to step; a Transformer does with a context")
        token = draw(logits)
        yield token
        unread = token.unsqueeze(0)


@contextlib.contextmanager
def without_onednn(off: bool) -> Iterator[None]:
    """If `off`, disable oneDNN, which prepares an LSTM's weights in every call: one step is 14 times as fast."""
    before: bool = torch.backends.mkldnn.enabled  # type: ignore[assignment]
    torch.backends.mkldnn.enabled = before and not off  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before  # type: ignore[assignment]
