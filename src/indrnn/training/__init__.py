"""Training: a loop in plain PyTorch whose runs survive anything."""

from .folder import RunFolder
from .loop import Result, RunError, train
from .options import Constant, Cosine, OneCycle, Plateau, Schedule, Steps, Training
from .task import Batch, Shard, Task, TensorTask, derive_seed, generator, rows_of

__all__ = [
    "Batch",
    "Constant",
    "Cosine",
    "OneCycle",
    "Plateau",
    "Result",
    "RunError",
    "RunFolder",
    "Schedule",
    "Shard",
    "Steps",
    "Task",
    "TensorTask",
    "Training",
    "derive_seed",
    "generator",
    "rows_of",
    "train",
]
