"""What ends a run early: signals, lost processes, lack of memory, and numbers that are not finite."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class RunError(RuntimeError):
    """A run cannot continue; the message says why, in one line."""


class NotFiniteError(Exception):
    """The loss or a gradient is not finite, after so many steps; the weights have not been updated with it."""

    def __init__(self, step: int, loss: float) -> None:
        self.step, self.loss = step, loss


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP instead of terminating; a second signal has its usual effect."""
    received: list[int] = []
    with contextlib.ExitStack() as before:

        def collect(number: int, _frame: Any) -> None:
            received.append(number)
            before.close()

        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)  # no SIGHUP on Windows; and nohup ignores it
                if number is not None and (name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN):
                    before.callback(signal.signal, number, signal.signal(number, collect))
        yield received


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    said = str(error).lower() if isinstance(error, RuntimeError) else ""
    words = ("can't allocate memory", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in said for word in words)
