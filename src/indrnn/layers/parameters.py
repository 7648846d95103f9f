"""Parameter groups for optimisers: weight decay only on input weights, as in the paper."""

from __future__ import annotations

from typing import Any

from torch import nn

from .bound import recurrent_weights


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split a module's parameters for an optimiser: decay on input weights, none on anything else.

    Input weights are the parameters of two and more dimensions (matrices, convolution kernels, embeddings) that are
    not recurrent weights. Those, biases and the scales of norms are not decayed. Every parameter is in one group.

    Example:
        optimizer = torch.optim.Adam(indrnn.parameter_groups(model, 1e-4), lr=2e-4)
    """
    if weight_decay < 0:
        raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
    recurrent = {id(u) for u in recurrent_weights(module)}
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in module.parameters():
        (decayed if parameter.dim() >= 2 and id(parameter) not in recurrent else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
