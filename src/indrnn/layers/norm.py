"""Batch norm over sequences: `SequenceBatchNorm`, one set of statistics, and `StepBatchNorm`, one for each time step.

Shapes: x (T, B, ..., N); lengths (B,); resets (T, B); position (B,). Training always uses the batch's
statistics, evaluation the running ones. Steps past a sequence's end never enter a statistic, and give zeros.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from ..checks import check_choice, check_count
from ..ops.distributed.time import TimeSlice, check_whole
from ..ops.reference import accumulation_dtype
from ..ops.watched import is_watched
from .options import Rows
from .padding import per_step, valid_steps, without_padding


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
        eps: float,
        momentum: float | None,
        affine: bool,
        synchronised: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
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
        if not self.training or torch.compiler.is_compiling():
            return
        if self._over_several_processes or time_slice is not None:
            return
        if numbers == 1 and x.numel() > 0:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.size()}")

    @property
    def _over_several_processes(self) -> bool:
        return self.synchronised and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

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
        if not self.synchronised or not dist.is_available() or not dist.is_initialized():
            return value
        return _SumOverProcesses.apply(value)  # type: ignore[no-any-return]

    def _normalise(
        self,
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        valid: Tensor | None,
        dtype: torch.dtype,
        overwrite: bool = False,
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
        shape = ", ".join(str(size) for size in reversed(self.running_mean.shape))
        return f"{shape}, eps={self.eps}, momentum={self.momentum}" + (
            ", synchronised=True" if self.synchronised else ""
        )


class SequenceBatchNorm(_BatchNorm):
    """Batch norm whose statistics are over batch and time together: for tasks that see the whole sequence.

    Like `torch.nn.BatchNorm1d` except for the shape, (T, B, ..., N), and `lengths`. It has the same parameters, buffers
    and methods, so that utilities for torch's (`torch.optim.swa_utils.update_bn`) work with it.

    Args:
        num_features: N, the last dimension of the input.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for the mean over all batches.
        affine: whether there is a scale and a shift.
        synchronised: take the statistics over all processes of the default process group.
        device: where parameters and statistics are made.
        dtype: their type.
    """

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
        super().__init__(num_features, eps, momentum, affine, synchronised, device, dtype)

    def forward(self, x: Tensor, lengths: Tensor | None = None, time_slice: TimeSlice | None = None) -> Tensor:
        """Normalise x (T, B, ..., N), of which this process may hold a slice; steps past `lengths` give zeros."""
        return self.run(x, lengths, time_slice)

    def run(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        time_slice: TimeSlice | None = None,
        *,
        overwrite: bool = False,
    ) -> Tensor:
        """As `forward`; with `overwrite`, in evaluation without gradients, the result may take x's place in memory."""
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
        if lengths is not None and self.training and lengths.device.type == "cpu" and _can_be_read(lengths):
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
    for each step, (steps, N), and `num_batches_tracked` a number for each row. The row of a step is:

    - `rows="window"`: the step within the training window, as in the paper's code. In evaluation it is the position in
      the stream modulo `steps`, so that a stream in pieces gives the same results as in one call. Resets have no
      effect. In training, steps beyond `steps` share the last row.
    - `rows="document"`: the step within the document, which begins at a reset, in training as in evaluation. Steps
      beyond `steps` share the last row.

    Args:
        num_features: N, the last dimension of the input.
        steps: rows of the running statistics: the window's length, or the number of positions told apart.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for the mean over all batches.
        affine: whether there is a scale and a shift.
        rows: "window" or "document".
        synchronised: take the statistics over all processes of the default process group.
        device: where parameters and statistics are made.
        dtype: their type.
    """

    def __init__(
        self,
        num_features: int,
        steps: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        *,
        rows: Rows = "window",
        synchronised: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_count("steps", steps)
        check_choice("rows", rows, ("window", "document"))
        super().__init__(num_features, eps, momentum, affine, synchronised, device, dtype)
        self.steps, self.rows = steps, rows
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            buffer = getattr(self, name)
            setattr(self, name, buffer.expand(steps, *buffer.shape).clone())

    def forward(
        self, x: Tensor, position: Tensor | None = None, lengths: Tensor | None = None, resets: Tensor | None = None
    ) -> Tensor:
        """Normalise x (T, B, ..., N).

        Args:
            x: the sequence.
            position: (B,), how many steps each row has seen before this call, of its stream or document; 0 if None.
            lengths: (B,), the valid steps of each row.
            resets: (T, B), bool, the first steps of documents.
        """
        self._check(x, math.prod(x.shape[1:-1]))
        dtype, values = x.dtype, without_padding(x, lengths).to(accumulation_dtype(x.dtype))
        valid = valid_steps(x, lengths)
        if not self.training:
            rows = self._rows(x, position, resets)
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
            self._update(mean.detach(), var.detach(), count.expand(x.shape[0]), self._rows(x, position, resets), valid)
        shape = (x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
        return self._normalise(values, mean.view(shape), var.view(shape), valid, dtype)

    def _rows(self, x: Tensor, position: Tensor | None, resets: Tensor | None) -> Tensor:
        """The row of each step, (T, B), or (T, 1) if it is the same for the whole batch."""
        if self.rows == "document":
            return positions(x, position, resets).clamp_max(self.steps - 1)
        step = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
        if self.training:
            return step.clamp_max(self.steps - 1)
        return (step if position is None else step + position) % self.steps

    def _update(self, mean: Tensor, var: Tensor, count: Tensor, rows: Tensor, valid: Tensor | None) -> None:
        """Update the rows that occur in each step with its statistics, in the order of time."""
        T, R = rows.shape[0], self.steps
        if T == 0:
            return
        step = torch.arange(T, device=rows.device)
        if self.rows == "window":
            row, new = rows.squeeze(1), count >= 2
        else:
            # Each pair of row and step counts once, however many samples have it: sorted, others are repeats.
            pairs = rows * T + step.unsqueeze(1)
            if valid is not None:
                pairs = torch.where(valid, pairs, R * T)
            pairs = self._of_all_processes(pairs).sort().values
            row, step = (pairs // T).clamp_max(R - 1), pairs % T
            repeated = torch.cat([pairs.new_zeros(1, dtype=torch.bool), pairs[1:] == pairs[:-1]])
            new = ~repeated & (pairs < R * T) & (count >= 2)[step]
        # One after the other, a row's updates are a sum: each one's share is reduced by each later one.
        counted = torch.zeros(R, dtype=torch.int64, device=row.device).index_add_(0, row, new.long())
        rank = new.cumsum(0) - (counted.cumsum(0) - counted)[row]
        seen, own, later = self.num_batches_tracked, new.to(mean.dtype), (counted[row] - rank).to(mean.dtype)
        if self.momentum is None:
            total = (seen + counted).clamp_min(1).to(mean.dtype)
            share, kept = own / total[row], torch.where(counted > 0, seen / total, 1.0)
        else:
            share = own * self.momentum * (1 - self.momentum) ** later
            kept = (1 - self.momentum) ** counted.to(mean.dtype)
        kept, share = kept.unsqueeze(-1), share.unsqueeze(-1)
        unbiased = var * (count / (count - 1).clamp_min(1)).unsqueeze(-1)
        for buffer, values in ((self.running_mean, mean), (self.running_var, unbiased)):
            buffer.copy_((buffer * kept).index_add_(0, row, share * values[step]))
        seen.add_(counted)

    def _of_all_processes(self, pairs: Tensor) -> Tensor:
        """The pairs (T, B) of every process, flat; those of a process with fewer samples are padded."""
        if not self._over_several_processes:
            return pairs.flatten()
        batch = torch.tensor(pairs.shape[1], device=pairs.device)
        dist.all_reduce(batch, dist.ReduceOp.MAX)
        own = pairs.new_full((pairs.shape[0], int(batch)), self.steps * pairs.shape[0])
        own[:, : pairs.shape[1]] = pairs
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        return torch.cat(every, dim=1).flatten()


def positions(x: Tensor, position: Tensor | None, resets: Tensor | None, steps: int | None = None) -> Tensor:
    """(T, B), how many steps of its document each row has seen before each step; T is `steps`, or those of x."""
    T, B = x.shape[0] if steps is None else steps, x.shape[1]
    step = torch.arange(T, device=x.device).unsqueeze(1).expand(T, B)
    start = step if position is None else step + position
    if resets is None:
        return start
    # The step of the last reset so far, or -1: from there on, steps are counted anew.
    last = torch.where(resets, step, -1).cummax(dim=0).values
    return torch.where(last >= 0, step - last, start)


def next_position(
    x: Tensor,
    position: Tensor | None,
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
    time_slice: TimeSlice | None = None,
) -> Tensor:
    """(B,), the position after the sequence, for the next call."""
    T, B = x.shape[0] if time_slice is None else time_slice.total, x.shape[1]
    before = torch.zeros(B, dtype=torch.int64, device=x.device) if position is None else position
    if T == 0:
        return before
    after = positions(x, position, resets, T) + 1
    if lengths is None:
        return after[-1]
    last = after.gather(0, (lengths.long() - 1).clamp_min(0).unsqueeze(0)).squeeze(0)
    return torch.where(lengths > 0, last, before)


def _can_be_read(lengths: Tensor) -> bool:
    """Whether its values may be read: not while they are traced into a graph."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
