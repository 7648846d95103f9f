"""`Network`: the interface of the deep networks, (T, B, input_size) to features and `State`, for the next call.

`FrontNetwork` has the same: convolutions over time in front of a network, with strides for long raw signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import _register_namedtuple

from ..checks import check_count
from ..layers.masks import shared_dropout, unpack, valid_steps, without_padding
from ..layers.norm import SequenceBatchNorm, next_position
from ..layers.recompute import in_pieces
from ..ops.checks import Lengths, as_lengths, check_like_weight, check_resets, check_tensor
from ..ops.split import TimeSlice, check_whole
from ..ops.watched import is_watched
from .config import Factory, Front, NetworkConfig
from .unit import RecurrentUnit, Steps, is_unwatched


class State(NamedTuple):
    """The state of a network: returned by each call, and passed to the next.

    Example:
        features, state = network(first_piece)
        features, state = network(second_piece, state.detach())
    """

    h: tuple[Tensor, ...]
    """The state (B, N) of each recurrent layer, in the order in which they run."""
    position: Tensor
    """Number of steps that each row has seen, (B,), int64: of its document, or, where a step norm counts by windows, of
    the whole stream."""

    def detach(self) -> State:
        """The state detached from its graph, for truncated back-propagation through time."""
        return self._map(lambda tensor: tensor.detach())

    def to(self, *args: Any, **options: Any) -> State:
        """The state on another device or in another type, as `torch.Tensor.to`; the position stays an integer."""
        h = tuple(tensor.to(*args, **options) for tensor in self.h)
        return State(h, self.position.to(h[0].device) if h else self.position)

    def index_select(self, index: Tensor) -> State:
        """The rows of the batch given by `index` (K,), in its order, as for beams or a changing batch."""
        return self._map(lambda tensor: tensor.index_select(0, index))

    def _map(self, function: Callable[[Tensor], Tensor]) -> State:
        return State(tuple(function(tensor) for tensor in self.h), function(self.position))


# So that torch.export.save can write a program that takes or returns one, and torch.load a checkpoint that holds one.
_register_namedtuple(State, serialized_type_name="indrnn.State")
torch.serialization.add_safe_globals([State])


class Network(nn.Module):
    """A deep IndRNN: (T, B, input_size) to features (T, B, output_size), with an explicit state.

    A subclass names its configuration, builds its parts and runs them in `_features`; every recurrent layer in it is a
    `RecurrentUnit`. The arguments are the configuration's options, the first ones by position and all others by name,
    and the parameters' `device` and `dtype`.
    """

    Config: ClassVar[type[NetworkConfig]]
    config: NetworkConfig
    input_size: int
    """Features of the input at each step."""
    batch_first: bool
    """Whether the batch comes before time in input and output."""
    output_size: int
    """Features of the output at each step."""

    def __init__(
        self, *sizes: Any, device: torch.device | str | None = None, dtype: torch.dtype | None = None, **options: Any
    ) -> None:
        super().__init__()
        name, names = type(self).__name__, {field.name for field in fields(self.Config)}
        by_position = [field.name for field in fields(self.Config) if not field.kw_only]
        if len(sizes) > len(by_position):
            raise TypeError(
                f"{name} takes {', '.join(by_position[:-1])} and {by_position[-1]} by position and every other option "
                f"by name (dropout=0.1, norm=None), got {sizes[len(by_position)]!r} after them"
            )
        if unknown := options.keys() - names:
            raise TypeError(f"{name} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(names))}")
        self.config = self.Config(*sizes, **options)
        self.input_size, self.batch_first = self.config.input_size, self.config.batch_first  # type: ignore[assignment]
        check_count("input_size", self.input_size)
        self.output_size = self._build({"device": device, "dtype": dtype})
        self._sizes = [unit.size for unit in self.recurrent_layers]

    def _build(self, factory: Factory) -> int:
        """Make the parts, in the order in which they run; return the output's features."""
        raise NotImplementedError

    def _features(self, x: Tensor, states: Iterator[Tensor | None], steps: Any) -> tuple[Tensor, list[Tensor]]:
        """Run the parts over x, with one state per unit and `steps` as arguments; return the output and new states."""
        raise NotImplementedError

    @property
    def recurrent_layers(self) -> list[RecurrentUnit]:
        """Every recurrent layer, in the order in which they run."""
        return [module for module in self.modules() if isinstance(module, RecurrentUnit)]

    def forward(
        self,
        input: Tensor | PackedSequence,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        last: bool = False,
        time_slice: TimeSlice | None = None,
    ) -> tuple[Any, State]:
        """Run over a sequence, or over the next piece of one.

        Args:
            input: (T, B, input_size), or (B, T, input_size) with `batch_first`, or (T, input_size) unbatched, or a
                `PackedSequence`.
            state: the state returned for the previous piece; None at the start. Not with `bidirectional`.
            lengths: (B,) or a list, the steps of each sequence; later steps are ignored and give zeros.
            resets: bool, (T, B) or (B, T) as the input: the first step of a document, before which the state is zeroed.
            last: return only the last valid step's features; with `bidirectional`, the last that each direction reads.
            time_slice: the slice of the time steps that this process holds, from `indrnn.ops.split_time`.

        Returns:
            The features, (T, B, output_size) in the input's layout, packed if it is, or (B, output_size) with `last`
            (zeros for a sequence of length 0); and the state after each sequence's last step.
        """
        if isinstance(input, PackedSequence):
            check_whole("a PackedSequence", time_slice)
            if lengths is not None:
                raise ValueError("lengths must be None with a PackedSequence, which has its own")
            return self._forward_packed(input, state, resets, last)
        if isinstance(input, Tensor) and input.dim() == 2:
            return self._forward_unbatched(input, state, lengths, resets, last=last, time_slice=time_slice)
        if isinstance(input, Tensor):
            lengths = as_lengths(lengths, input.device)
        steps = self._checked(input, state, Steps(lengths, resets, None, time_slice))
        x = input.transpose(0, 1).contiguous() if self.batch_first else input
        features, after = self._run(without_padding(x, lengths, time_slice), state, steps)
        if last:
            return last_step(features, lengths, self.config.bidirectional, time_slice), after
        return (features.transpose(0, 1) if self.batch_first else features), after

    def _forward_packed(
        self, input: PackedSequence, state: State | None, resets: Tensor | None, last: bool
    ) -> tuple[Tensor | PackedSequence, State]:
        padded, lengths, pack = unpack(input)
        own = padded.transpose(0, 1) if self.batch_first else padded
        resets = self._checked(own, state, Steps(None, resets)).resets
        order, back = input.sorted_indices, input.unsorted_indices
        if order is not None:
            state = None if state is None else state.index_select(order)
            resets = None if resets is None else resets.index_select(1, order)
        features, after = self._run(padded, state, Steps(lengths, resets))
        after = after if back is None else after.index_select(back)
        if not last:
            return pack(features), after
        rows = last_step(features, lengths, self.config.bidirectional)
        return (rows if back is None else rows.index_select(0, back)), after

    def _forward_unbatched(
        self, input: Tensor, state: State | None, lengths: Lengths, resets: Tensor | None, **options: Any
    ) -> tuple[Tensor, State]:
        batch = 0 if self.batch_first else 1
        if isinstance(state, State):
            state = state._map(lambda tensor: tensor.unsqueeze(0))
        if isinstance(resets, Tensor):
            resets = resets.unsqueeze(batch)
        if lengths is not None:
            lengths = torch.as_tensor(lengths, device=input.device).reshape(1)
        features, after = self.forward(input.unsqueeze(batch), state, lengths=lengths, resets=resets, **options)
        return features.squeeze(0 if options["last"] else batch), after._map(lambda tensor: tensor.squeeze(0))

    def _run(self, x: Tensor, state: State | None, steps: Steps) -> tuple[Tensor, State]:
        """Run over a batch with time first."""
        position = None if state is None else state.position
        if self.config.recompute is not None and torch.is_grad_enabled():
            features, h = self._in_pieces(x, state, steps)
        else:
            entering = iter([None] * len(self._sizes) if state is None else state.h)
            features, h = self._features(x, entering, steps._replace(position=position)._asdict())
        counted = None if self.config.norm == "step" else steps.resets
        return features, State(tuple(h), next_position(x, position, steps.lengths, counted, steps.time_slice))

    def _in_pieces(self, x: Tensor, state: State | None, steps: Steps) -> tuple[Tensor, list[Tensor]]:
        """As `_features`, with the states of all units concatenated between pieces."""
        check_whole("recompute", steps.time_slice)
        assert self.config.recompute is not None
        inner = _Inner(self)
        names, parameters = zip(*inner.named_parameters(), strict=True)
        devices = [x.device] if x.device.type == "cuda" else []
        # One mask for all pieces, and the same in the backward pass
        seed = int(torch.randint(2**62, ())) if self.training else 0

        def run(x: Tensor, h: Tensor, lengths: Any, resets: Any, parameters: Any) -> tuple[Tensor, Tensor]:
            arguments = (x, h.split(self._sizes, dim=-1), Steps(lengths, resets)._asdict())
            with torch.random.fork_rng(devices, enabled=self.training):
                if self.training:
                    torch.manual_seed(seed)
                features, states = functional_call(inner, dict(zip(names, parameters, strict=True)), arguments)
            return features, torch.cat(states, dim=-1)

        h_0 = x.new_zeros(x.shape[1], sum(self._sizes)) if state is None else torch.cat(state.h, dim=-1)
        features, h = in_pieces(run, self.config.recompute, x, h_0, steps.lengths, steps.resets, parameters)
        return features, list(h.split(self._sizes, dim=-1))

    def _checked(self, input: Any, state: Any, steps: Steps) -> Steps:
        """Check what a call is given, in the layout of the input; return the steps with time first."""
        if not isinstance(input, Tensor):
            raise TypeError(f"input must be a tensor or a PackedSequence, got {type(input).__name__}")
        if input.dim() != 3 or input.shape[-1] != self.input_size:
            layout = "B, T" if self.batch_first else "T, B"
            shapes = f"({layout}, {self.input_size}) or (T, {self.input_size})"
            raise ValueError(f"input must have the shape {shapes}, got {tuple(input.shape)}")
        # Not parameters(): replicas of torch.nn.DataParallel have none.
        units = (module for module in self.modules() if isinstance(module, RecurrentUnit))
        weight = getattr(next(units, None), "weight_hh", input)  # none where a user has replaced them all
        check_like_weight("input", input, weight)
        batch, time = input.shape[:2] if self.batch_first else input.shape[1::-1]
        check_tensor("lengths", steps.lengths, (batch,))
        time = time if steps.time_slice is None else steps.time_slice.total
        check_resets(steps.resets, (batch, time) if self.batch_first else (time, batch))
        if steps.resets is not None and self.batch_first:
            steps = steps._replace(resets=steps.resets.transpose(0, 1))
        if state is None:
            return steps
        if not isinstance(state, State):
            raise TypeError(f"state must be what an earlier call returned, or None, got {type(state).__name__}")
        if self.config.bidirectional:
            raise ValueError("state must be None with bidirectional: the reverse direction begins at a sequence's end")
        if len(state.h) != len(self._sizes):
            raise ValueError(f"state must hold the states of {len(self._sizes)} recurrent layers, got {len(state.h)}")
        check_tensor("state.position", state.position, (batch,))
        if state.position.dtype != torch.int64:
            raise TypeError(f"state.position must be int64, got {state.position.dtype}")
        for i, (h, size) in enumerate(zip(state.h, self._sizes, strict=True)):
            check_tensor(f"state.h[{i}]", h, (batch, size))
            check_like_weight(f"state.h[{i}]", h, weight)
        return steps

    def extra_repr(self) -> str:
        """The number of recurrent layers."""
        return f"recurrent_layers={len(self.recurrent_layers)}"


class _Inner(nn.Module):
    """A network without its outer interface, to be called with other parameters."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(self, x: Tensor, states: Sequence[Tensor], steps: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
        return self.network._features(x, iter(states), steps)


def last_step(
    features: Tensor, lengths: Tensor | None, bidirectional: bool = False, time_slice: TimeSlice | None = None
) -> Tensor:
    """The last valid step of (T, B, F): (B, F), zeros for a sequence of length 0.

    With `bidirectional`, the last step that each direction reads: the second half of the features is of the first step.
    """
    T, B, F = features.shape
    if bidirectional and T > 0:
        check_whole("the last step of both directions", time_slice)
        return torch.cat([last_step(features[..., : F // 2], lengths), features[0, :, F // 2 :]], dim=-1)
    if time_slice is not None:  # on every process, from the one that has the step
        step = torch.arange(T, device=features.device).unsqueeze(1) + time_slice.first_step
        at_end = step == (time_slice.total if lengths is None else lengths) - 1  # (T, B), or (T, 1)
        return time_slice.sum_over_ranks(torch.where(at_end.unsqueeze(-1), features, 0.0).sum(0))
    if T == 0:
        return features.new_zeros(B, F)
    if lengths is None:
        return features[-1]
    at = (lengths.long() - 1).clamp_min(0).view(1, -1, 1).expand(1, B, F)
    return torch.where((lengths > 0).unsqueeze(-1), features.gather(0, at).squeeze(0), 0.0)


# ---- convolutions in front


class FrontState(NamedTuple):
    """The state of a network with a front, from one call to the next."""

    inputs: tuple[Tensor, ...]
    """Last inputs of each convolution, (steps, B, features)."""
    network: Any
    """State of the network behind the convolutions; None before its first step."""


class FrontNetwork(nn.Module):
    """Causal convolution → batch norm → ReLU, once or several times, then a network, whose interface it has.

    With strides, an output stands for `stride` steps: T steps are reduced to ⌈T / stride⌉.
    """

    batch_first = False

    def __init__(self, config: Front, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.config, self.bidirectional, self.steps_after = config, config.bidirectional, config.steps
        assert config.input_size is not None
        self.input_size = config.input_size
        inputs = (config.input_size, *config.features[:-1])
        shapes = zip(inputs, config.features, config.kernels, config.strides, strict=True)
        self.convolutions = nn.ModuleList(nn.Conv1d(*shape, bias=False, **factory) for shape in shapes)
        self.norms = nn.ModuleList(SequenceBatchNorm(size, **factory) for size in config.features)
        self.network: nn.Module = replace(config.network, input_size=config.features[-1]).build(**factory)
        self.output_size: int = self.network.output_size
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the convolutions."""
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")

    def forward(
        self,
        input: Tensor,
        state: FrontState | None = None,
        *,
        lengths: Lengths = None,
        resets: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, FrontState]:
        """Run over a sequence; see `indrnn.networks.Network.forward`.

        A sequence can be continued from a `state` if the strides are 1, or if they divide the lengths of the pieces
        before. `resets` are not supported. The features are (⌈T / strides⌉, B, output_size).
        """
        if resets is not None:
            raise ValueError("resets are not supported by convolutions in front; split the sequence where it resets")
        if input.dim() != 3 or input.shape[-1] != self.input_size:
            raise ValueError(f"input must have the shape (T, B, {self.input_size}), got {tuple(input.shape)}")
        steps = as_lengths(lengths, input.device)
        x, after = without_padding(input, steps), []
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            before = self.config.kernels[i] - 1
            earlier = x.new_zeros(before, *x.shape[1:]) if state is None else state.inputs[i]
            x = torch.cat([earlier, x])
            after.append(x[len(x) - before :])
            x = convolution(x.permute(1, 2, 0)).permute(2, 0, 1).contiguous()  # (B, C, T) and back
            steps = None if steps is None else (steps + self.config.strides[i] - 1) // self.config.strides[i]
            x = shared_dropout(_normed(norm, x, steps), self.config.dropout, self.training)
        features, behind = self.network(x, None if state is None else state.network, lengths=steps)
        if last:
            features = last_step(features, steps, self.bidirectional)
        return features, FrontState(tuple(after), behind)


def _normed(norm: nn.Module, x: Tensor, lengths: Tensor | None) -> Tensor:
    """relu(norm(x, lengths)) of (T, B, C), where possible by torch's batch norm of valid steps: a third of passes."""
    if is_watched() or not is_unwatched(norm, SequenceBatchNorm) or x.dtype != norm.weight.dtype or norm.synchronised:
        return F.relu(norm(x, lengths))
    norm.check(x, lengths)
    valid = valid_steps(x, lengths)
    rows = x.flatten(0, 1) if valid is None else x[valid]  # (steps, C)
    if norm.training and len(rows) > 1:
        norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:  # the mean over all batches, as `gather_statistics` takes it
        momentum = 1 / max(1, int(norm.num_batches_tracked))
    weights = norm.running_mean, norm.running_var, norm.weight, norm.bias
    rows = F.relu(F.batch_norm(rows, *weights, norm.training, momentum, norm.eps))
    return rows.view_as(x) if valid is None else torch.zeros_like(x).index_put((valid,), rows)
