"""Language modelling as a task: streams and windows, a state that is carried, and every token predicted once."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import indrnn
from indrnn.baselines import TransformerBaseline
from indrnn.networks.tokeniser import Tokeniser
from indrnn.tasks.text.corpus import Corpus, Split
from indrnn.tasks.text.task import SHORTEST, LanguageTask, Window
from indrnn.training import Measured, Shard, Training, train
from indrnn.training.checkpoint import load
from indrnn.training.evaluation import measure

CLASSES = 7
LETTERS = Tokeniser("char", tuple("abcdefg"))
WORDS = Tokeniser("word", ("<eos>", *"bcdefg"))


def split(ids: Any, dtype: Any = np.uint8) -> Split:
    return Split(np.asarray(ids, dtype))


def numbered(count: int) -> Split:
    """A text whose token i is i: for tests that look at places alone."""
    return split(np.arange(count), np.int32)


def corpus(train: int = 400, other: int = 57, tokeniser: Tokeniser = LETTERS) -> Corpus:
    random = np.random.default_rng(0)
    train_part, valid, test = (split(random.integers(0, CLASSES, count)) for count in (train, other, other + 9))
    return Corpus(train_part, valid, test, tokeniser)


def places(train: int, other: int = 20) -> Corpus:
    return Corpus(numbered(train), numbered(other), numbered(other), LETTERS)


def means(task: LanguageTask, pieces: Iterator[Measured]) -> dict[str, float]:
    found = measure(pieces, task=task)
    assert found is not None
    return found


class Table(nn.Module):
    """A bigram model: log-probabilities of the next token by the last."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits, requires_grad=False)

    def forward(self, tokens: Tensor, state: Any = None, *, targets: Tensor) -> tuple[Tensor, Any]:
        return F.cross_entropy(self.logits[tokens].flatten(0, 1), targets.flatten()), state


class Recorder(nn.Module):
    """Takes note of what it is given; its state is what each stream has read, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.pairs: list[tuple[int, int]] = []
        self.gaps = 0

    def forward(self, tokens: Tensor, state: Any = None, *, targets: Tensor) -> tuple[Tensor, Any]:
        counted = targets != -100
        if state is not None:  # a stream goes on where it was
            self.gaps += int(((state + 1 != tokens[0]) & counted[0]).sum())
        self.gaps += int(((tokens[1:] != tokens[:-1] + 1) & counted[1:]).sum())
        self.pairs += list(zip(tokens[counted].tolist(), targets[counted].tolist(), strict=True))
        return self.weight * 0.0, tokens[-1].clone()


# ---- training windows


def test_windows_are_streams_side_by_side() -> None:
    task = LanguageTask(places(1000), batch_size=6, length=11)
    stream = (1000 - 11) // 6
    assert task.steps_per_epoch == stream // 11
    for epoch in (0, 1):
        steps = range(epoch * task.steps_per_epoch, (epoch + 1) * task.steps_per_epoch)
        windows = [task.batch(step, Shard()) for step in steps]
        assert [window.fresh for window in windows] == [True] + [False] * (len(windows) - 1)
        assert all(window.inputs.shape == window.target.shape == (11, 6) for window in windows)
        assert all(window.inputs.dtype == window.target.dtype == torch.int64 for window in windows)
        inputs = torch.cat([window.inputs for window in windows])
        first = int(inputs[0, 0])
        assert 0 <= first < 11
        expected = first + stream * torch.arange(6) + torch.arange(len(inputs)).unsqueeze(1)
        assert torch.equal(inputs, expected)
        assert torch.equal(torch.cat([window.target for window in windows]), expected + 1)
        assert all((window.count, window.total) == (6, 6) for window in windows)


def test_each_epoch_begins_at_another_token() -> None:
    task = LanguageTask(places(500), batch_size=4, length=30)
    firsts = {int(task.batch(epoch * task.steps_per_epoch, Shard()).inputs[0, 0]) for epoch in range(40)}
    assert len(firsts) > 15
    assert firsts <= set(range(30))


def test_a_text_that_is_just_long_enough() -> None:
    task = LanguageTask(places(7 * 5 + 5), batch_size=7, length=5)
    assert task.steps_per_epoch == 1
    for step in range(30):
        assert int(task.batch(step, Shard()).target.max()) < 40
    with pytest.raises(ValueError, match=r"at least batch_size · length = 7 · 5 .* 40, got 39"):
        LanguageTask(places(39), batch_size=7, length=5)


def test_jitter() -> None:
    """Lengths are N(50, 5), about 25 for one in twenty, and at least 5; an epoch is read without a gap."""
    task = LanguageTask(places(160_000), batch_size=4, length=50, jitter=5.0, halved=0.05)
    lengths, first_of_epoch = list[int](), list[int]()
    before = 0
    for step in range(2000):
        window = task.batch(step, Shard())
        if window.fresh:
            first_of_epoch.append(step)
        else:
            assert int(window.inputs[0, 0]) == before + 1
        before = int(window.inputs[-1, 0])
        lengths.append(len(window.inputs))
    assert first_of_epoch[:2] == [0, task.steps_per_epoch]
    assert len(first_of_epoch) >= 3
    assert min(lengths) >= SHORTEST
    long = [length for length in lengths if length > 37]
    assert len(long) / len(lengths) == pytest.approx(0.95, abs=0.02)
    assert np.mean(long) == pytest.approx(50, abs=0.5)
    assert np.std(long) == pytest.approx(5, abs=0.5)
    assert np.mean([length for length in lengths if length <= 37]) == pytest.approx(25, abs=2)


def test_a_window_can_be_made_again_in_any_order() -> None:
    options: dict[str, Any] = {"batch_size": 3, "length": 9, "jitter": 3.0, "halved": 0.2, "reset": 0.3, "seed": 5}
    task = LanguageTask(corpus(), **options)
    windows = [task.batch(step, Shard()) for step in range(60)]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1)).tolist()
    for again in (LanguageTask(corpus(), **options), task):
        for step in order:
            one, two = windows[step], again.batch(step, Shard())
            assert torch.equal(one.inputs, two.inputs)
            assert torch.equal(one.target, two.target)
            assert one.fresh == two.fresh
    other = LanguageTask(corpus(), **options | {"seed": 6})
    assert any(other.batch(step, Shard()).inputs.shape != windows[step].inputs.shape for step in range(60))


def test_very_short_windows() -> None:
    task = LanguageTask(corpus(), batch_size=3, length=2, jitter=9.0)
    assert all(len(task.batch(step, Shard()).inputs) >= 2 for step in range(50))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_pieces_of_a_batch_are_its_streams(count: int) -> None:
    task = LanguageTask(corpus(), batch_size=5, length=7, jitter=2.0, reset=0.5)
    for step in range(9):
        whole = task.batch(step, Shard())
        pieces = [task.batch(step, Shard(index, count)) for index in range(count)]
        assert [piece.piece for piece in pieces] == list(range(count))
        assert sum(piece.count for piece in pieces) == 5
        assert {piece.fresh for piece in pieces} == {whole.fresh}
        assert torch.equal(torch.cat([p.inputs[:, : p.count] for p in pieces], dim=1), whole.inputs)
        assert all(piece.inputs.shape[1] >= 1 for piece in pieces)


def test_resets() -> None:
    task = LanguageTask(places(90_000), batch_size=3, length=6, reset=0.1)
    fresh = [task.batch(step, Shard()).fresh for step in range(1500)]
    assert sum(fresh) / len(fresh) == pytest.approx(0.1, abs=0.03)
    assert not any(LanguageTask(places(90_000), batch_size=3, length=6).batch(step, Shard()).fresh for step in (1, 9))


# ---- the carried state


def model(seed: int = 3, **options: Any) -> indrnn.LanguageModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = indrnn.PlainIndRNN(6, 6, 2, **{"dropout": 0.1, **options})
        return indrnn.LanguageModel(network, CLASSES)


def test_the_state_of_a_window_is_carried_to_the_next_and_detached() -> None:
    task, net = LanguageTask(corpus(), batch_size=3, length=7), model(dropout=0.0, norm=None)
    expected: Any = None
    for step in range(3):
        window = task.batch(step, Shard())
        loss = task.loss(net, window)
        logits, expected = net(window.inputs, expected)
        torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), window.target.flatten()))
        (carried,) = task.state_dict()["states"].values()
        assert all(torch.equal(one, two) for one, two in zip(carried.h, expected.h, strict=True))
        assert not any(h.requires_grad for h in carried.h)
        loss.backward()


def test_a_fresh_window_has_no_state() -> None:
    task, net = LanguageTask(corpus(), batch_size=3, length=7), model(dropout=0.0, norm=None)
    task.loss(net, task.batch(0, Shard()))
    window = task.batch(1, Shard())
    fresh, carried = task.loss(net, replace(window, fresh=True)), task.loss(net, window)
    logits, _ = net(window.inputs)
    torch.testing.assert_close(fresh, F.cross_entropy(logits.flatten(0, 1), window.target.flatten()))
    assert not torch.equal(fresh, carried)


def test_every_piece_carries_its_own_state() -> None:
    """Together they give what the whole batch gives."""
    task, parts = (LanguageTask(corpus(), batch_size=5, length=7) for _ in range(2))
    net = model(dropout=0.0, norm=None)
    for step in range(4):
        whole = task.loss(net, task.batch(step, Shard()))
        total = torch.zeros(())
        for index in range(3):
            window = parts.batch(step, Shard(index, 3))
            total = total + parts.loss(net, window) * (window.count / window.total)
        torch.testing.assert_close(total, whole)
    assert sorted(parts.state_dict()["states"]) == [0, 1, 2]


def test_a_state_is_not_written_into_later() -> None:
    task, net = LanguageTask(corpus(), batch_size=3, length=7), model()
    task.loss(net, task.batch(0, Shard()))
    before = task.state_dict()
    copies = [h.clone() for h in before["states"][0].h]
    task.loss(net, task.batch(1, Shard()))
    assert all(torch.equal(one, two) for one, two in zip(before["states"][0].h, copies, strict=True))
    task.load_state_dict(before)
    assert task.state_dict()["states"][0] is before["states"][0]


def test_a_window_keeps_its_marks_on_the_way_to_a_device() -> None:
    window = LanguageTask(corpus(), batch_size=3, length=7).batch(0, Shard(1, 3))
    moved = window.to(torch.device("meta"))
    assert isinstance(moved, Window)
    assert (moved.piece, moved.fresh, moved.inputs.device.type) == (1, True, "meta")


# ---- evaluation


@pytest.mark.parametrize("tokens", [2, 3, 20, 57, 58])
@pytest.mark.parametrize("batch", [1, 2, 7, 10, 100])
@pytest.mark.parametrize("processes", [1, 3])
def test_every_token_but_the_first_is_predicted_once(tokens: int, batch: int, processes: int) -> None:
    """From the token before it; and a stream's state is of the tokens right before."""
    task = LanguageTask(places(500, tokens), batch_size=3, length=5, valid_batch=batch, test_batch=batch)
    for ways in (lambda net, shard: task.evaluate(net, 0, shard), task.test):
        recorder, count = Recorder(), 0
        for index in range(processes):
            count += sum(items for _, items in ways(recorder, Shard(index, processes)))
        assert sorted(recorder.pairs) == list(pairwise(range(tokens)))
        assert recorder.gaps == 0
        assert count == tokens - 1


def bigrams() -> Tensor:
    return torch.log_softmax(torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(2)).double(), dim=1)


@pytest.mark.parametrize("batch", [1, 10, 3])
@pytest.mark.parametrize("tokeniser", [LETTERS, WORDS], ids=["char", "word"])
def test_a_bigram_model_is_measured_as_by_hand(batch: int, tokeniser: Tokeniser) -> None:
    table = bigrams()
    task = LanguageTask(corpus(tokeniser=tokeniser), batch_size=4, length=6, valid_batch=batch, test_batch=batch)
    text = task.corpus.test.ids.tolist()
    surprise = -sum(math.log2(math.exp(table[one, two])) for one, two in pairwise(text)) / (len(text) - 1)
    found = means(task, task.test(Table(table), Shard()))
    assert found["loss"] == pytest.approx(surprise * math.log(2), rel=1e-12)
    assert (found["batch"], found["tokens"]) == (batch, len(text) - 1)
    assert isinstance(found["tokens"], int)
    if tokeniser is LETTERS:
        assert found["bpc"] == pytest.approx(surprise, rel=1e-12)
        assert "perplexity" not in found
    else:
        assert found["perplexity"] == pytest.approx(2**surprise, rel=1e-12)
        assert "bpc" not in found
    valid = means(task, task.evaluate(Table(table), 5, Shard()))
    assert valid.keys() == {"loss", task.metric}


@pytest.mark.parametrize("tokeniser", [LETTERS, WORDS, Tokeniser("byte")], ids=["char", "word", "byte"])
def test_a_uniform_model(tokeniser: Tokeniser) -> None:
    task = LanguageTask(corpus(tokeniser=tokeniser), batch_size=4, length=6)
    found = means(task, task.test(Table(torch.zeros(CLASSES, CLASSES).double()), Shard()))
    expected = {"bpc": math.log2(CLASSES)} if tokeniser.unit != "word" else {"perplexity": float(CLASSES)}
    assert found == pytest.approx({"loss": math.log(CLASSES), "batch": 4, "tokens": 65, **expected})


def test_processes_are_merged_before_the_perplexity_is_taken() -> None:
    """The mean of perplexities would be another number."""
    task = LanguageTask(corpus(tokeniser=WORDS), batch_size=4, length=6)
    table = Table(3 * bigrams())
    whole = means(task, task.test(table, Shard()))
    parts = [piece for index in range(3) for piece in task.test(table, Shard(index, 3))]
    assert means(task, iter(parts)) == pytest.approx(whole, rel=1e-12)
    assert max(math.exp(float(each["loss"])) for each, _ in parts) > 1.1 * whole["perplexity"]


def test_a_loss_whose_perplexity_is_no_number() -> None:
    task = LanguageTask(corpus(tokeniser=WORDS), batch_size=4, length=6)
    assert task.derive({"loss": 1e5})["perplexity"] == math.inf


def test_a_transformer_sees_the_window_before() -> None:
    """As if each window were read together with the one before it, and no more."""
    length, task = 5, LanguageTask(corpus(), batch_size=3, length=5, test_batch=1)
    network = TransformerBaseline(8, 8, 1, 2, context=length)
    net = indrnn.LanguageModel(network, CLASSES, start=1.0).eval()
    text = torch.from_numpy(task.corpus.test.ids.astype(np.int64)).unsqueeze(1)
    losses = []
    with torch.no_grad():
        for at in range(0, len(text) - 1, length):
            end, before = min(at + length, len(text) - 1), max(0, at - length)
            logits, _ = net(text[before:end])
            losses.append(F.cross_entropy(logits[at - before :, 0], text[at + 1 : end + 1, 0], reduction="none"))
        found = means(task, task.test(net, Shard()))
    assert found["loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)


def test_how_a_part_is_cut_changes_what_is_known_and_not_what_is_predicted() -> None:
    """With one stream the network sees all before; with more, each begins with less."""
    net = model(dropout=0.0, norm=None).eval()
    found = {}
    for batch in (1, 4):
        task = LanguageTask(corpus(), batch_size=3, length=6, test_batch=batch)
        with torch.no_grad():
            found[batch] = means(task, task.test(net, Shard()))
    text = torch.from_numpy(corpus().test.ids.astype(np.int64)).unsqueeze(1)
    with torch.no_grad():
        logits, _ = net(text[:-1])
    assert found[1]["loss"] == pytest.approx(float(F.cross_entropy(logits[:, 0], text[1:, 0])), rel=1e-6)
    assert found[4]["loss"] != found[1]["loss"]
    assert found[4]["tokens"] == found[1]["tokens"]


# ---- in the loop


OPTIONS = Training(
    steps=25,
    lr=1e-2,
    evaluate_every=6,
    checkpoint_every=1e9,
    gather=3,
    threads=1,
    device="cpu",
    tensorboard=False,
    curve=False,
)


def trained(out: Path, *, resume: bool = False, stop: int | None = None, **options: Any) -> LanguageTask:
    """A run with all that is random, and a state that is carried; it may be stopped as if it were killed."""
    extra: dict[str, Any] = {
        "batch_size": 8,
        "length": 6,
        "jitter": 2.0,
        "halved": 0.2,
        "reset": 0.1,
        "valid_batch": 10,
        "test_batch": 1,
    }
    task = LanguageTask(corpus(tokeniser=WORDS), **extra)
    if stop is not None:
        make = task.batch

        def batch(step: int, shard: Shard) -> Window:
            if step == stop:
                raise KeyboardInterrupt
            return make(step, shard)

        task.batch = batch  # type: ignore[method-assign]
    train(
        model(norm="step", norm_steps=6), task, replace(OPTIONS, **options), out=out, seed=4, resume=resume, quiet=True
    )
    return task


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_that_was_killed_ends_as_if_nothing_had_been(accumulate: int, tmp_path: Path) -> None:
    trained(tmp_path / "straight", accumulate=accumulate)
    for stop in (5, 13, 20):  # each time, what came after the last checkpoint is lost
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "killed", resume=True, stop=stop, checkpoint_every=0.0, accumulate=accumulate)
    trained(tmp_path / "killed", resume=True, accumulate=accumulate)
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("straight", "killed")]
    assert weights[0] == weights[1]


def test_an_evaluation_leaves_the_carried_state_alone(tmp_path: Path) -> None:
    """Its own state, and that of the batches over which statistics are gathered, are others."""
    often = trained(tmp_path / "often", evaluate_every=1).state_dict()
    never = trained(tmp_path / "never", evaluate_every=1000).state_dict()
    for one, two in zip(often["states"][0].h, never["states"][0].h, strict=True):
        assert torch.equal(one, two)


def test_a_run_holds_its_tokeniser(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    net = indrnn.load(tmp_path / "run")
    assert isinstance(net, indrnn.LanguageModel)
    assert net.tokeniser == WORDS
    assert net.tokeniser.encode("b\n").tolist() == [1, 0]


def test_a_run_is_not_resumed_on_another_text(tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=5)
    random = np.random.default_rng(1)
    other = Corpus(split(random.integers(0, CLASSES, 400)), corpus().validation, corpus().test, WORDS)
    task = LanguageTask(other, batch_size=8, length=6, jitter=2.0, halved=0.2, reset=0.1, valid_batch=10, test_batch=1)
    with pytest.raises(ValueError, match=r"cannot resume .*task\.train\.checksum was"):
        train(model(norm="step", norm_steps=6), task, OPTIONS, out=tmp_path / "run", seed=4, resume=True, quiet=True)


def test_a_small_network_learns_what_only_a_state_can_tell(tmp_path: Path) -> None:
    """In windows of 4, half of what tells the tokens after 1 apart lies before the window."""
    text = np.tile([0, 1, 2, 0, 1, 3], 300)  # after 0, 1 comes 2 or 3 in turn
    parts = Corpus(split(text), split(text[:120]), split(text[:120]), LETTERS)
    task = LanguageTask(parts, batch_size=5, length=4, test_batch=1)
    torch.manual_seed(0)
    net = indrnn.LanguageModel(indrnn.PlainIndRNN(16, 16, 2, norm=None), CLASSES)
    result = train(
        net, task, replace(OPTIONS, steps=400, evaluate_every=200, lr=2e-2), out=tmp_path / "run", quiet=True
    )
    assert result.test["bpc"] < 0.15  # 1/6 is the least without a state


# ---- in two processes


def main(folder: Path) -> None:
    """What each process does: a run, and the same one stopped and resumed."""
    torch.set_num_threads(1)
    trained(folder / "straight")
    for stop in (7, 16):
        with contextlib.suppress(KeyboardInterrupt):
            trained(folder / "killed", resume=True, stop=stop, checkpoint_every=0.0)
    trained(folder / "killed", resume=True)
    trained(folder / "pieces", accumulate=2)


@pytest.mark.slow
def test_two_processes_resumed_end_at_the_same_bits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, __file__, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("straight", "killed")]
    assert weights[0] == weights[1]
    state = load(tmp_path / "killed" / "checkpoints" / "last.ckpt")
    assert [sorted(each["states"]) for each in state["task"]] == [[0], [1]]
    state = load(tmp_path / "pieces" / "checkpoints" / "last.ckpt")
    assert [sorted(each["states"]) for each in state["task"]] == [[0, 1], [2, 3]]
    result = json.loads((tmp_path / "straight" / "result.json").read_text())
    assert (result["test"]["batch"], result["test"]["tokens"]) == (1, 65)
    net, task = indrnn.load(tmp_path / "straight"), LanguageTask(corpus(tokeniser=WORDS), batch_size=4, test_batch=1)
    with torch.no_grad():
        alone = means(task, task.test(net, Shard()))
    assert result["test"] == pytest.approx(alone, rel=1e-5)


# ---- bad options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"valid_batch": 0}, "valid_batch must be at least 1, got 0"),
        ({"test_batch": 1.5}, "test_batch must be an integer, got float"),
        ({"jitter": -1.0}, "jitter must be a number of at least 0, got -1.0"),
        ({"halved": 1.0}, r"halved must be a number in \[0, 1\), got 1.0"),
        ({"reset": -0.1}, r"reset must be a number in \[0, 1\), got -0.1"),
        ({"seed": 0.5}, "seed must be a whole number of 64 bits"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        LanguageTask(corpus(), **options)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_parts_that_are_too_short(part: str) -> None:
    with pytest.raises(ValueError, match=f"the text for {part} must have at least 2 characters, got 1"):
        LanguageTask(replace(corpus(), **{part: numbered(1)}), batch_size=4, length=6)  # type: ignore[arg-type]


if __name__ == "__main__":  # a program of its own
    main(Path(sys.argv[1]))
