"""Layers to compare with: every model takes (T, B, 2) and its first result is (T, B, 128)."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from indrnn import IndRNN
from indrnn.baselines import SRU
from indrnn.ops.cpu import kernel


class Loop(nn.Module):
    """Naive IndRNN: a Python loop over time.

    Args:
        layer: the layer whose weights it uses.
    """

    def __init__(self, layer: IndRNN) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return every step's output, and the last."""
        layer = self.layer
        h = x.new_zeros(x.shape[1], layer.hidden_size)
        outputs = []
        for projected in F.linear(x, layer.weight_ih_l0, layer.bias_l0):
            h = torch.relu(projected + layer.weight_hh_l0 * h)
            outputs.append(h)
        return torch.stack(outputs), h


class OutputOnly(nn.Module):
    """A model that returns nothing but its output, called like a layer.

    Args:
        model: the model.
        batch_first: whether it has the batch before time.
    """

    def __init__(self, model: nn.Module, *, batch_first: bool = False) -> None:
        super().__init__()
        self.model, self.batch_first = model, batch_first

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Every step's output, and no state."""
        return (self.model(x.transpose(0, 1)).transpose(0, 1) if self.batch_first else self.model(x)), None


def own_sru(device: torch.device, hidden: int, layers: int = 1) -> nn.Module | str:
    """Our SRU, or why it is not measured."""
    if device.type != "cpu":
        return "it has a kernel for the CPU alone; pip install sru measures its authors' CUDA kernels"
    loaded = kernel.library()
    return loaded if isinstance(loaded, str) else SRU(2, hidden, layers)


def sru_package(device: torch.device, hidden: int) -> nn.Module | str:
    """The SRU of its authors, or why it is not measured."""
    package = _import("sru", "sru")
    warnings.filterwarnings("ignore", message="Running SRU on CPU with grad_enabled=True")
    return package if isinstance(package, str) else package.SRU(2, hidden, num_layers=1).to(device)


def min_gru(device: torch.device, hidden: int) -> nn.Module | str:
    """The minGRU of the package minGRU-pytorch, or why it is not measured."""
    package = _import("minGRU_pytorch", "minGRU-pytorch")
    if isinstance(package, str):
        return package
    return OutputOnly(package.minGRU(2, expansion_factor=hidden / 2, proj_out=False), batch_first=True).to(device)


def _import(module: str, package: str) -> Any:
    """The module, or why it cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sru compiles its kernels here, with TorchScript and much to say
            return importlib.import_module(module)
    except ModuleNotFoundError:
        return f"it is not installed (pip install {package}; both with pip install 'indrnn[bench]')"
    except Exception as error:
        return f"it cannot be imported: {type(error).__name__}: {str(error).strip().split(chr(10))[0]}"


OUR_SRU, THEIR_SRU = "SRU, ours, on a fused kernel", "SRU, the package sru"
PEERS: dict[str, Callable[[torch.device, int], nn.Module | str]] = {
    OUR_SRU: own_sru,
    f"{OUR_SRU}, 2 layers": partial(own_sru, layers=2),
    THEIR_SRU: sru_package,
    "minGRU, the package minGRU-pytorch": min_gru,
}


def same_as_sru_package(ours: Any, theirs: Any) -> None:
    """Give our SRU the package's weights, and check that both compute the same."""
    cell = theirs.rnn_lst[0]
    hidden, blocks = ours.hidden_size, ours.weight_l0.shape[0] // ours.hidden_size
    with torch.no_grad():  # theirs has the parts of a neuron beside each other, ours the neurons of a part
        weight = cell.weight.view(-1, hidden, blocks).permute(2, 1, 0).reshape(blocks * hidden, -1)
        ours.weight_l0.copy_(weight)
        ours.v_l0.copy_(cell.weight_c.view(2, hidden))
        ours.bias_l0.copy_(cell.bias.view(2, hidden))
        x = torch.rand(64, 3, 2, device=ours.weight_l0.device)
        torch.testing.assert_close(ours(x)[0], theirs(x)[0], rtol=1e-4, atol=1e-5)
