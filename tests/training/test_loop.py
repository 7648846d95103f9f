"""The training loop: its arithmetic against one written by hand, its files, and what stops it."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

import indrnn
from indrnn.networks import Head, Plain
from indrnn.saving import to_json
from indrnn.tasks.adding import Adding
from indrnn.training import (
    Batch,
    Constant,
    Cosine,
    OneCycle,
    Plateau,
    Result,
    RunError,
    Schedule,
    Shard,
    Steps,
    TensorTask,
    Training,
    train,
)
from indrnn.training.checkpoint import Checkpoints
from indrnn.training.evaluation import measure
from indrnn.training.listeners import Listener, Step

from .runs import (
    BATCH,
    CLASSES,
    EXACT,
    FEATURES,
    QUICK,
    Scripted,
    T,
    Told,
    classifier,
    contents,
    go,
    metrics,
    sequences,
    task,
    timeless,
    weights_of,
)

# ---- arithmetic


def test_steps_are_those_of_the_formula(tmp_path: Path) -> None:
    """Adam with decay of the input weights alone, each element of a gradient clipped, u within its bound."""
    options = replace(QUICK, steps=4, lr=0.4, weight_decay=0.3, clip=0.02, evaluate_every=4)
    data = task(torch.float64)
    model = classifier(dtype=torch.float64)
    by_hand = copy.deepcopy(model)
    go(model, data, tmp_path / "run", options)

    values = dict(by_hand.named_parameters())
    means, squares = ({name: torch.zeros_like(value) for name, value in values.items()} for _ in range(2))
    losses, norms, clipped, bounded = [], [], 0, 0
    for step in range(4):
        batch = data.batch(step, Shard())
        loss = F.cross_entropy(by_hand(batch.inputs)[0], batch.target)
        gradients = torch.autograd.grad(loss, list(values.values()))
        losses.append(loss.item())
        norms.append(math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients)))
        for (name, value), gradient in zip(values.items(), gradients, strict=True):
            clipped += int((gradient.abs() > 0.02).sum())
            gradient = gradient.clamp(-0.02, 0.02)
            if name.endswith(".weight"):
                gradient = gradient + 0.3 * value.detach()
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.999 * squares[name] + 0.001 * gradient**2
            mean, square = means[name] / (1 - 0.9 ** (step + 1)), squares[name] / (1 - 0.999 ** (step + 1))
            with torch.no_grad():
                value.sub_(0.4 * mean / (square.sqrt() + 1e-8))
                if name.endswith("weight_hh"):
                    bounded += int((value.abs() > 1).sum())
                    value.clamp_(-1.0, 1.0)

    assert clipped > 0
    assert bounded > 0
    assert {name for name in values if name.endswith(".weight")} == {
        "network.blocks.0.unit.weight.weight",
        "network.blocks.1.unit.weight.weight",
        "output.weight",
    }
    for name, value in model.named_parameters():
        assert_close(value, values[name], msg=f"{name}: {{}}".format, **EXACT)
    (line,) = metrics(tmp_path / "run")
    assert line["train_loss"] == pytest.approx(sum(losses) / 4, rel=1e-12)
    assert line["gradient_norm"] == pytest.approx(sum(norms) / 4, rel=1e-12)  # before it is clipped


def test_without_clipping(tmp_path: Path) -> None:
    data = task(torch.float64)
    models = [classifier(dtype=torch.float64) for _ in range(3)]
    for model, clip in zip(models, (None, 1e6, 1e-3), strict=True):
        go(model, data, tmp_path / str(clip), replace(QUICK, clip=clip))
    free, wide, tight = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert torch.equal(free, wide)
    assert not torch.allclose(free, tight)


@pytest.mark.parametrize("pieces", [2, 3, 7], ids=lambda pieces: f"{pieces} pieces")
def test_accumulation_changes_nothing(tmp_path: Path, pieces: int) -> None:
    """Batches of 11, 11 and 3: they do not divide, and seven pieces of three items leave some empty."""
    whole, divided = classifier(dtype=torch.float64), classifier(dtype=torch.float64)
    go(whole, task(torch.float64), tmp_path / "whole")
    go(divided, task(torch.float64), tmp_path / "divided", replace(QUICK, accumulate=pieces))
    for (name, expected), found in zip(whole.named_parameters(), divided.parameters(), strict=True):
        assert_close(found, expected, msg=f"{name}: {{}}".format, **EXACT)
    for ours, theirs in zip(timeless(tmp_path / "divided"), timeless(tmp_path / "whole"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12)


def test_what_is_frozen_stays(tmp_path: Path) -> None:
    model = classifier()
    frozen = next(model.parameters()).requires_grad_(False)
    before = frozen.clone()
    go(model, task(), tmp_path / "run", replace(QUICK, weight_decay=0.1))
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("schedule", [Constant(), Steps(4, 0.5), Cosine(0.25), OneCycle()], ids=str)
def test_the_learning_rate_follows_the_schedule(tmp_path: Path, schedule: Schedule) -> None:
    go(classifier(), task(), tmp_path / "run", replace(QUICK, steps=10, evaluate_every=3, schedule=schedule))
    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [3, 6, 9, 10]
    expected = [1e-2 * schedule.factor(line["step"] - 1, 10) for line in lines]  # of the step that was just taken
    assert [line["lr"] for line in lines] == pytest.approx(expected, rel=1e-14)


def test_plateau_goes_back_and_divides(tmp_path: Path) -> None:
    data = Scripted(sequences(), sequences(13, seed=1), batch_size=BATCH)
    data.script = {2: 0.5, 4: 0.4, 6: 0.5, 8: 0.2, 10: 0.1, 12: 0.9}
    options = replace(QUICK, steps=12, schedule=Plateau(divide_by=4.0, patience=2))
    told, model = Told(), classifier()
    by_hand = copy.deepcopy(model)
    result = go(model, data, tmp_path / "run", options, report=told)

    assert [line["lr"] for line in metrics(tmp_path / "run")] == [1e-2, 1e-2, 1e-2, 2.5e-3, 2.5e-3, 6.25e-4]
    assert result.best_step == 12
    assert [said.partition(":")[0] for said in told.said] == ["step 6", "step 10"]
    assert all("back to the weights of step 2 " in said and "lower learning rate" in said for said in told.said)

    # Steps 1 and 2; then, from their weights and their optimiser's state, steps 11 and 12
    optimizer = torch.optim.Adam(by_hand.parameters(), fused=True)
    for step, lr in ((0, 1e-2), (1, 1e-2), (10, 6.25e-4), (11, 6.25e-4)):
        batch = data.batch(step, Shard())
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        data.loss(by_hand, batch).backward()
        optimizer.step()
        indrnn.constrain_(by_hand)
    for (name, value), expected in zip(model.named_parameters(), by_hand.parameters(), strict=True):
        assert_close(value, expected, msg=f"{name}: {{}}".format, rtol=0, atol=0)


def test_the_model_ends_with_the_best_weights(tmp_path: Path) -> None:
    data = Scripted(sequences(), sequences(13, seed=1), sequences(8, seed=2), batch_size=BATCH)
    data.script = {2: 0.1, 4: 0.8, 6: 0.8, 8: 0.3}  # as good as the best is not better
    model, until_best = classifier(), classifier()
    result = go(model, data, tmp_path / "run", replace(QUICK, steps=8))
    go(until_best, data, tmp_path / "best", replace(QUICK, steps=4))
    assert result.best_step == 4
    assert result.best["accuracy"] == 0.8
    for value, expected in zip(model.state_dict().values(), until_best.state_dict().values(), strict=True):
        assert torch.equal(value, expected)
    with torch.no_grad():
        assert result.test == measure(data.test(model.eval(), Shard()))


def test_an_evaluation_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    data = Scripted(sequences(), sequences(13, seed=1), batch_size=BATCH)
    data.script = {2: math.nan, 4: 0.2, 6: math.inf}
    result = go(classifier(), data, tmp_path / "run")
    assert (result.best_step, result.best["accuracy"]) == (4, 0.2)
    assert [line["accuracy"] for line in metrics(tmp_path / "run")] == [None, 0.2, None]


def test_bf16(tmp_path: Path) -> None:
    full, half = classifier("after", seed=6), classifier("after", seed=6)
    go(full, task(), tmp_path / "float32")
    go(half, task(), tmp_path / "bf16", replace(QUICK, precision="bf16"))
    of_full, of_half = ([line["train_loss"] for line in metrics(tmp_path / name)] for name in ("float32", "bf16"))
    assert all(math.isfinite(loss) for loss in of_half)
    assert of_half != of_full
    assert of_half == pytest.approx(of_full, rel=0.05)
    assert all(parameter.dtype == torch.float32 for parameter in half.parameters())


# ---- files


def test_what_a_run_leaves(tmp_path: Path) -> None:
    out, told = tmp_path / "a" / "run", Told()
    model = classifier("after")
    options = replace(QUICK, steps=7, schedule=Cosine(0.1), clip=None)
    result = go(model, task(), out, options, seed=11, config={"note": {"of": ["mine", 3]}}, report=told)

    assert {path.name for path in out.iterdir()} == {
        *("config.json", "metrics.jsonl", "result.json", "weights.safetensors", "model.json", "checkpoints"),
    }
    torch.testing.assert_close(indrnn.load(out).state_dict(), model.state_dict())
    config = json.loads((out / "config.json").read_text())
    assert config["training"]["schedule"] == {"type": "Cosine", "warm_up": 0.1}
    assert config["training"] == json.loads(json.dumps(to_json(options)))
    assert (config["seed"], config["note"], config["threads"]) == (11, {"of": ["mine", 3]}, 1)
    assert config["machine"]["torch"] == torch.__version__
    assert config["command"]
    assert config["started"]

    lines = metrics(out)
    assert [line["step"] for line in lines] == [2, 4, 6, 7]
    for line in lines:
        assert set(line) == {"step", "lr", "train_loss", "gradient_norm", "loss", "accuracy", "seconds"}
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)

    record = json.loads((out / "result.json").read_text())
    assert set(record) == {"steps", "seconds", "best_step", "best", "test", "seed", "command", "machine"}
    assert (record["steps"], record["seed"]) == (7, 11)
    assert record["best_step"] == result.best_step
    assert record["best"] == result.best
    assert record["test"] == result.test
    best = max(lines, key=lambda line: float(line["accuracy"]))
    assert (best["step"], best["accuracy"]) == (record["best_step"], record["best"]["accuracy"])

    saved = load_file(out / "weights.safetensors")
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())

    assert (result.folder, result.steps, result.finished, result.stopped_by) == (out, 7, True, None)
    assert told.steps == [(step, 7) for step in range(1, 8)]
    assert told.said == []


def test_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options and without a report: lines on the standard output."""
    monkeypatch.setattr("indrnn.training.run.Training", lambda: replace(QUICK, steps=2))
    train(classifier(), task(), out=str(tmp_path / "run"))
    assert "step 2/2" in capsys.readouterr().out


def test_a_finished_run_is_loaded(tmp_path: Path) -> None:
    length = 12
    options = Head(Plain(2, 9, 2, dropout=0.3, sequence_length=length, long_memory=True), 1, "SequenceRegressor")
    model = options.build()
    go(model, Adding(length, 13, 20), tmp_path / "run")
    loaded = indrnn.load(tmp_path / "run")
    x = torch.randn(length, 5, 2)
    assert not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(x)[0], model.eval()(x)[0])


def test_a_module_of_ones_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(T * FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    out = tmp_path / "run"
    assert go(model, task(), out).finished
    assert not (out / "model.json").exists()
    with pytest.raises(FileNotFoundError, match=r"holds no model\.json.*its own program"):
        indrnn.load(out)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    other.load_state_dict(load_file(out / "weights.safetensors"))
    assert torch.equal(other(sequences()[0]), model(sequences()[0]))


class Tied(nn.Module):
    """One matrix for both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(FEATURES, 6, bias=False)
        self.back = nn.Linear(FEATURES, 6, bias=False)
        self.back.weight = self.embedding.weight
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1)
        output: Tensor = self.out(self.embedding(mean) * self.back(mean))
        return output


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = Tied()
    go(model, task(), tmp_path / "run")
    saved = load_file(tmp_path / "run" / "weights.safetensors")
    assert set(saved) == {"embedding.weight", "out.weight", "out.bias"}
    assert model.back.weight is model.embedding.weight
    assert torch.equal(saved["embedding.weight"], model.embedding.weight)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    go(classifier(), task(), out)
    (out / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"^out: .*run holds something already.*resume.*overwrite"):
        go(classifier(), task(), out)
    with pytest.raises(ValueError, match="resume and overwrite"):
        go(classifier(), task(), out, resume=True, overwrite=True)
    assert contents(tmp_path) == before


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"^out: .*holds something already"):
        go(classifier(), task(), tmp_path)
    assert contents(tmp_path) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize("how", ["resume", "overwrite", "neither"])
def test_a_file_is_no_folder(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"^out"):
        go(classifier(), task(), path, resume=how == "resume", overwrite=how == "overwrite")
    assert contents(tmp_path) == {"run": b"mine"}


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    assert go(classifier(), task(), tmp_path).finished


FOREIGN = {
    "notes.txt": b"mine",
    "photo.png": b"a picture",
    "data/weights.safetensors": b"other weights",
    ".hidden": b"",
}


def test_overwriting_leaves_other_files_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = Head(Plain(2, 5, 1, sequence_length=T, long_memory=True), 1, "SequenceRegressor")
    earlier = replace(QUICK, steps=9, checkpoint_every=0)
    go(options.build(), Adding(T, 7, 7), out, earlier)
    for name, content in FOREIGN.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
    result = go(classifier(), task(), out, overwrite=True)
    go(classifier(), task(), tmp_path / "fresh")
    after, fresh = contents(out), contents(tmp_path / "fresh")
    assert {name: after.pop(name) for name in FOREIGN} == FOREIGN
    assert after.keys() == fresh.keys()  # model.json of the earlier run is gone, too
    assert weights_of(out) == weights_of(tmp_path / "fresh")
    assert timeless(out) == timeless(tmp_path / "fresh")
    assert result.steps == 6


def test_overwriting_nothing(tmp_path: Path) -> None:
    assert go(classifier(), task(), tmp_path / "run", overwrite=True).finished


# ---- resumed


@pytest.mark.parametrize("changed", ["threads", "checkpoint_every", "tensorboard", "device", "steps"])
def test_what_may_change(tmp_path: Path, changed: str) -> None:
    """And the result is that of a run in one piece; with other threads, but for its last bits."""
    values = {"threads": 2, "checkpoint_every": 5.0, "tensorboard": True, "device": "cpu:0", "steps": 12}
    model, whole, told = classifier("after", 0.2), classifier("after", 0.2), Told()
    go(classifier("after", 0.2), task(), tmp_path / "run")
    options = replace(QUICK, **{"steps": 12, changed: values[changed]})  # type: ignore[arg-type]
    result = go(model, task(), tmp_path / "run", options, resume=True, report=told)
    go(whole, task(), tmp_path / "whole", replace(QUICK, steps=12))
    assert told.said == ["resuming at step 6"]
    assert result.steps == 12
    assert [line["step"] for line in metrics(tmp_path / "run")] == [2, 4, 6, 8, 10, 12]
    if changed != "threads":
        assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
        assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")
    for value, expected in zip(model.parameters(), whole.parameters(), strict=True):
        assert_close(value, expected)


OTHERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "lr": ({"lr": 0.02}, ["training.lr was 0.01 and is now 0.02"]),
    "weight_decay": ({"weight_decay": 1e-4}, ["training.weight_decay was 0.0 and is now 0.0001"]),
    "clip": ({"clip": None}, ["training.clip was 10.0 and is now None"]),
    "accumulate": ({"accumulate": 2}, ["training.accumulate was 1 and is now 2"]),
    "evaluate_every": ({"evaluate_every": 3}, ["training.evaluate_every was 2 and is now 3"]),
    "precision": ({"precision": "bf16"}, ["training.precision was 'float32' and is now 'bf16'"]),
    "another schedule": (
        {"schedule": Cosine(0.5)},
        [
            "training.schedule.type was 'Steps' and is now 'Cosine'",
            "training.schedule.every was 3 and is now None",
            "training.schedule.by was 0.1 and is now None",
            "training.schedule.warm_up was None and is now 0.5",
        ],
    ),
    "the schedule": ({"schedule": Steps(3, 0.2)}, ["training.schedule.by was 0.1 and is now 0.2"]),
    "two": (
        {"lr": 0.02, "clip": 5.0},
        ["training.lr was 0.01 and is now 0.02", "training.clip was 10.0 and is now 5.0"],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_not_resumed(tmp_path: Path, name: str) -> None:
    options = replace(QUICK, steps=4, schedule=Steps(3, 0.1))
    go(classifier(), task(), tmp_path / "run", options)
    before = contents(tmp_path)
    changes, expected = OTHERS[name]
    with pytest.raises(ValueError, match=r"^cannot resume .*run with other options: ") as raised:
        go(classifier(), task(), tmp_path / "run", replace(options, **changes), resume=True)
    listed = str(raised.value).partition("other options: ")[2].split("; ")
    assert sorted(listed) == sorted(expected)
    assert contents(tmp_path) == before


OTHER_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 8}, "seed was 7 and is now 8"),
    "config": ({"config": {"data": {"size": 4}}}, "data.size was 3 and is now 4"),
    "more config": ({"config": {"data": {"size": 3, "kind": "x"}}}, "data.kind was None and is now 'x'"),
    "new config": ({"config": {"data": {"size": 3}, "more": 1}}, "more was None and is now 1"),
    "less config": ({"config": {"data": {}}}, "data.size was 3 and is now None"),
    "no config": ({"config": None}, "data.size was 3 and is now None"),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_a_run_of_another_call_is_not_resumed(tmp_path: Path, name: str) -> None:
    same: dict[str, Any] = {"seed": 7, "config": {"data": {"size": 3}}}
    go(classifier(), task(), tmp_path / "run", **same)
    changes, expected = OTHER_CALLS[name]
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"with other options: {expected}$"):
        go(classifier(), task(), tmp_path / "run", resume=True, **same | changes)
    assert contents(tmp_path) == before
    assert go(classifier(), task(), tmp_path / "run", resume=True, **same).finished


def test_each_time_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "run"
    go(classifier(), task(), out)
    first = json.loads((out / "config.json").read_text())
    for steps in (8, 10):
        go(classifier(), task(), out, replace(QUICK, steps=steps, threads=2), resume=True)
    config = json.loads((out / "config.json").read_text())
    assert config["started"] == first["started"]
    assert config["training"]["steps"] == 10
    assert [time["threads"] for time in config["resumed"]] == [2, 2]


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = go(classifier(), task(), out)
    before = contents(out)
    model = classifier()
    again = go(model, task(), out, resume=True)
    assert again == first
    after = contents(out)
    for name in ("weights.safetensors", "metrics.jsonl", "result.json"):
        assert after[name] == before[name]
    assert all(torch.equal(load_file(out / "weights.safetensors")[k], v) for k, v in model.state_dict().items())


def test_resuming_where_nothing_is_begins(tmp_path: Path) -> None:
    told = Told()
    assert go(classifier(), task(), tmp_path / "run", resume=True, report=told).finished
    go(classifier(), task(), tmp_path / "whole")
    assert told.said == [f"nothing to resume in {tmp_path / 'run'}: starting"]
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


class Signalled(TensorTask):
    """Sends a signal to its own process at a step."""

    number, at = signal.SIGINT, 3

    def batch(self, step: int, shard: Shard) -> Batch:
        if step == self.at:
            signal.raise_signal(self.number)
        return super().batch(step, shard)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_run_that_can_be_resumed(tmp_path: Path, number: signal.Signals) -> None:
    data = Signalled(sequences(), sequences(13, seed=1), batch_size=BATCH, seed=3)
    data.number = number
    told, out = Told(), tmp_path / "run"
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    result = go(classifier("after", 0.2), data, out, report=told, resume_command="do it again")
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert (result.finished, result.stopped_by, result.test) == (False, number, {})
    assert told.said == [f"stopped at step {result.steps}, and saved; to go on: do it again"]
    assert 4 <= result.steps <= 5  # the step it came in, or the next
    assert not (out / "result.json").exists()
    assert not (out / "weights.safetensors").exists()
    data.at = -1
    assert go(classifier("after", 0.2), data, out, resume=True).finished
    go(classifier("after", 0.2), task(), tmp_path / "whole")
    assert timeless(out) == timeless(tmp_path / "whole")
    assert weights_of(out) == weights_of(tmp_path / "whole")


def test_a_second_interrupt_is_an_interrupt(tmp_path: Path) -> None:
    data = Signalled(sequences(), batch_size=BATCH)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            go(classifier(), data, tmp_path / "run", replace(QUICK, accumulate=2))  # asks for the batch twice
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_in_a_thread(tmp_path: Path) -> None:
    """Where signals cannot be taken."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(go(classifier(), task(), tmp_path / "run")))
    thread.start()
    thread.join()
    assert results[0].finished


# ---- numbers that are not finite


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Parts(nn.Module):
    """Linear, something, linear."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Sequential()
        self.body.add_module("first", nn.Linear(FEATURES, 6))
        self.body.add_module("middle", Function(middle))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.body(x))
        return output


def with_a_large_item() -> TensorTask:
    """One item whose numbers are finite, but not their exponentials."""
    x, y = sequences()
    x = x[:, 0]
    x[11] = torch.tensor([3e4, -5e4, 7e4])
    return TensorTask((x, y), (x[:9], y[:9]), batch_size=5, seed=1)


@pytest.mark.parametrize("pieces", [1, 3], ids=["whole batch", "in pieces"])
def test_the_first_module_that_is_not_finite_is_named(tmp_path: Path, pieces: int) -> None:
    data = with_a_large_item()
    step = next(step for step in range(5) if (data.batch(step, Shard()).inputs > 1e4).any())
    assert step > 1
    options = replace(QUICK, lr=1e-4, checkpoint_every=0, accumulate=pieces)
    model, out = Parts(torch.exp), tmp_path / "run"
    start = copy.deepcopy(model)
    with pytest.raises(RunError) as raised:
        go(model, data, out, options)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"step {step + 1}: the loss became ")
    assert "first in the output of body.middle" in message
    assert f"The checkpoint of step {step} is kept in {out / 'checkpoints'}" in message
    assert not (out / "result.json").exists()

    state, troubles = Checkpoints(out / "checkpoints").newest()
    assert state is not None
    assert troubles == {}
    assert state["step"] == step
    go(start, data, tmp_path / "until", replace(options, steps=step, evaluate_every=step))
    for name, value in start.state_dict().items():
        assert torch.equal(state["model"][name], value)


def test_not_finite_in_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"^step 1: the loss became nan, first in the output of body\.middle\. The checkpoint of step 0"
    ):
        go(Parts(lambda x: x * torch.nan), with_a_large_item(), tmp_path / "run")


def test_not_finite_in_the_backward_pass_alone(tmp_path: Path) -> None:
    model = Parts(torch.sqrt)
    for parameter in model.body.parameters():
        nn.init.zeros_(parameter)
    data = TensorTask((torch.rand(9, FEATURES), torch.randint(CLASSES, (9,))), batch_size=4)
    with pytest.raises(RunError, match=r"^step 1: a gradient is not finite, .*the forward pass is finite") as raised:
        go(model, data, tmp_path / "run")
    assert "first in the gradient of the output of body.first" in str(raised.value)


def test_not_finite_in_the_gradient_of_a_parameter_alone(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, CLASSES)
            self.scale = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.linear(x) + self.scale.sqrt()
            return output

    data = TensorTask((torch.rand(9, FEATURES), torch.randn(9, CLASSES)), batch_size=4, loss=F.mse_loss)
    with pytest.raises(RunError, match=r"^step 1: a gradient is not finite, in the gradient of scale; the forward"):
        go(Scaled(), data, tmp_path / "run")


def test_not_finite_in_the_loss_itself(tmp_path: Path) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output.sum() * 0).log()

    data = TensorTask((torch.rand(9, FEATURES), torch.randint(CLASSES, (9,))), batch_size=4, loss=loss)
    with pytest.raises(RunError, match=r"^step 1: the loss became -inf, in the loss itself; every module's output is"):
        go(nn.Linear(FEATURES, CLASSES), data, tmp_path / "run")


def test_large_gradients_are_clipped_and_no_error(tmp_path: Path) -> None:
    """Each is finite, and only the square of their norm is not."""
    data = TensorTask(
        (torch.rand(9, FEATURES), torch.rand(9, 1)), batch_size=4, loss=lambda output, target: (output * 1e25).mean()
    )
    assert go(nn.Linear(FEATURES, 1), data, tmp_path / "run").finished
    assert all(1e24 < line["gradient_norm"] < 1e27 for line in metrics(tmp_path / "run"))


# ---- a full disk


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill(patch: pytest.MonkeyPatch, after: float = math.inf) -> list[int]:
    """So many files and folders are flushed, and no more; returns a list of one, the calls so far."""
    flush, calls = os.fsync, [0]

    def fsync(handle: Any) -> None:
        calls[0] += 1
        full() if calls[0] > after else flush(handle)

    patch.setattr(os, "fsync", fsync)
    return calls


@pytest.mark.parametrize("after", [2, 3, 8, 13, 14, 17, 21, -4, -2], ids=lambda after: f"after {after} of the flushes")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Whatever is being written: metrics, a checkpoint, the best weights; or, counted from the end, the result."""
    options = replace(QUICK, checkpoint_every=0)
    out, whole = tmp_path / "run", tmp_path / "whole"
    with monkeypatch.context() as patch:
        flushes = fill(patch)
        go(classifier("after", 0.2), task(), whole, options)
    with monkeypatch.context() as patch:
        fill(patch, after if after > 0 else flushes[0] + after)
        with pytest.raises(RunError) as raised:
            go(classifier("after", 0.2), task(), out, options, resume_command="my program --resume")
    message = str(raised.value)
    state, troubles = Checkpoints(out / "checkpoints").newest()
    assert troubles == {}
    step = int(message.split(":")[0].removeprefix("step "))
    assert step == 6 if after < 0 else 0 <= step < 6
    assert f"cannot write to {out}: No space left on device" in message
    assert message.endswith("When there is room again, resume with: my program --resume")
    kept = "no checkpoint yet" if state is None else f"the checkpoint of step {state['step']} is kept"
    assert kept in message
    assert state is None or step - 1 <= state["step"] <= step
    assert not list(out.rglob("*.tmp"))

    assert go(classifier("after", 0.2), task(), out, options, resume=True).finished
    assert weights_of(out) == weights_of(whole)
    assert timeless(out) == timeless(whole)


@pytest.mark.parametrize("name", ["save", "save_best"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_checkpoint_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    options = replace(QUICK, checkpoint_every=0)
    script = Scripted(sequences(), sequences(13, seed=1), batch_size=BATCH, seed=3)
    script.script = {2: 0.1, 4: 0.2, 6: 0.3}
    calls, real = [0], getattr(Checkpoints, name)

    def write(*args: Any) -> None:
        calls[0] += 1
        full() if calls[0] == call else real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, name, write)
        with pytest.raises(
            RunError, match=f"^step {call - 1 if name == 'save' else 2 * call}: cannot write to .*No space"
        ):
            go(classifier(), script, tmp_path / "run", options)
    assert go(classifier(), script, tmp_path / "run", options, resume=True).finished
    go(classifier(), script, tmp_path / "whole", options)
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_half_a_line_of_metrics_is_written_again(tmp_path: Path) -> None:
    """What a full disk, or a kill, leaves behind the last checkpoint."""
    out = tmp_path / "run"
    go(classifier("after", 0.2), task(), out, replace(QUICK, steps=4))
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lr": 0.0')
    go(classifier("after", 0.2), task(), out, resume=True)
    go(classifier("after", 0.2), task(), tmp_path / "whole")
    assert weights_of(out) == weights_of(tmp_path / "whole")
    assert timeless(out) == timeless(tmp_path / "whole")


# ---- what is around it


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_the_callers_generator_and_threads_stay(tmp_path: Path, ends: str) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(17)
    state = torch.get_rng_state()
    options = replace(QUICK, threads=threads + 2)
    model = classifier("after", 0.2) if ends == "well" else Parts(lambda x: x * torch.nan)
    data = task() if ends == "well" else with_a_large_item()
    torch.set_rng_state(state)
    try:
        go(model, data, tmp_path / "run", options)
    except RunError:
        assert ends == "with an error"
    else:
        assert ends == "well"
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert json.loads((tmp_path / "run" / "config.json").read_text())["threads"] == threads + 2


class Masked(nn.Module):
    """Keeps its dropout masks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.masks: list[tuple[float, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        mask = F.dropout(torch.ones(x.shape[-1] * 8), 0.5, self.training)
        if self.training:
            self.masks.append(tuple(mask.tolist()))
        output: Tensor = self.linear(x[:, 0] * mask[:FEATURES])
        return output


def masks(out: Path, options: Training = QUICK, seed: int = 0) -> list[tuple[float, ...]]:
    model = Masked()
    go(model, task(), out, options, seed=seed)
    return model.masks


def test_dropout_differs_between_steps_and_not_between_runs(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = masks(tmp_path / "first")
    torch.manual_seed(2)
    again = masks(tmp_path / "again")
    assert first == again
    assert len(set(first)) == QUICK.steps
    other = masks(tmp_path / "other", seed=1)
    assert not set(first) & set(other)
    pieces = masks(tmp_path / "pieces", replace(QUICK, accumulate=3))
    assert len(set(pieces)) == 3 * QUICK.steps
    longer = masks(tmp_path / "longer", replace(QUICK, steps=8, evaluate_every=3, checkpoint_every=0))
    assert longer[:6] == first  # evaluations and checkpoints draw nothing


def test_dropout_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = masks(tmp_path / "whole")
    first = masks(tmp_path / "run", replace(QUICK, steps=4))
    model = Masked()
    go(model, task(), tmp_path / "run", resume=True)
    assert first + model.masks == whole


@pytest.mark.parametrize("device", ["gpu", "cpu:x", "meta", "", "xpu"])
def test_a_device_that_is_none(tmp_path: Path, device: str) -> None:
    with pytest.raises(ValueError, match=r"^device must be auto, cpu, cuda"):
        go(classifier(), task(), tmp_path / "run", replace(QUICK, device=device))
    assert not (tmp_path / "run").exists()


# ---- as it is meant to be used


def test_ten_lines_learn(tmp_path: Path) -> None:
    """The example of docs/training.md with shorter sequences; started again, it finds itself finished."""

    def ten_lines() -> Result:
        torch.manual_seed(0)
        x = torch.randn(2000, 12, 3)
        y = (x[:, :, 0].sum(1) > 0).long()
        network = indrnn.PlainIndRNN(3, 32, layers=2, batch_first=True)
        model = indrnn.SequenceClassifier(network, classes=2)
        data = TensorTask((x[:1500], y[:1500]), (x[1500:], y[1500:]), batch_size=50)
        options = Training(steps=150, lr=4e-3, schedule=OneCycle(), evaluate_every=50, gather=5)
        result = train(model, data, options, out=tmp_path, resume=True, quiet=True)
        with torch.no_grad():
            right = (model(x[1500:])[0].argmax(1) == y[1500:]).sum().item()
        assert right / 500 == result.best["accuracy"]
        assert result.test == {}  # no test data were given
        return result

    result = ten_lines()
    assert result.finished
    assert result.best["accuracy"] > 0.9
    assert ten_lines() == result


# ---- good enough


@pytest.mark.parametrize(("until", "steps"), [(0.5, 4), (0.55, 6), (0.9, 8), (None, 8)])
def test_it_stops_at_the_first_evaluation_that_is_good_enough(until: float | None, steps: int, tmp_path: Path) -> None:
    what = Scripted(sequences(), sequences(13, seed=1), batch_size=BATCH)
    what.script = {2: 0.3, 4: 0.5, 6: 0.6, 8: 0.2}
    result = go(classifier(), what, tmp_path / "run", replace(QUICK, steps=8, until=until))
    assert result.finished
    assert result.steps == steps
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(2, steps + 1, 2))


def test_less_may_be_good_enough(tmp_path: Path) -> None:
    model = Head(Plain(2, 4, 1, norm=None, sequence_length=5, long_memory=True), 1, "SequenceRegressor").build()
    assert go(model, Adding(5, 4, 10), tmp_path / "run", replace(QUICK, until=1e6)).steps == 2


def test_what_was_good_enough_is_so_when_it_is_resumed(tmp_path: Path) -> None:
    """And goes on when more is asked for."""
    options = replace(QUICK, until=0.5)
    what = Scripted(sequences(), sequences(13, seed=1), batch_size=BATCH)
    what.script = {2: 0.3, 4: 0.5, 6: 0.6}
    out = tmp_path / "run"
    go(classifier(), what, out, options)
    before = weights_of(out)
    again = go(classifier(), what, out, options, resume=True)
    assert (again.steps, weights_of(out)) == (4, before)
    assert go(classifier(), what, out, replace(QUICK, until=0.6), resume=True).steps == 6


def test_until_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="until must be a finite number or None, got nan"):
        Training(until=math.nan)


# ---- statistics of batch norms


def norm_run(tmp_path: Path, name: str, gather: int) -> tuple[Path, Result]:
    out = tmp_path / name
    return out, go(classifier("after"), task(), out, replace(QUICK, steps=8, lr=0.05, gather=gather))


def test_gathered_statistics_are_evaluated_and_saved_and_the_run_goes_on_as_without(tmp_path: Path) -> None:
    with_out, with_ = norm_run(tmp_path, "gathered", 3)
    without_out, _ = norm_run(tmp_path, "running", 0)
    ours, theirs = ([line["train_loss"] for line in metrics(out)] for out in (with_out, without_out))
    assert ours == theirs  # the run itself is the same
    last: list[Any] = [Checkpoints(out / "checkpoints").newest()[0] for out in (with_out, without_out)]
    assert last[0]["model"].keys() == last[1]["model"].keys()
    for name, value in last[0]["model"].items():
        if isinstance(value, Tensor):
            assert torch.equal(value, last[1]["model"][name]), name
    assert [line["loss"] for line in metrics(with_out)] != [line["loss"] for line in metrics(without_out)]
    # What is saved are the statistics of the best weights over the three batches before their step.
    assert with_.best_step is not None
    saved = indrnn.load(with_out)
    again = copy.deepcopy(saved)
    what = task()
    batches = [what.batch(step, Shard()) for step in range(max(0, with_.best_step - 3), with_.best_step)]
    indrnn.gather_statistics(again, batches, call=what.loss)
    for (name, ours_), (_, expected) in zip(saved.named_buffers(), again.named_buffers(), strict=True):
        if "running" in name:
            torch.testing.assert_close(ours_, expected, msg=name)


def test_a_task_that_carries_a_state_keeps_it_when_statistics_are_gathered(tmp_path: Path) -> None:
    class Counts(TensorTask):
        """Carries how many losses it has computed."""

        seen = 0

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            self.seen += 1
            return super().loss(model, batch)

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = state["seen"]

    what = Counts(sequences(), sequences(13, seed=1), batch_size=BATCH, seed=3)
    go(classifier("after"), what, tmp_path / "run", replace(QUICK, steps=4, gather=2))
    assert what.seen == 4


class Seen(Listener):
    """Keeps the statistics of a run's norms after each step, the model before a step, and may stop it."""

    def __init__(self, model: nn.Module, copied: int = -1, stop: int = -1) -> None:
        self.model, self.copied, self.stop = model, copied, stop
        self.copy: nn.Module | None = None
        self.statistics: list[Tensor] = []

    def on_step(self, event: Step) -> None:
        found = [buffer.flatten() for name, buffer in self.model.named_buffers() if "running" in name]
        self.statistics.append(torch.cat(found).clone())
        if event.step == self.copied:
            self.copy = copy.deepcopy(self.model)
        if event.step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)


FROZEN = replace(QUICK, steps=8, lr=0.05, gather=3, freeze_norms=0.5)


def test_frozen_norms_keep_the_statistics_gathered_then_in_training_too(tmp_path: Path) -> None:
    model = classifier("after")
    seen, what = Seen(model, copied=4), task()
    go(model, task(), tmp_path / "run", FROZEN, report=seen)
    expected = seen.copy
    assert expected is not None
    indrnn.gather_statistics(expected, [what.batch(step, Shard()) for step in (1, 2, 3)], call=what.loss)
    gathered = torch.cat([buffer.flatten() for name, buffer in expected.named_buffers() if "running" in name])
    assert not torch.equal(seen.statistics[2], seen.statistics[3])
    for after in seen.statistics[4:]:
        assert_close(after, gathered)
    # The fifth step by hand: its loss is that of a network whose norms are in evaluation mode
    expected.train()
    for module in expected.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    with torch.no_grad():
        fifth = float(what.loss(expected, what.batch(4, Shard())))
    again = go(classifier("after"), task(), tmp_path / "each", replace(FROZEN, evaluate_every=1))
    assert_close(metrics(tmp_path / "each")[4]["train_loss"], fifth)
    # Once frozen, what is evaluated is what is trained
    saved = indrnn.load(tmp_path / "each")
    assert again.best_step is not None
    if again.best_step > 4:
        kept = torch.cat([buffer.flatten() for name, buffer in saved.named_buffers() if "running" in name])
        assert_close(kept, gathered)


@pytest.mark.parametrize("stop", [3, 4, 5, 7])
def test_frozen_norms_are_the_same_to_the_bit_in_a_resumed_run(tmp_path: Path, stop: int) -> None:
    straight = go(classifier("after"), task(), tmp_path / "straight", FROZEN)
    model = classifier("after")
    assert not go(model, task(), tmp_path / "run", FROZEN, report=Seen(model, stop=stop)).finished
    resumed = go(classifier("after"), task(), tmp_path / "run", FROZEN, resume=True)
    assert resumed.best == straight.best
    one, two = (load_file(tmp_path / name / "weights.safetensors") for name in ("straight", "run"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_freeze_norms_without_norms_changes_nothing(tmp_path: Path) -> None:
    with_, without = (replace(FROZEN, freeze_norms=share) for share in (0.5, None))
    one = go(classifier(None), task(), tmp_path / "one", with_)
    two = go(classifier(None), task(), tmp_path / "two", without)
    assert one.best == two.best


@pytest.mark.parametrize("wrong", [-0.1, 1.0, math.nan])
def test_freeze_norms_must_be_a_share(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"freeze_norms must be a number in \[0, 1\), got"):
        Training(freeze_norms=wrong)
    with pytest.raises(ValueError, match="freeze_norms cannot be combined with a plateau"):
        Training(freeze_norms=0.5, schedule=Plateau())
