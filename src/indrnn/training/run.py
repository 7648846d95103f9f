"""A training run: started, resumed bit-exactly from any moment, stopped and finished.

All randomness of a step derives from (seed, step, process). A checkpoint therefore holds no generator state and no
position in the data: the step number suffices, together with the state that a task carries from step to step.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
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
from .checkpoint import FORMAT
from .diagnose import first_not_finite
from .errors import RunError, lost, out_of_memory, signals
from .evaluation import Evaluator
from .folder import RunFolder, command, finite, machine
from .listeners import Curve, Evaluation, Listener, Listeners, MetricsFile, Start, Step, TensorBoard, WandB, progress
from .options import Training
from .processes import Processes, choose_device, processes
from .resume import Opening
from .task import Task
from .update import NotFiniteError, Stepper, may_fuse, to_device


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    folder: Path
    steps: int
    seconds: float
    """Time of training, over all the times it was taken up."""
    finished: bool
    stopped_by: int | None = None
    """The signal that ended it early."""
    best_step: int | None = None
    best: dict[str, float] = field(default_factory=dict)
    """The evaluation of the best weights."""
    test: dict[str, float] = field(default_factory=dict)
    """`Task.test` of the best weights; empty for a task without test data."""
    main: bool = True
    """Whether this is the process that wrote the files, of those that trained together."""


def train(
    model: nn.Module,
    task: Task,
    options: Training | None = None,
    *,
    out: str | Path,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    config: dict[str, Any] | None = None,
    resume_command: str | None = None,
    listeners: Iterable[Listener] = (),
    quiet: bool = False,
) -> Result:
    """Train a model and save the run in a folder.

    Args:
        model: any module; it ends up with the best weights.
        task: batches, loss and evaluation; see `Task`, and `TensorTask` for your own data.
        options: training options; see `Training`.
        out: folder of the run. If it already holds files, `resume` or `overwrite` is required.
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
    threads = torch.get_num_threads()
    with lost(), processes(options.device) as group, torch.random.fork_rng(devices=_gpus()):
        run = _Run(model, task, options, RunFolder(Path(out)), seed, group)
        run.asked |= config or {}
        run.model_config = recorded_config(model)
        run.resume_command = resume_command or "the same call with resume=True"
        told: list[Listener] = [] if quiet else [progress()]
        run.tell = Listeners([*told, *listeners] if group.main else [])
        try:
            if options.threads is not None:
                torch.set_num_threads(options.threads)
            with contextlib.ExitStack() as stack:
                run.open(stack, resume, overwrite)
                with signals() as run.received:
                    return run.live()
        finally:
            torch.set_num_threads(threads)


def _gpus() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []


class _Run:
    tell: Listeners
    received: list[int]
    resume_command: str
    model_config: dict[str, Any] | None
    stepper: Stepper
    evaluator: Evaluator

    def __init__(
        self, model: nn.Module, task: Task, options: Training, folder: RunFolder, seed: int, group: Processes
    ) -> None:
        self.model, self.task, self.options, self.folder, self.seed, self.group = (
            *(model, task, options, folder, seed, group),
        )
        self.device = choose_device(options.device, group)
        if options.precision == "fp16" and self.device.type != "cuda":
            raise ValueError("precision fp16 needs a GPU; bf16 is for CPUs too")
        if options.distributed == "fsdp" and options.ema is not None:
            raise ValueError("ema must be None with distributed fsdp, whose weights are divided")
        if options.distributed == "fsdp" and options.optimizer == "muon":
            raise ValueError("optimizer must not be muon with distributed fsdp, whose matrices are divided")
        self.asked: dict[str, Any] = {"training": options, "seed": seed}
        describe = getattr(task, "describe", None)
        if describe is not None:
            self.asked["task"] = describe()
        self.asked["model"] = _about(model)
        self.step = 0
        self.seconds = 0.0
        self.saved_step: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the run, as JSON types."""
        return {**to_json(self.asked), "processes": self.group.count}

    # ---- begin

    def open(self, stack: contextlib.ExitStack, resume: bool, overwrite: bool) -> None:
        """Lock the folder, and restore the last checkpoint if the run is resumed."""
        state: Any = None
        problem: Exception | None = None
        if self.group.main:
            try:
                state = Opening(self.folder, self.asked, self.group.count, self.tell).open(stack, resume, overwrite)
            except (ValueError, OSError, RunError) as error:
                problem = error
        state, text, bad = self.group.from_main((state, str(problem or ""), isinstance(problem, RunError)))
        if text:
            raise problem or (RunError(text) if bad else ValueError(text))
        with self._trouble():
            self.model.to(self.device)
            fused = may_fuse(self.model, self.options, self.group) if state is None else state.get("fused", False)
            self.stepper = Stepper(
                self.model,
                self.task,
                self.options,
                seed=self.seed,
                group=self.group,
                device=self.device,
                fused=fused,
            )
            stack.callback(self.stepper.close)
            self.evaluator = Evaluator(self.stepper, self.folder.checkpoints)
            if state is not None:
                self._restore(state)
            else:  # before all other files: where those are, there is a state
                self._save()
            if self.group.main:
                self._record(state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.stepper.load_state_dict(state)
        self.evaluator.load_state_dict(state)
        self.step, self.seconds = state["step"], state["seconds"]
        self.saved_step = self.step

    def _record(self, state: dict[str, Any] | None) -> None:
        """Write config.json: the first start's record is kept, and resumptions are listed."""
        folder = self.folder
        this_time = {"command": command(), "started": now(), "threads": torch.get_num_threads(), "machine": machine()}
        record = self.config | {"fused": self.stepper.fused} | this_time
        if state is not None:
            try:
                earlier = folder.read_json(folder.config)
            except ValueError as error:
                self.tell("on_note", f"{error}; it is written anew from the checkpoint")
                earlier = state["config"] | {"fused": self.stepper.fused} | this_time
            record = earlier | self.config | {"resumed": [*earlier.get("resumed", []), this_time]}
        self._writing(lambda: folder.write_json(folder.config, record))
        if self.model_config is not None:
            self._writing(lambda: folder.write_json(folder.model, self.model_config))
        self._writing(folder.metrics.touch)
        tokeniser = getattr(self.task, "tokeniser", None)
        if tokeniser is not None:
            self._writing(lambda: write_atomically(folder.tokeniser, tokeniser.to_json().encode()))

    # ---- from the first step to the last

    def live(self) -> Result:
        """Train to the end, or until a signal."""
        if self.group.main:
            self.tell.each[:0] = self._own_listeners()
        task, options, evaluator = self.task, self.options, self.evaluator
        about = (task.metric, task.higher_is_better, self.model, self.config)
        self.tell("on_start", Start(self.folder.path, self.step, options.steps, *about))
        try:
            with self._trouble():
                self.stepper.train(self.step)
                begun, earlier = time.monotonic(), self.seconds
                saved = begun
                stop = evaluator.due and not self._evaluate()
                while self.step < options.steps and not evaluator.enough(options.until, options.patience) and not stop:
                    stop = self.stepper.take(self.step, bool(self.received))
                    self.step += 1
                    evaluator.measured = None
                    self.seconds = earlier + time.monotonic() - begun
                    if self.step % options.evaluate_every == 0 or self.step == options.steps:
                        stop = not self._evaluate() or stop
                        self.seconds = earlier + time.monotonic() - begun
                    done = (self.step, options.steps, self.stepper.lr, self.stepper.loss, self.seconds)
                    self.tell("on_step", Step(*done))
                    if not stop and self._agreed(time.monotonic() - saved >= options.checkpoint_every):
                        self._save()
                        saved = time.monotonic()
                result = None if stop else self._finish()
                if result is None:
                    self._save()
                    said = f"stopped at step {self.step}, and saved; to go on: {self.resume_command}"
                    self.tell("on_note", said)
                    number = self.received[0] if self.received else int(signal.SIGTERM)
                    result = self._result(finished=False, stopped_by=number)
        except BaseException:
            self.tell("on_end", self._result(finished=False))
            raise
        self.tell("on_end", result)
        return result

    def _agreed(self, wish: bool) -> bool:
        """Whether to save now; if all processes take part in saving, the main one decides."""
        gathers = self.group.count > 1 and (self.options.distributed == "fsdp" or self._carries)
        return bool(self.group.from_main(wish)) if gathers else wish

    @property
    def _carries(self) -> bool:
        return hasattr(self.task, "state_dict")

    def _own_listeners(self) -> list[Listener]:
        own: list[Listener] = [MetricsFile(self.folder)]
        wanted: list[tuple[bool, Callable[[], Listener]]] = [
            (self.options.tensorboard, TensorBoard),
            (self.options.wandb, WandB),
        ]
        for wish, make in wanted:
            if wish:
                try:
                    own.append(make())
                except ImportError:
                    if make is WandB:
                        self.tell("on_note", "nothing is logged to Weights & Biases: pip install 'indrnn[wandb]'")
        return [*own, *([Curve()] if self.options.curve else [])]

    def _evaluate(self) -> bool:
        """Evaluate this step's weights; returns False if it was stopped."""
        self.stepper.settle()
        evaluator = self.evaluator
        if not evaluator.evaluate(self.step, lambda: bool(self.received), self._writing):
            return False
        assert evaluator.measured is not None
        means = self.stepper.means()
        event = Evaluation(
            self.step,
            self.options.steps,
            self.stepper.lr,
            measured=evaluator.measured,
            best_step=evaluator.best_step,
            best=evaluator.best,
            seconds=self.seconds,
            **means,
        )
        self._writing(lambda: self.tell("on_evaluation", event))
        if evaluator.schedule():
            self.tell(
                "on_note",
                f"step {self.step}: no better for a while; back to the weights of step {evaluator.best_step} with a "
                "lower learning rate",
            )
        return True

    # ---- files

    def _save(self) -> None:
        self.stepper.settle()
        if self.group.main or self.options.distributed == "fsdp" or self._carries:
            state = {
                "format": FORMAT,
                "config": self.config,
                "processes": self.group.count,
                "step": self.step,
                "seconds": self.seconds,
                **self.evaluator.state_dict(),
                **self.stepper.state_dict(),
            }
            if self.group.main:
                self._writing(lambda: self._write_state(state))
        self.saved_step = self.step

    def _write_state(self, state: dict[str, Any]) -> None:
        metrics = self.folder.metrics
        size = 0
        if metrics.exists():
            with metrics.open("ab") as file:
                os.fsync(file.fileno())
            size = metrics.stat().st_size
        self.folder.checkpoints.save(state | {"metrics_bytes": size})

    def _writing(self, write: Callable[[], Any]) -> None:
        """Call `write`; if that fails, raise a `RunError` that says which checkpoint is kept."""
        try:
            write()
        except OSError as error:
            raise RunError(
                f"step {self.step}: cannot write to {self.folder.path}: {error.strerror or error}; {self._kept()}. "
                f"When there is room again, go on with: {self.resume_command}"
            ) from error

    def _kept(self) -> str:
        return "no checkpoint yet" if self.saved_step is None else f"the checkpoint of step {self.saved_step} is kept"

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        """Convert errors that end a started run to a `RunError` that says which checkpoint is kept."""
        try:
            yield
        except NotFiniteError as error:
            raise RunError(self._not_finite(error)) from None
        except RunError:
            raise
        except (ValueError, OSError, MemoryError) as error:
            about = str(error) or type(error).__name__
            raise RunError(f"step {self.step}: {about}; {self._kept()}") from error
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise RunError(
                f"step {self.step}: out of memory ({str(error).splitlines()[0]}); {self._kept()}. A smaller batch, or "
                "the same in pieces (accumulate), needs less"
            ) from error

    def _not_finite(self, error: NotFiniteError) -> str:
        stepper = self.stepper
        if stepper.carried is not None:
            self.task.load_state_dict(to_device(stepper.carried, self.device))  # type: ignore[attr-defined]
        mine = ""
        with stepper.autocast():
            for piece in range(self.options.accumulate):
                stepper.seed_for(error.step, piece)
                batch = stepper.batches(error.step, piece)
                mine = mine or first_not_finite(self.model, self.task, batch) or ""
        seen = [text for text in self.group.of_all(mine) if text]
        where = seen[0] if seen else "which did not come again when the batch was run once more"
        step, folder = self.saved_step, self.folder.checkpoints.folder
        last = "There is no checkpoint yet" if step is None else f"The checkpoint of step {step} is kept in {folder}"
        what = f"the loss became {error.loss}" if not math.isfinite(error.loss) else "a gradient is not finite"
        return f"step {error.step + 1}: {what}, {where}. {last}"

    def _finish(self) -> Result | None:
        """Test the best weights and write them; None if it was stopped before that."""
        if self.saved_step != self.step:
            self._save()
        test = self.evaluator.test(lambda: bool(self.received))
        if test is None:
            return None
        result = self._result(finished=True, test=test)
        weights = self.stepper.sharing.model_state()
        if self.group.main:
            folder = self.folder

            def write() -> None:
                write_atomically(folder.weights, weights_as_bytes(weights))
                record = {name: getattr(result, name) for name in ("steps", "seconds", "best_step", "best", "test")}
                about = {"seed": self.seed, "command": command(), "machine": machine()}
                folder.write_json(folder.result, finite(record | about))

            self._writing(write)
        return result

    def _result(self, **others: Any) -> Result:
        step = getattr(self, "evaluator", None)
        return Result(
            self.folder.path,
            self.step,
            round(self.seconds, 1),
            best_step=step and step.best_step,
            best=step.best if step else {},
            main=self.group.main,
            **others,
        )


def _about(model: nn.Module) -> dict[str, Any]:
    """Description of a model: class, number of parameters, and a checksum of the shapes in its state."""
    state = model.state_dict()
    shapes = sorted(str(list(value.shape)) for value in state.values() if isinstance(value, torch.Tensor))
    checksum = hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"class": type(model).__qualname__, "parameters": parameters, "shapes": checksum}
