"""`gather_statistics`: recompute the running statistics of batch norms for the current weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

Call = Callable[[nn.Module, Any], Any]


def gather_statistics(model: nn.Module, batches: Iterable[Any], *, state: Any = None, call: Call | None = None) -> None:
    """Recompute the running statistics of every batch norm in `model`, as means over these batches.

    While weights change, running statistics lag behind: over hundreds of steps and several layers the difference adds
    up, and an evaluation during training fails although the weights are good. Twenty training batches before it solve
    this. Nothing else changes: dropout is off for the pass, and the modes, momenta, counts of batches, other buffers
    and random generators are restored. After an error, so are the statistics.

    Args:
        model: any module; one without batch norm is not changed.
        batches: each a tensor, the model's input; a tuple or list, whose first element is the input; or a mapping of
            the model's arguments by name. In the form used for training.
        state: for a model that carries a state, its `state` for the first batch, passed as a copy; the state returned
            for each batch is passed with the next.
        call: runs the model on a batch, `call(model, batch)`, if it is called in another way.

    Example:
        indrnn.gather_statistics(model, (x for x, _ in itertools.islice(loader, 20)))
    """
    norms = [module for module in model.modules() if is_batch_norm(module)]
    if not norms:
        return
    devices = sorted({buffer.device.index for buffer in model.buffers() if buffer.device.type == "cuda"})
    state = tree_map(lambda value: value.detach().clone() if isinstance(value, Tensor) else value, state)
    seen = False
    with torch.no_grad(), torch.random.fork_rng(devices), contextlib.ExitStack() as restored:
        for module in model.modules():
            restored.callback(setattr, module, "training", module.training)
        for buffer in model.buffers():
            restored.callback(buffer.copy_, buffer.clone())
        model.eval()  # no dropout
        for norm in norms:
            restored.callback(setattr, norm, "momentum", norm.momentum)
            norm.train()
            norm.momentum = None
            norm.reset_running_stats()
        for batch in batches:
            state, seen = _run(model, batch, state, call), True
        if not seen:
            raise ValueError("batches must hold at least one batch, got none")
        statistics = [
            buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None
        ]
        gathered = [buffer.clone() for buffer in statistics]
    for buffer, values in zip(statistics, gathered, strict=True):
        buffer.copy_(values)


def is_batch_norm(module: nn.Module) -> TypeGuard[_BatchNorm]:
    """Whether a module is a batch norm with running statistics."""
    return isinstance(module, _BatchNorm) and module.track_running_stats


def _run(model: nn.Module, batch: Any, state: Any, call: Call | None) -> Any:
    """Run one pass; return the state for the next."""
    if call is not None:
        call(model, batch)
        return state
    arguments = dict(batch) if isinstance(batch, Mapping) else {}
    first = () if arguments else (batch[0] if isinstance(batch, (tuple, list)) else batch,)
    if state is None:
        model(*first, **arguments)
        return None
    result = model(*first, **{"state": state, **arguments})
    if not (isinstance(result, tuple) and len(result) == 2):
        got = type(result).__name__
        raise TypeError(f"model must return its output and its state where a state is given, got {got}")
    return result[1]
