"""Training in several processes that `torchrun` started; also the program that each of them runs."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import indrnn
from indrnn.tasks.adding import Adding, AddingRecipe
from indrnn.tasks.rows import find
from indrnn.training import Batch, Result, RunError, Shard, Task, TensorTask, Training, train
from indrnn.training.checkpoint import load

if __name__ == "__main__":  # a program of its own
    sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.training.streams import Streams
from tests.training.streams import reader as stream_reader

# ---- starting processes

SECONDS = 150.0
"""After which a command is given up, on a machine with other things to do."""
ONE = ("-m", "indrnn")


@dataclass
class Ended:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


def start(*command: str | Path, count: int = 2, session: bool = False) -> subprocess.Popen[str]:
    """`torchrun ...`, or `python ...` for a single process, with pipes."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["OMP_NUM_THREADS"] = "1"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
    return subprocess.Popen(
        [sys.executable, *launch, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=session,
    )


def end(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end; torchrun itself must end a process that hangs, or its workers would live on."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=90)
        pytest.fail(f"no end after {SECONDS:g} s:\n{out}\n{err}")
    return Ended(process.returncode, out, err)


def run(*command: str | Path, count: int = 2) -> Ended:
    return end(start(*command, count=count))


def program(scenario: str, folder: Path, count: int = 2) -> Ended:
    """One of the scenarios below, in processes."""
    return run(__file__, scenario, folder, count=count)


def assert_clean(ended: Ended) -> None:
    """It went well, and nothing on the way is worth a word."""
    assert ended.code == 0, ended.err
    assert not re.search(r"Traceback|destroy_process_group|[Ww]arning|leak|Error", ended.err), ended.err


def said_by_us(ended: Ended) -> list[str]:
    """The lines of an error that are not torchrun's."""
    return [line for line in ended.err.splitlines() if line.startswith("indrnn: ")]


# ---- what is trained


class Reader(nn.Module):
    """(B, T, 3) to 2 numbers; no norm, so that an item knows nothing of the others in its batch."""

    def __init__(self, dropout: float, neurons: int) -> None:
        super().__init__()
        self.layers = indrnn.IndRNN(3, neurons, num_layers=2, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(neurons, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(self.layers(x)[0][:, -1]))  # type: ignore[no-any-return]


def reader(dropout: float = 0.0, neurons: int = 7, dtype: torch.dtype = torch.float32) -> Reader:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Reader(dropout, neurons).to(dtype)


def tensors(items: int, dtype: torch.dtype = torch.float32) -> TensorTask:
    """Batches of 5: the last holds what is left."""
    random = torch.Generator().manual_seed(5)
    x = torch.randn(items, 9, 3, generator=random, dtype=dtype)
    y = torch.randn(items, 2, generator=random, dtype=dtype)
    return TensorTask((x, y), batch_size=5, loss=nn.functional.mse_loss)


def adding(batch_size: int) -> tuple[nn.Module, Task]:
    recipe = find("adding-100-fast").recipe
    assert isinstance(recipe, AddingRecipe)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return replace(recipe, length=9).model_config().build(), Adding(9, batch_size, test_sequences=10)


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Task]], int, float]] = {
    # what, pieces for each process, and how far apart rounding may bring it
    "a batch that divides": (lambda: adding(6), 1, 1e-6),
    "a batch that divides, in pieces": (lambda: adding(8), 2, 1e-6),
    "a batch that does not divide": (lambda: adding(5), 1, 1e-6),
    "a batch that does not divide, in pieces": (lambda: adding(5), 2, 1e-6),
    "a last batch of one item": (lambda: (reader(), tensors(11)), 1, 1e-6),
    "a last batch of one item, in pieces": (lambda: (reader(), tensors(11)), 2, 1e-6),
    "float64": (lambda: (reader(dtype=torch.float64), tensors(11, torch.float64)), 1, 1e-14),
    "float64, in pieces": (lambda: (reader(dtype=torch.float64), tensors(11, torch.float64)), 2, 1e-14),
}


def gradients(case: str, folder: Path) -> list[list[Tensor]]:
    """The gradients of each of three steps, as they come to the optimiser."""
    make, accumulate, _ = CASES[case]
    model, task = make()
    caught: list[list[Tensor]] = []

    def catch(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        caught.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])

    # Such steps leave the weights as they are, so that all gradients are taken at the same point.
    options = Training(
        steps=3, lr=1e-30, clip=None, accumulate=accumulate, device="cpu", tensorboard=False, curve=False
    )
    handle = register_optimizer_step_pre_hook(catch)
    try:
        train(model, task, options, out=folder / case, quiet=True)
    finally:
        handle.remove()
    return caught


class Stopped(TensorTask):
    """Sends its own process a signal while it makes a batch."""

    at: int | None = None

    def batch(self, step: int, shard: Shard) -> Batch:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().batch(step, shard)


def weights(out: Path, *, until: int | None = None, resume: bool = False) -> Result:
    """A run of 12 steps with dropout, that the last process may be told to stop before its end."""
    task = Stopped(tensors(11).data["train"], batch_size=5, loss=nn.functional.mse_loss)
    last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
    task.at = until if last else None
    options = Training(steps=12, lr=1e-2, evaluate_every=4, device="cpu", tensorboard=False, curve=False)
    return train(reader(dropout=0.5, neurons=101), task, options, out=out, resume=resume, quiet=True)


def masks(out: Path) -> list[Tensor]:
    """What dropout let through in each step of this process."""
    model, seen = reader(dropout=0.5), list[Tensor]()

    def keep(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        if module.training:
            seen.append((output != 0) | (inputs[0] == 0))

    model.dropout.register_forward_hook(keep)
    train(model, tensors(10), Training(steps=4, device="cpu", tensorboard=False, curve=False), out=out, quiet=True)
    return seen


class BadItem(TensorTask):
    """NaN in the last item of each batch from a step on: it falls to the last process."""

    def batch(self, step: int, shard: Shard) -> Batch:
        batch = super().batch(step, shard)
        if step >= 3 and shard.index == shard.count - 1:
            batch.inputs[-1] = torch.nan
        return batch


class FullDisk(TensorTask):
    """Puts a file where the main process is to write a checkpoint."""

    folder: Path

    def batch(self, step: int, shard: Shard) -> Batch:
        if step == 3 and shard.index == 0:
            (self.folder / "checkpoints").rename(self.folder / "moved")
            (self.folder / "checkpoints").touch()
        return super().batch(step, shard)


def carried(out: Path, *, steps: int = 12, resume: bool = False) -> list[float]:
    """What was carried into each step of this process."""
    task = Streams()
    options = Training(steps=steps, lr=1e-2, evaluate_every=4, checkpoint_every=0, device="cpu", curve=False)
    train(stream_reader(), task, replace(options, tensorboard=False), out=out, resume=resume, quiet=True)
    return task.used


class Mixed(nn.Module):
    """Weights of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(27, 6), nn.Linear(6, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.first(x.flatten(1)).double()).float()  # type: ignore[no-any-return]


def mixed(out: Path) -> Result:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = Mixed()
    options = Training(steps=4, lr=1e-2, evaluate_every=4, device="cpu", tensorboard=False, curve=False)
    return train(model, tensors(11), options, out=out, quiet=True)


def ways(folder: Path, way: Any, accumulate: int, *, steps: int = 6, resume: bool = False) -> Result:
    """The same run with another way to share it."""
    options = Training(
        steps=steps,
        lr=1e-2,
        evaluate_every=3,
        accumulate=accumulate,
        distributed=way,
        clip_norm=1.0,
        device="cpu",
        tensorboard=False,
        curve=False,
    )
    return train(reader(), tensors(11), options, out=folder / f"{way}-{accumulate}", resume=resume, quiet=True)


def main(scenario: str, folder: Path) -> None:
    """One process."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    options = Training(steps=12, evaluate_every=2, checkpoint_every=0, device="cpu", tensorboard=False, curve=False)
    data = tensors(11).data["train"]
    if scenario == "small":
        dist.init_process_group("gloo")  # so that all runs of this program share one
        found = {
            "gradients": {case: gradients(case, folder) for case in CASES},
            "masks": [masks(folder / "dropout"), masks(folder / "dropout again")],
            "straight": weights(folder / "straight"),
            "stopped": weights(folder / "stopped", until=5),
        }
        if rank == 0:
            torch.save(load(folder / "stopped" / "checkpoints" / "last.ckpt"), folder / "checkpoint.pt")
        found["resumed"] = weights(folder / "stopped", resume=True)
        found["carried"] = carried(folder / "carried")
        carried(folder / "carried again", steps=7)
        found["carried again"] = carried(folder / "carried again", resume=True)
        mixed(folder / "mixed")
        for way in ("exact", "ddp", "fsdp"):
            ways(folder, way, 1, steps=3)
            ways(folder, way, 1, resume=True)
            ways(folder, way, 2)
        torch.save(found, folder / f"found{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    elif scenario == "several runs":
        for number in range(4):
            weights(folder / str(number))
    elif scenario in ("straight", "stopped"):
        weights(folder, until=5 if scenario == "stopped" else None)
    elif scenario in ("killed", "killed carried"):
        options = replace(options, steps=300, evaluate_every=60, curve=False)
        what: tuple[nn.Module, Any] = (reader(0.5), tensors(11))
        if scenario == "killed carried":
            what = stream_reader(), Streams()
        train(*what, options, out=folder, resume=True, quiet=True)
    elif scenario == "resumed":
        weights(folder, resume=True)
    else:
        task = {"not finite": BadItem, "full disk": FullDisk}[scenario](data, batch_size=5, loss=nn.functional.mse_loss)
        task.folder = folder  # type: ignore[attr-defined]
        try:
            train(reader(), task, options, out=folder, quiet=True)
        except RunError as error:
            sys.exit(f"indrnn: {error}")


# ---- gradients, dropout, stopping: one start of two processes for all


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    assert_clean(program("small", folder))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each process found."""
    return [torch.load(folder / f"found{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_whole_batch(case: str, found: list[dict[str, Any]], tmp_path: Path) -> None:
    make, _, tolerance = CASES[case]
    model, task = make()
    whole: list[list[Tensor]] = []
    for step in range(3):
        batch = task.batch(step, Shard())
        loss = task.loss(model, batch)
        parameters = [p for group in indrnn.parameter_groups(model, 0.0) for p in group["params"]]
        whole.append(list(torch.autograd.grad(loss, parameters)))
    here = gradients(case, tmp_path)  # one process, in pieces too
    first, second = (each["gradients"][case] for each in found)
    for step, expected in enumerate(whole):
        assert all(torch.equal(*pair) for pair in zip(first[step], second[step], strict=True))
        for given in (first[step], here[step]):
            assert apart(given, expected) <= tolerance
            if "float64" in case:
                assert all(apart([one], [other]) <= tolerance for one, other in zip(given, expected, strict=True))


def apart(given: list[Tensor], expected: list[Tensor]) -> float:
    """How far the gradients are from each other, relative to their size, as one vector."""
    one, other = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (given, expected))
    assert other.norm() > 0
    return float((one - other).norm() / other.norm())


def test_dropout_is_another_in_each_process_and_the_same_in_each_run(found: list[dict[str, Any]]) -> None:
    first, second = (each["masks"] for each in found)
    for once, again in (first, second):
        assert len(once) == 4
        assert all(torch.equal(*pair) for pair in zip(once, again, strict=True))
        assert all(0 < mask.sum() < mask.numel() for mask in once)
        assert not torch.equal(once[0][:2], once[2][:2])  # nor is it the same at each step
    for mine, other in zip(first[0], second[0], strict=True):
        assert not torch.equal(mine[:2], other[:2])


def test_all_stop_when_one_is_told_to(found: list[dict[str, Any]], folder: Path) -> None:
    first, second = (each["stopped"] for each in found)
    assert first.steps == second.steps == 7  # told in the sixth step; with the seventh the others hear of it
    assert not first.finished
    assert not second.finished
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert (checkpoint["step"], checkpoint["config"]["processes"]) == (first.steps, 2)


def test_a_resumed_run_ends_with_the_same_bits(found: list[dict[str, Any]], folder: Path) -> None:
    for each in found:
        assert each["resumed"].finished
        assert each["resumed"].steps == each["straight"].steps == 12
        assert each["resumed"].test == each["straight"].test
    straight, resumed = folder / "straight", folder / "stopped"
    assert (straight / "weights.safetensors").read_bytes() == (resumed / "weights.safetensors").read_bytes()
    assert lines(straight) == lines(resumed)
    states = [load(run / "checkpoints" / "last.ckpt") for run in (straight, resumed)]
    assert_same(*({name: state[name] for name in state if name != "seconds"} for state in states))


def test_what_is_carried_is_gathered_from_all_processes_and_restored(found: list[dict[str, Any]], folder: Path) -> None:
    first, second = (each["carried"] for each in found)
    assert len(first) == 12
    assert first != second  # each has its own streams
    for each in found:
        assert each["carried again"] == each["carried"][7:]
        assert each["carried again"][0] != 0
    states = [load(folder / name / "checkpoints" / "last.ckpt") for name in ("carried", "carried again")]
    assert [state["h"].shape[1] for state in states[0]["task"]] == [2, 3]
    assert_same(*({name: state[name] for name in state if name not in ("seconds", "config")} for state in states))
    one, other = (folder / name / "weights.safetensors" for name in ("carried", "carried again"))
    assert one.read_bytes() == other.read_bytes()


def test_weights_of_two_types(found: list[dict[str, Any]], folder: Path, tmp_path: Path) -> None:
    mixed(tmp_path / "one")
    assert lines(folder / "mixed")[0] == pytest.approx(lines(tmp_path / "one")[0], rel=1e-5)
    state = load(folder / "mixed" / "checkpoints" / "last.ckpt")["model"]
    assert (state["first.weight"].dtype, state["out.weight"].dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("way", ["exact", "ddp", "fsdp"])
def test_every_way_to_share_a_step_learns_the_same(
    way: str, accumulate: int, found: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    """As one process does, to rounding; also resumed, from the same kind of checkpoint."""
    ways(tmp_path, "exact", accumulate)
    for two, one in zip(lines(folder / f"{way}-{accumulate}"), lines(tmp_path / f"exact-{accumulate}"), strict=True):
        assert two == pytest.approx(one, rel=1e-4)
    theirs, ours = (
        load(out / "checkpoints" / "last.ckpt")
        for out in (folder / f"{way}-{accumulate}", tmp_path / f"exact-{accumulate}")
    )
    assert theirs["model"].keys() == ours["model"].keys()
    for name, value in ours["model"].items():
        torch.testing.assert_close(theirs["model"][name], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {{}}".format)
    model = reader()
    model.load_state_dict(theirs["model"])


def test_another_number_of_processes_cannot_resume(folder: Path, found: list[dict[str, Any]]) -> None:
    before = {path: path.read_bytes() for path in (folder / "straight").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"must be resumed by as many processes as began it, 2, got 1"):
        weights(folder / "straight", resume=True)
    assert before == {path: path.read_bytes() for path in (folder / "straight").rglob("*") if path.is_file()}


def lines(run: Path) -> list[dict[str, Any]]:
    """Metrics without times."""
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read]


def assert_same(first: Any, second: Any) -> None:
    """To the bit, in nested containers."""
    assert type(first) is type(second)
    if isinstance(first, Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            if name != "metrics_bytes":  # holds the digits of times
                assert_same(first[name], second[name])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for pair in zip(first, second, strict=True):
            assert_same(*pair)
    else:
        assert first == second


# ---- the command line


def adding_run(out: Path, *more: str, steps: int = 40, recipe: str = "adding-100-fast") -> list[str]:
    options = ["--length", "12", "--steps", str(steps), "--evaluate-every", "10", "--threads", "1", "--device", "cpu"]
    return [*ONE, "train", recipe, *options, "--out", str(out), *more]


def test_a_run_of_two_is_a_run_of_one(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = run(*adding_run(out))
    assert_clean(ended)
    recipe = find("adding-100-fast").recipe
    assert isinstance(recipe, AddingRecipe)
    options = replace(recipe.training, steps=40, evaluate_every=10, device="cpu", tensorboard=False, curve=False)
    recipe = replace(recipe, length=12, training=options)
    torch.manual_seed(recipe.seed)
    result = train(recipe.model_config().build(), recipe.task(), options, out=tmp_path / "one", quiet=True)

    assert [line["step"] for line in lines(out)] == [10, 20, 30, 40]
    for two, one in zip(lines(out), lines(tmp_path / "one"), strict=True):
        assert two == pytest.approx(one, rel=1e-6)
    recorded = json.loads((out / "result.json").read_text())
    assert recorded["test"] == pytest.approx(result.test, rel=1e-6)
    assert json.loads((out / "config.json").read_text())["processes"] == 2
    assert indrnn.load(out)(torch.zeros(12, 1, 2))[0].shape == (1, 1)
    assert not [path for path in out.rglob("*") if ".tmp" in path.name]
    assert len(re.findall("^step 1/40 ", ended.out, re.MULTILINE)) == 1
    assert len(re.findall("^step 40/40 ", ended.out, re.MULTILINE)) == 1
    assert len(re.findall("^40 steps in ", ended.out, re.MULTILINE)) == 1
    assert len(re.findall("^saved in ", ended.out, re.MULTILINE)) == 1


def stopped(out: Path, number: signal.Signals) -> Ended:
    """A run without an end that is sent a signal once it is under way, as `kill` or Ctrl-C send it to torchrun."""
    process = start(*adding_run(out, recipe="adding-100", steps=10**6))
    until = time.monotonic() + SECONDS
    while not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text()):
        if process.poll() is not None or time.monotonic() > until:
            break
        time.sleep(0.05)
    process.send_signal(number)
    return end(process)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_goes_on_to_the_same_weights(number: signal.Signals, tmp_path: Path) -> None:
    out, straight = tmp_path / "stopped", tmp_path / "straight"
    ended = stopped(out, number)
    told = re.findall(r"^stopped at step (\d+), and saved; to go on: (.*)$", ended.out, re.MULTILINE)
    assert len(told) == 1, ended
    step, again = int(told[0][0]), told[0][1]
    checkpoint = load(out / "checkpoints" / "last.ckpt")
    assert (checkpoint["step"], checkpoint["config"]["processes"]) == (step, 2)

    refused = run(*adding_run(out, "--resume", recipe="adding-100", steps=step + 15), count=1)
    assert refused.code == 2
    assert "must be resumed by as many processes as began it, 2, got 1" in said_by_us(refused)[0]
    assert "Traceback" not in refused.err

    for run_out, more in ((out, ["--resume"]), (straight, [])):
        assert_clean(run(*adding_run(run_out, *more, recipe="adding-100", steps=step + 15)))
    assert (straight / "weights.safetensors").read_bytes() == (out / "weights.safetensors").read_bytes()
    assert lines(straight) == lines(out)
    assert again == f"torchrun --nproc-per-node 2 -m indrnn train --resume {out}"  # not what would be refused


@pytest.mark.slow
def test_what_cannot_be_ends_all_processes_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    ended = run(*adding_run(tmp_path))
    assert ended.code != 0
    said = said_by_us(ended)
    assert len(said) == 1, said
    assert f"{tmp_path} holds something already" in said[0]
    assert "Traceback" not in ended.err.split("Sending process")[0].split("failed (exitcode")[0]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# ---- what goes wrong, and more processes


@pytest.mark.slow
def test_a_number_that_is_not_finite_is_traced_in_whichever_process(tmp_path: Path) -> None:
    ended = program("not finite", tmp_path / "run")
    said = said_by_us(ended)
    assert ended.code != 0
    assert said
    for line in said:  # the item lies with the second process; both are to know
        assert re.search(r"step 4: the loss became nan, first in the inputs of the batch", line), said
        assert "checkpoint of step 3 is kept" in line, said
    assert load(tmp_path / "run" / "checkpoints" / "last.ckpt")["step"] == 3


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_all_processes_with_a_line(tmp_path: Path) -> None:
    ended = program("full disk", tmp_path / "run")
    assert ended.code != 0
    assert any("cannot write to" in line and "checkpoint of step 3 is kept" in line for line in said_by_us(ended))
    assert "[rank1]: Traceback" not in ended.err, ended.err
    assert load(tmp_path / "run" / "moved" / "last.ckpt")["step"] == 3


@pytest.mark.slow
def test_several_runs_in_one_program(tmp_path: Path) -> None:
    assert_clean(program("several runs", tmp_path))
    assert len({(tmp_path / str(number) / "weights.safetensors").read_bytes() for number in range(4)}) == 1


@pytest.mark.slow
def test_three_processes_resume_to_the_same_bits(tmp_path: Path) -> None:
    assert_clean(program("straight", tmp_path / "straight", count=3))
    assert_clean(program("stopped", tmp_path / "stopped", count=3))
    assert load(tmp_path / "stopped" / "checkpoints" / "last.ckpt")["step"] == 7
    assert_clean(program("resumed", tmp_path / "stopped", count=3))
    bits = {(tmp_path / name / "weights.safetensors").read_bytes() for name in ("straight", "stopped")}
    assert len(bits) == 1


def killed(scenario: str, folder: Path, random_: random.Random) -> None:
    """Two processes, and torchrun itself, killed a moment after a checkpoint."""
    process = start(__file__, scenario, folder, session=True)
    last, begun = folder / "checkpoints" / "last.ckpt", time.time()
    until = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < until:
        if last.exists() and last.stat().st_mtime > begun:
            time.sleep(random_.uniform(0.0, 0.2))
            break
        time.sleep(0.01)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # a session of its own: these processes and no others
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["killed", "killed carried"])
def test_two_processes_killed_at_random_moments(scenario: str, tmp_path: Path) -> None:
    random_ = random.Random(scenario)
    assert_clean(program(scenario, tmp_path / "straight"))
    for _ in range(5):
        killed(scenario, tmp_path / "run", random_)
    ended = program(scenario, tmp_path / "run")
    assert ended.code == 0, ended.err
    assert lines(tmp_path / "run") == lines(tmp_path / "straight")
    weights_ = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("run", "straight")]
    assert weights_[0] == weights_[1]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
