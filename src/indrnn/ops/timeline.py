"""Time split over processes, as layers see it: all steps of a sequence, or this process's slice in `split_time`.

Layers ask `timeline()` once and go by the object it returns; a call in another thread is not affected.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor


class Timeline:
    """The whole sequence is on this process; `Slice` of distributed/time.py is the other case."""

    is_split: ClassVar[bool] = False
    first_step: int = 0
    """The place in the whole sequence of the first step that is here."""

    def all_steps(self, T: int) -> int:
        """The steps of the whole sequence, of which T are here."""
        return T

    def refuse(self, what: str) -> None:
        """Raise if time is split."""

    def same_on_all(self, value: Tensor) -> Tensor:
        """The first rank's value, for random numbers shared over time."""
        return value

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum over the ranks, on each of them; the gradient is that of the sum of their losses."""
        return value

    def recurrence(
        self,
        x: Tensor,
        u: Tensor,
        h_0: Tensor | None,
        *,
        bias: Tensor | None,
        activation: str,
        reverse: bool,
        lengths: Tensor | None,
        resets: Tensor | None,
        backend: str | None,
    ) -> tuple[Tensor, Tensor]:
        """The recurrence if time is split, called by `recurrence`."""
        raise NotImplementedError


WHOLE = Timeline()


class _Thread(threading.local):
    timeline: Timeline = WHOLE  # of a thread that has set none; an attribute that is there is found sooner


_thread = _Thread()


def timeline() -> Timeline:
    """The timeline of this thread's calls."""
    return _thread.timeline


@contextmanager
def on(other: Timeline) -> Iterator[None]:
    """Context in which `timeline()` of this thread is another one."""
    outer = timeline()
    _thread.timeline = other
    try:
        yield
    finally:
        _thread.timeline = outer
