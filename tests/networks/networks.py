"""Small networks of each architecture, and the same computed by torch's own modules one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import recurrence
from indrnn.layers.norm import SequenceBatchNorm, StepBatchNorm
from indrnn.networks import DenseIndRNN, Network, PlainIndRNN, RecurrentUnit, ResidualIndRNN
from tests.processes import Results, work

T, B, M = 11, 7, 3
# Six, five, then one at each step: the deviation of two would be known to few digits.
LENGTHS = torch.tensor([7, 7, 0, 4, 7, 11, 7])

ARCHITECTURES: dict[str, Callable[..., Network]] = {
    "plain": lambda **options: PlainIndRNN(M, 9, 3, **options),
    "residual": lambda **options: ResidualIndRNN(M, 9, 2, **options),
    "dense": lambda **options: DenseIndRNN(M, 3, (2, 1), **options),
}
OUTPUT_SIZES = {"plain": 9, "residual": 9, "dense": 7}  # dense: 6k + 2k = 24, to 12, and k = 15, to 7

NORMS: dict[str, dict[str, Any]] = {
    "no norm": {"norm": None},
    "norm before": {"norm": "batch", "norm_place": "before"},
    "norm after": {"norm": "batch"},
    # Fewer steps than T: the last row is shared, and counting begins again in evaluation.
    "step norm before": {"norm": "step", "norm_steps": 6, "norm_place": "before"},
    "step norm after": {"norm": "step", "norm_steps": 6},
    "layer norm": {"norm": "layer"},
    "rms norm before": {"norm": "rms", "norm_place": "before"},
}


def make(architecture: str, norm: str = "norm before", **options: Any) -> Network:
    """A lively network."""
    return lively(ARCHITECTURES[architecture](**NORMS[norm], **options))


def lively(network: Network) -> Network:
    """With recurrent weights of both signs, and biases, scales and statistics that are not at their start."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, RecurrentUnit):
                module.weight_hh.uniform_(-1, 1)
            if isinstance(module, (RecurrentUnit, nn.Linear)) and module.bias is not None:
                module.bias.uniform_(0, 1)  # few dead neurons, whose variance a norm would divide by
            if isinstance(module, nn.Linear):
                module.weight.mul_(3)
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm, SequenceBatchNorm, StepBatchNorm)):
                module.weight.uniform_(0.5, 1.5)
            if isinstance(module, (nn.LayerNorm, SequenceBatchNorm, StepBatchNorm)):
                module.bias.uniform_(-0.5, 1)
            if isinstance(module, (SequenceBatchNorm, StepBatchNorm)):
                module.running_mean.uniform_(-1, 1)
                module.running_var.uniform_(0.5, 2)
    return network


def inputs(dtype: torch.dtype = torch.float32, batch: int = B) -> Tensor:
    return torch.randn(T, batch, M, dtype=dtype)


def trained(network: Network) -> Network:
    """In evaluation, with running statistics of a few batches."""
    dtype = next(network.parameters()).dtype
    network.train()
    with torch.no_grad():
        for _ in range(4):
            x = inputs(dtype, 13)
            network(x.transpose(0, 1) if network.batch_first else x)
    return network.eval()


# ---- the same by torch's own modules


class Composition:
    """A network's layers in the order in which they run, to be put together anew."""

    def __init__(self, network: Network, lengths: Tensor | None) -> None:
        self.weights: Iterator[nn.Linear] = iter([m for m in network.modules() if isinstance(m, nn.Linear)])
        self.layers = iter(network.recurrent_layers)
        self.lengths = lengths

    def weight(self, x: Tensor) -> Tensor:
        return next(self.weights)(x)  # type: ignore[no-any-return]

    def recurrent(self, x: Tensor) -> Tensor:
        layer = next(self.layers)
        x = x if layer.bias is None else x + layer.bias
        if layer.config.norm_place == "before":
            x = self._norm(layer, x)
        h, _ = recurrence(x, layer.weight_hh, activation=layer.config.nonlinearity, lengths=self.lengths)
        return self._norm(layer, h) if layer.config.norm_place == "after" else h

    def _norm(self, layer: RecurrentUnit, x: Tensor) -> Tensor:
        """torch.nn.BatchNorm1d of the valid numbers; one for each row where a step has its own."""
        norm = layer.norm
        if norm is None:
            return x
        valid = torch.ones(x.shape[:2], dtype=torch.bool)
        if self.lengths is not None:
            valid = torch.tensor([[t < length for length in self.lengths.tolist()] for t in range(len(x))])
        y = torch.zeros_like(x)
        if isinstance(norm, SequenceBatchNorm):
            y[valid] = _torch_norm(norm, norm.running_mean, norm.running_var, x[valid])
            return y
        if not isinstance(norm, StepBatchNorm):
            y[valid] = norm(x[valid])
            return y
        for t in range(len(x)):
            row = min(t, norm.steps - 1) if norm.training else t % norm.steps
            y[t, valid[t]] = _torch_norm(norm, norm.running_mean[row], norm.running_var[row], x[t, valid[t]])
        return y

    def finish(self) -> None:
        assert next(self.weights, None) is None
        assert next(self.layers, None) is None


def _torch_norm(norm: SequenceBatchNorm | StepBatchNorm, mean: Tensor, var: Tensor, x: Tensor) -> Tensor:
    """torch.nn.BatchNorm1d with the norm's parameters, of x (numbers, N); the running statistics are updated."""
    own = nn.BatchNorm1d(x.shape[-1], norm.eps, norm.momentum, dtype=x.dtype).train(norm.training)
    own.weight, own.bias = norm.weight, norm.bias
    own.running_mean, own.running_var = mean.clone(), var.clone()
    if norm.training and len(x) < 2:  # which torch refuses: its deviation from the mean is 0
        return (x - x) * own.weight + own.bias
    y = own(x)
    mean.copy_(own.running_mean)
    var.copy_(own.running_var)
    return y  # type: ignore[no-any-return]


class Composed(nn.Module):
    """A network put together anew by `compose`, from a copy of its parameters."""

    def __init__(self, network: Network, compose: Callable[[Composition, Tensor], Tensor]) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.compose = compose

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        composition = Composition(self.network, lengths)
        y = self.compose(composition, x)
        composition.finish()
        return y


def assert_composed(network: Network, compose: Callable[[Composition, Tensor], Tensor]) -> None:
    """A float64 network's outputs, gradients and running statistics are those of the composition."""
    size = network.output_size
    for training in (True, False):
        network.train(training)
        for lengths in (None, LENGTHS):
            composed = Composed(network, compose)
            x, gradient = inputs(torch.float64), torch.randn(T, B, size, dtype=torch.float64)
            options = {} if lengths is None else {"lengths": lengths}
            actual, expected = work(network, x, options, gradient), work(composed, x, options, gradient)
            for results in (actual, expected):  # which the composition does not count
                for name in [name for name in results if name.endswith("num_batches_tracked")]:
                    del results[name]
            assert_same(actual, expected, rtol=1e-10, atol=1e-10)


def assert_same(actual: Results, expected: Results, **tolerance: Any) -> None:
    """All results, by name."""
    renamed = {name.removeprefix("network."): value for name, value in expected.items()}
    assert actual.keys() == renamed.keys()
    for name, value in actual.items():
        assert_close(value, renamed[name], msg=f"{name}: {{}}".format, **tolerance)


# ---- what happens at the recurrent layers


def outputs_of_layers(network: Network, *args: Any, **options: Any) -> list[tuple[RecurrentUnit, Tensor]]:
    """Each recurrent layer and its output, in the order in which they ran."""
    ran: list[tuple[RecurrentUnit, Tensor]] = []

    def hook(layer: nn.Module, _: Any, output: tuple[Tensor, Tensor]) -> None:
        assert isinstance(layer, RecurrentUnit)
        ran.append((layer, output[0].detach()))

    handles = [m.register_forward_hook(hook) for m in network.modules() if isinstance(m, RecurrentUnit)]
    network(*args, **options)
    for handle in handles:
        handle.remove()
    return ran


def shares_dropped(network: Network) -> list[float]:
    """Of each recurrent layer's neurons, in the order of running, the share that dropout makes 0, at all steps alike.

    The network has no norm, and gets positive parameters, so that nothing but dropout makes a 0.
    """
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(0.1, 0.2)
    shares = []
    for _, h in outputs_of_layers(network.train(), torch.rand(T, 99, M)):
        zero = h == 0
        assert (zero == zero[:1]).all()
        shares.append(float(zero.double().mean()))
    return shares
