"""The neurons of any model of this package: recurrent weights by layer, and what each layer's recurrence computes.

A layer is any module with a `RecurrentBound`: units of the deep networks, `IndRNN`, its cell, the convolutional ones.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..layers import IndRNN
from ..layers.bound import RecurrentBound
from ..ops.autograd import OPS
from ..ops.calls import Forward
from ..training.evaluation import modes_kept
from ..training.task import Measured, Shard, Task

_WEIGHT = re.compile(r"weight_hh(?:_l(\d+))?(_reverse)?")
_COMPUTED_FROM = re.compile(r"_(orig|g|v)$")  # pruning, and torch.nn.utils.weight_norm


@dataclass(frozen=True, eq=False)
class Layer:
    """The neurons of one recurrent weight."""

    name: str
    """The weight's name in the model, such as `network.blocks.2.unit.weight_hh`."""
    module: Any  # that holds the weight
    weight: str  # its name in the module

    @property
    def u(self) -> Tensor:
        """The recurrent weights as they are used (pruned, parametrised), one for each neuron: (N,), float64."""
        weight: Tensor = getattr(self.module, self.weight)
        return weight.detach().double().cpu().flatten()


def layers_of(model: nn.Module) -> list[Layer]:
    """Every layer of recurrent neurons in a model, in the order in which they run.

    Raises:
        ValueError: if there is none, as in an LSTM.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}")
    layers = []
    for prefix, module in model.named_modules():
        if isinstance(getattr(module, "bound", None), RecurrentBound):
            names = [_COMPUTED_FROM.sub("", name) for name, _ in module.named_parameters(recurse=False)]
            names += getattr(module, "parametrizations", {})
            weights = [match for name in dict.fromkeys(names) if (match := _WEIGHT.fullmatch(name))]
            for match in sorted(weights, key=lambda match: (int(match[1] or 0), match[2] is not None)):
                layers.append(Layer(f"{prefix}.{match[0]}".lstrip("."), module, match[0]))
    if not layers:
        raise ValueError(f"model must hold independent recurrent weights, got {type(model).__name__} without any")
    return layers


Callback = Callable[[Layer, slice, Forward, Tensor], Tensor | None]
"""A function of a layer, a slice of its neurons, their recurrence and h (T, B, ..., N); returns another h, or None."""


@contextlib.contextmanager
def watched(model: nn.Module, layers: list[Layer], callback: Callback) -> Iterator[None]:
    """Call `callback` for each recurrence of a model's layers in this context, in evaluation mode, without gradients.

    A bidirectional layer calls it twice. A convolutional layer calls it with one neuron per position, those of a
    channel next to each other. A cell, and a single streaming step of `IndRNN`, do not call it.
    """
    mode = _RecurrenceMode(callback)
    with contextlib.ExitStack() as stack:
        for module, group in itertools.groupby(layers, key=lambda layer: layer.module):
            stack.callback(module.register_forward_pre_hook(partial(mode.enter, [*group])).remove)
            stack.callback(module.register_forward_hook(mode.leave).remove)
            if isinstance(module, IndRNN):
                stack.callback(setattr, module, "recompute", module.recompute)
                module.recompute = None  # a sequence is one call
        with modes_kept(model), torch.no_grad(), mode:
            model.eval()
            yield


class _RecurrenceMode(TorchDispatchMode):
    """A dispatch mode that sees the registered op: under a mode, every recurrence goes through it."""

    def __init__(self, callback: Callback) -> None:
        super().__init__()
        self.callback = callback
        self._running: list[deque[tuple[Layer, int]]] = []

    def enter(self, layers: list[Layer], *_: Any) -> None:
        """Begin a module's forward pass; its calls come in the order of its layers and of their neurons."""
        self._running.append(deque((layer, 0) for layer in layers))

    def leave(self, *_: Any) -> None:
        self._running.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not OPS.recurrence.default or not self._running:
            return result
        call, waiting = Forward(*args[:-1]), self._running[-1]
        layer, start = waiting.popleft()
        size = getattr(layer.module, layer.weight).numel()
        stop = start + min(call.u.numel(), size)
        if stop < size:
            waiting.appendleft((layer, stop))
        else:
            waiting.append((layer, 0))
        other = self.callback(layer, slice(start, stop), call, result[0])
        return result if other is None else (other, result[1])


def per_weight(values: Tensor, neurons: slice) -> Tensor:
    """(..., neurons · positions) to (..., neurons): the mean over the positions of a convolution, else unchanged."""
    return values.reshape(*values.shape[:-1], neurons.stop - neurons.start, -1).mean(-1)


def some(task: Task, model: nn.Module, items: int) -> Iterator[Measured]:
    """Evaluate a task on its validation data, batch by batch, until at least `items` items are measured."""
    count = 0
    for means, batch in task.evaluate(model, 0, Shard()):
        yield means, batch
        count += batch
        if count >= items:
            return
