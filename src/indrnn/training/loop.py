"""The training loop: plain PyTorch, and a run that can be taken up again at any moment, to the bit.

All that is random in a step comes from (seed, step, process), so a checkpoint holds no generator and no position in the
data: the number of the step says it all.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..layers import constrain_, parameter_groups
from ..models import weights_as_bytes
from .checkpoint import write_atomically
from .diagnose import first_not_finite
from .folder import RunFolder, command, machine, now, plain
from .options import FREE_ON_RESUME, Plateau, Training
from .processes import LostError, Processes, choose_device, processes
from .report import Report, Silent, default_report
from .task import Batch, Shard, Task, derive_seed


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
    """`Task.test` of the best weights."""
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
    report: Report | None = None,
) -> Result:
    """Train a model and leave a run in a folder.

    Args:
        model: any module; it ends up with the best weights.
        task: batches, loss and evaluation; see `Task`, and `TensorTask` for tensors in memory.
        options: how; see `Training`.
        out: the folder. One that holds something already is only touched with `resume` or `overwrite`.
        seed: of dropout and all else that is random in the model.
        resume: go on from the last checkpoint in `out`; from the start where there is none.
        overwrite: throw an earlier run in `out` away.
        config: more to record in config.json, and to compare on `resume`.
        model_config: what `indrnn.load` builds the model from; without it, load the weights yourself.
        resume_command: what to tell the user who stops the run.
        report: where to tell of progress.

    Returns:
        What came of it. After Ctrl-C or SIGTERM a checkpoint is there and `finished` is False.

    Raises:
        ValueError: for arguments that cannot be; nothing has been done then.
        RunError: when the run cannot go on: a loss that is not finite, a full disk.
    """
    options = options or Training()
    if resume and overwrite:
        raise ValueError("resume and overwrite cannot both be asked for")
    threads = torch.get_num_threads()
    recorded = {"training": plain(options), "seed": seed, **(config or {})}
    with _lost(), processes(options.device) as group, torch.random.fork_rng(devices=_gpus()):
        try:
            if options.threads is not None:
                torch.set_num_threads(options.threads)
            folder = RunFolder(Path(out))
            told = (report or default_report()) if group.main else Silent()
            loop = _Loop(model, task, options, folder, seed, group, told, recorded)
            loop.resume_command = resume_command or "the same call with resume=True"
            loop.model_config = model_config
            loop.open(resume, overwrite)
            with told, _signals() as received:
                return loop.run(received)
        finally:
            torch.set_num_threads(threads)


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
    """Collect Ctrl-C and SIGTERM instead of dying of them; a second one does what it always did."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

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


class _Loop:
    resume_command: str
    model_config: dict[str, Any] | None

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        options: Training,
        folder: RunFolder,
        seed: int,
        group: Processes,
        report: Report,
        config: dict[str, Any],
    ) -> None:
        self.task, self.options, self.folder, self.seed = task, options, folder, seed
        self.group, self.report, self.config = group, report, config
        self.device = choose_device(options.device, group)
        self.model = model.to(self.device)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(parameter_groups(model, options.weight_decay), lr=options.lr)
        self.runner = self._runner()
        self.step = 0
        self.seconds = 0.0
        self.best_step: int | None = None
        self.best: dict[str, float] = {}
        self.measured: dict[str, float] | None = None  # the evaluation of this very step
        self.since_best = 0  # evaluations
        self.divisions = 0  # of the learning rate, by Plateau
        self.loss_sum, self.norm_sum, self.since_line = 0.0, 0.0, 0
        self.saved_step: int | None = None

    def _runner(self) -> nn.Module:
        """The model as it is called in training."""
        if self.group.count > 1:
            self.group.copy_from_main([tensor.detach() for tensor in self.model.state_dict().values()])
        return torch.compile(self.model) if self.options.compile else self.model  # type: ignore[return-value]

    # ---- begin

    def open(self, resume: bool, overwrite: bool) -> None:
        """Prepare the folder, and go back to the last checkpoint where one is to be resumed."""
        state: Any = None
        problem: Exception | None = None
        if self.group.main:
            try:
                state = self._open_folder(resume, overwrite)
            except (ValueError, OSError, RunError) as error:
                problem = error
        state, text, bad = self.group.state_from_main((state, str(problem or ""), isinstance(problem, RunError)))
        if text:
            raise problem or (RunError(text) if bad else ValueError(text))
        if state is not None:
            self._restore(state)
        if self.group.main:
            with self.folder.metrics.open("ab") as file:
                file.truncate(0 if state is None else state["metrics_bytes"])
            self._tensorboard = self._open_tensorboard()

    def _open_folder(self, resume: bool, overwrite: bool) -> dict[str, Any] | None:
        folder, say = self.folder, self.report.say
        if folder.used and not (resume or overwrite):
            raise ValueError(
                f"out: {folder.path} holds something already; go on with it (resume), replace it (overwrite), or name "
                "another folder"
            )
        folder.prepare()
        if overwrite:
            folder.clear()
        state = None
        if resume and folder.config.exists():
            self._compare(json.loads(folder.config.read_text()))
            state, troubles = folder.checkpoints.load()
            for trouble in troubles:
                say(f"{trouble}; it is set aside")
            if state is None:
                say("no checkpoint to resume from: starting over")
            elif state["processes"] != self.group.count:
                raise ValueError(
                    f"this run must be resumed by as many processes as began it, {state['processes']}, "
                    f"got {self.group.count}"
                )
            else:
                say(f"resuming at step {state['step']}")
        elif resume:
            say(f"nothing to resume in {folder.path}: starting")
        folder.remove_temporary()
        this_time = {"command": command(), "started": now(), "threads": torch.get_num_threads(), "machine": machine()}
        record = {**self.config, "processes": self.group.count, **this_time}
        if state is not None:  # the first time stays; the others are listed
            earlier = json.loads(folder.config.read_text())
            record = earlier | self.config | {"resumed": [*earlier.get("resumed", []), this_time]}
        self._writing(lambda: folder.write_json(folder.config, record))
        return state

    def _compare(self, earlier: dict[str, Any]) -> None:
        """Raise where this run is not the one it is to go on with."""
        differences = []
        now_flat = _flat(json.loads(json.dumps(self.config)))
        earlier_flat = _flat({name: value for name, value in earlier.items() if name not in _OF_THIS_TIME})
        for name in sorted({*now_flat, *earlier_flat}):
            if name.startswith("training.") and name.removeprefix("training.") in FREE_ON_RESUME:
                continue
            before, after = earlier_flat.get(name), now_flat.get(name)
            if before != after:
                differences.append(f"{name} was {before!r} and is now {after!r}")
        if differences:
            raise ValueError(f"cannot resume {self.folder.path} with other options: {'; '.join(differences)}")

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in _COUNTED:
            setattr(self, name, state[name])
        self.saved_step = self.step

    def _open_tensorboard(self) -> Any:
        if not self.options.tensorboard:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.folder.path / "tensorboard"), purge_step=self.step)

    # ---- steps

    def run(self, received: list[int]) -> Result:
        """Train to the end, or to a signal."""
        self.model.train()
        begun, first_step, earlier = time.monotonic(), self.step, self.seconds
        saved = begun
        while self.step < self.options.steps and not self._enough:
            stop = self._take_step(bool(received))
            self.seconds = earlier + time.monotonic() - begun
            if self.step % self.options.evaluate_every == 0 or self.step == self.options.steps:
                self._evaluate()
                self.seconds = earlier + time.monotonic() - begun
            rate = (self.step - first_step) / max(1e-9, time.monotonic() - begun)
            self.report.progress(self.step, self.options.steps, self._shown(rate))
            if stop:
                self._save()
                self.report.say(f"stopped at step {self.step}, and saved; to go on: {self.resume_command}")
                number = received[0] if received else int(signal.SIGTERM)
                return self._result(finished=False, stopped_by=number)
            if time.monotonic() - saved >= self.options.checkpoint_every:
                self._save()
                saved = time.monotonic()
        if self.saved_step != self.step:
            self._save()
        return self._finish()

    def _take_step(self, stop: bool) -> bool:
        """One update of the weights; returns whether some process was asked to stop."""
        options, group, pieces = self.options, self.group, self.options.accumulate
        schedule = options.schedule
        lr = options.lr * schedule.factor(self.step, options.steps)
        if isinstance(schedule, Plateau):
            lr *= (1 / schedule.divide_by) ** self.divisions
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr
        self.optimizer.zero_grad()
        mine = 0.0
        for piece in range(pieces):
            batch = self._batch(piece)
            with self._autocast():
                loss = self.task.loss(self.runner, batch)
            # The pieces' losses are means of their own items; together they are to be the mean of all.
            share = batch.count / batch.total
            (loss * share).backward()
            mine += loss.item() * share
        if group.count > 1:
            group.add_up_gradients(self.parameters)
        total, stops = group.sum([mine, float(stop)])
        norm = self._gradient_norm()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise RunError(self._not_finite(total))
        if options.clip is not None:
            nn.utils.clip_grad_value_(self.parameters, options.clip)
        self.optimizer.step()
        constrain_(self.model)
        self.step += 1
        self.measured = None
        self.loss_sum += total
        self.norm_sum += norm
        self.since_line += 1
        return stops > 0

    def _batch(self, piece: int) -> Batch:
        pieces = self.options.accumulate
        torch.manual_seed(derive_seed(self.seed, "noise", self.step, self.group.rank, piece))
        shard = Shard(self.group.rank * pieces + piece, self.group.count * pieces)
        return self.task.batch(self.step, shard).to(self.device)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.options.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _gradient_norm(self) -> float:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients).item()
        if not math.isfinite(norm):  # large ones may overflow together, where each is finite and will be clipped
            norm = nn.utils.get_total_norm([gradient.double() for gradient in gradients]).item()
        return norm

    def _not_finite(self, loss: float) -> str:
        with self._autocast():
            pieces = range(self.options.accumulate)
            found = [first_not_finite(self.model, self.task, self._batch(piece)) for piece in pieces]
        mine = next((text for text in found if text), "")
        seen = [text for text in self.group.of_all(mine) if text]
        where = seen[0] if seen else "which did not come again when the batch was run once more"
        step, folder = self.saved_step, self.folder.checkpoints.folder
        last = "There is no checkpoint yet" if step is None else f"The checkpoint of step {step} is kept in {folder}"
        what = f"the loss became {loss}" if not math.isfinite(loss) else "a gradient is not finite"
        return f"step {self.step + 1}: {what}, {where}. {last}"

    # ---- evaluations

    def _evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad(), self._autocast():
            measured = self.task.evaluate(self.model, self.step)
        self.model.train()
        measured = self.group.from_main(measured)
        self.measured = measured
        value = measured[self.task.metric]
        sign = 1 if self.task.higher_is_better else -1
        if self.best_step is None or sign * value > sign * self.best[self.task.metric]:
            if math.isfinite(value):
                self.best_step, self.best, self.since_best = self.step, measured, 0
                if self.group.main:
                    weights = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                    self._writing(lambda: self.folder.checkpoints.save_best(self.step, weights))
        else:
            self.since_best += 1
        self._write_line(measured)
        schedule = self.options.schedule
        if isinstance(schedule, Plateau) and self.since_best >= schedule.patience and self.best_step is not None:
            best = self.folder.checkpoints.load_best(self.best_step) if self.group.main else None
            state = self.group.state_from_main(best)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.divisions += 1
            self.since_best = 0
            self.report.say(
                f"step {self.step}: no better for {schedule.patience} evaluations; back to the weights of step "
                f"{self.best_step} with the learning rate divided by {schedule.divide_by:g}"
            )

    @property
    def _enough(self) -> bool:
        """Whether the weights of this step have been found as good as was asked for."""
        if self.options.until is None or self.measured is None:
            return False
        value, until = self.measured[self.task.metric], self.options.until
        return value >= until if self.task.higher_is_better else value <= until

    def _write_line(self, measured: dict[str, float]) -> None:
        """A line of metrics.jsonl."""
        steps = max(1, self.since_line)
        line = {
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": self.loss_sum / steps,
            "gradient_norm": self.norm_sum / steps,
            **measured,
            "seconds": round(self.seconds, 3),
        }
        self.loss_sum, self.norm_sum, self.since_line = 0.0, 0.0, 0
        if not self.group.main:
            return
        finite = {name: value if math.isfinite(value) else None for name, value in line.items()}

        def write() -> None:
            with self.folder.metrics.open("a") as file:
                file.write(json.dumps(finite) + "\n")

        self._writing(write)
        if self._tensorboard is not None:
            for name, value in finite.items():
                if name != "step" and value is not None:
                    self._tensorboard.add_scalar(name, value, self.step)

    def _shown(self, rate: float) -> str:
        best = f"  best {self.task.metric} {self.best[self.task.metric]:.4g}" if self.best else ""
        loss = f"loss {self.loss_sum / self.since_line:.4g}" if self.since_line else ""
        return f"{loss}{best}  {rate:.3g} steps/s"

    # ---- files

    def _save(self) -> None:
        if not self.group.main:
            self.saved_step = self.step
            return
        metrics = self.folder.metrics
        state = {name: getattr(self, name) for name in _COUNTED}
        state |= {
            "format": 1,
            "processes": self.group.count,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

        def write() -> None:
            with metrics.open("ab") as file:
                os.fsync(file.fileno())
            state["metrics_bytes"] = metrics.stat().st_size
            self.folder.checkpoints.save(state)

        self._writing(write)
        self.saved_step = self.step

    def _writing(self, write: Any) -> None:
        """Write something; where that fails, say so in a line, with what is kept."""
        try:
            write()
        except OSError as error:
            kept = (
                "no checkpoint yet" if self.saved_step is None else f"the checkpoint of step {self.saved_step} is kept"
            )
            raise RunError(
                f"step {self.step}: cannot write to {self.folder.path}: {error.strerror or error}; {kept}. When there "
                f"is room again, go on with: {self.resume_command}"
            ) from error

    def _finish(self) -> Result:
        if self.best_step is not None:
            best = self.folder.checkpoints.load_best(self.best_step) if self.group.main else None
            state = self.group.state_from_main(best)
            self.model.load_state_dict(state["model"])
        self.model.eval()
        with torch.no_grad(), self._autocast():
            test = self.group.from_main(self.task.test(self.model))
        result = self._result(finished=True, test=test)
        if self.group.main:
            folder = self.folder

            def write() -> None:
                write_atomically(folder.weights, weights_as_bytes(self.model))
                if self.model_config is not None:
                    folder.write_json(folder.model, self.model_config)
                record = {name: getattr(result, name) for name in ("steps", "seconds", "best_step", "best", "test")}
                folder.write_json(
                    folder.result, record | {"seed": self.seed, "command": command(), "machine": machine()}
                )

            self._writing(write)
            if self._tensorboard is not None:
                self._tensorboard.close()
        return result

    def _result(self, **others: Any) -> Result:
        return Result(
            self.folder.path,
            self.step,
            round(self.seconds, 1),
            best_step=self.best_step,
            best=self.best,
            main=self.group.main,
            **others,
        )


# What config.json says beside what was asked for
_OF_THIS_TIME = ("processes", "command", "started", "threads", "machine", "resumed")

# What a checkpoint counts beside weights and the optimiser's state
_COUNTED = (
    *("step", "seconds", "best_step", "best", "measured", "since_best", "divisions"),
    *("loss_sum", "norm_sum", "since_line"),
)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as one, with dotted names."""
    if not isinstance(value, dict):
        return {prefix: value}
    result: dict[str, Any] = {}
    for name, item in value.items():
        result |= _flat(item, f"{prefix}.{name}" if prefix else name)
    return result
