"""Training loop in plain PyTorch, with checkpoints and bit-exact resumption."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .errors import RunError
    from .evaluation import evaluate
    from .folder import RunFolder
    from .listeners import Evaluation, Listener, Start, Step
    from .optimizers import Muon
    from .options import Training
    from .run import Result, train
    from .schedules import Constant, Cosine, OneCycle, Plateau, Schedule, Steps
    from .task import Batch, Measured, Shard, Task, TensorTask, derive_seed, generator, rows_of

_HOMES = {
    "errors": ("RunError",),
    "evaluation": ("evaluate",),
    "folder": ("RunFolder",),
    "listeners": ("Evaluation", "Listener", "Start", "Step"),
    "optimizers": ("Muon",),
    "options": ("Training",),
    "run": ("Result", "train"),
    "schedules": ("Constant", "Cosine", "OneCycle", "Plateau", "Schedule", "Steps"),
    "task": ("Batch", "Measured", "Shard", "Task", "TensorTask", "derive_seed", "generator", "rows_of"),
}

__all__ = [
    "Batch",
    "Constant",
    "Cosine",
    "Evaluation",
    "Listener",
    "Measured",
    "Muon",
    "OneCycle",
    "Plateau",
    "Result",
    "RunError",
    "RunFolder",
    "Schedule",
    "Shard",
    "Start",
    "Step",
    "Steps",
    "Task",
    "TensorTask",
    "Training",
    "derive_seed",
    "evaluate",
    "generator",
    "rows_of",
    "train",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
