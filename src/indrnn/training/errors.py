"""What ends a run early: signals, lost processes, lack of memory, and errors reported in one line."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .processes import LostError


class RunError(RuntimeError):
    """A run cannot continue; the message says why, in one line."""


@contextlib.contextmanager
def lost() -> Iterator[None]:
    """Convert a `LostError`, that another process is gone, to a `RunError`."""
    try:
        yield
    except LostError as error:
        raise RunError(str(error)) from error


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP instead of terminating; a second signal has its usual effect."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(hang_up)
    before = {number: signal.getsignal(number) for number in numbers}

    def take(number: int, _frame: Any) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, take)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    words = ("can't allocate memory", "out of memory", "not enough memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
