"""The layers: IndRNN, its cell and convolutions; norms, dropout, initialisation, constraint, parameter groups."""

from typing import TYPE_CHECKING, TypedDict

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .bound import RecurrentBound, attach_constraint, constrain_, parameter_groups
    from .conv import ConvIndRNN1d, ConvIndRNN2d
    from .indrnn import IndRNN, IndRNNCell
    from .masks import SharedDropout, embedding_dropout, shared_dropout
    from .norm import SequenceBatchNorm, StepBatchNorm, gather_statistics

EPSILON = 0.2
"""Default of `epsilon`: a long-memory neuron passes at least a fifth of a gradient over T steps (the value that the
paper's authors used for pixel-by-pixel MNIST)."""


class BoundOptions(TypedDict, total=False):
    """Options of a layer for its recurrent weights; see `RecurrentBound`."""

    gamma: float | None
    sequence_length: int | None
    epsilon: float
    lower_bound: bool
    bound: float | None
    long_memory: bool
    highest_start: float | None


_HOMES = {
    "bound": ("RecurrentBound", "attach_constraint", "constrain_", "parameter_groups"),
    "conv": ("ConvIndRNN1d", "ConvIndRNN2d"),
    "masks": ("SharedDropout", "embedding_dropout", "shared_dropout"),
    "indrnn": ("IndRNN", "IndRNNCell"),
    "norm": ("SequenceBatchNorm", "StepBatchNorm", "gather_statistics"),
}

__all__ = ["ConvIndRNN1d", "ConvIndRNN2d", "IndRNN", "IndRNNCell"]
__all__ += ["SequenceBatchNorm", "SharedDropout", "StepBatchNorm", "embedding_dropout", "shared_dropout"]
__all__ += ["EPSILON", "RecurrentBound", "attach_constraint", "constrain_", "gather_statistics", "parameter_groups"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
