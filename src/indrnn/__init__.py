"""Independently Recurrent Neural Networks: h_t = σ(W x_t + u ⊙ h_{t−1} + b).

What is in here is imported when it is first used: `indrnn --help` does not wait for torch.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

from ._lazy import lazy_names

if TYPE_CHECKING:
    from .analysis.conversion import from_rnn
    from .layers import *
    from .networks import *
    from .ops import Backend, backends, recurrence
    from .saving import save
    from .tasks.distillation import distil
    from .tasks.series.estimators import IndRNNClassifier, IndRNNRegressor

    __version__: str

_HOMES = {
    "analysis.conversion": ("from_rnn",),
    "layers": (
        *("ConvIndRNN1d", "ConvIndRNN2d", "IndRNN", "IndRNNCell", "RecurrentBound", "SequenceBatchNorm"),
        *("SharedDropout", "StepBatchNorm", "attach_constraint", "constrain_", "gather_statistics", "parameter_groups"),
    ),
    "saving": ("save",),
    "networks": (
        *("Dense", "DenseIndRNN", "Language", "LanguageModel", "Plain", "PlainIndRNN", "Residual", "ResidualIndRNN"),
        *("SequenceClassifier", "SequenceRegressor", "State", "StepClassifier", "StepRegressor", "TiedEmbedding"),
    ),
    "ops": ("Backend", "backends", "recurrence"),
    "tasks.distillation": ("distil",),
    "tasks.series.estimators": ("IndRNNClassifier", "IndRNNRegressor"),
}
"""Public names, by the module that defines them."""

__all__ = ["Backend", "backends", "load", "recurrence", "save"]
__all__ += ["ConvIndRNN1d", "ConvIndRNN2d", "IndRNN", "IndRNNCell", "RecurrentBound", "SharedDropout"]
__all__ += ["SequenceBatchNorm", "StepBatchNorm", "attach_constraint", "constrain_", "gather_statistics"]
__all__ += ["Dense", "DenseIndRNN", "Language", "LanguageModel", "Plain", "PlainIndRNN", "Residual", "ResidualIndRNN"]
__all__ += ["SequenceClassifier", "SequenceRegressor", "State", "StepClassifier", "StepRegressor", "TiedEmbedding"]
__all__ += ["IndRNNClassifier", "IndRNNRegressor", "distil", "from_rnn", "parameter_groups"]


def load(folder: "str | _Path", *, device: Any = "cpu") -> Any:
    """Load what `save`, an estimator's `save` or a finished run has written, in evaluation mode, with its own dtype.

    Args:
        folder: the folder of a run, or any that holds a weights.safetensors and a model.json.
        device: device of the parameters.

    Returns:
        The model. A language model of a run, or saved with its tokeniser, has it as `model.tokeniser`. If an estimator
        was saved in the folder, the estimator: `IndRNNClassifier` or `IndRNNRegressor`.

    Example:
        model = indrnn.load("runs/adding-100")
    """
    folder = _Path(folder)
    if (folder / "estimator.json").exists():
        from .tasks.series.estimators import load_estimator

        return load_estimator(folder, device)
    from .saving import load_module

    return load_module(folder, device=device)


_names, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name, or a room of the package, when it is first asked for."""
    if name != "__version__":
        return _names(name)
    from importlib.metadata import version

    return version("indrnn")
