"""Heads: from a network's features to classes or numbers, for a whole sequence or at every step."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..checks import check_choice, check_count
from ..layers.config import config_of
from ..layers.indrnn import IndRNN, IndRNNCell
from ..layers.masks import without_padding
from ..ops.checks import Lengths, as_lengths, check_tensor
from ..ops.split import TimeSlice, check_whole
from .config import Head, Pool
from .network import last_step


class Output(nn.Linear):
    """The output layer: `torch.nn.Linear`, initialised from N(0, 2/inputs) with a bias of 0."""

    def reset_parameters(self) -> None:
        """Reinitialise the weight; zero the bias."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)


class _Head(nn.Module):
    """Base of the heads: a network, and the output layer on features of sequences or, without `pool`, of steps."""

    def __init__(self, network: nn.Module, outputs: int, pool: Pool | None = None, name: str = "outputs") -> None:
        super().__init__()
        check_count(name, outputs)
        size = check_network(network)
        self.network, self.pool = network, pool
        like = next(network.parameters())
        self.output = Output(size, outputs, device=like.device, dtype=like.dtype)

    @property
    def config(self) -> Head:
        """The configuration to rebuild it."""
        kind: Any = type(self).__name__
        return Head(config_of(self.network), self.output.out_features, kind, self.pool or "last")

    def forward(
        self,
        input: Tensor | PackedSequence,
        state: Any = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        time_slice: TimeSlice | None = None,
    ) -> tuple[Any, Any]:
        """Return the outputs and the network's state; the arguments are the network's.

        For sequences, the outputs are (B, outputs), or (outputs,) for one without a batch; for steps, (T, B, outputs)
        in the network's layout, packed if the input is.
        """
        last_alone = self.pool == "last" and hasattr(self.network, "output_size")
        options: dict[str, Any] = {"last": True} if last_alone else {}
        if time_slice is not None:
            options["time_slice"] = time_slice
        features, state = run_network(self.network, input, state, lengths, resets, **options)
        if self.pool is not None and not last_alone:
            features = self._pooled(features, lengths, time_slice)
        if isinstance(features, PackedSequence):
            return features._replace(data=self.output(features.data)), state
        return self.output(features), state

    def _pooled(self, features: Tensor | PackedSequence, lengths: Any, time_slice: TimeSlice | None) -> Tensor:
        """(B, F), or (F,) without a batch: the features of the last step, or their mean over time."""
        batched = isinstance(features, PackedSequence) or features.dim() == 3
        if isinstance(features, PackedSequence):
            features, lengths = pad_packed_sequence(features)
        elif not batched:
            features = features.unsqueeze(1)
        elif getattr(self.network, "batch_first", False):
            features = features.transpose(0, 1)
        steps = None if lengths is None else torch.as_tensor(lengths, device=features.device).reshape(-1)
        steps_after: Any = getattr(self.network, "steps_after", None)
        if steps is not None and steps_after is not None:  # it gives fewer steps than it is given
            steps = steps_after(steps)
        if self.pool == "mean":
            check_whole("the mean over time", time_slice)
        if self.pool == "last":
            rows = last_step(features, steps, bool(getattr(self.network, "bidirectional", False)), time_slice)
        elif steps is None:
            rows = features.mean(0) if len(features) else features.new_zeros(features.shape[1:])
        else:
            rows = without_padding(features, steps).sum(0)
            rows = rows / steps.clamp_min(1).unsqueeze(-1).to(rows.dtype)
        return rows if batched else rows.squeeze(0)


class SequenceClassifier(_Head):
    """Class logits for each sequence, from the features of its last step or their mean over time.

    Args:
        network: any of the networks or baselines, `IndRNN`, or `torch.nn.RNN`, `LSTM` or `GRU`.
        pool: "last", the last valid step (of each direction, if there are two), or "mean" over the valid steps.
    """

    def __init__(self, network: nn.Module, classes: int, pool: Pool = "last") -> None:
        check_choice("pool", pool, get_args(Pool))
        super().__init__(network, classes, pool, "classes")


class SequenceRegressor(_Head):
    """Numbers for each sequence: `SequenceClassifier` with `outputs` numbers in place of logits."""

    def __init__(self, network: nn.Module, outputs: int = 1, pool: Pool = "last") -> None:
        check_choice("pool", pool, get_args(Pool))
        super().__init__(network, outputs, pool)


class StepClassifier(_Head):
    """Class logits at every step: `SequenceClassifier` without pooling."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__(network, classes, name="classes")


class StepRegressor(_Head):
    """Numbers at every step: `SequenceRegressor` without pooling."""

    def __init__(self, network: nn.Module, outputs: int = 1) -> None:
        super().__init__(network, outputs)


AnyHead = SequenceClassifier | SequenceRegressor | StepClassifier | StepRegressor


def check_network(network: Any) -> int:
    """The number of features of a network at each step; raises for anything else."""
    size = getattr(network, "output_size", None)
    if size is None and not isinstance(network, (IndRNNCell, nn.RNNCellBase)):
        size = getattr(network, "proj_size", 0) or getattr(network, "hidden_size", None)
        size = 2 * size if isinstance(size, int) and getattr(network, "bidirectional", False) else size
    if not isinstance(network, nn.Module) or not isinstance(size, int):
        raise TypeError(
            "network must be one of the deep networks or baselines, indrnn.IndRNN, torch.nn.RNN, LSTM or GRU, or a "
            f"module with `output_size` that is called like them, got {type(network).__name__}"
        )
    return size


def run_network(
    network: nn.Module, input: Any, state: Any, lengths: Lengths = None, resets: Tensor | None = None, **options: Any
) -> tuple[Any, Any]:
    """Run a network, ours or another, and return its features, in its layout, and its state."""
    if hasattr(network, "output_size") or isinstance(network, IndRNN):
        return network(input, state, lengths=lengths, resets=resets, **options)  # type: ignore[no-any-return]
    check_whole(type(network).__name__, options.get("time_slice"))
    if resets is not None:
        raise ValueError(f"resets are not supported by {type(network).__name__}; split the sequence where it resets")
    if lengths is None:
        return network(input, state)  # type: ignore[no-any-return]
    if not isinstance(network, nn.RNNBase):
        raise ValueError(f"lengths are not supported by {type(network).__name__}; give sequences of one length")
    steps: Any = as_lengths(lengths, torch.device("cpu"))
    time = 1 if network.batch_first else 0
    check_tensor("lengths", steps, (input.shape[1 - time],))
    packed = pack_padded_sequence(input, steps.cpu(), network.batch_first, enforce_sorted=False)
    features, state = network(packed, state)
    return pad_packed_sequence(features, network.batch_first, total_length=input.shape[time])[0], state
