"""What ends a run early: signals, lost processes, lack of memory, and numbers that are not finite."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._lazy import Lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils import _pytree as pytree

    from .task import Batch, Task
else:
    torch, pytree = Lazy("torch"), Lazy("torch.utils._pytree")


class RunError(RuntimeError):
    """A run cannot continue; the message says why, in one line."""


class NotFiniteError(Exception):
    """The loss or a gradient is not finite, after so many steps; the weights have not been updated with it."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(step, loss)
        self.step, self.loss = step, loss


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP instead of terminating; a second signal has its usual effect."""
    received: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        hang_up = getattr(signal, "SIGHUP", None)
        if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:  # nohup ignores it
            before[hang_up] = signal.getsignal(hang_up)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def collect(number: int, _frame: Any) -> None:
        received.append(number)
        restore()

    for number in before:
        signal.signal(number, collect)
    try:
        yield received
    finally:
        restore()


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    words = ("can't allocate memory", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


# ---- the module in which a number that is not finite first appeared


def first_not_finite(model: nn.Module, task: Task, batch: Batch) -> str | None:
    """Run a batch again and name the first module with a non-finite output or gradient.

    Checked in turn: the batch; the modules' outputs, in the order of the forward pass; the loss; the gradients of those
    outputs, in the order of the backward pass; the gradients of the parameters. None if all are finite this time.
    """
    for part in ("inputs", "target"):
        tensor = getattr(batch, part)
        if not _finite(tensor):
            place = (~torch.isfinite(tensor)).nonzero()[0].tolist()
            return f"first in the {part} of the batch, {tensor[tuple(place)].item()} at {place}"
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}
    forward: list[str] = []
    backward: list[str] = []

    def check_output(module: nn.Module, _inputs: Any, output: Any) -> None:
        if not _finite(output):
            forward.append(names[module])
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: None if _finite(gradient) else backward.append(names[module]))

    handles = [module.register_forward_hook(check_output) for module in names]
    try:
        model.zero_grad()
        loss = task.loss(model, batch)
        if forward:
            return f"first in the output of {forward[0]}"
        if not _finite(loss):
            return "in the loss itself; every module's output is finite"
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    if backward:
        return f"first in the gradient of the output of {backward[0]}; the forward pass is finite"
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"in the gradient of {name}; the forward pass is finite"
    return None


def _tensors(value: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _finite(value: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(value))
