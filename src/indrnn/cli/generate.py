"""`indrnn generate`: text of a language model, token by token."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ..system import load_torch, note
from .main import UsageError
from .parse import parse

if TYPE_CHECKING:
    from torch import Tensor

    from ..networks.tokeniser import Tokeniser


@dataclass
class GenerateOptions:
    """Generate text with the language model of a run: the prompt and its continuation, printed token by token.

    The prompt is an option, or standard input: `echo "To be" | indrnn generate RUN`. The same seed gives the same text.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder, or a folder written by `indrnn.save`."""
    prompt: str | None = None
    """Prompt; None or - to read it from standard input, without the last newline."""
    length: int = 200
    """Number of tokens to generate: characters, words or bytes."""
    temperature: float = 0.8
    """Sampling temperature: below 1 favours likely tokens, above 1 unlikely ones; 0 for greedy decoding."""
    top_k: int | None = None
    """Top-k sampling: from the k most likely tokens."""
    top_p: float | None = None
    """Top-p sampling: from the fewest most likely tokens whose probabilities sum to p."""
    seed: int = 0
    """Random seed of sampling."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto: cuda if available, else cpu."""


def generate(arguments: list[str]) -> int:
    """Write text, token by token."""
    options: GenerateOptions = parse("generate", GenerateOptions, arguments)
    load_torch()
    from ..networks import LanguageModel
    from ..tasks.runs import open_run
    from ..training.parallel import choose_device

    device, run = choose_device(options.device), open_run(options.run, saved=True)
    model, which = run.best
    if not isinstance(model, LanguageModel):
        raise UsageError(f"run must be of a language model, and {options.run} is of a {type(model).__name__}")
    if (tokeniser := model.tokeniser) is None:
        raise UsageError(f"run must have a tokeniser, and {options.run} holds no {run.folder.tokeniser.name}")
    if "so far" in which:
        note(f"indrnn: with {which}")
    prompt = _encoded(_prompt(options.prompt, tokeniser), tokeniser)
    sampling = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "seed")}
    drawn = model.to(device).stream(prompt.to(device), options.length, **sampling)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks a character shows another
        sys.stdout.reconfigure(errors="replace")
    first = list(itertools.islice(drawn, 1))  # what cannot be drawn at all fails before anything is printed
    return _printed(tokeniser.decode_each(map(int, itertools.chain(prompt, first, drawn))))


def _printed(pieces: Iterable[str]) -> int:
    """Print each piece immediately; Ctrl-C ends the text."""
    last, code = "\n", 0
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
            last = piece or last
    except KeyboardInterrupt:
        code = 130
    if not last.endswith("\n"):
        print(flush=True)
    return code


def _prompt(option: str | None, tokeniser: Tokeniser) -> str:
    """The prompt, from the option or from standard input."""
    if option is not None and option != "-":
        with contextlib.suppress(UnicodeEncodeError):
            return option.encode().decode()
        raise UsageError(f"prompt must be UTF-8 text, got {option!r}")
    if sys.stdin is None or (option is None and sys.stdin.isatty()):
        raise UsageError("prompt must be given: --prompt TEXT, or on standard input")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"{error.object[error.start]:#x} at byte {error.start}"
        raise UsageError(f"prompt must be UTF-8 text, got {got}") from None
    if (tokeniser.lookup("\r") < 0).any():  # line ends of another system, which the model's text did not have
        text = text.replace("\r\n", "\n")
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")  # which `echo` adds


def _encoded(prompt: str, tokeniser: Tokeniser) -> Tensor:
    from ..networks.tokeniser import UNKNOWN, Unknown

    ids = tokeniser.lookup(prompt)
    if len(ids) == 0:
        raise UsageError(f"prompt must hold at least one token to begin with, got {prompt!r}")
    if (ids < 0).any():
        unknown = Unknown(tokeniser)
        unknown.add(prompt, ids)
        if tokeniser.unknown_id is None:
            raise UsageError(f"prompt {unknown}")
        note(f"indrnn: the prompt {unknown}, read as {UNKNOWN}")
    return tokeniser.encode(prompt)
