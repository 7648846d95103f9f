"""Detection of compilers, modes, transformations and profilers, which must see the registered op."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._device import DeviceContext


def is_watched() -> bool:
    """Whether a compiler, a torch.func transformation, a mode, forward-mode AD, a profiler or a trace is active."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return True
    if torch.autograd.forward_ad._current_level >= 0 or torch._C._autograd._profiler_enabled():
        return True
    return torch._C._get_tracing_state() is not None


def is_transformed() -> bool:
    """Whether a torch.func transformation or forward-mode AD is active, outside a compiler."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def keeps_results() -> bool:
    """Whether a mode for torch functions is active, which may keep F.linear's result; a default device does not."""
    if not torch._C._len_torch_function_stack():
        return False
    return any(not isinstance(mode, DeviceContext) for mode in torch.overrides._get_current_function_mode_stack())


def are_plain(*tensors: Tensor | None) -> bool:
    """Whether all that are given are tensors and parameters of torch's own, on a CPU or a GPU."""
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
        if not (tensor.is_cpu or tensor.is_cuda):
            return False
    return True


def are_batched(*gradients: Tensor | None) -> bool:
    """Whether any holds a batch of gradients, as in autograd.grad(is_grads_batched=True)."""
    return any(g is not None and torch._C._functorch.is_legacy_batchedtensor(g) for g in gradients)
