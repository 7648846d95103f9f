"""What `--against` measures: a function for each kind of case.

`worker.py` loads this file by its path into the process of either version, so it uses only names of indrnn that both
have. If a version makes or calls something in another way, this file is the place to adapt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import indrnn as installed

indrnn: Any = installed  # a name that only one of the versions has is no error of types
CLASSES = 10


class Candidate(NamedTuple):
    """A case that is ready to run."""

    run: Callable[[], object]
    """What is timed, and whose peak memory is taken."""
    results: Callable[[], dict[str, Tensor]]
    """Outputs and gradients, to be compared with the other version's; called once, before the first `run`."""


def layer(
    device: str,
    *,
    T: int,
    B: int,
    N: int,
    inputs: int,
    layers: int = 1,
    nonlinearity: str = "relu",
    input_gradient: bool = False,
    lengths: bool = False,
) -> Candidate:
    """IndRNN forward and backward, with a loss over all steps."""
    model = with_same_weights(indrnn.IndRNN(inputs, N, layers, nonlinearity=nonlinearity)).to(device)
    x = torch.rand(T, B, inputs).to(device).requires_grad_(input_gradient)
    weights = torch.rand(T * B * N).to(device)
    options = {"lengths": torch.randint(1, T + 1, (B,)).to(device)} if lengths else {}

    def run() -> Tensor:
        x.grad = None
        model.zero_grad(set_to_none=True)
        output: Tensor = model(x, **options)[0]
        torch.dot(output.flatten(), weights).backward()
        return output

    def results() -> dict[str, Tensor]:
        results = {"output": run().detach()} | gradients(model)
        return results | ({"gradient of the input": x.grad} if x.grad is not None else {})

    return Candidate(run, results)


def op(device: str, *, T: int, B: int, N: int, dtype: str = "float32", backward: bool = True) -> Candidate:
    """The recurrence alone, forward or forward and backward."""
    kind = getattr(torch, dtype)
    x, gradient = (torch.randn(T, B, N).to(device, kind) for _ in range(2))
    u = torch.rand(N).to(device, kind)
    for tensor in (x, u):
        tensor.requires_grad_(backward)

    def run() -> tuple[Tensor, ...]:
        h, _ = indrnn.recurrence(x, u)
        return (h, *torch.autograd.grad(h, (x, u), gradient)) if backward else (h,)

    def results() -> dict[str, Tensor]:
        names = ("h", "gradient of x", "gradient of u")
        return {name: tensor.detach() for name, tensor in zip(names, run(), strict=False)}

    return Candidate(run, results)


def stream(device: str, *, N: int, cell: bool) -> Candidate:
    """One step of a stream at batch size 1, with carried state, by IndRNNCell or by IndRNN on T = 1."""
    model = with_same_weights((indrnn.IndRNNCell if cell else indrnn.IndRNN)(N, N)).to(device)
    x = torch.rand(1, N).to(device)
    h = torch.zeros(1, N, device=device)
    if not cell:
        x, h = x[None], h[None]

    @torch.inference_mode()
    def run() -> Tensor:
        nonlocal h
        state: Tensor = model(x, h) if cell else model(x, h)[1]
        h = state
        return state

    return Candidate(run, lambda: {f"step {i}": run().clone() for i in range(5)})


def training(device: str, *, network: str, T: int, B: int, dropout: bool = False) -> Candidate:
    """A training step: forward, loss, backward, clipping, Adam and the constraint."""
    run = update(*_pixels(device, network, T, B, dropout))

    def results() -> dict[str, Tensor]:
        """Results without dropout, whose masks a version may draw in another order."""
        model, x, target = _pixels(device, network, T, B, dropout=False)
        logits = model(x)[0]
        F.cross_entropy(logits, target).backward()
        return {"logits": logits.detach()} | gradients(model)

    return Candidate(run, results)


def evaluation(device: str, *, network: str, T: int, B: int) -> Candidate:
    """An evaluation pass: forward, with the norms' running statistics, without gradients."""
    model, x, _ = _pixels(device, network, T, B, dropout=False)
    with torch.no_grad():
        for _ in range(10):  # statistics as far from those of new norms as training has them
            model(x)
    model.eval()

    @torch.inference_mode()
    def run() -> Tensor:
        logits: Tensor = model(x)[0]
        return logits

    return Candidate(run, lambda: {"logits": run().clone()})


def update(model: nn.Module, x: Tensor, target: Tensor) -> Callable[[], None]:
    """A training step on this batch: forward, loss, backward, clipping, Adam and the constraint."""
    optimizer = torch.optim.Adam(indrnn.parameter_groups(model, 1e-4), lr=2e-4)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x)[0], target).backward()
        nn.utils.clip_grad_value_(model.parameters(), 10.0)
        optimizer.step()
        indrnn.constrain_(model)

    return run


NETWORKS = ("plain", "residual", "dense")


def config(network: str, T: int, *, dropout: bool) -> Any:
    """The configuration of a network of the pixel-MNIST recipes."""
    options: dict[str, Any] = {"sequence_length": T, "long_memory": True}
    if network == "dense":
        names = ("first_dropout", "bottleneck_dropout", "dense_dropout", "transition_dropout")
        return indrnn.Dense(
            1, 16, **options, **(dict(zip(names, (0.2, 0.1, 0.2, 0.1), strict=True)) if dropout else {})
        )
    kind, size = {"plain": (indrnn.Plain, 6), "residual": (indrnn.Residual, 5)}[network]
    return kind(1, 128, size, **options, dropout=0.1 if dropout else 0.0)


def _pixels(device: str, network: str, T: int, B: int, dropout: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with the same weights in every version, and a batch."""
    model = indrnn.SequenceClassifier(config(network, T, dropout=dropout).build(), CLASSES)
    model = with_same_weights(model, long_memory=T).to(device)
    return model, torch.rand(T, B, 1).to(device), torch.randint(CLASSES, (B,)).to(device)


def _role(name: str, parameter: Tensor) -> str:
    """A parameter's role in the equation: "W", "u", or "b" for biases and the parameters of norms."""
    if "weight_hh" in name:
        return "u"
    return "W" if parameter.dim() == 2 else "b"


def with_same_weights(model: nn.Module, long_memory: int | None = None) -> nn.Module:
    """Draw W and u, seeded by their shape and their index among parameters of that shape; b is not changed.

    Two versions thus get the same weights even if names, or the order of creation, differ. The distributions are those
    of IndRNN; with `long_memory`, the last u is drawn for a memory of that many steps. Torch's generator is seeded
    afterwards, for the inputs.
    """
    count: dict[tuple[str, tuple[int, ...]], int] = {}
    last: Tensor | None = None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            role, shape = _role(name, parameter), tuple(parameter.shape)
            if role == "b":
                continue
            index = count[role, shape] = count.get((role, shape), 0) + 1
            torch.manual_seed(1000 * index + sum(shape))
            if role == "W":
                bound = 0.304 / math.sqrt(shape[1])
                parameter.uniform_(-bound, bound)
            else:
                last = parameter.uniform_(0, 1)
        torch.manual_seed(0)
        if long_memory is not None and last is not None:
            last.uniform_(0.2 ** (1 / long_memory), 1)
    torch.manual_seed(0)
    return model


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by role and shape, stacked in order; for b, whose order may differ, the sum of squares."""
    stacks: dict[str, list[Tensor]] = {}
    squares = torch.zeros((), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        role = _role(name, parameter)
        if role == "b":
            squares += parameter.grad.double().square().sum().cpu()
        else:
            stacks.setdefault(f"gradients of {role}, {tuple(parameter.shape)}", []).append(parameter.grad)
    return {"squares of the gradients of b": squares} | {key: torch.stack(stack) for key, stack in stacks.items()}
