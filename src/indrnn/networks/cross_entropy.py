"""Cross-entropy of a linear layer's logits, computed in pieces: the full logits are never in memory.

Shapes: features (M, F), weight (C, F), bias (C,), targets (M,).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.reference import accumulation_dtype

Reduction = Literal["mean", "sum"]
IGNORED = -100
"""Target that does not count, as in torch."""
PIECE = 2**22
"""Logits of a piece: 16 MiB in float32, and as much for their softmax. Smaller ones make the products slower."""


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """F.cross_entropy(F.linear(features, weight, bias), targets, reduction=reduction), a few rows at a time.

    If a gradient is needed, it is computed together with the loss, so that memory holds `PIECE` logits at a time. Under
    autocast, products are in its type, softmax and sums in float32. A second derivative recomputes the full logits.
    Transformations of torch.func and forward-mode differentiation are not supported. Rows whose target is −100 do not
    count.
    """
    device, inputs = features.device.type, (features, weight, bias)
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
    differentiated = torch.is_grad_enabled() and any(input.requires_grad for input in inputs)
    return _InPieces.apply(*inputs, targets, reduction, dtype, differentiated)  # type: ignore[no-any-return]


class _InPieces(torch.autograd.Function):
    """The gradients for an incoming gradient of 1 are results of the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *options: Any) -> Tensor:
        reduction, dtype, differentiated = options
        sums = accumulation_dtype(dtype)
        counts = targets != IGNORED
        classes = torch.where(counts, targets, 0).unsqueeze(1)
        mask = counts.to(sums).unsqueeze(1)
        # Of the whole sum, at the end: a probability divided by thousands of targets is no number of half precision
        factor = 1.0 if reduction == "sum" else 1 / counts.sum().to(sums)
        losses = features.new_empty(len(features), 1, dtype=sums)
        gradients: list[Tensor] = []  # of features, weight and bias
        if differentiated:
            gradients = [torch.zeros_like(input, dtype=sums) for input in (features, weight, bias)]
        rows = max(1, PIECE // len(weight))
        with torch.autocast(features.device.type, enabled=False):
            w, b = weight.to(dtype), bias.to(dtype)
            for start in range(0, len(features), rows):
                piece = slice(start, start + rows)
                x, at = features[piece].to(dtype), classes[piece]
                log_p = F.linear(x, w, b).log_softmax(1, dtype=sums)
                losses[piece] = -log_p.gather(1, at)
                if not differentiated:
                    continue
                grad_x, grad_w, grad_b = gradients
                # The gradient of a row's logits is softmax − one-hot
                p = log_p.exp_().scatter_add_(1, at, log_p.new_full((), -1).expand_as(at)).mul_(mask[piece])
                grad_b += p.sum(0)
                p = p.to(dtype)
                grad_x[piece] = p @ w
                grad_w.addmm_(p.t(), x) if dtype == sums else grad_w.add_(p.t() @ x)
        for gradient in gradients:
            gradient.mul_(factor)
        ctx.reduction, ctx.dtype = reduction, dtype
        ctx.save_for_backward(features, weight, bias, targets, *gradients)
        return (losses * mask).sum() * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, targets, *gradients = ctx.saved_tensors
        inputs, none = (features, weight, bias), (None,) * 4
        if not torch.is_grad_enabled():
            return *((grad * g).to(input.dtype) for g, input in zip(gradients, inputs, strict=True)), *none
        # To be differentiated again: through torch's own functions, on the whole
        features, weight, bias = (input.to(ctx.dtype) for input in inputs)
        logits = F.linear(features, weight, bias).to(accumulation_dtype(ctx.dtype))
        loss = F.cross_entropy(logits, targets, reduction=ctx.reduction)
        needed = ctx.needs_input_grad[:3]
        differentiable = [input for input, need in zip(inputs, needed, strict=True) if need]
        again = iter(torch.autograd.grad(loss, differentiable, grad, create_graph=True))
        return *(next(again) if need else None for need in needed), *none
