"""Gradient flow over time and depth: the paper's figure 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..baselines import BaselineRNN, QRNNBaseline, TransformerBaseline
from ..figures import COLOURS, LINES, figure_with_legend, named
from ..layers import IndRNN
from ..networks import Network
from ..training import Shard, Task, derive_seed
from ..training.evaluation import modes_kept

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..tasks.results import Results


def input_weights(model: nn.Module) -> list[Tensor]:
    """The input weights of each layer, from the first layer on."""
    kinds = (IndRNN, nn.RNNBase)  # the latter in a baseline too
    rnn = next((module for module in model.modules() if isinstance(module, kinds)), None)
    if rnn is not None:
        return [getattr(rnn, f"weight_ih_l{layer}") for layer in range(rnn.num_layers)]
    network = getattr(model, "network", model)
    return [module.weight for module in network.modules() if isinstance(module, nn.Linear)]


class _NetworkInput:
    """Records the input of a model's network: the sequences, or their embedding.

    Args:
        model: the network, or a head or a language model over it.
    """

    def __init__(self, model: nn.Module) -> None:
        kinds = (Network, BaselineRNN, QRNNBaseline, TransformerBaseline, IndRNN, nn.RNNBase)
        network = next((module for module in model.modules() if isinstance(module, kinds)), None)
        if network is None:
            raise ValueError(f"model must hold a network or baseline of this package, got {type(model).__name__}")
        self.batch_first = bool(getattr(network, "batch_first", False))
        self.input: Tensor | None = None
        self.handle = network.register_forward_pre_hook(self._keep)

    def _keep(self, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x = arguments[0]
        self.input = x if x.requires_grad else x.detach().requires_grad_()
        return (self.input, *arguments[1:])

    def norms(self, gradient: Tensor) -> Tensor:
        """From the gradient of the mean loss: the norms for each sequence's own loss, summed over sequences, (T,)."""
        batch = 0 if self.batch_first else 1
        norms: Tensor = torch.linalg.vector_norm(gradient.double() * gradient.shape[batch], dim=-1)
        return norms.sum(dim=batch).cpu()


def gradient_flow(model: nn.Module, task: Task, batches: int) -> dict[str, list[float]]:
    """Mean gradient norms over training batches, in training mode; the weights are not changed.

    Args:
        model: the model, on the device to run on.
        task: any; for a language model, whose input has no gradient, the gradient at the embedded tokens is taken.
        batches: number of training batches, from the first on.

    Returns:
        "time": for each step, the norm of the gradient of a sequence's loss with respect to the network's input,
        averaged over sequences. With batches of different lengths, a step is averaged over those that have it.
        "depth": for the input weights of each layer but the first, the norm of the gradient of a batch's mean loss,
        averaged over batches.
    """
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    frozen = [each for each in model.parameters() if each.is_floating_point() and not each.requires_grad]
    device = next(model.parameters()).device
    at_network = _NetworkInput(model)
    try:
        for parameter in frozen:
            parameter.requires_grad_()
        with modes_kept(model), torch.inference_mode(False), torch.enable_grad():
            model.train()
            over_time, sequences = torch.zeros(0, dtype=torch.float64), torch.zeros(0)
            over_depth = torch.zeros(len(input_weights(model)[1:]), dtype=torch.float64)
            for step in range(batches):
                # Dropout draws the same numbers every time, and none of others
                with (
                    torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]),
                    parametrize.cached(),
                ):
                    torch.manual_seed(derive_seed(0, "gradients", step))
                    loss = task.loss(model, task.batch(step, Shard()).to(device))
                    x = at_network.input
                    assert x is not None
                    weights = input_weights(model)[1:]  # after the pass: as it used them, pruned or normed
                    at_input, *at_weights = torch.autograd.grad(loss, [x, *weights])
                norms = at_network.norms(at_input)
                longer = (0, max(0, len(norms) - len(over_time)))
                over_time, sequences = F.pad(over_time, longer), F.pad(sequences, longer)
                over_time[: len(norms)] += norms
                sequences[: len(norms)] += x.shape[0 if at_network.batch_first else 1]
                over_depth += torch.stack([gradient.double().norm() for gradient in at_weights]).cpu() if weights else 0
    finally:
        at_network.handle.remove()
        for parameter in frozen:
            parameter.requires_grad_(False)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
    return {"time": (over_time / sequences).tolist(), "depth": (over_depth / batches).tolist()}


def write(flows: Sequence[dict[str, Any]], results: Results) -> None:
    """Write flows (a "name", whether it is an "indrnn", and `gradient_flow`'s result), and a figure of them."""
    results.write(list(flows), draw(flows))


def draw(flows: Sequence[dict[str, Any]]) -> Figure:
    """Norms over time and depth, on a logarithmic axis: over a sequence, an LSTM loses orders of magnitude."""
    panels = [what for what in ("time", "depth") if any(flow[what] for flow in flows)]
    figure, axes = figure_with_legend(len(panels), 3.7, [flow["name"] for flow in flows])
    for axis, what in zip(axes, panels, strict=True):
        for place, flow in enumerate(flows):
            values, first = flow[what], 1 if what == "time" else 2
            axis.plot(
                range(first, first + len(values)),
                values,
                label=named(flow["name"]),
                color=COLOURS[place % len(COLOURS)],
                linestyle=LINES[place % len(LINES)],
                marker="" if what == "time" else "o",
                markersize=3,
                linewidth=1.4,
            )
        axis.set_xlabel("time step" if what == "time" else "layer")
        axis.set_title(f"over {what}")
        if any(value > 0 for flow in flows for value in flow[what]):
            axis.set_yscale("log")
    axes[0].set_ylabel("mean gradient norm")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure
