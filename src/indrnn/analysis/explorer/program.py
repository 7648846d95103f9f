"""A trained model as a program that `engine.js` runs: nodes in JSON, and all numbers in one array.

`engine.js` documents the nodes. A reference to numbers is {"at": offset, "shape": [...]}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers.indrnn import IndRNN
from ...layers.norm import SequenceBatchNorm, StepBatchNorm
from ...networks.dense import DenseIndRNN
from ...networks.front import FrontNetwork
from ...networks.heads import SequenceClassifier, SequenceRegressor, StepClassifier, StepRegressor
from ...networks.language import LanguageModel
from ...networks.network import Network
from ...networks.plain import PlainIndRNN
from ...networks.residual import ResidualIndRNN
from ...networks.unit import RecurrentUnit
from ...ops import recurrence
from ...ops.calls import Forward
from .. import neurons

Node = dict[str, Any]
Reference = dict[str, Any]
HEADS = (SequenceClassifier, SequenceRegressor, StepClassifier, StepRegressor)


@dataclass(frozen=True)
class Layer:
    """A recurrent layer as shown on the page."""

    name: str
    """Name of the layer."""
    recurrent_weight: Tensor
    """u, (size,)."""
    plain: dict[str, Any]
    """The part stored as JSON: name, size, references to u and to the input weights, and the sources of its inputs."""


@dataclass
class Program:
    """A model as a program for `engine.js`."""

    layers: list[Layer]
    """Recurrent layers, in the order in which they run."""
    output: Node
    """Output layer."""
    plain: dict[str, Any]
    """The part stored as JSON."""
    numbers: list[np.ndarray[Any, Any]]
    """Numbers of the model, float32, in the order of the references."""


def network_of(model: nn.Module) -> nn.Module:
    """The network in a model; raises unless it is one whose neurons are independent."""
    network: Any = getattr(model, "network", None)
    inner = network.network if isinstance(network, FrontNetwork) else network
    if not isinstance(model, (*HEADS, LanguageModel)) or not isinstance(inner, (Network, IndRNN)):
        name = type(model).__name__ if network is None else f"{type(model).__name__} of {type(network).__name__}"
        raise ValueError(
            "model must be a classifier, regressor or language model around a plain, residual or dense IndRNN "
            f"or an IndRNN layer, got {name}"
        )
    network_module: nn.Module = network
    return network_module


def program_of(model: nn.Module) -> Program:
    """Convert a model, as in evaluation, to a program."""
    network = network_of(model)
    writer = _Writer()
    vectors = []
    output: Any = model.output
    if isinstance(model, LanguageModel):
        vectors = [{"op": "embedding", "weight": writer.reference(model.embedding.weight)}]
        output = model.embedding if output is None else output
    nodes = vectors + writer.network(network)
    by_step = isinstance(model, (StepClassifier, StepRegressor, LanguageModel))
    last = {
        **writer.linear(output),
        "pool": getattr(model, "pool", "step"),
        "classes": isinstance(model, (SequenceClassifier, StepClassifier, LanguageModel)),
    }
    plain = {
        "inputs": 1 if vectors else network.input_size,  # features of the input; 1 where they are token numbers
        "nodes": nodes,
        "layers": [layer.plain for layer in writer.layers],
        "output": last,
        "whole": writer.bidirectional and not by_step,  # an answer for the whole sequence alone
    }
    return Program(writer.layers, last, plain, writer.numbers)


def recurrent_states(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Run a model in evaluation; return the states h of every recurrent layer, (T, B, size), in the program's order."""
    network = network_of(model)
    if isinstance(network, IndRNN):
        with torch.no_grad():
            return _layer_states(network, model.embedding(inputs) if isinstance(model, LanguageModel) else inputs)
    directions: dict[str, list[Tensor]] = {}

    def keep(layer: neurons.Layer, _: slice, __: Forward, h: Tensor) -> None:
        directions.setdefault(layer.name, []).append(h.clone())

    with neurons.watched(model, neurons.layers_of(model), keep):
        model(inputs)
    return [torch.cat(states, dim=-1) for states in directions.values()]


def _layer_states(layer: IndRNN, x: Tensor) -> list[Tensor]:
    """The states of every layer: the module's output is only the last one's."""
    states = []
    x = x.transpose(0, 1) if layer.batch_first else x
    for number in range(layer.num_layers):
        ways = []
        for way in range(2 if layer.bidirectional else 1):
            end = f"_l{number}" + ("_reverse" if way else "")
            weight, u = getattr(layer, "weight_ih" + end), getattr(layer, "weight_hh" + end)
            bias = getattr(layer, "bias" + end)
            drive = F.linear(x, weight, bias)
            ways.append(recurrence(drive, u, activation=layer.nonlinearity, reverse=way == 1)[0])
        x = torch.cat(ways, dim=-1)
        states.append(x.detach())
    return states


class _Writer:
    """Walks through a network in the order in which it runs."""

    def __init__(self) -> None:
        self.numbers: list[np.ndarray[Any, Any]] = []
        self.layers: list[Layer] = []
        self.bidirectional = False
        self._at = 0
        self._sources: list[dict[str, Any]] = []

    def reference(self, tensor: Tensor) -> Reference:
        array = tensor.detach().cpu().to(torch.float32).contiguous().numpy().reshape(-1)
        at = self._at
        self.numbers.append(array)
        self._at += array.size
        return {"at": at, "shape": list(tensor.shape)}

    def linear(self, module: Any) -> Node:
        bias = None if module.bias is None else self.reference(module.bias)
        return {"op": "linear", "weight": self.reference(module.weight), "bias": bias}

    def network(self, network: nn.Module) -> list[Node]:
        if not isinstance(network, FrontNetwork):
            return self._recurrent(network, "input")
        front: list[Node] = []
        for convolution, norm, stride in zip(network.convolutions, network.norms, network.config.strides, strict=True):
            weight = self.reference(convolution.weight)  # type: ignore[arg-type]
            front.append({"op": "convolution", "weight": weight, "stride": stride, "norm": self._norm(norm)})
        return front + self._recurrent(network.network, f"convolution {len(front)}")

    def _recurrent(self, network: nn.Module, reads: str) -> list[Node]:
        self._sources = [{"name": reads, "size": network.input_size}]
        if isinstance(network, IndRNN):
            return self._stack(network)
        if isinstance(network, PlainIndRNN):
            return self._plain(network)
        if isinstance(network, ResidualIndRNN):
            return self._residual(network)
        if isinstance(network, DenseIndRNN):
            return self._dense(network)
        raise ValueError(f"network must be a plain, residual or dense IndRNN, got {type(network).__name__}")

    def _plain(self, network: PlainIndRNN) -> list[Node]:
        nodes: list[Node] = []
        for number, block in enumerate(network.blocks):
            for weight in block.weights:  # type: ignore[union-attr]
                nodes += [self.linear(weight), {"op": "relu"}]
                self._sources = [{"name": "processed input", "size": weight.out_features}]
            nodes.append(self._unit(block.unit, f"layer {number + 1}"))
        return nodes

    def _residual(self, network: ResidualIndRNN) -> list[Node]:
        nodes = [self.linear(network.first)]
        stream = [{"name": "residual stream", "size": network.first.out_features}]
        for number, block in enumerate(network.blocks):
            self._sources = stream
            body = [
                self._unit(getattr(block, f"unit{i + 1}"), f"block {number + 1}, layer {i + 1}")
                for i in range(block.operations)  # type: ignore[arg-type]
            ]
            nodes.append({"op": "residual", "body": [*body, self.linear(block.weight)]})
        self._sources = stream
        nodes.append(self._unit(network.last, "last layer"))
        if network.transition is not None:
            nodes.append(self._unit(network.transition, "transition"))
        return nodes

    def _dense(self, network: DenseIndRNN) -> list[Node]:
        nodes: list[Node] = []
        if network.first is not None:
            nodes.append(self._unit(network.first, "first layer"))
        for number, block in enumerate(network.blocks):
            for i, layer in enumerate(block.layers):  # type: ignore[arg-type]
                name, before = f"block {number + 1}, layer {i + 1}", self._sources
                body = [self._unit(layer.bottleneck, f"{name}, bottleneck"), self._unit(layer.growth, name)]
                nodes.append({"op": "dense", "body": body})
                self._sources = [*before, *self._sources]
            nodes.append(self._unit(block.transition, f"transition {number + 1}"))
        return nodes

    def _unit(self, unit: Any, name: str) -> Node:
        assert isinstance(unit, RecurrentUnit)
        weight = None if unit.weight is None else self.reference(unit.weight.weight)  # type: ignore[arg-type]
        norm = None if unit.norm is None else self._norm(unit.norm) | {"place": unit.config.norm_place}
        config = unit.config
        return self._recurrence(
            name, weight, unit.bias, unit.weight_hh, norm, config.nonlinearity, config.bidirectional
        )

    def _recurrence(
        self,
        name: str,
        weight: Reference | None,
        bias: Tensor | None,
        u: Tensor,
        norm: Node | None,
        activation: str,
        bidirectional: bool,
    ) -> Node:
        number, size = len(self.layers), len(u)
        reference = self.reference(u)
        plain = {"name": name, "size": size, "u": reference, "weight": weight, "sources": self._sources}
        self.layers.append(Layer(name, u.detach().cpu().double(), plain))
        self._sources = [{"name": name, "size": size, "layer": number}]
        self.bidirectional |= bidirectional
        return {
            "op": "unit",
            "layer": number,
            "size": size,
            "weight": weight,
            "bias": None if bias is None else self.reference(bias),
            "u": reference,
            "norm": norm,
            "activation": activation,
            "bidirectional": bidirectional,
        }

    def _norm(self, norm: nn.Module) -> Node:
        if isinstance(norm, (SequenceBatchNorm, StepBatchNorm)):
            scale = torch.rsqrt(norm.running_var + norm.eps)
            node: Node = {
                "kind": "batch" if isinstance(norm, SequenceBatchNorm) else "step",
                "mean": self.reference(norm.running_mean),
                "scale": self.reference(scale if norm.weight is None else scale * norm.weight),
                "shift": None if norm.bias is None else self.reference(norm.bias),
            }
            return node if isinstance(norm, SequenceBatchNorm) else node | {"steps": norm.steps}
        if isinstance(norm, nn.LayerNorm):
            shift = None if norm.bias is None else self.reference(norm.bias)
            return {"kind": "layer", "scale": self.reference(norm.weight), "shift": shift, "eps": norm.eps}
        if isinstance(norm, nn.RMSNorm):
            return {"kind": "rms", "scale": self.reference(norm.weight), "shift": None, "eps": norm.eps}
        raise ValueError(f"norm must be one of this package's or torch's layer or RMS norm, got {type(norm).__name__}")

    def _stack(self, layer: IndRNN) -> list[Node]:
        nodes = []
        for number in range(layer.num_layers):
            ways = [f"_l{number}", *([f"_l{number}_reverse"] if layer.bidirectional else [])]
            weight, u = (torch.cat([getattr(layer, name + way) for way in ways]) for name in ("weight_ih", "weight_hh"))
            bias = torch.cat([getattr(layer, "bias" + way) for way in ways]) if layer.bias else None
            name = f"layer {number + 1}"
            nodes.append(
                self._recurrence(name, self.reference(weight), bias, u, None, layer.nonlinearity, layer.bidirectional)
            )
        return nodes
