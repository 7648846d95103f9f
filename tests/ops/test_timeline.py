"""What a call is told of time that is split over processes: its own thread's affair alone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from indrnn import IndRNN, PlainIndRNN, recurrence
from indrnn.ops.timeline import WHOLE, Timeline, on, timeline


class Elsewhere(Timeline):
    """A recurrence that is told from the usual one by its numbers."""

    is_split = True

    def recurrence(self, x: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return x + 100, x[-1]


def in_thread(function: Callable[[], Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found


X, U = torch.rand(5, 2, 3), torch.rand(3)


def test_it_is_whole_again_afterwards_also_after_an_error() -> None:
    assert timeline() is WHOLE
    with on(elsewhere := Elsewhere()):
        assert timeline() is elsewhere
    with pytest.raises(ValueError, match="backend must be"), on(elsewhere):
        IndRNN(1, 1, backend="none of ours")
    assert timeline() is WHOLE


@pytest.mark.parametrize("what", ["op", "layer", "network"])
def test_another_threads_calls_are_not_diverted(what: str) -> None:
    modules = {"layer": IndRNN(3, 4), "network": PlainIndRNN(3, 4, 2).eval()}

    def function() -> Tensor:
        result: tuple[Tensor, object] = recurrence(X, U) if what == "op" else modules[what](X)
        return result[0]

    expected = function()
    with on(Elsewhere()):
        [there] = in_thread(function)
        here = recurrence(X, U)[0]
    torch.testing.assert_close(there, expected, rtol=0, atol=0)
    torch.testing.assert_close(here, X + 100)


def test_a_thread_that_splits_leaves_this_one_alone() -> None:
    inside, done = threading.Event(), threading.Event()

    def split() -> None:
        with on(Elsewhere()):
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=split)
    thread.start()
    try:
        assert inside.wait(60)
        assert timeline() is WHOLE
        assert recurrence(X, U)[0].max() < 100
    finally:
        done.set()
        thread.join()


def test_compiled_code_is_guarded_by_it() -> None:
    torch._dynamo.reset()

    def f(x: Tensor) -> Tensor:
        return timeline().all_steps(x.shape[0]) * x

    class Twice(Timeline):
        def all_steps(self, T: int) -> int:
            return 2 * T

    compiled = torch.compile(f, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X), 5 * X)
    with on(Twice()):
        torch.testing.assert_close(compiled(X), 10 * X)
    torch.testing.assert_close(compiled(X), 5 * X)
