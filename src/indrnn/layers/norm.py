"""Batch norm over sequences: `SequenceBatchNorm`, one set of statistics, and `StepBatchNorm`, one for each time step.

Shapes: x (T, B, ..., N); lengths (B,); position (B,). Training always uses the batch's statistics, evaluation the
running ones, which `gather_statistics` recomputes. Steps past a sequence's end never enter one, and give zeros.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.utils._pytree import tree_map

from ..checks import check_count
from ..ops.reference import accumulation_dtype
from ..ops.split import TimeSlice, check_whole
from ..ops.watched import is_watched
from .masks import per_step, valid_steps, without_padding


class _SumOverProcesses(torch.autograd.Function):
    """The sum over the default process group; its gradient is summed over the group too."""

    @staticmethod
    def forward(value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _SumOverProcesses.apply(grad)  # type: ignore[no-any-return]


class _BatchNorm(TorchBatchNorm):
    """Base of the two norms: torch's parameters, buffers and methods, and the normalisation."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        *,
        synchronised: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_count("num_features", num_features)
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps!r}")
        if momentum is not None and not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie in [0, 1] or be None, got {momentum!r}")
        super().__init__(num_features, eps, momentum, affine, device=device, dtype=dtype)
        self.synchronised = synchronised

    def _check(self, x: Tensor, numbers: int, time_slice: TimeSlice | None = None) -> None:
        """Raise for a wrong shape, and in training if a statistic would be of a single number."""
        if x.dim() < 3 or x.shape[-1] != self.num_features:
            raise ValueError(f"x must have the shape (T, B, ..., {self.num_features}), got {tuple(x.shape)}")
        if not self.training or torch.compiler.is_compiling() or time_slice is not None:
            return
        alone = not self._in_group or dist.get_world_size() == 1
        if alone and numbers == 1 and x.numel() > 0:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.size()}")

    @property
    def _in_group(self) -> bool:
        return self.synchronised and dist.is_available() and dist.is_initialized()

    def _statistics(self, x: Tensor, valid: Tensor | None, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, biased variance and count of numbers over `dims` of x, which has zeros in its padding."""
        if valid is None:
            count = torch.full((), float(math.prod([x.shape[d] for d in dims])), device=x.device, dtype=x.dtype)
        else:
            between = math.prod([x.shape[d] for d in dims if d > 1])
            count = between * valid.sum(dim=[d for d in dims if d < 2], dtype=x.dtype)
        count = self._over_processes(count)
        safe = count.clamp_min(1).unsqueeze(-1) if count.dim() else count.clamp_min(1)
        mean = self._over_processes(x.sum(dim=dims)) / safe
        away = x - (mean if len(dims) == x.dim() - 1 else mean.view(-1, *[1] * (x.dim() - 2), x.shape[-1]))
        if valid is not None:
            away = torch.where(per_step(valid, x), away, 0.0)
        var = self._over_processes((away * away).sum(dim=dims)) / safe
        return mean, var, count

    def _over_processes(self, value: Tensor) -> Tensor:
        return _SumOverProcesses.apply(value) if self._in_group else value

    def _normalise(
        self, x: Tensor, mean: Tensor, var: Tensor, valid: Tensor | None, dtype: torch.dtype, overwrite: bool = False
    ) -> Tensor:
        scale = torch.rsqrt(var + self.eps)
        scale = scale if self.weight is None else scale * self.weight.to(x.dtype)
        shift = None if self.bias is None else self.bias.to(x.dtype)
        if torch.is_grad_enabled() or is_watched():
            y = (x - mean) * scale
            y = y if shift is None else y + shift
        else:  # one tensor where there would be three at a time, or none
            y = (x.sub_(mean) if overwrite else x - mean).mul_(scale)
            y = y if shift is None else y.add_(shift)
        if valid is not None:
            y = torch.where(per_step(valid, x), y, 0.0)
        return y.to(dtype)

    def extra_repr(self) -> str:
        """Sizes and settings."""
        shape = ", ".join(map(str, reversed(self.running_mean.shape)))
        synchronised = ", synchronised=True" if self.synchronised else ""
        return f"{shape}, eps={self.eps}, momentum={self.momentum}{synchronised}"


class SequenceBatchNorm(_BatchNorm):
    """Batch norm whose statistics are over batch and time together: for tasks that see the whole sequence.

    Like `torch.nn.BatchNorm1d` except for the shape, (T, B, ..., N), and `lengths`. It has the same parameters, buffers
    and methods, so that utilities for torch's (`torch.optim.swa_utils.update_bn`) work with it.

    Args:
        num_features: N, the last dimension of the input.
        eps, momentum, affine, device, dtype: as for `torch.nn.BatchNorm1d`.
        synchronised: take the statistics over all processes of the default process group.
    """

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, time_slice: TimeSlice | None = None, *, overwrite: bool = False
    ) -> Tensor:
        """Normalise x (T, B, ..., N), of which this process may hold a slice; steps past `lengths` give zeros.

        With `overwrite`, in evaluation without gradients, the result may take x's place in memory.
        """
        self.check(x, lengths, time_slice)
        dtype, values = x.dtype, without_padding(x, lengths, time_slice).to(accumulation_dtype(x.dtype))
        valid = valid_steps(x, lengths, time_slice)
        if not self.training:
            mean, var = self.running_mean.to(values.dtype), self.running_var.to(values.dtype)
            return self._normalise(values, mean, var, valid, dtype, overwrite)
        if not self.synchronised:
            check_whole("batch norm over the sequence with synchronised=False, in training,", time_slice)
        mean, var, count = self._statistics(values, valid, tuple(range(x.dim() - 1)))
        self.update(mean, var, count)
        return self._normalise(values, mean, var, valid, dtype)

    def check(self, x: Tensor, lengths: Tensor | None, time_slice: TimeSlice | None = None) -> None:
        """Raise if x cannot be normalised, such as a single number in training, as torch's norms do."""
        numbers = math.prod(x.shape[:-1])
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if lengths is not None and self.training and lengths.device.type == "cpu" and not traced:
            numbers = int(lengths.sum()) * math.prod(x.shape[2:-1])  # on a GPU the host would wait for it
        self._check(x, numbers, time_slice)

    def update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Update the running statistics with a batch's mean and biased variance, of `count` numbers each.

        Fewer than two numbers have no variance, and change nothing.
        """
        mean, var = mean.detach(), var.detach()  # and not no_grad, a region that torch.export cannot load again
        counts = count >= 2
        self.num_batches_tracked.add_(counts)
        share = counts.to(self.running_mean.dtype)
        share = share * self.momentum if self.momentum is not None else share / self.num_batches_tracked.clamp_min(1)
        unbiased = var * (count / (count - 1).clamp_min(1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class StepBatchNorm(_BatchNorm):
    """Batch norm with separate statistics per time step, for tasks that may not see the future; one scale and shift.

    In training a step is normalised with the statistics of that step over the batch. The running statistics have a row
    for each step of the training window, (steps, N), and `num_batches_tracked` a number for each row; steps beyond
    `steps` share the last row. In evaluation the row is the position in the stream modulo `steps`, as in the paper's
    code, so that a stream in pieces gives the same results as in one call.

    Args:
        steps: rows of the running statistics, the window's length; all others are as for `SequenceBatchNorm`.
    """

    def __init__(
        self,
        num_features: int,
        steps: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        *,
        synchronised: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_count("steps", steps)
        super().__init__(num_features, eps, momentum, affine, synchronised=synchronised, device=device, dtype=dtype)
        self.steps = steps
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            buffer = getattr(self, name)
            setattr(self, name, buffer.expand(steps, *buffer.shape).clone())

    def forward(self, x: Tensor, position: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Normalise x (T, B, ..., N), given the steps of each sample's stream before it and its valid steps, (B,)."""
        self._check(x, math.prod(x.shape[1:-1]))
        dtype, values = x.dtype, without_padding(x, lengths).to(accumulation_dtype(x.dtype))
        valid = valid_steps(x, lengths)
        if not self.training:
            step = torch.arange(x.shape[0], device=x.device).unsqueeze(1)  # (T, 1), or (T, B) with positions
            rows = (step if position is None else step + position) % self.steps
            between = [1] * (x.dim() - 3)
            mean, var = (
                buffer[rows].view(*rows.shape, *between, self.num_features).to(values.dtype)
                for buffer in (self.running_mean, self.running_var)
            )
            return self._normalise(values, mean, var, valid, dtype)
        mean, var, count = self._statistics(values, valid, tuple(range(1, x.dim() - 1)))  # (T, N), (T, N), () or (T,)
        # In half precision the products of an update would lose most digits; meta has no autocast.
        full = contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
        with full:
            self._update(mean.detach(), var.detach(), count.expand(x.shape[0]))
        shape = (x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
        return self._normalise(values, mean.view(shape), var.view(shape), valid, dtype)

    def _update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Update each step's row with its statistics, in the order of time."""
        T, R = mean.shape[0], self.steps
        row, new = torch.arange(T, device=mean.device).clamp_max(R - 1), count >= 2
        # One after the other, a row's updates are a sum: each one's share is reduced by each later one.
        counted = torch.zeros(R, dtype=torch.int64, device=row.device).index_add_(0, row, new.long())
        rank = new.cumsum(0) - (counted.cumsum(0) - counted)[row]
        seen, own, later = self.num_batches_tracked, new.to(mean.dtype), (counted[row] - rank).to(mean.dtype)
        if self.momentum is None:
            total = (seen + counted).clamp_min(1).to(mean.dtype)
            share, decay = own / total[row], torch.where(counted > 0, seen / total, 1.0)
        else:
            share = own * self.momentum * (1 - self.momentum) ** later
            decay = (1 - self.momentum) ** counted.to(mean.dtype)
        decay, share = decay.unsqueeze(-1), share.unsqueeze(-1)
        unbiased = var * (count / (count - 1).clamp_min(1)).unsqueeze(-1)
        for buffer, values in ((self.running_mean, mean), (self.running_var, unbiased)):
            buffer.copy_((buffer * decay).index_add_(0, row, share * values))
        seen.add_(counted)


def next_position(
    x: Tensor, position: Tensor | None, lengths: Tensor | None, resets: Tensor | None, time_slice: TimeSlice | None
) -> Tensor:
    """(B,), the position after the sequence, for the next call: steps since the last reset, if any."""
    T, B = x.shape[0] if time_slice is None else time_slice.total, x.shape[1]
    before = torch.zeros(B, dtype=torch.int64, device=x.device) if position is None else position
    end = before.new_full((B,), T) if lengths is None else lengths.long()
    if resets is None or T == 0:
        return before + end
    step = torch.arange(T, device=x.device).unsqueeze(1)
    last = torch.where(resets & (step < end), step, -1).amax(dim=0)  # -1 without a reset
    return torch.where(last >= 0, end - last, before + end)


Call = Callable[[nn.Module, Any], Any]


def gather_statistics(model: nn.Module, batches: Iterable[Any], *, state: Any = None, call: Call | None = None) -> None:
    """Recompute the running statistics of every batch norm in `model`, as means over these batches.

    While weights change, running statistics lag behind: over hundreds of steps and several layers the difference adds
    up, and an evaluation during training fails although the weights are good. Twenty training batches before it solve
    this. Nothing else changes: dropout is off for the pass, and the modes, momenta, counts of batches, other buffers
    and random generators are restored. After an error, so are the statistics.

    Args:
        model: any module; one without batch norm is not changed.
        batches: each a tensor, the model's input; a tuple or list, whose first element is the input; or a mapping of
            the model's arguments by name. In the form used for training.
        state: for a model that carries a state, its `state` for the first batch, passed as a copy; the state returned
            for each batch is passed with the next.
        call: runs the model on a batch, `call(model, batch)`, if it is called in another way.

    Example:
        indrnn.gather_statistics(model, (x for x, _ in itertools.islice(loader, 20)))
    """
    norms = [module for module in model.modules() if is_batch_norm(module)]
    if not norms:
        return
    devices = sorted({buffer.device.index for buffer in model.buffers() if buffer.device.type == "cuda"})
    state = tree_map(lambda value: value.detach().clone() if isinstance(value, Tensor) else value, state)
    seen = False
    with torch.no_grad(), torch.random.fork_rng(devices), contextlib.ExitStack() as restored:
        for module in model.modules():
            restored.callback(setattr, module, "training", module.training)
        for buffer in model.buffers():
            restored.callback(buffer.copy_, buffer.clone())
        model.eval()  # no dropout
        for norm in norms:
            restored.callback(setattr, norm, "momentum", norm.momentum)
            norm.train()
            norm.momentum = None
            norm.reset_running_stats()
        for batch in batches:
            state, seen = _run(model, batch, state, call), True
        if not seen:
            raise ValueError("batches must hold at least one batch, got none")
        statistics = [getattr(norm, name) for norm in norms for name in ("running_mean", "running_var")]
        gathered = [(buffer, buffer.clone()) for buffer in statistics if buffer is not None]
    for buffer, values in gathered:
        buffer.copy_(values)


def is_batch_norm(module: nn.Module) -> TypeGuard[TorchBatchNorm]:
    """Whether a module is a batch norm with running statistics."""
    return isinstance(module, TorchBatchNorm) and module.track_running_stats


def _run(model: nn.Module, batch: Any, state: Any, call: Call | None) -> Any:
    """Run one pass; return the state for the next."""
    if call is not None:
        call(model, batch)
        return state
    arguments = dict(batch) if isinstance(batch, Mapping) else {}
    first = () if arguments else (batch[0] if isinstance(batch, (tuple, list)) else batch,)
    if state is None:
        model(*first, **arguments)
        return None
    result = model(*first, **{"state": state, **arguments})
    if not (isinstance(result, tuple) and len(result) == 2):
        got = type(result).__name__
        raise TypeError(f"model must return its output and its state where a state is given, got {got}")
    return result[1]
