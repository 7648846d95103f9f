"""Training loop in plain PyTorch, with checkpoints and bit-exact resumption."""

from .errors import RunError
from .evaluation import evaluate
from .folder import RunFolder
from .listeners import Evaluation, Listener, Start, Step
from .muon import Muon
from .options import Constant, Cosine, OneCycle, Plateau, Schedule, Steps, Training
from .run import Result, train
from .task import Batch, Measured, Shard, Task, TensorTask, derive_seed, generator, rows_of

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
