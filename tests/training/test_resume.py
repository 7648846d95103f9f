"""Runs that are killed and resumed end as if nothing had been; also the program that trains and is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import indrnn
from indrnn.training import Plateau, TensorTask, Training, train

if __name__ == "__main__":  # a program of its own
    sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.training.streams import Streams, reader

T, FEATURES, CLASSES = 7, 3, 4
LONG, SHORT = 150, 60  # steps
SECONDS = 120  # after which a program that does not end is ended
RESUME = "python program.py --resume"


# ---- the program, in processes of their own


def program(out: str, steps: int, resume: bool, checkpoint_every: float, carried: bool = False) -> int:
    """Train a small model with all that must be restored: dropout, batch norm, a plateau and its best weights.

    Or one whose state is carried from step to step.
    """
    torch.manual_seed(3)
    network = indrnn.PlainIndRNN(FEATURES, 11, 2, dropout=0.2, batch_first=True)
    model = indrnn.SequenceClassifier(network, CLASSES)
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(90, T, FEATURES, generator=numbers)
    y = (x[:, 0, 0] > 0).long() + 2 * (x[:, -1, 1] > 0).long()
    y[::3] = torch.randint(CLASSES, (30,), generator=numbers)
    task = TensorTask((x[:47], y[:47]), (x[47:], y[47:]), batch_size=9, seed=5)
    options = Training(
        steps=steps,
        lr=1e-2,
        schedule=Plateau(2.0, 2),
        weight_decay=1e-3,
        evaluate_every=7,
        checkpoint_every=checkpoint_every,
        device="cpu",
        threads=1,
        tensorboard=False,
        curve=False,
    )
    what: tuple[torch.nn.Module, Any] = (reader(), Streams()) if carried else (model, task)
    result = train(*what, options, out=out, seed=4, resume=resume, resume_command=RESUME)
    return 0 if result.finished else 128 + (result.stopped_by or 0)


def arm(call: str, name: str, number: int, when: str, signals: list[int]) -> None:
    """Send signals to this process before or after the n-th call of a function of os, for files of this name."""
    seen = 0

    def wrap(kind: str) -> None:
        # What is flushed or not is the same after a kill, and this takes most of the time
        real = getattr(os, kind) if kind != "fsync" else lambda _: None

        def wrapped(*args: Any, **kwargs: Any) -> None:
            nonlocal seen
            hit = call in (kind, "any") and (kind == "fsync" or Path(args[-1]).name.startswith(name))
            seen += hit
            if hit and seen == number and when == "before":
                for each in signals:
                    os.kill(os.getpid(), each)
            real(*args, **kwargs)
            if hit and seen == number and when == "after":
                for each in signals:
                    os.kill(os.getpid(), each)

        setattr(os, kind, wrapped)

    for kind in ("replace", "unlink", "fsync"):
        wrap(kind)


def child(log: str, at: dict[str, Any] | None, options: dict[str, Any]) -> int:
    """What a forked process does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    code = 1
    try:
        if at is not None:
            arm(**at)
        code = program(**options)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def serve() -> None:
    """Import once, then fork a process for each request, which is killed after so many seconds."""
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()  # imports the rest
    indrnn.recurrence(torch.zeros(1, 1, 1), torch.zeros(1))  # loads the kernel
    for line in sys.stdin:
        request = json.loads(line)
        kill_after = request.pop("kill_after")
        begun = time.monotonic()
        process = os.fork()
        if process == 0:
            os._exit(child(**request))
        ended, status = 0, 0
        while not ended and time.monotonic() - begun < (SECONDS if kill_after is None else kill_after):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                time.sleep(0.001)
        if not ended:
            os.kill(process, signal.SIGKILL)  # ours, and not waited for: the number is nobody else's
            _, status = os.waitpid(process, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - begun]), flush=True)


# ---- the tests' side


@dataclass
class Ended:
    """How a process ended, what it said, and how long it took."""

    code: int
    said: str
    seconds: float


class Server:
    """Starts the program in processes of their own."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(
        self,
        out: Path,
        steps: int = SHORT,
        *,
        resume: bool = True,
        checkpoint_every: float = 0.02,
        at: dict[str, Any] | None = None,
        kill_after: float | None = None,
        carried: bool = False,
    ) -> Ended:
        options = {"out": str(out), "steps": steps, "resume": resume, "checkpoint_every": checkpoint_every}
        options["carried"] = carried
        request = {"log": str(self.log), "at": at, "options": options, "kill_after": kill_after}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code, seconds = json.loads(self.process.stdout.readline())
        return Ended(code, self.log.read_text() if self.log.exists() else "", seconds)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "log")
    yield server
    server.close()


@dataclass
class Reference:
    """A run that nothing happened to."""

    files: tuple[Any, ...]
    ended: Ended


def files(out: Path) -> tuple[Any, ...]:
    """All that a run leaves but times and how it was called."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((out / "result.json").read_text())
    for each in (*lines, result):
        del each["seconds"]
    del result["command"]
    return (out / "weights.safetensors").read_bytes(), lines, result


def reference(run: Server, out: Path, steps: int) -> Reference:
    ended = run(out, steps, resume=False)
    assert ended.code == 0, ended.said
    found = files(out)
    # Worth the name: the best weights changed more than once, and were gone back to
    best = [line["accuracy"] for line in found[1]]
    assert len({max(best[: i + 1]) for i in range(len(best))}) >= 3
    assert ended.said.count("back to the weights of step") >= 2
    return Reference(found, ended)


@pytest.fixture(scope="module")
def long(run: Server, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference(run, tmp_path_factory.mktemp("long") / "run", LONG)


@pytest.fixture(scope="module")
def short(run: Server, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference(run, tmp_path_factory.mktemp("short") / "run", SHORT)


def at(call: str, name: str, number: int, when: str = "before", *signals: int) -> dict[str, Any]:
    each = [int(number) for number in signals or (signal.SIGKILL,)]
    return {"call": call, "name": name, "number": number, "when": when, "signals": each}


def finish(run: Server, out: Path, expected: Reference, steps: int = SHORT, damaged: int = 0) -> str:
    """Resume a run to its end; returns what it said. A kill damages nothing: only what the test itself did is."""
    ended = run(out, steps, checkpoint_every=1e9)
    assert ended.code == 0, ended.said
    assert files(out) == expected.files
    assert ended.said.count("; it is set aside\n") == damaged
    return ended.said


def killed_at_random(run: Server, out: Path, expected: Reference, seed: int, kills: int) -> None:
    random_ = random.Random(seed)
    for _ in range(kills):
        ended = run(out, LONG, kill_after=random_.uniform(0.0, 0.5) * expected.ended.seconds)
        assert ended.code in (0, -signal.SIGKILL), ended.said
    finish(run, out, expected, LONG)


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments(run: Server, tmp_path: Path, long: Reference, seed: int) -> None:
    killed_at_random(run, tmp_path / "run", long, seed, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_killed_at_many_random_moments(run: Server, tmp_path: Path, long: Reference, seed: int) -> None:
    killed_at_random(run, tmp_path / "run", long, seed, 12)


@pytest.fixture(scope="module")
def streamed(run: Server, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    out = tmp_path_factory.mktemp("streamed") / "run"
    ended = run(out, SHORT, resume=False, carried=True)
    assert ended.code == 0, ended.said
    return Reference(files(out), ended)


def killed_with_a_carried_state(run: Server, out: Path, expected: Reference, seed: int, kills: int) -> None:
    random_ = random.Random(seed)
    for _ in range(kills):
        ended = run(out, kill_after=random_.uniform(0.0, 0.5) * expected.ended.seconds, carried=True)
        assert ended.code in (0, -signal.SIGKILL), ended.said
    assert run(out, carried=True).code == 0
    assert files(out) == expected.files


def test_killed_with_a_carried_state(run: Server, tmp_path: Path, streamed: Reference) -> None:
    killed_with_a_carried_state(run, tmp_path / "run", streamed, 0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_killed_often_with_a_carried_state(run: Server, tmp_path: Path, streamed: Reference, seed: int) -> None:
    killed_with_a_carried_state(run, tmp_path / "run", streamed, seed, 10)


SITES = [
    ("replace", "config.json", 1),
    ("replace", "next.ckpt", 1),
    ("replace", "next.ckpt", 30),
    ("replace", "previous.ckpt", 15),
    ("replace", "last.ckpt", 1),
    ("replace", "last.ckpt", 16),
    ("replace", "best-", 2),
    ("unlink", "best-", 1),
    ("replace", "weights.safetensors", 1),
    ("replace", "result.json", 1),
    ("fsync", "", 5),
    ("fsync", "", 60),
]


@pytest.mark.parametrize("site", SITES, ids=lambda site: " ".join(map(str, filter(None, site))))
def test_killed_at_a_call(run: Server, tmp_path: Path, short: Reference, site: tuple[str, str, int]) -> None:
    """Twice: before it in the run, and after the first such call where it was resumed."""
    call, name, number = site
    out = tmp_path / "run"
    for where in (at(call, name, number, "before"), at(call, name, 1, "after")):
        ended = run(out, checkpoint_every=0, at=where)
        assert ended.code == -signal.SIGKILL, ended.said
        assert "set aside" not in ended.said
    said = finish(run, out, short)
    assert "resuming at step " in said or (name, number) == ("next.ckpt", 1)  # before anything was there


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 4, 7, 10, 13, 16, 19, 22])
def test_killed_at_every_third_call(run: Server, tmp_path: Path, short: Reference, first: int) -> None:
    """A step and its checkpoint make seven calls, and more with an evaluation: so at every one of some step."""
    number, code = first, -int(signal.SIGKILL)
    while code != 0:
        out = tmp_path / f"run{number}"
        ended = run(out, checkpoint_every=0, at=at("any", "", number))
        code = ended.code
        assert code in (0, -signal.SIGKILL), ended.said
        finish(run, out, short)
        number += 24
    assert number > 6 * SHORT


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_before_the_first_evaluation_is_saved(run: Server, tmp_path: Path, short: Reference, when: str) -> None:
    out = tmp_path / "run"
    ended = run(out, checkpoint_every=1e9, at=at("replace", "best-", 2, when))
    assert ended.code == -signal.SIGKILL, ended.said
    assert (out / "metrics.jsonl").read_text().count("\n") >= 1
    assert "resuming at step 0\n" in finish(run, out, short)


def test_nothing_is_left_of_processes_that_were_killed(run: Server, tmp_path: Path, short: Reference) -> None:
    """Half a checkpoint for each kill would fill the disk in the end."""
    out = tmp_path / "run"
    for name in ("config.json", "next.ckpt", "best-", "weights.safetensors"):
        ended = run(out, checkpoint_every=0, at=at("replace", name, 1))
        assert ended.code == -signal.SIGKILL, ended.said
    finish(run, out, short)
    assert [path.name for path in out.rglob("*.tmp")] == []


def stopped(run: Server, out: Path, number: int = signal.SIGTERM) -> int:
    """Stop a run in its middle by a signal; returns the step that is saved."""
    ended = run(out, checkpoint_every=0, at=at("replace", "last.ckpt", 18, "after", number))
    assert ended.code == 128 + number, ended.said
    last = ended.said.splitlines()[-1]
    assert last.endswith(f", and saved; to go on: {RESUME}")
    step = int(last.removeprefix("stopped at step ").partition(",")[0])
    assert step == 18  # the checkpoint of step 17 was being written
    return step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_stopped_by_a_signal(run: Server, tmp_path: Path, short: Reference, number: int) -> None:
    out = tmp_path / "run"
    step = stopped(run, out, number)
    assert not (out / "result.json").exists()
    assert f"resuming at step {step}\n" in finish(run, out, short)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_stopped_by_two_signals(run: Server, tmp_path: Path, short: Reference, number: int) -> None:
    """The second one does not wait for anything."""
    out = tmp_path / "run"
    ended = run(out, checkpoint_every=0, at=at("replace", "previous.ckpt", 17, "after", number, number))
    assert ended.code == (1 if number == signal.SIGINT else -signal.SIGTERM), ended.said
    assert ("KeyboardInterrupt" in ended.said) == (number == signal.SIGINT)
    finish(run, out, short)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.9999])
def test_a_truncated_checkpoint(run: Server, tmp_path: Path, short: Reference, share: float) -> None:
    out = tmp_path / "run"
    step = stopped(run, out)
    last = out / "checkpoints" / "last.ckpt"
    os.truncate(last, int(last.stat().st_size * share))
    said = finish(run, out, short, damaged=1)
    assert any(str(last) in line and line.endswith("; it is set aside") for line in said.splitlines())
    assert f"resuming at step {step - 1}\n" in said  # of the checkpoint before
    assert (out / "checkpoints" / "last.damaged").exists()


def test_two_truncated_checkpoints(run: Server, tmp_path: Path) -> None:
    """Nothing to go on from: it is said, and not a byte changes."""
    out = tmp_path / "run"
    stopped(run, out)
    for name in ("last.ckpt", "previous.ckpt"):
        os.truncate(out / "checkpoints" / name, 1000)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ended = run(out)
    assert ended.code == 1
    assert re.search(
        r"RunError: cannot resume .*last\.ckpt is damaged.*previous\.ckpt is damaged.*overwrite", ended.said
    )
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


if __name__ == "__main__":
    serve()
