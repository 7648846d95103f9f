"""The benchmarks: tables, files and errors, at the smallest of sizes. Timings are not tested."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import indrnn
from benchmarks import against, layer, loop, network, peers, scale, skeleton, stream
from benchmarks.against import Case
from benchmarks.command import Benchmark, start
from benchmarks.measure import Bench
from indrnn.ops.cpu import kernel

needs_kernel = pytest.mark.skipif(isinstance(kernel.library(), str), reason="the C++ kernel was not built")


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes: dict[Any, dict[str, Any]] = {
        layer: {"LENGTHS": (8, 16, 24), "HIDDEN": 8, "BATCH": 3, "COMPILED": 4, "LONG": 32, "TOO_SLOW": 1e9},
        network: {"STEPS": 12, "BATCH": 3},
        stream: {"UNITS": (8,), "LAYERS": (1, 2), "CALLS": 3},
        scale: {
            "STEPS": (10, 20, 40, 80),
            "PIECE": 8,
            "BATCHES": (1, 2),
            "NEURONS": (4, 8),
            "LAYERS": (1, 2),
            "OUT_OF_CACHE": 2000,
        },
        loop: {
            "SIDE": 4,
            "HIDDEN": 5,
            "CASES": tuple(replace(case, steps=2) for case in loop.CASES),
            "STARTED": {"nothing": "pass", "more": "import json"},
        },
        skeleton: {
            "FRAMES": 3,
            "BATCH": 2,
            "MODELS": {
                "IndRNN, 6 × 512": indrnn.Plain(skeleton.INPUTS, 4, 2).build,
                skeleton.REFERENCE: partial(torch.nn.LSTM, skeleton.INPUTS, 4, 2),
            },
        },
    }
    for module, values in sizes.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    # Importing the package sru compiles its kernels, where it is installed.
    monkeypatch.setitem(peers.PEERS, peers.THEIR_SRU, lambda device, hidden: "it is for another day")


KINDS: dict[str, Benchmark] = {
    module.__name__.rpartition(".")[2]: module.BENCHMARK for module in (layer, network, stream, scale, loop, skeleton)
}


def bench(kind: str, *arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        start(KINDS[kind], list(arguments))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def rows(kind: str, out: str = "results/bench") -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = json.loads((Path(out) / f"{kind}.json").read_text())["rows"]
    return kept


@pytest.mark.parametrize("kind", KINDS)
def test_each_leaves_numbers_and_tables_and_some_a_figure(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    assert bench(kind, "--quick", "--rounds", "2", "--out", "a/b") == 0
    assert torch.get_num_threads() == threads
    figure = [f"{kind}.png"] if kind in ("layer", "scale") else []
    assert sorted(path.name for path in Path("a/b").iterdir()) == [f"{kind}.json", f"{kind}.md", *figure]
    said = capsys.readouterr().out
    table = Path(f"a/b/{kind}.md").read_text()
    assert table.startswith(f"`python -m benchmarks.{kind} --quick --rounds 2 --out a/b`")
    for line in table.splitlines()[2:]:
        assert line in said
    assert re.search(r"^\|---", table, re.MULTILINE)
    assert rows(kind, "a/b")


@needs_kernel
def test_layer_compares_with_every_peer_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("layer", "--quick", "--rounds", "2") == 0
    by_title: dict[str, set[str]] = {}
    for row in rows("layer"):
        by_title.setdefault(row["title"], set()).add(row["name"])
    for T in (8, 16):
        assert by_title[f"T = {T}: training step, 2 → 8, batch 3"] >= {
            "torch.nn.LSTM",
            "torch.nn.GRU",
            "torch.nn.RNN",
            peers.OUR_SRU,
            f"{peers.OUR_SRU}, 2 layers",
            "IndRNN in a Python loop",
            "IndRNN, 1 layer",
            "IndRNN, 2 layers",
        }
    assert "left out: SRU, the package sru: it is for another day" in capsys.readouterr().out


def test_what_is_far_too_slow_is_left_out_of_longer_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layer, "TOO_SLOW", 1e-9)  # all are
    assert bench("layer", "--quick", "--rounds", "2") == 0
    names = [row["name"] for row in rows("layer") if row["title"].startswith("T = 16:")]
    assert names == [layer.LSTM]
    assert (
        "left out of longer sequences, 1e-09 times slower than torch.nn.LSTM: IndRNN, 1 layer"
        in capsys.readouterr().out
    )


def test_stream_gives_quantiles_of_every_call() -> None:
    assert bench("stream", "--rounds", "4") == 0
    kept = rows("stream")
    assert {row["title"] for row in kept} == {"8 units, 1 layer", "8 units, 2 layers"}
    for row in kept:
        assert row["calls"] == 4 * 3
        assert 0 < row["p50_us"] <= row["p99_us"]


@pytest.mark.slow
def test_scale_fits_an_exponent_and_says_what_memory_went_beyond(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("scale", "--rounds", "2") == 0
    kept = {(row["title"], row.get("value")): row for row in rows("scale")}
    assert kept["T", 80]["tensor_bytes"] == 80 * 128 * 4
    assert kept["exponent of T", None]["from"] == 10
    # What is kept beside output and gradient: one tensor without recomputation, pieces with it
    assert kept["T, with recomputation", 80]["beyond_bytes"] < kept["T", 80]["beyond_bytes"]
    said = capsys.readouterr().out
    assert "exponent of T, fitted from T = 10 on" in said
    assert "T = 80: " in said


def test_loop_times_both_loops_in_every_round() -> None:
    assert bench("loop", "--rounds", "3") == 0
    kept = rows("loop")
    assert [row["name"] for row in kept] == [*(case.title for case in loop.CASES), "nothing", "more"]
    for row in kept[: len(loop.CASES)]:
        assert row["ms"]["median"] > 0
        assert row["more_ms"]["low"] <= row["more_ms"]["median"] <= row["more_ms"]["high"]


def test_a_loop_that_learns_something_else_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.BareLoop, "update", lambda self, step: None)
    with pytest.raises(AssertionError, match="not close"):
        loop.check_agreement(torch.device("cpu"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layer", "--rounds", "1"], "rounds must be at least 2, got 1"),
        (["layer", "--threads", "0"], "threads must be at least 1, got 0"),
        (["layer", "--device", "abacus"], "device must be auto, cpu, cuda or cuda:NUMBER, got 'abacus'"),
        (["layer", "--out", "file"], "out: cannot write to the folder file"),
        (["layer", "--against", "nowhere"], "against: no such folder: nowhere"),
        (["network", "--against", "file"], "against: no such folder: file"),
        (["layer", "--against", "."], f"against: . has no {against.PYTHON}: make it ready with"),
        (["stream", "--against", "."], "against: layer and network compare versions, stream does not"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in Path.cwd().iterdir()] == ["file"]


def test_sequences_a_second_follow_from_the_time_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(self: Bench, candidates: dict[str, Any], rounds: int | None = None) -> dict[str, list[float]]:
        for run in candidates.values():
            run()
        return {name: [10.0, 10.0] if name == skeleton.REFERENCE else [2.0, 2.0] for name in candidates}

    monkeypatch.setattr(Bench, "interleaved", timed)
    assert bench("skeleton", "--quick") == 0
    found = {(row["title"], row["name"]): row for row in rows("skeleton")}
    assert len(found) == 4
    for title in ("training", "testing"):
        ours, theirs = found[title, "IndRNN, 6 × 512"], found[title, skeleton.REFERENCE]
        assert ours["per_second"]["median"] == pytest.approx(2 / 0.002)
        assert theirs["per_second"]["median"] == pytest.approx(2 / 0.010)
        assert (ours["ratio"]["median"], theirs["ratio"]["median"]) == (5.0, 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_help_names_the_program(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(kind, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m benchmarks.{kind} ")


def test_whole_numbers_may_be_powers(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("stream", "--rounds", "2e0") == 0
    assert {row["calls"] for row in rows("stream")} == {2 * 3}


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="not every CPU can take them as zero")
def test_denormals_are_zero_in_a_program() -> None:
    """As in the program `indrnn`; where `start` gets arguments, the process is not its own."""
    program = """
import sys, torch
from benchmarks.command import start
start(lambda arguments: int(torch.full((9,), 71362, dtype=torch.int32).view(torch.float32).mul(1).any()), {})
"""
    root = Path(against.__file__).parents[1]
    codes = [
        subprocess.run([sys.executable, "-c", program.format(arguments)], check=False, cwd=root).returncode
        for arguments in ("None", "[]")
    ]
    assert codes == [0, 1]


@pytest.mark.slow
def test_against_measures_two_installed_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here of one installation twice, on small cases; what lies around is not imported in its place."""
    checkout = Path(indrnn.__file__).parents[2]
    if not (checkout / against.PYTHON).exists():
        pytest.skip(f"indrnn is not installed from a checkout with {against.PYTHON}")
    sizes: dict[str, int] = {"T": 9, "B": 3}
    tiny = (
        Case("layer", "layer", {**sizes, "N": 5, "inputs": 2, "lengths": True, "input_gradient": True}, quick=True),
        Case("op", "op", {**sizes, "N": 5, "dtype": "bfloat16"}, against.HALF, quick=True),
        Case("stream", "stream", {"N": 5, "cell": True}, quick=True),
        Case("training", "training", {**sizes, "network": "plain", "dropout": True}, quick=True),
        Case("not quick", "op", {**sizes, "N": 5}),
        Case("another version's", "op", {**sizes, "N": 5, "dtype": "float12"}, quick=True),
    )
    monkeypatch.setitem(against.CASES, "network", tiny)
    monkeypatch.setattr(against, "LEAST_MS", 0.0)
    monkeypatch.setattr(against, "PAUSE", 0.0)
    for wrong in ("indrnn", "torch"):
        (tmp_path / f"{wrong}.py").write_text("raise ImportError('not this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert bench("network", "--quick", "--rounds", "2", "--keep-memory", "--against", str(checkout), "--out", "a") == 0
    said = capsys.readouterr().out
    assert "both are the same installation" in said
    assert "left out: another version's: this version: AttributeError: " in said
    assert sorted(path.name for path in Path("a").iterdir()) == ["network-against.json", "network-against.md"]
    for line in Path("a/network-against.md").read_text().splitlines()[2:]:
        assert line in said
    kept = rows("network-against", "a")
    assert [row["title"] for row in kept] == [case.title for case in tiny[:-2]]
    for row in kept:
        assert row["agree"], row
        assert row["ms"]["this"]["median"] > 0
        assert row["peak_bytes"]["this"] > 0
    about = json.loads(Path("a/network-against.json").read_text())
    assert about["this"] == about["other"]
    assert about["this"]["indrnn"] == indrnn.__version__


@pytest.mark.slow
@needs_kernel
def test_our_sru_is_that_of_its_authors() -> None:
    """Where the package sru is installed; its import compiles its kernels."""
    pytest.importorskip("sru")
    from indrnn.baselines import SRU

    theirs = peers.sru_package(torch.device("cpu"), 12)
    assert isinstance(theirs, torch.nn.Module), theirs
    peers.same_as_sru_package(SRU(2, 12), theirs)


@pytest.mark.slow
def test_layer_with_the_loop_under_compile() -> None:
    assert bench("layer", "--rounds", "2") == 0
    assert "IndRNN in a loop under torch.compile" in {row["name"] for row in rows("layer")}
