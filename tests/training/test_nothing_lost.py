"""Runs whose files were damaged, taken away or are in use: they go on or say what is wrong, and lose nothing."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from indrnn.networks import Head, Plain
from indrnn.training import (
    Batch,
    Evaluation,
    Listener,
    Measured,
    Muon,
    RunError,
    Shard,
    Start,
    Step,
    TensorTask,
    evaluate,
    train,
)
from indrnn.training.checkpoint import load, save
from indrnn.training.evaluation import is_finished, load_best
from indrnn.training.folder import RunFolder
from indrnn.training.update import DeferredScalars, Updater

from .runs import QUICK, Scripted, Told, classifier, contents, go, metrics, sequences, task, timeless, weights_of

EVERY = replace(QUICK, checkpoint_every=0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    go(classifier("after", 0.2), task(), out, EVERY)
    return out


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for ten steps, in one piece."""
    out = tmp_path_factory.mktemp("longer") / "run"
    go(classifier("after", 0.2), task(), out, replace(EVERY, steps=10))
    return out


def damage(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


FILES = ["config.json", "metrics.jsonl", "result.json", "weights.safetensors", "last.ckpt", "previous.ckpt", "best"]


@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted"])
@pytest.mark.parametrize("name", FILES)
def test_each_file_damaged_in_turn(finished: Path, longer: Path, tmp_path: Path, name: str, how: str) -> None:
    """The run goes on to the same weights; what was whole before is whole after, here or as the run's own next one."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    best = next((out / "checkpoints").glob("best-*"))
    path = best if name == "best" else next(path for path in out.rglob(name))
    damage(path, how)
    told = Told()
    result = go(classifier("after", 0.2), task(), out, replace(EVERY, steps=10), resume=True, report=told)
    assert result.steps == 10
    state, whole = (load(run / "checkpoints" / "last.ckpt") for run in (out, longer))
    for key, value in whole["model"].items():
        assert torch.equal(state["model"][key], value), key
    assert RunFolder(out).read_json(out / "config.json")["training"]["lr"] == 0.01
    assert b"\0" not in (out / "metrics.jsonl").read_bytes()
    if name in ("result.json", "weights.safetensors"):
        assert timeless(out) == timeless(longer)
    if name not in ("metrics.jsonl", "best"):
        assert [line["step"] for line in metrics(out)][-2:] == [8, 10]
        assert weights_of(out) == weights_of(longer)
    if name in ("metrics.jsonl", "config.json") and how != "flipped":
        assert any(path.name in said for said in told.said), told.said
    if name in ("last.ckpt", "previous.ckpt") and how != "deleted":
        assert any("it is set aside" in said for said in told.said)


def test_the_best_weights_are_lost_and_the_state_is_not(tmp_path: Path) -> None:
    """In the middle of a run: what is best is sought from there on, and said so."""
    out = tmp_path / "run"
    data = Scripted(sequences(), sequences(13, seed=1), batch_size=11, seed=3)
    data.script = {2: 0.9, 4: 0.2, 6: 0.5}
    go(classifier(), data, out, replace(EVERY, steps=4))
    (out / "result.json").unlink()
    damage(out / "checkpoints" / "best-2.ckpt", "flipped")
    told = Told()
    result = go(classifier(), data, out, replace(EVERY, steps=6), resume=True, report=told)
    assert "resuming at step 4" in told.said
    assert any("best weights of step 2 are lost" in said for said in told.said)
    assert result.best_step == 6
    assert [line["step"] for line in metrics(out)] == [2, 4, 6]


def test_a_finished_runs_best_weights_are_taken_from_its_weights(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    best = next((out / "checkpoints").glob("best-*"))
    best.unlink()
    before = weights_of(out)
    go(classifier("after", 0.2), task(), out, EVERY, resume=True)
    assert weights_of(out) == before
    assert best.exists()


@pytest.mark.parametrize("left", ["config.json", "metrics.jsonl", "config.json metrics.jsonl result.json"])
def test_a_run_without_a_checkpoint_is_not_started_over(finished: Path, tmp_path: Path, left: str) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in left.split():
        shutil.copy(finished / name, out)
    before = contents(out)
    with pytest.raises((RunError, ValueError), match=r"holds no checkpoint.*overwrite|no run of indrnn"):
        go(classifier("after", 0.2), task(), out, EVERY, resume=True)
    assert contents(out) == before
    assert go(classifier("after", 0.2), task(), out, EVERY, overwrite=True).finished


def test_a_folder_of_another_program_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    with pytest.raises(ValueError, match=r"holds something that is no run of indrnn"):
        go(classifier(), task(), tmp_path, resume=True)
    assert contents(tmp_path) == {"metrics.jsonl": b"mine\n"}


def test_the_options_are_those_of_the_checkpoint(finished: Path, tmp_path: Path) -> None:
    """Though config.json says something else."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    config = json.loads((out / "config.json").read_text())
    config["training"]["lr"] = 0.5
    (out / "config.json").write_text(json.dumps(config))
    assert go(classifier("after", 0.2), task(), out, EVERY, resume=True).finished


def test_a_checkpoint_of_another_version(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by name, by whatever reads it, and left alone."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    path = out / "checkpoints" / "last.ckpt"
    state = load(path)
    with monkeypatch.context() as later:
        later.setattr("indrnn.training.checkpoint.FORMAT", 99)
        save(path, state)
    before = contents(out)
    for call in (
        lambda: go(classifier("after", 0.2), task(), out, EVERY, resume=True),
        lambda: evaluate(classifier("after", 0.2), task(), out),
        lambda: RunFolder(out).recorded(),
    ):
        with pytest.raises((RunError, ValueError), match=r"last\.ckpt has format 99, this version reads 3"):
            call()
    assert contents(out) == before


def test_what_stands_in_a_header_is_read_there(finished: Path, tmp_path: Path) -> None:
    """Configuration and step of a run whose checkpoints have lost all else."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for path in (out / "checkpoints").glob("*.ckpt"):
        os.truncate(path, path.stat().st_size - 99)
    (out / "config.json").unlink()
    folder = RunFolder(out)
    assert is_finished(folder)
    assert folder.recorded()["training"]["lr"] == 0.01
    weights = {name: value.clone() for name, value in classifier("after", 0.2, seed=8).state_dict().items()}
    model = classifier("after", 0.2, seed=8)
    assert load_best(model, folder) == folder.read_json(folder.result)["best_step"]
    assert any(not torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_resumption_reads_each_generation_once(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    opened: list[str] = []
    real = Path.open

    def counted(self: Path, mode: str = "r", *others: Any, **more: Any) -> Any:
        if self.suffix == ".ckpt" and mode == "rb" and self.exists():
            opened.append(self.name)
        return real(self, mode, *others, **more)

    monkeypatch.setattr(Path, "open", counted)
    loads: list[Any] = []
    real_load = torch.load

    def load(*arguments: Any, **options: Any) -> Any:
        loads.append(arguments)
        return real_load(*arguments, **options)

    monkeypatch.setattr(torch, "load", load)
    go(classifier("after", 0.2), task(), out, replace(EVERY, steps=6), resume=True)
    best = next((out / "checkpoints").glob("best-*")).name
    assert sorted(opened) == sorted(["last.ckpt", "previous.ckpt", best, best])  # the best is loaded at the end
    assert len(loads) == 2


@pytest.mark.parametrize("other", ["batch size", "data", "model"])
def test_another_task_or_model_of_ones_own_is_not_resumed(finished: Path, tmp_path: Path, other: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    before = contents(out)
    what, model = task(), classifier("after", 0.2)
    if other == "batch size":
        what = TensorTask(sequences(), sequences(13, seed=1), batch_size=12, seed=3)
    elif other == "data":
        what = TensorTask(sequences(seed=9), sequences(13, seed=1), batch_size=11, seed=3)
    else:
        model = nn.Sequential(nn.Flatten(), nn.Linear(27, 4))
    expected = {
        "batch size": "task.batch_size was 11 and is now 12",
        "data": "task.train.checksum",
        "model": "model.class",
    }
    with pytest.raises(ValueError, match=f"with other options: .*{expected[other]}"):
        go(model, what, out, EVERY, resume=True)
    assert contents(out) == before


# ---- two processes on one folder


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    seen: list[str] = []

    class Second(Listener):
        def on_step(self, event: Step) -> None:
            for resume in (True, False):
                try:
                    go(classifier(), task(), tmp_path / "run", resume=resume, overwrite=not resume)
                except ValueError as error:
                    seen.append(str(error))

    train(classifier(), task(), replace(EVERY, steps=2), out=tmp_path / "run", listeners=[Second()], quiet=True)
    assert len(seen) == 4
    assert all(f"is in use by process {os.getpid()} on " in text for text in seen)
    assert not (tmp_path / "run" / ".lock").exists()
    assert len(metrics(tmp_path / "run")) == 1


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    go(classifier(), task(), run, replace(EVERY, steps=2))
    (run / ".lock").write_text("process 1 on nowhere")  # left behind
    assert go(classifier(), task(), run, replace(EVERY, steps=4), resume=True).steps == 4
    with (run / ".lock").open("w") as held:
        held.write("process 7 on moon")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="in use by process 7 on moon"):
            go(classifier(), task(), run, replace(EVERY, steps=4), resume=True)


# ---- what tells cannot hurt


@dataclass
class Broken(Listener):
    """Raises at an event."""

    at: str
    heard: list[str] = field(default_factory=list)

    def _hear(self, name: str) -> None:
        self.heard.append(name)
        if name == self.at:
            raise BrokenPipeError(32, "Broken pipe")

    def on_start(self, event: Start) -> None:
        self._hear("start")

    def on_step(self, event: Step) -> None:
        self._hear("step")

    def on_evaluation(self, event: Evaluation) -> None:
        self._hear("evaluation")

    def on_end(self, result: Any) -> None:
        self._hear("end")


@pytest.mark.parametrize("at", ["start", "step", "evaluation", "end"])
def test_a_listener_that_fails_is_dropped_and_the_run_goes_on(tmp_path: Path, at: str) -> None:
    broken, told = Broken(at), Told()
    result = train(classifier(), task(), QUICK, out=tmp_path / "run", listeners=[broken, told], quiet=True)
    assert result.finished
    assert broken.heard.count(at) == 1
    assert broken.heard[-1] == at
    assert any("Broken is told nothing more" in said for said in told.said)


def test_events_have_the_numbers_of_metrics(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Listens(Listener):
        def on_start(self, event: Start) -> None:
            heard.append(event)

        def on_evaluation(self, event: Evaluation) -> None:
            heard.append({"step": event.step, **event.numbers})

        def on_end(self, result: Any) -> None:
            heard.append(result)

    result = train(classifier(), task(), QUICK, out=tmp_path / "run", listeners=[Listens()], quiet=True)
    assert (heard[0].step, heard[0].steps, heard[0].metric) == (0, 6, "accuracy")
    assert heard[1:-1] == metrics(tmp_path / "run")
    assert heard[-1] == result


def test_each_evaluation_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(classifier(), task(), QUICK, out=tmp_path / "run")
    said = capsys.readouterr().out.splitlines()
    for line in metrics(tmp_path / "run"):
        assert any(
            text.startswith(f"step {line['step']}/6 ") and f"accuracy {line['accuracy']:.4g}" in text for text in said
        )


def test_a_picture_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    class Occupies(Told):
        def on_start(self, event: Start) -> None:
            assert event.folder is not None
            (event.folder / "curve.png").mkdir()

    told = Occupies()
    assert go(classifier(), task(), tmp_path / "run", replace(QUICK, curve=True), report=told).finished
    assert any("curve.png cannot be written" in said for said in told.said)
    assert weights_of(tmp_path / "run")


def test_a_run_of_one_evaluation_has_no_empty_picture(tmp_path: Path) -> None:
    options = replace(QUICK, curve=True, evaluate_every=QUICK.steps)
    assert go(classifier(), task(), tmp_path / "run", options).finished
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "run" / "curve.png").exists()


def test_a_run_of_ones_own_has_a_picture_and_its_task_in_its_config(tmp_path: Path) -> None:
    options = Head(Plain(input_size=3, hidden_size=5, layers=1, sequence_length=9), outputs=4)
    result = go(Turned(options), task(), tmp_path / "run", replace(QUICK, curve=True))
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "run" / "model.json").exists()  # its own program alone can build it
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["task"]["type"], config["task"]["batch_size"]) == ("TensorTask", 11)
    again = Turned(options)
    assert evaluate(again, task(), tmp_path / "run", device="cpu") == pytest.approx(result.best)


class Turned(nn.Module):
    """A model of the package for items first, that knows its config."""

    def __init__(self, config: Head) -> None:
        super().__init__()
        self.config, self.inner = config, config.build()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x.transpose(0, 1))[0]
        return output


# ---- signals and errors


class Signalled(TensorTask):
    """Sends a signal in an evaluation, after some of its batches."""

    number, evaluation, after = signal.SIGTERM, 4, 1
    seen = 0

    def evaluate(self, model: nn.Module, step: int, shard: Shard) -> Iterator[Measured]:
        for number, each in enumerate(super().evaluate(model, step, shard)):
            yield each
            self.seen += 1
            if (step, number + 1) == (self.evaluation, self.after):
                signal.raise_signal(self.number)


def signalled(number: int = signal.SIGTERM) -> Signalled:
    data = Signalled(sequences(), sequences(40, seed=1), batch_size=5, seed=3)
    data.number = signal.Signals(number)
    return data


def test_an_evaluation_is_stopped_between_batches_and_made_again(tmp_path: Path) -> None:
    data = signalled()
    first = go(classifier("after", 0.2), data, tmp_path / "run")
    assert (first.finished, first.steps, first.stopped_by) == (False, 4, signal.SIGTERM)
    assert data.seen == 8 + 1  # of the first evaluation's eight batches, and of the second's
    assert [line["step"] for line in metrics(tmp_path / "run")] == [2]
    data.evaluation = -1
    assert go(classifier("after", 0.2), data, tmp_path / "run", resume=True).finished
    go(classifier("after", 0.2), data, tmp_path / "whole")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


class StoppedInItsTest(Scripted):
    """Sends a signal in the test at the end."""

    stops = True

    def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
        for measured in super().test(model, shard):
            yield measured
            if self.stops:
                signal.raise_signal(signal.SIGTERM)


def test_a_run_stopped_in_its_test_keeps_the_weights_that_it_trained(tmp_path: Path) -> None:
    """And not the best ones, which are tested: resumed for more steps it is a run in one piece."""
    data = StoppedInItsTest(sequences(), sequences(13, seed=1), sequences(20, seed=2), batch_size=11, seed=3)
    data.script = {2: 0.9, 4: 0.1, 6: 0.2, 8: 0.3, 10: 0.4}
    first = go(classifier("after", 0.2), data, tmp_path / "run")
    assert (first.finished, first.steps, first.best_step) == (False, 6, 2)
    data.stops = False
    longer = replace(QUICK, steps=10)
    assert go(classifier("after", 0.2), data, tmp_path / "run", longer, resume=True).finished
    go(classifier("after", 0.2), data, tmp_path / "whole", longer)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


def test_a_hang_up_saves_and_stops_unless_it_is_ignored(tmp_path: Path) -> None:
    result = go(classifier(), signalled(signal.SIGHUP), tmp_path / "run")
    assert (result.finished, result.stopped_by) == (False, signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert go(classifier(), signalled(signal.SIGHUP), tmp_path / "nohup").finished
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such word"), "step 3: no such word; the checkpoint of step 3 is kept"),
        (MemoryError(), "step 3: MemoryError; the checkpoint"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "step 3: out of memory"),
    ],
    ids=["value", "memory", "torch's memory"],
)
def test_what_goes_wrong_in_a_run_says_what_is_kept(tmp_path: Path, error: Exception, said: str) -> None:
    class Fails(TensorTask):
        def batch(self, step: int, shard: Shard) -> Batch:
            if step == 3:
                raise error
            return super().batch(step, shard)

    with pytest.raises(RunError) as raised:
        go(classifier(), Fails(sequences(), batch_size=11), tmp_path / "run", EVERY)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_a_result_is_json(tmp_path: Path) -> None:
    """Though what was measured is infinite."""

    class Infinite(TensorTask):
        def test(self, model: nn.Module, shard: Shard) -> Iterator[Measured]:
            yield {"loss": math.inf, "accuracy": math.nan}, 1

    go(classifier(), Infinite(sequences(), sequences(13), batch_size=11), tmp_path / "run")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    record = json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refuse)
    assert record["test"] == {"loss": None, "accuracy": None}


WITHOUT_OUTPUT = """
import os, subprocess, sys
import torch
from indrnn.cli import main, train
torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()  # imports the rest, once for all
options = "--length 5 --steps 4 --evaluate-every 1 --no-curve --no-tensorboard --threads 1"
reading, writing = os.pipe()
head = subprocess.Popen(["head", "-1"], stdin=reading, stdout=subprocess.DEVNULL)
os.close(reading)
for name, output in (("head", writing), ("full", os.open("/dev/full", os.O_WRONLY)), ("closed", None)):
    child = os.fork()
    if child == 0:
        os.close(1)
        if output is None:
            sys.stdout = None  # as Python starts without one
        else:
            os.dup2(output, 1)
        os.close(writing)
        main(["train", "adding-100-fast", *options.split(), "--out", name])
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_a_standard_output_that_ends_does_not_end_a_run(tmp_path: Path) -> None:
    """`| head -1`, a full device, and none at all."""
    program = [sys.executable, "-c", WITHOUT_OUTPUT]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "head 0\nfull 0\nclosed 0\n", done.stderr
    assert "Traceback" not in done.stderr
    for name in ("head", "full", "closed"):
        assert json.loads((tmp_path / name / "result.json").read_text())["steps"] == 4


# ---- what is asked for beside the paper's training


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
def test_other_optimisers(tmp_path: Path, kind: Any) -> None:
    data, model = task(torch.float64), nn.Sequential(nn.Flatten(), nn.Linear(27, 4)).double()
    by_hand = nn.Sequential(nn.Flatten(), nn.Linear(27, 4)).double()
    by_hand.load_state_dict(model.state_dict())
    go(
        model,
        data,
        tmp_path / "run",
        replace(QUICK, steps=3, evaluate_every=3, optimizer=kind, weight_decay=0.1, clip=None),
    )
    groups = [{"params": [by_hand[1].weight], "weight_decay": 0.1}, {"params": [by_hand[1].bias], "weight_decay": 0.0}]
    optimizer: Any = {
        "adamw": lambda: torch.optim.AdamW(groups, lr=1e-2),
        "sgd": lambda: torch.optim.SGD(groups, 1e-2, 0.9),
        "muon": lambda: Muon(by_hand, 1e-2, 0.1),
    }[kind]()
    for step in range(3):
        batch = data.batch(step, Shard())
        optimizer.zero_grad()
        F.cross_entropy(by_hand(batch.inputs), batch.target).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), by_hand.state_dict(), rtol=1e-10, atol=1e-12)


def test_clipping_by_norm(tmp_path: Path) -> None:
    data = task(torch.float64)
    model, by_hand = (nn.Sequential(nn.Flatten(), nn.Linear(27, 4)).double() for _ in range(2))
    by_hand.load_state_dict(model.state_dict())
    go(model, data, tmp_path / "run", replace(QUICK, steps=1, optimizer="sgd", clip_norm=0.05, momentum=0.0))
    batch = data.batch(0, Shard())
    F.cross_entropy(by_hand(batch.inputs), batch.target).backward()
    gradients = [parameter.grad for parameter in by_hand.parameters() if parameter.grad is not None]
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    assert norm > 0.05
    with torch.no_grad():
        for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
            parameter.sub_(1e-2 * gradient * 0.05 / norm)
    torch.testing.assert_close(model.state_dict(), by_hand.state_dict(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(("patience", "steps"), [(1, 4), (2, 8), (3, 12), (None, 12)])
def test_patience(tmp_path: Path, patience: int | None, steps: int) -> None:
    data = Scripted(sequences(), sequences(13, seed=1), batch_size=11)
    data.script = (
        {2: 0.5, 4: 0.4, 6: 0.6, 8: 0.5, 10: 0.5, 12: 0.1}
        if patience == 1
        else {2: 0.5, 4: 0.6, 6: 0.1, 8: 0.2, 10: 0.7, 12: 0.1}
    )
    assert go(classifier(), data, tmp_path / "run", replace(QUICK, steps=12, patience=patience)).steps == steps


def test_averaged_weights_are_evaluated_and_saved(tmp_path: Path) -> None:
    """And the run itself goes on with its own; resumed, to the same bits."""
    decay = 0.5
    options = replace(EVERY, steps=6, ema=decay)
    model, plainly = classifier(), classifier()
    average = {name: value.detach().clone() for name, value in plainly.named_parameters()}

    class Averages(Listener):
        def on_step(self, event: Step) -> None:
            share = min(decay, (1 + event.step - 1) / (10 + event.step - 1))
            for name, value in plainly.named_parameters():
                average[name] = share * average[name] + (1 - share) * value.detach()

    ended = Scripted(sequences(), sequences(13, seed=1), batch_size=11, seed=3)
    ended.script = {2: 0.1, 4: 0.2, 6: 0.3}
    train(plainly, ended, replace(QUICK, ema=None), out=tmp_path / "plain", listeners=[Averages()], quiet=True)
    go(model, ended, tmp_path / "run", options)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), average[name], rtol=1e-5, atol=1e-6)
    raw = load(tmp_path / "run" / "checkpoints" / "last.ckpt")["model"]
    assert all(torch.equal(raw[name], value) for name, value in plainly.state_dict().items())
    go(classifier(), ended, tmp_path / "parts", replace(options, steps=4))
    go(classifier(), ended, tmp_path / "parts", options, resume=True)
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "run")


def test_numbers_that_are_not_finite_on_a_device_that_would_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights do not take them, the run ends a step later, and the step is named."""
    real = DeferredScalars.__init__
    monkeypatch.setattr(DeferredScalars, "__init__", lambda self, device, *, waits: real(self, device, waits=True))
    taken: list[int] = []
    update = Updater.update

    def counted(self: Updater, step: int, stop: bool) -> bool:
        taken.append(step)
        return update(self, step, stop)

    monkeypatch.setattr(Updater, "update", counted)

    class Bad(TensorTask):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            loss = super().loss(model, batch)
            return loss * math.nan if taken and taken[-1] == 3 else loss

    model = classifier()
    data = Bad(sequences(), sequences(13, seed=1), batch_size=11, seed=3)
    with pytest.raises(RunError, match=r"^step 4: the loss became nan"):
        go(model, data, tmp_path / "run", replace(QUICK, steps=9, evaluate_every=9))
    assert taken == [0, 1, 2, 3, 4]
    whole = classifier()
    monkeypatch.setattr(DeferredScalars, "__init__", real)
    go(whole, task(), tmp_path / "three", replace(QUICK, steps=3, evaluate_every=3))
    for value, expected in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(value, expected)


def test_prefetched_batches_change_nothing(tmp_path: Path) -> None:
    ahead = task()
    ahead.prefetch = True
    go(classifier("after", 0.2), ahead, tmp_path / "ahead", replace(QUICK, accumulate=2))
    go(classifier("after", 0.2), task(), tmp_path / "run", replace(QUICK, accumulate=2))
    assert weights_of(tmp_path / "ahead") == weights_of(tmp_path / "run")
