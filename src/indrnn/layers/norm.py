"""Batch norm over sequences: one set of statistics for all steps, or one for each step.

Shapes: x (T, B, ..., N); lengths (B,); resets (T, B); position (B,). In training the statistics are the batch's, in
evaluation the running ones, always. Steps past a sequence's end never enter a statistic, and come out as zeros.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ops import timeline
from ..ops.reference import accumulation_dtype
from .checks import check_size
from .padding import per_step, valid_steps, without_padding


class _SumOverProcesses(torch.autograd.Function):
    """The sum over the default process group; what each process makes of it comes back to all."""

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


class _BatchNorm(nn.Module):
    """What the two forms share: parameters, running statistics of `rows`, and how values are normalised."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        rows: tuple[int, ...],
        eps: float,
        momentum: float,
        affine: bool,
        synchronised: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_size("num_features", num_features)
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps!r}")
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie in [0, 1], got {momentum!r}")
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.synchronised = synchronised
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.ones(num_features, **factory)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features, **factory)) if affine else None
        self.register_buffer("running_mean", torch.zeros(*rows, num_features, **factory))
        self.register_buffer("running_var", torch.ones(*rows, num_features, **factory))

    def reset_parameters(self) -> None:
        """Back to scale 1, shift 0, mean 0 and variance 1."""
        with torch.no_grad():
            self.running_mean.zero_()
            self.running_var.fill_(1)
            for parameter, value in ((self.weight, 1.0), (self.bias, 0.0)):
                if parameter is not None:
                    parameter.fill_(value)

    def _check(self, x: Tensor) -> None:
        if x.dim() < 3 or x.shape[-1] != self.num_features:
            raise ValueError(f"x must have the shape (T, B, ..., {self.num_features}), got {tuple(x.shape)}")

    def _statistics(self, x: Tensor, valid: Tensor | None, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and biased variance over `dims` of x, zeros in its padding, and of how many numbers each is."""
        if valid is None:
            count = torch.full((), float(_product(x.shape[d] for d in dims)), device=x.device, dtype=x.dtype)
        else:
            between = _product(x.shape[d] for d in dims if d > 1)
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

    def _normalise(self, x: Tensor, mean: Tensor, var: Tensor, valid: Tensor | None, dtype: torch.dtype) -> Tensor:
        scale = torch.rsqrt(var + self.eps)
        y = (x - mean) * (scale if self.weight is None else scale * self.weight.to(x.dtype))
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
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

    Args:
        num_features: N, the last dimension of the input.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics.
        affine: whether there is a scale and a shift.
        synchronised: take the statistics over all processes of the default process group.
        device: where parameters and statistics are made.
        dtype: their type.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        synchronised: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, (), eps, momentum, affine, synchronised, device, dtype)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Normalise x (T, B, ..., N); steps past `lengths` give zeros."""
        self._check(x)
        dtype, values = x.dtype, without_padding(x, lengths).to(accumulation_dtype(x.dtype))
        valid = valid_steps(x, lengths)
        if not self.training:
            mean, var = self.running_mean.to(values.dtype), self.running_var.to(values.dtype)
            return self._normalise(values, mean, var, valid, dtype)
        if not self.synchronised:
            timeline().refuse("batch norm over the sequence with synchronised=False, in training,")
        mean, var, count = self._statistics(values, valid, tuple(range(x.dim() - 1)))
        self.update(mean, var, count)
        return self._normalise(values, mean, var, valid, dtype)

    def update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Take a batch's mean and biased variance, of `count` numbers each, into the running statistics.

        Fewer than two numbers have no variance, and change nothing.
        """
        with torch.no_grad():
            momentum = (count >= 2).to(self.running_mean.dtype) * self.momentum
            unbiased = var * (count / (count - 1).clamp_min(1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class StepBatchNorm(_BatchNorm):
    """Batch norm with statistics of each time step's own, for tasks that may not see the future; one scale and shift.

    In training a step is normalised with the statistics of that step over the batch. The running statistics have a row
    for each position in a document, up to `max_steps`; what lies beyond shares the last row. A document's position is
    carried from call to call, and a reset makes it 0.

    Args:
        num_features: N, the last dimension of the input.
        max_steps: rows of the running statistics.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics.
        affine: whether there is a scale and a shift.
        synchronised: take the statistics over all processes of the default process group.
        device: where parameters and statistics are made.
        dtype: their type.
    """

    def __init__(
        self,
        num_features: int,
        max_steps: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        synchronised: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_size("max_steps", max_steps)
        super().__init__(num_features, (max_steps,), eps, momentum, affine, synchronised, device, dtype)

    def forward(
        self, x: Tensor, position: Tensor | None = None, lengths: Tensor | None = None, resets: Tensor | None = None
    ) -> Tensor:
        """Normalise x (T, B, ..., N).

        Args:
            x: the sequence.
            position: (B,), how many steps of its document each row has seen before this call; 0 if None.
            lengths: (B,), the valid steps of each row.
            resets: (T, B), bool, the first steps of documents.
        """
        timeline().refuse("batch norm with statistics of each step's own")
        self._check(x)
        dtype, values = x.dtype, without_padding(x, lengths).to(accumulation_dtype(x.dtype))
        valid = valid_steps(x, lengths)
        rows = positions(x, position, resets).clamp_max(self.running_mean.shape[0] - 1)  # (T, B)
        if not self.training:
            between = [1] * (x.dim() - 3)
            mean, var = (
                buffer[rows].view(*rows.shape, *between, self.num_features).to(values.dtype)
                for buffer in (self.running_mean, self.running_var)
            )
            return self._normalise(values, mean, var, valid, dtype)
        mean, var, count = self._statistics(values, valid, tuple(range(1, x.dim() - 1)))  # (T, N), (T, N), () or (T,)
        self._update(mean, var, count.expand(x.shape[0]), rows, valid)
        shape = (x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
        return self._normalise(values, mean.view(shape), var.view(shape), valid, dtype)

    def _update(self, mean: Tensor, var: Tensor, count: Tensor, rows: Tensor, valid: Tensor | None) -> None:
        """Take each step's statistics into the rows that occur in it, in the order of time."""
        with torch.no_grad(), torch.autocast(mean.device.type, enabled=False):
            R = self.running_mean.shape[0]
            occurs = rows.unsqueeze(-1) == torch.arange(R, device=rows.device)  # (T, B, R)
            if valid is not None:
                occurs = occurs & valid.unsqueeze(-1)
            anywhere = self._over_processes(occurs.any(dim=1).to(mean.dtype)) > 0  # (T, R)
            counts = (anywhere & (count >= 2).unsqueeze(-1)).to(mean.dtype)
            # One after the other, a row's updates are a sum: each step's share is halved (say) by each later one.
            later = counts.flip(0).cumsum(0).flip(0) - counts
            shares = counts * self.momentum * (1 - self.momentum) ** later
            kept = ((1 - self.momentum) ** counts.sum(0)).unsqueeze(-1)  # (R, 1)
            unbiased = var * (count / (count - 1).clamp_min(1)).unsqueeze(-1)
            for buffer, values in ((self.running_mean, mean), (self.running_var, unbiased)):
                buffer.copy_(buffer * kept + shares.t() @ values)


def positions(x: Tensor, position: Tensor | None, resets: Tensor | None) -> Tensor:
    """(T, B), how many steps of its document each row has seen before each step."""
    T, B = timeline().all_steps(x.shape[0]), x.shape[1]
    step = torch.arange(T, device=x.device).unsqueeze(1).expand(T, B)
    start = step if position is None else step + position
    if resets is None:
        return start
    # The step of the last reset so far, or -1: from there on, steps are counted anew.
    last = torch.where(resets, step, -1).cummax(dim=0).values
    return torch.where(last >= 0, step - last, start)


def next_position(
    x: Tensor, position: Tensor | None, lengths: Tensor | None = None, resets: Tensor | None = None
) -> Tensor:
    """(B,), the position after x: what the next call is given."""
    T, B = timeline().all_steps(x.shape[0]), x.shape[1]
    before = torch.zeros(B, dtype=torch.int64, device=x.device) if position is None else position
    if T == 0:
        return before
    after = positions(x, position, resets) + 1
    if lengths is None:
        return after[-1]
    last = after.gather(0, (lengths.long() - 1).clamp_min(0).unsqueeze(0)).squeeze(0)
    return torch.where(lengths > 0, last, before)


def _product(sizes: Any) -> int:
    result = 1
    for size in sizes:
        result = result * size
    return result
