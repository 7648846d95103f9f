"""A training run: started, resumed bit-exactly from any moment, stopped and finished.

All randomness of a step derives from (seed, step, process). A checkpoint therefore holds no generator state and no
position in the data: the step number suffices, together with the state that a task carries from step to step.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..files import now, write_atomically
from ..saving import recorded_config, to_json, weights_as_bytes
from ..system import out_of_memory, signals
from .checkpoint import load
from .evaluation import Progress, measure
from .folder import RunError, RunFolder, command, finite, machine, open_folder
from .listeners import Evaluation, Listener, Listeners, Start, Step, file_listeners, progress
from .optimizers import may_fuse
from .options import Training
from .parallel import Processes, choose_device, processes
from .task import Shard, Task
from .update import NotFiniteError, Updater, first_not_finite


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
    """Flag of a run that was trained to its end."""
    stopped_by: int | None = None
    """Number of the signal that ended it early."""
    best_step: int | None = None
    """Step of the best weights."""
    best: dict[str, float] = field(default_factory=dict)
    """Evaluation of the best weights."""
    test: dict[str, float] = field(default_factory=dict)
    """Result of `Task.test` with the best weights; empty for a task without test data."""
    main: bool = True
    """Flag of the process that wrote the files, among those that trained together."""


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
    with processes(options.device) as group, torch.random.fork_rng(devices=gpus), contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        tell = Listeners([*([] if quiet else [progress()]), *listeners] if group.main else [])
        again = resume_command or "the same call with resume=True"
        run = _Run(model, task, options, folder, seed, group, config or {}, again, tell)
        run.open(stack, resume, overwrite)
        if folder is not None:
            run.received = stack.enter_context(signals())
        return run.loop()


@dataclass
class _Run:
    """A run: its model, its progress, and where its files are."""

    model: nn.Module
    task: Task
    options: Training
    folder: RunFolder | None
    seed: int
    group: Processes
    more_config: dict[str, Any]
    resume_command: str
    tell: Listeners
    progress: Progress = field(default_factory=Progress)
    saved_step: int | None = None
    received: list[int] = field(default_factory=list)  # signals
    best_in_memory: dict[str, Any] = field(default_factory=dict)  # of a run without a folder

    def open(self, stack: contextlib.ExitStack, resume: bool, overwrite: bool) -> None:
        """Check the arguments, lock the folder, and restore the last checkpoint if the run is resumed."""
        model, task, options, group, folder = self.model, self.task, self.options, self.group, self.folder
        device = choose_device(options.device, group)
        if options.precision == "fp16" and device.type != "cuda":
            raise ValueError("precision fp16 needs a GPU; bf16 is for CPUs too")
        described = {"task": task.describe()} if hasattr(task, "describe") else {}
        recorded = {"training": options, "seed": self.seed, **described, "model": _describe(model)}
        self.config: dict[str, Any] = {**to_json(recorded | self.more_config), "processes": group.count}
        self.path = None if folder is None else folder.path
        self.written = folder if group.main else None  # by this process
        self.shard = Shard(group.rank, group.count)
        self.stopped = lambda: bool(self.received)
        self.measure = partial(measure, group=group, stopped=self.stopped, task=task)
        # Whether all processes take part in saving
        self.saves_together = options.distributed == "fsdp" or hasattr(task, "state_dict")

        model_config = None if folder is None else recorded_config(model)
        state = problem = None
        try:
            if self.written is not None:
                note = partial(self.tell, "on_note")
                state = open_folder(self.written, self.config, note, stack, resume, overwrite)
        except (ValueError, OSError, RunError) as error:
            problem = error
        state, problem = group.from_main((state, problem))
        if problem is not None:  # for all processes
            raise problem
        with self._errors():
            model.to(device)
            self.fused = may_fuse(model, options, group) if state is None else state["fused"]
            self.updater = Updater(model, task, options, self.seed, group, self.fused)
            stack.callback(self.updater.pool.shutdown, cancel_futures=True)
            if state is None:  # before all other files: where those are, there is a state
                self._save()
            else:
                self.updater.load_state_dict(state)
                self.progress = Progress(**{name.name: state[name.name] for name in fields(Progress)})
                self.saved_step = self.progress.step
            if self.written is not None:
                self._record(self.written, model_config, resumed=state is not None)
                self.tell[:0] = file_listeners(self.written, task, options, self.tell)

    def _record(self, folder: RunFolder, model_config: dict[str, Any] | None, *, resumed: bool) -> None:
        """Write config.json: the first start's record is kept, and resumptions are listed."""
        this_time = {"command": command(), "started": now(), "threads": torch.get_num_threads(), "machine": machine()}
        record = self.config | {"fused": self.fused} | this_time
        if resumed:
            try:
                record = folder.read_json(folder.config) | self.config
            except ValueError as error:
                self.tell("on_note", f"{error}; it is written anew from the checkpoint")
            record["resumed"] = [*record.get("resumed", []), this_time]
        with self._writing():
            folder.write_json(folder.config, record)
            if model_config is not None:
                folder.write_json(folder.model, model_config)
            folder.metrics.touch()
            if (tokeniser := getattr(self.task, "tokeniser", None)) is not None:
                write_atomically(folder.tokeniser, tokeniser.to_json().encode())

    def loop(self) -> Result:
        """Train to the end, or until a signal."""
        task, progress = self.task, self.progress
        metric = task.metric, task.higher_is_better
        self.tell("on_start", Start(self.path, progress.step, self.options.steps, *metric, self.model, self.config))
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
        options, progress, updater = self.options, self.progress, self.updater
        updater.train_mode(progress.step)
        saved = time.monotonic()
        begun = saved - progress.seconds
        stop = progress.due and not self._evaluate()
        while not stop and progress.step < options.steps and not progress.enough(self.task, options):
            stop = updater.update(progress.step, self.stopped())
            progress.step += 1
            progress.seconds = time.monotonic() - begun
            if progress.step % options.evaluate_every == 0 or progress.step == options.steps:
                stop = not self._evaluate() or stop
                progress.seconds = time.monotonic() - begun
            self.tell("on_step", Step(progress.step, options.steps, updater.lr, updater.loss, progress.seconds))
            save = not stop and time.monotonic() - saved >= options.checkpoint_every
            if self.group.from_main(save) if self.saves_together else save:
                self._save()
                saved = time.monotonic()
        if stop or self.saved_step != progress.step:
            self._save()
        return not stop

    def _evaluate(self) -> bool:
        """Evaluate this step's weights, and keep them if they are the best; returns False if it was stopped."""
        task, progress, updater = self.task, self.progress, self.updater
        updater.scalars.check_last()
        with updater.evaluated_weights(progress.step, self.stopped) as model:
            measured = self.measure(task.evaluate(model, progress.step, self.shard))
            progress.due = measured is None
            if measured is None:
                return False
            better = progress.record(measured, task)
            weights = updater.best_weights(progress.step) if better else {}
        if better:
            self._save_best(updater.training_state() | weights)
        loss, norm = updater.means()
        best = progress.best_step, progress.best, progress.seconds
        event = Evaluation(progress.step, self.options.steps, updater.lr, loss, norm, measured, *best)
        if self.written is not None:
            with self._writing():
                self.written.append_metrics({"step": event.step, **event.numbers})
        self.tell("on_evaluation", event)
        if progress.best_step is not None and updater.divide_lr(better):
            updater.load_training_state(self._load_best(progress.best_step))
            back = f"back to the weights of step {progress.best_step} with a lower learning rate"
            self.tell("on_note", f"step {progress.step}: no better for a while; {back}")
        return True

    def _finish(self) -> Result:
        """Test the best weights and write them."""
        best_step, updater, folder = self.progress.best_step, self.updater, self.written
        updater.load_best_weights(None if best_step is None else self._load_best(best_step))
        with torch.no_grad(), updater.autocast():
            test = self.measure(self.task.test(self.model, self.shard))
        if test is None:
            return self._stop()
        result = self._result(finished=True, test=test)
        weights = updater.parallel.state_of(self.model)
        if folder is not None:
            record = {name: getattr(result, name) for name in ("steps", "seconds", "best_step", "best", "test")}
            origin = {"seed": self.seed, "command": command(), "machine": machine()}
            with self._writing():
                write_atomically(folder.weights, weights_as_bytes(weights))
                folder.write_json(folder.result, finite(record | origin))
        return result

    def _stop(self) -> Result:
        self.tell("on_note", f"stopped at step {self.progress.step}, and saved; to go on: {self.resume_command}")
        return self._result(finished=False, stopped_by=self.received[0] if self.received else int(signal.SIGTERM))

    def _result(self, **others: Any) -> Result:
        progress = self.progress
        others |= {"best_step": progress.best_step, "best": progress.best, "main": self.group.main}
        return Result(self.path, progress.step, round(progress.seconds, 1), **others)

    def _save(self) -> None:
        self.updater.scalars.check_last()
        if self.written is not None or (self.folder is not None and self.saves_together):
            state = {"config": self.config, "fused": self.fused, **asdict(self.progress), **self.updater.state_dict()}
            if self.written is not None:
                with self._writing():
                    self.written.checkpoints.save(state | {"metrics_bytes": self.written.flush_metrics()})
        self.saved_step = self.progress.step

    def _save_best(self, state: dict[str, Any]) -> None:
        """Keep the state of the best evaluation so far, on the disk or in memory."""
        if self.folder is None:
            self.best_in_memory = copy.deepcopy(state)
        elif self.written is not None:
            with self._writing():
                self.written.checkpoints.save_best(self.progress.step, state)

    def _load_best(self, step: int) -> dict[str, Any]:
        """The state of the best evaluation so far, for all processes."""
        if self.folder is None:
            return self.best_in_memory
        best = load(self.folder.checkpoints.best(step)) if self.group.main else None
        return self.group.from_main(best)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Convert an error of writing to a `RunError` that says which checkpoint is kept."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"step {self.progress.step}: cannot write to {self.path}: {error.strerror or error}"
                f"{self._kept}. When there is room again, resume with: {self.resume_command}"
            ) from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors that end a started run to a `RunError` that says which checkpoint is kept."""
        try:
            yield
        except NotFiniteError as error:
            raise RunError(self._diagnose(error)) from None
        except (ValueError, OSError, MemoryError) as error:
            raise RunError(f"step {self.progress.step}: {str(error) or type(error).__name__}{self._kept}") from error
        except RuntimeError as error:
            if isinstance(error, RunError) or not out_of_memory(error):
                raise
            raise RunError(
                f"step {self.progress.step}: out of memory ({str(error).splitlines()[0]}){self._kept}. A smaller "
                "batch, or the same in pieces (accumulate), needs less"
            ) from error

    @property
    def _kept(self) -> str:
        """End of a message: which checkpoint is kept."""
        if self.folder is None:
            return ""
        step = self.saved_step
        return "; no checkpoint yet" if step is None else f"; the checkpoint of step {step} is kept"

    def _diagnose(self, error: NotFiniteError) -> str:
        """Repeat the step whose loss or gradient was not finite, and say where that began."""
        updater, place = self.updater, None
        updater.load_carried(updater.carried)
        with updater.autocast():
            for piece in range(self.options.accumulate):
                updater.seed_noise(error.step, piece)
                batch = updater.batch(error.step, piece)
                place = place or first_not_finite(self.model, self.task, batch)
        places = [*filter(None, self.group.of_all(place)), "which did not come again when the batch was run once more"]
        what = f"the loss became {error.loss}" if not math.isfinite(error.loss) else "a gradient is not finite"
        if self.folder is None:
            advice = "A lower lr may help"
        elif self.saved_step is None:
            advice = "There is no checkpoint yet"
        else:
            advice = f"The checkpoint of step {self.saved_step} is kept in {self.folder.checkpoints.folder}"
        return f"step {error.step + 1}: {what}, {places[0]}. {advice}"


def _describe(model: nn.Module) -> dict[str, Any]:
    """Description of a model: class, number of parameters, and a checksum of the shapes in its state."""
    shapes = sorted(str(list(v.shape)) for v in model.state_dict().values() if isinstance(v, torch.Tensor))
    checksum = hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"class": type(model).__qualname__, "parameters": parameters, "shapes": checksum}
