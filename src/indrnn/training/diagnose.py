"""Diagnosis of NaN and infinity in training: the module in which one first appeared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .task import Batch, Task


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _finite(value: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(value))


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

    def after(module: nn.Module, _inputs: Any, output: Any) -> None:
        if not _finite(output):
            forward.append(names[module])
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: None if _finite(gradient) else backward.append(names[module]))

    handles = [module.register_forward_hook(after) for module in names]
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
