"""Overhead of the training loop over a bare loop, and of the command line over starting Python.

The bare loop makes the batch, clears the gradients, runs forward and backward, clips, steps the optimiser and applies
the constraint. In addition, a run derives seeds, follows a schedule, computes the gradient's norm, checks for
non-finite numbers and signals, and calls its listeners. The two alternate inside one run. Evaluations and checkpoints
are left out: how often they are done is an option.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from indrnn import Plain, SequenceClassifier, SequenceRegressor, constrain_, parameter_groups
from indrnn.tasks.adding import Adding
from indrnn.tasks.pixels import Pixels, PixelsRecipe
from indrnn.training import Listener, RunError, Shard, Step, Task, Training, train

from .command import Benchmark, start
from .measure import Bench, quantiles, ratios, short

SIDE, HIDDEN, LAYERS, CLASSES = 28, 128, 6, 10
LR, DECAY, CLIP = 2e-4, 1e-4, 10.0
STARTS = 5  # rounds of programs that are started, each of which takes seconds


@dataclass(frozen=True)
class Case:
    """A model and a task."""

    title: str
    """Title of the row."""
    model: Callable[[], nn.Module]
    """Function that makes the model."""
    task: Callable[[], Task]
    """Function that makes the task."""
    steps: int
    """Steps of each loop in a round."""
    quick: bool = False
    """Whether it is measured with `--quick`."""


def pixel_network(dropout: float) -> nn.Module:
    """The paper's 6 layers of 128 neurons."""
    network = Plain(1, HIDDEN, LAYERS, dropout=dropout, sequence_length=SIDE * SIDE, long_memory=True)
    return SequenceClassifier(network.build(), CLASSES)


def pixels(batch_size: int) -> Pixels:
    """Images of noise."""
    count = 20 * batch_size
    images, labels = torch.randint(256, (count, SIDE, SIDE), dtype=torch.uint8), torch.arange(count) % CLASSES
    data = (images, labels.to(torch.uint8))
    return Pixels(data, data, PixelsRecipe(validation=batch_size, batch_size=batch_size))


def adder(length: int, hidden: int, layers: int) -> nn.Module:
    """A network for the adding problem."""
    network = Plain(2, hidden, layers, norm=None, gamma=2.0, sequence_length=length, long_memory=True)
    return SequenceRegressor(network.build(), 1)


CASES = (
    Case("pixels: 6 layers of 128, batch 32", lambda: pixel_network(0.1), lambda: pixels(32), 1),
    Case("pixels without dropout: 6 layers of 128, batch 64", lambda: pixel_network(0.0), lambda: pixels(64), 1),
    Case("adding-100: 2 layers of 128, batch 50", lambda: adder(100, 128, 2), lambda: Adding(100, 50), 10, quick=True),
    Case("smallest: one layer of 4, batch 2, T = 10", lambda: adder(10, 4, 1), lambda: Adding(10, 2), 50, quick=True),
)
LOOP, BARE = "The training loop", "a bare loop"
STARTED = {
    'python -c "import torch"': "import torch",
    "indrnn --help": "from indrnn.cli import main; main(['--help'])",
    "indrnn recipes": "from indrnn.cli import main; main(['recipes'])",
}


class BareLoop:
    """A bare training loop, on the same batches.

    Args:
        model: the model; it is moved to `device`.
        task: the task.
        device: the device to train on.
    """

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        self.model, self.task, self.device = model.to(device).train(), task, device
        groups = parameter_groups(model, DECAY)
        self.optimizer = torch.optim.Adam(groups, lr=LR, fused=device.type in ("cpu", "cuda"))

    def update(self, step: int) -> None:
        """Train one step."""
        batch = self.task.batch(step, Shard()).to(self.device)
        self.optimizer.zero_grad()
        self.task.loss(self.model, batch).backward()
        nn.utils.clip_grad_value_(self.model.parameters(), CLIP)
        self.optimizer.step()
        constrain_(self.model)


class AlternatingTimer(Listener):
    """Lets a bare loop train as many steps as the run just did, and times both.

    Args:
        bare: the other loop.
        steps: steps of each loop per round.
        wait: waits for the device.
    """

    def __init__(self, bare: BareLoop, steps: int, wait: Callable[[], None]) -> None:
        self.bare, self.steps, self.wait = bare, steps, wait
        self.run_ms: list[float] = []
        self.bare_ms: list[float] = []
        self._begin = 0.0

    def on_step(self, event: Step) -> None:
        """At the end of a round, run the bare loop; the first round is warm-up."""
        if event.step % self.steps or event.step == event.steps:
            return
        self.wait()
        middle = time.perf_counter()
        for step in range(event.step - self.steps, event.step):
            self.bare.update(step)
        self.wait()
        end = time.perf_counter()
        if event.step > self.steps:
            self.run_ms.append((middle - self._begin) * 1e3 / self.steps)
            self.bare_ms.append((end - middle) * 1e3 / self.steps)
        self._begin = time.perf_counter()


def options(steps: int, device: torch.device) -> Training:
    """The bare loop's options, evaluated only at the end."""
    seldom = {"evaluate_every": steps, "checkpoint_every": 1e9}
    plain = {"gather": 0, "tensorboard": False, "curve": False}
    return Training(steps, LR, weight_decay=DECAY, clip=CLIP, device=str(device), **seldom, **plain)  # type: ignore[arg-type]


def twins(case: Case, device: torch.device) -> tuple[nn.Module, BareLoop]:
    """A model to train, and a bare loop on the same task with the same weights."""
    model, twin = case.model(), case.model()
    twin.load_state_dict(model.state_dict())
    return model, BareLoop(twin, case.task(), device)


def alternate(bench: Bench, case: Case) -> AlternatingTimer:
    """Time a run and a bare loop, round by round."""
    model, bare = twins(case, bench.device)
    timer = AlternatingTimer(bare, case.steps, bench.wait)
    plan = options(case.steps * (bench.rounds + 1) + 1, bench.device)  # the last step is evaluated, and not timed
    with tempfile.TemporaryDirectory() as folder:
        train(model, bare.task, plan, out=Path(folder) / "run", listeners=[timer], quiet=True)
    if len(timer.run_ms) != bench.rounds:
        raise RunError(f"{case.title}: only {len(timer.run_ms)} rounds were measured")
    return timer


def check_agreement(device: torch.device) -> None:
    """Check that both loops reach the same weights, without dropout and so without random numbers."""
    model, bare = twins(Case("", lambda: adder(10, 4, 2), lambda: Adding(10, 3), 5), device)
    for step in range(5):
        bare.update(step)
    with tempfile.TemporaryDirectory() as folder:
        train(model, bare.task, options(5, device), out=Path(folder) / "run", quiet=True)
    for ours, theirs in zip(model.parameters(), bare.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def run(bench: Bench) -> None:
    """Measure everything."""
    check_agreement(bench.device)
    multiple = f"time of a step, as a multiple of {BARE}'s [20 %, 80 %]"
    bench.head(LOOP, "", multiple, "ms more [20 %, 80 %]", f"{BARE}, ms")
    for case in CASES:
        if bench.quick and not case.quick:
            continue
        timer = alternate(bench, case)
        ratio, ms = ratios(timer.run_ms, timer.bare_ms), quantiles(timer.bare_ms)
        more = quantiles(a - b for a, b in zip(timer.run_ms, timer.bare_ms, strict=True))
        bench.line(case.title, ratio.thousandths(), more.thousandths(), short(ms.median))
        bench.keep(title=LOOP, name=case.title, base=BARE, ratio=ratio, more_ms=more, ms=ms, steps=case.steps)
    programs = {
        name: partial(subprocess.run, [sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
        for name, program in STARTED.items()
    }
    bench.compare("Start-up", next(iter(STARTED)), programs, slower=True, rounds=min(STARTS, bench.rounds))


BENCHMARK = Benchmark("loop", 41, run)
if __name__ == "__main__":
    start(BENCHMARK)
