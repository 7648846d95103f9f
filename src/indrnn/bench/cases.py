"""The cases of `indrnn bench layer --against` and `network --against`: one function makes each kind of case.

`worker.py` loads this file by its path into the process of either version, so it uses only names of indrnn that both
have. If a version changes how something is made or called, this file is the place to adapt: `_options` (how a
network is given its settings), `_dense_dropout`, `_classifier`, `_first`, and `_role` (which parameters are recurrent
weights) look at what the version has.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import indrnn as installed

indrnn: Any = installed  # a name that only one of the versions has is no error of types
CLASSES = 10


class Made(NamedTuple):
    """A case that is ready to run."""

    run: Callable[[], object]
    """What is timed, and of which the peak of memory is taken."""
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
) -> Made:
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
        found = {"output": run().detach()} | gradients(model)
        return found | ({"gradient of the input": x.grad} if x.grad is not None else {})

    return Made(run, results)


def op(device: str, *, T: int, B: int, N: int, dtype: str = "float32", backward: bool = True) -> Made:
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

    return Made(run, results)


def stream(device: str, *, N: int, cell: bool) -> Made:
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

    return Made(run, lambda: {f"step {i}": run().clone() for i in range(5)})


def training(device: str, *, network: str, T: int, B: int, dropout: bool = False) -> Made:
    """A training step: forward, loss, backward, clipping, Adam and the constraint."""
    model, x, target = _pixels(device, network, T, B, dropout)
    optimizer = torch.optim.Adam(indrnn.parameter_groups(model, 1e-4), lr=2e-4)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(_first(model(x)), target).backward()
        nn.utils.clip_grad_value_(model.parameters(), 10.0)
        optimizer.step()
        indrnn.constrain_(model)

    def results() -> dict[str, Tensor]:
        """Results without dropout, whose masks a version may draw in another order."""
        plain = _pixels(device, network, T, B, dropout=False)[0]
        logits = _first(plain(x))
        F.cross_entropy(logits, target).backward()
        return {"logits": logits.detach()} | gradients(plain)

    return Made(run, results)


def evaluation(device: str, *, network: str, T: int, B: int) -> Made:
    """An evaluation pass: forward, with the norms' running statistics, without gradients."""
    model, x, _ = _pixels(device, network, T, B, dropout=False)
    with torch.no_grad():
        for _ in range(10):  # statistics as far from those of new norms as training has them
            model(x)
    model.eval()

    @torch.inference_mode()
    def run() -> Tensor:
        return _first(model(x))

    return Made(run, lambda: {"logits": run().clone()})


def _pixels(device: str, network: str, T: int, B: int, dropout: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """A network of the pixel-MNIST recipes with the same weights in every version, and a batch."""
    model = with_same_weights(_classifier(NETWORKS[network](T, dropout)), long_memory=T).to(device)
    return model, torch.rand(T, B, 1).to(device), torch.randint(CLASSES, (B,)).to(device)


def _plain(T: int, dropout: bool) -> Any:
    kind = indrnn.PlainIndRNN
    return kind(1, 128, 6, **_options(kind, T), dropout=0.1 if dropout else 0.0)


def _residual(T: int, dropout: bool) -> Any:
    kind = indrnn.ResidualIndRNN
    return kind(1, 128, 5, **_options(kind, T), dropout=0.1 if dropout else 0.0)


def _dense(T: int, dropout: bool) -> Any:
    kind = indrnn.DenseIndRNN
    return kind(1, 16, **_options(kind, T), **_dense_dropout(0.2, 0.1, 0.2, 0.1) if dropout else {})


NETWORKS: dict[str, Callable[[int, bool], Any]] = {"plain": _plain, "residual": _residual, "dense": _dense}


def _options(network: type[nn.Module], T: int) -> dict[str, Any]:
    """Settings for a norm after each recurrence and a long memory of T steps, in the form that this version takes."""
    settings = {"sequence_length": T, "long_memory": True}
    if "recurrent" in inspect.signature(network).parameters:
        return {"recurrent": indrnn.Recurrent(norm="after", **settings)}
    return {"norm": "batch", "norm_place": "after", **settings}


def _dense_dropout(*probabilities: float) -> dict[str, Any]:
    """Dropout of a dense network: first layer, bottlenecks, dense layers, transitions."""
    if hasattr(indrnn, "DenseDropout"):
        return {"dropout": indrnn.DenseDropout(*probabilities)}
    names = ("first_dropout", "bottleneck_dropout", "dense_dropout", "transition_dropout")
    return dict(zip(names, probabilities, strict=True))


def _classifier(network: nn.Module) -> Any:
    """The head that classifies the last step."""
    kind = indrnn.SequenceClassifier if hasattr(indrnn, "SequenceClassifier") else indrnn.LastStepClassifier
    return kind(network, CLASSES)


def _first(result: Any) -> Tensor:
    """The logits of logits and state."""
    logits: Tensor = result[0]
    return logits


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
    seen: dict[tuple[str, tuple[int, ...]], int] = {}
    last: Tensor | None = None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            role, shape = _role(name, parameter), tuple(parameter.shape)
            if role == "b":
                continue
            place = seen[role, shape] = seen.get((role, shape), 0) + 1
            torch.manual_seed(1000 * place + sum(shape))
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
    found: dict[str, list[Tensor]] = {}
    squares = torch.zeros((), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        role = _role(name, parameter)
        if role == "b":
            squares += parameter.grad.double().square().sum().cpu()
        else:
            found.setdefault(f"gradients of {role}, {tuple(parameter.shape)}", []).append(parameter.grad)
    return {"squares of the gradients of b": squares} | {key: torch.stack(all_) for key, all_ in found.items()}
