"""The layers: IndRNN, its cell and convolutions; norms, dropout, initialisation, constraint, parameter groups."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .bound import RecurrentBound, attach_constraint, constrain_, parameter_groups
    from .conv import ConvIndRNN1d, ConvIndRNN2d
    from .dropout import SharedDropout, embedding_dropout, shared_dropout
    from .indrnn import IndRNN, IndRNNCell
    from .norm import SequenceBatchNorm, StepBatchNorm, gather_statistics
    from .options import EPSILON

_HOMES = {
    "bound": ("RecurrentBound", "attach_constraint", "constrain_", "parameter_groups"),
    "conv": ("ConvIndRNN1d", "ConvIndRNN2d"),
    "dropout": ("SharedDropout", "embedding_dropout", "shared_dropout"),
    "indrnn": ("IndRNN", "IndRNNCell"),
    "norm": ("SequenceBatchNorm", "StepBatchNorm", "gather_statistics"),
    "options": ("EPSILON",),
}

__all__ = ["ConvIndRNN1d", "ConvIndRNN2d", "IndRNN", "IndRNNCell"]
__all__ += ["SequenceBatchNorm", "SharedDropout", "StepBatchNorm", "embedding_dropout", "shared_dropout"]
__all__ += ["EPSILON", "RecurrentBound", "attach_constraint", "constrain_", "gather_statistics", "parameter_groups"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
