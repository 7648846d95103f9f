"""A trained model as a program that `engine.js` runs: nodes in JSON, and all numbers in one array.

`engine.js` documents the nodes. A reference to numbers is {"at": offset, "shape": [...]}.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import networks
from ...layers import IndRNN, SequenceBatchNorm, StepBatchNorm
from ...networks.network import FrontNetwork
from ...ops.calls import Forward
from .. import neurons

Node = dict[str, Any]
BY_STEP = (networks.StepClassifier, networks.StepRegressor, networks.LanguageModel)
HEADS = (networks.SequenceClassifier, networks.SequenceRegressor, *BY_STEP)


def network_of(model: nn.Module) -> nn.Module:
    """The network in a model; raises unless it is one whose neurons are independent."""
    network: nn.Module | None = getattr(model, "network", None)
    inner = network.network if isinstance(network, FrontNetwork) else network
    if network is not None and isinstance(model, HEADS) and isinstance(inner, (networks.Network, IndRNN)):
        return network
    name = type(model).__name__ + ("" if network is None else f" of {type(network).__name__}")
    raise ValueError(
        "model must be a classifier, regressor or language model around a plain, residual or dense IndRNN "
        f"or an IndRNN layer, got {name}"
    )


def recurrent_states(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Run a model in evaluation; return the states h of every recurrent layer, (T, B, size), in the program's order."""
    network = network_of(model)
    options: dict[str, Any] = {}
    if isinstance(network, IndRNN):  # a sequence of one step too is a call of the op, if it has a length
        T, B = inputs.shape[:2] if not network.batch_first else inputs.shape[1::-1]
        options["lengths"] = [T] * B
    directions: dict[str, list[Tensor]] = {}

    def keep(layer: neurons.Layer, _: slice, __: Forward, h: Tensor) -> None:
        directions.setdefault(layer.name.removesuffix("_reverse"), []).append(h.clone())

    with neurons.watched(model, neurons.layers_of(model), keep):
        model(inputs, **options)
    return [torch.cat(states, dim=-1) for states in directions.values()]


class Program:
    """A model, as in evaluation, as a program for `engine.js`."""

    def __init__(self, model: nn.Module) -> None:
        network: Any = network_of(model)
        output: Any = model.output
        self.numbers: list[np.ndarray[Any, Any]] = []
        """Numbers of the model, float32, in the order of the references."""
        self.layers: dict[str, Tensor] = {}
        """Recurrent weights u of each layer, (size,), by its name, in the order in which they run."""
        self._shown: list[Node] = []
        self._sources: list[dict[str, Any]] = []
        self._bidirectional = False
        vectors = []
        if isinstance(model, networks.LanguageModel):
            vectors = [{"op": "embedding", "weight": self.reference(model.embedding.weight)}]
            output = model.embedding if output is None else output
        classes = not isinstance(model, (networks.SequenceRegressor, networks.StepRegressor))
        self.plain: dict[str, Any] = {
            "inputs": 1 if vectors else network.input_size,  # features of the input; 1 where they are token numbers
            "nodes": vectors + self._network(network),
            "layers": self._shown,
            "output": self._linear(output) | {"pool": getattr(model, "pool", "step"), "classes": classes},
            "whole": self._bidirectional and not isinstance(model, BY_STEP),  # an answer for the whole sequence alone
        }
        """The part stored as JSON: nodes, layers and output."""

    def reference(self, tensor: Tensor | None) -> Any:
        """Append a tensor to the numbers, and return the reference to it; None for None."""
        if tensor is None:
            return None
        at = sum(array.size for array in self.numbers)
        self.numbers.append(tensor.detach().cpu().to(torch.float32).contiguous().numpy().reshape(-1))
        return {"at": at, "shape": list(tensor.shape)}

    def _linear(self, module: Any) -> Node:
        bias = self.reference(module.bias)
        return {"op": "linear", "weight": self.reference(module.weight), "bias": bias}

    def _network(self, network: Any, reads: str = "input") -> list[Node]:
        """The nodes of a network, in the order in which it runs."""
        if isinstance(network, FrontNetwork):
            front: list[Node] = []
            steps: Any = zip(network.convolutions, network.norms, network.config.strides, strict=True)
            for convolution, norm, stride in steps:
                weight = self.reference(convolution.weight)
                front.append({"op": "convolution", "weight": weight, "stride": stride, "norm": self._norm(norm)})
            return front + self._network(network.network, f"convolution {len(front)}")
        self._sources = [{"name": reads, "size": network.input_size}]
        kinds = (IndRNN, networks.PlainIndRNN, networks.ResidualIndRNN, networks.DenseIndRNN)
        for kind, nodes_of in zip(kinds, (self._stack, self._plain, self._residual, self._dense), strict=True):
            if isinstance(network, kind):
                return nodes_of(network)
        raise ValueError(f"network must be a plain, residual or dense IndRNN, got {type(network).__name__}")

    def _plain(self, network: Any) -> list[Node]:
        nodes: list[Node] = []
        for number, block in enumerate(network.blocks, 1):
            for weight in block.weights:
                nodes += [self._linear(weight), {"op": "relu"}]
                self._sources = [{"name": "processed input", "size": weight.out_features}]
            nodes.append(self._unit(block.unit, f"layer {number}"))
        return nodes

    def _residual(self, network: Any) -> list[Node]:
        nodes = [self._linear(network.first)]
        stream = [{"name": "residual stream", "size": network.first.out_features}]
        for number, block in enumerate(network.blocks, 1):
            self._sources = stream
            units = range(1, block.operations + 1)
            body = [self._unit(getattr(block, f"unit{i}"), f"block {number}, layer {i}") for i in units]
            nodes.append({"op": "residual", "body": [*body, self._linear(block.weight)]})
        self._sources = stream
        nodes.append(self._unit(network.last, "last layer"))
        if network.transition is not None:
            nodes.append(self._unit(network.transition, "transition"))
        return nodes

    def _dense(self, network: Any) -> list[Node]:
        nodes = [] if network.first is None else [self._unit(network.first, "first layer")]
        for number, block in enumerate(network.blocks, 1):
            for i, layer in enumerate(block.layers, 1):
                name, before = f"block {number}, layer {i}", self._sources
                body = [self._unit(layer.bottleneck, f"{name}, bottleneck"), self._unit(layer.growth, name)]
                nodes.append({"op": "dense", "body": body})
                self._sources = [*before, *self._sources]
            nodes.append(self._unit(block.transition, f"transition {number}"))
        return nodes

    def _unit(self, unit: Any, name: str) -> Node:
        weight, config = None if unit.weight is None else self.reference(unit.weight.weight), unit.config
        norm = None if unit.norm is None else self._norm(unit.norm) | {"place": config.norm_place}
        node = {"weight": weight, "norm": norm, "activation": config.nonlinearity}
        return self._recurrence(name, unit.bias, unit.weight_hh, config.bidirectional, node)

    def _stack(self, layer: Any) -> list[Node]:
        nodes = []
        for number in range(layer.num_layers):
            ways = [f"_l{number}", f"_l{number}_reverse"][: 1 + layer.bidirectional]
            weight, u = (torch.cat([getattr(layer, name + way) for way in ways]) for name in ("weight_ih", "weight_hh"))
            bias = torch.cat([getattr(layer, "bias" + way) for way in ways]) if layer.bias else None
            node = {"weight": self.reference(weight), "norm": None, "activation": layer.nonlinearity}
            nodes.append(self._recurrence(f"layer {number + 1}", bias, u, layer.bidirectional, node))
        return nodes

    def _recurrence(self, name: str, bias: Tensor | None, u: Tensor, bidirectional: bool, node: Node) -> Node:
        """The node of a recurrence, beside its weight, norm and activation."""
        number, size, reference = len(self._shown), len(u), self.reference(u)
        shown = {"name": name, "size": size, "u": reference, "weight": node["weight"], "sources": self._sources}
        self._shown.append(shown)
        self.layers[name] = u.detach().cpu().double()
        self._sources = [{"name": name, "size": size, "layer": number}]
        self._bidirectional |= bidirectional
        own = {"bias": self.reference(bias), "u": reference, "bidirectional": bidirectional}
        return {"op": "unit", "layer": number, "size": size, **node, **own}

    def _norm(self, norm: Any) -> Node:
        if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
            shift = self.reference(getattr(norm, "bias", None))
            kind = "layer" if isinstance(norm, nn.LayerNorm) else "rms"
            return {"kind": kind, "scale": self.reference(norm.weight), "shift": shift, "eps": norm.eps}
        if not isinstance(norm, (SequenceBatchNorm, StepBatchNorm)):
            kind = type(norm).__name__
            raise ValueError(f"norm must be one of this package's or torch's layer or RMS norm, got {kind}")
        scale = torch.rsqrt(norm.running_var + norm.eps)
        node: Node = {
            "kind": "step" if isinstance(norm, StepBatchNorm) else "batch",
            "mean": self.reference(norm.running_mean),
            "scale": self.reference(scale if norm.weight is None else scale * norm.weight),
            "shift": self.reference(norm.bias),
        }
        return node | ({"steps": norm.steps} if isinstance(norm, StepBatchNorm) else {})
