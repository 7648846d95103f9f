"""Optimisers: that of the options, and Muon."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_fraction, check_not_negative
from ..layers import parameter_groups
from ..layers.bound import recurrent_weights
from .options import Training
from .parallel import Processes


def make_optimizer(model: nn.Module, options: Training, fused: bool) -> torch.optim.Optimizer:
    """The optimiser that the options name; a fused one, see `may_fuse`, updates all weights in one pass."""
    if options.optimizer == "muon":
        return Muon(model, options.lr, options.weight_decay)
    groups = parameter_groups(model, options.weight_decay)
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=fused)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=options.lr, fused=fused)


def may_fuse(model: nn.Module, options: Training, group: Processes) -> bool:
    """Whether to use a fused optimiser: for real weights on CPUs and NVIDIA GPUs; not for muon or sharded weights."""
    if options.optimizer == "muon" or (options.distributed == "fsdp" and group.count > 1):
        return False
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in trained)


# Quintic p(s) = a s + b s³ + c s⁵ of Newton and Schulz, whose fifth iterate takes singular values from about 0.003 to 1
# into 0.68 to 1.13: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
_A, _B, _C, _ITERATIONS = 3.4445, -4.7750, 2.0315, 5


class Muon(torch.optim.Optimizer):
    r"""Muon for weight matrices, AdamW for all else.

        M_t = μ M_{t−1} + (1 − μ) G_t
        W_t = (1 − η λ) W_{t−1} − 0.2 η √max(rows, columns) · orthogonal(μ M_t + (1 − μ) G_t)

    G is the gradient of a weight matrix W, and orthogonal(USVᵀ) ≈ UVᵀ, so that an update has the same size in all
    directions. The factor makes it as large as one of Adam, so that learning rates carry over. Matrices are parameters
    of two or more dimensions (a convolution kernel as outputs × all else), with at least two rows and columns, that are
    neither recurrent weights nor embeddings. All other parameters are updated by AdamW: embeddings
    and weights of one row or column with weight decay; recurrent weights, biases and norms without.

    `torch.optim.Muon` is for matrices only, and orthogonalises them in bfloat16, which is slow or crashes on some CPUs;
    here that is done in float32, or in the parameter's own type if that is wider.

    Args:
        module: module whose parameters are optimised.
        lr: learning rate η.
        weight_decay: weight decay λ, decoupled from the gradient.
        momentum: momentum μ.
        betas: betas of AdamW.
        eps: eps of AdamW.

    Example:
        optimizer = indrnn.training.Muon(model, lr=2e-3)
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float = 2e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        for name, value in {"momentum": momentum, "betas[0]": betas[0], "betas[1]": betas[1]}.items():
            check_fraction(name, value)
        check_not_negative("lr", lr)
        check_not_negative("eps", eps)
        complex_ones = [name for name, parameter in module.named_parameters() if parameter.is_complex()]
        if complex_ones:
            raise TypeError(f"module must have real parameters, got complex ones: {', '.join(complex_ones)}")
        tables = (nn.Embedding, nn.EmbeddingBag)
        not_matrices = {id(layer.weight) for layer in module.modules() if isinstance(layer, tables)}
        not_matrices |= {id(u) for u in recurrent_weights(module)}
        groups = []
        for group in parameter_groups(module, weight_decay):  # with the matrices of each in a group of their own
            parts: dict[bool, list[Tensor]] = {True: [], False: []}
            for p in group["params"]:
                parts[id(p) not in not_matrices and min(_as_matrix(p).shape) > 1].append(p)
            groups += [{**group, "params": part, "matrices": kind} for kind, part in parts.items() if part]
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": 0.0, "matrices": False}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            update = _update_matrix if group["matrices"] else _update_by_adam
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise RuntimeError("Muon does not take sparse gradients: use an Embedding with sparse=False")
                update(parameter, parameter.grad, self.state[parameter], group)
        return loss


def _as_matrix(value: Tensor) -> Tensor:
    return value.flatten(1) if value.dim() > 1 else value.reshape(1, -1)


def _update_matrix(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    mean = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
    direction = _as_matrix(gradient.lerp(mean, group["momentum"]))
    size = 0.2 * group["lr"] * math.sqrt(max(direction.shape))
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.add_(orthogonal(direction).view_as(parameter).to(parameter.dtype), alpha=-size)


def orthogonal(matrix: Tensor) -> Tensor:
    """Approximate UVᵀ of a matrix USVᵀ, by bringing its singular values near 1."""
    x: Tensor = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x  # the smaller of both squares
    x = x / (torch.linalg.matrix_norm(x) + torch.finfo(x.dtype).tiny)
    for _ in range(_ITERATIONS):
        square = x @ x.t()
        x = _A * x + torch.addmm(square, square, square, beta=_B, alpha=_C) @ x
    return (x.t() if tall else x).contiguous()


def _update_by_adam(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Update by AdamW; torch's rounds otherwise, and the kept runs were trained by this one."""
    if not state:
        state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
    state["step"] += 1
    first, second = group["betas"]
    mean = state["exp_avg"].lerp_(gradient, 1 - first)
    square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
    deviation = (square / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.addcdiv_(mean, deviation, value=-group["lr"] / (1 - first ** state["step"]))
