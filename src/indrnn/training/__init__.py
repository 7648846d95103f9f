"""Training loop in plain PyTorch, with checkpoints and bit-exact resumption.

`run` is the loop, `update` one step of it, `task` what it trains on, `folder` and `checkpoint` what it leaves on disk.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names
from .folder import RunError, RunFolder
from .listeners import Evaluation, Listener, Start, Step
from .options import Constant, Cosine, OneCycle, Plateau, Schedule, Steps, Training
from .task import Batch, Measured, Shard, Task, TensorTask, derive_seed, generator, rows_of

if TYPE_CHECKING:
    from .evaluation import evaluate
    from .optimizers import Muon
    from .run import Result, train

__all__ = ["Muon", "Result", "RunError", "RunFolder", "Training", "evaluate", "train"]
__all__ += ["Evaluation", "Listener", "Start", "Step"]
__all__ += ["Constant", "Cosine", "OneCycle", "Plateau", "Schedule", "Steps"]
__all__ += ["Batch", "Measured", "Shard", "Task", "TensorTask", "derive_seed", "generator", "rows_of"]

_HOMES = {"evaluation": ("evaluate",), "optimizers": ("Muon",), "run": ("Result", "train")}  # which need torch
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
