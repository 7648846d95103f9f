"""The training loop without a folder: the same steps and evaluations, with the best weights kept in memory."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from .checkpoint import Checkpoints
from .errors import RunError
from .evaluation import Evaluator
from .listeners import Evaluation, Listener, Listeners, Start, Step
from .options import Training
from .processes import Processes, choose_device
from .run import Result
from .task import Task
from .update import NotFiniteError, Stepper, may_fuse


class _Kept:
    """The part of `Checkpoints` that `Evaluator` uses, in memory."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def save_best(self, step: int, state: dict[str, Any]) -> None:
        self.state = copy.deepcopy(state)

    def load_best(self, step: int) -> dict[str, Any]:
        return self.state


def train_in_memory(
    model: nn.Module,
    task: Task,
    options: Training | None = None,
    *,
    seed: int = 0,
    listeners: Iterable[Listener] = (),
) -> Result:
    """Train a model as `train` does, to the same weights, in one process and without writing anything.

    Args:
        model: any module; it ends up with the best weights.
        task: batches, loss and evaluation.
        options: training options; those that concern files are ignored.
        seed: seed of dropout and all other randomness in the model.
        listeners: listeners of the run; `Start.folder` is the working folder, in which nothing is done.

    Raises:
        RunError: if the loss or a gradient is not finite.
    """
    options = options or Training()
    group = Processes()
    device = choose_device(options.device, group)
    tell = Listeners(list(listeners))
    gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=gpus))
        stack.callback(torch.set_num_threads, threads)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        model.to(device)
        fused = may_fuse(model, options, group)
        stepper = Stepper(model, task, options, seed=seed, group=group, device=device, fused=fused)
        stack.callback(stepper.close)
        evaluator = Evaluator(stepper, cast("Checkpoints", _Kept()))
        tell("on_start", Start(Path(), 0, options.steps, task.metric, task.higher_is_better, model, {}))
        model.train()
        begun, step = time.monotonic(), 0
        try:
            while step < options.steps and not evaluator.enough(options.until, options.patience):
                stepper.take(step, False)
                step += 1
                evaluator.measured = None
                seconds = time.monotonic() - begun
                if step % options.evaluate_every == 0 or step == options.steps:
                    stepper.settle()
                    evaluator.evaluate(step, lambda: False, lambda write: write())
                    event = Evaluation(
                        step,
                        options.steps,
                        stepper.lr,
                        measured=evaluator.measured or {},
                        best_step=evaluator.best_step,
                        best=evaluator.best,
                        seconds=seconds,
                        **stepper.means(),
                    )
                    tell("on_evaluation", event)
                    evaluator.schedule()
                tell("on_step", Step(step, options.steps, stepper.lr, stepper.loss, seconds))
        except NotFiniteError as error:
            raise RunError(f"step {error.step + 1}: the loss or a gradient is not finite; try a lower lr") from None
        test = evaluator.test(lambda: False)
        result = Result(
            Path(),
            step,
            round(time.monotonic() - begun, 1),
            finished=True,
            best_step=evaluator.best_step,
            best=evaluator.best,
            test=test or {},
        )
        tell("on_end", result)
    return result
