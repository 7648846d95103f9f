"""Heads: from a network's features to classes or numbers, for a whole sequence or at every step."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..checks import Lengths, as_lengths, check_choice, check_count, check_tensor
from ..layers.config import config_of
from ..layers.indrnn import IndRNN, IndRNNCell
from ..layers.padding import per_step, valid_steps
from ..ops.distributed.time import TimeSlice, check_whole
from .config import Head, Pool
from .network import last_step


class Output(nn.Linear):
    """The output layer: `torch.nn.Linear`, initialised from N(0, 2/inputs) with a bias of 0."""

    def reset_parameters(self) -> None:
        """Reinitialise the weight; zero the bias."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)


class _Head(nn.Module):
    """Base of the heads: holds the network and the output layer."""

    _outputs_are = "outputs"

    def __init__(self, network: nn.Module, outputs: int) -> None:
        super().__init__()
        check_count(self._outputs_are, outputs)
        size = check_network(network)
        self.network = network
        like = next(network.parameters())
        self.output = Output(size, outputs, device=like.device, dtype=like.dtype)

    @property
    def config(self) -> Head:
        """The configuration to rebuild it."""
        kind: Any = type(self).__name__
        return Head(config_of(self.network), self.output.out_features, kind, getattr(self, "pool", "last"))


class _SequenceHead(_Head):
    """One output per sequence."""

    def __init__(self, network: nn.Module, outputs: int, pool: Pool) -> None:
        check_choice("pool", pool, get_args(Pool))
        super().__init__(network, outputs)
        self.pool = pool

    def forward(
        self,
        input: Tensor | PackedSequence,
        state: Any = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        time_slice: TimeSlice | None = None,
    ) -> tuple[Tensor, Any]:
        """Return the outputs, (B, outputs), and the network's state; the arguments are the network's.

        For an unbatched sequence, (outputs,).
        """
        if self.pool == "last" and hasattr(self.network, "output_size"):
            features, state = run_network(self.network, input, state, lengths, resets, time_slice, last=True)
            return self.output(features), state
        features, state = run_network(self.network, input, state, lengths, resets, time_slice)
        batched = True
        if isinstance(features, PackedSequence):
            features, lengths = pad_packed_sequence(features)
        else:
            batched = features.dim() == 3
            features = features if batched else features.unsqueeze(1)
            if batched and getattr(self.network, "batch_first", False):
                features = features.transpose(0, 1)
            if not batched and lengths is not None:
                lengths = torch.as_tensor(lengths).reshape(1)
        given = as_lengths(lengths, features.device)
        given = None if given is None else given.to(features.device)
        steps_after: Any = getattr(self.network, "steps_after", None)
        if given is not None and steps_after is not None:  # it gives fewer steps than it is given
            given = steps_after(given)
        rows = self._pooled(features, given, time_slice)
        return self.output(rows if batched else rows.squeeze(0)), state

    def _pooled(self, features: Tensor, lengths: Tensor | None, time_slice: TimeSlice | None) -> Tensor:
        if self.pool == "last":
            return last_step(features, lengths, bool(getattr(self.network, "bidirectional", False)), time_slice)
        check_whole("the mean over time", time_slice)
        if lengths is None:
            return features.mean(0) if features.shape[0] else features.new_zeros(features.shape[1:])
        valid = valid_steps(features, lengths)
        assert valid is not None
        total = torch.where(per_step(valid, features), features, 0.0).sum(0)
        return total / lengths.clamp_min(1).unsqueeze(-1).to(total.dtype)


class _StepHead(_Head):
    """One output at every step."""

    def forward(
        self,
        input: Tensor | PackedSequence,
        state: Any = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        time_slice: TimeSlice | None = None,
    ) -> tuple[Any, Any]:
        """Return the outputs, (T, B, outputs) in the network's layout, and its state; the arguments are the network's.

        They are packed if the input is.
        """
        features, state = run_network(self.network, input, state, lengths, resets, time_slice)
        if isinstance(features, PackedSequence):
            return features._replace(data=self.output(features.data)), state
        return self.output(features), state


class SequenceClassifier(_SequenceHead):
    """Class logits for each sequence, from the features of its last step or their mean over time.

    Args:
        network: any of the networks or baselines, `IndRNN`, or `torch.nn.RNN`, `LSTM` or `GRU`.
        classes: number of classes.
        pool: "last", the last valid step (of each direction, if there are two), or "mean" over the valid steps.
    """

    _outputs_are = "classes"

    def __init__(self, network: nn.Module, classes: int, pool: Pool = "last") -> None:
        super().__init__(network, classes, pool)


class SequenceRegressor(_SequenceHead):
    """Numbers for each sequence, from the features of its last step or their mean over time.

    Args:
        network: as for `SequenceClassifier`.
        outputs: number of outputs.
        pool: as for `SequenceClassifier`.
    """

    def __init__(self, network: nn.Module, outputs: int = 1, pool: Pool = "last") -> None:
        super().__init__(network, outputs, pool)


class StepClassifier(_StepHead):
    """Class logits at every step.

    Args:
        network: as for `SequenceClassifier`.
        classes: number of classes.
    """

    _outputs_are = "classes"

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__(network, classes)


class StepRegressor(_StepHead):
    """Numbers at every step.

    Args:
        network: as for `SequenceClassifier`.
        outputs: number of outputs.
    """

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
    network: nn.Module,
    input: Tensor | PackedSequence,
    state: Any,
    lengths: Lengths,
    resets: Tensor | None,
    time_slice: TimeSlice | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Run a network, ours or another, and return its features, in its layout, and its state."""
    if time_slice is not None:
        options["time_slice"] = time_slice
    if hasattr(network, "output_size") or isinstance(network, IndRNN):
        return network(input, state, lengths=lengths, resets=resets, **options)  # type: ignore[no-any-return]
    check_whole(type(network).__name__, time_slice)
    if resets is not None:
        raise ValueError(f"resets are not supported by {type(network).__name__}; split the sequence where it resets")
    if lengths is None:
        return network(input, state)  # type: ignore[no-any-return]
    assert isinstance(input, Tensor)
    if not isinstance(network, nn.RNNBase):
        raise ValueError(f"lengths are not supported by {type(network).__name__}; give sequences of one length")
    given = as_lengths(lengths, torch.device("cpu"))
    assert given is not None
    time = 1 if network.batch_first else 0
    check_tensor("lengths", given, (input.shape[1 - time],))
    packed = pack_padded_sequence(input, given.cpu(), network.batch_first, enforce_sorted=False)
    features, state = network(packed, state)
    return pad_packed_sequence(features, network.batch_first, total_length=input.shape[time])[0], state
