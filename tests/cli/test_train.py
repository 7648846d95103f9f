"""`indrnn train`: files, options, resuming, Ctrl-C, data."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import indrnn
from indrnn.tasks import pixels
from indrnn.tasks.adding import Adding

from .calls import (
    DIGITS,
    FILES,
    SIZES,
    TRAIN,
    Call,
    assert_done,
    assert_refused,
    contents,
    lines,
    read,
    to_go_on,
)

# ---- train


def test_a_run_leaves_its_files(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} - {"tensorboard"} == FILES
    assert (finished / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [line["step"] for line in lines(finished)] == [8, 16, 20]
    result = read(finished, "result.json")
    assert result["steps"] == 20
    assert result["best_step"] in (8, 16, 20)
    assert result["best"]["validation_mse"] == min(line["validation_mse"] for line in lines(finished))
    config = read(finished, "config.json")
    assert (config["recipe"]["name"], config["seed"]) == ("adding-100-fast", 0)
    model = indrnn.load(finished)
    assert_close(model.state_dict(), load_file(finished / "weights.safetensors"), rtol=0, atol=0)
    assert model(torch.rand(5, 2, 2))[0].shape == (2, 1)


def test_what_is_printed_says_where_the_run_is_and_how_it_went(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "a run"
    said = assert_done(call(*TRAIN, "--steps", "8", "--out", out))
    assert "step 8/8" in said.out
    assert f"{read(out, 'result.json')['test']['test_mse']:.5g}" in said.out
    assert f"saved in {out}" in said.out
    loaded = re.search(r"indrnn\.load\((.*)\)", said.out)
    assert loaded is not None
    assert loaded[1] == repr(str(out))


def test_without_out_a_run_goes_to_runs(call: Call) -> None:
    assert_done(call(*TRAIN, "--steps", "1"))
    assert {path.name for path in Path("runs/adding-100-fast").iterdir()} >= FILES - {"curve.png"}  # of one evaluation


def test_a_run_is_not_overwritten_unasked(finished: Path, call: Call) -> None:
    before = contents(finished)
    said = call(*TRAIN, "--steps", "20", "--out", finished)
    assert_refused(said, f"out: {finished} holds something already", "resume", "overwrite")
    assert contents(finished) == before


def test_overwrite_starts_again(finished: Path, call: Call) -> None:
    (finished / "notes.txt").write_text("mine")
    assert_done(call(*TRAIN, "--steps", "9", "--seed", "1", "--out", finished, "--overwrite"))
    assert [line["step"] for line in lines(finished)] == [8, 9]
    assert read(finished, "result.json")["steps"] == 9
    assert read(finished, "config.json")["seed"] == 1
    assert (finished / "notes.txt").read_text() == "mine"


def test_resuming_a_finished_run_changes_nothing(finished: Path, call: Call) -> None:
    weights, measured = (finished / "weights.safetensors").read_bytes(), lines(finished)
    test = read(finished, "result.json")["test"]
    said = assert_done(call(*TRAIN, "--steps", "20", "--out", finished, "--resume"))
    assert "resuming at step 20" in said.out
    assert (finished / "weights.safetensors").read_bytes() == weights
    assert lines(finished) == measured
    assert read(finished, "result.json")["test"] == test


def test_a_finished_run_goes_on_for_more_steps(finished: Path, call: Call) -> None:
    earlier = lines(finished)
    said = assert_done(call(*TRAIN, "--steps", "30", "--out", finished, "--resume"))
    assert "resuming at step 20" in said.out
    assert lines(finished)[:3] == earlier
    assert [line["step"] for line in lines(finished)] == [8, 16, 20, 24, 30]
    assert read(finished, "result.json")["steps"] == 30


def test_resume_of_nothing_starts(call: Call, tmp_path: Path) -> None:
    said = assert_done(call(*TRAIN, "--steps", "3", "--out", tmp_path / "new", "--resume"))
    assert "nothing to resume" in said.out
    assert {path.name for path in (tmp_path / "new").iterdir()} >= FILES - {"curve.png"}  # of one evaluation


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--lr", "0.5"], "lr was 0.001 and is now 0.5"),
        (["--length", "6"], "length was 5 and is now 6"),
        (["--seed", "1"], "seed was 0 and is now 1"),
        (["--model.layers", "3"], "layers was 2 and is now 3"),
        (["--schedule.warm-up", "0.5"], "warm_up was 0.05 and is now 0.5"),
    ],
    ids=["lr", "length", "seed", "layers", "warm up"],
)
def test_a_run_is_not_resumed_as_another(options: list[str], part: str, finished: Path, call: Call) -> None:
    before = contents(finished)
    said = call(*TRAIN, "--steps", "30", "--out", finished, "--resume", *options)
    assert_refused(said, "cannot resume", str(finished), part)
    assert contents(finished) == before


def test_options_arrive(call: Call, tmp_path: Path) -> None:
    changed = {
        "--model.hidden-size": "9",
        "--model.layers": "3",
        "--model.norm": "batch",
        "--model.norm-place": "before",
        "--batch-size": "4",
        "--lr": "0.0125",
        "--schedule.warm-up": "0.25",
        "--seed": "5",
        "--clip": "None",
        "--accumulate": "2",
    }
    words = [word for option in changed.items() for word in option]
    assert_done(call(*TRAIN, "--steps", "8", "--out", tmp_path / "run", *words))
    config = read(tmp_path / "run", "config.json")
    options, training = config["recipe"], config["training"]
    assert config["seed"] == 5
    assert (options["length"], options["batch_size"], options["test_sequences"]) == (5, 4, 11)
    assert options["model"]["type"] == "Plain"
    assert (options["model"]["hidden_size"], options["model"]["layers"]) == (9, 3)
    assert (options["model"]["norm"], options["model"]["norm_place"]) == ("batch", "before")
    assert options["model"]["gamma"] == 2.0
    assert (training["steps"], training["lr"], training["clip"], training["accumulate"]) == (8, 0.0125, None, 2)
    assert training["schedule"] == {"type": "Cosine", "warm_up": 0.25}
    of_the_task = {"input_size": 2, "sequence_length": 5}
    assert read(tmp_path / "run", "model.json")["network"] == options["model"] | of_the_task
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert [weights[f"network.blocks.{i}.unit.weight_hh"].shape for i in range(3)] == [(9,)] * 3
    assert 0 < lines(tmp_path / "run")[-1]["lr"] < 0.0125


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--no-tensorboard", ("training", "tensorboard", False)),
        ("--model.no-long-memory", ("model", "long_memory", False)),
    ],
    ids=["tensorboard", "long memory"],
)
def test_what_is_on_can_be_turned_off(option: str, expected: tuple[str, str, bool], call: Call, tmp_path: Path) -> None:
    assert_done(call(*TRAIN, "--steps", "1", "--out", tmp_path / "run", option))
    config = read(tmp_path / "run", "config.json")
    part, name, value = expected
    assert (config["training"] if part == "training" else config["recipe"][part])[name] is value


def test_a_baseline_trains_too(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert_done(call("train", "adding-100-rnn", *SIZES, "--steps", "2", "--model.kind", "gru", "--out", out))
    assert read(out, "model.json")["network"]["kind"] == "gru"
    assert_done(call("evaluate", out))


def test_the_seed_decides(call: Call, once: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    assert_done(call(*TRAIN, "--steps", "20", "--out", same))
    assert_done(call(*TRAIN, "--steps", "20", "--out", other, "--seed", "1"))
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (once, same, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


# ---- Ctrl-C


@pytest.mark.parametrize("at", [3, 8, 18])
def test_an_interrupted_run_goes_on_with_the_command_it_prints(
    at: int, interrupt: Callable[[int], None], call: Call, once: Path, tmp_path: Path
) -> None:
    """To the bit, as if it had never been interrupted; also from a folder whose name a shell would take apart."""
    out = tmp_path / "it's a run; $(true)"
    interrupt(at)
    said = call(*TRAIN, "--steps", "20", "--out", out)
    assert said.code == 130
    assert said.err == ""
    assert f"stopped at step {at + 1}" in said.out or f"stopped at step {at + 2}" in said.out
    assert not (out / "result.json").exists()
    assert not (out / "curve.png").exists()
    said = assert_done(call(*to_go_on(said.out)))
    assert "resuming at step" in said.out
    assert (out / "weights.safetensors").read_bytes() == (once / "weights.safetensors").read_bytes()
    assert {path.name for path in out.iterdir()} >= FILES - {"curve.png"}  # of one evaluation
    kept = [{k: v for k, v in line.items() if k != "seconds"} for line in lines(out)]
    assert kept == [{k: v for k, v in line.items() if k != "seconds"} for line in lines(once)]


@pytest.mark.parametrize("how", ["--resume", "--overwrite"])
def test_a_run_that_was_resumed_or_overwritten_prints_the_right_command_too(
    how: str, interrupt: Callable[[int], None], finished: Path, call: Call
) -> None:
    interrupt(25 if how == "--resume" else 5)
    said = call(*TRAIN, how, "--steps", "30", "--out", finished)
    assert said.code == 130
    assert_done(call(*to_go_on(said.out)))
    assert [line["step"] for line in lines(finished)] == ([8, 16, 20, 24, 30] if how == "--resume" else [8, 16, 24, 30])


def test_a_demo_prints_a_command_that_goes_on(interrupt: Callable[[int], None], call: Call, tmp_path: Path) -> None:
    out = tmp_path / "a demo"
    interrupt(1)
    said = call("demo", "--steps", "5", "--out", out)
    assert said.code == 130
    assert_done(call(*to_go_on(said.out)))
    assert read(out, "result.json")["steps"] == 5
    assert {path.name for path in out.iterdir()} >= FILES - {"curve.png"}  # of one evaluation


def test_ctrl_c_of_a_process(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "indrnn"]
    command = [*program, *TRAIN, "--steps", "300", "--evaluate-every", "100", "--out", "my run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=120)
    assert first.startswith("step 1/300")
    assert process.returncode == 130, rest + err
    assert err == ""
    stopped = re.search(r"stopped at step (\d+), and saved", rest)
    assert stopped is not None

    again = [*program, *to_go_on(rest)]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"resuming at step {stopped[1]}\n" in done.stdout
    assert [line["step"] for line in lines(tmp_path / "my run")] == [100, 200, 300]
    assert read(tmp_path / "my run", "result.json")["steps"] == 300


# ---- recipes that read files


def test_without_data_and_network_a_line_says_what_to_do(unreachable: str, call: Call, tmp_path: Path) -> None:
    empty, out = tmp_path / "empty", tmp_path / "run"
    empty.mkdir()
    said = call("train", "mnist-6", "--data-dir", empty, "--out", out)
    assert_refused(said, *pixels.MNIST.files, str(empty / "mnist"), "--data-dir", "INDRNN_DATA", unreachable)
    assert said.out == ""
    assert not out.exists()
    assert [path for path in empty.rglob("*") if path.is_file()] == []


def test_a_corrupt_file_is_named(few_digits: Path, call: Call, tmp_path: Path) -> None:
    labels = few_digits / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-9])
    said = call(*DIGITS, "--data-dir", few_digits, "--out", tmp_path / "run")
    assert_refused(said, f"{labels} is corrupt")
    assert not (tmp_path / "run").exists()


def test_data_that_is_a_file_or_too_small(few_digits: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = call(*DIGITS, "--data-dir", tmp_path / "file", "--out", tmp_path / "run")
    assert_refused(said, "data_dir must be a folder", "is a file")
    said = call(*DIGITS, "--data-dir", few_digits, "--validation", "40", "--out", tmp_path / "run")
    assert_refused(said, "validation must be fewer than the", "got 40")
    assert not (tmp_path / "run").exists()


def test_digits_are_learnt_measured_and_gone_on_with(
    few_digits: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the data lies elsewhere the next time."""
    out = tmp_path / "run"
    assert_done(call(*DIGITS, "--data-dir", few_digits, "--steps", "2", "--out", out))
    assert {path.name for path in out.iterdir()} - {"tensorboard"} == FILES - {"curve.png"}  # of one evaluation
    config = read(out, "config.json")
    assert (config["recipe"]["validation"], config["recipe"]["shrink"]) == (10, 4)
    assert "data_dir" not in config["recipe"]
    assert [line["step"] for line in lines(out)] == [2]
    assert 0 <= lines(out)[0]["accuracy"] <= 1
    assert indrnn.load(out)(torch.rand(49, 3, 1))[0].shape == (3, 10)

    elsewhere = few_digits.rename(tmp_path / "elsewhere")
    said = assert_done(call("evaluate", out, "--data-dir", elsewhere))
    measured = re.search(r"^mnist-6-fast: .*accuracy ([\d.e-]+) with", said.out)
    assert measured is not None, said.out
    assert float(measured[1]) == pytest.approx(read(out, "result.json")["test"]["accuracy"], rel=1e-5)
    said = assert_done(call(*DIGITS, "--data-dir", elsewhere, "--steps", "4", "--out", out, "--resume"))
    assert "resuming at step 2" in said.out
    assert [line["step"] for line in lines(out)] == [2, 4]
    assert_refused(call("evaluate", out), "--data-dir", "INDRNN_DATA")
    monkeypatch.setenv("INDRNN_DATA", str(elsewhere))
    assert_done(call("evaluate", out))
    said = call(*DIGITS, "--steps", "4", "--split-seed", "1", "--out", out, "--resume")
    assert_refused(said, "cannot resume", "split_seed was 0 and is now 1")


def test_evaluate_of_a_run_that_makes_its_own_data(finished: Path, call: Call, tmp_path: Path) -> None:
    assert_refused(call("evaluate", finished, "--data-dir", tmp_path), "data_dir", "makes its own data")


# ---- options from runs and files


def test_a_run_goes_on_without_its_options(finished: Path, call: Call) -> None:
    """They are in its checkpoint; config.json may say what it likes."""
    (finished / "config.json").write_text("{}")
    said = assert_done(call("train", "--resume", finished, "--steps", "3e1"))
    assert "resuming at step 20" in said.out
    assert [line["step"] for line in lines(finished)] == [8, 16, 20, 24, 30]
    assert_refused(call("train", "--resume", finished, "--lr", "0.5"), "lr was 0.001 and is now 0.5")


def test_a_torn_config_is_named_and_written_anew(finished: Path, call: Call) -> None:
    config = finished / "config.json"
    config.write_text(config.read_text()[:70])
    assert "config.json is torn" in assert_done(call("train", "--resume", finished, "--steps", "30")).out
    assert read(finished, "config.json")["recipe"]["length"] == 5


def test_a_runs_config_is_a_config(finished: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "same"
    assert_done(call("train", "--config", finished / "config.json", "--out", out))
    assert (out / "weights.safetensors").read_bytes() == (finished / "weights.safetensors").read_bytes()
    part = tmp_path / "part.json"
    part.write_text(json.dumps({"recipe": read(finished, "config.json")["recipe"]}))
    assert_done(call("train", "--config", part, "--steps", "2", "--threads", "1", "--out", tmp_path / "part"))
    assert read(tmp_path / "part", "config.json")["training"]["evaluate_every"] == 100  # the recipe's own
    part.write_text("[]")
    assert_refused(call("train", "--config", part), "part.json must hold a JSON object")


def test_a_run_starts_from_anothers_weights(finished: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    start = [*TRAIN, "--lr", "1e-12", "--steps", "2", "--init-from", finished, "--out", out]
    assert_done(call(*start))
    ours, theirs = (load_file(run / "weights.safetensors") for run in (out, finished))
    assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert read(out, "config.json")["init_from"] == str(finished)
    assert_done(call("train", "--resume", out, "--steps", "3"))
    wide = [*TRAIN, "--model.hidden-size", "8", "--init-from", finished, "--out", tmp_path / "wide"]
    assert_refused(call(*wide), "init_from", "cannot be started from")


def test_the_same_seed_twice_is_refused_before_anything_is_done(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    assert_refused(call(*TRAIN, "--seeds", "1", "2", "1", "--out", out), "seeds must be different, got 1 2 1")
    assert not out.exists()


def test_several_seeds_are_several_runs_and_one_row(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    assert_done(call(*TRAIN, "--steps", "8", "--seeds", "0", "1", "--out", out))
    runs = [out / "seed-0", out / "seed-1"]
    assert [read(run, "config.json")["seed"] for run in runs] == [0, 1]
    errors = [read(run, "result.json")["test"]["test_mse"] for run in runs]
    kept = tmp_path / "results"
    row = assert_done(call("report", *runs, "--out", kept)).out.splitlines()[2]
    assert f"{sum(errors) / 2:.2g} ± {abs(errors[0] - errors[1]) / 2**0.5:.2g} (n = 2)" in row
    assert {path.name for path in kept.iterdir()} == {"seeds-seed-0.json", "seeds-seed-1.json", "adding.png"}
    before = contents(kept)
    assert_refused(call("report", *runs, "--out", kept), "seeds-seed-0.json", "adding.png", "--overwrite")
    assert contents(kept) == before


def test_runs_of_the_same_name_are_both_kept(finished: Path, call: Call, tmp_path: Path) -> None:
    other = tmp_path / "y" / "run"
    assert_done(call(*TRAIN, "--steps", "8", "--seed", "3", "--length", "6", "--out", other))
    said = assert_done(call("report", finished, other, "--out", tmp_path / "results")).out
    assert len(said.splitlines()) == 4
    assert {path.name for path in (tmp_path / "results").glob("*.json")} == {"run.json", "y-run.json"}


def test_another_kind_of_schedule(call: Call, tmp_path: Path) -> None:
    words = ["--schedule", "plateau", "--schedule.patience", "1"]
    assert_done(call(*TRAIN, "--steps", "2", "--no-keep-memory", *words, "--out", tmp_path / "run"))
    schedule = read(tmp_path / "run", "config.json")["training"]["schedule"]
    assert schedule == {"type": "Plateau", "divide_by": 5.0, "patience": 1}


def test_what_goes_wrong_after_the_start_is_another_exit_code(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Adding.batch

    def batch(self: Adding, step: int, shard: Any) -> Any:
        if step == 3:
            raise ValueError("no such batch")
        return make(self, step, shard)

    monkeypatch.setattr(Adding, "batch", batch)
    said = call(*TRAIN, "--steps", "8", "--out", tmp_path / "run")
    assert_refused(said, "step 3: no such batch; the checkpoint of step 0 is kept", code=1)
