"""A training run: started, resumed bit-exactly from any moment, stopped and finished.

All randomness of a step derives from (seed, step, process). A checkpoint therefore holds no generator state and no
position in the data: the step number suffices, together with the state that a task carries from step to step.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..files import now, write_atomically
from ..saving import recorded_config, to_json, weights_as_bytes
from .checkpoint import BestInMemory
from .errors import NotFiniteError, RunError, first_not_finite, out_of_memory, signals
from .evaluation import Evaluator
from .folder import RunFolder, command, finite, machine
from .listeners import Evaluation, Listener, Listeners, Start, Step, file_listeners, progress
from .optimizers import may_fuse
from .options import Training
from .parallel import Processes, choose_device, processes
from .resume import open_folder
from .task import Task
from .update import Updater


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    folder: Path | None
    """Folder of the run; None for one that writes nothing."""
    steps: int
    """Number of steps, over all the times it was resumed."""
    seconds: float
    """Time of training, over all the times it was resumed."""
    finished: bool
    """Whether it was trained to its end."""
    stopped_by: int | None = None
    """Number of the signal that ended it early."""
    best_step: int | None = None
    """Step of the best weights."""
    best: dict[str, float] = field(default_factory=dict)
    """Evaluation of the best weights."""
    test: dict[str, float] = field(default_factory=dict)
    """Result of `Task.test` with the best weights; empty for a task without test data."""
    main: bool = True
    """Whether this is the process that wrote the files, of those that trained together."""


def train(
    model: nn.Module,
    task: Task,
    options: Training | None = None,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    config: dict[str, Any] | None = None,
    resume_command: str | None = None,
    listeners: Iterable[Listener] = (),
    quiet: bool = False,
) -> Result:
    """Train a model, and save the run in a folder.

    Args:
        model: any module; it ends up with the best weights.
        task: batches, loss and evaluation; see `Task`, and `TensorTask` for your own data.
        options: training options; see `Training`.
        out: folder of the run. If it already holds files, `resume` or `overwrite` is required. None to write nothing:
            the best weights are kept in memory, a signal has its usual effect, and the model is the same.
        seed: seed of dropout and all other randomness in the model.
        resume: resume from the last checkpoint in `out`; start anew if the folder is empty or missing.
        overwrite: delete an earlier run in `out`.
        config: further entries of config.json, compared on `resume`.
        resume_command: command shown to the user for resuming the run.
        listeners: listeners, in the main process, in addition to those that `options` name.
        quiet: do not print progress.

    Returns:
        The result. After Ctrl-C, SIGTERM or SIGHUP, a checkpoint has been saved and `finished` is False.

    Raises:
        ValueError: for invalid arguments; nothing has been done then.
        RunError: if the run cannot continue: a damaged folder, a non-finite loss, lack of memory, a full disk.
    """
    options = options or Training()
    if resume and overwrite:
        raise ValueError("resume and overwrite cannot both be asked for")
    if out is None and (resume or overwrite):
        raise ValueError(f"out must be a folder to {'resume' if resume else 'overwrite'}, got None")
    folder = None if out is None else RunFolder(Path(out))
    gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with (
        processes(options.device) as group,
        torch.random.fork_rng(devices=gpus),
        _threads(options.threads),
        contextlib.ExitStack() as stack,
    ):
        run = _Run(model, task, options, folder, seed, group)
        run.recorded |= config or {}
        run.resume_command = resume_command or "the same call with resume=True"
        run.tell.listeners += [*([] if quiet else [progress()]), *listeners] if group.main else []
        run.open(stack, resume, overwrite)
        if folder is not None:
            run.received = stack.enter_context(signals())
        return run.loop()


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set the number of CPU threads, if it is given; it is restored on exit."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


class _Run:
    """A run, and where its best weights are kept.

    Args:
        model: the model.
        task: the task.
        options: training options.
        folder: the run's folder; None to write nothing.
        seed: seed of all randomness in the model.
        group: the processes.
    """

    updater: Updater
    evaluator: Evaluator
    resume_command: str

    def __init__(
        self, model: nn.Module, task: Task, options: Training, folder: RunFolder | None, seed: int, group: Processes
    ) -> None:
        self.model, self.task, self.options, self.seed, self.group = model, task, options, seed, group
        self.folder = folder
        self.checkpoints = BestInMemory() if folder is None else folder.checkpoints
        self.device = choose_device(options.device, group)
        if options.precision == "fp16" and self.device.type != "cuda":
            raise ValueError("precision fp16 needs a GPU; bf16 is for CPUs too")
        self.recorded: dict[str, Any] = {"training": options, "seed": seed}
        if hasattr(task, "describe"):
            self.recorded["task"] = task.describe()
        self.recorded["model"] = _describe(model)
        self.model_config = None if folder is None else recorded_config(model)
        self.tell = Listeners([])
        self.received: list[int] = []  # signals
        self.step = 0
        self.seconds = 0.0
        self.saved_step: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the run, as JSON types."""
        return {**to_json(self.recorded), "processes": self.group.count}

    # ---- begin

    def open(self, stack: contextlib.ExitStack, resume: bool, overwrite: bool) -> None:
        """Lock the folder, and restore the last checkpoint if the run is resumed."""
        state = self._open_folder(stack, resume, overwrite)
        with self._errors():
            self.model.to(self.device)
            self.fused: bool = may_fuse(self.model, self.options, self.group) if state is None else state["fused"]
            self.updater = Updater(
                self.model,
                self.task,
                self.options,
                seed=self.seed,
                group=self.group,
                device=self.device,
                fused=self.fused,
            )
            stack.callback(self.updater.batches.close)
            self.evaluator = Evaluator(self.updater, self)
            if state is None:  # before all other files: where those are, there is a state
                self._save()
            else:
                self.updater.load_state_dict(state)
                self.evaluator.load_state_dict(state)
                self.step, self.seconds, self.saved_step = state["step"], state["seconds"], state["step"]
            if self.folder is not None and self.group.main:
                self._record(self.folder, state)
                self.tell.listeners[:0] = file_listeners(self.folder, self.options, self.tell)

    def _open_folder(self, stack: contextlib.ExitStack, resume: bool, overwrite: bool) -> dict[str, Any] | None:
        """Open the folder in the main process; its state, or its error, for all processes."""
        state: Any = None
        problem: Exception | None = None
        if self.folder is not None and self.group.main:
            try:
                state = open_folder(self.folder, self.config, self.tell, stack, resume, overwrite)
            except (ValueError, OSError, RunError) as error:
                problem = error
        state, text, is_run_error = self.group.from_main((state, str(problem or ""), isinstance(problem, RunError)))
        if text:
            raise problem or (RunError(text) if is_run_error else ValueError(text))
        return state  # type: ignore[no-any-return]

    def _record(self, folder: RunFolder, state: dict[str, Any] | None) -> None:
        """Write config.json: the first start's record is kept, and resumptions are listed."""
        this_time = {"command": command(), "started": now(), "threads": torch.get_num_threads(), "machine": machine()}
        record = self.config | {"fused": self.fused} | this_time
        if state is not None:
            try:
                earlier = folder.read_json(folder.config)
            except ValueError as error:
                self.tell("on_note", f"{error}; it is written anew from the checkpoint")
                earlier = state["config"] | {"fused": self.fused} | this_time
            record = earlier | self.config | {"resumed": [*earlier.get("resumed", []), this_time]}
        tokeniser = getattr(self.task, "tokeniser", None)

        def write() -> None:
            folder.write_json(folder.config, record)
            if self.model_config is not None:
                folder.write_json(folder.model, self.model_config)
            folder.metrics.touch()
            if tokeniser is not None:
                write_atomically(folder.tokeniser, tokeniser.to_json().encode())

        self._writing(write)

    # ---- from the first step to the last

    def loop(self) -> Result:
        """Train to the end, or until a signal."""
        metric, folder = self.task.metric, None if self.folder is None else self.folder.path
        higher_is_better, steps = self.task.higher_is_better, self.options.steps
        self.tell("on_start", Start(folder, self.step, steps, metric, higher_is_better, self.model, self.config))
        try:
            with self._errors():
                result = self._finish() if self._train() else self._stop()
        except BaseException:
            self.tell("on_end", self._result(finished=False))
            raise
        self.tell("on_end", result)
        return result

    def _train(self) -> bool:
        """Take steps; returns False if it was stopped."""
        options = self.options
        self.updater.train_mode(self.step)
        start, earlier = time.monotonic(), self.seconds
        saved = start
        stop = self.evaluator.due and not self._evaluate()
        while self.step < options.steps and not self.evaluator.enough(self.step) and not stop:
            stop = self.updater.update(self.step, bool(self.received))
            self.step += 1
            self.seconds = earlier + time.monotonic() - start
            if self.step % options.evaluate_every == 0 or self.step == options.steps:
                stop = not self._evaluate() or stop
                self.seconds = earlier + time.monotonic() - start
            self.tell("on_step", Step(self.step, options.steps, self.updater.lr, self.updater.loss, self.seconds))
            if not stop and self._from_main(time.monotonic() - saved >= options.checkpoint_every):
                self._save()
                saved = time.monotonic()
        return not stop

    def _evaluate(self) -> bool:
        """Evaluate this step's weights; returns False if it was stopped."""
        evaluator, updater = self.evaluator, self.updater
        updater.settle()
        if not evaluator.evaluate(self.step, lambda: bool(self.received)):
            return False
        event = Evaluation(
            self.step,
            self.options.steps,
            updater.lr,
            measured=evaluator.measured,
            best_step=evaluator.best_step,
            best=evaluator.best,
            seconds=self.seconds,
            **updater.means(),
        )
        self._writing(lambda: self.tell("on_evaluation", event))
        if evaluator.report_to_schedule():
            self.tell(
                "on_note",
                f"step {self.step}: no better for a while; back to the weights of step {evaluator.best_step} with a "
                "lower learning rate",
            )
        return True

    def _stop(self) -> Result:
        self._save()
        self.tell("on_note", f"stopped at step {self.step}, and saved; to go on: {self.resume_command}")
        return self._result(finished=False, stopped_by=self.received[0] if self.received else int(signal.SIGTERM))

    def _finish(self) -> Result:
        """Test the best weights and write them."""
        if self.saved_step != self.step:
            self._save()
        test = self.evaluator.test(lambda: bool(self.received))
        if test is None:
            return self._stop()
        result = self._result(finished=True, test=test)
        weights = self.updater.parallel.model_state()
        if self.folder is not None and self.group.main:
            folder = self.folder

            def write() -> None:
                write_atomically(folder.weights, weights_as_bytes(weights))
                record = {name: getattr(result, name) for name in ("steps", "seconds", "best_step", "best", "test")}
                origin = {"seed": self.seed, "command": command(), "machine": machine()}
                folder.write_json(folder.result, finite(record | origin))

            self._writing(write)
        return result

    def _result(self, **others: Any) -> Result:
        return Result(
            None if self.folder is None else self.folder.path,
            self.step,
            round(self.seconds, 1),
            best_step=self.evaluator.best_step,
            best=self.evaluator.best,
            main=self.group.main,
            **others,
        )

    # ---- checkpoints

    def save_best(self, step: int, state: dict[str, Any]) -> None:
        """Keep the best weights so far."""
        self._writing(lambda: self.checkpoints.save_best(step, state))

    def load_best(self, step: int) -> dict[str, Any]:
        """Read the best weights so far."""
        return self.checkpoints.load_best(step)

    @property
    def _saves_together(self) -> bool:
        """Whether all processes take part in saving."""
        return self.options.distributed == "fsdp" or hasattr(self.task, "state_dict")

    def _from_main(self, save: bool) -> bool:
        """Whether to save now; if all processes take part in saving, the main one decides."""
        return bool(self.group.from_main(save)) if self.group.count > 1 and self._saves_together else save

    def _save(self) -> None:
        self.updater.settle()
        folder = self.folder
        if folder is not None and (self.group.main or self._saves_together):
            state = {
                "config": self.config,
                "step": self.step,
                "seconds": self.seconds,
                "fused": self.fused,
                **self.evaluator.state_dict(),
                **self.updater.state_dict(),
            }
            if self.group.main:
                self._writing(lambda: folder.checkpoints.save(state | {"metrics_bytes": folder.flush_metrics()}))
        self.saved_step = self.step

    # ---- errors

    def _writing(self, write: Callable[[], Any]) -> None:
        """Call `write`; if that fails, raise a `RunError` that says which checkpoint is kept."""
        try:
            write()
        except OSError as error:
            assert self.folder is not None
            raise RunError(
                f"step {self.step}: cannot write to {self.folder.path}: {error.strerror or error}{self._kept}. "
                f"When there is room again, go on with: {self.resume_command}"
            ) from error

    @property
    def _kept(self) -> str:
        """End of a message: which checkpoint is kept."""
        if self.folder is None:
            return ""
        if self.saved_step is None:
            return "; no checkpoint yet"
        return f"; the checkpoint of step {self.saved_step} is kept"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors that end a started run to a `RunError` that says which checkpoint is kept."""
        try:
            yield
        except NotFiniteError as error:
            raise RunError(self._diagnose(error)) from None
        except RunError:
            raise
        except (ValueError, OSError, MemoryError) as error:
            raise RunError(f"step {self.step}: {str(error) or type(error).__name__}{self._kept}") from error
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise RunError(
                f"step {self.step}: out of memory ({str(error).splitlines()[0]}){self._kept}. A smaller batch, or "
                "the same in pieces (accumulate), needs less"
            ) from error

    def _diagnose(self, error: NotFiniteError) -> str:
        """Repeat the step whose loss or gradient was not finite, and say where that began."""
        updater = self.updater
        if updater.carried is not None:
            updater.load_carried(updater.carried)
        place = ""
        with updater.autocast():
            for piece in range(self.options.accumulate):
                updater.seed_noise(error.step, piece)
                batch = updater.batches(error.step, piece)
                place = place or first_not_finite(self.model, self.task, batch) or ""
        place = next(
            filter(None, self.group.of_all(place)), "which did not come again when the batch was run once more"
        )
        what = f"the loss became {error.loss}" if not math.isfinite(error.loss) else "a gradient is not finite"
        if self.folder is None:
            return f"step {error.step + 1}: {what}, {place}. A lower lr may help"
        kept = "There is no checkpoint yet"
        if self.saved_step is not None:
            kept = f"The checkpoint of step {self.saved_step} is kept in {self.folder.checkpoints.folder}"
        return f"step {error.step + 1}: {what}, {place}. {kept}"


def _describe(model: nn.Module) -> dict[str, Any]:
    """Description of a model: class, number of parameters, and a checksum of the shapes in its state."""
    state = model.state_dict()
    shapes = sorted(str(list(value.shape)) for value in state.values() if isinstance(value, torch.Tensor))
    checksum = hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"class": type(model).__qualname__, "parameters": parameters, "shapes": checksum}
