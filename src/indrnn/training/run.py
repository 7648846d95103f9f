"""A run's folder and life: begun, taken up again at any moment, to the bit, stopped and finished.

All that is random in a step comes from (seed, step, process), so a checkpoint holds no generator and no position in the
data: the number of the step says it all, beside what a task carries from step to step.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..models import weights_as_bytes
from .checkpoint import FORMAT, BrokenCheckpointError, verify, write_atomically
from .diagnose import first_not_finite
from .evaluation import Evaluator, measure
from .folder import RunFolder, command, defaults, finite, flat, machine, now, plain
from .listeners import Curve, Evaluation, Listener, Listeners, MetricsFile, Start, Step, TensorBoard, WandB, progress
from .options import FREE_ON_RESUME, Training
from .processes import LostError, Processes, choose_device, processes
from .step import NotFiniteError, Stepper, autocast, may_fuse, to_device
from .task import Shard, Task


class RunError(RuntimeError):
    """A run that cannot go on, and why, in a line."""


@dataclass(frozen=True)
class Result:
    """What came of a run."""

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
    model_config: dict[str, Any] | None = None,
    resume_command: str | None = None,
    listeners: Iterable[Listener] = (),
    draw: Callable[[RunFolder, nn.Module], Any] | None = None,
    quiet: bool = False,
) -> Result:
    """Train a model and leave a run in a folder.

    Args:
        model: any module; it ends up with the best weights.
        task: batches, loss and evaluation; see `Task`, and `TensorTask` for one's own data.
        options: how; see `Training`.
        out: the folder. One that holds something already is only touched with `resume` or `overwrite`.
        seed: of dropout and all else that is random in the model.
        resume: go on from the last checkpoint in `out`; from the start where the folder is empty or not there.
        overwrite: throw an earlier run in `out` away.
        config: more to record in config.json, and to compare on `resume`; dataclasses are compared with the defaults
            of fields that an earlier version did not have.
        model_config: what `indrnn.load` builds the model from; `model.config` where that is a dataclass.
        resume_command: what to tell the user who stops the run.
        listeners: who hears of it, beside what `options` name; in the main process.
        draw: draws curve.png; the metric over the steps if None.
        quiet: whether progress is not printed.

    Returns:
        What came of it. After Ctrl-C, SIGTERM or SIGHUP a checkpoint is there and `finished` is False.

    Raises:
        ValueError: for arguments that cannot be; nothing has been done then.
        RunError: when the run cannot go on: a damaged folder, a loss that is not finite, no memory, a full disk.
    """
    options = options or Training()
    if resume and overwrite:
        raise ValueError("resume and overwrite cannot both be asked for")
    threads = torch.get_num_threads()
    with _lost(), processes(options.device) as group, torch.random.fork_rng(devices=_gpus()):
        run = _Run(model, task, options, RunFolder(Path(out)), seed, group)
        run.asked |= config or {}
        run.model_config = model_config or _config_of(model)
        run.resume_command = resume_command or "the same call with resume=True"
        told: list[Listener] = [] if quiet else [progress()]
        run.tell = Listeners([*told, *listeners] if group.main else [])
        try:
            if options.threads is not None:
                torch.set_num_threads(options.threads)
            with contextlib.ExitStack() as stack:
                run.open(stack, resume, overwrite)
                with _signals() as run.received:
                    return run.live(draw)
        finally:
            torch.set_num_threads(threads)


def evaluate(model: nn.Module, task: Task, run: str | Path, *, device: str = "auto") -> dict[str, float]:
    """Measure the best weights of a run again, with the precision it was trained in: `Task.test`, else `evaluate`.

    Args:
        model: built as for the run; it ends up with those weights.
        task: of the run.
        run: its folder.
        device: where to compute.
    """
    folder = RunFolder(Path(run))
    load_best(model, folder)
    where = choose_device(device, Processes())
    model.to(where).eval()
    precision = folder.read_json(folder.config)["training"]["precision"]
    if precision == "fp16" and where.type == "cpu":
        precision = "float32"
    with torch.no_grad(), autocast(precision, where):
        found = measure(task.test(model, Shard()), Processes(), task=task)
        return found or measure(task.evaluate(model, 0, Shard()), Processes(), task=task) or {}


def is_finished(folder: RunFolder) -> bool:
    """Whether the weights in a run's folder are those of its last checkpoint, and not of a time before it went on."""
    if not (folder.result.exists() and folder.weights.exists()):
        return False
    state, _ = folder.checkpoints.find()
    return state is None or bool(state["step"] == folder.read_json(folder.result)["steps"])


def load_best(model: nn.Module, folder: RunFolder) -> tuple[int | None, bool]:
    """Give a model the best weights of a run, whose folder is left as it is.

    Returns:
        Their step, and whether the run is finished.
    """
    if is_finished(folder):
        from safetensors.torch import load_model

        load_model(model, folder.weights)
        return folder.read_json(folder.result)["best_step"], True
    state, troubles = folder.checkpoints.find()
    if state is None:
        raise ValueError("; ".join(troubles) or f"{folder.path} holds no weights and no checkpoint")
    if state["best_step"] is None:
        raise ValueError(f"{folder.path} holds no weights and no checkpoint with an evaluation yet")
    try:
        best = folder.checkpoints.load_best(state["best_step"])
    except (BrokenCheckpointError, OSError) as error:
        raise ValueError(f"the best weights so far cannot be read: {error}") from None
    model.load_state_dict(best.get("weights", best["model"]))
    return state["best_step"], False


def _config_of(model: nn.Module) -> dict[str, Any] | None:
    config = getattr(model, "config", None)
    return plain(config) if is_dataclass(config) and not isinstance(config, type) else None


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except LostError as error:
        raise RunError(str(error)) from error


def _gpus() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP instead of dying of them; a second one does what it always did."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(hang_up)
    before = {number: signal.getsignal(number) for number in numbers}

    def take(number: int, _frame: Any) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, take)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        """What was asked for, as JSON holds it."""
        return {**plain(self.asked), "processes": self.group.count}

    # ---- begin

    def open(self, stack: contextlib.ExitStack, resume: bool, overwrite: bool) -> None:
        """Take hold of the folder, and go back to the last checkpoint where one is to be resumed."""
        state: Any = None
        problem: Exception | None = None
        if self.group.main:
            try:
                state = self._open_folder(stack, resume, overwrite)
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

    def _open_folder(self, stack: contextlib.ExitStack, resume: bool, overwrite: bool) -> dict[str, Any] | None:
        folder = self.folder
        used = folder.used
        if used and not (resume or overwrite):
            raise ValueError(
                f"out: {folder.path} holds something already; go on with it (resume), replace it (overwrite), or name "
                "another folder"
            )
        folder.prepare()
        stack.enter_context(folder.locked())
        if overwrite:
            folder.clear()
        state = self._found() if resume and used else None
        if resume and not used:
            self.tell("on_note", f"nothing to resume in {folder.path}: starting")
        folder.remove_temporary()
        return state

    def _found(self) -> dict[str, Any]:
        """The state to go on from. A run is never started over by itself: where there is none, this raises."""
        folder = self.folder
        state, troubles = folder.checkpoints.find()
        if state is None:
            if not folder.checkpoints.any and not folder.config.exists():
                raise ValueError(f"out: {folder.path} holds something that is no run of indrnn; name another folder")
            what = "; ".join(troubles) or f"{folder.checkpoints.folder} holds no checkpoint"
            raise RunError(
                f"cannot resume {folder.path}: {what}. Nothing was changed: put the checkpoint back from a copy, or "
                "start over with overwrite (--overwrite), which throws this run away"
            )
        if state.get("format", 1) > FORMAT:
            raise RunError(
                f"cannot resume {folder.path}: its checkpoint has format {state['format']}, of a later version of "
                f"indrnn; this one reads up to {FORMAT}"
            )
        # The checkpoint's options have a checksum; in the first format they are in config.json alone.
        self._compare(state["config"] if "config" in state else folder.read_json(folder.config))
        if state["processes"] != self.group.count:
            raise ValueError(
                f"this run must be resumed by as many processes as began it, {state['processes']}, "
                f"got {self.group.count}"
            )
        folder.checkpoints.settle()
        for trouble in troubles:
            self.tell("on_note", f"{trouble}; it is set aside")
        self._see_to_best(state)
        self.tell("on_note", f"resuming at step {state['step']}")
        short = folder.cut_metrics(state["metrics_bytes"])
        if short:
            self.tell("on_note", short)
        return state

    def _see_to_best(self, state: dict[str, Any]) -> None:
        """Best weights that are lost: those of the finished run, else the best from here on."""
        step = state["best_step"]
        if step is None:
            return
        folder = self.folder
        path = folder.checkpoints.best(step)
        try:
            verify(path)
            return
        except (BrokenCheckpointError, OSError) as error:
            about = str(error)
        if path.exists():
            path.replace(path.with_suffix(".damaged"))
        with contextlib.suppress(Exception):
            if folder.read_json(folder.result)["best_step"] == step:
                from safetensors.torch import load_file

                weights = load_file(folder.weights)
                if weights.keys() == state["model"].keys():
                    folder.checkpoints.save_best(step, {"model": weights})
                    self.tell("on_note", f"{about}; the best weights are taken from {folder.weights}")
                    return
        self.tell("on_note", f"{about}; the best weights of step {step} are lost, and the best are sought from here on")
        folder.checkpoints.forget_best()
        state["best_step"], state["best"], state["since_best"] = None, {}, 0

    def _compare(self, earlier: dict[str, Any]) -> None:
        """Raise where this run is not the one it is to go on with."""
        new = flat(plain(self.asked))
        usual = flat(defaults(self.asked))
        old = flat({name: value for name, value in earlier.items() if name not in _OF_THIS_TIME})
        for part in ("task", "model"):  # earlier versions did not record these
            if part not in earlier:
                new = {name: value for name, value in new.items() if name.partition(".")[0] != part}
        differences = []
        for name in sorted({*new, *old}):
            if name.startswith("training.") and name.removeprefix("training.") in FREE_ON_RESUME:
                continue
            kind = name.rpartition(".")[0] + ".type"  # a field that an earlier version did not have was at its default
            before = old[name] if name in old else usual.get(name) if old.get(kind) == new.get(kind) else None
            if before != new.get(name):
                differences.append(f"{name} was {before!r} and is now {new.get(name)!r}")
        if differences:
            raise ValueError(f"cannot resume {self.folder.path} with other options: {'; '.join(differences)}")

    def _restore(self, state: dict[str, Any]) -> None:
        self.stepper.load_state_dict(state)
        self.evaluator.load_state_dict(state)
        self.step, self.seconds = state["step"], state["seconds"]
        self.saved_step = self.step

    def _record(self, state: dict[str, Any] | None) -> None:
        """Write config.json: the first time stays; the others are listed."""
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
        self._writing(folder.metrics.touch)
        tokeniser = getattr(self.task, "tokeniser", None)
        if tokeniser is not None:
            self._writing(lambda: write_atomically(folder.tokeniser, tokeniser.to_json().encode()))

    # ---- from the first step to the last

    def live(self, draw: Callable[[RunFolder, nn.Module], Any] | None) -> Result:
        """Train to the end, or to a signal."""
        if self.group.main:
            self.tell.each[:0] = self._own_listeners(draw)
        task, options, evaluator = self.task, self.options, self.evaluator
        about = (task.metric, task.higher_is_better, self.model, self.config)
        self.tell("on_start", Start(self.folder.path, self.step, options.steps, *about))
        try:
            with self._trouble():
                self.model.train()
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
        """Whether to save now: where all take part in that, as the main process decides."""
        gathers = self.group.count > 1 and (self.options.distributed == "fsdp" or self._carries)
        return bool(self.group.from_main(wish)) if gathers else wish

    @property
    def _carries(self) -> bool:
        return hasattr(self.task, "state_dict")

    def _own_listeners(self, draw: Callable[[RunFolder, nn.Module], Any] | None) -> list[Listener]:
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
        return [*own, *([Curve(draw)] if self.options.curve else [])]

    def _evaluate(self) -> bool:
        """Measure this step's weights; returns whether it was not stopped."""
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
        """Write something; where that fails, say so in a line, with what is kept."""
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
        """What ends a run once it has begun, as a `RunError` that says which checkpoint is kept."""
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
        """Test the best weights and write them; None where it was stopped before that."""
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
                write_atomically(folder.weights, weights_as_bytes(_Weights(weights)))
                if self.model_config is not None:
                    folder.write_json(folder.model, self.model_config)
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


class _Weights(nn.Module):
    """A state in the place of the model it is of."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self._state = state

    def state_dict(self, *_: Any, **__: Any) -> Any:
        return self._state


def out_of_memory(error: BaseException) -> bool:
    """Whether this is what torch says when there is no memory left."""
    words = ("can't allocate memory", "out of memory", "not enough memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


def _about(model: nn.Module) -> dict[str, Any]:
    """What a model is: its class, its size, and a checksum of the shapes of what it holds."""
    state = model.state_dict()
    shapes = sorted(str(list(value.shape)) for value in state.values() if isinstance(value, torch.Tensor))
    checksum = hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"class": type(model).__qualname__, "parameters": parameters, "shapes": checksum}


# What config.json says beside what was asked for
_OF_THIS_TIME = ("processes", "fused", "command", "started", "threads", "machine", "resumed")
