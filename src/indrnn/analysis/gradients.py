"""How gradients flow back through time and depth: the paper's figure 5."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..baselines import BaselineRNN
from ..training import Shard, TensorTask
from ..training.checkpoint import write_atomically


def input_weights(model: nn.Module) -> list[Tensor]:
    """The weights that each layer reads the layer below with, from the first layer on."""
    rnn = next((module.rnn for module in model.modules() if isinstance(module, BaselineRNN)), None)
    if rnn is not None:
        return [getattr(rnn, f"weight_ih_l{layer}") for layer in range(rnn.num_layers)]
    network = getattr(model, "network", model)
    return [module.weight for module in network.modules() if isinstance(module, nn.Linear)]


def gradient_flow(model: nn.Module, task: TensorTask, batches: int) -> dict[str, list[float]]:
    """Mean gradient norms over so many training batches, as in training but with the weights left as they are.

    Args:
        model: the model, on the device that it is to run on.
        task: inputs (T, B, features) and labels.
        batches: from the first of the epoch on.

    Returns:
        "time": for each step, the mean over sequences of the norm of the gradient of a sequence's loss at the input.
        "depth": for each layer's input weights but the first's, the mean over batches of the norm of the gradient of
        the batch's mean loss.
    """
    weights = input_weights(model)[1:]
    training = model.training
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    device = next(model.parameters()).device
    over_time: Tensor | None = None
    over_depth = torch.zeros(len(weights), dtype=torch.float64)
    sequences = 0
    try:
        for step in range(batches):
            batch = task.batch(step, Shard()).to(device)
            batch.inputs.requires_grad_()
            at_input, *at_weights = torch.autograd.grad(task.loss(model, batch), [batch.inputs, *weights])
            norms = (at_input.double() * batch.count).norm(dim=-1).sum(dim=1).cpu()
            over_time = norms if over_time is None else over_time + norms
            over_depth += torch.stack([gradient.double().norm() for gradient in at_weights]).cpu() if weights else 0
            sequences += batch.count
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        model.train(training)
    assert over_time is not None
    return {"time": (over_time / sequences).tolist(), "depth": (over_depth / batches).tolist()}


def write(flows: Sequence[dict[str, Any]], out: Path) -> Path:
    """Write gradients.json, of flows with a "name", whether it is an "indrnn", and what `gradient_flow` gave; draw it.

    Returns:
        The picture, gradients.png.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "gradients.json", (json.dumps(list(flows), ensure_ascii=False) + "\n").encode())
    return draw(flows, out / "gradients.png")


def draw(flows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Over time and over depth, all models and then those that are not IndRNNs alone, as the paper zooms in on them."""
    from .curves import new_figure, save_figure

    others = [flow for flow in flows if not flow["indrnn"]]
    panels = [(what, shown) for what in ("time", "depth") for shown in (flows, others) if shown]
    figure, axes = new_figure(len(panels), width=3.6)
    names = [flow["name"] for flow in flows]
    for axis, (what, shown) in zip(axes, panels, strict=True):
        for flow in shown:
            values, first = flow[what], 1 if what == "time" else 2
            axis.plot(
                range(first, first + len(values)),
                values,
                label=flow["name"],
                color=f"C{names.index(flow['name'])}",
                marker="" if what == "time" else "o",
                markersize=3,
                linewidth=1.2,
            )
        axis.set_xlabel("time step" if what == "time" else "layer")
        axis.set_title(f"over {what}" + ("" if shown is flows else ", without the IndRNN"))
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("mean gradient norm")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    save_figure(figure, path)
    return path
