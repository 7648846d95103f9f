"""Time split over processes gives what one process gives; also the script that each of the processes runs.

A start of processes costs seconds, so all cases run in one start for each number of processes.
"""

from __future__ import annotations

import copy
import datetime
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from indrnn import (
    ConvIndRNN1d,
    DenseIndRNN,
    IndRNN,
    PlainIndRNN,
    ResidualIndRNN,
    SequenceClassifier,
    recurrence,
)
from indrnn.networks.config import Place
from indrnn.ops import TimeSlice, split_recurrence, split_time, sum_gradients
from indrnn.ops.split import add_up
from tests.ops.problems import NAMES, Problem, problem
from tests.processes import forked

T, B = 37, 5
UNEVEN = {2: (30, 7), 4: (9, 0, 20, 8)}
FIRST_EMPTY = {2: (0, 37), 4: (0, 0, 36, 1)}
Results = dict[str, Tensor]

# What the loss is made of: every rank's h and its share of h_last, or what the last rank alone has of the two.
LOSSES = ["all", "last rank", "last rank, h_last"]


def part(sizes: tuple[int, ...], rank: int) -> slice:
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])


def share(loss: str, rank: int, size: int) -> float:
    """Of h_last's gradient, what comes from this rank."""
    return (rank + 1) / sum(range(size + 1)) if loss == "all" else float(rank == size - 1)


def loss_of(h: Tensor, grad_h: Tensor, loss: str, rank: int, size: int) -> Tensor:
    """What this rank makes of its own slice of h; a rank without a loss of its own takes part too."""
    has = loss == "all" or (loss == "last rank" and rank == size - 1)
    return (h * grad_h).sum() if has else h.sum() * 0


def gradient_of(grad_h: Tensor, loss: str, sizes: tuple[int, ...]) -> Tensor:
    """The gradient that comes back to the whole h."""
    if loss == "all":
        return grad_h
    last = torch.zeros_like(grad_h)
    if loss == "last rank":
        own = part(sizes, len(sizes) - 1)
        last[own] = grad_h[own]
    return last


@dataclass
class OpCase:
    """A call of the op."""

    problem: Problem
    sizes: dict[int, tuple[int, ...]] = field(default_factory=lambda: UNEVEN)
    loss: str = "all"
    summed: bool = True
    tolerance: float = 1e-10
    exact: bool = False
    """Whether h is to be that of one process to the bit."""

    def run(self, rank: int, size: int) -> Results:
        whole, sizes = self.problem, self.sizes[size]
        own = replace(whole, x=whole.x[part(sizes, rank)]).with_gradients()
        h, h_last = split_recurrence(
            own.x,
            own.u,
            own.h_0,
            bias=own.bias,
            activation=own.activation,
            reverse=own.reverse,
            lengths=own.lengths,
            resets=own.resets,
            summed=self.summed,
        )
        loss = loss_of(h, whole.grad_h[part(sizes, rank)], self.loss, rank, size)
        loss = loss + share(self.loss, rank, size) * (h_last * whole.grad_h_last).sum()
        gradients = iter(torch.autograd.grad(loss, own.leaves))
        leaves = zip(NAMES[2:], (own.x, own.u, own.bias, own.h_0), strict=True)
        given = {name: next(gradients) for name, leaf in leaves if leaf is not None}
        return {"h": h.detach(), "h_last": h_last.detach(), **given}

    def expected(self, size: int) -> Results:
        whole = replace(self.problem, grad_h=gradient_of(self.problem.grad_h, self.loss, self.sizes[size]))
        leaves = zip(NAMES[2:], (whole.x, whole.u, whole.bias, whole.h_0), strict=True)
        names = [*NAMES[:2], *(name for name, leaf in leaves if leaf is not None)]
        return dict(zip(names, whole.solve(None), strict=True))

    def check(self, results: list[Results], size: int) -> None:
        for name, expected in self.expected(size).items():
            pieces = [result[name] for result in results]
            if name in ("h", "grad_x"):
                pieces = [torch.cat(pieces)]
            elif not self.summed and name != "h_last":
                pieces = [add_up(pieces)]
            close(name, pieces, expected, 0.0 if self.exact and name in ("h", "h_last") else self.tolerance)


@dataclass
class ModuleCase:
    """Calls of a layer or network, on one sequence after the other with the state that is left."""

    module: nn.Module
    xs: list[Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    loss: str = "all"
    tolerance: float = 1e-10

    def work(
        self,
        parts: list[slice],
        rank: int = 0,
        size: int = 1,
        loss: str = "all",
        time_slice: TimeSlice | None = None,
    ) -> Results:
        module, total, outputs = copy.deepcopy(self.module), torch.zeros(()), []
        state: Any = None
        xs = [x[own].detach().requires_grad_() for x, own in zip(self.xs, parts, strict=True)]
        for x, own in zip(xs, parts, strict=True):
            y, state = module(x, state, **self.options, time_slice=time_slice)
            if y.dim() == 2:  # of the last step, on every rank
                total = total + share(loss, rank, size) * (y * torch.linspace(1, 2, y.shape[-1]).to(y)).sum()
                outputs.append(y.detach())
                continue
            weight = torch.linspace(-1, 1, y[:1].numel()).view_as(y[:1]).to(y)
            steps = torch.linspace(1, 2, T, dtype=y.dtype)[own].view(-1, *[1] * (y.dim() - 1))
            total = total + loss_of(y, weight * steps, loss, rank, size)
            outputs.append(y.detach())
        states = [state] if isinstance(state, Tensor) else list(state.h)
        for h in states:
            total = total + share(loss, rank, size) * (h * torch.linspace(-1, 2, h.shape[-1]).to(h)).sum()
        total.backward()
        if size > 1:
            sum_gradients(module.parameters())
        results = {f"output{i}": y for i, y in enumerate(outputs)}
        results |= {f"input{i}.grad": x.grad for i, x in enumerate(xs) if x.grad is not None}
        results |= {f"h{i}": h.detach() for i, h in enumerate(states)}
        results |= {f"{name}.grad": p.grad for name, p in module.named_parameters() if p.grad is not None}
        results |= {name: buffer.clone() for name, buffer in module.named_buffers()}
        return results if isinstance(state, Tensor) else results | {"position": state.position}

    def run(self, rank: int, size: int) -> Results:
        torch.manual_seed(rank)  # the first rank's masks are used by all
        sizes = UNEVEN[size]
        return self.work([part(sizes, rank)] * len(self.xs), rank, size, self.loss, split_time(sizes[rank]))

    def expected(self, size: int) -> Results:
        torch.manual_seed(0)
        if self.loss == "all":
            return self.work([slice(None)] * len(self.xs))
        # The last rank's loss is that of the steps it has.
        masked, kept = copy.copy(self), self.module
        masked.module = _LastSteps(kept, UNEVEN[size][-1] if self.loss == "last rank" else 0)
        results = masked.work([slice(None)] * len(self.xs))
        return {name.removeprefix("module."): value for name, value in results.items()}

    def check(self, results: list[Results], size: int) -> None:
        expected = self.expected(size)
        for name, value in expected.items():
            pieces = [result[name] for result in results]
            if name.startswith("output") and self.loss != "all":
                continue  # the comparison masks it
            if name.startswith("input") or (name.startswith("output") and value.dim() > 2):
                pieces = [torch.cat(pieces)]
            close(name, pieces, value, self.tolerance)


class _LastSteps(nn.Module):
    """A module of whose output only the last steps are left."""

    def __init__(self, module: nn.Module, steps: int) -> None:
        super().__init__()
        self.module, self.steps = module, steps

    def forward(self, *args: Any, **options: Any) -> Any:
        y, state = self.module(*args, **options)
        return y * (torch.arange(len(y)) >= len(y) - self.steps).view(-1, *[1] * (y.dim() - 1)), state


def close(name: str, pieces: list[Tensor], expected: Tensor, tolerance: float) -> None:
    """Each piece close to what is expected, and the pieces alike to the bit, which come from different ranks."""
    finite = expected[torch.isfinite(expected)] if expected.is_floating_point() else expected.new_zeros(0)
    largest = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    for piece in pieces:
        within: dict[str, Any] = {"rtol": tolerance, "atol": tolerance * min(largest, 1e6)}
        torch.testing.assert_close(piece, expected, **within, equal_nan=True, msg=f"{name}: {{}}".format)
        torch.testing.assert_close(piece, pieces[0], rtol=0, atol=0, equal_nan=True)


# ---- the cases


def op_cases() -> dict[str, OpCase]:
    cases = {
        f"{activation}{', reverse' if reverse else ''}, loss of {loss}": OpCase(
            problem(T, B, 7, activation=activation, reverse=reverse), loss=loss
        )
        for activation in ("relu", "identity")
        for reverse in (False, True)
        for loss in LOSSES
    }
    for reverse in (False, True):
        way = ", reverse" if reverse else ""
        both = problem(T, B, 7, (2,), reverse=reverse, lengths=True, resets=True)
        cases["lengths" + way] = OpCase(problem(T, B, 7, reverse=reverse, lengths=True))
        cases["resets" + way] = OpCase(problem(T, B, 7, reverse=reverse, resets=True))
        cases["lengths and resets, one dimension between" + way] = OpCase(both, loss="last rank")
        cases["parts of gradients" + way] = OpCase(both, summed=False)
        cases["first slices empty" + way] = OpCase(both, FIRST_EMPTY)
        cases["first slices empty, no h_0, no bias" + way] = OpCase(
            problem(T, B, 7, reverse=reverse, bias=False, h_0=False), FIRST_EMPTY
        )
    for activation in ("relu", "identity"):
        long = problem(1500, 2, 7, activation=activation)
        long.u.clamp_(-0.999, 0.999)
        lengths = {2: (1001, 499), 4: (3, 700, 500, 297)}
        cases[f"long, {activation}"] = OpCase(long, lengths)
        cases[f"long, {activation}, float32"] = OpCase(long.to(torch.float32), lengths, tolerance=1e-5)
        large = problem(T, B, 7, activation=activation)
        large.u.mul_(3)
        cases[f"|u| up to 3, {activation}"] = OpCase(large)
    cases["float32"] = OpCase(problem(T, B, 7, dtype=torch.float32), tolerance=1e-5)
    cases["bfloat16"] = OpCase(problem(T, B, 7, dtype=torch.bfloat16), tolerance=2**-6)
    cases["no batch"] = OpCase(problem(T, 0, 7))
    # The states are finite, for a negative u takes them back to zero, but the slices' slopes are not.
    steep = problem(600, B, 7)
    steep.u.copy_(torch.linspace(-40, -20, 7))
    cases["slopes that overflow"] = OpCase(steep, {2: (300, 300), 4: (300, 0, 20, 280)}, exact=True)
    for name, value in (("NaN", torch.nan), ("infinity", torch.inf)):
        for reverse in (False, True):
            bad = problem(T, B, 7, reverse=reverse, resets=True)
            bad.x[5, 2, 3] = value
            cases[f"{name}{', reverse' if reverse else ''}"] = OpCase(bad)
    rising = problem(T, B, 7)
    rising.u.fill_(1e9)
    cases["states that overflow"] = OpCase(rising)
    return cases


def module_cases() -> dict[str, ModuleCase]:
    def xs(count: int, *features: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn((T, B, *features), generator=generator, dtype=torch.float64) for _ in range(count)]

    torch.manual_seed(0)
    f64: dict[str, Any] = {"dtype": torch.float64}
    lengths, resets = torch.tensor([37, 0, 30, 31, 8]), torch.rand(T, B) < 0.1
    two_layers = IndRNN(5, 7, 2, **f64)
    cases = {
        f"IndRNN, loss of {loss}": ModuleCase(two_layers, xs(1, 5), {"lengths": lengths, "resets": resets}, loss)
        for loss in LOSSES
    }
    cases |= {
        f"plain, loss of {loss}": ModuleCase(PlainIndRNN(5, 7, 2, norm=None, **f64), xs(1, 5), {}, loss)
        for loss in LOSSES
    }
    places: tuple[Place, ...] = ("before", "after")
    for place in places:
        module = PlainIndRNN(5, 7, 2, norm_place=place, synchronised=True, dropout=0.3, **f64)
        cases[f"plain, norm {place}"] = ModuleCase(module, xs(1, 5))
        cases[f"plain, norm {place}, lengths"] = ModuleCase(module, xs(2, 5), {"lengths": lengths}, "last rank")
        own = PlainIndRNN(5, 7, 2, norm_place=place, **f64).eval()
        cases[f"plain, norm {place}, evaluation"] = ModuleCase(own, xs(1, 5), {"lengths": lengths})
    for options in ({}, {"lengths": lengths, "resets": resets}):
        classifier = SequenceClassifier(PlainIndRNN(5, 7, 2, synchronised=True, **f64), 3)
        name = "last step, lengths and resets" if options else "last step"
        cases[name] = ModuleCase(classifier, xs(2, 5), options)
    return cases | {
        "IndRNN, one sequence after the other": ModuleCase(two_layers, xs(3, 5), {"lengths": lengths}),
        "IndRNN, bidirectional, dropout": ModuleCase(
            IndRNN(5, 7, 2, dropout=0.4, bidirectional=True, **f64), xs(1, 5), {"lengths": lengths, "resets": resets}
        ),
        "IndRNN, float32": ModuleCase(IndRNN(5, 7, 2), [xs(1, 5)[0].float()], tolerance=1e-5),
        "plain, one sequence after the other": ModuleCase(
            PlainIndRNN(5, 7, 2, norm=None, dropout=0.3, **f64), xs(2, 5)
        ),
        "residual": ModuleCase(ResidualIndRNN(5, 7, 1, norm_place="before", synchronised=True, **f64), xs(1, 5)),
        "dense": ModuleCase(DenseIndRNN(5, 2, (1, 1), norm=None, **f64), xs(1, 5), {}, "last rank"),
        "convolution": ModuleCase(
            ConvIndRNN1d(2, 3, 3, reverse=True, **f64), xs(1, 2, 6), {"lengths": lengths, "resets": resets}
        ),
    }


CASES: dict[str, OpCase | ModuleCase] = op_cases() | module_cases()


# ---- what else a process does


def exchanged() -> Tensor:
    """The bytes of tensors that a forward and a backward pass send, by the number of steps."""
    sent: list[int] = []
    all_gather = dist.all_gather

    def counting(values: list[Tensor], value: Tensor, **options: Any) -> Any:
        sent.append(value.nbytes)
        return all_gather(values, value, **options)

    totals = []
    dist.all_gather = counting  # type: ignore[assignment]
    for steps in (3, 300):
        sent.clear()
        x, u = torch.rand(steps, B, 7, requires_grad=True), torch.full((7,), 0.9, requires_grad=True)
        split_recurrence(x, u, bias=torch.zeros(7))[0].sum().backward()
        totals.append(sum(sent))
    dist.all_gather = all_gather
    return torch.tensor(totals)


def alone(groups: list[Any], rank: int) -> list[Tensor]:
    """Every process in a group of its own, beside the ordinary recurrence: h, h_last and the gradients."""
    results = []
    for function, options in ((recurrence, {}), (split_recurrence, {"group": groups[rank]})):
        own = problem(T, B, 7, lengths=True, resets=True, seed=rank).with_gradients()
        outputs = function(own.x, own.u, own.h_0, bias=own.bias, lengths=own.lengths, resets=own.resets, **options)
        gradients = torch.autograd.grad(outputs, own.leaves, (own.grad_h, own.grad_h_last))
        results += [tensor.detach() for tensor in (*outputs, *gradients)]
    return results


def needed_elsewhere(rank: int) -> Tensor:
    """The gradient of the first rank's x, where nothing needs a gradient on the others."""
    x = torch.ones(3, 1, 1).requires_grad_(rank == 0)
    h, h_last = split_recurrence(x, torch.full((1,), 0.5))
    (h.sum() * 0 + (h_last.sum() if rank == 1 else 0)).backward()
    return torch.zeros(0) if x.grad is None else x.grad


def refusals(rank: int, groups: list[Any]) -> dict[str, str]:
    """What is said where something cannot be."""
    x, u = torch.rand(3, B, 7), torch.rand(7)
    resets = torch.zeros(3, B, dtype=torch.bool)

    def twice() -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(split_recurrence(leaf, u)[0].sum(), leaf, create_graph=True)

    sequence, own = torch.rand(3, B, 5), split_time(3)
    packed = pack_padded_sequence(torch.rand(3, B, 5), torch.tensor([3] * B))
    per_step = PlainIndRNN(5, 7, 1, norm="step", norm_steps=9, synchronised=True)
    calls = {
        "tanh": lambda: split_recurrence(x, u, activation="tanh"),
        "not alike": lambda: split_recurrence(x, u, reverse=rank == 0),
        "resets": lambda: split_recurrence(x, u, resets=resets),
        "lengths": lambda: split_recurrence(x, u, lengths=torch.full((B,), 1000)),
        "twice": twice,
        "group": lambda: split_recurrence(x, u, group=groups[1 - rank % 2]),
        "steps": lambda: IndRNN(5, 7)(torch.rand(4, B, 5), time_slice=own),
        "norm": lambda: PlainIndRNN(5, 7, 1)(sequence, time_slice=own),
        "norm of each step": lambda: per_step(sequence, time_slice=own),
        "packed": lambda: IndRNN(5, 7)(packed, time_slice=own),
        "recompute": lambda: IndRNN(5, 7, recompute=2)(sequence, time_slice=own),
        "mean": lambda: SequenceClassifier(IndRNN(5, 7), 3, pool="mean")(sequence, time_slice=own),
        "another's layer": lambda: SequenceClassifier(nn.GRU(5, 7), 3)(sequence, time_slice=own),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except (RuntimeError, ValueError) as error:
            said[name] = str(error)
    return said


def process(directory: Path, rank: int, size: int) -> None:
    """One process."""
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{directory / 'meeting'}", rank=rank, world_size=size, timeout=limit)
    groups = [dist.new_group([each]) for each in range(size)]
    results: dict[str, Any] = {name: case.run(rank, size) for name, case in CASES.items()}
    results["bytes"] = exchanged()
    results["alone"] = alone(groups, rank)
    results["needed elsewhere"] = needed_elsewhere(rank)
    results["refusals"] = refusals(rank, groups)
    torch.save(results, directory / f"results{rank}")
    dist.barrier()


# ---- the tests


@pytest.mark.parametrize(
    "size", [pytest.param(2, id="2 processes"), pytest.param(4, marks=pytest.mark.slow, id="4 processes")]
)
def test_gives_what_one_process_gives(size: int, tmp_path: Path) -> None:
    results = run_processes(size, tmp_path)
    failures = []
    for name, case in CASES.items():
        try:
            case.check([result[name] for result in results], size)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)
    for result in results:
        check_exchanged(result["bytes"])
        check_alone(result["alone"])
        check_refusals(result["refusals"], size)
    check_needed_elsewhere(results[0]["needed elsewhere"], size)


def run_processes(size: int, directory: Path) -> list[dict[str, Any]]:
    """What each process found; one that hangs is a failure."""
    command = [sys.executable, "-m", "tests.ops.test_split", str(directory), str(size)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    return [torch.load(directory / f"results{rank}") for rank in range(size)]


def check_exchanged(sent: Tensor) -> None:
    """A few numbers for each batch element and neuron, however many steps."""
    short, long = sent.tolist()
    assert short == long == 4 * (4 * B * 7 + 3 * B * 7 + 2 * 7)


def check_alone(results: list[Tensor]) -> None:
    half = len(results) // 2
    for ordinary, alone in zip(results[:half], results[half:], strict=True):
        torch.testing.assert_close(alone, ordinary, rtol=1e-12, atol=1e-12)


def check_needed_elsewhere(gradient: Tensor, size: int) -> None:
    later = 3 * (size - 1)
    torch.testing.assert_close(gradient.flatten(), 0.5 ** torch.tensor([later + 2.0, later + 1.0, later]))


def check_refusals(said: dict[str, str], size: int) -> None:
    expected = {
        "tanh": "activation must be relu or identity",
        "not alike": "every rank must have the same",
        "resets": f"resets must have the shape (T, B) = ({3 * size}, {B}), got (3, {B})",
        "lengths": f"lengths must lie between 0 and T = {3 * size}",
        "twice": "can be differentiated once",
        "group": "group must be one that this process is in",
        "steps": "x must have the 3 steps that split_time was given, got 4",
        "norm": "batch norm over the sequence with synchronised=False, in training, cannot run with a time_slice",
        "norm of each step": "batch norm with statistics of each step's own cannot run with a time_slice",
        "packed": "a PackedSequence cannot run with a time_slice",
        "recompute": "recompute cannot run with a time_slice",
        "mean": "the mean over time cannot run with a time_slice",
        "another's layer": "GRU cannot run with a time_slice",
    }
    for name, message in expected.items():
        assert message in said[name]


def test_needs_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        split_recurrence(torch.rand(3, 2, 1), torch.rand(1))
    with pytest.raises(RuntimeError, match="init_process_group"):
        split_time(3)


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    sys.exit(forked(lambda rank: process(folder, rank, count), count))
