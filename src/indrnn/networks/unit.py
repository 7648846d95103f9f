"""IndRec: the recurrence with activation, norm and dropout, of which every network is made; and what it is run with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..layers.bound import EPSILON, RecurrentBound
from ..layers.checks import check_nonlinearity, check_probability, check_size
from ..layers.dropout import dropout_mask, shared_dropout
from ..layers.norm import SequenceBatchNorm, StepBatchNorm, next_position
from ..ops import choice, recurrence, recurrence_, recurrence_norm, timeline

Place = Literal["before", "after"]


@dataclass(frozen=True)
class Recurrent:
    """How the recurrent layers of a network are made.

    Args:
        nonlinearity: "relu", "tanh", "sigmoid" or "identity".
        norm: batch norm "before" or "after" the recurrence, or None.
        max_steps: None for statistics over batch and time together; else statistics for each step, with this many rows.
        synchronised: take the statistics of the norm over all processes.
        gamma: the bound on u is γ^(1/T); None for no bound.
        sequence_length: T; needed where γ is not 1, and for `long_memory` and `lower_bound`.
        long_memory: u of the network's last recurrent layer starts in U(ε^(1/T), γ^(1/T)): for a task that uses the
            last step's output alone.
        epsilon: ε, the least factor that a long memory passes on over T steps.
        lower_bound: the constraint also keeps at least one neuron in each layer at |u| >= ε^(1/T).
        backend: as for `indrnn.recurrence`.
        fused: compute recurrence, norm and dropout as one op where that is possible: in training, with statistics over
            the sequence that are not synchronised. False is for comparison.
    """

    nonlinearity: str = "relu"
    norm: Place | None = "after"
    max_steps: int | None = None
    synchronised: bool = False
    gamma: float | None = 1.0
    sequence_length: int | None = None
    long_memory: bool = False
    epsilon: float = EPSILON
    lower_bound: bool = False
    backend: str | None = None
    fused: bool = True

    def __post_init__(self) -> None:
        check_nonlinearity(self.nonlinearity)
        if self.norm not in (None, "before", "after"):
            raise ValueError(f"norm must be 'before', 'after' or None, got {self.norm!r}")
        if self.max_steps is not None:
            check_size("max_steps", self.max_steps)
        choice.check_name(self.backend)


class State(NamedTuple):
    """What a network carries from one call to the next."""

    h: tuple[Tensor, ...]
    """The state (B, N) of each recurrent layer, in the order in which they run."""
    position: Tensor
    """(B,), int64: how many steps of its document each row has seen."""


@dataclass
class Run:
    """One pass of a network over a sequence: what all its recurrent layers need, and the states they leave."""

    lengths: Tensor | None
    resets: Tensor | None
    position: Tensor | None
    entering: list[Tensor] | None
    """The recurrent layers' states, taken from the front; None for zeros."""
    leaving: list[Tensor]

    def next_state(self) -> Tensor | None:
        """The state of the recurrent layer that runs next."""
        return None if self.entering is None else self.entering[len(self.leaving)]


class IndRec(nn.Module):
    """[BN →] h_t = σ(x_t + u ⊙ h_{t−1}) [→ BN] → dropout, with u as `weight_hh`.

    Args:
        size: neurons.
        settings: how it is made; see `Recurrent`.
        dropout: probability, with one mask for all time steps.
        last: whether it is the network's last, which `long_memory` is about.
        device: where the parameters are made.
        dtype: their type.
    """

    weight_hh: nn.Parameter

    def __init__(
        self,
        size: int,
        settings: Recurrent,
        dropout: float = 0.0,
        *,
        last: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("size", size)
        check_probability("dropout", dropout)
        self.settings = settings
        self.dropout = float(dropout)
        self.last = last
        self.bound = RecurrentBound(settings.gamma, settings.sequence_length, settings.epsilon, settings.lower_bound)
        self.weight_hh = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.norm: SequenceBatchNorm | StepBatchNorm | None = None
        if settings.norm is not None:
            synchronised = settings.synchronised
            if settings.max_steps is None:
                self.norm = SequenceBatchNorm(size, synchronised=synchronised, device=device, dtype=dtype)
            else:
                self.norm = StepBatchNorm(
                    size, settings.max_steps, synchronised=synchronised, device=device, dtype=dtype
                )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw u anew; put the norm back to its start."""
        self.bound.init_(self.weight_hh, self.settings.long_memory and self.last)
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(self, x: Tensor, run: Run, bias: Tensor | None = None, *, overwrite: bool = False) -> Tensor:
        """Run over x (T, B, N), to each step of which the bias (N,) is added; states go by `run`.

        With `overwrite`, x is the result of an operation and nothing else needs it, so that its memory may be used.
        """
        if self._fuses():
            return self._fused(x, run, bias, overwrite)
        if self.settings.norm == "before":
            x, bias = self._normalise(x if bias is None else (x + bias).to(x.dtype), run), None
        h, h_last = (recurrence_ if overwrite else recurrence)(
            x,
            self.weight_hh,
            run.next_state(),
            bias=bias,
            activation=self.settings.nonlinearity,
            lengths=run.lengths,
            resets=run.resets,
            backend=self.settings.backend,
        )
        run.leaving.append(h_last)
        if self.settings.norm == "after":
            h = self._normalise(h, run)
        return shared_dropout(h, self.dropout, self.training)

    def _fuses(self) -> bool:
        norm = self.norm
        if timeline().is_split:
            return False
        return self.settings.fused and self.training and isinstance(norm, SequenceBatchNorm) and not norm.synchronised

    def _fused(self, x: Tensor, run: Run, bias: Tensor | None, overwrite: bool) -> Tensor:
        norm = self.norm
        assert isinstance(norm, SequenceBatchNorm)
        assert norm.weight is not None
        assert norm.bias is not None
        assert self.settings.norm is not None
        y, h_last, mean, var = recurrence_norm(
            x,
            self.weight_hh,
            norm.weight,
            norm.bias,
            run.next_state(),
            place=self.settings.norm,
            bias=bias,
            mask=dropout_mask(x, self.dropout, self.training),
            eps=norm.eps,
            activation=self.settings.nonlinearity,
            lengths=run.lengths,
            resets=run.resets,
            backend=self.settings.backend,
            overwrite=overwrite,
        )
        run.leaving.append(h_last)
        if self.settings.norm == "before" and bias is not None:
            mean = mean + bias.detach()
        steps = torch.full((), x.shape[0] * x.shape[1]) if run.lengths is None else run.lengths.sum()
        norm.update(mean, var, steps.to(mean))
        return y

    def _normalise(self, x: Tensor, run: Run) -> Tensor:
        if isinstance(self.norm, StepBatchNorm):
            return self.norm(x, run.position, run.lengths, run.resets)  # type: ignore[no-any-return]
        assert self.norm is not None
        return self.norm(x, run.lengths)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Size, activation, place of the norm, dropout."""
        dropout = f", dropout={self.dropout}" if self.dropout else ""
        return f"{self.weight_hh.shape[0]}, {self.settings.nonlinearity}, norm={self.settings.norm}{dropout}"


def state_after(x: Tensor, run: Run) -> State:
    """What the next call is given, after a pass over x (T, B, ...)."""
    return State(tuple(run.leaving), next_position(x, run.position, run.lengths, run.resets))
