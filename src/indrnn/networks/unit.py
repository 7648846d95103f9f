"""The recurrent unit that every network is built from, and its Weight.

Shapes: x (T, B, inputs), h (B, N), lengths (B,), resets (T, B), position (B,).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _torch_module

from ..checks import check_count, check_probability
from ..layers.bound import RecurrentBound
from ..layers.indrnn import project
from ..layers.masks import dropout_mask, last_steps, shared_dropout, without_padding
from ..layers.norm import SequenceBatchNorm, StepBatchNorm
from ..ops import recurrence, recurrence_, recurrence_norm
from ..ops.split import TimeSlice, check_whole
from ..ops.watched import keeps_results
from .config import Factory, NetworkConfig

Module = TypeVar("Module", bound=nn.Module)


class Weight(nn.Linear):
    """A Weight of the paper's figures: a linear layer from U(±0.304/√inputs), or N(0, std²), with a bias of 0."""

    bias: nn.Parameter | None  # type: ignore[assignment]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        std: float | None = None,
        **factory: Unpack[Factory],
    ) -> None:
        self.std = std
        super().__init__(in_features, out_features, bias, **factory)

    def reset_parameters(self) -> None:
        """Reinitialise the weight; zero the bias."""
        if self.std is None:
            nn.init.kaiming_uniform_(self.weight, a=8)
        else:
            nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """W x_t + b for each step."""
        if self.bias is None and input.dim() == 3:
            return project(input, self.weight)
        return F.linear(input, self.weight, self.bias)


class Steps(NamedTuple):
    """The arguments of a unit beside input and state; see `RecurrentUnit.forward`."""

    lengths: Tensor | None = None
    resets: Tensor | None = None
    position: Tensor | None = None
    time_slice: TimeSlice | None = None


class RecurrentUnit(nn.Module):
    """[Weight →] [norm →] h_t = σ(x_t + b + u ⊙ h_{t−1}) [→ norm] → dropout, with u as `weight_hh` and b as `bias`.

    With `bidirectional` the second half of the neurons goes from the last step to the first.

    Args:
        inputs: features of the input; None for a unit without a Weight and b, whose input has `size` features.
        dropout: probability, with one mask for all time steps.
        last: whether it is the network's last unit, to which `long_memory` applies.
    """

    weight: nn.Module | None
    weight_hh: nn.Parameter
    bias: nn.Parameter | None
    norm: nn.Module | None

    def __init__(
        self,
        inputs: int | None,
        size: int,
        config: NetworkConfig,
        dropout: float = 0.0,
        *,
        last: bool = False,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        check_count("size", size)
        check_probability("dropout", dropout)
        self.size, self.config, self.dropout = size, config, float(dropout)
        self.bound = RecurrentBound(**config.bound_of(last))
        self.weight = None if inputs is None else Weight(inputs, size, bias=False, std=config.weight_std, **factory)
        self.weight_hh = nn.Parameter(torch.empty(size, **factory))
        self.register_parameter("bias", None if inputs is None else nn.Parameter(torch.empty(size, **factory)))
        self.norm = _make_norm(size, config, factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise u; zero the bias. Weight and norm have their own methods."""
        self.bound.init_(self.weight_hh)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        position: Tensor | None = None,
        time_slice: TimeSlice | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run over x (T, B, inputs): features, (T, B, size), and the state after each sequence's last step, (B, size).

        `state` (B, size) is the one before the first step, zeros if None; `position` (B,) says how many steps each row
        has seen before, for a step norm. The others are as for `Network.forward`, with time first.
        """
        if self.training:
            self.bound.watch(lambda: [self.weight_hh])
        norm, config, steps = self.norm, self.config, Steps(lengths, resets, position, time_slice)
        options = {"activation": config.nonlinearity, "lengths": lengths, "resets": resets, "backend": config.backend}
        own = False  # whether x is ours alone, to compute over
        if self.weight is not None:
            own = not torch.compiler.is_compiling() and is_unwatched(self.weight, Weight) and not keeps_results()
            x = self.weight(x)
        fuses = time_slice is None and config.fused and not config.bidirectional
        # One op for recurrence, norm and dropout, which reads the norm's tensors, if nothing watches it
        if fuses and is_unwatched(norm, SequenceBatchNorm) and norm.training and norm.affine and not norm.synchronised:
            return self._fused(x, state, own, options)
        bias: Tensor | None = self.bias
        if config.norm_place == "before" and norm is not None:
            x = x if bias is None else (x + bias).to(x.dtype)
            x, bias, own = self._normalise(x, steps), None, False
        h, h_last = self._recurrence(x, bias, state, own, time_slice, options)
        if config.norm_place == "after" and norm is not None:
            # Evaluation may compute over h, as nothing else uses it
            own = not (torch.compiler.is_compiling() or torch.is_grad_enabled() or keeps_results())
            own = own and not torch._C._is_alias_of(h, h_last)  # type: ignore[attr-defined]
            if own and is_unwatched(norm, SequenceBatchNorm):
                h = norm.forward(h, lengths, time_slice, overwrite=True)
            else:
                h = self._normalise(h, steps)
        return shared_dropout(h, self.dropout, self.training, time_slice), h_last

    def _recurrence(
        self, x: Tensor, bias: Tensor | None, h_0: Tensor | None, own: bool, time_slice: TimeSlice | None, options: Any
    ) -> tuple[Tensor, Tensor]:
        run = recurrence if time_slice is None else time_slice.recurrence
        if not self.config.bidirectional:
            run = recurrence_ if own and time_slice is None else run
            return run(x, self.weight_hh, h_0, bias=bias, **options)
        outputs = []
        for part, reverse in ((slice(0, self.size // 2), False), (slice(self.size // 2, None), True)):
            start = None if h_0 is None else h_0[..., part]
            options |= {"bias": None if bias is None else bias[part], "reverse": reverse}
            if reverse and options["resets"] is not None:
                options["resets"] = last_steps(options["resets"], options["lengths"])
            outputs.append(run(x[..., part], self.weight_hh[part], start, **options))
        (h, last), (h_reverse, last_reverse) = outputs
        return torch.cat([h, h_reverse], dim=-1), torch.cat([last, last_reverse], dim=-1)

    def _fused(self, x: Tensor, h_0: Tensor | None, own: bool, options: Any) -> tuple[Tensor, Tensor]:
        norm, place, lengths = self.norm, self.config.norm_place, options["lengths"]
        assert isinstance(norm, SequenceBatchNorm)
        norm.check(x, lengths)
        weights, mask = (self.weight_hh, norm.weight, norm.bias), dropout_mask(x, self.dropout, self.training)
        options |= {"bias": self.bias, "place": place, "mask": mask, "eps": norm.eps, "overwrite": own}
        y, h_last, mean, var = recurrence_norm(x, *weights, h_0, **options)
        if place == "before" and self.bias is not None:
            mean = mean + self.bias.detach()
        count = torch.full((), x.shape[0] * x.shape[1]) if lengths is None else lengths.sum()
        norm.update(mean, var, count.to(mean))
        return y, h_last

    def _normalise(self, x: Tensor, steps: Steps) -> Tensor:
        (lengths, _, position, time_slice), norm = steps, self.norm
        if isinstance(norm, StepBatchNorm):
            check_whole("batch norm with statistics of each step's own", time_slice)
            return norm(x, position, lengths)  # type: ignore[no-any-return]
        if isinstance(norm, SequenceBatchNorm):
            return norm(x, lengths, time_slice)  # type: ignore[no-any-return]
        if isinstance(norm, nn.SyncBatchNorm):
            raise TypeError(
                "torch.nn.SyncBatchNorm.convert_sync_batchnorm has replaced a unit's norm by one that does not know "
                "time and padding; build the network with synchronised=True instead, which does the same"
            )
        assert norm is not None
        # Of each step by itself: layer norm, RMS norm, or what a user has put there; under autocast in full precision
        y = norm(x.to(self.weight_hh.dtype))
        return without_padding(y, lengths, time_slice).to(x.dtype)

    def extra_repr(self) -> str:
        """Size, activation, the norm and its place, dropout."""
        norm = None if self.norm is None else f"{self.config.norm} {self.config.norm_place}"
        dropout = f", dropout={self.dropout}" if self.dropout else ""
        return f"{self.size}, {self.config.nonlinearity}, norm={norm}{dropout}"


def is_unwatched(module: nn.Module | None, kind: type[Module]) -> TypeGuard[Module]:
    """Whether it is exactly of this type, without hooks, parametrisation or wrapper that could see what it does."""
    if type(module) is not kind or "forward" in module.__dict__:
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    return not _torch_module._has_any_global_hook()


def _make_norm(size: int, config: NetworkConfig, factory: Factory) -> nn.Module | None:
    if config.norm is None:
        return None
    if config.norm == "batch":
        return SequenceBatchNorm(size, synchronised=config.synchronised, **factory)
    if config.norm == "step":
        assert config.norm_steps is not None
        return StepBatchNorm(size, config.norm_steps, synchronised=config.synchronised, **factory)
    return (nn.LayerNorm if config.norm == "layer" else nn.RMSNorm)(size, eps=1e-5, **factory)
