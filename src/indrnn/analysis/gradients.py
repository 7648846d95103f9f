"""Gradient flow over time and depth: the paper's figure 5."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..baselines import BaselineRNN, QRNNBaseline, TransformerBaseline
from ..figures import add_legend, draw_curves, figure_with_legend
from ..layers import IndRNN
from ..networks import Network
from ..tasks.table import Results
from ..training import Shard, Task, derive_seed
from ..training.evaluation import modes_kept


def input_weights(model: nn.Module) -> list[Tensor]:
    """The input weights of each layer, from the first layer on."""
    kinds = (IndRNN, nn.RNNBase)  # the latter in a baseline too
    rnn = next((module for module in model.modules() if isinstance(module, kinds)), None)
    if rnn is not None:
        return [getattr(rnn, f"weight_ih_l{layer}") for layer in range(rnn.num_layers)]
    modules = getattr(model, "network", model).modules()
    return [module.weight for module in modules if isinstance(module, nn.Linear)]


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Training mode and gradients of all parameters; modes, buffers and frozen parameters are restored."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_()
        with modes_kept(model), torch.inference_mode(False), torch.enable_grad():
            model.train()
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def gradient_flow(model: nn.Module, task: Task, batches: int) -> dict[str, list[float]]:
    """Mean gradient norms over training batches, in training mode; the weights are not changed.

    The model is on the device to run on, and the batches are the first of the training. For a language model, whose
    input has no gradient, the gradient at the embedded tokens is taken.

    Returns:
        "time": for each step, the norm of the gradient of a sequence's loss with respect to the network's input,
        averaged over sequences. With batches of different lengths, a step is averaged over those that have it.
        "depth": for the input weights of each layer but the first, the norm of the gradient of a batch's mean loss,
        averaged over batches.
    """
    kinds = (Network, BaselineRNN, QRNNBaseline, TransformerBaseline, IndRNN, nn.RNNBase)
    network = next((module for module in model.modules() if isinstance(module, kinds)), None)
    if network is None:
        raise ValueError(f"model must hold a network or baseline of this package, got {type(model).__name__}")
    device, batch_dim = next(model.parameters()).device, 0 if getattr(network, "batch_first", False) else 1
    x = torch.empty(0)

    def keep_input(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal x
        x = arguments[0] if arguments[0].requires_grad else arguments[0].detach().requires_grad_()
        return (x, *arguments[1:])

    with network.register_forward_pre_hook(keep_input), _unchanged(model):
        over_time, sequences = torch.zeros(0, dtype=torch.float64), torch.zeros(0)
        over_depth = torch.zeros(len(input_weights(model)[1:]), dtype=torch.float64)
        for step in range(batches):
            # Dropout draws the same numbers every time, and none of others
            with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]), parametrize.cached():
                torch.manual_seed(derive_seed(0, "gradients", step))
                loss = task.loss(model, task.batch(step, Shard()).to(device))
                weights = input_weights(model)[1:]  # after the pass: as it used them, pruned or normed
                at_input, *at_weights = torch.autograd.grad(loss, [x, *weights])
            count = x.shape[batch_dim]
            # Of each sequence's own loss, summed over sequences
            norms = torch.linalg.vector_norm(at_input.double() * count, dim=-1).sum(dim=batch_dim).cpu()
            longer = (0, max(0, len(norms) - len(over_time)))
            over_time, sequences = F.pad(over_time, longer), F.pad(sequences, longer)
            over_time[: len(norms)] += norms
            sequences[: len(norms)] += count
            over_depth += torch.stack([gradient.double().norm() for gradient in at_weights]).cpu() if weights else 0
    return {"time": (over_time / sequences).tolist(), "depth": (over_depth / batches).tolist()}


PANELS = (("time", 1, "time step"), ("depth", 2, "layer"))
"""Dimensions of a flow: name, number of the first value, and label."""


def write(flows: Sequence[dict[str, Any]], results: Results) -> None:
    """Write flows (a "name", whether it is an "indrnn", and `gradient_flow`'s result), and a figure of them."""
    panels = [panel for panel in PANELS if any(flow[panel[0]] for flow in flows)]
    figure, axes = figure_with_legend(len(panels), 3.7, [flow["name"] for flow in flows])
    # Logarithmic: over a sequence, an LSTM loses orders of magnitude
    for axis, (dimension, first, across) in zip(axes, panels, strict=True):
        draw_curves(axis, {flow["name"]: [*enumerate(flow[dimension], first)] for flow in flows})
        axis.set(xlabel=across, title=f"over {dimension}")
    axes[0].set_ylabel("mean gradient norm")
    add_legend(figure)
    results.write([*flows], figure)
