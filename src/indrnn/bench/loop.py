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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from .. import constrain_, parameter_groups
from ..networks import Plain, SequenceClassifier, SequenceRegressor
from ..tasks.adding import Adding
from ..tasks.pixels import Pixels
from ..training import Listener, Shard, Step, Task, Training, train
from .measure import Bench, quantiles, short

SIDE, HIDDEN, LAYERS, CLASSES = 28, 128, 6, 10
LR, DECAY, CLIP = 2e-4, 1e-4, 10.0
STARTS = 5  # rounds of programs that are started, each of which takes seconds


@dataclass(frozen=True)
class Case:
    """A model and a task."""

    title: str
    model: Callable[[], nn.Module]
    task: Callable[[], Task]
    steps: int
    """Of each loop in a round."""
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
    return Pixels(data, data, validation=batch_size, batch_size=batch_size)


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
LOOP, BARE, OURS = "The training loop", "a bare loop", "indrnn.training.train"
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

    def take(self, step: int) -> None:
        """One step."""
        batch = self.task.batch(step, Shard()).to(self.device)
        self.optimizer.zero_grad()
        self.task.loss(self.model, batch).backward()
        nn.utils.clip_grad_value_(self.model.parameters(), CLIP)
        self.optimizer.step()
        constrain_(self.model)


class Turns(Listener):
    """Lets a bare loop take as many steps as the run just took, and times both.

    Args:
        bare: the other loop.
        steps: steps of each loop per round.
        rounds: timed rounds, after one for warm-up.
        wait: waits for the device.
    """

    def __init__(self, bare: BareLoop, steps: int, rounds: int, wait: Callable[[], None]) -> None:
        self.bare, self.steps, self.rounds, self.wait = bare, steps, rounds, wait
        self.milliseconds: dict[str, list[float]] = {BARE: [], OURS: []}
        self._begun = 0.0

    @property
    def total(self) -> int:
        """Steps of the run; the last is evaluated, and not timed."""
        return self.steps * (self.rounds + 1) + 1

    def on_step(self, event: Step) -> None:
        """At the end of a round, run the bare loop."""
        if event.step % self.steps or event.step == event.steps:
            return
        self.wait()
        ours = time.perf_counter()
        for step in range(event.step - self.steps, event.step):
            self.bare.take(step)
        self.wait()
        theirs = time.perf_counter()
        if event.step > self.steps:
            self.milliseconds[OURS].append((ours - self._begun) * 1e3 / self.steps)
            self.milliseconds[BARE].append((theirs - ours) * 1e3 / self.steps)
        self._begun = time.perf_counter()


def options(steps: int, device: torch.device) -> Training:
    """The bare loop's options, evaluated only at the end."""
    return Training(
        steps,
        LR,
        weight_decay=DECAY,
        clip=CLIP,
        evaluate_every=steps,
        gather=0,
        checkpoint_every=1e9,
        device=str(device),
        tensorboard=False,
        curve=False,
    )


def take_turns(bench: Bench, case: Case) -> dict[str, list[float]]:
    """Milliseconds per step of either loop, round by round."""
    models = [case.model() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    task = case.task()
    turns = Turns(BareLoop(models[1], task, bench.device), case.steps, bench.rounds, bench.wait)
    with tempfile.TemporaryDirectory() as folder:
        plan = options(turns.total, bench.device)
        train(models[0], task, plan, out=Path(folder) / "run", listeners=[turns], quiet=True)
    if len(turns.milliseconds[OURS]) != bench.rounds:
        raise RuntimeError(f"{case.title}: only {len(turns.milliseconds[OURS])} rounds were measured")
    return turns.milliseconds


def check_agreement(device: torch.device) -> None:
    """Check that both loops reach the same weights, without dropout and so without random numbers."""
    models = [adder(10, 4, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    task, steps = Adding(10, 3), 5
    bare = BareLoop(models[1], task, device)
    for step in range(steps):
        bare.take(step)
    with tempfile.TemporaryDirectory() as folder:
        train(models[0], task, options(steps, device), out=Path(folder) / "run", quiet=True)
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def measure_steps(bench: Bench) -> None:
    """Measure the loops."""
    head = f"| | time of a step, as a multiple of {BARE}'s [20 %, 80 %] | ms more [20 %, 80 %] | {BARE}, ms |"
    bench.say(f"\n{LOOP}\n\n{head}\n|---|---|---|---|")
    for case in CASES:
        if bench.quick and not case.quick:
            continue
        raw = take_turns(bench, case)
        pairs = list(zip(raw[OURS], raw[BARE], strict=True))
        ratio, more = quantiles([a / b for a, b in pairs]), quantiles([a - b for a, b in pairs])
        bare = quantiles(raw[BARE])
        cells = (f"{each.median:.3f} [{each.low:.3f}, {each.high:.3f}]" for each in (ratio, more))
        bench.say(f"| {case.title} | {' | '.join(cells)} | {short(bare.median)} |")
        row = {"title": LOOP, "name": case.title, "base": BARE, "ratio": asdict(ratio)}
        bench.rows.append({**row, "more_ms": asdict(more), "ms": asdict(bare), "steps": case.steps})


def start(program: str) -> None:
    """Run a Python program to its end."""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def run(bench: Bench) -> None:
    """Measure everything."""
    check_agreement(bench.device)
    measure_steps(bench)
    programs = {name: partial(start, program) for name, program in STARTED.items()}
    bench.compare("Start-up", next(iter(STARTED)), programs, slower=True, rounds=min(STARTS, bench.rounds))


def draw(bench: Bench, path: Path) -> None:
    """Draw the times as multiples."""
    from ..figures import new_figure, save_figure

    titles = list(dict.fromkeys(row["title"] for row in bench.rows))
    figure, panels = new_figure(len(titles), width=5.4)
    for axes, title in zip(panels, titles, strict=True):
        rows = [row for row in bench.rows if row["title"] == title]
        middle = [row["ratio"]["median"] for row in rows]
        spread = [[abs(row["ratio"][end] - row["ratio"]["median"]) for row in rows] for end in ("low", "high")]
        bars = axes.barh(range(len(rows)), middle, xerr=spread, color="#4fa3bf", error_kw={"linewidth": 0.8})
        axes.bar_label(bars, [f"{value:.2f}×" for value in middle], fontsize=8, padding=3)
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel(f"time, {rows[0]['base']} = 1")
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.2)
    save_figure(figure, path)
